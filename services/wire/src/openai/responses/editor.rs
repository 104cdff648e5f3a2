//! A provider's stream turned into the client's: `model` inside `response` is the alias (O33), everything else byte for
//! byte. `event:` and `data:` go on; upstream `id:` and `retry:` lines and comments do not (O04).

use bytes::{Bytes, BytesMut};

use super::event::EventFacts;
use crate::json::{Span, quoted};
use crate::sse::{Event, push_event};

/// Rewrites the events of one client's stream. Make a new one when another attempt takes over before content.
#[derive(Debug)]
pub struct ResponseEditor {
    alias: Bytes,
    content_events: u64,
    /// The terminal event, kept until the gateway says that the answer is whole.
    terminal: BytesMut,
}

impl ResponseEditor {
    /// `alias` is the model as the client wrote it.
    #[must_use]
    pub fn new(alias: &str) -> Self {
        Self { alias: Bytes::from(quoted(alias)), content_events: 0, terminal: BytesMut::new() }
    }

    /// Appends the client's form of an event to `out`.
    pub fn edit(&mut self, event: &Event, facts: &EventFacts, out: &mut BytesMut) {
        self.content_events += u64::from(facts.is_content());
        push(&self.alias, event, facts, out);
    }

    /// Keeps the event that ends the answer for [`ResponseEditor::finish`].
    pub fn keep_terminal(&mut self, event: &Event, facts: &EventFacts) {
        if self.terminal.is_empty() {
            push(&self.alias, event, facts, &mut self.terminal);
        }
    }

    /// Appends the terminal event, once.
    pub fn finish(&mut self, out: &mut BytesMut) {
        out.extend_from_slice(&self.terminal.split());
    }

    /// Events with content that were given to the client: `chunks_delivered` of an error event.
    #[must_use]
    pub const fn content_events(&self) -> u64 {
        self.content_events
    }
}

fn push(alias: &Bytes, event: &Event, facts: &EventFacts, out: &mut BytesMut) {
    let data = &event.data;
    let name = match facts.type_name {
        Some(span) => Span::new(span.start + 1, span.end.saturating_sub(1)).of(data),
        None => event.name.as_ref(),
    };
    match facts.response.and_then(|response| response.model) {
        Some(span) => push_event(out, name, &[&data[..span.start], alias, &data[span.end..]]),
        None => push_event(out, name, &[data]),
    }
}
