//! One provider's stream as a state machine: what was seen, and whether the answer is whole.
//!
//! The terminal signal of this protocol is `message_stop`, and nothing else: a stop reason alone does not say that all
//! of the answer came, so a stream that closes before it is incomplete (O07), though its last usage counts.

use bytes::Bytes;

use super::event::{EventFacts, EventType, StopReason};
use super::usage::{read_usage, served_tier};
use crate::json::{JsonError, Span};
use crate::openai::chat::answer::InBandError;
use crate::openai::chat::stream::{StreamState, unquoted};
use crate::sse::{Event, EventKind};
use crate::usage::Extracted;

/// What one event was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MessageStep {
    /// A comment, an event without data, or a ping before the message: proof of life only.
    Quiet,
    Event(EventFacts),
    /// `message_stop`.
    Stop(EventFacts),
    /// The provider gave up inside its 200.
    Error(InBandError),
    /// Data that is not an event: a protocol error.
    Garbage(JsonError),
}

/// Reads one provider's stream. Make a new one for each attempt.
#[derive(Debug, Default)]
pub struct MessageReader {
    has_started: bool,
    has_content: bool,
    has_stopped: bool,
    stop_reason: Option<StopReason>,
    /// Usage objects.
    first_usage: Option<Bytes>,
    last_usage: Option<Bytes>,
    usage_is_final: bool,
    /// Quoted JSON strings.
    response_id: Option<Bytes>,
    served_model: Option<Bytes>,
}

impl MessageReader {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next event.
    pub fn feed(&mut self, event: &Event) -> MessageStep {
        match event.kind {
            EventKind::Comment | EventKind::Empty => return MessageStep::Quiet,
            EventKind::Data => {}
        }
        let is_error = event.name.as_ref() == b"error";
        let facts = match EventFacts::scan(&event.data, &event.name) {
            Ok(facts) => facts,
            Err(error) if is_error => {
                let message = format!("the provider sent an error event that is not JSON ({error})");
                return MessageStep::Error(InBandError { message, ..InBandError::default() });
            }
            Err(error) => return MessageStep::Garbage(error),
        };
        if is_error || facts.kind == EventType::Error || facts.error.is_some() {
            let span = facts.error.unwrap_or(Span::new(0, event.data.len()));
            return MessageStep::Error(InBandError::read(span.of(&event.data)));
        }
        self.remember(&facts, &event.data);
        match facts.kind {
            EventType::Ping if !self.has_content => MessageStep::Quiet,
            EventType::MessageStop => {
                self.has_stopped = true;
                MessageStep::Stop(facts)
            }
            EventType::MessageStart
            | EventType::BlockStart
            | EventType::BlockDelta
            | EventType::BlockStop
            | EventType::MessageDelta
            | EventType::Ping
            | EventType::Error
            | EventType::Other => MessageStep::Event(facts),
        }
    }

    fn remember(&mut self, facts: &EventFacts, data: &Bytes) {
        // Copied: a slice would keep the whole read buffer alive as long as the stream.
        let copy = |span: Span| Bytes::copy_from_slice(span.of(data));
        self.has_started |= facts.kind == EventType::MessageStart;
        self.has_content |= facts.content;
        self.stop_reason = facts.stop_reason.or(self.stop_reason);
        match (facts.kind, facts.usage) {
            (EventType::MessageStart, Some(span)) => self.first_usage = Some(copy(span)),
            (EventType::MessageDelta, Some(span)) => {
                self.last_usage = Some(copy(span));
                self.usage_is_final = self.stop_reason.is_some();
            }
            _ => {}
        }
        if self.response_id.is_none() {
            self.response_id = facts.id.filter(|span| span.len() > 2).map(copy);
        }
        if self.served_model.is_none() {
            self.served_model = facts.model.filter(|span| span.len() > 2).map(copy);
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

    /// Whether the message ended by its terminal signal.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.has_started && self.has_stopped
    }

    #[must_use]
    pub const fn has_content(&self) -> bool {
        self.has_content
    }

    #[must_use]
    pub const fn stop_reason(&self) -> Option<StopReason> {
        self.stop_reason
    }

    /// Whether the usage came with or after the stop reason: then it is a bill, even if the terminal signal is lost.
    #[must_use]
    pub const fn usage_is_final(&self) -> bool {
        self.usage_is_final
    }

    /// The usage reported so far. Before the stop reason it is a bound, not a bill (I7).
    #[must_use]
    pub fn usage(&self) -> Option<Extracted> {
        let (first, last) = (self.first_usage.as_deref(), self.last_usage.as_deref());
        first.or(last).map(|_| read_usage(first, last))
    }

    #[must_use]
    pub fn response_id(&self) -> Option<String> {
        self.response_id.as_deref().and_then(unquoted)
    }

    /// The tier that the provider says it served (O20); the start alone says it.
    #[must_use]
    pub fn served_tier(&self) -> Option<String> {
        self.last_usage.as_deref().and_then(served_tier).or_else(|| self.first_usage.as_deref().and_then(served_tier))
    }

    /// The model's name as the provider reports it; for the ledger, never for the client (O33).
    #[must_use]
    pub fn served_model(&self) -> Option<String> {
        self.served_model.as_deref().and_then(unquoted)
    }
}
