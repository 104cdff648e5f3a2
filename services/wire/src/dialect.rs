//! Which protocol a client or a provider speaks.
//!
//! One enum, matched exhaustively wherever the bytes differ, so that a new protocol is a compile error at every place
//! that must know about it instead of a runtime surprise.

use std::fmt;

/// A protocol, at ingress or egress. Anthropic Messages, OpenAI Responses and embeddings join as siblings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// `POST /v1/chat/completions` and what other vendors serve under that path.
    OpenAiChat,
}

impl Dialect {
    /// The stable name, as in catalogs, metrics and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::OpenAiChat => "openai_chat",
        }
    }

    /// Path below a provider's base URL (which ends in `/v1` or its equivalent).
    #[must_use]
    pub const fn path(self) -> &'static str {
        match self {
            Self::OpenAiChat => "/chat/completions",
        }
    }
}

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
