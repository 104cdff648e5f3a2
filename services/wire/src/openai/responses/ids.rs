//! The names of stored answers, which a client gives back to go on from them.
//!
//! A provider's name says neither whose account has the answer nor who may use it, so the gateway gives the client a name
//! of its own, made from the provider's. Inside a response the answer is named twice at most: its own `id`, and the
//! `previous_response_id` that it went on from.

use std::fmt;

use super::event::ResponseFacts;
use crate::json::{Span, quoted};
use crate::openai::chat::stream::unquoted;

/// Gives a provider's names of answers the form that the client sees.
pub trait AnswerIds: fmt::Debug + Send + Sync {
    fn for_client(&self, id: &str) -> String;
}

/// What of a response is replaced for the client, in order: names and the model. Spans are into `data`.
pub(super) fn edits(
    response: &ResponseFacts,
    alias: &str,
    ids: Option<&dyn AnswerIds>,
    data: &[u8],
) -> Vec<(Span, String)> {
    let mut edits: Vec<(Span, String)> = response.model.map(|span| (span, alias.to_owned())).into_iter().collect();
    if let Some(ids) = ids {
        let named = [response.id, response.previous_response_id].into_iter().flatten();
        edits.extend(named.filter_map(|span| Some((span, quoted(&ids.for_client(&unquoted(span.of(data))?))))));
    }
    edits.sort_by_key(|(span, _)| span.start);
    edits
}
