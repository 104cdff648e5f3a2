//! What a statement's failure means to whoever sent it.

use std::fmt;

use thiserror::Error;

/// Why a statement brought no answer.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CqlError {
    /// A server that did not do it. Also what nobody's patience mends (a table that is missing, a statement that is
    /// refused) comes as this: the reason is told, and the caller goes on when somebody mended it.
    #[error("the CQL server is not available: {reason}")]
    Unavailable { reason: String },
    /// A conditional statement that may have been applied or not (O56): whoever sent it looks, or sends it again.
    #[error("nobody knows whether the CQL server did it: {reason}")]
    Unknown { reason: String },
    /// An answer that is none.
    #[error("a {what} of the CQL server cannot be read: {reason}")]
    Damaged { what: &'static str, reason: String },
}

pub(super) fn unavailable(error: impl fmt::Display) -> CqlError {
    CqlError::Unavailable { reason: error.to_string() }
}

pub(super) fn damaged(error: impl fmt::Display) -> CqlError {
    CqlError::Damaged { what: "row", reason: error.to_string() }
}
