//! A reservation: the money of one client request, from admission to its end (design section 3).
//!
//! [`decide`](decide()) turns a command into events or a reason why not, [`apply`](apply()) folds an event into the
//! state. Both are pure and total. The status is **derived** from the attempts, never stored: as long as closing was not seen it is
//! `Reserved`; afterwards `PendingReconciliation` while some attempt is unknown, `Settled` when all are known, and
//! `Released` when none executed. What a reservation weighs on its counters is derived as well ([`Position`]), so that
//! counters = Σ positions holds by construction (I12).

mod apply;
mod command;
mod decide;
mod event;

#[cfg(test)]
mod table_tests;
#[cfg(test)]
mod property_tests;

pub use apply::apply;
pub use command::{Closing, Command, Conflict, Decision, Refusal, Reserve};
pub use decide::{Balances, decide};
pub use event::{Created, Event, EventKind, IdempotencyRecord, Labels, PendCause, UsageRecord};

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::attempt::{Attempt, AttemptNumber};
use crate::money::{Amounts, Charge, Hold};

/// The four statuses of the seeds, no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReservationStatus {
    Reserved,
    PendingReconciliation,
    Settled,
    Released,
}

impl ReservationStatus {
    /// Whether nothing of it is held any more.
    #[must_use]
    pub const fn is_final(self) -> bool {
        match self {
            Self::Reserved | Self::PendingReconciliation => false,
            Self::Settled | Self::Released => true,
        }
    }

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Reserved => "reserved",
            Self::PendingReconciliation => "pending_reconciliation",
            Self::Settled => "settled",
            Self::Released => "released",
        }
    }
}

/// The state of one reservation: what the quota store keeps and what a fold of its events gives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reservation {
    pub created: Arc<Created>,
    /// Granted and not taken by an attempt: tokens and money only. Zero once closing was seen.
    pub free: Hold,
    pub attempts: Vec<Attempt>,
    /// What `Extend` granted, by the attempt it was for; makes a copy of an extension a no-op.
    pub extended: Vec<(AttemptNumber, Hold)>,
    /// Whether closing was seen; pending counts as closing.
    pub closed: bool,
    pub pended: Option<PendCause>,
    /// How often a late gateway took the reservation back after an expiry.
    pub resumes: u16,
    pub escalated: bool,
    pub slot: bool,
    /// When the lease ends, in ms of the store's clock.
    pub due_ms: i64,
    /// Charged by the ledger although it was Released, or corrected in a way that a person should see.
    pub flagged: bool,
}

/// What a reservation weighs on each of its counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Position {
    pub held: Amounts,
    pub charged: Charge,
    pub pending: Amounts,
    pub slots: i64,
}

impl Reservation {
    /// A reservation of which only the ledger's lines remain.
    pub(crate) fn ended(created: Arc<Created>, attempts: Vec<Attempt>) -> Self {
        Self {
            due_ms: created.due_ms,
            created,
            free: Amounts::ZERO,
            attempts,
            extended: Vec::new(),
            closed: true,
            pended: None,
            resumes: 0,
            escalated: false,
            slot: false,
            flagged: false,
        }
    }

    #[must_use]
    pub fn status(&self) -> ReservationStatus {
        if !self.closed {
            ReservationStatus::Reserved
        } else if self.attempts.iter().any(|attempt| !attempt.is_known()) {
            ReservationStatus::PendingReconciliation
        } else if self.attempts.iter().any(|attempt| attempt.charge.is_some()) {
            ReservationStatus::Settled
        } else {
            ReservationStatus::Released
        }
    }

    #[must_use]
    pub fn attempt(&self, number: AttemptNumber) -> Option<&Attempt> {
        self.attempts.iter().find(|attempt| attempt.number == number)
    }

    pub(crate) fn attempt_mut(&mut self, number: AttemptNumber) -> Option<&mut Attempt> {
        self.attempts.iter_mut().find(|attempt| attempt.number == number)
    }

    #[must_use]
    pub fn charged(&self) -> Charge {
        self.attempts.iter().map(Attempt::charged).sum()
    }

    /// The request itself is held until the first line charges it, and given back when nothing executed.
    #[must_use]
    pub fn held(&self) -> Hold {
        let of_attempts: Hold = self.attempts.iter().map(Attempt::held).sum();
        let mut held = self.free + of_attempts;
        let request_is_charged = self.charged().requests > 0;
        held.requests = if request_is_charged || self.status().is_final() { 0 } else { self.created.hold.requests };
        held
    }

    #[must_use]
    pub fn position(&self) -> Position {
        let held = self.held();
        let pending = match self.status() {
            ReservationStatus::PendingReconciliation => held,
            ReservationStatus::Reserved | ReservationStatus::Settled | ReservationStatus::Released => Amounts::ZERO,
        };
        Position { held, charged: self.charged(), pending, slots: i64::from(self.slot) }
    }

    #[must_use]
    pub fn next_attempt(&self) -> AttemptNumber {
        self.attempts.iter().map(|attempt| attempt.number).max().unwrap_or(0).saturating_add(1)
    }

    #[must_use]
    pub fn is_expired(&self, now_ms: i64) -> bool {
        now_ms >= self.due_ms
    }
}
