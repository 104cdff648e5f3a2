//! `POST /v1/embeddings`: no stream, no output tokens, and an input that may be token ids.

use std::fmt;

use bytes::Bytes;
use weir_domain::registry::Capability;

use super::chat::PlainAnswer;
use crate::json::{Cursor, Fault, JsonError, Kind, Node, Span, Text, check_utf8, quoted};
use crate::request::values::{Parsed, missing, model_name, owned_field, short_text, twice};
use crate::request::{Limits, RequestFacts};
use crate::request_error::{Refusal, RequestError, RequestErrorCode};
use crate::splice::Splice;

/// A request: its bytes, its facts, and where the model stands.
#[derive(Clone)]
pub struct EmbeddingsRequest {
    body: Bytes,
    facts: RequestFacts,
    model: Span,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Model,
    Input,
    User,
}

const FIELDS: &[(&str, Field)] = &[("model", Field::Model), ("input", Field::Input), ("user", Field::User)];

impl EmbeddingsRequest {
    /// Reads the facts of `body`.
    ///
    /// # Errors
    /// A [`RequestError`] that names the field, the place and the fix.
    pub fn parse(body: Bytes, limits: &Limits) -> Result<Self, RequestError> {
        match read(&body, limits) {
            Ok((facts, model)) => Ok(Self { body, facts, model }),
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

    /// The body for a target, as pieces that share the memory of the client's body: the model's name is the provider's.
    #[must_use]
    pub fn rewrite_parts(&self, model: &str) -> Vec<Bytes> {
        let mut splice = Splice::new();
        if model != self.facts.model {
            splice.replace(self.model, quoted(model));
        }
        splice.into_parts(&self.body)
    }
}

/// Never the body: it holds what people wrote, and `Debug` ends in logs.
impl fmt::Debug for EmbeddingsRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EmbeddingsRequest")
            .field("model", &self.facts.model)
            .field("bytes", &self.body.len())
            .finish_non_exhaustive()
    }
}

fn read(body: &[u8], limits: &Limits) -> Parsed<(RequestFacts, Span)> {
    check_utf8(body)?;
    let mut facts = RequestFacts { choices: 1, cap_tokens: Some(0), ..RequestFacts::default() };
    let (mut model, mut input, mut has_user, mut members) = (None, None, false, 0);
    let mut cursor = Cursor::new(body);
    if cursor.peek()? != Kind::Object {
        return Err(Refusal::from(cursor.fault(Fault::WrongType)));
    }
    cursor.members(|cursor, key| {
        if members == limits.max_members {
            let message = format!("The body has more than {} members.", limits.max_members);
            return Err(Refusal::whole(RequestErrorCode::TooMany, message).at(key.span().start));
        }
        members += 1;
        match owned_field(FIELDS, &key)? {
            None => {
                cursor.skip()?;
            }
            Some((name, Field::Model)) => {
                let (alias, text) = model_name(cursor, limits)?;
                if model.replace(text.span()).is_some() {
                    return Err(twice(name, &key));
                }
                facts.model = alias;
            }
            Some((name, Field::Input)) => {
                if input.replace(read_input(cursor)?).is_some() {
                    return Err(twice(name, &key));
                }
            }
            Some((name, Field::User)) => {
                if std::mem::replace(&mut has_user, true) {
                    return Err(twice(name, &key));
                }
                facts.end_user = short_text(cursor, name, limits)?;
            }
        }
        Ok(())
    })?;
    cursor.end()?;
    let model = model.ok_or_else(|| missing("model", "name a model"))?;
    facts.need(Capability::Embeddings);
    facts.size.text_bytes = input.ok_or_else(|| missing("input", "send a string or an array"))?;
    Ok((facts, model))
}

/// Bytes that bound the tokens of `input`: those of its texts, and of arrays of token ids, where each id has a comma or
/// bracket of its own, so that there are never more ids than bytes.
fn read_input(cursor: &mut Cursor<'_>) -> Parsed<u64> {
    let at = cursor.offset();
    match cursor.peek()? {
        Kind::String | Kind::Array => Ok(cursor.skip()?.span.len() as u64),
        Kind::Object | Kind::Number | Kind::True | Kind::False | Kind::Null => {
            Err(Refusal::invalid("input", "`input` must be a string or an array.").at(at))
        }
    }
}

/// Whether a plain answer is one of this API: it has `data`.
#[must_use]
pub fn is_embeddings(answer: &PlainAnswer) -> bool {
    Node::of(answer.body()).ok().and_then(|node| node.get("data")).is_some_and(|data| data.kind == Kind::Array)
}

/// What an embeddings answer used: `prompt_tokens`; there is no output, so `completion_tokens` is not asked for.
#[must_use]
pub fn read_usage(object: &[u8]) -> crate::usage::Extracted {
    use weir_domain::usage::{Meter, Usage};

    use crate::usage::{Count, Extracted, UsageFlag, count};

    let mut prompt = Count::Absent;
    let read = Cursor::new(object).members(|cursor, key: Text<'_>| {
        if key.is("prompt_tokens") {
            prompt = count(cursor)?;
            return Ok(());
        }
        cursor.skip().map(|_| ())
    });
    let read: Result<Span, JsonError> = read;
    match (read, prompt) {
        (Ok(_), Count::Of(0)) => Extracted::unknown(UsageFlag::AllZero),
        (Ok(_), Count::Of(tokens)) => match Usage::new([(Meter::InUncached, tokens)]) {
            Ok(usage) => Extracted { usage: Some(usage), flags: Vec::new() },
            Err(_) => Extracted::unknown(UsageFlag::Unreadable),
        },
        (Ok(_) | Err(_), _) => Extracted::unknown(UsageFlag::Unreadable),
    }
}
