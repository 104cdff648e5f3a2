//! Playing one answer: which bytes are written, when, and what goes wrong where.
//!
//! [`Player::next`] yields one act at a time, so that a stream of any length costs one chunk of memory. It knows no
//! sockets and no timers; [`crate::body`] performs the acts.

use std::collections::VecDeque;
use std::io::Write;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;

use crate::dialect::{Answer, Dialect};
use crate::outline::{Item, Outline, Step};
use crate::script::{Fault, FaultKind, LineEnd, Script};

/// What the body does next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Act {
    WaitMs(u64),
    /// Hands over bytes in one write, which carry so many content chunks.
    Write {
        bytes: Bytes,
        chunks: u64,
    },
    /// Lets everything so far reach the socket before the next act.
    Flush,
    /// The body ends in order. `early` says that the script left something out.
    End {
        early: bool,
    },
    Reset,
    Cut,
    Stall,
}

/// Between two writes that must arrive in two reads: long enough for a reader on the same machine to have read.
const BETWEEN_WRITES_MS: u64 = 2;

#[derive(Debug)]
pub(crate) struct Player {
    answer: Answer,
    dialect: &'static dyn Dialect,
    source: Source,
    /// Acts that are decided but not yet taken.
    pending: VecDeque<Act>,
    gzip: Option<GzEncoder<Vec<u8>>>,
    /// Content chunks and uncompressed bytes so far.
    chunks: usize,
    bytes: usize,
    ending: bool,
}

/// What a write means for the count of chunks and for faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Before any content: a fault after no chunk at all still lets it pass.
    Opening,
    Content,
    Other,
}

impl Kind {
    const fn of(step: Step) -> Self {
        match step {
            Step::Opening | Step::Ping | Step::Start(Item::Thinking | Item::Text | Item::Tool(_)) => Self::Opening,
            Step::Piece(_) => Self::Content,
            Step::End(_) | Step::Finish | Step::Usage | Step::Done => Self::Other,
        }
    }
}

#[derive(Debug)]
enum Source {
    /// A body that is ready, in the writes it is sent in; each counts as a content chunk.
    Ready(VecDeque<Bytes>),
    Stream(Outline),
}

impl Player {
    /// An answer whose bytes are ready.
    pub(crate) fn ready(answer: Answer, dialect: &'static dyn Dialect, writes: Vec<Bytes>) -> Self {
        Self::new(answer, dialect, Source::Ready(writes.into()))
    }

    pub(crate) fn stream(answer: Answer, dialect: &'static dyn Dialect) -> Self {
        let outline = dialect.outline(&answer);
        Self::new(answer, dialect, Source::Stream(outline))
    }

    fn new(answer: Answer, dialect: &'static dyn Dialect, source: Source) -> Self {
        let gzip = answer.prepared.script.gzip.then(|| GzEncoder::new(Vec::new(), Compression::fast()));
        Self { answer, dialect, source, pending: VecDeque::new(), gzip, chunks: 0, bytes: 0, ending: false }
    }

    /// The length to promise in the head: of a plain body in one write, unless something must still be played after
    /// the last byte, when hyper would no longer ask.
    pub(crate) fn content_length(&self) -> Option<usize> {
        let Source::Ready(writes) = &self.source else { return None };
        let script = &self.answer.prepared.script;
        let length = writes.iter().map(Bytes::len).sum();
        let strikes_within = match &script.fault {
            Some(Fault { after_bytes: Some(after), .. }) => *after < length,
            Some(fault) => fault.after_chunks < writes.len(),
            None => true,
        };
        let plain = !self.answer.asked.stream && writes.len() == 1 && self.gzip.is_none();
        (plain && script.hold_open_ms == 0 && strikes_within).then_some(length)
    }

    /// How many content chunks the whole answer has.
    pub(crate) fn whole_chunks(&self) -> u64 {
        let chunks = match &self.source {
            Source::Ready(writes) => writes.len(),
            Source::Stream(outline) => outline.pieces(),
        };
        u64::try_from(chunks).unwrap_or(u64::MAX)
    }

    pub(crate) fn next(&mut self) -> Act {
        let mut act = self.step();
        if !self.answer.prepared.script.together {
            return act;
        }
        while let Act::Write { bytes, chunks } = &mut act {
            match self.step() {
                Act::Write { bytes: more, chunks: carried } => {
                    *bytes = [&bytes[..], &more[..]].concat().into();
                    *chunks += carried;
                }
                other => {
                    self.pending.push_front(other);
                    break;
                }
            }
        }
        act
    }

    fn step(&mut self) -> Act {
        loop {
            if let Some(act) = self.pending.pop_front() {
                return act;
            }
            if self.ending {
                return Act::End { early: false };
            }
            self.decide();
        }
    }

    /// Puts at least one act into `pending`, or begins the end.
    fn decide(&mut self) {
        let script = &self.answer.prepared.script;
        let mut bytes = Vec::new();
        let kind = match &mut self.source {
            Source::Ready(writes) => {
                let Some(write) = writes.pop_front() else { return self.finish() };
                let wait_ms =
                    if self.bytes == 0 { script.before_content_ms } else { script.gap_ms.max(BETWEEN_WRITES_MS) };
                wait(&mut self.pending, wait_ms);
                return self.emit(write, Kind::Content);
            }
            Source::Stream(outline) => {
                let Some(part) = outline.next() else { return self.finish() };
                let kind = Kind::of(part.step);
                if kind == Kind::Content {
                    wait(&mut self.pending, if self.chunks == 0 { script.before_content_ms } else { script.gap_ms });
                    put_comments(script, self.chunks, &mut bytes);
                    if script.pings.contains(&self.chunks) {
                        self.dialect.ping(&mut bytes);
                    }
                }
                self.dialect.part(&self.answer, part, &mut bytes);
                end_lines(script.line_end, &mut bytes);
                kind
            }
        };
        self.emit(Bytes::from(bytes), kind);
    }

    /// Writes `bytes`, unless the fault strikes before or within them.
    fn emit(&mut self, bytes: Bytes, kind: Kind) {
        let Some(fault) = &self.answer.prepared.script.fault else { return self.write(bytes, kind) };
        let fault = fault.clone();
        let left = match fault.after_bytes {
            Some(after) => after.saturating_sub(self.bytes).min(bytes.len()),
            None if kind != Kind::Opening && self.chunks >= fault.after_chunks => 0,
            None => bytes.len(),
        };
        if left == bytes.len() && fault.after_bytes.is_none_or(|after| after > self.bytes + left) {
            return self.write(bytes, kind);
        }
        if left > 0 {
            let written = if left == bytes.len() { kind } else { Kind::Other };
            self.write(bytes.slice(..left), written);
        }
        self.strike(&fault);
    }

    fn write(&mut self, bytes: Bytes, kind: Kind) {
        let first = self.bytes == 0;
        let chunks = usize::from(kind == Kind::Content);
        self.bytes += bytes.len();
        self.chunks += chunks;
        let mut rest = self.compress(bytes);
        if let Some(size) = self.answer.prepared.script.write_bytes {
            if !first {
                self.pending.push_back(Act::WaitMs(BETWEEN_WRITES_MS));
            }
            while rest.len() > size {
                self.pending.push_back(Act::Write { bytes: rest.split_to(size), chunks: 0 });
                self.pending.push_back(Act::WaitMs(BETWEEN_WRITES_MS));
            }
        }
        let chunks = u64::try_from(chunks).unwrap_or(0);
        self.pending.push_back(Act::Write { bytes: rest, chunks });
    }

    /// Each write is flushed through the compression: a real provider's chunks arrive one by one as well.
    fn compress(&mut self, bytes: Bytes) -> Bytes {
        let Some(gzip) = &mut self.gzip else { return bytes };
        // Writing into a `Vec` cannot fail.
        let _written = gzip.write_all(&bytes).and_then(|()| gzip.flush()).is_ok();
        Bytes::from(std::mem::take(gzip.get_mut()))
    }

    fn strike(&mut self, fault: &Fault) {
        self.ending = true;
        let mut bytes = Vec::new();
        let last = match fault.kind {
            FaultKind::Reset => Act::Reset,
            FaultKind::Cut => Act::Cut,
            FaultKind::Stall => Act::Stall,
            FaultKind::Close => Act::End { early: true },
            FaultKind::Error => {
                let sequence = match &self.source {
                    Source::Ready(_) => 0,
                    Source::Stream(outline) => outline.sequence().saturating_sub(1),
                };
                self.dialect.error_event(fault, sequence, &mut bytes);
                end_lines(self.answer.prepared.script.line_end, &mut bytes);
                Act::End { early: true }
            }
            FaultKind::Garbage => {
                bytes.extend_from_slice(fault.bytes.as_deref().map_or(GARBAGE, str::as_bytes));
                Act::End { early: true }
            }
        };
        if !bytes.is_empty() {
            self.write(Bytes::from(bytes), Kind::Other);
        }
        self.pending.push_back(Act::Flush);
        self.close_compression();
        self.pending.push_back(last);
    }

    /// The ordinary end. A fault that was to come later than the answer is long comes now.
    fn finish(&mut self) {
        self.ending = true;
        if let Some(fault) = self.answer.prepared.script.fault.clone() {
            return self.strike(&fault);
        }
        self.close_compression();
        let hold_ms = self.answer.prepared.script.hold_open_ms;
        if hold_ms > 0 {
            self.pending.push_back(Act::WaitMs(hold_ms));
        }
    }

    fn close_compression(&mut self) {
        let Some(gzip) = self.gzip.take() else { return };
        let trailer = gzip.finish().unwrap_or_default();
        self.pending.push_back(Act::Write { bytes: Bytes::from(trailer), chunks: 0 });
    }
}

const GARBAGE: &[u8] = b"data: {\"id\":\x00\xff\xfe not an event\n\n";

fn wait(pending: &mut VecDeque<Act>, ms: u64) {
    if ms > 0 {
        pending.push_back(Act::WaitMs(ms));
    }
}

fn put_comments(script: &Script, chunk: usize, out: &mut Vec<u8>) {
    for comment in script.comments.iter().filter(|comment| comment.before_chunk == chunk) {
        out.extend_from_slice(b": ");
        out.extend_from_slice(comment.text.as_bytes());
        out.extend_from_slice(b"\n\n");
    }
}

/// JSON holds no raw line end, so every LF is one of the framing.
fn end_lines(line_end: LineEnd, bytes: &mut Vec<u8>) {
    let end: &[u8] = match line_end {
        LineEnd::Lf => return,
        LineEnd::Crlf => b"\r\n",
        LineEnd::Cr => b"\r",
    };
    let mut ended = Vec::with_capacity(bytes.len() + 8);
    for byte in bytes.iter() {
        match byte {
            b'\n' => ended.extend_from_slice(end),
            byte => ended.push(*byte),
        }
    }
    *bytes = ended;
}

#[cfg(test)]
#[path = "player_tests.rs"]
mod tests;
