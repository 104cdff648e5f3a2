//! Usage reports: from what a provider, a file or a person says, to the log, and from there to ledger and counters.
//!
//! A report settles an attempt of which nobody knew; of a known one it is recorded, and the ledger's ranks decide. Either
//! way the log comes first (I8), at the price locked at admission (I10). A report that comes twice finds its cause in
//! the ledger, or is a copy there. One that fits no attempt yet waits in the parked store, and is tried again whenever
//! the ledger has news, until the ceiling makes a discrepancy of it.

mod parked;

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use thiserror::Error;

use weir_domain::attempt::{Attempt, AttemptNumber};
use weir_domain::ids::{PriceVersion, ReservationId};
use weir_domain::ledger::{Context, Posting, ReservationAccount, SourcePosition};
use weir_domain::money::Amounts;
use weir_domain::price::Price;
use weir_domain::reservation::{Command, Created, Event, Reservation, ReservationStatus, UsageRecord};
use weir_ledger::contract::StoredReservation;
use weir_quota::{QuotaError, QuotaStore};
use weir_runtime::failpoint;
use weir_runtime::story::story;
use weir_schemas::Record;
use weir_schemas::usage_report::{ReportGrain, UsageReport};
use weir_streams::consumer::StoreError;
use weir_streams::{Applied, Delivery, Effect, EffectError, StoredRecord};

use crate::claim::{Claim, Said, Unusable, is_of_provider, is_posted};
use crate::index::{AttemptIndex, IndexError};
use crate::journal::{Journal, JournalError};
use crate::metrics::{ReconcilerMetrics, ReportResult};
use crate::options::ReconcilerOptions;
use crate::projection::{Projection, ProjectionError, unheard};
use crate::rehearsal::{after, rehearse};

/// The consumer's name on `weir.usage-reports`. It never changes: under another one every report is read again.
pub const CONSUMER: &str = "reports";

/// Prices of every catalog there ever was: they are kept for good, by content hash.
pub trait Prices: std::fmt::Debug + Send + Sync {
    /// The price called `name` in the book of `version`, for a request admitted at `admitted_at_ms`.
    fn price(&self, version: &PriceVersion, name: &str, admitted_at_ms: i64) -> Option<Arc<Price>>;
}

/// The stores and ports that matching needs.
#[derive(Debug)]
pub struct ReportPorts {
    pub quota: Arc<dyn QuotaStore>,
    pub projection: Projection,
    pub journal: Journal,
    pub prices: Arc<dyn Prices>,
    pub index: Arc<dyn AttemptIndex>,
}

/// Follows `weir.usage-reports`.
#[derive(Debug)]
pub struct Reports {
    ports: ReportPorts,
    metrics: ReconcilerMetrics,
    options: ReconcilerOptions,
    waiting: tokio::sync::Mutex<parked::Waiting>,
}

/// Why a report was not handled.
#[derive(Debug, Error)]
pub enum ReportError {
    #[error("the report is unusable")]
    Unusable(#[from] Unusable),
    #[error("the quota store is away")]
    Quota(#[from] QuotaError),
    #[error("what it says is not on the log")]
    Journal(#[from] JournalError),
    #[error("the ledger's projection is away")]
    Projection(#[from] ProjectionError),
    #[error("the index is away")]
    Index(#[from] IndexError),
    #[error("the store of parked reports is away")]
    Parking(#[from] StoreError),
}

impl ReportError {
    /// Whether the same report may be handled later without anybody's help.
    #[must_use]
    pub const fn is_temporary(&self) -> bool {
        match self {
            Self::Unusable(_) => false,
            Self::Journal(error) => error.is_temporary(),
            Self::Quota(_) | Self::Projection(_) | Self::Index(_) | Self::Parking(_) => true,
        }
    }
}

/// The attempt that a report speaks of.
struct Match {
    stored: StoredReservation,
    attempt: Attempt,
}

/// Provider ids of what is pending, read at most once per delivery.
#[derive(Debug, Default)]
struct PendingIds(Option<HashMap<String, (ReservationId, AttemptNumber)>>);

impl Reports {
    #[must_use]
    pub fn new(ports: ReportPorts, metrics: ReconcilerMetrics, options: ReconcilerOptions) -> Self {
        Self { ports, metrics, options, waiting: tokio::sync::Mutex::default() }
    }

    /// Handles one report. `None`: no attempt fits it yet.
    async fn handle(&self, report: &UsageReport, ids: &mut PendingIds) -> Result<Option<ReportResult>, ReportError> {
        // A bucket speaks of no attempt; what the matcher makes of it does.
        let said = match report.grain {
            ReportGrain::Attempt => Said::by(report)?,
            ReportGrain::Bucket => return Ok(Some(ReportResult::Bucket)),
        };
        let Some(Match { stored, attempt }) = self.matching(report, ids).await? else { return Ok(None) };
        if is_posted(report, attempt.number, &stored.lines) {
            return Ok(Some(ReportResult::Duplicate));
        }
        self.record(report, &said, &stored, &attempt).await.map(Some)
    }

    /// Only what the log has: a report must not come before the events that it completes.
    async fn matching(&self, report: &UsageReport, ids: &mut PendingIds) -> Result<Option<Match>, ReportError> {
        let (id, number) = match Claim::of(report) {
            Claim::Ours(id, number) => (id, number),
            Claim::Provider(provider_id) => match self.look_up(&provider_id, ids).await? {
                Some((id, number)) => (id, Some(number)),
                None => return Ok(None),
            },
            Claim::Nameless => return Ok(None),
        };
        let Some(stored) = self.ports.projection.find(id).await? else { return Ok(None) };
        let attempt = match (number, stored.attempts.as_slice()) {
            (Some(number), attempts) => attempts.iter().find(|attempt| attempt.number == number).cloned(),
            (None, [only]) => Some(only.clone()),
            (None, _) => None,
        };
        let attempt = attempt.filter(|attempt| is_of_provider(report, attempt));
        Ok(attempt.map(|attempt| Match { stored, attempt }))
    }

    async fn look_up(
        &self,
        provider_id: &str,
        PendingIds(ids): &mut PendingIds,
    ) -> Result<Option<(ReservationId, AttemptNumber)>, ReportError> {
        if let Some(found) = self.ports.index.find(provider_id).await? {
            return Ok(Some(found));
        }
        let known = match ids {
            Some(known) => known,
            None => ids.insert(self.pending_ids().await?),
        };
        Ok(known.get(provider_id).copied())
    }

    async fn pending_ids(&self) -> Result<HashMap<String, (ReservationId, AttemptNumber)>, QuotaError> {
        let pending = self.ports.quota.pending(self.options.pending_listed).await?;
        let ids = pending.iter().flat_map(|reservation| {
            let id = reservation.created.id;
            reservation.attempts.iter().filter_map(move |a| Some((a.provider_id.clone()?, (id, a.number))))
        });
        Ok(ids.collect())
    }

    async fn record(
        &self,
        report: &UsageReport,
        said: &Said,
        stored: &StoredReservation,
        attempt: &Attempt,
    ) -> Result<ReportResult, ReportError> {
        let (created, number) = (&stored.created, attempt.number);
        let (tenant, id) = (&created.tenant, created.id);
        let now_ms = self.ports.quota.now_ms().await?;
        let in_store = self.ports.quota.find(tenant, id).await?.filter(|state| state.attempt(number).is_some());
        let mut commands = in_store.as_ref().map(|state| unheard(state, Some(stored))).unwrap_or_default();
        let state = in_store.map_or_else(|| as_stored(stored), |state| after(&state, &commands, now_ms));

        let record = Arc::new(said.record(report, created, || self.locked_price(created, attempt))?);
        let close = Command::CloseAttempt { number, closing: said.closing(&record) };
        let mut events = rehearse(&state, std::slice::from_ref(&close), now_ms);
        let settles = !events.is_empty();
        if settles {
            commands.push(close);
        } else if says_nothing_new(said, &state, stored, number, &record) {
            return Ok(ReportResult::Duplicate);
        } else {
            events.push(Event::UsageRecorded { number, record });
        }
        failpoint::pass("reports.before_append").await;
        self.ports.journal.tell(created, events).await?;
        failpoint::pass("reports.before_store").await;
        if !commands.is_empty() {
            // What the store makes of each is its own; the ledger's line follows in any case.
            self.ports.quota.execute_all(tenant, id, &commands).await?;
        }
        tracing::info!(reservation_id = %id, attempt = number, report = report.cause(), settles, "usage report taken");
        Ok(if settles { ReportResult::Settled } else { ReportResult::Recorded })
    }

    fn locked_price(&self, created: &Created, attempt: &Attempt) -> Result<Arc<Price>, Unusable> {
        let target = attempt.target.as_ref().ok_or(Unusable::NoTarget)?;
        let (version, name) = (&created.price_version, target.price.as_str());
        self.ports
            .prices
            .price(version, name, created.admitted_at_ms)
            .ok_or_else(|| Unusable::NoPrice { version: version.to_string(), name: name.to_owned() })
    }

    async fn take(&self, record: &StoredRecord, ids: &mut PendingIds, partition: u32) -> Result<(), EffectError> {
        let poison = |reason: String| EffectError::Poison { offset: record.offset, reason };
        let report = UsageReport::decode(&record.value).map_err(|error| poison(error.to_string()))?;
        match self.handle(&report, ids).await {
            Ok(Some(result)) => {
                self.metrics.count_report(result);
                Ok(())
            }
            Ok(None) => self.park(record, partition).await,
            Err(error) if error.is_temporary() => Err(EffectError::Retry { reason: story(&error) }),
            Err(error) => Err(poison(story(&error))),
        }
    }
}

/// Whether a known attempt stays as it is: it did not run and the report says so, or the ledger would make nothing of
/// it. Then the log is spared the event.
fn says_nothing_new(
    said: &Said,
    state: &Reservation,
    stored: &StoredReservation,
    number: AttemptNumber,
    record: &Arc<UsageRecord>,
) -> bool {
    let is_uncharged = state.attempt(number).is_some_and(|attempt| attempt.charge.is_none());
    if is_uncharged && *said == Said::NotExecuted {
        return true;
    }
    // Where the event would stand does not matter to what it comes to.
    let source = SourcePosition { partition: 0, offset: 0 };
    let context = Context { created: &stored.created, target: None, number, recorded_at_ms: 0, source };
    ReservationAccount::of_lines(&stored.lines).post(context, record) == Posting::AlreadyPosted
}

/// A reservation whose record has left the store, as the projection shows it: what it holds, it holds no more.
fn as_stored(stored: &StoredReservation) -> Reservation {
    Reservation {
        created: Arc::clone(&stored.created),
        free: Amounts::ZERO,
        attempts: stored.attempts.clone(),
        extended: Vec::new(),
        closed: stored.status != ReservationStatus::Reserved,
        pended: None,
        resumes: 0,
        escalated: stored.escalated,
        slot: false,
        due_ms: stored.due_ms,
        flagged: stored.flagged,
    }
}

#[async_trait]
impl Effect for Reports {
    async fn apply(&self, delivery: Delivery<'_>) -> Result<Applied, EffectError> {
        let mut ids = PendingIds::default();
        for record in delivery.records {
            self.take(record, &mut ids, delivery.subscription.partition).await?;
        }
        // The loop stores the position next.
        failpoint::pass("reports.before_position").await;
        Ok(Applied::Effect)
    }
}
