//! Which API the client speaks, and which one its provider.

use std::fmt;
use std::str::FromStr;

/// What the client speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ClientApi {
    /// `POST /v1/chat/completions`.
    Chat,
    /// `POST /v1/messages`.
    Messages,
    /// `POST /v1/responses`.
    Responses,
}

/// What the provider speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProviderApi {
    OpenAi,
    Anthropic,
}

/// Both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pair {
    pub client: ClientApi,
    pub provider: ProviderApi,
}

impl Pair {
    /// Those that a gateway of two dialects has; responses are of OpenAI alone.
    pub const ALL: [Self; 5] = [
        Self { client: ClientApi::Chat, provider: ProviderApi::OpenAi },
        Self { client: ClientApi::Messages, provider: ProviderApi::Anthropic },
        Self { client: ClientApi::Chat, provider: ProviderApi::Anthropic },
        Self { client: ClientApi::Messages, provider: ProviderApi::OpenAi },
        Self { client: ClientApi::Responses, provider: ProviderApi::OpenAi },
    ];
}

impl ClientApi {
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Messages => "messages",
            Self::Responses => "responses",
        }
    }

    /// Below the gateway's URL.
    pub(super) const fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Messages => "/v1/messages",
            Self::Responses => "/v1/responses",
        }
    }
}

impl ProviderApi {
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::OpenAi => "openai",
            Self::Anthropic => "anthropic",
        }
    }
}

impl fmt::Display for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.client.name(), self.provider.name())
    }
}

impl FromStr for Pair {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|pair| pair.to_string() == text).ok_or_else(|| {
            let known: Vec<_> = Self::ALL.iter().map(Self::to_string).collect();
            format!("`{text}` is no pair of APIs; there are {}", known.join(", "))
        })
    }
}
