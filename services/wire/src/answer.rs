//! A provider's plain answer on its way to a client, whatever the two dialects are.

use bytes::Bytes;

use weir_domain::usage::Usage;

use crate::anthropic::messages::{MessageAnswer, TokenCount};
use crate::dialect::Dialect;
use crate::json::JsonError;
use crate::openai::chat::{Finish, InBandError, PlainAnswer};
use crate::openai::embeddings;
use crate::openai::responses::ResponseAnswer;
use crate::translate::Untranslatable;
use crate::translate::answers::{chat_to_message, message_to_chat};
use crate::translator::ClientSide;
use crate::usage::Extracted;

/// A whole answer, by the dialect in which it came.
#[derive(Debug, Clone)]
pub enum ProviderAnswer {
    Chat(PlainAnswer),
    Messages(MessageAnswer),
    Responses(ResponseAnswer),
    Embeddings(PlainAnswer),
    /// Of [`Purpose::CountTokens`](crate::anthropic::messages::Purpose): nothing in it is ours, so it stays as it is.
    Count(Bytes),
}

impl ProviderAnswer {
    /// Reads a body that came with a 2xx status from a provider that speaks `dialect`.
    ///
    /// # Errors
    /// The body is not one JSON object: the provider broke its protocol.
    pub fn parse(dialect: Dialect, body: Bytes) -> Result<Self, JsonError> {
        match dialect {
            Dialect::OpenAiChat => PlainAnswer::parse(body).map(Self::Chat),
            Dialect::OpenAiResponses => ResponseAnswer::parse(body).map(Self::Responses),
            Dialect::OpenAiEmbeddings => PlainAnswer::parse(body).map(Self::Embeddings),
            Dialect::AnthropicMessages => MessageAnswer::parse(body).map(Self::Messages),
        }
    }

    /// Reads the answer to a count of tokens.
    ///
    /// # Errors
    /// The body is not such a count.
    pub fn parse_count(body: Bytes) -> Result<Self, JsonError> {
        TokenCount::parse(&body).map(|_| Self::Count(body))
    }

    /// An error object in place of an answer, though the status said 200.
    #[must_use]
    pub fn error(&self) -> Option<InBandError> {
        match self {
            Self::Chat(answer) | Self::Embeddings(answer) => answer.error(),
            Self::Messages(answer) => answer.error(),
            Self::Responses(answer) => answer.error(),
            Self::Count(_) => None,
        }
    }

    /// Whether this answers anything: an object without choices, content, output or data does not.
    #[must_use]
    pub fn is_answer(&self) -> bool {
        match self {
            Self::Chat(answer) => !answer.facts().choices.is_empty(),
            Self::Messages(answer) => answer.is_message(),
            Self::Responses(answer) => answer.is_response(),
            Self::Embeddings(answer) => embeddings::is_embeddings(answer),
            Self::Count(_) => true,
        }
    }

    #[must_use]
    pub fn usage(&self) -> Option<Extracted> {
        match self {
            Self::Chat(answer) => answer.usage(),
            Self::Messages(answer) => answer.usage(),
            Self::Responses(answer) => answer.usage(),
            Self::Embeddings(answer) => answer.facts().usage.map(|span| embeddings::read_usage(span.of(answer.body()))),
            // No model ran, and nothing is billed.
            Self::Count(_) => Some(Extracted { usage: Some(Usage::default()), flags: Vec::new() }),
        }
    }

    /// Why it ended, for logs and metrics.
    #[must_use]
    pub fn finish(&self) -> Option<Finish> {
        match self {
            Self::Chat(answer) => answer.finish(),
            Self::Messages(answer) => answer.stop_reason().map(crate::anthropic::messages::StopReason::as_finish),
            Self::Responses(_) | Self::Embeddings(_) | Self::Count(_) => None,
        }
    }

    #[must_use]
    pub fn response_id(&self) -> Option<String> {
        match self {
            Self::Chat(answer) | Self::Embeddings(answer) => answer.response_id(),
            Self::Messages(answer) => answer.response_id(),
            Self::Responses(answer) => answer.response_id(),
            Self::Count(_) => None,
        }
    }

    /// The service tier that the provider says it served (O20).
    #[must_use]
    pub fn served_tier(&self) -> Option<String> {
        match self {
            Self::Chat(answer) | Self::Embeddings(answer) => answer.served_tier(),
            Self::Messages(answer) => answer.served_tier(),
            Self::Responses(answer) => answer.served_tier(),
            Self::Count(_) => None,
        }
    }

    /// The model's name as the provider reports it; for the ledger, never for the client (O33).
    #[must_use]
    pub fn served_model(&self) -> Option<String> {
        match self {
            Self::Chat(answer) | Self::Embeddings(answer) => answer.served_model(),
            Self::Messages(answer) => answer.served_model(),
            Self::Responses(answer) => answer.served_model(),
            Self::Count(_) => None,
        }
    }

    /// The client's form: the alias in place of the model, and everything else byte for byte in the same dialect or
    /// translated into another.
    ///
    /// # Errors
    /// The answer has content that the client's dialect cannot say; the error names it. What was used is known all the
    /// same.
    pub fn for_client(&self, client: &ClientSide<'_>) -> Result<Bytes, Untranslatable> {
        let alias = client.alias;
        match (self, client.dialect) {
            (Self::Count(body), Dialect::AnthropicMessages) => Ok(body.clone()),
            (Self::Chat(answer), Dialect::OpenAiChat) => Ok(answer.for_client(alias)),
            (Self::Embeddings(answer), Dialect::OpenAiEmbeddings) => Ok(answer.for_client(alias)),
            (Self::Messages(answer), Dialect::AnthropicMessages) => Ok(answer.for_client(alias)),
            (Self::Responses(answer), Dialect::OpenAiResponses) => {
                Ok(answer.for_client(alias, client.ids.map(|ids| &**ids)))
            }
            (Self::Chat(answer), Dialect::AnthropicMessages) => chat_to_message(answer, alias, client.fallback_id),
            (Self::Messages(answer), Dialect::OpenAiChat) => {
                message_to_chat(answer, alias, client.fallback_id, client.created_s)
            }
            (Self::Chat(_), Dialect::OpenAiResponses | Dialect::OpenAiEmbeddings)
            | (Self::Messages(_), Dialect::OpenAiResponses | Dialect::OpenAiEmbeddings)
            | (Self::Responses(_), Dialect::OpenAiChat | Dialect::OpenAiEmbeddings | Dialect::AnthropicMessages)
            | (Self::Count(_), Dialect::OpenAiChat | Dialect::OpenAiResponses | Dialect::OpenAiEmbeddings)
            | (Self::Embeddings(_), Dialect::OpenAiChat | Dialect::OpenAiResponses | Dialect::AnthropicMessages) => {
                Err(Untranslatable::pair(client.dialect, self.dialect()))
            }
        }
    }

    const fn dialect(&self) -> Dialect {
        match self {
            Self::Chat(_) => Dialect::OpenAiChat,
            Self::Messages(_) | Self::Count(_) => Dialect::AnthropicMessages,
            Self::Responses(_) => Dialect::OpenAiResponses,
            Self::Embeddings(_) => Dialect::OpenAiEmbeddings,
        }
    }
}
