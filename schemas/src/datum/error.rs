//! Why bytes are not the datum that a schema promises, or a value is none.

use std::fmt;

use thiserror::Error;

/// What is wrong with the bytes or the value. Never a matter of trying again.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DatumError {
    #[error("the bytes end within a value")]
    Truncated,
    #[error("a number does not fit its type")]
    LongNumber,
    #[error("a length is negative")]
    NegativeLength,
    #[error("a text is not UTF-8")]
    NotUtf8,
    #[error("{0} is no branch of the union")]
    NoSuchBranch(i64),
    #[error("{0} is no symbol of the enum")]
    NoSuchSymbol(i64),
    #[error("a boolean is {0}, neither 0 nor 1")]
    NotBoolean(u8),
    #[error("a decimal does not fit 64 bits")]
    WideDecimal,
    #[error("a time is beyond what microseconds in 64 bits can say")]
    TimeOutOfRange,
    #[error("Weir's records hold no {0}")]
    Unsupported(&'static str),
    /// A value that the record's type refuses, in serde's words.
    #[error("{0}")]
    Value(String),
}

/// How much of a refused value an error quotes: enough to recognise it, bounded whatever was sent.
const MAX_QUOTE_BYTES: usize = 200;

impl DatumError {
    fn quoting(message: &impl fmt::Display) -> Self {
        let mut text = message.to_string();
        if text.len() > MAX_QUOTE_BYTES {
            text.truncate(text.floor_char_boundary(MAX_QUOTE_BYTES));
            text.push('…');
        }
        Self::Value(text)
    }
}

impl serde::ser::Error for DatumError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::quoting(&message)
    }
}

impl serde::de::Error for DatumError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::quoting(&message)
    }
}
