//! Why a run has no result. Every cause ends the run: a figure that needed luck is no figure.

use std::io;

use thiserror::Error;

#[derive(Debug, Error)]
pub(crate) enum BenchError {
    #[error("{what}: {source}")]
    Io { what: String, source: io::Error },
    #[error("{what} did not happen within {seconds} s; see {log}")]
    Late { what: String, seconds: u64, log: String },
    #[error("{what}: {detail}")]
    Unexpected { what: String, detail: String },
}

impl BenchError {
    /// For `map_err`, with what was attempted.
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }

    pub(crate) fn unexpected(what: impl Into<String>, detail: impl ToString) -> Self {
        Self::Unexpected { what: what.into(), detail: detail.to_string() }
    }
}
