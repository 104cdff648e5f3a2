//! A provider's stream turned into the client's of the same dialect: `model` is the alias (O33), everything else byte
//! for byte (O32), thinking and its signatures included (O35).
//!
//! Of the framing `event:` and `data:` go on, both always: the official SDKs ignore an event without its name, so one
//! that lacks it gets its type. Upstream `id:` and `retry:` lines and comments are dropped (O04). `message_stop` is
//! written once, by [`MessageEditor::finish`], and only after a whole answer.

use bytes::{Bytes, BytesMut};

use super::event::{EventFacts, EventType};
use crate::json::{Span, quoted};
use crate::sse::{Event, push_event};

/// Rewrites the events of one client's stream. Make a new one when another attempt takes over before content.
#[derive(Debug)]
pub struct MessageEditor {
    alias: Bytes,
    content_events: u64,
    /// The data of the provider's own `message_stop`.
    stop: Option<Bytes>,
    is_finished: bool,
}

const STOP_NAME: &[u8] = b"message_stop";
const STOP_DATA: &[u8] = br#"{"type":"message_stop"}"#;

impl MessageEditor {
    /// `alias` is the model as the client wrote it.
    #[must_use]
    pub fn new(alias: &str) -> Self {
        Self { alias: Bytes::from(quoted(alias)), content_events: 0, stop: None, is_finished: false }
    }

    /// Appends the client's form of an event to `out`. The terminal one is kept for [`MessageEditor::finish`].
    pub fn edit(&mut self, event: &Event, facts: &EventFacts, out: &mut BytesMut) {
        let data = &event.data;
        if facts.kind == EventType::MessageStop {
            // Copied: a slice would keep the whole read buffer alive.
            self.stop = Some(Bytes::copy_from_slice(data));
            return;
        }
        self.content_events += u64::from(facts.content);
        let name = match (facts.kind.name(), facts.type_name) {
            (Some(name), _) => name.as_bytes(),
            (None, Some(span)) => Span::new(span.start + 1, span.end.saturating_sub(1)).of(data),
            (None, None) => event.name.as_ref(),
        };
        match (facts.kind, facts.model, facts.message_at) {
            (EventType::MessageStart, Some(span), _) => {
                push_event(out, name, &[&data[..span.start], &self.alias, &data[span.end..]]);
            }
            (EventType::MessageStart, None, Some(at)) => {
                let rest = &data[at..];
                let comma: &[u8] = if rest.trim_ascii_start().starts_with(b"}") { b"" } else { b"," };
                push_event(out, name, &[&data[..at], b"\"model\":", &self.alias, comma, rest]);
            }
            _ => push_event(out, name, &[data]),
        }
    }

    /// Appends `message_stop`, once: the provider's own where it sent one.
    pub fn finish(&mut self, out: &mut BytesMut) {
        if !std::mem::replace(&mut self.is_finished, true) {
            push_event(out, STOP_NAME, &[self.stop.as_deref().unwrap_or(STOP_DATA)]);
        }
    }

    /// Events with content that were given to the client: `chunks_delivered` of an error event.
    #[must_use]
    pub const fn content_events(&self) -> u64 {
        self.content_events
    }
}
