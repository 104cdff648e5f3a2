//! One provider's stream as a state machine: what was seen, and whether the answer is whole.
//!
//! The end is a typed event, `response.completed` or `response.incomplete`, which carries the usage; a stream that
//! closes before it is incomplete (O07). `response.failed` and `error` are errors, and their usage counts where it is
//! reported.

use bytes::Bytes;

use super::event::{EventClass, EventFacts, ResponseFacts};
use super::usage::read_usage;
use crate::json::{JsonError, Span};
use crate::openai::chat::answer::InBandError;
use crate::openai::chat::stream::{StreamState, unquoted};
use crate::sse::{Event, EventKind};
use crate::usage::Extracted;

/// What one event was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResponseStep {
    /// A comment, an event without data, or the sentinel of another API: proof of life only.
    Quiet,
    Event(EventFacts),
    /// The typed event that ends a whole answer.
    Terminal(EventFacts),
    /// The provider gave up inside its 200.
    Error(InBandError),
    /// Data that is not an event: a protocol error.
    Garbage(JsonError),
}

/// Reads one provider's stream. Make a new one for each attempt.
#[derive(Debug, Default)]
pub struct ResponseReader {
    has_content: bool,
    is_complete: bool,
    next_sequence: u64,
    usage: Option<Bytes>,
    tool_usage: Option<Bytes>,
    response_id: Option<Bytes>,
    served_tier: Option<Bytes>,
    served_model: Option<Bytes>,
}

impl ResponseReader {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next event.
    pub fn feed(&mut self, event: &Event) -> ResponseStep {
        match event.kind {
            EventKind::Comment | EventKind::Empty => return ResponseStep::Quiet,
            EventKind::Data => {}
        }
        let data = &event.data;
        if data.trim_ascii() == b"[DONE]" {
            return ResponseStep::Quiet;
        }
        let facts = match EventFacts::scan(data, &event.name) {
            Ok(facts) => facts,
            Err(error) if event.name.as_ref() == b"error" => {
                let message = format!("the provider sent an error event that is not JSON ({error})");
                return ResponseStep::Error(InBandError { message, ..InBandError::default() });
            }
            Err(error) => return ResponseStep::Garbage(error),
        };
        if let Some(response) = &facts.response {
            self.remember(response, data);
        }
        if let Some(sequence) = facts.sequence_number {
            self.next_sequence = sequence.saturating_add(1);
        }
        match facts.class {
            EventClass::Failed => {
                let span = facts.response.and_then(|response| response.error).or(facts.error);
                ResponseStep::Error(InBandError::read(span.unwrap_or(Span::new(0, data.len())).of(data)))
            }
            EventClass::Error => {
                ResponseStep::Error(InBandError::read(facts.error.unwrap_or(Span::new(0, data.len())).of(data)))
            }
            EventClass::Lifecycle | EventClass::Content | EventClass::Other if facts.error.is_some() => {
                ResponseStep::Error(InBandError::read(facts.error.unwrap_or(Span::new(0, 0)).of(data)))
            }
            EventClass::Terminal => {
                self.is_complete = true;
                ResponseStep::Terminal(facts)
            }
            EventClass::Lifecycle | EventClass::Content | EventClass::Other => {
                self.has_content |= facts.is_content();
                ResponseStep::Event(facts)
            }
        }
    }

    fn remember(&mut self, response: &ResponseFacts, data: &Bytes) {
        // Copied: these events can hold a whole answer, and a slice would keep it alive.
        let copy = |span: Span| Bytes::copy_from_slice(span.of(data));
        if let Some(span) = response.usage {
            self.usage = Some(copy(span));
        }
        if let Some(span) = response.tool_usage {
            self.tool_usage = Some(copy(span));
        }
        if let Some(span) = response.service_tier {
            self.served_tier = Some(copy(span));
        }
        if self.response_id.is_none() {
            self.response_id = response.id.filter(|span| span.len() > 2).map(copy);
        }
        if self.served_model.is_none() {
            self.served_model = response.model.filter(|span| span.len() > 2).map(copy);
        }
    }

    #[must_use]
    pub const fn state(&self) -> StreamState {
        match (self.is_complete, self.has_content) {
            (true, _) => StreamState::Finished,
            (false, true) => StreamState::Content,
            (false, false) => StreamState::Preamble,
        }
    }

    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.is_complete
    }

    #[must_use]
    pub const fn has_content(&self) -> bool {
        self.has_content
    }

    /// The number that an event of ours would have.
    #[must_use]
    pub const fn next_sequence(&self) -> u64 {
        self.next_sequence
    }

    /// The usage that the provider reported, in whatever event ended the answer.
    #[must_use]
    pub fn usage(&self) -> Option<Extracted> {
        self.usage.as_deref().map(|usage| read_usage(usage, self.tool_usage.as_deref()))
    }

    /// The response's id: by it a stored answer can be asked for later, so it is worth a record at once.
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
