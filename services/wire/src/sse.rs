//! Server-sent events from byte chunks (WHATWG event-stream grammar).
//!
//! Read boundaries carry no meaning: the same bytes in any pieces give the same events. Two decisions a reader would
//! question. An event is given out at the line end that completes it, even when that is a CR whose LF may still come,
//! so that nothing waits for the next read; that LF then belongs to no event's bytes. And lone blank lines are nothing
//! at all, because there is nothing in them to relay.

use std::collections::VecDeque;
use std::fmt;

use bytes::{Bytes, BytesMut};
use memchr::{memchr, memchr2};
use thiserror::Error;

/// What an event is good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// Has data.
    Data,
    /// Only comment lines: proof of life, never content (O03).
    Comment,
    /// Fields without data, which browsers and SDKs ignore.
    Empty,
}

/// One event, sharing the memory of the chunk that it came in.
#[derive(Clone, PartialEq, Eq)]
pub struct Event {
    /// The bytes as received, with the blank line; a LF that completes a final CR is left out.
    pub raw: Bytes,
    /// The `data` lines, joined by LF.
    pub data: Bytes,
    /// Where `data` stands in `raw`, when it is one unbroken line and `raw` is nothing but `data: …` and two LFs: such
    /// an event can be relayed by splicing `raw`.
    pub plain_at: Option<usize>,
    /// The `event` field; empty when absent.
    pub name: Bytes,
    pub kind: EventKind,
}

/// Never the bytes: they hold completions, and `Debug` ends in logs.
impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event").field("kind", &self.kind).field("bytes", &self.raw.len()).finish_non_exhaustive()
    }
}

/// Why a stream cannot be decoded further.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum SseError {
    /// The bound is the operator's (`max_event_bytes`); the stream must end with an explicit error (O05).
    #[error("an event is larger than {limit_bytes} bytes")]
    EventTooLarge { limit_bytes: usize },
}

/// An incremental decoder: push chunks, take events until there is none.
pub struct Decoder {
    max_event_bytes: usize,
    /// Chunks not yet looked at; the first may be partly consumed.
    chunks: VecDeque<Bytes>,
    /// The start of an event that began in an earlier chunk.
    carry: BytesMut,
    /// Whether the present line has bytes already.
    line_has_bytes: bool,
    /// Whether the last byte was a CR, so that an LF now belongs to it.
    after_cr: bool,
    /// A byte order mark may stand at the very start only.
    at_start: bool,
    failed: Option<SseError>,
}

impl Decoder {
    /// A decoder that refuses events of more than `max_event_bytes` bytes.
    #[must_use]
    pub fn new(max_event_bytes: usize) -> Self {
        Self {
            max_event_bytes,
            chunks: VecDeque::new(),
            carry: BytesMut::new(),
            line_has_bytes: false,
            after_cr: false,
            at_start: true,
            failed: None,
        }
    }

    /// Adds the next bytes of the stream.
    pub fn push(&mut self, chunk: Bytes) {
        if !chunk.is_empty() {
            self.chunks.push_back(chunk);
        }
    }

    /// Bytes held of an event that is not complete.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.carry.len() + self.chunks.iter().map(Bytes::len).sum::<usize>()
    }

    /// The next complete event; `None` asks for more bytes. An error is final.
    pub fn next_event(&mut self) -> Result<Option<Event>, SseError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        while let Some(mut chunk) = self.chunks.pop_front() {
            while let Some(length) = self.frame_end(&mut chunk)? {
                let frame = self.complete(chunk.split_to(length));
                if let Some(event) = parse_frame(frame) {
                    if !chunk.is_empty() {
                        self.chunks.push_front(chunk);
                    }
                    return Ok(Some(event));
                }
            }
            self.carry.extend_from_slice(&chunk);
        }
        Ok(None)
    }

    /// What is left when the stream has ended: an event without its blank line. Browsers drop it; some providers end
    /// with `data: [DONE]` and no line end, so the caller decides by what is in it.
    #[must_use]
    pub fn finish(mut self) -> Option<Event> {
        if self.failed.is_some() || self.carry.is_empty() {
            return None;
        }
        let rest = self.complete(Bytes::new());
        parse_frame(rest).map(|event| Event { plain_at: None, ..event })
    }

    /// Finds the end of the present frame in `chunk`: the number of bytes that complete it. Drops the LF of a CR LF
    /// whose CR ended the frame before, and blank lines between frames.
    fn frame_end(&mut self, chunk: &mut Bytes) -> Result<Option<usize>, SseError> {
        let mut at = 0;
        while let Some(found) = memchr2(b'\r', b'\n', &chunk[at..]) {
            let end = at + found;
            let is_cr = chunk[end] == b'\r';
            let line_is_empty = found == 0 && !self.line_has_bytes;
            let is_second_half = line_is_empty && self.after_cr && !is_cr;
            let frame_is_empty = end == 0 && self.carry.is_empty();
            self.line_has_bytes = false;
            self.after_cr = is_cr;
            if line_is_empty && frame_is_empty {
                let _ = chunk.split_to(end + 1);
                at = 0;
                continue;
            }
            at = end + 1;
            self.check_size(at)?;
            if line_is_empty && !is_second_half {
                return Ok(Some(at));
            }
        }
        if at < chunk.len() {
            self.line_has_bytes = true;
            self.after_cr = false;
        }
        self.check_size(chunk.len())?;
        Ok(None)
    }

    fn check_size(&mut self, more: usize) -> Result<(), SseError> {
        if self.carry.len() + more <= self.max_event_bytes {
            return Ok(());
        }
        let error = SseError::EventTooLarge { limit_bytes: self.max_event_bytes };
        self.failed = Some(error);
        self.carry = BytesMut::new();
        self.chunks.clear();
        Err(error)
    }

    fn complete(&mut self, tail: Bytes) -> Bytes {
        let frame = if self.carry.is_empty() {
            tail
        } else {
            self.carry.extend_from_slice(&tail);
            self.carry.split().freeze()
        };
        if !std::mem::take(&mut self.at_start) || !frame.starts_with(BOM) {
            return frame;
        }
        frame.slice(BOM.len()..)
    }
}

/// Never the bytes, as for [`Event`].
impl fmt::Debug for Decoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decoder").field("held_bytes", &self.held_bytes()).finish_non_exhaustive()
    }
}

const BOM: &[u8] = b"\xEF\xBB\xBF";

/// The fields of one frame; `None` when it has none at all.
fn parse_frame(raw: Bytes) -> Option<Event> {
    if let Some(event) = parse_plain(&raw) {
        return Some(event);
    }
    let mut data: Option<Bytes> = None;
    let mut joined: Option<BytesMut> = None;
    let mut name = Bytes::new();
    let (mut has_comment, mut has_field) = (false, false);
    let mut at = 0;
    while at < raw.len() {
        let end = memchr2(b'\r', b'\n', &raw[at..]).map_or(raw.len(), |found| at + found);
        let line = raw.slice(at..end);
        at = end + 1;
        if line.is_empty() {
            continue;
        }
        if line[0] == b':' {
            has_comment = true;
            continue;
        }
        has_field = true;
        let (field, value) = split_field(&line);
        match field.as_ref() {
            b"data" => match (&data, &mut joined) {
                (None, _) => data = Some(value),
                (Some(_), Some(lines)) => {
                    lines.extend_from_slice(b"\n");
                    lines.extend_from_slice(&value);
                }
                (Some(first), None) => {
                    let mut lines = BytesMut::from(first.as_ref());
                    lines.extend_from_slice(b"\n");
                    lines.extend_from_slice(&value);
                    joined = Some(lines);
                }
            },
            b"event" => name = value,
            _ => {}
        }
    }
    let data = joined.map(BytesMut::freeze).or(data).unwrap_or_default();
    let kind = match (data.is_empty(), has_field, has_comment) {
        (false, _, _) => EventKind::Data,
        (true, true, _) => EventKind::Empty,
        (true, false, true) => EventKind::Comment,
        (true, false, false) => return None,
    };
    Some(Event { raw, data, plain_at: None, name, kind })
}

/// The shapes of nearly every event: one `data: ` line and two LFs, after one `event: ` line in dialects that name them.
fn parse_plain(raw: &Bytes) -> Option<Event> {
    const PREFIX: &[u8] = b"data: ";
    if let Some(named) = raw.strip_prefix(b"event: ") {
        let name_end = memchr(b'\n', named)?;
        let body = named[name_end + 1..].strip_prefix(PREFIX)?.strip_suffix(b"\n\n")?;
        if body.is_empty() || memchr2(b'\r', b'\n', body).is_some() || memchr(b'\r', &named[..name_end]).is_some() {
            return None;
        }
        let name_at = raw.len() - named.len();
        let name = raw.slice(name_at..name_at + name_end);
        let data = raw.slice(raw.len() - 2 - body.len()..raw.len() - 2);
        return Some(Event { raw: raw.clone(), data, plain_at: None, name, kind: EventKind::Data });
    }
    let body = raw.strip_prefix(PREFIX)?.strip_suffix(b"\n\n")?;
    if body.is_empty() || memchr2(b'\r', b'\n', body).is_some() {
        return None;
    }
    let data = raw.slice(PREFIX.len()..raw.len() - 2);
    Some(Event { raw: raw.clone(), data, plain_at: Some(PREFIX.len()), name: Bytes::new(), kind: EventKind::Data })
}

fn split_field(line: &Bytes) -> (Bytes, Bytes) {
    match memchr(b':', line) {
        None => (line.clone(), Bytes::new()),
        Some(colon) => {
            let value = line.slice(colon + 1..);
            let value = if value.first() == Some(&b' ') { value.slice(1..) } else { value };
            (line.slice(..colon), value)
        }
    }
}

/// Appends one named event: `pieces` are its data. Data of several lines becomes several `data:` lines.
pub(crate) fn push_event(out: &mut BytesMut, name: &[u8], pieces: &[&[u8]]) {
    out.reserve(name.len() + pieces.iter().map(|piece| piece.len()).sum::<usize>() + 24);
    out.extend_from_slice(b"event: ");
    out.extend_from_slice(name);
    out.extend_from_slice(b"\n");
    push_data(out, pieces);
}

/// Appends an event without a name; a line end in its data becomes another data line.
pub(crate) fn push_data(out: &mut BytesMut, pieces: &[&[u8]]) {
    out.extend_from_slice(b"data: ");
    for piece in pieces {
        let mut rest = *piece;
        while let Some(at) = memchr(b'\n', rest) {
            out.extend_from_slice(&rest[..at]);
            out.extend_from_slice(b"\ndata: ");
            rest = &rest[at + 1..];
        }
        out.extend_from_slice(rest);
    }
    out.extend_from_slice(b"\n\n");
}

#[cfg(test)]
mod tests;
