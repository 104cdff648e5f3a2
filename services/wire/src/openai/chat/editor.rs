//! A provider's stream turned into the client's: owned fields replaced, everything else byte for byte (O32).
//!
//! Owned are `model` (the alias, in every chunk, O33), `id` (non-empty and the same in all chunks, O14) and `usage`
//! (hidden from a client that did not ask, O13), and the index of a tool call where servers give two calls one (O24). Of the framing only `data:` goes on: upstream `id:`, `event:`,
//! `retry:` lines and comments are dropped, because old SDK decoders that saw an `id:` once dispatch an empty event at
//! each blank line and fail on it (O04). `[DONE]` is written once, by [`StreamEditor::finish`], whatever was sent.

use bytes::{Bytes, BytesMut};

use super::answer::AnswerFacts;
use super::tool_calls::ToolCalls;
use crate::json::quoted;
use crate::sse::Event;

/// The sentinel that ends a whole stream; never sent after an error.
pub const DONE: &[u8] = b"data: [DONE]\n\n";

/// What stands before data that is one line, as in [`Event::plain_at`].
const PLAIN: &[u8] = b"data: ";

/// Rewrites the events of one client's stream. Make a new one when another attempt takes over before content.
#[derive(Debug)]
pub struct StreamEditor {
    alias: Bytes,
    /// The id that all chunks get: the first non-empty one, quoted.
    id: Option<Bytes>,
    fallback_id: Bytes,
    client_wants_usage: bool,
    content_chunks: u64,
    tool_calls: ToolCalls,
    is_finished: bool,
}

/// At most: `id`, `model`, `usage`, `choices`, each replaced or inserted once.
const MAX_EDITS: usize = 4;

impl StreamEditor {
    /// `alias` is the model as the client wrote it; `fallback_id` serves when the first chunk to be relayed has none.
    #[must_use]
    pub fn new(alias: &str, fallback_id: &str, client_wants_usage: bool) -> Self {
        Self {
            alias: Bytes::from(quoted(alias)),
            id: None,
            fallback_id: Bytes::from(quoted(fallback_id)),
            client_wants_usage,
            content_chunks: 0,
            tool_calls: ToolCalls::default(),
            is_finished: false,
        }
    }

    /// Appends the client's form of a chunk to `out`; returns whether there is one.
    pub fn edit(&mut self, event: &Event, facts: &AnswerFacts, out: &mut BytesMut) -> bool {
        if facts.is_usage_only() && !self.client_wants_usage {
            return false;
        }
        self.content_chunks += u64::from(facts.content);
        if let Some(data) = self.tool_calls.repaired(facts, &event.data)
            && let Ok(facts) = AnswerFacts::scan(&data)
        {
            self.rewrite(&data, None, &facts, out);
        } else {
            self.rewrite(&event.data, event.plain_at.map(|_| PLAIN), facts, out);
        }
        true
    }

    /// Appends a chunk with Weir's values in the owned fields. `prefix` stands before data that is one plain line.
    fn rewrite(&mut self, data: &Bytes, prefix: Option<&[u8]>, facts: &AnswerFacts, out: &mut BytesMut) {
        let id = self.settle_id(facts, data);
        let mut edits = Edits::default();
        edit_string(&mut edits, facts.id, "id", &id, facts, data);
        edit_string(&mut edits, facts.model, "model", &self.alias, facts, data);
        if self.client_wants_usage {
            Self::give_choices(&mut edits, facts);
        } else if let Some(span) = facts.usage {
            edits.push(span.start, span.end, b"null", b"");
        }
        edits.sort();
        match prefix {
            Some(prefix) => {
                out.reserve(prefix.len() + data.len() + edits.added() + 2);
                out.extend_from_slice(prefix);
                edits.apply(data, out);
                out.extend_from_slice(b"\n\n");
            }
            None => reframe(&edits, data, out),
        }
    }

    /// Appends `[DONE]`, once.
    pub fn finish(&mut self, out: &mut BytesMut) {
        if !std::mem::replace(&mut self.is_finished, true) {
            out.extend_from_slice(DONE);
        }
    }

    /// Chunks with content that were given to the client: `chunks_delivered` of an error event.
    #[must_use]
    pub const fn content_chunks(&self) -> u64 {
        self.content_chunks
    }

    fn settle_id(&mut self, facts: &AnswerFacts, data: &Bytes) -> Bytes {
        self.id
            .get_or_insert_with(|| match facts.id {
                // Copied: a slice would keep the whole read buffer alive as long as the stream.
                Some(span) if span.len() > 2 => Bytes::copy_from_slice(span.of(data)),
                Some(_) | None => self.fallback_id.clone(),
            })
            .clone()
    }

    /// A usage chunk has an empty `choices` array in this API; some servers say null or nothing (O14).
    fn give_choices(edits: &mut Edits<'_>, facts: &AnswerFacts) {
        if facts.usage.is_none() {
            return;
        }
        match facts.choices_value {
            Some(value) if value.is_array => {}
            Some(value) => edits.push(value.span.start, value.span.end, b"[]", b""),
            None => edits.push(facts.first, facts.first, b"\"choices\":[]", b","),
        }
    }
}

fn edit_string<'a>(
    edits: &mut Edits<'a>,
    span: Option<crate::json::Span>,
    name: &'static str,
    wanted: &'a Bytes,
    facts: &AnswerFacts,
    data: &[u8],
) {
    match span {
        Some(span) if span.of(data) == wanted.as_ref() => {}
        Some(span) => edits.push(span.start, span.end, wanted, b""),
        None if facts.is_empty => {}
        None => {
            let key: &'static [u8] = if name == "id" { b"\"id\":" } else { b"\"model\":" };
            edits.push_member(facts.first, key, wanted);
        }
    }
}

/// A few edits of one event, on the stack: `(start, end, parts)`.
#[derive(Debug, Default)]
struct Edits<'a> {
    edits: [Edit<'a>; MAX_EDITS],
    length: usize,
}

#[derive(Debug, Default, Clone, Copy)]
struct Edit<'a> {
    start: usize,
    end: usize,
    parts: [&'a [u8]; 3],
}

impl<'a> Edits<'a> {
    fn push(&mut self, start: usize, end: usize, with: &'a [u8], after: &'a [u8]) {
        self.add(Edit { start, end, parts: [with, after, b""] });
    }

    fn push_member(&mut self, at: usize, key: &'a [u8], value: &'a [u8]) {
        self.add(Edit { start: at, end: at, parts: [key, value, b","] });
    }

    fn add(&mut self, edit: Edit<'a>) {
        if let Some(slot) = self.edits.get_mut(self.length) {
            *slot = edit;
            self.length += 1;
        }
    }

    fn sort(&mut self) {
        self.edits[..self.length].sort_by_key(|edit| edit.start);
    }

    fn added(&self) -> usize {
        self.edits[..self.length].iter().flat_map(|edit| edit.parts).map(<[u8]>::len).sum()
    }

    fn apply(&self, data: &[u8], out: &mut BytesMut) {
        let mut at = 0;
        for edit in &self.edits[..self.length] {
            out.extend_from_slice(&data[at..edit.start]);
            for part in edit.parts {
                out.extend_from_slice(part);
            }
            at = edit.end;
        }
        out.extend_from_slice(&data[at..]);
    }
}

/// Frames data that came in another form (CR line ends, several lines, other fields) as plain `data:` lines.
fn reframe(edits: &Edits<'_>, data: &[u8], out: &mut BytesMut) {
    let mut edited = BytesMut::with_capacity(data.len() + edits.added());
    edits.apply(data, &mut edited);
    for line in edited.as_ref().split(|byte: &u8| *byte == b'\n') {
        out.extend_from_slice(b"data: ");
        out.extend_from_slice(line);
        out.extend_from_slice(b"\n");
    }
    out.extend_from_slice(b"\n");
}
