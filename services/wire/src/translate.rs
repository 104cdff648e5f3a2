//! From one dialect to another: requests there, answers back.
//!
//! The rule is one sentence: every member is taken by name, and what nobody took is refused by its name. So nothing is
//! dropped in silence, be it invented tomorrow. Values that both sides read alike (schemas, tool arguments, numbers,
//! texts) are copied as bytes, digits and escapes included. Answers follow the same rule for everything that is content;
//! other members of an answer describe the provider and stay behind.

use thiserror::Error;

use crate::dialect::Dialect;
use crate::json::JsonError;
use crate::request_error::{RequestError, RequestErrorCode};

mod fields;
mod finish;
mod usage;

mod requests;

pub(crate) mod answers;
pub(crate) mod streams;

pub(crate) use requests::{chat_to_messages, messages_to_chat};

/// What a pair of dialects cannot carry honestly.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct Untranslatable {
    /// The member as its owner writes it, such as `messages[2].content[0].source`.
    pub field: String,
    /// Says what is wrong and what would be right; never echoes values.
    pub message: String,
}

impl Untranslatable {
    pub(crate) fn new(field: impl Into<String>, why: &str) -> Self {
        let field = field.into();
        let message = format!("`{field}` {why}");
        Self { field, message }
    }

    /// A member that has no counterpart on the other side.
    pub(crate) fn unknown(field: impl Into<String>) -> Self {
        Self::new(field, "cannot be carried to this model's provider, whose API has no counterpart: leave it out.")
    }

    pub(crate) fn pair(from: Dialect, to: Dialect) -> Self {
        let message = format!("Requests of {from} are not translated for providers of {to}.");
        Self { field: String::from("model"), message }
    }
}

/// Bodies are validated before they are translated, so this is for what is inside strings.
impl From<JsonError> for Untranslatable {
    fn from(error: JsonError) -> Self {
        Self { field: String::new(), message: format!("A part of the body is not JSON: {error}.") }
    }
}

impl From<Untranslatable> for RequestError {
    fn from(error: Untranslatable) -> Self {
        let code = RequestErrorCode::NotCarried;
        Self { field: Some(error.field), position: None, message: error.message, code }
    }
}
