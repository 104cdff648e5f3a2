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
use weir_domain::registry::{Capabilities, Capability};

use super::parse::parse;
use crate::bound::InputSize;
use crate::json::{Span, Value};
use crate::request_error::RequestError;

/// Bounds on one request; the size of the body is the listener's to bound.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Messages in one request; each costs a span or two of memory at most.
    pub max_messages: usize,
    /// Tools (and functions) in one request; the names are kept.
    pub max_tools: usize,
    /// Bytes of a model's, tool's, tier's or end user's name.
    pub max_name_bytes: usize,
    /// Members of the top-level object; the API has about 40.
    pub max_members: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_messages: 100_000, max_tools: 1_024, max_name_bytes: 512, max_members: 512 }
    }
}

/// The largest output cap that is a number and not a mistake: 2³²−1 tokens.
pub const MAX_CAP_TOKENS: u64 = u32::MAX as u64;
/// The most choices in one request (the API's own bound).
pub const MAX_CHOICES: u32 = 128;

/// Which name a target knows for the output cap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CapField {
    MaxTokens,
    MaxCompletionTokens,
}

impl CapField {
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::MaxTokens => "max_tokens",
            Self::MaxCompletionTokens => "max_completion_tokens",
        }
    }
}

/// What the client said in `stream_options.include_usage`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IncludeUsage {
    #[default]
    Absent,
    Null,
    False,
    True,
}

/// The kind of `response_format`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ResponseFormat {
    #[default]
    Text,
    JsonObject,
    JsonSchema,
    /// A kind of a vendor's own (grammar, regex).
    Other,
}

/// A tool that the model may call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tool {
    /// `function`, `custom`, or the name of a tool that the provider itself runs (and may bill).
    pub kind: String,
    /// The function's name; for a provider's own tool, its kind again.
    pub name: String,
}

/// What Weir needs to know of a request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ChatFacts {
    /// The model as the client wrote it: an alias.
    pub model: String,
    pub stream: bool,
    pub include_usage: IncludeUsage,
    /// The output cap in force, per choice, in tokens; none when the client gave none.
    pub cap_tokens: Option<u64>,
    /// Choices; at least 1.
    pub choices: u32,
    /// Under the name that prices and answers use; the bytes keep the client's word.
    pub service_tier: Option<String>,
    pub tools: Vec<Tool>,
    pub has_tool_choice: bool,
    pub response_format: ResponseFormat,
    /// `safety_identifier`, else `user`: for an HMAC label, never for a log.
    pub end_user: Option<String>,
    /// Whether the client asks the provider to keep the answer.
    pub store: bool,
    /// Bytes of pictures inside the request, which are not text.
    pub data_url_bytes: u64,
    pub size: InputSize,
    /// Whether the client sends predicted output.
    pub has_prediction: bool,
    /// What the model must be able to do.
    pub needs: Capabilities,
}

impl ChatFacts {
    pub(super) fn need(&mut self, capability: Capability) {
        self.needs = self.needs.with(capability);
    }

    /// Whether the client is to see the usage of a stream.
    #[must_use]
    pub fn wants_stream_usage(&self) -> bool {
        self.include_usage == IncludeUsage::True
    }
}

/// A request: its bytes, its facts, and where the fields that Weir owns stand.
#[derive(Clone)]
pub struct ChatRequest {
    body: Bytes,
    facts: ChatFacts,
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
    pub const fn facts(&self) -> &ChatFacts {
        &self.facts
    }

    /// The body as the client sent it.
    #[must_use]
    pub const fn body(&self) -> &Bytes {
        &self.body
    }
}

/// Never the body: it holds prompts, and `Debug` ends in logs.
impl fmt::Debug for ChatRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatRequest").field("model", &self.facts.model).field("bytes", &self.body.len()).finish()
    }
}
