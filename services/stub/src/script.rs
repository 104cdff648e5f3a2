//! What the provider is told to do with one request.
//!
//! One flat struct whose defaults are a well-behaved provider, so that a script names only what is out of the ordinary.
//! Durations are plain milliseconds: scripts are also written in HTTP headers and inside prompts, where short is good.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

mod overlay;
mod prepared;

pub(crate) use overlay::{HEADER_SCRIPT, MARKER, Overlay};
pub(crate) use prepared::Prepared;

/// Between two pieces that must arrive in two reads; see [`Script::raw`].
pub const BOUNDARY: char = '¦';

/// One answer. In TOML, JSON, or as `x-stub-<field>` headers with dashes for underscores.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Script {
    /// The content, cut evenly into `chunks`; numbered words where absent.
    pub text: Option<String>,
    /// How many content chunks a stream has, for each choice.
    pub chunks: usize,
    /// Bytes of each chunk of generated content; ignored where `text` is given.
    pub chunk_bytes: Option<usize>,
    /// Whether a stream opens with a chunk that carries only the role.
    pub role_chunk: bool,
    /// Whether a stream ends with `[DONE]`.
    pub done: bool,
    /// Choices; the request's `n` where absent.
    pub n: Option<usize>,
    /// `stop`, `tool_calls`, or `length` when the request's cap was reached; what is written here wins. An empty text
    /// leaves the finish out.
    pub finish_reason: Option<String>,
    pub tool_calls: Vec<ToolCall>,
    /// What the model thought before its answer, as far as the dialect shows it: a signed block of messages, a summary of
    /// responses, `reasoning_content` of chat, as many providers have it.
    pub thinking: Option<String>,
    /// How many chunks a stream cuts it into.
    pub thinking_chunks: usize,
    /// Echoed in the answer.
    pub service_tier: Option<String>,
    /// The provider's id of the answer; unique per request where absent.
    pub id: Option<String>,
    pub usage: UsageScript,
    /// What the provider charges; by default what it generated, and nothing for an error status.
    pub billing: Option<Billing>,

    /// Before the status line.
    pub before_headers_ms: u64,
    /// Between the status line (and the role chunk) and the first content.
    pub before_content_ms: u64,
    /// Between two content chunks.
    pub gap_ms: u64,
    /// After the last byte, before the answer ends.
    pub hold_open_ms: u64,

    /// Anything but 200 answers with `body`, or the dialect's error envelope.
    pub status: u16,
    /// Added to the answer, replacing the stub's own of the same name.
    pub headers: BTreeMap<String, String>,
    /// The whole body: a text as it is, anything else as JSON.
    pub body: Option<Value>,
    pub gzip: bool,

    pub line_end: LineEnd,
    /// SSE comments, each before the content chunk it names.
    pub comments: Vec<Comment>,
    /// The dialect's own sign of life, before each of these content chunks; messages alone have one.
    pub pings: Vec<usize>,
    /// The exact bytes of the body instead of any chunk; `¦` marks where one write ends.
    pub raw: Option<String>,
    /// Like `raw`, in base64, one text per write: for bytes that are not UTF-8.
    pub raw_base64: Vec<String>,
    /// One write of everything up to the next gap or fault.
    pub together: bool,
    /// Cuts whatever is sent into writes of this many bytes.
    pub write_bytes: Option<usize>,

    /// What happens instead of an answer.
    pub refuse: Option<Refuse>,
    /// What goes wrong on the way.
    pub fault: Option<Fault>,
    /// Before the request's body is read, and between its frames. Only from the default script or a header: which other
    /// script applies is known from the body.
    pub read_delay_ms: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolCall {
    pub name: String,
    /// The arguments, as the model would write them: a text, usually JSON.
    #[serde(default)]
    pub arguments: String,
    /// `call_stub_<index>` where absent.
    #[serde(default)]
    pub id: Option<String>,
    /// How many chunks a stream cuts the arguments into.
    #[serde(default = "two")]
    pub fragments: usize,
}

const fn two() -> usize {
    2
}

/// What the provider reports. Signed, so that a script can lie.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub struct UsageScript {
    /// A quarter of the request's bytes where absent.
    pub prompt: Option<i64>,
    /// One per chunk (of content at most the request's cap), plus `reasoning`, where absent.
    pub completion: Option<i64>,
    /// Of the prompt.
    pub cached: i64,
    /// Of the prompt.
    pub cache_write: i64,
    /// Of what was written to the cache, to be kept for the longer of the provider's two lives.
    pub cache_write_long: i64,
    /// Of the completion.
    pub reasoning: i64,
    pub report: ReportUsage,
    /// The `usage` object as it is, whatever the numbers say.
    pub verbatim: Option<Value>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReportUsage {
    /// Like the real one: in a stream only if the request asked for it.
    #[default]
    Auto,
    Always,
    Never,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Billing {
    /// The prompt, and what was generated until the answer ended or the client left: of a stream the share of its
    /// chunks that were written, of a plain answer all once its head is sent, and nothing before.
    Generated,
    /// Everything, though the client left or the answer is an error.
    Full,
    None,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LineEnd {
    #[default]
    Lf,
    Crlf,
    Cr,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Comment {
    #[serde(default)]
    pub before_chunk: usize,
    pub text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Refuse {
    /// The connection closes without an answer.
    Close,
    /// The connection is reset without an answer.
    Reset,
    /// No answer ever comes.
    Stall,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    pub kind: FaultKind,
    /// After this many content chunks; a plain answer counts as one, `raw` as its writes. More than there are strikes
    /// after the last byte: with `done = false` and no usage that is right after the finish reason.
    #[serde(default)]
    pub after_chunks: usize,
    /// After exactly this many bytes of the body instead (before any compression).
    #[serde(default)]
    pub after_bytes: Option<usize>,
    /// For `error`: the code and message in the envelope.
    #[serde(default)]
    pub code: Option<String>,
    #[serde(default)]
    pub message: Option<String>,
    /// For `garbage`: what is written.
    #[serde(default)]
    pub bytes: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// A TCP reset.
    Reset,
    /// The connection closes without the end of the body.
    Cut,
    /// The body ends in order, but early.
    Close,
    /// Nothing more comes until the client leaves.
    Stall,
    /// An error event inside the stream, then the end.
    Error,
    /// Bytes that are no event, then the end.
    Garbage,
}

impl Default for Script {
    fn default() -> Self {
        Self {
            text: None,
            chunks: 3,
            chunk_bytes: None,
            role_chunk: true,
            done: true,
            n: None,
            finish_reason: None,
            tool_calls: Vec::new(),
            thinking: None,
            thinking_chunks: 2,
            service_tier: None,
            id: None,
            usage: UsageScript::default(),
            billing: None,
            before_headers_ms: 0,
            before_content_ms: 0,
            gap_ms: 0,
            hold_open_ms: 0,
            status: 200,
            headers: BTreeMap::new(),
            body: None,
            gzip: false,
            line_end: LineEnd::Lf,
            comments: Vec::new(),
            pings: Vec::new(),
            raw: None,
            raw_base64: Vec::new(),
            together: false,
            write_bytes: None,
            refuse: None,
            fault: None,
            read_delay_ms: 0,
        }
    }
}

/// The default script and those by name. A request for model `x` gets the script `x` where there is one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub struct Scripts {
    pub default: Script,
    pub scripts: HashMap<String, Script>,
}

/// Why a script cannot be played. The message names the field.
#[derive(Debug, Error)]
pub enum ScriptError {
    #[error("scripts cannot be read from {file}")]
    Unreadable { file: String, source: std::io::Error },
    #[error("scripts in {file}: {message}")]
    NotScripts { file: String, message: String },
    #[error("not a stub script: {0}")]
    NotScript(String),
    #[error("`{field}` is {value}; at most {max} is played")]
    TooLarge { field: &'static str, value: usize, max: usize },
    #[error("`{field}` is wrong: {why}")]
    Wrong { field: &'static str, why: String },
}

impl Scripts {
    pub fn from_toml(text: &str) -> Result<Self, ScriptError> {
        toml::from_str(text)
            .map_err(|error| ScriptError::NotScripts { file: "TOML".to_owned(), message: error.to_string() })
    }

    pub fn from_file(path: &Path) -> Result<Self, ScriptError> {
        let file = path.display().to_string();
        let text =
            std::fs::read_to_string(path).map_err(|source| ScriptError::Unreadable { file: file.clone(), source })?;
        toml::from_str(&text).map_err(|error| ScriptError::NotScripts { file, message: error.to_string() })
    }
}
