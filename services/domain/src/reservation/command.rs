//! Imperative requests to change one reservation, and what can come of them.

use std::sync::Arc;

use crate::attempt::{AttemptNumber, AttemptOutcome, Target};
use crate::money::{Charge, Hold};
use crate::quota::{Denial, Limit};

use super::ReservationStatus;
use super::event::{Created, Event, PendCause, UsageRecord};

/// What admission asks for. The store stamps `admitted_at_ms` and `due_ms` with its own clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reserve {
    pub created: Created,
    /// The limits that apply, from the snapshot.
    pub limits: Arc<[Limit]>,
    pub lease_ms: i64,
}

/// How an attempt ended, with the priced usage when it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Closing {
    NotExecuted,
    MayHaveExecuted,
    ExecutedUsageUnknown,
    Executed(Arc<UsageRecord>),
}

impl Closing {
    #[must_use]
    pub const fn outcome(&self) -> AttemptOutcome {
        match self {
            Self::NotExecuted => AttemptOutcome::NotExecuted,
            Self::MayHaveExecuted => AttemptOutcome::MayHaveExecuted,
            Self::ExecutedUsageUnknown => AttemptOutcome::ExecutedUsageUnknown,
            Self::Executed(_) => AttemptOutcome::Executed,
        }
    }

    pub(super) fn has_negative(&self) -> bool {
        match self {
            Self::NotExecuted | Self::MayHaveExecuted | Self::ExecutedUsageUnknown => false,
            Self::Executed(record) => record.charge.has_negative(),
        }
    }
}

/// One row of the design's table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    Reserve(Arc<Reserve>),
    /// The mark. `previous` closes attempt `number − 1` in the same step when it is still open.
    StartAttempt {
        number: AttemptNumber,
        hold: Hold,
        target: Arc<Target>,
        previous: Option<Closing>,
    },
    Correlate {
        number: AttemptNumber,
        provider_id: String,
    },
    /// Grants what attempt `number` needs beyond what is free, or is denied by a limit.
    Extend {
        number: AttemptNumber,
        hold: Hold,
        limits: Arc<[Limit]>,
    },
    /// Partial usage gives a lower worst case; it never raises one (I7).
    Tighten {
        number: AttemptNumber,
        hold: Hold,
    },
    FreeSlot,
    Renew {
        until_ms: i64,
        owner: Arc<str>,
    },
    CloseAttempt {
        number: AttemptNumber,
        closing: Closing,
    },
    Close,
    Pend {
        cause: PendCause,
    },
    Release,
    Escalate,
    /// From the ledger, which always wins: the running total of an attempt.
    Correct {
        number: AttemptNumber,
        total: Charge,
    },
}

/// What a command comes to. Only `Change` changes anything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    Change(Vec<Event>),
    /// The same thing is already recorded, or nothing would change; the status that exists.
    NoChange(ReservationStatus),
    /// A limit has no room.
    Denied(Box<Denial>),
    /// The command does not fit the state.
    Refused(Refusal),
    /// The same id with other content.
    Conflict(Conflict),
}

/// Why a command does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refusal {
    #[error("there is no such reservation")]
    Absent,
    #[error("the reservation is no longer open")]
    NotOpen,
    #[error("the reservation is still open")]
    StillOpen,
    #[error("there is no such attempt")]
    UnknownAttempt,
    #[error("attempts are numbered in order")]
    AttemptOutOfOrder,
    #[error("the attempt before is still open")]
    PreviousAttemptOpen,
    #[error("the hold does not cover the attempt: extend first")]
    NotCovered,
    #[error("the lease has not ended")]
    NotExpired,
    #[error("an attempt is marked: it may have executed")]
    AttemptMarked,
    #[error("no attempt is marked")]
    NothingMarked,
    #[error("another process owns the reservation")]
    NotOwner,
    #[error("an amount is negative")]
    NegativeAmount,
}

/// Which field differs from what is recorded under the same id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Conflict {
    Fingerprint,
    AttemptHold,
    AttemptTarget,
    ProviderId,
    ExtensionHold,
}

impl Conflict {
    #[must_use]
    pub const fn field(self) -> &'static str {
        match self {
            Self::Fingerprint => "fingerprint",
            Self::AttemptHold => "attempt.hold",
            Self::AttemptTarget => "attempt.target",
            Self::ProviderId => "attempt.provider_id",
            Self::ExtensionHold => "extension.hold",
        }
    }
}
