//! What the ledger can say of one reservation to the reconciler, which must not take silence for zero (I9).

use thiserror::Error;

use weir_domain::attempt::AttemptNumber;
use weir_domain::ids::ReservationId;
use weir_domain::ledger::LedgerLine;
use weir_domain::money::Charge;
use weir_domain::reconcile::LedgerView;
use weir_streams::consumer::StoreError;
use weir_streams::{EventLog, ReadError, Topic};

use crate::builder::subscription;
use crate::contract::{LedgerError, LedgerStore};

/// Why there is no view.
#[derive(Debug, Error)]
pub enum ViewError {
    #[error("the log cannot say where it ends")]
    Log(#[from] ReadError),
    #[error("the ledger cannot be read")]
    Store(#[from] LedgerError),
    #[error("the ledger's positions cannot be read")]
    Positions(#[from] StoreError),
}

/// What the ledger shows of `id`. `Absent` only if the builder had passed the end that the log had when this was asked,
/// and the reservation is not parked; the gateways' spools are for the caller to ask about.
///
/// # Errors
/// [`ViewError`].
pub async fn ledger_view(
    log: &dyn EventLog,
    store: &dyn LedgerStore,
    id: ReservationId,
) -> Result<LedgerView, ViewError> {
    // In this order: a line that comes between the two looks is then found, or the view says that it may come.
    let is_complete = has_read_everything(log, store, id).await?;
    let lines = store.find(id).await?.map(|stored| stored.lines).unwrap_or_default();
    Ok(match (lines.is_empty(), is_complete) {
        (false, _) => LedgerView::Found(totals(&lines)),
        (true, true) => LedgerView::Absent,
        (true, false) => LedgerView::NotYetKnown,
    })
}

/// The running total of each attempt, from its newest line.
fn totals(lines: &[LedgerLine]) -> Vec<(AttemptNumber, Charge)> {
    let mut totals: Vec<(AttemptNumber, Charge)> = Vec::new();
    for line in lines {
        match totals.last_mut() {
            Some((number, total)) if *number == line.key.attempt => *total = line.total,
            Some(_) | None => totals.push((line.key.attempt, line.total)),
        }
    }
    totals
}

async fn has_read_everything(
    log: &dyn EventLog,
    store: &dyn LedgerStore,
    id: ReservationId,
) -> Result<bool, ViewError> {
    for partition in 0..log.partitions(Topic::Reservations) {
        let end = log.offsets(Topic::Reservations, partition).await?.written;
        let of = subscription(partition);
        if store.load(&of).await?.unwrap_or(0) < end {
            return Ok(false);
        }
        if store.list(&of).await?.iter().any(|parked| parked.key[..] == id.as_bytes()[..]) {
            return Ok(false);
        }
    }
    Ok(true)
}
