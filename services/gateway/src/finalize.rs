//! The end of every request, on every path: closing events to the log, then the store, then one line for people.

use std::sync::Arc;

use weir_domain::reservation::ReservationStatus;
use weir_runtime::story::story;

use crate::execute::Ended;
use crate::lifecycle::Prepared;
use crate::record::Record;
use crate::server::Inner;

/// Closes the reservation, and says what it became. When log or store refuse, the lease runs out and the reconciler
/// completes it (I11).
pub(crate) async fn finalize(
    gateway: &Arc<Inner>,
    prepared: &Prepared,
    record: &mut Record,
    ended: Ended,
) -> Option<ReservationStatus> {
    if let Err(error) = record.close(ended.open.clone()).await {
        tracing::error!(reservation_id = %record.id(), error = %story(&error), "reservation not closed");
    }
    let elapsed = prepared.arrival.started.elapsed();
    gateway.metrics.request_ended(ended.outcome, ended.status, elapsed);
    let charged = record.charged();
    tracing::info!(
        request_id = %prepared.arrival.request_id,
        reservation_id = %record.id(),
        tenant = %prepared.key.tenant.id,
        key = %prepared.key.id,
        model = %prepared.model.name,
        deployment = ended.deployment.as_ref().map(weir_domain::ids::DeploymentId::as_str),
        snapshot_version = prepared.snapshot.version,
        stream = prepared.request.facts().stream,
        attempts = record.next_attempt() - 1,
        outcome = ended.outcome.as_str(),
        status = ended.status,
        code = ended.code.as_deref(),
        reservation_status = record.status().map(ReservationStatus::as_str),
        chunks = ended.chunks_delivered,
        tokens = charged.tokens,
        usd = %charged.usd,
        duration_ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX),
        "request ended"
    );
    record.status()
}
