//! The values of fields that Weir owns, read the same way in every dialect.

use super::Limits;
use crate::json::{Cursor, Kind, Text};
use crate::request_error::{Refusal, RequestErrorCode};

pub(crate) type Parsed<T> = Result<T, Refusal>;

/// Which of `fields` a key names. A field that Weir owns has one spelling: servers disagree about others.
pub(crate) fn owned_field<F: Copy>(fields: &[(&'static str, F)], key: &Text<'_>) -> Parsed<Option<(&'static str, F)>> {
    let name = key.decoded_bytes();
    for (known, field) in fields {
        if name.as_ref() == known.as_bytes() {
            return Ok(Some((known, *field)));
        }
        if name.eq_ignore_ascii_case(known.as_bytes()) {
            let message = format!("Write `{known}` in lower case: servers disagree about other spellings.");
            return Err(Refusal::invalid(known, message).at(key.span().start));
        }
    }
    Ok(None)
}

/// A field that stands there twice: which one counts would depend on who reads it.
pub(crate) fn twice(name: &str, key: &Text<'_>) -> Refusal {
    let message = format!("`{name}` stands there more than once: send it once.");
    Refusal::new(RequestErrorCode::DuplicateField, name, message).at(key.span().start)
}

/// A required field that is not there.
pub(crate) fn missing(name: &str, what: &str) -> Refusal {
    Refusal::new(RequestErrorCode::MissingField, name, format!("`{name}` is missing: {what}."))
}

/// The alias in `model`.
pub(crate) fn model_name<'a>(cursor: &mut Cursor<'a>, limits: &Limits) -> Parsed<(String, Text<'a>)> {
    let at = cursor.offset();
    if cursor.peek()? != Kind::String {
        return Err(Refusal::invalid("model", "`model` must be a string.").at(at));
    }
    let text = cursor.string()?;
    if text.is_empty() {
        return Err(Refusal::invalid("model", "`model` is empty: name a model.").at(at));
    }
    Ok((bounded(&text, "model", limits)?, text))
}

/// A short string, or null for none.
pub(crate) fn short_text(cursor: &mut Cursor<'_>, field: &str, limits: &Limits) -> Parsed<Option<String>> {
    let at = cursor.offset();
    match cursor.peek()? {
        Kind::String => bounded(&cursor.string()?, field, limits).map(Some),
        Kind::Null => {
            cursor.skip()?;
            Ok(None)
        }
        Kind::Object | Kind::Array | Kind::Number | Kind::True | Kind::False => {
            Err(Refusal::invalid(field, format!("`{field}` must be a string.")).at(at))
        }
    }
}

pub(crate) fn bounded(text: &Text<'_>, field: &str, limits: &Limits) -> Parsed<String> {
    if text.raw().len() > limits.max_name_bytes {
        let message = format!("A name in `{field}` is longer than {} bytes.", limits.max_name_bytes);
        return Err(Refusal::invalid(field, message).at(text.span().start));
    }
    Ok(text.decode().into_owned())
}

pub(crate) fn flag(cursor: &mut Cursor<'_>, field: &str) -> Parsed<bool> {
    let value = cursor.skip()?;
    match value.kind {
        Kind::True => Ok(true),
        Kind::False | Kind::Null => Ok(false),
        Kind::Object | Kind::Array | Kind::String | Kind::Number => {
            Err(Refusal::invalid(field, format!("`{field}` must be true or false.")).at(value.span.start))
        }
    }
}

/// A whole number between `least` and `most`, written as digits only: `5.0`, `1e3` and `"5"` are read differently by
/// different servers, and a cap must mean one thing.
pub(crate) fn integer(cursor: &mut Cursor<'_>, field: &str, least: u64, most: u64) -> Parsed<Option<u64>> {
    let value = cursor.skip()?;
    if value.is_null() {
        return Ok(None);
    }
    let text = std::str::from_utf8(value.span.of(cursor.bytes())).unwrap_or_default();
    match text.parse::<u64>() {
        Ok(number) if value.kind == Kind::Number && (least..=most).contains(&number) => Ok(Some(number)),
        _ => {
            let message = format!("`{field}` must be a whole number from {least} to {most}.");
            Err(Refusal::invalid(field, message).at(value.span.start))
        }
    }
}
