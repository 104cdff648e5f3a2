//! Replacing spans of a buffer and leaving every other byte alone.
//!
//! Observe and splice is how unknown fields, digits and escapes survive relay (design, section 2): an edit says which
//! bytes go and what comes instead, and nothing is ever serialised again.

use bytes::{Bytes, BytesMut};

use crate::json::Span;

/// A set of edits of one buffer. Edits must not overlap; those at one place apply in the order they were added.
#[derive(Debug, Default)]
pub struct Splice {
    edits: Vec<(Span, Bytes)>,
}

impl Splice {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    pub fn replace(&mut self, span: Span, with: impl Into<Bytes>) {
        self.edits.push((span, with.into()));
    }

    pub fn insert(&mut self, at: usize, what: impl Into<Bytes>) {
        self.replace(Span::new(at, at), what);
    }

    pub fn remove(&mut self, span: Span) {
        self.replace(span, Bytes::new());
    }

    /// The edited buffer as pieces that share `original`'s memory: no copy, whatever the size.
    #[must_use]
    pub fn into_parts(mut self, original: &Bytes) -> Vec<Bytes> {
        self.edits.sort_by_key(|(span, _)| (span.start, span.end));
        let mut parts = Vec::with_capacity(self.edits.len() * 2 + 1);
        let mut at = 0;
        for (span, with) in self.edits {
            let start = span.start.clamp(at, original.len());
            if at < start {
                parts.push(original.slice(at..start));
            }
            if !with.is_empty() {
                parts.push(with);
            }
            at = span.end.clamp(start, original.len());
        }
        if at < original.len() {
            parts.push(original.slice(at..));
        }
        parts
    }

    /// The edited buffer in one piece; free when there is nothing to edit.
    #[must_use]
    pub fn into_bytes(self, original: &Bytes) -> Bytes {
        if self.edits.is_empty() {
            return original.clone();
        }
        let parts = self.into_parts(original);
        let mut out = BytesMut::with_capacity(parts.iter().map(Bytes::len).sum());
        for part in &parts {
            out.extend_from_slice(part);
        }
        out.freeze()
    }
}
