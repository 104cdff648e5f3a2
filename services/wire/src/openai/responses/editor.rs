//! A provider's stream turned into the client's: inside `response`, `model` is the alias (O33) and answers have the
//! client's names; everything else is byte for byte. `event:` and `data:` go on; upstream `id:` and `retry:` lines and comments do not (O04).

use std::sync::Arc;

use bytes::BytesMut;

use super::event::EventFacts;
use super::ids::{AnswerIds, edits};
use crate::json::{Span, quoted};
use crate::sse::{Event, push_event};

/// Rewrites the events of one client's stream. Make a new one when another attempt takes over before content.
#[derive(Debug)]
pub struct ResponseEditor {
    alias: String,
    ids: Option<Arc<dyn AnswerIds>>,
    content_events: u64,
    /// The terminal event, kept until the gateway says that the answer is whole.
    terminal: BytesMut,
}

impl ResponseEditor {
    /// `alias` is the model as the client wrote it; without `ids`, answers keep the provider's names.
    #[must_use]
    pub fn new(alias: &str, ids: Option<Arc<dyn AnswerIds>>) -> Self {
        Self { alias: quoted(alias), ids, content_events: 0, terminal: BytesMut::new() }
    }

    /// Appends the client's form of an event to `out`.
    pub fn edit(&mut self, event: &Event, facts: &EventFacts, out: &mut BytesMut) {
        self.content_events += u64::from(facts.is_content());
        self.push(event, facts, out);
    }

    /// Keeps the event that ends the answer for [`ResponseEditor::finish`].
    pub fn keep_terminal(&mut self, event: &Event, facts: &EventFacts) {
        if self.terminal.is_empty() {
            let mut terminal = std::mem::take(&mut self.terminal);
            self.push(event, facts, &mut terminal);
            self.terminal = terminal;
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

    fn push(&self, event: &Event, facts: &EventFacts, out: &mut BytesMut) {
        let data = &event.data;
        let name = match facts.type_name {
            Some(span) => Span::new(span.start + 1, span.end.saturating_sub(1)).of(data),
            None => event.name.as_ref(),
        };
        let Some(response) = &facts.response else { return push_event(out, name, &[data]) };
        let edits = edits(response, &self.alias, self.ids.as_deref(), data);
        let mut parts: Vec<&[u8]> = Vec::with_capacity(edits.len() * 2 + 1);
        let mut at = 0;
        for (span, with) in &edits {
            parts.extend([&data[at..span.start], with.as_bytes()]);
            at = span.end;
        }
        parts.push(&data[at..]);
        push_event(out, name, &parts);
    }
}
