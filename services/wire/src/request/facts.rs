//! What Weir needs to know of a request, whatever its dialect: what sizes the hold, what policy and routing ask.

use weir_domain::registry::{Capabilities, Capability};

use crate::bound::InputSize;

/// Bounds on one request; the size of the body is the listener's to bound.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Messages in one request; each costs a span or two of memory at most.
    pub max_messages: usize,
    /// Tools (and functions) in one request; the names are kept.
    pub max_tools: usize,
    /// Bytes of a model's, tool's, tier's or end user's name.
    pub max_name_bytes: usize,
    /// Members of the top-level object; the largest API has about 40.
    pub max_members: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_messages: 100_000, max_tools: 1_024, max_name_bytes: 512, max_members: 512 }
    }
}

/// The largest output cap that is a number and not a mistake: 2³²−1 tokens.
pub const MAX_CAP_TOKENS: u64 = u32::MAX as u64;

/// Which name a target of the chat dialect knows for the output cap.
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

/// The form that the answer must have.
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

/// State at a provider, by the member that names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Continued {
    /// `previous_response_id`, `conversation` or `container`.
    pub field: &'static str,
    pub id: String,
}

/// What Weir needs to know of a request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RequestFacts {
    /// The model as the client wrote it: an alias.
    pub model: String,
    pub stream: bool,
    pub include_usage: IncludeUsage,
    /// The output cap in force, per choice, in tokens; none when the client gave none. Embeddings have no output: 0.
    pub cap_tokens: Option<u64>,
    /// Choices; at least 1.
    pub choices: u32,
    /// Under the name that prices and answers use; the bytes keep the client's word.
    pub service_tier: Option<String>,
    pub tools: Vec<Tool>,
    pub has_tool_choice: bool,
    pub response_format: ResponseFormat,
    /// The end user's opaque name: for an HMAC label, never for a log.
    pub end_user: Option<String>,
    /// Whether the provider is asked to keep the answer.
    pub store: bool,
    /// The stored answer or conversation that this request goes on from: only the deployment that has it can serve it.
    pub continues: Option<Continued>,
    /// Bytes of pictures inside the request, which are not text.
    pub data_url_bytes: u64,
    pub size: InputSize,
    /// Whether the client sends predicted output.
    pub has_prediction: bool,
    /// What the model must be able to do.
    pub needs: Capabilities,
}

impl RequestFacts {
    pub(crate) fn need(&mut self, capability: Capability) {
        self.needs = self.needs.with(capability);
    }

    /// Whether the client is to see the usage of a stream.
    #[must_use]
    pub fn wants_stream_usage(&self) -> bool {
        self.include_usage == IncludeUsage::True
    }
}
