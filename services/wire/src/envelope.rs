//! Errors as a client's SDK expects them, in its own dialect (O38).
//!
//! A body for error statuses, an event for streams that broke. OpenAI's is a bare `data:` line with everything extra
//! inside `error`, and no `event:` line: older and newer official SDKs raise on that form and on no other. Anthropic's is
//! `event: error` with a documented type, on which its SDKs raise; the Responses API has a typed event.

use std::fmt::Write as _;

use bytes::Bytes;

use crate::dialect::{Dialect, Family};
use crate::json::push_quoted;
use crate::openai::chat::answer::InBandError;

/// An error for a client.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClientError {
    /// Never a key, a prompt, or a provider's model name.
    pub message: String,
    /// The dialect's error type, such as `invalid_request_error`.
    pub kind: String,
    pub param: Option<String>,
    /// The stable code.
    pub code: Option<String>,
    /// Further members of the error object, in this order.
    pub extras: Vec<(&'static str, Extra)>,
}

/// The value of a further member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Extra {
    Text(String),
    Number(u64),
    Flag(bool),
}

impl ClientError {
    #[must_use]
    pub fn new(kind: &str, code: &str, message: impl Into<String>) -> Self {
        let (kind, code) = (kind.to_owned(), Some(code.to_owned()));
        Self { message: message.into(), kind, param: None, code, extras: Vec::new() }
    }

    #[must_use]
    pub fn with_param(mut self, param: Option<&str>) -> Self {
        self.param = param.map(str::to_owned);
        self
    }

    #[must_use]
    pub fn with(mut self, name: &'static str, value: Extra) -> Self {
        self.extras.push((name, value));
        self
    }
}

/// How a committed stream broke.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Break<'a> {
    /// A stable word, such as `transport_error` or `read_timeout`.
    pub reason: &'a str,
    /// Chunks with content that the client has got (O11).
    pub chunks_delivered: u64,
    pub request_id: &'a str,
    /// The number of this event, in a dialect that numbers them; 0 where nothing was sent before.
    pub sequence_number: u64,
}

/// The `content-type` of every error body.
pub const ERROR_CONTENT_TYPE: &str = "application/json";

/// The body of an error answer whose status is `status`.
#[must_use]
pub fn error_body(dialect: Dialect, status: u16, error: &ClientError, request_id: &str) -> Bytes {
    match dialect.family() {
        Family::OpenAi => Bytes::from(openai_error(error)),
        Family::Anthropic => Bytes::from(anthropic_error(anthropic_type(error, status), error, request_id)),
    }
}

/// The event that ends a stream which can no longer be completed. No sentinel may follow it.
#[must_use]
pub fn stream_error_event(dialect: Dialect, error: &ClientError, broken: &Break<'_>) -> Bytes {
    let error = error
        .clone()
        .with("reason", Extra::Text(broken.reason.to_owned()))
        .with("chunks_delivered", Extra::Number(broken.chunks_delivered))
        .with("incomplete", Extra::Flag(true));
    let numbered = || error.clone().with("request_id", Extra::Text(broken.request_id.to_owned()));
    Bytes::from(match dialect {
        Dialect::OpenAiChat | Dialect::OpenAiEmbeddings => format!("data: {}\n\n", openai_error(&numbered())),
        Dialect::OpenAiResponses => responses_event(&numbered(), broken.sequence_number),
        Dialect::AnthropicMessages => {
            let status =
                if broken.reason.contains("timeout") || broken.reason.contains("deadline") { 504 } else { 500 };
            let data = anthropic_error(anthropic_type(&error, status), &error, broken.request_id);
            format!("event: error\ndata: {data}\n\n")
        }
    })
}

/// What keeps a silent connection open; to be written between events only, and only after the answer's status is out.
///
/// A comment is safe for old decoders because Weir's streams never carry an `id:` field (O04). Anthropic has an event of
/// its own, which its SDKs skip.
#[must_use]
pub const fn keep_alive(dialect: Dialect) -> &'static [u8] {
    match dialect {
        Dialect::OpenAiChat | Dialect::OpenAiResponses | Dialect::OpenAiEmbeddings => b": ping\n\n",
        Dialect::AnthropicMessages => b"event: ping\ndata: {\"type\":\"ping\"}\n\n",
    }
}

/// The typed event of the Responses API, and beside its own members the `error` object on which the SDKs raise.
fn responses_event(error: &ClientError, sequence_number: u64) -> String {
    let mut data = format!(r#"{{"type":"error","sequence_number":{sequence_number},"code":"#);
    push_optional(&mut data, error.code.as_deref());
    data.push_str(r#","message":"#);
    push_quoted(&mut data, &error.message);
    data.push_str(r#","param":"#);
    push_optional(&mut data, error.param.as_deref());
    let object = openai_error(error);
    // The object's own opening brace gives way to the comma that joins both.
    format!("event: error\ndata: {data},{}\n\n", &object[1..])
}

/// The error's type in this API: its own word where it is one, else what the status says.
fn anthropic_type(error: &ClientError, status: u16) -> &'static str {
    const TYPES: &[&str] = &[
        "invalid_request_error",
        "authentication_error",
        "billing_error",
        "permission_error",
        "not_found_error",
        "conflict_error",
        "request_too_large",
        "rate_limit_error",
        "api_error",
        "timeout_error",
        "overloaded_error",
    ];
    let of_status = match status {
        401 => "authentication_error",
        402 => "billing_error",
        403 => "permission_error",
        404 => "not_found_error",
        409 => "conflict_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        400..=499 => "invalid_request_error",
        504 => "timeout_error",
        529 => "overloaded_error",
        _ => "api_error",
    };
    // Weir's own words are OpenAI's; `invalid_request_error` beside a finer status is less than the status says.
    let own = TYPES.iter().copied().find(|name| *name == error.kind);
    own.filter(|name| *name != "invalid_request_error").unwrap_or(of_status)
}

fn anthropic_error(kind: &str, error: &ClientError, request_id: &str) -> String {
    let mut out = String::with_capacity(200 + error.message.len());
    out.push_str(r#"{"type":"error","error":{"type":"#);
    push_quoted(&mut out, kind);
    out.push_str(r#","message":"#);
    push_quoted(&mut out, &error.message);
    if let Some(code) = &error.code {
        out.push_str(r#","details":{"error_code":"#);
        push_quoted(&mut out, code);
        if let Some(param) = &error.param {
            out.push_str(r#","param":"#);
            push_quoted(&mut out, param);
        }
        out.push('}');
    }
    push_extras(&mut out, &error.extras);
    out.push_str(r#"},"request_id":"#);
    push_quoted(&mut out, request_id);
    out.push('}');
    out
}

fn openai_error(error: &ClientError) -> String {
    let mut out = String::with_capacity(160 + error.message.len());
    out.push_str(r#"{"error":{"message":"#);
    push_quoted(&mut out, &error.message);
    out.push_str(r#","type":"#);
    push_quoted(&mut out, &error.kind);
    out.push_str(r#","param":"#);
    push_optional(&mut out, error.param.as_deref());
    out.push_str(r#","code":"#);
    push_optional(&mut out, error.code.as_deref());
    push_extras(&mut out, &error.extras);
    out.push_str("}}");
    out
}

fn push_optional(out: &mut String, text: Option<&str>) {
    match text {
        Some(text) => push_quoted(out, text),
        None => out.push_str("null"),
    }
}

fn push_extras(out: &mut String, extras: &[(&'static str, Extra)]) {
    for (name, value) in extras {
        out.push(',');
        push_quoted(out, name);
        out.push(':');
        match value {
            Extra::Text(text) => push_quoted(out, text),
            Extra::Number(number) => {
                // Writing to a string cannot fail.
                let _ = write!(out, "{number}");
            }
            Extra::Flag(flag) => out.push_str(if *flag { "true" } else { "false" }),
        }
    }
}

/// What must not reach a client in a provider's words.
#[derive(Debug, Clone, Copy)]
pub struct Redaction<'a> {
    /// The model's name at the provider, and the alias to say instead (O33).
    pub upstream_model: &'a str,
    pub alias: &'a str,
    /// Texts to blank out, such as the provider's credential and host.
    pub hidden: &'a [&'a str],
}

/// A provider's error answer, fit for the client: message, type, code and param kept, names and secrets hidden. A body
/// in no known form is not relayed; its status is said instead. All dialects' errors are read alike.
#[must_use]
pub fn relayed_error(status: u16, body: &[u8], redaction: &Redaction<'_>) -> ClientError {
    relayed_in_band(status, &InBandError::of_body(body), redaction)
}

/// The same for an error that came inside a 200.
#[must_use]
pub fn relayed_in_band(status: u16, error: &InBandError, redaction: &Redaction<'_>) -> ClientError {
    let hide = |text: &str| redact(text, redaction);
    let message = match error.message.as_str() {
        "" => format!("The provider answered with status {status}."),
        message => hide(message),
    };
    let kind = error.kind.as_deref().unwrap_or(if status < 500 { "invalid_request_error" } else { "server_error" });
    ClientError {
        message,
        kind: hide(kind),
        param: error.param.as_deref().map(hide),
        code: error.code.as_deref().map(hide),
        extras: Vec::new(),
    }
}

fn redact(text: &str, redaction: &Redaction<'_>) -> String {
    let mut text = text.to_owned();
    for hidden in redaction.hidden.iter().filter(|hidden| !hidden.is_empty()) {
        text = text.replace(hidden, HIDDEN);
    }
    mask_keys(&replace_name(&text, redaction.upstream_model, redaction.alias))
}

const HIDDEN: &str = "[hidden]";

/// Replaces `name` where it stands alone: a model called `m` is not in every word with that letter.
fn replace_name(text: &str, name: &str, with: &str) -> String {
    if name.is_empty() {
        return text.to_owned();
    }
    let is_part = |character: char| character.is_alphanumeric() || matches!(character, '-' | '_');
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(name) {
        let (before, after) = (&rest[..at], &rest[at + name.len()..]);
        let joins_before = before.chars().next_back().or(out.chars().next_back()).is_some_and(is_part);
        let joins_after = after.chars().next().is_some_and(is_part);
        out.push_str(before);
        out.push_str(if joins_before || joins_after { name } else { with });
        rest = after;
    }
    out.push_str(rest);
    out
}

/// Blanks words that look like keys, whoever's they are: providers echo part of what they were sent.
fn mask_keys(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut follows_bearer = false;
    for word in text.split_inclusive(char::is_whitespace) {
        let bare = word.trim_end();
        let key_at = if follows_bearer { Some(0) } else { key_start(bare) };
        follows_bearer = bare.ends_with("Bearer");
        match key_at {
            Some(at) if bare.len() - at >= MIN_KEY_BYTES => {
                out.push_str(&bare[..at]);
                out.push_str(HIDDEN);
                out.push_str(&word[bare.len()..]);
            }
            Some(_) | None => out.push_str(word),
        }
    }
    out
}

const MIN_KEY_BYTES: usize = 8;

/// Where a key begins in a word: not inside one, as in `task-specific`.
fn key_start(word: &str) -> Option<usize> {
    ["sk-", "sk_"]
        .iter()
        .flat_map(|prefix| word.match_indices(prefix))
        .map(|(at, _)| at)
        .find(|at| !word[..*at].ends_with(char::is_alphanumeric))
}

#[cfg(test)]
mod tests;
