//! What a quota store promises.
//!
//! The port is one `execute` over the domain's `Command` instead of one method a command: the enum is matched without
//! a wildcard in every backend, so that a new command breaks the build of each, and the suite can drive all backends
//! with random sequences of values.

use std::fmt::Debug;

use async_trait::async_trait;
use thiserror::Error;

use weir_domain::ids::{KeyId, ReservationId, TenantId};
use weir_domain::money::Amounts;
use weir_domain::quota::{Correction, CounterReading, Reply};
use weir_domain::reservation::{Command, Reservation};

/// How far the caller's clock may be from a store's that has one of its own, ms. The backend on Redis has it in its script.
pub const MOST_CLOCK_SKEW_MS: i64 = 5_000;

/// Why a store did not answer.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum QuotaError {
    /// The state is missing or was not validated: nothing is admitted until it is rebuilt (I15).
    #[error("the quota store is not validated: {reason}")]
    NotValidated { reason: String },
    /// The store cannot be reached. The command may have been applied: run the same command again with the same id.
    #[error("the quota store did not answer: {reason}")]
    Unavailable { reason: String },
    /// The caller's clock is further than [`MOST_CLOCK_SKEW_MS`] from the store's: its calendar windows may not be the
    /// ones in force.
    #[error(
        "this machine's clock is {by_ms} ms off the quota store's: synchronise both (at most {MOST_CLOCK_SKEW_MS} ms)"
    )]
    ClockSkewed { by_ms: i64 },
    /// An amount, or a sum, is beyond what the store counts exactly. Nothing was changed.
    #[error("{what} is beyond what the quota store counts")]
    OutOfBounds { what: &'static str },
}

/// What is counted for one tenant.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TenantReading {
    /// Calendar counters other than zero, sorted by scope and window.
    pub counters: Vec<CounterReading>,
    /// What open and pending reservations hold together.
    pub held: Amounts,
    /// Reservations that are not ended: reserved, pending.
    pub reserved: u64,
    pub pending: u64,
}

/// Admission and the counters.
///
/// A backend MUST
/// - apply each command as one indivisible step, with the rules of `weir_domain::quota::Book`, by its own clock, which
///   it returns in the reply;
/// - answer a repeated command with what exists, for at least the retry horizon;
/// - answer the same command, run again after [`QuotaError::Unavailable`], with the reply that was lost, as long as it
///   remembers what it was asked (what it has forgotten is a repeated command);
/// - refuse everything with [`QuotaError::NotValidated`] while its state is missing or unproven.
///
/// It MUST NOT admit on an error, clamp or refuse a charge, or release anything because time went by.
#[async_trait]
pub trait QuotaStore: Debug + Send + Sync {
    async fn execute(&self, tenant: &TenantId, id: ReservationId, command: &Command) -> Result<Reply, QuotaError>;

    /// Several commands of one reservation in order, as few steps as the backend can. Each decides by itself: one that
    /// is refused does not undo those before it.
    async fn execute_all(
        &self,
        tenant: &TenantId,
        id: ReservationId,
        commands: &[Command],
    ) -> Result<Vec<Reply>, QuotaError>;

    /// Applies a ledger line to the counters. Idempotent by (attempt, total) while the record exists, by source
    /// position afterwards.
    async fn correct(&self, tenant: &TenantId, correction: &Correction) -> Result<Reply, QuotaError>;

    /// Reserved reservations whose lease has ended, at most `most`, oldest first within a tenant.
    async fn due(&self, most: usize) -> Result<Vec<Reservation>, QuotaError>;

    /// Pending reservations, at most `most`.
    async fn pending(&self, most: usize) -> Result<Vec<Reservation>, QuotaError>;

    async fn find(&self, tenant: &TenantId, id: ReservationId) -> Result<Option<Reservation>, QuotaError>;

    async fn read(&self, tenant: &TenantId) -> Result<TenantReading, QuotaError>;

    /// Puts a key into the revocation set: the very next admission refuses it. Idempotent.
    async fn revoke(&self, tenant: &TenantId, key: &KeyId) -> Result<(), QuotaError>;

    /// The store's clock, ms.
    async fn now_ms(&self) -> Result<i64, QuotaError>;
}
