//! What Anthropic refuses in a request. A translation that produced it would fail in production, so it fails here.

use http::HeaderMap;
use serde::Deserialize;
use serde_json::Value;

use super::{Asked, Refusal};
use crate::dialect::Special;

const OLDER: &str = "2023-06-01";
/// Took the sampling parameters away.
const NEWER: &str = "2026-10-21";

#[derive(Deserialize)]
struct Request {
    model: Option<String>,
    messages: Option<Vec<Message>>,
    #[serde(default)]
    max_tokens: Option<u64>,
    #[serde(default)]
    stream: Option<bool>,
    #[serde(default)]
    system: Option<Value>,
    #[serde(default)]
    temperature: Option<Value>,
    #[serde(default)]
    top_p: Option<Value>,
    #[serde(default)]
    top_k: Option<Value>,
    #[serde(default)]
    stream_options: Option<Value>,
}

#[derive(Deserialize)]
struct Message {
    role: String,
    content: Value,
}

pub(super) fn read(headers: &HeaderMap, body: &[u8], generates: bool) -> Result<Asked, Refusal> {
    check_headers(headers)?;
    let request: Request = serde_json::from_slice(body)
        .map_err(|error| Refusal::bad(None, format!("The request body is not valid: {error}")))?;
    if generates && request.max_tokens.is_none() {
        return Err(required("max_tokens"));
    }
    let sampling = [("temperature", &request.temperature), ("top_p", &request.top_p), ("top_k", &request.top_k)];
    let version = headers.get(VERSION).map_or(&b""[..], |version| version.as_bytes());
    if let Some((field, _)) = sampling.iter().find(|(_, value)| value.is_some() && version == NEWER.as_bytes()) {
        return Err(Refusal::bad(Some(field), format!("not permitted in version {NEWER}")));
    }
    if request.stream_options.is_some() {
        return Err(Refusal::bad(Some("stream_options"), "Extra inputs are not permitted"));
    }
    check_texts(request.system.as_ref().unwrap_or(&Value::Null), "system")?;
    check_messages(&request.messages.ok_or_else(|| required("messages"))?)?;
    Ok(Asked {
        model: request.model.ok_or_else(|| required("model"))?,
        stream: request.stream.unwrap_or(false) && generates,
        include_usage: true,
        choices: None,
        cap: request.max_tokens,
        service_tier: None,
        metadata: None,
        special: Special::Nothing,
    })
}

const VERSION: &str = "anthropic-version";

fn required(field: &'static str) -> Refusal {
    Refusal::bad(Some(field), "Field required")
}

fn check_headers(headers: &HeaderMap) -> Result<(), Refusal> {
    if !headers.contains_key("x-api-key") && !headers.contains_key(http::header::AUTHORIZATION) {
        let message = "x-api-key header is required".to_owned();
        return Err(Refusal { status: http::StatusCode::UNAUTHORIZED, message, field: None });
    }
    match headers.get(VERSION).map(|version| version.as_bytes()) {
        None => Err(Refusal::bad(Some(VERSION), "header is required")),
        Some(version) if version == OLDER.as_bytes() || version == NEWER.as_bytes() => Ok(()),
        Some(version) => {
            let version = String::from_utf8_lossy(version).into_owned();
            Err(Refusal::bad(Some(VERSION), format!("\"{version}\" is not a valid version")))
        }
    }
}

/// Turns in the order that the model was trained on: every call is answered by the very next turn, results first.
fn check_messages(messages: &[Message]) -> Result<(), Refusal> {
    if messages.is_empty() {
        return Err(Refusal::bad(Some("messages"), "at least one message is required"));
    }
    let mut called: Vec<&str> = Vec::new();
    for (at, message) in messages.iter().enumerate() {
        let place = format!("messages.{at}");
        let is_last = at + 1 == messages.len();
        match message.role.as_str() {
            "user" => check_results(&message.content, &place, &called)?,
            "assistant" if called.is_empty() => {}
            "assistant" => return Err(unanswered(&place, &called)),
            role => return Err(Refusal::bad(None, format!("{place}.role: unexpected role \"{role}\""))),
        }
        // The last turn of the assistant is the start of its answer, and may be open.
        if !(is_last && message.role == "assistant") {
            check_texts(&message.content, &place)?;
        }
        called = blocks(&message.content, "tool_use").filter_map(|block| block.get("id")?.as_str()).collect();
        check_thinking(&message.content, &place)?;
    }
    if called.is_empty() { Ok(()) } else { Err(unanswered("messages", &called)) }
}

fn unanswered(place: &str, called: &[&str]) -> Refusal {
    let ids = called.join(", ");
    Refusal::bad(
        None,
        format!("{place}: `tool_use` ids were found without `tool_result` blocks immediately after: {ids}"),
    )
}

fn blocks<'a>(content: &'a Value, kind: &'a str) -> impl Iterator<Item = &'a Value> {
    let blocks = content.as_array().map_or(&[][..], Vec::as_slice);
    blocks.iter().filter(move |block| block.get("type").and_then(Value::as_str) == Some(kind))
}

fn check_results(content: &Value, place: &str, called: &[&str]) -> Result<(), Refusal> {
    let mut open = called.to_vec();
    for result in blocks(content, "tool_result") {
        let id = result.get("tool_use_id").and_then(Value::as_str).unwrap_or_default();
        let Some(at) = open.iter().position(|called| *called == id) else {
            let message = format!("{place}: unexpected `tool_use_id` found in `tool_result` blocks: {id}");
            return Err(Refusal::bad(None, message));
        };
        open.remove(at);
    }
    if !open.is_empty() {
        return Err(unanswered(place, &open));
    }
    let first = content.get(0).and_then(|block| block.get("type")?.as_str());
    if !called.is_empty() && first != Some("tool_result") {
        return Err(Refusal::bad(None, format!("{place}: `tool_result` blocks must come first")));
    }
    Ok(())
}

fn check_texts(content: &Value, place: &str) -> Result<(), Refusal> {
    let blank = |text: &Value| text.as_str().is_some_and(|text| text.trim().is_empty());
    match content {
        Value::String(_) if blank(content) => {
            Err(Refusal::bad(None, format!("{place}: text content must be non-empty")))
        }
        Value::Array(all) if all.is_empty() => Err(Refusal::bad(None, format!("{place}: content must be non-empty"))),
        Value::Array(_) => match blocks(content, "text").find(|block| block.get("text").is_none_or(blank)) {
            Some(_) => {
                Err(Refusal::bad(None, format!("{place}: text content blocks must contain non-whitespace text")))
            }
            None => Ok(()),
        },
        Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => Ok(()),
    }
}

/// What the model thought comes back as it was signed, or not at all. Only the stub's own signatures can be checked.
fn check_thinking(content: &Value, place: &str) -> Result<(), Refusal> {
    for block in blocks(content, "thinking") {
        let text = |field| block.get(field).and_then(Value::as_str);
        let (thinking, signed) = (text("thinking").unwrap_or_default(), text("signature"));
        match signed {
            None => return Err(Refusal::bad(None, format!("{place}.content: `signature`: Field required"))),
            Some(signed) if signed.starts_with(SIGNATURE) && signed != signature(thinking) => {
                return Err(Refusal::bad(None, format!("{place}.content: Invalid `signature` in `thinking` block")));
            }
            Some(_) => {}
        }
    }
    Ok(())
}

const SIGNATURE: &str = "stub-";

/// FNV-1a: a signature that tells a changed text from the same one is all that is asked.
pub(super) fn signature(thinking: &str) -> String {
    let hash = thinking
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    format!("{SIGNATURE}{hash:016x}")
}
