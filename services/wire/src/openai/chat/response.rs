//! A plain (not streamed) answer: facts, and the client's form of it.

use std::fmt;

use bytes::Bytes;

use super::answer::{AnswerFacts, Finish, InBandError};
use super::stream::unquoted;
use super::usage::read_usage;
use crate::json::{JsonError, Span, quoted};
use crate::splice::Splice;
use crate::usage::Extracted;

/// A whole answer of a provider, its bytes kept.
#[derive(Clone)]
pub struct PlainAnswer {
    body: Bytes,
    facts: AnswerFacts,
}

impl PlainAnswer {
    /// Reads a body that came with a 2xx status.
    ///
    /// # Errors
    /// The body is not one JSON object: the provider broke its protocol.
    pub fn parse(body: Bytes) -> Result<Self, JsonError> {
        let facts = AnswerFacts::scan(&body)?;
        Ok(Self { body, facts })
    }

    #[must_use]
    pub const fn body(&self) -> &Bytes {
        &self.body
    }

    #[must_use]
    pub const fn facts(&self) -> &AnswerFacts {
        &self.facts
    }

    /// An error object in place of an answer, though the status said 200.
    #[must_use]
    pub fn error(&self) -> Option<InBandError> {
        self.facts.error.map(|span| InBandError::read(span.of(&self.body)))
    }

    #[must_use]
    pub fn usage(&self) -> Option<Extracted> {
        self.facts.usage_anywhere().map(|span| read_usage(span.of(&self.body)))
    }

    /// The finish reason of the first choice that has one, for logs and metrics.
    #[must_use]
    pub fn finish(&self) -> Option<Finish> {
        self.facts.choices.iter().find_map(|choice| choice.finish)
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

    /// The client's form: `model` is its alias, everything else byte for byte.
    #[must_use]
    pub fn for_client(&self, alias: &str) -> Bytes {
        let mut splice = Splice::new();
        match self.facts.model {
            Some(span) => splice.replace(span, quoted(alias)),
            None if self.facts.is_empty => {}
            None => splice.insert(self.facts.first, format!("\"model\":{},", quoted(alias))),
        }
        splice.into_bytes(&self.body)
    }

    fn text(&self, span: Option<Span>) -> Option<String> {
        span.and_then(|span| unquoted(span.of(&self.body))).filter(|text| !text.is_empty())
    }
}

/// Never the body: it holds completions, and `Debug` ends in logs.
impl fmt::Debug for PlainAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlainAnswer").field("facts", &self.facts).field("bytes", &self.body.len()).finish()
    }
}
