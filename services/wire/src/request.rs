//! A client's request in whatever dialect it came, and what a target is sent for it.
//!
//! The gateway sees this page only: [`ClientRequest`] is parsed once, its facts size the hold, and for each target
//! [`ClientRequest::for_target`] gives the body to send, by splicing where the dialect is the same and by translation
//! where it is not.

mod facts;
pub(crate) mod values;

use bytes::Bytes;

pub use facts::{CapField, Continued, IncludeUsage, Limits, MAX_CAP_TOKENS, RequestFacts, ResponseFormat, Tool};

use crate::anthropic::AnthropicVersion;
use crate::anthropic::messages::{MessagesEdits, MessagesRequest, Purpose};
use crate::dialect::Dialect;
use crate::openai::chat::{ChatRequest, DeveloperRole, MessageTexts, UpstreamEdits};
use crate::openai::embeddings::EmbeddingsRequest;
use crate::openai::responses::ResponsesRequest;
use crate::request_error::RequestError;
use crate::translate::{self, Untranslatable};

/// A request, by the dialect in which it came.
#[derive(Debug, Clone)]
pub enum ClientRequest {
    Chat(ChatRequest),
    Messages(MessagesRequest),
    Responses(ResponsesRequest),
    Embeddings(EmbeddingsRequest),
}

/// What a target is and needs.
#[derive(Debug, Clone, Copy)]
pub struct Target<'a> {
    /// What the provider is spoken to in: [`Dialect::towards`] of the client's.
    pub dialect: Dialect,
    /// The model's name at the provider.
    pub model: &'a str,
    /// The output cap in force, tokens. Anthropic demands one: give the model's own where nobody named another.
    pub cap: Option<u64>,
    /// Under which name a chat target knows the cap.
    pub cap_field: CapField,
    /// Whether a chat target accepts `stream_options`; if not, a stream's usage is unknown.
    pub supports_stream_options: bool,
    /// A pair for the provider's `metadata`, where the dialect has it and the client asked to store the answer.
    pub correlation: Option<(&'a str, &'a str)>,
    pub developer_role: DeveloperRole,
    /// The version that an Anthropic target is asked in when the client's dialect is another.
    pub version: AnthropicVersion,
}

/// What is sent to a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamRequest {
    /// The body in pieces, which share the memory of the client's where they can.
    pub parts: Vec<Bytes>,
    /// Members of the request that only advise about caching and have no counterpart at this target: to be shown to
    /// the client in a header, so that nothing is dropped in silence.
    pub left_out: Vec<String>,
}

impl UpstreamRequest {
    pub(crate) fn whole(body: Bytes, left_out: Vec<String>) -> Self {
        Self { parts: vec![body], left_out }
    }

    /// The body in one piece.
    #[must_use]
    pub fn body(&self) -> Bytes {
        match self.parts.as_slice() {
            [whole] => whole.clone(),
            parts => parts.concat().into(),
        }
    }
}

impl ClientRequest {
    /// Reads the facts of `body`. `version` is that of a request in the Anthropic dialect and else of no effect.
    ///
    /// # Errors
    /// A [`RequestError`] that names the field, the place and the fix.
    pub fn parse(
        dialect: Dialect,
        body: Bytes,
        limits: &Limits,
        version: AnthropicVersion,
    ) -> Result<Self, RequestError> {
        match dialect {
            Dialect::OpenAiChat => ChatRequest::parse(body, limits).map(Self::Chat),
            Dialect::OpenAiResponses => ResponsesRequest::parse(body, limits).map(Self::Responses),
            Dialect::OpenAiEmbeddings => EmbeddingsRequest::parse(body, limits).map(Self::Embeddings),
            Dialect::AnthropicMessages => {
                MessagesRequest::parse(body, limits, version, Purpose::Answer).map(Self::Messages)
            }
        }
    }

    /// Reads the facts of a request to count a prompt's tokens.
    ///
    /// # Errors
    /// As [`ClientRequest::parse`].
    pub fn parse_count(body: Bytes, limits: &Limits, version: AnthropicVersion) -> Result<Self, RequestError> {
        MessagesRequest::parse(body, limits, version, Purpose::CountTokens).map(Self::Messages)
    }

    /// Whether no model is to run.
    #[must_use]
    pub const fn counts_only(&self) -> bool {
        match self {
            Self::Messages(request) => matches!(request.purpose(), Purpose::CountTokens),
            Self::Chat(_) | Self::Responses(_) | Self::Embeddings(_) => false,
        }
    }

    /// Names the answer that this request goes on from as its provider does; of no effect where the dialect has none.
    pub fn go_on_from(&mut self, id: String) {
        match self {
            Self::Responses(request) => request.go_on_from(id),
            Self::Chat(_) | Self::Messages(_) | Self::Embeddings(_) => {}
        }
    }

    #[must_use]
    pub const fn dialect(&self) -> Dialect {
        match self {
            Self::Chat(_) => Dialect::OpenAiChat,
            Self::Messages(_) => Dialect::AnthropicMessages,
            Self::Responses(_) => Dialect::OpenAiResponses,
            Self::Embeddings(_) => Dialect::OpenAiEmbeddings,
        }
    }

    #[must_use]
    pub const fn facts(&self) -> &RequestFacts {
        match self {
            Self::Chat(request) => request.facts(),
            Self::Messages(request) => request.facts(),
            Self::Responses(request) => request.facts(),
            Self::Embeddings(request) => request.facts(),
        }
    }

    /// The body as the client sent it.
    #[must_use]
    pub const fn body(&self) -> &Bytes {
        match self {
            Self::Chat(request) => request.body(),
            Self::Messages(request) => request.body(),
            Self::Responses(request) => request.body(),
            Self::Embeddings(request) => request.body(),
        }
    }

    /// Gives the body's memory back when no target will be asked any more; the facts stay.
    pub fn forget_body(&mut self) {
        match self {
            Self::Chat(request) => request.forget_body(),
            Self::Messages(request) => request.forget_body(),
            Self::Responses(request) => request.forget_body(),
            Self::Embeddings(request) => request.forget_body(),
        }
    }

    /// The text for an exact count of tokens; none outside the chat dialect, whose bound by bytes then stands.
    #[must_use]
    pub fn message_texts(&self) -> MessageTexts<'_> {
        match self {
            Self::Chat(request) => request.message_texts(),
            Self::Messages(_) | Self::Responses(_) | Self::Embeddings(_) => MessageTexts::default(),
        }
    }

    /// The API version to send to an Anthropic target: the client's own in its dialect, else the target's.
    #[must_use]
    pub const fn version_for(&self, target: &Target<'_>) -> AnthropicVersion {
        match self {
            Self::Messages(request) => request.version(),
            Self::Chat(_) | Self::Responses(_) | Self::Embeddings(_) => target.version,
        }
    }

    /// The body for a target. Where this fails for one target it may do for another: the gateway skips the deployment,
    /// and answers 400 with the field when none is left.
    ///
    /// # Errors
    /// Something in the request cannot be carried honestly into the target's dialect; the error names it.
    pub fn for_target(&self, target: &Target<'_>) -> Result<UpstreamRequest, Untranslatable> {
        let spliced = |parts| Ok(UpstreamRequest { parts, left_out: Vec::new() });
        match (self, target.dialect) {
            (Self::Chat(request), Dialect::OpenAiChat) => spliced(request.rewrite_parts(&UpstreamEdits {
                model: target.model,
                cap: target.cap.map(|tokens| (target.cap_field, tokens)),
                supports_stream_options: target.supports_stream_options,
                correlation: target.correlation,
                developer_role: target.developer_role,
            })),
            (Self::Messages(request), Dialect::AnthropicMessages) => {
                spliced(request.rewrite_parts(&MessagesEdits { model: target.model, cap: target.cap }))
            }
            (Self::Responses(request), Dialect::OpenAiResponses) => {
                spliced(request.rewrite_parts(target.model, target.cap, target.correlation))
            }
            (Self::Embeddings(request), Dialect::OpenAiEmbeddings) => spliced(request.rewrite_parts(target.model)),
            (Self::Chat(request), Dialect::AnthropicMessages) => translate::chat_to_messages(request, target),
            (Self::Messages(_), Dialect::OpenAiChat) if self.counts_only() => {
                Err(Untranslatable::pair(self.dialect(), target.dialect))
            }
            (Self::Messages(request), Dialect::OpenAiChat) => translate::messages_to_chat(request, target),
            (Self::Chat(_) | Self::Messages(_), Dialect::OpenAiResponses | Dialect::OpenAiEmbeddings)
            | (Self::Responses(_), Dialect::OpenAiChat | Dialect::OpenAiEmbeddings | Dialect::AnthropicMessages)
            | (Self::Embeddings(_), Dialect::OpenAiChat | Dialect::OpenAiResponses | Dialect::AnthropicMessages) => {
                Err(Untranslatable::pair(self.dialect(), target.dialect))
            }
        }
    }
}
