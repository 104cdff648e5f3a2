//! How one provider API says things. The rest of the stub knows only parts of an answer; a dialect turns each into bytes.
//!
//! To add one: implement [`Dialect`] in a file of its own and name its paths in [`for_path`].

use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;

use crate::script::{Fault, Prepared};

mod openai_chat;

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

/// What the provider counts for one request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Figures {
    pub(crate) prompt: i64,
    pub(crate) completion: i64,
    pub(crate) cached: i64,
    pub(crate) cache_write: i64,
    pub(crate) reasoning: i64,
}

/// A piece of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Role { choice: usize },
    Content { choice: usize, chunk: usize },
    Tool { choice: usize, tool: usize, fragment: usize },
    Finish { choice: usize },
    Usage,
    Done,
}

/// A refusal by the provider before any work: a status and the message of the error.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) status: http::StatusCode,
    pub(crate) message: String,
    pub(crate) field: Option<&'static str>,
}

/// One provider API.
pub(crate) trait Dialect: Send + Sync + std::fmt::Debug {
    /// Reads the body of a request; refuses what the real provider refuses.
    fn read(&self, body: &[u8]) -> Result<Asked, Refusal>;
    /// The text of all messages, first to last, for the marker in a prompt. Slow; asked only when the marker is there.
    fn prompt_texts(&self, body: &[u8]) -> Vec<String>;
    /// A whole answer.
    fn plain(&self, answer: &Answer) -> Bytes;
    /// Appends a part of a stream to `out`, lines ended by LF.
    fn part(&self, answer: &Answer, part: Part, out: &mut Vec<u8>);
    /// Appends an error inside a stream.
    fn error_event(&self, fault: &Fault, out: &mut Vec<u8>);
    /// The body that goes with an error status.
    fn error_body(&self, status: http::StatusCode, message: &str, field: Option<&str>) -> Bytes;
}

/// The dialect spoken at `path`, whatever comes before it.
pub(crate) fn for_path(path: &str) -> Option<&'static dyn Dialect> {
    path.ends_with("/chat/completions").then_some(&openai_chat::OpenAiChat as &dyn Dialect)
}

/// The envelope of what the stub itself refuses, outside any dialect.
pub(crate) fn plain_error(status: http::StatusCode, message: &str) -> Bytes {
    openai_chat::OpenAiChat.error_body(status, message, None)
}
