//! A chat completion request: parsed once for facts, kept as bytes.
//!
//! The body is validated as JSON from end to end, but only the members below are looked at. Everything else, known or
//! invented, is relayed as inert bytes (O32): members that direct other gateways (`api_base`, `api_key`,
//! `extra_headers`, `fallbacks`, `models`, …) direct nothing here, because nothing here reads them (O61).
//!
//! Rules a reader would question:
//! - A field that Weir owns may stand there once, in its exact spelling. Some servers match names without regard to
//!   case and most let the last one win, so a second or differently cased `max_tokens` could lift a cap after it was
//!   reserved (I2).
//! - `max_tokens` beside a different `max_completion_tokens`: the smaller is in force (O30).

use std::fmt;

use bytes::Bytes;

use super::parse::parse;
use crate::json::{Span, Value};
use crate::request::RequestFacts;
use crate::request_error::RequestError;

pub use crate::request::{
    CapField, IncludeUsage, Limits, MAX_CAP_TOKENS, RequestFacts as ChatFacts, ResponseFormat, Tool,
};

/// The most choices in one request (the API's own bound).
pub const MAX_CHOICES: u32 = 128;

/// A request: its bytes, its facts, and where the fields that Weir owns stand.
#[derive(Clone)]
pub struct ChatRequest {
    body: Bytes,
    facts: RequestFacts,
    pub(super) places: Places,
}

/// Where things stand in the body.
#[derive(Debug, Clone, Default)]
pub(super) struct Places {
    /// After the opening brace.
    pub(super) first: usize,
    /// Every top-level member, in order.
    pub(super) members: Vec<Member>,
    pub(super) model: Option<Span>,
    /// Indexes into `members`.
    pub(super) max_tokens: Option<CapPlace>,
    pub(super) max_completion_tokens: Option<CapPlace>,
    pub(super) stream_options: Option<OptionsPlace>,
    pub(super) metadata: Option<ObjectPlace>,
    /// The values of roles that say `developer`.
    pub(super) developer_roles: Vec<Span>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Member {
    pub(super) key: Span,
    pub(super) value: Value,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct CapPlace {
    pub(super) member: usize,
    pub(super) tokens: Option<u64>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct OptionsPlace {
    pub(super) member: usize,
    pub(super) include_usage: Option<Span>,
    pub(super) is_empty: bool,
}

#[derive(Debug, Clone)]
pub(super) struct ObjectPlace {
    pub(super) member: usize,
    pub(super) pairs: Vec<(String, Span)>,
}

impl ChatRequest {
    /// Reads the facts of `body`.
    ///
    /// # Errors
    /// A [`RequestError`] that names the field, the place and the fix; the body was not JSON, lacks a required field,
    /// or has a field that Weir owns with a value that it cannot honour.
    pub fn parse(body: Bytes, limits: &Limits) -> Result<Self, RequestError> {
        match parse(&body, limits) {
            Ok((facts, places)) => Ok(Self { body, facts, places }),
            Err(refusal) => Err(refusal.locate(&body)),
        }
    }

    #[must_use]
    pub const fn facts(&self) -> &RequestFacts {
        &self.facts
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
}

/// Never the body: it holds prompts, and `Debug` ends in logs.
impl fmt::Debug for ChatRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatRequest").field("model", &self.facts.model).field("bytes", &self.body.len()).finish()
    }
}
