//! What is said about a clause.

use serde::Serialize;

/// How a gateway keeps a clause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// As the contract says.
    Pass,
    /// Otherwise, but honestly: the client can tell what it got.
    Differs,
    /// The client is misled, somebody pays for nothing, or nothing came at all.
    Fail,
}

impl Verdict {
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Differs => "differs",
            Self::Fail => "fail",
        }
    }
}

/// What was found out about one clause at one pair of APIs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Outcome {
    pub verdict: Verdict,
    /// Each thing that is not as the contract says, worst first.
    pub findings: Vec<String>,
    /// What the client got, step by step.
    pub got: String,
}

/// Collects findings; the worst decides.
#[derive(Debug, Default)]
pub(super) struct Checks {
    failures: Vec<String>,
    differences: Vec<String>,
}

impl Checks {
    pub fn must(&mut self, holds: bool, finding: impl FnOnce() -> String) {
        if !holds {
            self.failures.push(finding());
        }
    }

    pub fn should(&mut self, holds: bool, finding: impl FnOnce() -> String) {
        if !holds {
            self.differences.push(finding());
        }
    }

    pub fn fail(&mut self, finding: impl Into<String>) {
        self.failures.push(finding.into());
    }

    pub fn differ(&mut self, finding: impl Into<String>) {
        self.differences.push(finding.into());
    }

    pub fn verdict(&self) -> Verdict {
        match (self.failures.as_slice(), self.differences.as_slice()) {
            ([], []) => Verdict::Pass,
            ([], _) => Verdict::Differs,
            (_, _) => Verdict::Fail,
        }
    }

    pub fn into_findings(self) -> Vec<String> {
        self.failures.into_iter().chain(self.differences).collect()
    }
}
