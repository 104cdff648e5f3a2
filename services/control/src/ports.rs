//! What the admin API shows and starts beyond this crate, as small ports that the process implements.
//!
//! Each is asked at a person's pace, never on the request path. A port that cannot answer says whether to try again:
//! everything behind these is idempotent.

use std::collections::HashMap;
use std::fmt::Debug;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use weir_domain::calendar::Window;
use weir_domain::ids::{KeyId, ReservationId, TenantId};
use weir_domain::money::Amounts;
use weir_domain::quota::{CounterReading, Scope};

/// Why a port did not answer. The act may have happened: the same again is harmless.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{what} did not answer: {reason}")]
pub struct PortError {
    /// Such as `the quota store`.
    pub what: &'static str,
    pub reason: String,
}

/// Who does something, and why: on the log with the act.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Actor {
    pub who: String,
    pub why: String,
}

/// A key that must open nothing any more, on any replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Revocation {
    pub tenant: TenantId,
    pub key: KeyId,
    pub actor: Actor,
}

/// The revocation set of the quota store, and the topic `weir.revocations`.
#[async_trait]
pub trait Revocations: Debug + Send + Sync {
    /// MUST return only when the very next admission on any replica refuses the key. Idempotent.
    async fn revoke(&self, revocation: &Revocation) -> Result<(), PortError>;
}

/// What is counted for a tenant now.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TenantCounters {
    /// Calendar counters other than zero.
    pub counters: Vec<CounterReading>,
    /// What open and pending reservations hold together.
    pub held: Amounts,
    /// How many reservations are open, and how many wait for somebody who knows.
    pub reserved: u64,
    pub pending: u64,
    /// Of each counter on which pending reservations hold: when the oldest of them was admitted, ms since the Unix epoch.
    pub pending_since_ms: HashMap<(Scope, Window), i64>,
}

/// The quota store's counters.
#[async_trait]
pub trait CountersPort: Debug + Send + Sync {
    async fn counters(&self, tenant: &TenantId) -> Result<TenantCounters, PortError>;
}

/// A reservation whose usage nobody knows yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingReservation {
    pub reservation: ReservationId,
    pub tenant: TenantId,
    pub admitted_at_ms: i64,
    /// The worst case that stays held (I9).
    pub held: Amounts,
    pub unknown_attempts: Vec<u16>,
    pub escalated: bool,
}

/// Reservations, as log and ledger tell of them.
#[async_trait]
pub trait ReservationsPort: Debug + Send + Sync {
    /// Every event, attempt and line of one reservation in order, as JSON; `None` when there is no such reservation.
    async fn story(&self, reservation: ReservationId) -> Result<Option<serde_json::Value>, PortError>;

    /// Oldest first, at most `most`.
    async fn pending(&self, most: usize) -> Result<Vec<PendingReservation>, PortError>;
}

/// How usage reports are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReportFormat {
    /// One object a line.
    JsonLines,
    /// With a header line.
    Csv,
}

/// What became of one report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportReceipt {
    pub report_id: String,
    pub revision: u32,
    pub status: ReportStatus,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReportStatus {
    /// It is on the log, durably; settling follows.
    Accepted,
    /// The same was there already.
    Duplicate,
}

/// One thing that is wrong in a report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReportProblem {
    /// From 1, in the order given.
    pub line: u64,
    pub field: String,
    pub problem: String,
    pub fix: String,
}

/// Why no report was taken.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ReportsError {
    #[error("{}", .0.first().map(|first| format!("line {}, `{}`: {}; {}", first.line, first.field, first.problem, first.fix)).unwrap_or_default())]
    Invalid(Vec<ReportProblem>),
    #[error("{reason}")]
    TooMany { reason: String },
    #[error(transparent)]
    Unavailable(#[from] PortError),
}

/// The way of usage reports to `weir.usage-reports`.
#[async_trait]
pub trait ReportsPort: Debug + Send + Sync {
    /// Reads and checks every report of `body`, and appends all or none. The same again MUST be harmless.
    async fn import(
        &self,
        format: ReportFormat,
        body: &[u8],
        actor: &Actor,
    ) -> Result<Vec<ReportReceipt>, ReportsError>;
}

/// What an operator decides about a parked key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "act")]
pub enum ParkedOrder {
    /// The cause was repaired: the parked records are applied again, in order.
    Replay,
    /// The poison record at this offset is left out for good. Naming it makes a repeated order harmless.
    Skip { offset: u64 },
}

/// A key whose records wait for a person.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Parked {
    pub consumer: String,
    pub topic: String,
    /// As people read it: text, an id, or hexadecimal bytes.
    pub key: String,
    /// Of the record that cannot be applied.
    pub offset: u64,
    pub reason: String,
    /// How many wait, that one included.
    pub records: u64,
    /// Given and not carried out yet.
    pub asked: Option<ParkedOrder>,
}

/// Why an order was not taken. Nothing changed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DeadLettersError {
    #[error("`{consumer}` has no parked key `{key}`; `weir dead-letters list` shows what waits")]
    NotParked { consumer: String, key: String },
    #[error("the record at {asked} does not wait: the one that cannot be applied is at {waits}")]
    OtherOffset { asked: u64, waits: u64 },
    #[error(transparent)]
    Unavailable(#[from] PortError),
}

/// The parked stores of all consumers.
#[async_trait]
pub trait DeadLettersPort: Debug + Send + Sync {
    async fn parked(&self) -> Result<Vec<Parked>, PortError>;

    /// MUST have told the log who and why before the consumer can act. The consumer acts within a second or two; the
    /// same again is harmless.
    async fn order(&self, consumer: &str, key: &str, order: ParkedOrder, actor: &Actor)
    -> Result<(), DeadLettersError>;
}

/// What a rebuild of the counters found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Rebuilt {
    pub tenants: usize,
    /// Open and pending reservations.
    pub reservations: usize,
    /// Folded since the checkpoint.
    pub events: u64,
    /// For so long nothing was admitted.
    pub closed_ms: i64,
}

/// The fence of the quota store.
#[async_trait]
pub trait QuotaPort: Debug + Send + Sync {
    /// Closes the store, folds the counters from checkpoint and log, and opens it. MUST NOT open it with anything else:
    /// after a failure it stays closed, and the same again is the way out.
    async fn rebuild(&self, actor: &Actor) -> Result<Rebuilt, PortError>;
}
