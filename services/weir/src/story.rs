//! The story of one reservation: every event, attempt, hold, charge and line, in order.
//!
//! It is read by the same code inside the running process and beside it. Events come from the log, which is the truth;
//! lines and attempts from the ledger, which may be a moment behind: then `derived` says so.

mod print;

use std::collections::BTreeMap;

use serde::Serialize;
use thiserror::Error;

use weir_domain::attempt::{Attempt, AttemptNumber, AttemptOutcome};
use weir_domain::ids::{KeyId, ModelName, PriceVersion, ReservationId, TeamId, TenantId};
use weir_domain::ledger::LedgerLine;
use weir_domain::money::{Amounts, Charge, Hold};
use weir_domain::price::EffectiveMs;
use weir_domain::reservation::{Created, Event};
use weir_domain::usage::UsageSource;
use weir_ledger::contract::{LedgerError, LedgerStore, StoredReservation};
use weir_schemas::DecodeError;
use weir_schemas::reservation_event::ReservationEvent;
use weir_streams::StoredRecord;

use crate::events::{EventSource, EventsError, Found};

pub(crate) use print::amounts;

/// Why a story cannot be told.
#[derive(Debug, Error)]
pub enum StoryError {
    #[error("the log cannot be read")]
    Log(#[from] EventsError),
    #[error("the ledger cannot be read")]
    Ledger(#[from] LedgerError),
    #[error("the record at offset {offset} is no reservation event")]
    Record { offset: u64, source: DecodeError },
}

/// Everything known of one reservation.
#[derive(Debug, Clone, Serialize)]
pub struct Story {
    pub reservation: ReservationId,
    /// Absent while the ledger's builder has not read it.
    pub status: Option<&'static str>,
    /// Whether every event below is in the ledger.
    pub derived: bool,
    pub admission: Option<Admission>,
    pub held: Hold,
    pub charged: Charge,
    pub escalated: bool,
    pub flagged: bool,
    pub attempts: Vec<AttemptStory>,
    pub events: Vec<EventStory>,
    pub lines: Vec<LineStory>,
}

/// What was locked at admission (I10).
#[derive(Debug, Clone, Serialize)]
pub struct Admission {
    pub tenant: TenantId,
    pub team: Option<TeamId>,
    pub key: KeyId,
    pub model: ModelName,
    pub admitted_at: EffectiveMs,
    pub lease_until: EffectiveMs,
    pub hold: Hold,
    pub price_version: PriceVersion,
    pub owner: String,
    pub labels: BTreeMap<String, String>,
    pub end_user: Option<String>,
}

#[derive(Debug, Clone, Serialize)]
pub struct AttemptStory {
    pub number: AttemptNumber,
    pub deployment: Option<String>,
    pub provider: Option<String>,
    pub upstream_model: Option<String>,
    pub provider_region: Option<String>,
    pub provider_id: Option<String>,
    pub outcome: Option<AttemptOutcome>,
    pub held: Hold,
    pub charge: Option<Charge>,
}

#[derive(Debug, Clone, Serialize)]
pub struct EventStory {
    pub offset: u64,
    pub at: EffectiveMs,
    pub kind: &'static str,
    pub attempt: AttemptNumber,
    pub snapshot_version: u64,
    /// As it is on the log.
    pub event: serde_json::Value,
    #[serde(skip)]
    fact: Event,
}

#[derive(Debug, Clone, Serialize)]
pub struct LineStory {
    pub attempt: AttemptNumber,
    pub seq: u32,
    pub amount: Charge,
    /// The attempt's running total.
    pub total: Charge,
    pub source: UsageSource,
    pub flagged: bool,
    pub corrects: Option<u32>,
    pub posted_at: EffectiveMs,
    pub price_version: PriceVersion,
    pub served_tier: Option<String>,
    pub usage: BTreeMap<&'static str, i64>,
}

impl Story {
    /// What log and ledger have of `id`; `None` when neither knows it.
    ///
    /// # Errors
    /// [`StoryError`].
    pub async fn read(
        source: &EventSource,
        ledger: &dyn LedgerStore,
        id: ReservationId,
    ) -> Result<Option<Self>, StoryError> {
        let built_until = source.built_until(ledger).await?;
        let stored = ledger.find(id).await?;
        let Found { records, derived } = source.of(id, stored.as_ref(), &built_until).await?;
        if records.is_empty() && stored.is_none() {
            return Ok(None);
        }
        let events = records.iter().map(EventStory::of).collect::<Result<Vec<_>, _>>()?;
        Ok(Some(Self::of(id, derived, stored.as_ref(), events)))
    }

    fn of(id: ReservationId, derived: bool, stored: Option<&StoredReservation>, events: Vec<EventStory>) -> Self {
        let told = events.iter().find_map(|event| match &event.fact {
            Event::ReservationCreated(created) => Some(created),
            Event::ReservationExtended { .. }
            | Event::AttemptStarted { .. }
            | Event::AttemptCorrelated { .. }
            | Event::UsageBounded { .. }
            | Event::UsageRecorded { .. }
            | Event::AttemptClosed { .. }
            | Event::ReservationPending { .. }
            | Event::ReservationSettled { .. }
            | Event::ReservationReleased
            | Event::ReservationResumed { .. }
            | Event::ReservationEscalated
            | Event::SlotFreed
            | Event::LeaseRenewed { .. }
            | Event::ChargeCorrected { .. } => None,
        });
        let created = stored.map(|stored| &stored.created).or(told);
        let attempts = stored.map(|stored| stored.attempts.as_slice()).unwrap_or_default();
        let lines = stored.map(|stored| stored.lines.as_slice()).unwrap_or_default();
        Self {
            reservation: id,
            status: stored.map(|stored| stored.status.as_str()),
            derived: derived && stored.is_some(),
            admission: created.map(|created| Admission::of(created)),
            held: stored.map_or(Amounts::ZERO, |stored| stored.held),
            charged: lines.iter().fold(Amounts::ZERO, |sum, line| sum + line.amount),
            escalated: stored.is_some_and(|stored| stored.escalated),
            flagged: stored.is_some_and(|stored| stored.flagged),
            attempts: attempts.iter().map(AttemptStory::of).collect(),
            events,
            lines: lines.iter().map(LineStory::of).collect(),
        }
    }
}

impl Admission {
    fn of(created: &Created) -> Self {
        Self {
            tenant: created.tenant.clone(),
            team: created.team.clone(),
            key: created.key.clone(),
            model: created.model.clone(),
            admitted_at: EffectiveMs(created.admitted_at_ms),
            lease_until: EffectiveMs(created.due_ms),
            hold: created.hold,
            price_version: created.price_version.clone(),
            owner: created.owner.to_string(),
            labels: created.labels.iter().cloned().collect(),
            end_user: created.end_user.clone(),
        }
    }
}

impl AttemptStory {
    fn of(attempt: &Attempt) -> Self {
        let target = attempt.target.as_deref();
        Self {
            number: attempt.number,
            deployment: target.map(|target| target.deployment.to_string()),
            provider: target.map(|target| target.provider.to_string()),
            upstream_model: target.map(|target| target.upstream_model.clone()),
            provider_region: target.map(|target| target.provider_region.clone()),
            provider_id: attempt.provider_id.clone(),
            outcome: attempt.outcome,
            held: attempt.held(),
            charge: attempt.charge,
        }
    }
}

impl EventStory {
    fn of(record: &StoredRecord) -> Result<Self, StoryError> {
        let offset = record.offset;
        let event = ReservationEvent::decode(&record.value).map_err(|source| StoryError::Record { offset, source })?;
        Ok(Self {
            offset,
            at: EffectiveMs(event.header().recorded_at_ms()),
            kind: event.kind().as_str(),
            attempt: event.event().attempt(),
            snapshot_version: event.header().snapshot_version,
            event: event.to_json(),
            fact: event.into_parts().1,
        })
    }
}

impl LineStory {
    fn of(line: &LedgerLine) -> Self {
        let record = &line.record;
        Self {
            attempt: line.key.attempt,
            seq: line.key.seq,
            amount: line.amount,
            total: line.total,
            source: record.source,
            flagged: line.flagged,
            corrects: line.corrects,
            posted_at: EffectiveMs(line.posted_at_ms),
            price_version: record.price_version.clone(),
            served_tier: record.served_tier.clone(),
            usage: record.usage.readings().iter().map(|reading| (reading.meter.code(), reading.quantity)).collect(),
        }
    }
}
