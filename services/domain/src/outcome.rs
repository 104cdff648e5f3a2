//! How a client request ended, in one word: for logs, metrics and events. What it costs is told by its attempts alone.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The client has the whole answer.
    Complete,
    /// The provider's answer broke off after content was delivered.
    FailedMidstream,
    /// The client left.
    ClientCancelled,
    /// Refused before anything was sent.
    NoAttempt,
    /// Nothing was eligible to serve it.
    NoEligible,
    /// Every attempt failed before content, or the provider's refusal is the answer.
    Exhausted,
}

impl Outcome {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::FailedMidstream => "failed_midstream",
            Self::ClientCancelled => "client_cancelled",
            Self::NoAttempt => "no_attempt",
            Self::NoEligible => "no_eligible",
            Self::Exhausted => "exhausted",
        }
    }
}
