//! A stream before its commitment: what came is translated and held back until the first content.
//!
//! The rule depends on the bytes, never on how reads fell (O10): the first event with content commits, or the end of a
//! whole answer, or the bound of what may be held.

use bytes::BytesMut;

use weir_wire::openai::chat::{InBandError, StreamState};
use weir_wire::{Step, Translator};

/// How many events are held back until the first content. Comments and pings hold nothing and do not count.
const MOST_HELD_EVENTS: usize = 256;

pub(crate) struct Peek {
    pub stream: Translator,
    /// The client's form of what came.
    pub held: BytesMut,
    /// Whether the provider's own end was among it.
    pub has_ended: bool,
    events: usize,
}

/// What the events so far come to.
pub(crate) enum Seen {
    Nothing,
    Commit,
    Broken(Fault),
}

/// Why there will be no content.
pub(crate) enum Fault {
    Error(InBandError),
    EndedEarly,
    Garbage,
}

impl Peek {
    pub(crate) fn new(stream: Translator) -> Self {
        Self { stream, held: BytesMut::new(), has_ended: false, events: 0 }
    }

    /// Takes events until one decides.
    pub(crate) fn read_events(&mut self, max_held_bytes: usize) -> Seen {
        while let Some(step) = self.stream.next_step(&mut self.held) {
            match self.take(step, max_held_bytes) {
                Seen::Nothing => {}
                decided => return decided,
            }
        }
        Seen::Nothing
    }

    /// The provider closed its stream in good order: whatever is left is its last event.
    pub(crate) fn close(&mut self) -> Seen {
        if let Some(Step::Error(error)) = self.stream.close(&mut self.held) {
            return Seen::Broken(Fault::Error(error));
        }
        match self.stream.state() {
            StreamState::Content | StreamState::Finished => Seen::Commit,
            StreamState::Preamble => Seen::Broken(Fault::EndedEarly),
        }
    }

    fn take(&mut self, step: Step, max_held_bytes: usize) -> Seen {
        match step {
            Step::Quiet => return Seen::Nothing,
            Step::Error(error) => return Seen::Broken(Fault::Error(error)),
            Step::Garbage(_) => return Seen::Broken(Fault::Garbage),
            Step::End if !self.stream.is_complete() => return Seen::Broken(Fault::EndedEarly),
            Step::End => self.has_ended = true,
            Step::Event { .. } => self.events += 1,
        }
        let is_full = self.held.len() > max_held_bytes || self.events >= MOST_HELD_EVENTS;
        match self.stream.state() {
            StreamState::Content | StreamState::Finished => Seen::Commit,
            StreamState::Preamble if is_full => Seen::Commit,
            StreamState::Preamble => Seen::Nothing,
        }
    }
}
