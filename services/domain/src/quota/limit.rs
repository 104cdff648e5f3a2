//! Limits and the denial that names one.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::calendar::WindowKind;
use crate::ids::KeyId;
use crate::money::{Amounts, NanoUsd};

use super::{Scope, Subject};

/// What a limit counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    Requests,
    Tokens,
    /// Nano-USD.
    Usd,
}

impl Unit {
    #[must_use]
    pub const fn of(self, amounts: Amounts) -> i64 {
        match self {
            Self::Requests => amounts.requests,
            Self::Tokens => amounts.tokens,
            Self::Usd => amounts.usd.nanos(),
        }
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Requests => "requests",
            Self::Tokens => "tokens",
            Self::Usd => "usd",
        })
    }
}

/// Over what a limit counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// A calendar window in the tenant's zone.
    Calendar { unit: Unit, window: WindowKind },
    /// Any 60 seconds by the store's clock. Money has no rate: `Usd` here is refused where limits are read.
    PerMinute { unit: Unit },
    /// Requests at the same time.
    Concurrent,
}

impl fmt::Display for Measure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Calendar { unit, window } => write!(f, "{unit} per {window}"),
            Self::PerMinute { unit } => write!(f, "{unit} per minute"),
            Self::Concurrent => write!(f, "concurrent requests"),
        }
    }
}

/// A comparison that admission makes: what `scope` has charged and held by `measure` must stay within `max`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    pub scope: Scope,
    pub measure: Measure,
    /// In the unit of the measure; money in nano-USD.
    pub max: i64,
}

impl Limit {
    /// How much of this limit `amounts` (and a slot, for concurrency) would take.
    #[must_use]
    pub const fn share_of(&self, amounts: Amounts, slots: i64) -> i64 {
        match self.measure {
            Measure::Calendar { unit, .. } | Measure::PerMinute { unit } => unit.of(amounts),
            Measure::Concurrent => slots,
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.measure, self.scope)?;
        match self.measure {
            Measure::Calendar { unit: Unit::Usd, .. } => write!(f, " (${})", NanoUsd::from_nanos(self.max)),
            Measure::Calendar { .. } | Measure::PerMinute { .. } | Measure::Concurrent => write!(f, " ({})", self.max),
        }
    }
}

/// A refusal by a limit. It changed nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denial {
    pub limit: Limit,
    pub reason: DenialReason,
}

impl Denial {
    /// The key is in the revocation set: it may have nothing at the same time.
    #[must_use]
    pub fn revoked(key: &KeyId) -> Self {
        let scope = Scope { subject: Subject::Key(key.clone()), model: None };
        Self { limit: Limit { scope, measure: Measure::Concurrent, max: 0 }, reason: DenialReason::Revoked }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DenialReason {
    /// Nothing to wait for: the hold alone is larger than the limit.
    ExceedsLimit { needed: i64 },
    /// Room returns after `retry_after_ms`; `None` for a calendar window, whose turn the caller knows from its zone.
    Exhausted { retry_after_ms: Option<i64> },
    /// The key is in the revocation set of the store.
    Revoked,
}
