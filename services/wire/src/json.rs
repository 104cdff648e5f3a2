//! A strict JSON scanner that answers "where", not "what".
//!
//! Prompts are large and Weir owns few of their fields, so nothing here builds a document: a [`Cursor`] validates the
//! bytes as it walks and hands out spans. Depth is bounded, because providers and clients parse recursively. Whether
//! the bytes are UTF-8 is checked by the caller where it matters (request bodies), not on every relayed stream event.

mod cursor;
mod node;
mod text;
mod writer;

pub use cursor::{Cursor, Kind, Value};
pub(crate) use node::Node;
pub use text::{Text, push_quoted, quoted};
pub(crate) use writer::Writer;

use thiserror::Error;

/// The deepest nesting accepted: generous for real schemas, far below what overflows any parser's stack.
pub const MAX_DEPTH: u32 = 128;

/// Half-open range of byte offsets in one buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Span {
    pub start: usize,
    pub end: usize,
}

impl Span {
    #[must_use]
    pub const fn new(start: usize, end: usize) -> Self {
        Self { start, end }
    }

    #[must_use]
    pub const fn len(self) -> usize {
        self.end.saturating_sub(self.start)
    }

    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// The bytes of the span; empty when the span is not of this buffer.
    #[must_use]
    pub fn of(self, bytes: &[u8]) -> &[u8] {
        bytes.get(self.start..self.end).unwrap_or_default()
    }
}

/// What is wrong with a text that should be JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Fault {
    #[error("the text ends in the middle of a value")]
    UnexpectedEnd,
    #[error("a value is expected")]
    ExpectedValue,
    #[error("a member name in double quotes is expected")]
    ExpectedKey,
    #[error("a colon is expected")]
    ExpectedColon,
    #[error("a comma or the closing bracket is expected")]
    ExpectedComma,
    #[error("this is not a number")]
    InvalidNumber,
    #[error("a string holds an unescaped control character")]
    ControlCharacter,
    #[error("this is not an escape sequence")]
    InvalidEscape,
    #[error("nesting is deeper than {MAX_DEPTH} levels")]
    TooDeep,
    #[error("there is text after the value")]
    TrailingText,
    #[error("the text is not UTF-8")]
    NotUtf8,
    #[error("another type is expected here")]
    WrongType,
}

/// A fault and the byte offset where it was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{fault} at byte {offset}")]
pub struct JsonError {
    pub fault: Fault,
    pub offset: usize,
}

/// A place in a text as people count it: byte offset from 0, line and column (in bytes) from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    pub offset: usize,
    pub line: usize,
    pub column: usize,
}

impl Position {
    #[must_use]
    pub fn of(bytes: &[u8], offset: usize) -> Self {
        let before = &bytes[..offset.min(bytes.len())];
        let line_start = memchr::memrchr(b'\n', before).map_or(0, |at| at + 1);
        let line = memchr::memchr_iter(b'\n', before).count() + 1;
        Self { offset, line, column: before.len() - line_start + 1 }
    }
}

impl std::fmt::Display for Position {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "byte {}, line {}, column {}", self.offset, self.line, self.column)
    }
}

/// Checks that `bytes` are UTF-8.
pub fn check_utf8(bytes: &[u8]) -> Result<(), JsonError> {
    match std::str::from_utf8(bytes) {
        Ok(_) => Ok(()),
        Err(error) => Err(JsonError { fault: Fault::NotUtf8, offset: error.valid_up_to() }),
    }
}

/// Validates one JSON text without looking at its content.
pub fn validate(bytes: &[u8]) -> Result<Value, JsonError> {
    check_utf8(bytes)?;
    let mut cursor = Cursor::new(bytes);
    let value = cursor.skip()?;
    cursor.end()?;
    Ok(value)
}

#[cfg(test)]
mod tests;
