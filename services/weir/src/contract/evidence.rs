//! What was recorded of one clause: the client's bytes with their times, and the provider's calls.

use super::pair::Pair;
use super::reading::Reading;

/// One request and everything that came of it.
#[derive(Debug, Clone)]
pub(super) struct Transcript {
    /// Absent where no answer came.
    pub status: Option<u16>,
    pub headers: Vec<(String, String)>,
    pub pieces: Vec<Piece>,
    pub end: End,
    /// When it ended, milliseconds after the request was sent.
    pub ended_ms: u64,
}

/// Bytes that came together.
#[derive(Debug, Clone)]
pub(super) struct Piece {
    /// Milliseconds after the request was sent.
    pub at_ms: u64,
    pub bytes: Vec<u8>,
}

/// How an answer ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum End {
    /// As its framing promised.
    Whole,
    /// The connection broke, or closed too early.
    Broken(String),
    /// The client's patience was over.
    TimedOut,
    /// The client left, as the clause says.
    Left,
    /// There was no connection, or no answer on it.
    NoAnswer(String),
}

impl Transcript {
    pub fn body(&self) -> Vec<u8> {
        self.pieces.iter().flat_map(|piece| &piece.bytes).copied().collect()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    pub fn is_event_stream(&self) -> bool {
        self.header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream"))
    }
}

/// Which of a clause's two targets the provider was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    First,
    /// The one to fall back to.
    Second,
}

/// A call that reached the provider.
#[derive(Debug, Clone)]
pub(super) struct Call {
    pub target: Target,
    /// The start of its body.
    pub body: String,
    /// How it ended: `complete`, `cancelled` or `broken`; `running` where it had not.
    pub state: String,
    /// How long after the client's end it was still running, milliseconds; as far as anybody waited.
    pub outlived_ms: u64,
}

/// One request of a clause.
#[derive(Debug, Clone)]
pub(super) struct Step {
    pub transcript: Transcript,
    pub reading: Reading,
    pub calls: Vec<Call>,
}

impl Step {
    pub fn calls_of(&self, target: Target) -> usize {
        self.calls.iter().filter(|call| call.target == target).count()
    }
}

/// Everything about one clause at one pair.
#[derive(Debug, Clone)]
pub(super) struct Evidence {
    pub pair: Pair,
    pub steps: Vec<Step>,
}

impl Evidence {
    /// What the client got, in a line.
    pub fn summary(&self) -> String {
        self.steps.iter().map(Step::summary).collect::<Vec<_>>().join("; then ")
    }
}

impl Step {
    fn summary(&self) -> String {
        let (reading, transcript) = (&self.reading, &self.transcript);
        let Some(status) = transcript.status else {
            return match &transcript.end {
                End::TimedOut => format!("no answer in {} ms", transcript.ended_ms),
                End::NoAnswer(why) | End::Broken(why) => format!("no answer: {why}"),
                End::Whole | End::Left => "no answer".to_owned(),
            };
        };
        let mut parts = vec![status.to_string()];
        if reading.pieces > 0 {
            parts.push(format!("{} pieces", reading.pieces));
        } else if !reading.text.is_empty() {
            parts.push(format!("{} characters", reading.text.chars().count()));
        }
        if !reading.tools.is_empty() {
            parts.push(format!("{} tool calls", reading.tools.len()));
        }
        parts.extend(reading.errors.iter().map(|error| format!("error {}", name_of(error))));
        if reading.terminals > 0 || (!reading.is_stream && !reading.finishes.is_empty()) {
            parts.push(format!("complete ({})", reading.finishes.join(", ")));
        }
        match &transcript.end {
            End::Whole if reading.errors.is_empty() && reading.finishes.is_empty() => parts.push("then its end".into()),
            End::Whole => {}
            End::Broken(_) => parts.push("broken connection".to_owned()),
            End::TimedOut => parts.push(format!("nothing more in {} ms", transcript.ended_ms)),
            End::Left => parts.push("left".to_owned()),
            End::NoAnswer(why) => parts.push(why.clone()),
        }
        parts.join(", ")
    }
}

/// The most telling word of an error.
fn name_of(error: &serde_json::Value) -> String {
    let word = ["reason", "code", "type", "message"].iter().find_map(|field| error.get(field)?.as_str());
    word.unwrap_or("without a name").to_owned()
}
