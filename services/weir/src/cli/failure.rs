//! How a command ends badly: one line that says what, why and what to do, and a code for scripts.

use std::error::Error;
use std::process::ExitCode;

use serde_json::json;
use weir_runtime::story::story;

pub(super) const FAILED: u8 = 1;
pub(super) const USAGE: u8 = 2;
pub(super) const MISSING: u8 = 3;

/// Why a command did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    code: u8,
    message: String,
}

impl Failure {
    /// Refused or failed.
    pub fn failed(error: &dyn Error) -> Self {
        Self::new(FAILED, story(error))
    }

    /// The command or its configuration is wrong.
    pub fn usage(error: &dyn Error) -> Self {
        Self::new(USAGE, story(error))
    }

    /// What was asked for is not there, or nobody is there to ask.
    pub fn missing(error: &dyn Error) -> Self {
        Self::new(MISSING, story(error))
    }

    pub(super) const fn new(code: u8, message: String) -> Self {
        Self { code, message }
    }

    #[must_use]
    pub const fn code(&self) -> u8 {
        self.code
    }

    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Prints it to stderr.
    pub(super) fn report(&self, is_json: bool) -> ExitCode {
        if is_json {
            eprintln!("{}", json!({ "error": self.message, "code": self.code }));
        } else {
            eprintln!("weir: {}", self.message);
        }
        ExitCode::from(self.code)
    }
}
