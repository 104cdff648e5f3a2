//! Why an answer ended, in the other side's words (O29).
//!
//! What has a counterpart gets it. What has none is never an ordinary stop: an Anthropic client gets the raw word, and an
//! OpenAI client, whose libraries often know a closed set, gets `length` (the answer is not at its natural end) beside
//! `weir_stop_reason` with the raw word.

use crate::anthropic::messages::StopReason;
use crate::json::Writer;
use crate::openai::chat::answer::Finish;

/// The end of an Anthropic answer, its values as they stand there.
#[derive(Debug, Clone, Default)]
pub(super) struct Stop {
    /// The string, with quotes.
    pub(super) reason: Option<Vec<u8>>,
    pub(super) sequence: Option<Vec<u8>>,
    pub(super) details: Option<Vec<u8>>,
}

/// Bytes of a stop's values that are kept: words and a sentence.
const MOST_STOP_BYTES: usize = 16 * 1024;

impl Stop {
    /// Takes what `delta` (or a whole message) says about the end.
    pub(super) fn remember(&mut self, object: crate::json::Node<'_>) {
        let keep = |name: &str| {
            let node = object.get(name).filter(|node| !node.is_null() && node.raw.len() <= MOST_STOP_BYTES);
            node.map(|node| node.raw.to_vec())
        };
        self.reason = keep("stop_reason").or_else(|| self.reason.take());
        self.sequence = keep("stop_sequence").or_else(|| self.sequence.take());
        self.details = keep("stop_details").or_else(|| self.details.take());
    }

    fn known(&self) -> StopReason {
        let reason = self.reason.as_deref().unwrap_or_default();
        StopReason::of(reason.get(1..reason.len().saturating_sub(1)).unwrap_or_default())
    }

    /// Writes `finish_reason`, and the raw words where it says less.
    pub(super) fn write(&self, writer: &mut Writer<'_>) {
        let known = self.known();
        let (word, is_exact) = match known {
            StopReason::EndTurn => ("stop", true),
            StopReason::MaxTokens => ("length", true),
            StopReason::ToolUse => ("tool_calls", true),
            StopReason::StopSequence => ("stop", false),
            StopReason::Refusal => ("content_filter", false),
            StopReason::ContextWindowExceeded | StopReason::PauseTurn | StopReason::Other => ("length", false),
        };
        writer.member("finish_reason", word);
        if is_exact {
            return;
        }
        writer.raw_member("weir_stop_reason", self.reason.as_deref().unwrap_or(b"null"));
        if let Some(sequence) = &self.sequence {
            writer.raw_member("weir_stop_sequence", sequence);
        }
        if let Some(details) = &self.details {
            writer.raw_member("weir_stop_details", details);
        }
    }
}

/// What an Anthropic client is told of the end of a chat answer.
#[derive(Debug, Clone, Copy)]
pub(super) struct ChatEnd<'a> {
    pub(super) finish: Option<Finish>,
    /// The string as it stands, with quotes.
    pub(super) raw: Option<&'a [u8]>,
    pub(super) has_tools: bool,
    /// Whether the model refused in words of its own.
    pub(super) refused: bool,
}

impl ChatEnd<'_> {
    /// Writes `stop_reason` and `stop_sequence`. Some servers say `stop` after tool calls: what counts is what is there.
    pub(super) fn write(self, writer: &mut Writer<'_>) {
        let word = match self.finish {
            Some(Finish::Stop) if self.has_tools => "tool_use",
            Some(Finish::Stop) if self.refused => "refusal",
            Some(Finish::Stop) => "end_turn",
            Some(Finish::Length) => "max_tokens",
            Some(Finish::ToolCalls | Finish::FunctionCall) => "tool_use",
            Some(Finish::ContentFilter) => "refusal",
            Some(Finish::Other | Finish::Error) | None => "",
        };
        match (word, self.raw) {
            ("", Some(raw)) => writer.raw_member("stop_reason", raw),
            ("", None) => writer.raw_member("stop_reason", b"null"),
            (word, _) => writer.member("stop_reason", word),
        };
        writer.raw_member("stop_sequence", b"null");
    }
}
