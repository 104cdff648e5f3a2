//! Past-tense facts about one reservation. All but three go to the log; those three concern the store alone.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::attempt::{AttemptNumber, AttemptOutcome, Target};
use crate::ids::{KeyId, ModelName, PriceVersion, ReservationId, TeamId, TenantId};
use crate::money::{Amounts, Charge, Hold};
use crate::quota::Counting;
use crate::usage::{Usage, UsageSource};

/// Bounded key-value pairs that travel from the request to the ledger and the usage stream.
pub type Labels = Arc<[(String, String)]>;

/// What is known at admission, and never changes afterwards (I10).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Created {
    pub id: ReservationId,
    pub tenant: TenantId,
    pub team: Option<TeamId>,
    pub key: KeyId,
    pub model: ModelName,
    /// An HMAC of the request's body under the tenant's secret: the same id with another one is a conflict.
    pub fingerprint: [u8; 32],
    pub hold: Hold,
    pub counting: Counting,
    pub price_version: PriceVersion,
    /// The store's clock at admission, ms.
    pub admitted_at_ms: i64,
    /// The end of the first lease, ms of the store's clock.
    pub due_ms: i64,
    /// The gateway process that owns it: region, gateway and epoch in one opaque word.
    pub owner: Arc<str>,
    pub labels: Labels,
    /// An HMAC of the end user's id under the tenant's secret, in hex.
    pub end_user: Option<String>,
    pub idempotency: Option<IdempotencyRecord>,
    /// The tenant's policy on reports that contradict a response of the same rank; locked, so that replay agrees.
    pub adjust_on_mismatch: bool,
}

/// Ties a client's `Idempotency-Key` to its reservation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdempotencyRecord {
    /// An HMAC of the client's key under the tenant's secret.
    pub key_hash: [u8; 32],
    pub expires_at_ms: i64,
}

/// A usage that somebody stands for, priced at the version locked at admission.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageRecord {
    pub usage: Usage,
    pub source: UsageSource,
    /// Tokens and money of `usage`; `requests` is one on the reservation's first line.
    pub charge: Charge,
    pub price_version: PriceVersion,
    /// The service tier that the provider says it served.
    pub served_tier: Option<String>,
    /// What makes this record distinct from others of the same attempt: empty for the response itself, otherwise the
    /// report's id and revision, or the act of a person.
    pub cause: String,
}

/// Why a reservation waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PendCause {
    /// An attempt may have executed and its usage is unknown.
    UsageUnknown,
    /// The lease ended with nobody to close it.
    Expired,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    ReservationCreated(Arc<Created>),
    ReservationExtended {
        number: AttemptNumber,
        by: Hold,
    },
    AttemptStarted {
        number: AttemptNumber,
        hold: Hold,
        target: Arc<Target>,
    },
    AttemptCorrelated {
        number: AttemptNumber,
        provider_id: String,
    },
    UsageBounded {
        number: AttemptNumber,
        hold: Hold,
    },
    UsageRecorded {
        number: AttemptNumber,
        record: Arc<UsageRecord>,
    },
    AttemptClosed {
        number: AttemptNumber,
        outcome: AttemptOutcome,
    },
    /// `ordinal` counts the resumptions before it, so that a copy of an earlier pending is recognised.
    ReservationPending {
        cause: PendCause,
        ordinal: u16,
    },
    ReservationSettled {
        charged: Charge,
    },
    ReservationReleased,
    ReservationResumed {
        ordinal: u16,
        due_ms: i64,
    },
    ReservationEscalated,
    /// Store only: concurrency was given back.
    SlotFreed,
    /// Store only: the lease was extended.
    LeaseRenewed {
        due_ms: i64,
    },
    /// Store only: the ledger's running total of an attempt.
    ChargeCorrected {
        number: AttemptNumber,
        total: Charge,
    },
}

/// The kinds of event that are on the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum EventKind {
    ReservationCreated,
    ReservationExtended,
    AttemptStarted,
    AttemptCorrelated,
    UsageBounded,
    UsageRecorded,
    AttemptClosed,
    ReservationPending,
    ReservationSettled,
    ReservationReleased,
    ReservationResumed,
    ReservationEscalated,
}

impl EventKind {
    pub const ALL: [Self; 12] = [
        Self::ReservationCreated,
        Self::ReservationExtended,
        Self::AttemptStarted,
        Self::AttemptCorrelated,
        Self::UsageBounded,
        Self::UsageRecorded,
        Self::AttemptClosed,
        Self::ReservationPending,
        Self::ReservationSettled,
        Self::ReservationReleased,
        Self::ReservationResumed,
        Self::ReservationEscalated,
    ];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ReservationCreated => "ReservationCreated",
            Self::ReservationExtended => "ReservationExtended",
            Self::AttemptStarted => "AttemptStarted",
            Self::AttemptCorrelated => "AttemptCorrelated",
            Self::UsageBounded => "UsageBounded",
            Self::UsageRecorded => "UsageRecorded",
            Self::AttemptClosed => "AttemptClosed",
            Self::ReservationPending => "ReservationPending",
            Self::ReservationSettled => "ReservationSettled",
            Self::ReservationReleased => "ReservationReleased",
            Self::ReservationResumed => "ReservationResumed",
            Self::ReservationEscalated => "ReservationEscalated",
        }
    }
}

impl Event {
    /// The kind on the log, or `None` for what concerns the store alone.
    #[must_use]
    pub const fn kind(&self) -> Option<EventKind> {
        Some(match self {
            Self::ReservationCreated(_) => EventKind::ReservationCreated,
            Self::ReservationExtended { .. } => EventKind::ReservationExtended,
            Self::AttemptStarted { .. } => EventKind::AttemptStarted,
            Self::AttemptCorrelated { .. } => EventKind::AttemptCorrelated,
            Self::UsageBounded { .. } => EventKind::UsageBounded,
            Self::UsageRecorded { .. } => EventKind::UsageRecorded,
            Self::AttemptClosed { .. } => EventKind::AttemptClosed,
            Self::ReservationPending { .. } => EventKind::ReservationPending,
            Self::ReservationSettled { .. } => EventKind::ReservationSettled,
            Self::ReservationReleased => EventKind::ReservationReleased,
            Self::ReservationResumed { .. } => EventKind::ReservationResumed,
            Self::ReservationEscalated => EventKind::ReservationEscalated,
            Self::SlotFreed | Self::LeaseRenewed { .. } | Self::ChargeCorrected { .. } => return None,
        })
    }

    /// The attempt it speaks of; zero for the reservation as a whole.
    #[must_use]
    pub const fn attempt(&self) -> AttemptNumber {
        match self {
            Self::ReservationExtended { number, .. }
            | Self::AttemptStarted { number, .. }
            | Self::AttemptCorrelated { number, .. }
            | Self::UsageBounded { number, .. }
            | Self::UsageRecorded { number, .. }
            | Self::AttemptClosed { number, .. }
            | Self::ChargeCorrected { number, .. } => *number,
            Self::ReservationCreated(_)
            | Self::ReservationPending { .. }
            | Self::ReservationSettled { .. }
            | Self::ReservationReleased
            | Self::ReservationResumed { .. }
            | Self::ReservationEscalated
            | Self::SlotFreed
            | Self::LeaseRenewed { .. } => 0,
        }
    }

    /// What tells two events of the same kind and attempt apart; part of the event's id.
    #[must_use]
    pub fn cause(&self) -> String {
        match self {
            Self::UsageRecorded { record, .. } => record.cause.clone(),
            Self::UsageBounded { hold: Amounts { tokens, usd, .. }, .. } => format!("{tokens}/{}", usd.nanos()),
            Self::AttemptClosed { outcome, .. } => match outcome {
                AttemptOutcome::NotExecuted => "not_executed".to_owned(),
                AttemptOutcome::MayHaveExecuted => "may_have_executed".to_owned(),
                AttemptOutcome::Executed => "executed".to_owned(),
                AttemptOutcome::ExecutedUsageUnknown => "usage_unknown".to_owned(),
            },
            Self::ReservationPending { ordinal, .. } | Self::ReservationResumed { ordinal, .. } => ordinal.to_string(),
            Self::ReservationSettled { .. }
            | Self::ReservationCreated(_)
            | Self::ReservationExtended { .. }
            | Self::AttemptStarted { .. }
            | Self::AttemptCorrelated { .. }
            | Self::ReservationReleased
            | Self::ReservationEscalated
            | Self::SlotFreed
            | Self::LeaseRenewed { .. }
            | Self::ChargeCorrected { .. } => String::new(),
        }
    }
}
