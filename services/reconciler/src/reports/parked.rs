//! Reports that fit no attempt yet: kept, tried again when the ledger has news, and in the end a discrepancy.

use std::sync::Arc;

use bytes::Bytes;

use weir_domain::ids::{ReservationId, TenantId};
use weir_domain::money::NanoUsd;
use weir_domain::usage::UsageSource;
use weir_runtime::story::story;
use weir_runtime::tasks::Tasks;
use weir_schemas::Record;
use weir_schemas::discrepancy::Discrepancy;
use weir_schemas::usage_report::{ReportSource, UsageReport};
use weir_streams::{EffectError, StoredRecord, Subscription, Topic};

use super::{PendingIds, ReportError, Reports};
use crate::metrics::ReportResult;
use crate::projection::Mark;

/// Under this name the reports wait, beside the parked records of the consumers.
const WAITING: &str = "reports-unmatched";

#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// `None` until the store was asked.
    count: Option<usize>,
    /// Where the builder stood at the last complete pass: without news nothing fits that did not fit then.
    tried_at: Option<Mark>,
    /// When the oldest becomes a discrepancy, ms.
    next_expiry_ms: Option<i64>,
}

fn waiting_on(partition: u32) -> Subscription {
    Subscription { consumer: Arc::from(WAITING), topic: Topic::UsageReports, partition }
}

impl Reports {
    pub(super) async fn park(&self, record: &StoredRecord, partition: u32) -> Result<(), EffectError> {
        let retry = |error: &dyn std::error::Error| EffectError::Retry { reason: error.to_string() };
        let mut waiting = self.waiting.lock().await;
        let count = match waiting.count {
            Some(count) => count,
            None => self.count_waiting().await.map_err(|error| retry(&error))?,
        };
        if count >= self.options.max_parked_reports {
            return Err(EffectError::Retry { reason: format!("{count} reports wait for an attempt that fits them") });
        }
        let parked = self.ports.projection.store().park(&waiting_on(partition), record, "no attempt fits it yet").await;
        parked.map_err(|error| retry(&error))?;
        // The builder may have come to the attempt between the look and the parking: the next pass must look again.
        *waiting = Waiting { count: Some(count + 1), tried_at: None, next_expiry_ms: None };
        self.metrics.count_report(ReportResult::Parked);
        self.metrics.reports_parked.set(gauge(count + 1));
        Ok(())
    }

    async fn count_waiting(&self) -> Result<usize, ReportError> {
        let mut count = 0;
        for partition in 0..self.ports.journal.log().partitions(Topic::UsageReports) {
            let keys = self.ports.projection.store().list(&waiting_on(partition)).await?;
            count += keys.iter().map(|key| usize::try_from(key.records).unwrap_or(usize::MAX)).sum::<usize>();
        }
        Ok(count)
    }

    /// Tries the parked reports again until the tasks stop.
    pub async fn run(self: Arc<Self>, tasks: Tasks) {
        let stopping = tasks.stopping();
        tokio::pin!(stopping);
        loop {
            tokio::select! {
                biased;
                () = &mut stopping => return,
                () = tokio::time::sleep(self.options.period.duration()) => {}
            }
            if let Err(error) = self.retry_parked().await {
                tracing::warn!(reason = story(&error), "parked reports not tried");
            }
        }
    }

    /// One pass over the parked reports; without news since the last one it costs one look at the builder's position.
    /// Gives how many left.
    ///
    /// # Errors
    /// [`ReportError`]: a store or the log is away. What was done stays done.
    pub async fn retry_parked(&self) -> Result<usize, ReportError> {
        let mut waiting = self.waiting.lock().await;
        let now_ms = self.ports.journal.now_ms();
        let position = self.ports.projection.position().await?;
        let is_expired = waiting.next_expiry_ms.is_some_and(|at_ms| at_ms <= now_ms);
        let is_news = waiting.tried_at.as_ref() != Some(&position);
        if waiting.count == Some(0) || !(is_news || is_expired) {
            return Ok(0);
        }
        let mut pass = Pass { ids: PendingIds::default(), now_ms, left: 0, stayed: 0, next_expiry_ms: None };
        for partition in 0..self.ports.journal.log().partitions(Topic::UsageReports) {
            let of = waiting_on(partition);
            for key in self.ports.projection.store().list(&of).await? {
                self.retry_key(&of, &key.key, &mut pass).await?;
            }
        }
        *waiting = Waiting { count: Some(pass.stayed), tried_at: Some(position), next_expiry_ms: pass.next_expiry_ms };
        self.metrics.reports_parked.set(gauge(pass.stayed));
        Ok(pass.left)
    }

    /// The revisions of one report, in order.
    async fn retry_key(&self, of: &Subscription, key: &Bytes, pass: &mut Pass) -> Result<(), ReportError> {
        let mut may_resolve = true;
        for record in self.ports.projection.store().records(of, key).await? {
            let is_done = may_resolve && self.retry(&record, pass).await?;
            if is_done {
                self.ports.projection.store().resolve(of, key, record.offset).await?;
                pass.left += 1;
            } else {
                // What is resolved takes everything before it along, so the rest of the key waits with this one.
                may_resolve = false;
                pass.stayed += 1;
            }
        }
        Ok(())
    }

    async fn retry(&self, record: &StoredRecord, pass: &mut Pass) -> Result<bool, ReportError> {
        // It was read before it was parked.
        let Ok(report) = UsageReport::decode(&record.value) else { return Ok(true) };
        let reason = match self.handle(&report, &mut pass.ids).await {
            Ok(Some(result)) => {
                self.metrics.count_report(result);
                return Ok(true);
            }
            Ok(None) => "no attempt fits it".to_owned(),
            Err(error) if error.is_temporary() => return Err(error),
            Err(error) => story(&error),
        };
        let ceiling_ms = i64::try_from(self.options.parked_reports.as_ms()).unwrap_or(i64::MAX);
        let expires_ms = record.time_ms.saturating_add(ceiling_ms);
        if pass.now_ms < expires_ms {
            pass.next_expiry_ms = Some(pass.next_expiry_ms.map_or(expires_ms, |at_ms| at_ms.min(expires_ms)));
            return Ok(false);
        }
        self.give_up(&report, record, &reason).await?;
        Ok(true)
    }

    async fn give_up(&self, report: &UsageReport, record: &StoredRecord, reason: &str) -> Result<(), ReportError> {
        let discrepancy = unmatched(report, record, &self.ports.journal);
        let key = Bytes::copy_from_slice(discrepancy.reservation.as_bytes());
        self.ports.journal.write(Topic::Discrepancies, key, &discrepancy).await?;
        tracing::error!(report = report.cause(), reason, "usage report fits no attempt: a discrepancy");
        self.metrics.count_report(ReportResult::Unmatched);
        Ok(())
    }
}

struct Pass {
    ids: PendingIds,
    now_ms: i64,
    left: usize,
    stayed: usize,
    next_expiry_ms: Option<i64>,
}

/// Usage that the ledger knows nothing of: recorded zero, reported what the report says. A report that names no
/// reservation has the nil id; its own id is in `cause`, and its place on `weir.usage-reports` is the source.
fn unmatched(report: &UsageReport, record: &StoredRecord, journal: &crate::journal::Journal) -> Discrepancy {
    let named = report.correlation.as_ref();
    let source = match report.source {
        ReportSource::Manual => UsageSource::Person,
        ReportSource::ObjectById
        | ReportSource::ObjectByTag
        | ReportSource::RequestLog
        | ReportSource::UsageBucket
        | ReportSource::CostBucket
        | ReportSource::PeerExport => UsageSource::ProviderReport,
    };
    Discrepancy {
        reservation: named.and_then(|named| named.reservation).unwrap_or(ReservationId::from_bytes([0; 16])),
        attempt: named.and_then(|named| named.attempt).unwrap_or(1),
        tenant: TenantId::new(""),
        region: journal.region().clone(),
        recorded_requests: 0,
        recorded_tokens: 0,
        recorded_usd: NanoUsd::ZERO,
        recorded_source: source,
        reported_requests: report.request_count.unwrap_or(1),
        reported_tokens: report.meters.tokens(),
        reported_usd: report.cost_usd.unwrap_or_default(),
        reported_source: source,
        cause: report.cause(),
        adjusted: false,
        found_at_ms: journal.now_ms(),
        source_partition: i32::try_from(record.partition).unwrap_or(i32::MAX),
        source_offset: i64::try_from(record.offset).unwrap_or(i64::MAX),
    }
}

fn gauge(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
