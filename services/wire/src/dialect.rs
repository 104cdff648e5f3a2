//! Which protocol a client or a provider speaks.
//!
//! One enum, matched exhaustively wherever the bytes differ, so that a new protocol is a compile error at every place
//! that must know about it instead of a runtime surprise. An entry is an endpoint rather than a vendor, because that is
//! what decides the bytes: a vendor's account serves several.

use std::fmt;

use weir_domain::registry::ProviderDialect;

/// A protocol, at ingress or egress.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// `POST /v1/chat/completions` and what other vendors serve under that path.
    OpenAiChat,
    /// `POST /v1/responses`; same dialect in and out only.
    OpenAiResponses,
    /// `POST /v1/embeddings`; same dialect in and out only.
    OpenAiEmbeddings,
    /// `POST /v1/messages`.
    AnthropicMessages,
}

/// Who designed a protocol: decides envelopes, headers and credentials, which all endpoints of one account share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Family {
    OpenAi,
    Anthropic,
}

impl Family {
    /// The dialect in which this family's models answer a conversation: what to name where no dialect fits.
    #[must_use]
    pub const fn conversation(self) -> Dialect {
        match self {
            Self::OpenAi => Dialect::OpenAiChat,
            Self::Anthropic => Dialect::AnthropicMessages,
        }
    }
}

impl From<ProviderDialect> for Family {
    fn from(dialect: ProviderDialect) -> Self {
        match dialect {
            ProviderDialect::Openai => Self::OpenAi,
            ProviderDialect::Anthropic => Self::Anthropic,
        }
    }
}

impl Dialect {
    /// The stable name, as in catalogs, metrics and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::OpenAiChat => "openai_chat",
            Self::OpenAiResponses => "openai_responses",
            Self::OpenAiEmbeddings => "openai_embeddings",
            Self::AnthropicMessages => "anthropic_messages",
        }
    }

    /// Path below a provider's base URL (which ends in `/v1` or its equivalent).
    #[must_use]
    pub const fn path(self) -> &'static str {
        match self {
            Self::OpenAiChat => "/chat/completions",
            Self::OpenAiResponses => "/responses",
            Self::OpenAiEmbeddings => "/embeddings",
            Self::AnthropicMessages => "/messages",
        }
    }

    #[must_use]
    pub const fn family(self) -> Family {
        match self {
            Self::OpenAiChat | Self::OpenAiResponses | Self::OpenAiEmbeddings => Family::OpenAi,
            Self::AnthropicMessages => Family::Anthropic,
        }
    }

    /// The dialect to speak to a provider of `family` for a client of this one; `None` where nothing carries the one
    /// over to the other, so that the deployment is not eligible.
    #[must_use]
    pub const fn towards(self, family: Family) -> Option<Self> {
        match (self, family) {
            (Self::OpenAiChat | Self::AnthropicMessages, Family::OpenAi) => Some(Self::OpenAiChat),
            (Self::OpenAiChat | Self::AnthropicMessages, Family::Anthropic) => Some(Self::AnthropicMessages),
            (Self::OpenAiResponses | Self::OpenAiEmbeddings, Family::OpenAi) => Some(self),
            (Self::OpenAiResponses | Self::OpenAiEmbeddings, Family::Anthropic) => None,
        }
    }
}

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
