//! A request for a response: parsed once for facts, kept as bytes.

use std::fmt;

use bytes::Bytes;

use super::parse::parse;
use crate::json::{Node, Span, quoted};
use crate::request::{Limits, RequestFacts};
use crate::request_error::RequestError;
use crate::splice::Splice;

/// A request: its bytes, its facts, and where the fields that Weir owns stand.
#[derive(Clone)]
pub struct ResponsesRequest {
    body: Bytes,
    facts: RequestFacts,
    places: Places,
    /// The provider's own name of the answer that this request goes on from.
    previous: Option<String>,
}

/// Where things stand in the body.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Places {
    /// After the opening brace.
    pub(super) first: usize,
    pub(super) model: Option<Span>,
    pub(super) cap: Option<Span>,
    pub(super) previous: Option<Span>,
    /// `metadata` and how many pairs it has; as many as there can be when it is no object.
    pub(super) metadata: Option<(Span, usize)>,
}

/// Pairs that `metadata` may have (the API's own bound).
const MAX_METADATA_PAIRS: usize = 16;

impl ResponsesRequest {
    /// Reads the facts of `body`.
    ///
    /// # Errors
    /// A [`RequestError`] that names the field, the place and the fix.
    pub fn parse(body: Bytes, limits: &Limits) -> Result<Self, RequestError> {
        match parse(&body, limits) {
            Ok((facts, places)) => Ok(Self { body, facts, places, previous: None }),
            Err(refusal) => Err(refusal.locate(&body)),
        }
    }

    #[must_use]
    pub const fn facts(&self) -> &RequestFacts {
        &self.facts
    }

    /// The body as the client sent it.
    #[must_use]
    pub const fn body(&self) -> &Bytes {
        &self.body
    }

    /// Gives the body's memory back when no target will be asked any more; the facts stay.
    pub fn forget_body(&mut self) {
        self.body = Bytes::new();
    }

    /// Names the answer to go on from as its provider does.
    pub fn go_on_from(&mut self, id: String) {
        self.previous = Some(id);
    }

    /// The body for a target, as pieces that share the memory of the client's body: its model, the cap in force, and the
    /// correlation pair where there is room for it.
    #[must_use]
    pub fn rewrite_parts(&self, model: &str, cap: Option<u64>, correlation: Option<(&str, &str)>) -> Vec<Bytes> {
        let mut splice = Splice::new();
        if let Some(span) = self.places.model
            && model != self.facts.model
        {
            splice.replace(span, quoted(model));
        }
        if let (Some(span), Some(id)) = (self.places.previous, &self.previous) {
            splice.replace(span, quoted(id));
        }
        match (cap, self.places.cap) {
            (Some(cap), Some(span)) if self.facts.cap_tokens != Some(cap) => splice.replace(span, cap.to_string()),
            (Some(cap), None) => splice.insert(self.places.first, format!("\"max_output_tokens\":{cap},")),
            (Some(_) | None, _) => {}
        }
        if let Some((key, value)) = correlation {
            let pair = format!("{}:{}", quoted(key), quoted(value));
            match self.places.metadata {
                None => splice.insert(self.places.first, format!("\"metadata\":{{{pair}}},")),
                Some((span, 0)) => splice.insert(span.start + 1, pair),
                Some((span, pairs)) => {
                    let has_room = pairs < MAX_METADATA_PAIRS;
                    let is_taken = Node::of(span.of(&self.body)).is_ok_and(|metadata| metadata.get(key).is_some());
                    if has_room && !is_taken {
                        splice.insert(span.start + 1, format!("{pair},"));
                    }
                }
            }
        }
        splice.into_parts(&self.body)
    }
}

/// Never the body: it holds prompts, and `Debug` ends in logs.
impl fmt::Debug for ResponsesRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponsesRequest")
            .field("model", &self.facts.model)
            .field("bytes", &self.body.len())
            .finish_non_exhaustive()
    }
}
