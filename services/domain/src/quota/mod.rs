//! What quota counts and compares: scopes, windows, limits, and the book of one tenant.
//!
//! A limit is only a comparison. Every reservation counts on all its scopes and all calendar windows whether a limit
//! looks at them or not, so that a limit added in mid-window finds the truth. [`Book`] is the specification of the
//! quota store: the embedded backend runs it under a lock, and every other backend must give the same replies.

mod book;
mod counters;
mod limit;
mod seen;
mod standing;

#[cfg(test)]
mod book_tests;
#[cfg(test)]
mod standing_tests;

pub use book::{Book, BookImage, BookOptions, Correction, Entry, Reply};
pub use counters::{Counter, CounterReading, ScopeCounters};
pub use limit::{Denial, DenialReason, Limit, Measure, Unit};
pub use seen::Seen;
pub use standing::{RateStanding, RateStandings};

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::calendar::Window;
use crate::ids::{KeyId, ModelName, TeamId};

/// Whose usage is counted, within one tenant.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Subject {
    Tenant,
    Team(TeamId),
    Key(KeyId),
}

/// A subject, over all models or on one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Scope {
    pub subject: Subject,
    pub model: Option<ModelName>,
}

impl Scope {
    /// Every scope that a request of `key` for `model` counts on.
    #[must_use]
    pub fn of_request(team: Option<&TeamId>, key: &KeyId, model: &ModelName) -> Arc<[Self]> {
        Self::each_of_request(team, key, model).collect()
    }

    /// Whether `scopes` is what [`Self::of_request`] gives.
    #[must_use]
    pub fn are_of_request(scopes: &[Self], team: Option<&TeamId>, key: &KeyId, model: &ModelName) -> bool {
        Self::each_of_request(team, key, model).eq(scopes.iter().cloned())
    }

    fn each_of_request(team: Option<&TeamId>, key: &KeyId, model: &ModelName) -> impl Iterator<Item = Self> {
        let team = team.cloned().map(Subject::Team);
        let subjects = [Some(Subject::Tenant), team, Some(Subject::Key(key.clone()))];
        subjects.into_iter().flatten().flat_map(|subject| {
            let all_models = Self { subject: subject.clone(), model: None };
            [all_models, Self { subject, model: Some(model.clone()) }]
        })
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.subject {
            Subject::Tenant => write!(f, "tenant")?,
            Subject::Team(team) => write!(f, "team {team}")?,
            Subject::Key(key) => write!(f, "key {key}")?,
        }
        match &self.model {
            Some(model) => write!(f, " on {model}"),
            None => Ok(()),
        }
    }
}

/// The exact list of counters of one reservation, locked at admission (I10): every scope in every window.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Counting {
    pub scopes: Arc<[Scope]>,
    pub windows: [Window; 4],
}

impl Counting {
    /// The window of `kind` that the reservation counts in.
    pub fn counters(&self) -> impl Iterator<Item = (&Scope, Window)> {
        self.scopes.iter().flat_map(|scope| self.windows.iter().map(move |window| (scope, *window)))
    }
}
