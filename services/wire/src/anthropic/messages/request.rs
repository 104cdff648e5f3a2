//! A message request: parsed once for facts, kept as bytes.
//!
//! As for chat completions, only the members that matter to admission and routing are looked at, each in its one
//! spelling and at most once; everything else is relayed as inert bytes (O32, O61). Thinking blocks with their
//! signatures are among those bytes, so they go back exactly as they came (O35).
//!
//! A cap of 0, by which this API only warms a cache, is refused like everywhere: Weir holds no money for requests that
//! can have no output (O30).

use std::fmt;

use bytes::Bytes;

use super::parse::parse;
use crate::anthropic::AnthropicVersion;
use crate::json::{Span, quoted};
use crate::request::{Limits, RequestFacts};
use crate::request_error::RequestError;
use crate::splice::Splice;

/// What a message request is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// An answer: `max_tokens` is required.
    Answer,
    /// A count of its input tokens, which bills nothing: `max_tokens` has no place in it.
    CountTokens,
}

/// What a target of the same dialect needs changed.
#[derive(Debug, Clone, Copy)]
pub struct MessagesEdits<'a> {
    /// The model's name at the provider.
    pub model: &'a str,
    /// The cap in force; `None` leaves the client's.
    pub cap: Option<u64>,
}

/// A request: its bytes, its facts, and where the fields that Weir owns stand.
#[derive(Clone)]
pub struct MessagesRequest {
    body: Bytes,
    facts: RequestFacts,
    version: AnthropicVersion,
    purpose: Purpose,
    places: Places,
}

/// Where the owned fields stand in the body.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Places {
    pub(super) model: Option<Span>,
    pub(super) max_tokens: Option<Span>,
}

impl MessagesRequest {
    /// Reads the facts of `body`, which speaks `version`.
    ///
    /// # Errors
    /// A [`RequestError`] that names the field, the place and the fix.
    pub fn parse(
        body: Bytes,
        limits: &Limits,
        version: AnthropicVersion,
        purpose: Purpose,
    ) -> Result<Self, RequestError> {
        match parse(&body, limits, version, purpose) {
            Ok((facts, places)) => Ok(Self { body, facts, version, purpose, places }),
            Err(refusal) => Err(refusal.locate(&body)),
        }
    }

    #[must_use]
    pub const fn facts(&self) -> &RequestFacts {
        &self.facts
    }

    #[must_use]
    pub const fn version(&self) -> AnthropicVersion {
        self.version
    }

    #[must_use]
    pub const fn purpose(&self) -> Purpose {
        self.purpose
    }

    /// The body as the client sent it.
    #[must_use]
    pub const fn body(&self) -> &Bytes {
        &self.body
    }

    /// Gives the body's memory back when no target will be asked any more; the facts stay.
    pub fn forget_body(&mut self) {
        self.body = Bytes::new();
    }

    /// The body for a target of the same dialect, in one piece.
    #[must_use]
    pub fn rewrite(&self, edits: &MessagesEdits<'_>) -> Bytes {
        self.splice(edits).into_bytes(&self.body)
    }

    /// The body for a target of the same dialect as pieces that share the memory of the client's body.
    #[must_use]
    pub fn rewrite_parts(&self, edits: &MessagesEdits<'_>) -> Vec<Bytes> {
        self.splice(edits).into_parts(&self.body)
    }

    fn splice(&self, edits: &MessagesEdits<'_>) -> Splice {
        let mut splice = Splice::new();
        if let Some(span) = self.places.model
            && edits.model != self.facts.model
        {
            splice.replace(span, quoted(edits.model));
        }
        if let (Some(span), Some(cap)) = (self.places.max_tokens, edits.cap)
            && self.facts.cap_tokens != Some(cap)
        {
            splice.replace(span, cap.to_string());
        }
        splice
    }
}

/// Never the body: it holds prompts, and `Debug` ends in logs.
impl fmt::Debug for MessagesRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MessagesRequest")
            .field("model", &self.facts.model)
            .field("version", &self.version)
            .field("purpose", &self.purpose)
            .field("bytes", &self.body.len())
            .finish_non_exhaustive()
    }
}
