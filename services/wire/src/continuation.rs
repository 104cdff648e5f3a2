//! Going on with an answer whose stream broke: what the client has of it, what another target is asked, and how that
//! target's stream becomes the rest of the first.
//!
//! All of it looks at the client's side only, so that it does not matter which dialects the two providers speak. A
//! reader would question the caution of [`Delivered`]: plain text alone is gone on with. Half a tool call, a thought, a
//! second choice, or whatever else came is not this module's to finish (the client would get a splice, I4).

mod delivered;
mod stitch;
#[cfg(test)]
mod tests;

use bytes::Bytes;

use crate::anthropic::AnthropicVersion;
use crate::json::{Cursor, JsonError, Kind, quoted};
use crate::request::{ClientRequest, Limits};
use crate::splice::Splice;

pub use delivered::Delivered;
pub use stitch::Stitch;

/// In which form a target takes an answer that was begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// The begun answer comes last, and the target writes on from its end.
    Prefill,
    /// The begun answer, then a word of the user to go on. Every target takes it.
    Instruction,
}

/// What the client is told where the second answer begins.
#[derive(Debug, Clone, Copy)]
pub struct Seam<'a> {
    /// Why the first stream broke.
    pub reason: &'a str,
    /// The attempt that goes on, and where.
    pub attempt: u16,
    pub deployment: &'a str,
}

const INSTRUCTION: &str = "Your answer above was cut off by a failure. Continue it exactly where it stops, in the middle \
                           of a sentence or word if need be. Do not repeat any of it, and do not comment on this.";

impl ClientRequest {
    /// The request for the rest of an answer of which the client has `begun`; `None` where there is no such form, or the
    /// request would be beyond `limits`.
    #[must_use]
    pub fn going_on(&self, begun: &str, form: Form, limits: &Limits) -> Option<Self> {
        let version = match self {
            Self::Messages(request) => request.version(),
            Self::Chat(_) | Self::Responses(_) | Self::Embeddings(_) => AnthropicVersion::V2023_06_01,
        };
        Self::parse(self.dialect(), self.continued(begun, form)?, limits, version).ok()
    }

    /// The body that asks for the rest of an answer of which the client has `begun`; `None` where the dialect has no such
    /// form. An empty beginning asks for the whole. A beginning that ends in white space is never sent as a prefill,
    /// because Anthropic refuses that.
    #[must_use]
    pub fn continued(&self, begun: &str, form: Form) -> Option<Bytes> {
        match self {
            Self::Chat(_) | Self::Messages(_) => {}
            Self::Responses(_) | Self::Embeddings(_) => return None,
        }
        if begun.is_empty() {
            return Some(self.body().clone());
        }
        let body = self.body();
        let end = end_of_messages(body)?;
        let mut turns = format!(r#",{{"role":"assistant","content":{}}}"#, quoted(begun));
        let is_prefill = form == Form::Prefill && !begun.ends_with(char::is_whitespace);
        if !is_prefill {
            turns.push_str(&format!(r#",{{"role":"user","content":{}}}"#, quoted(INSTRUCTION)));
        }
        let mut splice = Splice::new();
        splice.insert(end, turns);
        Some(splice.into_bytes(body))
    }
}

/// Where the bracket stands that closes the messages, if there are any.
fn end_of_messages(body: &[u8]) -> Option<usize> {
    let mut end = None;
    let walked = Cursor::new(body).members(|cursor, key| {
        let value = cursor.skip()?;
        if key.is("messages") && value.kind == Kind::Array {
            let inner = value.span.of(body);
            let is_empty = inner.get(1..inner.len() - 1).is_none_or(|inner| inner.trim_ascii().is_empty());
            end = (!is_empty).then_some(value.span.end - 1);
        }
        Ok::<(), JsonError>(())
    });
    walked.ok().and(end)
}
