//! A plain (not streamed) response: facts, and the client's form of it.

use std::fmt;

use bytes::Bytes;

use super::event::{ResponseFacts, ResponseStatus};
use super::ids::{AnswerIds, edits};
use super::usage::read_usage;
use crate::json::{Cursor, JsonError, Span, quoted};
use crate::openai::chat::answer::InBandError;
use crate::openai::chat::stream::unquoted;
use crate::splice::Splice;
use crate::usage::Extracted;

/// A whole answer of a provider, its bytes kept.
#[derive(Clone)]
pub struct ResponseAnswer {
    body: Bytes,
    facts: ResponseFacts,
}

impl ResponseAnswer {
    /// Reads a body that came with a 2xx status.
    ///
    /// # Errors
    /// The body is not one JSON object: the provider broke its protocol.
    pub fn parse(body: Bytes) -> Result<Self, JsonError> {
        let mut cursor = Cursor::new(&body);
        let facts = ResponseFacts::read(&mut cursor)?;
        cursor.end()?;
        Ok(Self { body, facts })
    }

    /// An error in place of an answer, though the status said 200; a response that failed is one.
    #[must_use]
    pub fn error(&self) -> Option<InBandError> {
        let has_failed = self.facts.status == Some(ResponseStatus::Failed);
        let span = self.facts.error.or(has_failed.then_some(Span::new(0, self.body.len())));
        span.map(|span| InBandError::read(span.of(&self.body)))
    }

    /// Whether this is a response at all: it has output, be it empty.
    #[must_use]
    pub const fn is_response(&self) -> bool {
        self.facts.has_output
    }

    #[must_use]
    pub fn usage(&self) -> Option<Extracted> {
        let tools = self.facts.tool_usage.map(|span| span.of(&self.body));
        self.facts.usage.map(|span| read_usage(span.of(&self.body), tools))
    }

    #[must_use]
    pub fn response_id(&self) -> Option<String> {
        self.text(self.facts.id)
    }

    #[must_use]
    pub fn served_tier(&self) -> Option<String> {
        self.text(self.facts.service_tier)
    }

    /// The model's name as the provider reports it; for the ledger, never for the client (O33).
    #[must_use]
    pub fn served_model(&self) -> Option<String> {
        self.text(self.facts.model)
    }

    /// The client's form: `model` is its alias, answers have the names of `ids`, everything else is byte for byte.
    #[must_use]
    pub fn for_client(&self, alias: &str, ids: Option<&dyn AnswerIds>) -> Bytes {
        let mut splice = Splice::new();
        for (span, with) in edits(&self.facts, &quoted(alias), ids, &self.body) {
            splice.replace(span, with);
        }
        splice.into_bytes(&self.body)
    }

    fn text(&self, span: Option<Span>) -> Option<String> {
        span.and_then(|span| unquoted(span.of(&self.body))).filter(|text| !text.is_empty())
    }
}

/// Never the body: it holds completions, and `Debug` ends in logs.
impl fmt::Debug for ResponseAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseAnswer").field("facts", &self.facts).field("bytes", &self.body.len()).finish()
    }
}
