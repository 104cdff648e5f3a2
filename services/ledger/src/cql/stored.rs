//! What the texts in the tables say, exactly.
//!
//! JSON, because a row must stay readable for years: a reader passes over what it does not know, and what a later
//! release adds has a default. Amounts of money are integers of nano-USD wherever every `i64` can occur. Texts of
//! released versions are pinned by a test.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use weir_domain::attempt::{Attempt, AttemptNumber, Target};
use weir_domain::ids::PriceVersion;
use weir_domain::ledger::{LedgerLine, LineKey, SourcePosition};
use weir_domain::money::{Amounts, NanoUsd};
use weir_domain::reservation::{Created, EventKind, ReservationStatus, UsageRecord};
use weir_domain::usage::{Meter, Usage, UsageSource};

use crate::contract::{Change, EventMark, LedgerError};

/// Requests, tokens, nano-USD.
type Figures = (i64, i64, i64);

/// A line without its key, its amount (columns) and what its reservation says.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct StoredLine {
    total: Figures,
    charge: Figures,
    usage: BTreeMap<Meter, i64>,
    source: UsageSource,
    price_version: PriceVersion,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    served_tier: Option<String>,
    cause: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    target: Option<Arc<Target>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    corrects: Option<u32>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    flagged: bool,
    posted_at_ms: i64,
    partition: i32,
    offset: i64,
}

impl StoredLine {
    pub fn of(line: &LedgerLine) -> Self {
        let record = &line.record;
        Self {
            total: figures(line.total),
            charge: figures(record.charge),
            usage: record.usage.readings().iter().map(|reading| (reading.meter, reading.quantity)).collect(),
            source: record.source,
            price_version: record.price_version.clone(),
            served_tier: record.served_tier.clone(),
            cause: record.cause.clone(),
            target: line.target.clone(),
            corrects: line.corrects,
            flagged: line.flagged,
            posted_at_ms: line.posted_at_ms,
            partition: line.source.partition,
            offset: line.source.offset,
        }
    }

    pub fn line(self, key: LineKey, amount: Amounts, created: &Arc<Created>) -> Result<LedgerLine, LedgerError> {
        let usage = Usage::new(self.usage).map_err(|error| damaged("usage", &error))?;
        let record = UsageRecord {
            usage,
            source: self.source,
            charge: amounts(self.charge),
            price_version: self.price_version,
            served_tier: self.served_tier,
            cause: self.cause,
        };
        Ok(LedgerLine {
            key,
            created: Arc::clone(created),
            target: self.target,
            record: Arc::new(record),
            amount,
            total: amounts(self.total),
            corrects: self.corrects,
            flagged: self.flagged,
            posted_at_ms: self.posted_at_ms,
            source: SourcePosition { partition: self.partition, offset: self.offset },
        })
    }
}

/// The state of a reservation after the last event of a change, and the events of that change.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct StoredChange {
    pub status: ReservationStatus,
    /// Counts only where the change brought the status.
    pub status_since_ms: i64,
    pub due_ms: i64,
    held: Figures,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub escalated: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub flagged: bool,
    pub attempts: Vec<Attempt>,
    partition: i32,
    /// Offset, kind, attempt, time of each.
    events: Vec<(i64, EventKind, AttemptNumber, i64)>,
}

impl StoredChange {
    pub fn of(change: &Change) -> Self {
        let reservation = &change.reservation;
        let event = |mark: &EventMark| (mark.source.offset, mark.kind, mark.attempt, mark.recorded_at_ms);
        Self {
            status: reservation.status(),
            status_since_ms: change.status_since_ms,
            due_ms: reservation.due_ms,
            held: figures(reservation.held()),
            escalated: reservation.escalated,
            flagged: reservation.flagged,
            attempts: reservation.attempts.clone(),
            partition: change.last_source().map_or(0, |source| source.partition),
            events: change.events.iter().map(event).collect(),
        }
    }

    pub fn held(&self) -> Amounts {
        amounts(self.held)
    }

    pub fn events(&self) -> impl Iterator<Item = EventMark> {
        self.events.iter().map(|(offset, kind, attempt, recorded_at_ms)| EventMark {
            source: SourcePosition { partition: self.partition, offset: *offset },
            kind: *kind,
            attempt: *attempt,
            recorded_at_ms: *recorded_at_ms,
        })
    }
}

pub(super) const fn figures(amounts: Amounts) -> Figures {
    (amounts.requests, amounts.tokens, amounts.usd.nanos())
}

pub(super) const fn amounts((requests, tokens, nanos): Figures) -> Amounts {
    Amounts::new(requests, tokens, NanoUsd::from_nanos(nanos))
}

pub(super) fn text<T: Serialize>(what: &'static str, value: &T) -> Result<String, LedgerError> {
    serde_json::to_string(value).map_err(|error| damaged(what, &error))
}

pub(super) fn parsed<T: DeserializeOwned>(what: &'static str, text: &str) -> Result<T, LedgerError> {
    serde_json::from_str(text).map_err(|error| damaged(what, &error))
}

pub(super) fn damaged(what: &'static str, reason: &dyn ToString) -> LedgerError {
    LedgerError::Damaged { what, reason: reason.to_string() }
}

#[cfg(test)]
#[path = "stored_tests.rs"]
mod tests;
