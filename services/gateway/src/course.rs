//! A committed stream without its sockets: the provider's bytes in, the client's bytes out, and exactly one end.
//!
//! Nothing here waits or knows a clock, so that every cut of a stream can be tried (`course_tests.rs`).

use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use weir_wire::envelope::ClientError;
use weir_wire::openai::chat::InBandError;
use weir_wire::{Step, Translator};

/// Why a committed stream did not become whole. The words are stable: they are in the error event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum BreakReason {
    /// The provider's connection broke.
    TransportError,
    /// No byte came for the idle timeout.
    ReadTimeout,
    /// The request's whole time is over.
    DeadlineExceeded,
    /// The stream ended in good order, but choices are unfinished.
    StreamIncomplete,
    /// What came is not this protocol.
    UpstreamDecodeError,
    /// The provider gave up inside its 200.
    UpstreamInBandError(InBandError),
}

impl BreakReason {
    pub(crate) const fn as_str(&self) -> &'static str {
        match self {
            Self::TransportError => "transport_error",
            Self::ReadTimeout => "read_timeout",
            Self::DeadlineExceeded => "deadline_exceeded",
            Self::StreamIncomplete => "stream_incomplete",
            Self::UpstreamDecodeError => "upstream_decode_error",
            Self::UpstreamInBandError(_) => "upstream_in_band_error",
        }
    }
}

/// How a committed stream ended.
#[derive(Debug)]
pub(crate) enum RelayOutcome {
    /// Every choice finished, and the client has all of it.
    Complete,
    Broke(BreakReason),
    /// The body was dropped before its end: the client left, or stalled and was cut.
    ClientLeft,
}

/// A stream on its way. What goes to the client is appended to `out`.
pub(crate) struct Course {
    pub stream: Translator,
    request_id: Arc<str>,
}

impl Course {
    pub(crate) const fn new(stream: Translator, request_id: Arc<str>) -> Self {
        Self { stream, request_id }
    }

    pub(crate) fn push(&mut self, bytes: Bytes) {
        self.stream.push(bytes);
    }

    /// Relays every whole event that is there. `Some`: it ends with one of them.
    pub(crate) fn take_events(&mut self, out: &mut BytesMut) -> Option<RelayOutcome> {
        loop {
            let step = self.stream.next_step(out)?;
            if let Some(outcome) = self.ended_by(step) {
                return Some(outcome);
            }
        }
    }

    /// The provider has closed, in order or not. One that does so after the end of its answer has said everything
    /// (O08); otherwise the stream broke for the reason given.
    pub(crate) fn close(&mut self, otherwise: BreakReason, out: &mut BytesMut) -> RelayOutcome {
        let last = self.stream.close(out).and_then(|step| self.ended_by(step));
        match last {
            Some(outcome) => outcome,
            None if self.stream.is_complete() => RelayOutcome::Complete,
            None => RelayOutcome::Broke(otherwise),
        }
    }

    /// After the finish it goes on: the usage comes last, and a connection read to its end is used again.
    fn ended_by(&self, step: Step) -> Option<RelayOutcome> {
        match step {
            Step::Quiet | Step::Event { .. } => None,
            Step::End if self.stream.is_complete() => Some(RelayOutcome::Complete),
            Step::End => Some(RelayOutcome::Broke(BreakReason::StreamIncomplete)),
            Step::Error(error) => Some(RelayOutcome::Broke(BreakReason::UpstreamInBandError(error))),
            Step::Garbage(_) => Some(RelayOutcome::Broke(BreakReason::UpstreamDecodeError)),
        }
    }

    /// Writes the one terminal that `outcome` has. Nothing may follow.
    pub(crate) fn finish(&mut self, outcome: &RelayOutcome, out: &mut BytesMut) {
        match outcome {
            RelayOutcome::Complete => self.stream.finish(out),
            RelayOutcome::Broke(reason) => {
                self.stream.fail(&stream_error(reason), reason.as_str(), &self.request_id, out);
            }
            RelayOutcome::ClientLeft => {}
        }
    }
}

pub(crate) fn stream_error(reason: &BreakReason) -> ClientError {
    let message = match reason {
        BreakReason::TransportError => "The provider's connection broke. The answer is incomplete.",
        BreakReason::ReadTimeout => "The provider fell silent. The answer is incomplete.",
        BreakReason::DeadlineExceeded => "The answer took longer than allowed and is incomplete.",
        BreakReason::StreamIncomplete => "The provider ended the stream early. The answer is incomplete.",
        BreakReason::UpstreamDecodeError => "The provider sent something unreadable. The answer is incomplete.",
        BreakReason::UpstreamInBandError(_) => "The provider reported an error. The answer is incomplete.",
    };
    ClientError::new("stream_error", reason.as_str(), message)
}

#[cfg(test)]
#[path = "course_tests.rs"]
mod tests;
