//! A plain (not streamed) answer: facts, and the client's form of it. And the answer to a count of tokens.

use std::fmt;

use bytes::Bytes;

use super::event::StopReason;
use super::usage::{read_usage, served_tier};
use crate::json::{Cursor, Fault, JsonError, Kind, Node, Span, quoted};
use crate::openai::chat::answer::InBandError;
use crate::openai::chat::stream::unquoted;
use crate::splice::Splice;
use crate::usage::Extracted;

/// A whole answer of a provider, its bytes kept.
#[derive(Clone)]
pub struct MessageAnswer {
    body: Bytes,
    places: Places,
    stop_reason: Option<StopReason>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Places {
    first: usize,
    is_empty: bool,
    id: Option<Span>,
    model: Option<Span>,
    usage: Option<Span>,
    error: Option<Span>,
    content: Option<Span>,
}

impl MessageAnswer {
    /// Reads a body that came with a 2xx status.
    ///
    /// # Errors
    /// The body is not one JSON object: the provider broke its protocol.
    pub fn parse(body: Bytes) -> Result<Self, JsonError> {
        let mut places = Places { is_empty: true, ..Places::default() };
        let mut stop_reason = None;
        let mut cursor = Cursor::new(&body);
        cursor.peek()?;
        places.first = cursor.offset() + 1;
        cursor.members(|cursor, key| {
            places.is_empty = false;
            match (key.raw(), cursor.peek()?) {
                (b"id", Kind::String) => places.id = Some(cursor.string()?.span()),
                (b"model", Kind::String) => places.model = Some(cursor.string()?.span()),
                (b"usage", Kind::Object) => places.usage = Some(cursor.skip()?.span),
                (b"error", Kind::Object | Kind::String) => places.error = Some(cursor.skip()?.span),
                (b"content", Kind::Array) => places.content = Some(cursor.skip()?.span),
                (b"stop_reason", Kind::String) => stop_reason = Some(StopReason::of(cursor.string()?.raw())),
                _ => {
                    cursor.skip()?;
                }
            }
            Ok::<(), JsonError>(())
        })?;
        cursor.end()?;
        Ok(Self { body, places, stop_reason })
    }

    #[must_use]
    pub const fn body(&self) -> &Bytes {
        &self.body
    }

    /// An error object in place of an answer, though the status said 200.
    #[must_use]
    pub fn error(&self) -> Option<InBandError> {
        self.places.error.map(|span| InBandError::read(span.of(&self.body)))
    }

    /// Whether this is a message at all: it has content, be it empty.
    #[must_use]
    pub const fn is_message(&self) -> bool {
        self.places.content.is_some()
    }

    #[must_use]
    pub fn usage(&self) -> Option<Extracted> {
        self.places.usage.map(|span| read_usage(Some(span.of(&self.body)), None))
    }

    #[must_use]
    pub const fn stop_reason(&self) -> Option<StopReason> {
        self.stop_reason
    }

    #[must_use]
    pub fn response_id(&self) -> Option<String> {
        self.text(self.places.id)
    }

    #[must_use]
    pub fn served_tier(&self) -> Option<String> {
        self.places.usage.and_then(|span| served_tier(span.of(&self.body)))
    }

    /// The model's name as the provider reports it; for the ledger, never for the client (O33).
    #[must_use]
    pub fn served_model(&self) -> Option<String> {
        self.text(self.places.model)
    }

    /// The client's form: `model` is its alias, everything else byte for byte.
    #[must_use]
    pub fn for_client(&self, alias: &str) -> Bytes {
        let mut splice = Splice::new();
        match self.places.model {
            Some(span) => splice.replace(span, quoted(alias)),
            None if self.places.is_empty => {}
            None => splice.insert(self.places.first, format!("\"model\":{},", quoted(alias))),
        }
        splice.into_bytes(&self.body)
    }

    fn text(&self, span: Option<Span>) -> Option<String> {
        span.and_then(|span| unquoted(span.of(&self.body))).filter(|text| !text.is_empty())
    }
}

/// Never the body: it holds completions, and `Debug` ends in logs.
impl fmt::Debug for MessageAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MessageAnswer")
            .field("stop_reason", &self.stop_reason)
            .field("bytes", &self.body.len())
            .finish_non_exhaustive()
    }
}

/// The answer to a count of tokens; it has nothing of ours in it and goes to the client as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenCount {
    pub input_tokens: u64,
}

impl TokenCount {
    /// Reads `{"input_tokens": N}`.
    ///
    /// # Errors
    /// The body is not an object with that count.
    pub fn parse(body: &[u8]) -> Result<Self, JsonError> {
        let count = Node::of(body)?.get("input_tokens").and_then(Node::count);
        count.map(|input_tokens| Self { input_tokens }).ok_or(JsonError { fault: Fault::WrongType, offset: 0 })
    }

    /// The same answer, made here: for a count that the gateway bounds itself.
    #[must_use]
    pub fn to_body(self) -> Bytes {
        Bytes::from(format!(r#"{{"input_tokens":{}}}"#, self.input_tokens))
    }
}
