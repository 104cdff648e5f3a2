//! One provider's stream as a state machine: what was seen, and whether the answer is whole.
//!
//! The events are judged one by one in the order of their bytes, never by how reads fell: content before an error in
//! the same read is content (O10). An answer is whole when every choice that appeared, and as many as were asked for,
//! has a finish reason (O07, O08, O34); neither a clean close nor `[DONE]` makes it so, and a missing `[DONE]` does not
//! unmake it. Usage is cumulative wherever a provider repeats it: the last one counts, nothing is summed.

use bytes::Bytes;

use super::answer::{AnswerFacts, Finish, InBandError};
use super::request::MAX_CHOICES;
use super::usage::read_usage;
use crate::json::JsonError;
use crate::sse::{Event, EventKind};
use crate::usage::Extracted;

/// How far a stream has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamState {
    /// No content yet: failing over is legal.
    Preamble,
    /// Content came: the answer is committed.
    Content,
    /// Every choice is finished; usage may still come.
    Finished,
}

/// What one event was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamStep {
    /// A comment or an event without data: proof of life only.
    Quiet,
    Chunk(AnswerFacts),
    /// The provider gave up inside its 200.
    Error(InBandError),
    /// `[DONE]`.
    Done,
    /// Data that is not an answer object: a protocol error.
    Garbage(JsonError),
}

/// Reads one provider's stream. Make a new one for each attempt.
#[derive(Debug)]
pub struct StreamReader {
    expected_choices: u32,
    /// One bit per choice.
    seen: u128,
    finished: u128,
    has_content: bool,
    is_done: bool,
    last_finish: Option<Finish>,
    usage: Option<Bytes>,
    /// Whether the usage came with or after the last finish reason.
    usage_is_final: bool,
    /// Quoted JSON strings; copies, because a slice would keep a read buffer alive as long as the stream.
    response_id: Option<Bytes>,
    served_tier: Option<Bytes>,
    served_model: Option<Bytes>,
}

impl StreamReader {
    /// `expected_choices` is the request's `n`.
    #[must_use]
    pub const fn new(expected_choices: u32) -> Self {
        Self {
            expected_choices,
            seen: 0,
            finished: 0,
            has_content: false,
            is_done: false,
            last_finish: None,
            usage: None,
            usage_is_final: false,
            response_id: None,
            served_tier: None,
            served_model: None,
        }
    }

    /// Takes the next event.
    pub fn feed(&mut self, event: &Event) -> StreamStep {
        match event.kind {
            EventKind::Comment | EventKind::Empty => return StreamStep::Quiet,
            EventKind::Data => {}
        }
        let data = &event.data;
        if data.trim_ascii() == b"[DONE]" {
            self.is_done = true;
            return StreamStep::Done;
        }
        let facts = match AnswerFacts::scan(data) {
            Ok(facts) => facts,
            Err(error) if event.name.as_ref() == b"error" => {
                let message = format!("the provider sent an error event that is not JSON ({error})");
                return StreamStep::Error(InBandError { message, ..InBandError::default() });
            }
            Err(error) => return StreamStep::Garbage(error),
        };
        self.remember(&facts, data);
        if let Some(error) = error_in(&facts, event) {
            return StreamStep::Error(error);
        }
        self.has_content |= facts.content;
        for choice in facts.choices.iter() {
            let index = choice.index.unwrap_or(0);
            if index < MAX_CHOICES {
                self.seen |= 1 << index;
                self.finished |= u128::from(choice.finish.is_some()) << index;
            }
            self.last_finish = choice.finish.or(self.last_finish);
        }
        if facts.usage_anywhere().is_some() {
            self.usage_is_final = self.is_complete();
        }
        StreamStep::Chunk(facts)
    }

    fn remember(&mut self, facts: &AnswerFacts, data: &Bytes) {
        let copy = |span: crate::json::Span| Bytes::copy_from_slice(span.of(data));
        if let Some(span) = facts.usage_anywhere() {
            self.usage = Some(data.slice(span.start..span.end));
        }
        if self.response_id.is_none() {
            self.response_id = facts.id.filter(|span| span.len() > 2).map(copy);
        }
        if self.served_model.is_none() {
            self.served_model = facts.model.filter(|span| span.len() > 2).map(copy);
        }
        if let Some(span) = facts.service_tier {
            // Some servers repeat it in every chunk.
            if self.served_tier.as_deref() != Some(span.of(data)) {
                self.served_tier = Some(copy(span));
            }
        }
    }

    #[must_use]
    pub const fn state(&self) -> StreamState {
        match (self.is_complete(), self.has_content) {
            (true, _) => StreamState::Finished,
            (false, true) => StreamState::Content,
            (false, false) => StreamState::Preamble,
        }
    }

    /// Whether every choice has finished.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.seen != 0 && self.seen == self.finished && self.seen.count_ones() >= self.expected_choices
    }

    /// Whether nothing more can come that matters: complete, and either `[DONE]` came or a usage that is final. Usage
    /// that some servers repeat in every chunk is not final before the end.
    #[must_use]
    pub const fn is_settled(&self) -> bool {
        self.is_complete() && (self.is_done || self.usage_is_final)
    }

    #[must_use]
    pub const fn has_content(&self) -> bool {
        self.has_content
    }

    /// Whether the provider sent `[DONE]`.
    #[must_use]
    pub const fn saw_done(&self) -> bool {
        self.is_done
    }

    /// Whether the usage came with or after the last finish reason, so that it is a bill.
    #[must_use]
    pub const fn usage_is_final(&self) -> bool {
        self.usage_is_final
    }

    /// The finish reason seen last, for logs and metrics.
    #[must_use]
    pub const fn last_finish(&self) -> Option<Finish> {
        self.last_finish
    }

    /// The last usage that the provider reported. Before the stream is complete it is a bound, not a bill (I7).
    #[must_use]
    pub fn usage(&self) -> Option<Extracted> {
        self.usage.as_deref().map(read_usage)
    }

    /// The provider's id for the answer, by which its reports name it.
    #[must_use]
    pub fn response_id(&self) -> Option<String> {
        self.response_id.as_deref().and_then(unquoted)
    }

    /// The service tier that the provider says it served (O20).
    #[must_use]
    pub fn served_tier(&self) -> Option<String> {
        self.served_tier.as_deref().and_then(unquoted)
    }

    /// The model's name as the provider reports it; for the ledger, never for the client (O33).
    #[must_use]
    pub fn served_model(&self) -> Option<String> {
        self.served_model.as_deref().and_then(unquoted)
    }
}

/// An error by its member, by its event's name, or by a finish reason that says so. It outranks content in the same
/// object: such an object is never relayed.
fn error_in(facts: &AnswerFacts, event: &Event) -> Option<InBandError> {
    if let Some(span) = facts.error {
        return Some(InBandError::read(span.of(&event.data)));
    }
    if event.name.as_ref() == b"error" {
        return Some(InBandError::read(&event.data));
    }
    facts.choices.iter().any(|choice| choice.finish == Some(Finish::Error)).then(|| InBandError {
        message: String::from("the provider ended the answer with an error"),
        code: Some(String::from("finish_reason_error")),
        ..InBandError::default()
    })
}

pub(crate) fn unquoted(string: &[u8]) -> Option<String> {
    crate::json::Cursor::new(string).string().ok().map(|text| text.decode().into_owned())
}
