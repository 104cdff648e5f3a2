//! How one provider API says things. The rest of the stub knows only parts of an answer; a dialect turns each into bytes.
//!
//! To add one: implement [`Dialect`] in a file of its own and name its paths in [`for_path`].

use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;
use serde_json::Value;

use crate::outline::{Item, Outline, Part};
use crate::script::{Fault, Prepared};

mod anthropic;
mod embeddings;
mod openai;
mod openai_chat;
mod responses;
mod text;

/// What a request asks for, in terms that all dialects share.
#[derive(Debug, Clone, Default)]
pub(crate) struct Asked {
    pub(crate) model: String,
    pub(crate) stream: bool,
    /// Whether a stream reports usage.
    pub(crate) include_usage: bool,
    pub(crate) choices: Option<usize>,
    /// The most completion tokens of one choice.
    pub(crate) cap: Option<u64>,
    pub(crate) service_tier: Option<String>,
    /// Script fields that came in the body.
    pub(crate) metadata: Option<Value>,
    pub(crate) special: Special,
}

/// What only one dialect asks.
#[derive(Debug, Clone, Default)]
pub(crate) enum Special {
    #[default]
    Nothing,
    Embeddings {
        inputs: usize,
        dimensions: usize,
        base64: bool,
    },
    Responses {
        store: bool,
        previous: Option<String>,
    },
}

/// What a provider does for its money.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    Generates,
    /// Reads, and generates nothing.
    Embeds,
    /// Free of charge.
    Counts,
}

/// One answer: what was asked, what the script says, and the figures.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) asked: Asked,
    pub(crate) prepared: Arc<Prepared>,
    pub(crate) id: String,
    /// Seconds since the Unix epoch.
    pub(crate) created: i64,
    pub(crate) choices: usize,
    /// Content chunks of each choice: the script's, or the request's cap.
    pub(crate) chunks: usize,
    /// Whether the cap cut the script's chunks short.
    pub(crate) capped: bool,
    pub(crate) figures: Figures,
}

impl Answer {
    /// What it consists of, in order, where answers are lists of items.
    fn items(&self) -> Vec<Item> {
        let thinking = (!self.prepared.thoughts.is_empty()).then_some(Item::Thinking);
        let text = (self.chunks > 0).then_some(Item::Text);
        thinking.into_iter().chain(text).chain((0..self.prepared.tools.len()).map(Item::Tool)).collect()
    }

    fn index_of(&self, item: Item) -> usize {
        let thinking = usize::from(!self.prepared.thoughts.is_empty());
        match item {
            Item::Thinking => 0,
            Item::Text => thinking,
            Item::Tool(tool) => thinking + usize::from(self.chunks > 0) + tool,
        }
    }
}

/// What the provider counts for one request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Figures {
    pub(crate) prompt: i64,
    pub(crate) completion: i64,
    pub(crate) cached: i64,
    pub(crate) cache_write: i64,
    pub(crate) cache_write_long: i64,
    pub(crate) reasoning: i64,
}

impl Figures {
    /// Neither read from the cache nor written to it.
    pub(crate) const fn uncached(self) -> i64 {
        self.prompt.saturating_sub(self.cached).saturating_sub(self.cache_write)
    }
}

/// A refusal by the provider before any work: a status and the message of the error.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) status: http::StatusCode,
    pub(crate) message: String,
    pub(crate) field: Option<&'static str>,
}

impl Refusal {
    pub(crate) fn bad(field: Option<&'static str>, message: impl Into<String>) -> Self {
        Self { status: http::StatusCode::BAD_REQUEST, message: message.into(), field }
    }
}

/// One provider API.
pub(crate) trait Dialect: Send + Sync + std::fmt::Debug {
    /// Reads a request; refuses what the real provider refuses.
    fn read(&self, headers: &HeaderMap, body: &[u8]) -> Result<Asked, Refusal>;
    /// All texts of the prompt, first to last, for the marker in one. Slow; asked only when the marker is there.
    fn prompt_texts(&self, body: &[u8]) -> Vec<String>;
    fn work(&self) -> Work;
    /// Of one request.
    fn max_choices(&self) -> usize {
        1
    }
    /// The header that has the provider's id.
    fn id_header(&self) -> &'static str {
        "x-request-id"
    }
    /// A whole answer.
    fn plain(&self, answer: &Answer) -> Bytes;
    /// The events of a stream; none where the API does not stream.
    fn outline(&self, _: &Answer) -> Outline {
        Outline::default()
    }
    /// Appends an event of a stream to `out`, lines ended by LF.
    fn part(&self, _: &Answer, _: Part, _: &mut Vec<u8>) {}
    /// Appends a sign of life, where the API has one.
    fn ping(&self, _: &mut Vec<u8>) {}
    /// Appends an error inside a stream, as the event of this number.
    fn error_event(&self, _: &Fault, _sequence: usize, _: &mut Vec<u8>) {}
    /// The body that goes with an error status.
    fn error_body(&self, status: http::StatusCode, message: &str, field: Option<&str>) -> Bytes;
    /// What the provider keeps of the answer.
    fn stored(&self, _: &Answer) -> Option<Value> {
        None
    }
}

/// The dialect spoken at `path`, whatever comes before it.
pub(crate) fn for_path(path: &str) -> Option<&'static dyn Dialect> {
    let known: [(&str, &'static dyn Dialect); 5] = [
        ("/chat/completions", &openai_chat::OpenAiChat),
        ("/messages", &anthropic::Messages),
        ("/messages/count_tokens", &anthropic::CountTokens),
        ("/responses", &responses::Responses),
        ("/embeddings", &embeddings::Embeddings),
    ];
    known.into_iter().find_map(|(end, dialect)| path.ends_with(end).then_some(dialect))
}

/// The envelope of what the stub itself refuses, outside any dialect.
pub(crate) fn plain_error(status: http::StatusCode, message: &str) -> Bytes {
    openai::error_body(status, message, None)
}
