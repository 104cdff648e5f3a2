//! The indexes of streamed tool calls, repaired where a server repeats or leaves them out (O24).
//!
//! Clients put fragments together by index, so two calls under one index would become one with both arguments. A new id
//! begins a new call; a fragment without an id goes on with the last call of its index. An index that no other call of
//! the choice has stays as it is, so a well-behaved stream is not touched.

use bytes::Bytes;

use super::answer::AnswerFacts;
use crate::json::{Cursor, JsonError, Kind, Span, Text};
use crate::splice::Splice;

/// Calls of one answer that are remembered; those beyond keep the server's index.
const MOST_CALLS: usize = 1_024;
/// Bytes of an id that are remembered.
const MOST_ID_BYTES: usize = 256;

/// The calls of one stream so far.
#[derive(Debug, Default)]
pub(super) struct ToolCalls {
    calls: Vec<Call>,
}

#[derive(Debug)]
struct Call {
    choice: u32,
    /// The index as the server gave it.
    given: Option<u64>,
    /// As it stands, escapes included; empty where there is none.
    id: Vec<u8>,
    /// The index that the client sees.
    number: u64,
}

/// One entry of `tool_calls`, with spans into the chunk.
#[derive(Debug, Default)]
struct Entry {
    at: usize,
    index: Option<(Span, u64)>,
    id: Option<Span>,
}

impl ToolCalls {
    /// The chunk's data with indexes that tell its calls apart; `None` where nothing has to change.
    pub(super) fn repaired(&mut self, facts: &AnswerFacts, data: &Bytes) -> Option<Bytes> {
        let mut splice = None;
        for choice in facts.choices.iter() {
            let Some(span) = choice.tool_calls else { continue };
            // The chunk was read before, so nothing fails here; if it did, it would be relayed as it is.
            let Ok(entries) = read_entries(span, data) else { continue };
            for entry in entries {
                let number = self.number(choice.index.unwrap_or(0), &entry, data);
                match (entry.index, number) {
                    (_, None) => {}
                    (Some((_, index)), Some(number)) if index == number => {}
                    (Some((span, _)), Some(number)) => {
                        splice.get_or_insert_with(Splice::new).replace(span, number.to_string());
                    }
                    (None, Some(number)) => {
                        splice.get_or_insert_with(Splice::new).insert(entry.at, format!("\"index\":{number},"));
                    }
                }
            }
        }
        splice.map(|splice| splice.into_bytes(data))
    }

    fn number(&mut self, choice: u32, entry: &Entry, data: &[u8]) -> Option<u64> {
        let given = entry.index.map(|(_, index)| index);
        let id = entry.id.map(|span| span.of(data)).filter(|id| id.len() > 2).unwrap_or_default();
        let of_choice = || self.calls.iter().rev().filter(|call| call.choice == choice);
        let same_place = || of_choice().find(|call| given.is_none() || call.given == given);
        let known = if id.is_empty() {
            same_place()
        } else {
            same_place()
                .filter(|call| call.id == id || call.id.is_empty())
                .or_else(|| of_choice().find(|call| call.id == id))
        };
        if let Some(call) = known {
            return Some(call.number);
        }
        if self.calls.len() == MOST_CALLS || id.len() > MOST_ID_BYTES {
            return None;
        }
        let is_free = |number: &u64| of_choice().all(|call| call.number != *number);
        let next = of_choice().map(|call| call.number.saturating_add(1)).max().unwrap_or(0);
        let number = given.filter(is_free).unwrap_or(next);
        self.calls.push(Call { choice, given, id: id.to_vec(), number });
        Some(number)
    }
}

/// The objects among the entries; anything else is relayed as it is.
fn read_entries(span: Span, data: &[u8]) -> Result<Vec<Entry>, JsonError> {
    let mut entries = Vec::with_capacity(1);
    let mut cursor = Cursor::new(span.of(data));
    let moved = |place: Span| Span::new(place.start + span.start, place.end + span.start);
    cursor.elements(|cursor, _| {
        if cursor.peek()? != Kind::Object {
            return cursor.skip().map(|_| ());
        }
        let mut entry = Entry { at: span.start + cursor.offset() + 1, ..Entry::default() };
        let mut is_empty = true;
        cursor.members(|cursor, key: Text<'_>| {
            is_empty = false;
            let value = cursor.skip()?;
            match (key.raw(), value.kind) {
                (b"index", Kind::Number) => {
                    let text = std::str::from_utf8(value.span.of(cursor.bytes())).unwrap_or_default();
                    entry.index = text.parse().ok().map(|index| (moved(value.span), index));
                }
                (b"id", Kind::String) => entry.id = Some(moved(value.span)),
                _ => {}
            }
            Ok::<(), JsonError>(())
        })?;
        if !is_empty {
            entries.push(entry);
        }
        Ok(())
    })?;
    Ok(entries)
}
