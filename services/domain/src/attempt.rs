//! One call to one provider, and what is known of it.
//!
//! A reservation lives through one or more attempts. Each has a hold of its own, a verdict once it ended, and a charge
//! once its usage is known. The verdict answers the only question that matters to money: may the provider bill for it?

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::ids::{DeploymentId, ProviderId};
use crate::money::{Amounts, Charge, Hold};
use crate::usage::Usage;

/// The ordinal of an attempt within its reservation: 1, 2, 3…
pub type AttemptNumber = u16;

/// How an attempt ended, as far as billing is concerned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttemptVerdict {
    /// The provider did not run it: it costs nothing, and its hold serves the next attempt.
    NotExecuted,
    /// Nobody knows yet whether the provider ran it: its worst case stays held (I9).
    MayHaveExecuted,
    /// The provider ran it and said what it used.
    Executed(Usage),
    /// The provider ran it and did not say what it used: its worst case stays held (I9).
    ExecutedUsageUnknown,
}

impl AttemptVerdict {
    #[must_use]
    pub const fn outcome(&self) -> AttemptOutcome {
        match self {
            Self::NotExecuted => AttemptOutcome::NotExecuted,
            Self::MayHaveExecuted => AttemptOutcome::MayHaveExecuted,
            Self::Executed(_) => AttemptOutcome::Executed,
            Self::ExecutedUsageUnknown => AttemptOutcome::ExecutedUsageUnknown,
        }
    }
}

/// An [`AttemptVerdict`] without its figures: what stays in the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttemptOutcome {
    NotExecuted,
    MayHaveExecuted,
    Executed,
    ExecutedUsageUnknown,
}

impl AttemptOutcome {
    /// Whether nothing more has to be learnt. `Executed` is known because its usage came with it.
    #[must_use]
    pub const fn is_known(self) -> bool {
        match self {
            Self::NotExecuted | Self::Executed => true,
            Self::MayHaveExecuted | Self::ExecutedUsageUnknown => false,
        }
    }
}

/// Where an attempt goes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Target {
    pub deployment: DeploymentId,
    pub provider: ProviderId,
    /// The model's name at the provider.
    pub upstream_model: String,
    /// The provider's region, for residency audits (I5).
    pub provider_region: String,
    /// The name in the price book: a report that comes after the deployment left the catalog is still priced (I13).
    pub price: String,
}

/// The record of one attempt inside a reservation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    pub number: AttemptNumber,
    /// `None` when the attempt is known only from its ledger line.
    pub target: Option<Arc<Target>>,
    /// The worst case it started with; only tokens and money, the request is the reservation's own.
    pub started_with: Hold,
    /// The worst case now: never above `started_with`.
    pub hold: Hold,
    /// `None` while the call runs.
    pub outcome: Option<AttemptOutcome>,
    /// What it costs, once known. A charge beside an unknown outcome came from the ledger.
    pub charge: Option<Charge>,
    /// The provider's id for the answer, once seen.
    pub provider_id: Option<String>,
}

impl Attempt {
    #[must_use]
    pub const fn started(number: AttemptNumber, hold: Hold, target: Arc<Target>) -> Self {
        Self { number, target: Some(target), started_with: hold, hold, outcome: None, charge: None, provider_id: None }
    }

    /// An attempt of which only the ledger knows.
    #[must_use]
    pub const fn from_ledger(number: AttemptNumber, total: Charge) -> Self {
        Self {
            number,
            target: None,
            started_with: Amounts::ZERO,
            hold: Amounts::ZERO,
            outcome: Some(AttemptOutcome::Executed),
            charge: Some(total),
            provider_id: None,
        }
    }

    /// Whether what it costs is known: a charge from whatever source, or proof that it did not run.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.charge.is_some() || self.outcome == Some(AttemptOutcome::NotExecuted)
    }

    #[must_use]
    pub fn held(&self) -> Hold {
        if self.is_known() { Amounts::ZERO } else { self.hold }
    }

    #[must_use]
    pub fn charged(&self) -> Charge {
        self.charge.unwrap_or(Amounts::ZERO)
    }
}
