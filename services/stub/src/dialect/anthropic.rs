//! Anthropic's messages, and the count of a prompt's tokens.
//!
//! Streams have every event that the real one has, each with its name, in the real order: the message opens with what was
//! read, each block is opened and closed, `message_delta` has the cumulative usage.

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use serde_json::{Value, json};

use super::text::{put, put_event, texts_of, unescaped, unescaped_text};
use super::{Answer, Asked, Dialect, Figures, Refusal, Work};
use crate::outline::{Item, Outline, Part, Step};
use crate::script::{Fault, ReportUsage};

mod request;

#[derive(Debug)]
pub(super) struct Messages;

/// `POST …/messages/count_tokens`: the same prompt, nothing generated, no charge.
#[derive(Debug)]
pub(super) struct CountTokens;

impl Dialect for Messages {
    fn read(&self, headers: &HeaderMap, body: &[u8]) -> Result<Asked, Refusal> {
        request::read(headers, body, true)
    }

    fn prompt_texts(&self, body: &[u8]) -> Vec<String> {
        prompt_texts(body)
    }

    fn work(&self) -> Work {
        Work::Generates
    }

    fn id_header(&self) -> &'static str {
        ID_HEADER
    }

    fn plain(&self, answer: &Answer) -> Bytes {
        let mut message = message(answer);
        let blocks = answer.items().into_iter().map(|item| whole_block(answer, item)).collect();
        message["content"] = Value::Array(blocks);
        message["stop_reason"] = stop_reason(answer);
        message["usage"] = usage(answer);
        if answer.prepared.script.usage.report == ReportUsage::Never
            && let Some(fields) = message.as_object_mut()
        {
            fields.remove("usage");
        }
        Bytes::from(message.to_string())
    }

    fn outline(&self, answer: &Answer) -> Outline {
        let script = &answer.prepared.script;
        let opening = usize::from(script.role_chunk);
        let mut outline = Outline::default().then(Step::Opening, opening);
        for (index, item) in answer.items().into_iter().enumerate() {
            let (start, pieces) = match item {
                Item::Thinking => (1, answer.prepared.thoughts.len()),
                Item::Text => (1, answer.chunks),
                Item::Tool(tool) => (0, answer.prepared.tools[tool].fragments.len() + 1),
            };
            outline = outline.then(Step::Start(item), start);
            outline = outline.then(Step::Ping, if index == 0 { opening } else { 0 });
            // The signature is an event of its own, before the end of its block.
            let ends = if item == Item::Thinking { 2 } else { 1 };
            outline = outline.then(Step::Piece(item), pieces).then(Step::End(item), ends);
        }
        outline.then(Step::Finish, 1).then(Step::Done, usize::from(script.done))
    }

    fn part(&self, answer: &Answer, part: Part, out: &mut Vec<u8>) {
        match part.step {
            Step::Opening => put_event(out, &json!({"type": "message_start", "message": opening(answer)})),
            Step::Ping => self.ping(out),
            Step::Start(item) => put_event(
                out,
                &json!({"type": "content_block_start", "index": answer.index_of(item), "content_block": empty_block(answer, item)}),
            ),
            Step::Piece(item @ Item::Text) => {
                put_delta(answer.index_of(item), "text_delta", "text", &answer.prepared.pieces[part.turn], out);
            }
            Step::Piece(item @ Item::Thinking) => {
                put_delta(
                    answer.index_of(item),
                    "thinking_delta",
                    "thinking",
                    &answer.prepared.thoughts[part.turn],
                    out,
                );
            }
            Step::Piece(item @ Item::Tool(tool)) => match part.turn.checked_sub(1) {
                None => self.part(answer, Part { step: Step::Start(item), ..part }, out),
                Some(turn) => {
                    let fragment = answer.prepared.tools[tool].fragments[turn].as_bytes();
                    put_delta(answer.index_of(item), "input_json_delta", "partial_json", fragment, out);
                }
            },
            Step::End(item @ Item::Thinking) if part.turn == 0 => {
                let signature = request::signature(&unescaped(&answer.prepared.thoughts));
                put_delta(answer.index_of(item), "signature_delta", "signature", signature.as_bytes(), out);
            }
            Step::End(item) => put_event(out, &json!({"type": "content_block_stop", "index": answer.index_of(item)})),
            Step::Finish => {
                let delta = json!({"stop_reason": stop_reason(answer), "stop_sequence": null});
                let mut event = json!({"type": "message_delta", "delta": delta});
                if answer.prepared.script.usage.report != ReportUsage::Never {
                    event["usage"] = cumulative_usage(answer);
                }
                put_event(out, &event);
            }
            Step::Done => put_event(out, &json!({"type": "message_stop"})),
            Step::Usage => {}
        }
    }

    fn ping(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"event: ping\ndata: {\"type\":\"ping\"}\n\n");
    }

    fn error_event(&self, fault: &Fault, _: usize, out: &mut Vec<u8>) {
        let message = fault.message.as_deref().unwrap_or("Overloaded");
        let kind = fault.code.as_deref().unwrap_or("overloaded_error");
        put_event(
            out,
            &json!({"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_stub"}),
        );
    }

    fn error_body(&self, status: StatusCode, message: &str, field: Option<&str>) -> Bytes {
        error_body(status, message, field)
    }
}

impl Dialect for CountTokens {
    fn read(&self, headers: &HeaderMap, body: &[u8]) -> Result<Asked, Refusal> {
        request::read(headers, body, false)
    }

    fn prompt_texts(&self, body: &[u8]) -> Vec<String> {
        prompt_texts(body)
    }

    fn work(&self) -> Work {
        Work::Counts
    }

    fn id_header(&self) -> &'static str {
        ID_HEADER
    }

    fn plain(&self, answer: &Answer) -> Bytes {
        Bytes::from(json!({"input_tokens": answer.figures.prompt}).to_string())
    }

    fn error_body(&self, status: StatusCode, message: &str, field: Option<&str>) -> Bytes {
        error_body(status, message, field)
    }
}

const ID_HEADER: &str = "request-id";

fn prompt_texts(body: &[u8]) -> Vec<String> {
    let Ok(Value::Object(request)) = serde_json::from_slice(body) else { return Vec::new() };
    let messages = request.get("messages").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let contents =
        request.get("system").into_iter().chain(messages.iter().filter_map(|message| message.get("content")));
    contents.flat_map(texts_of).collect()
}

fn put_delta(index: usize, kind: &str, field: &str, piece: &[u8], out: &mut Vec<u8>) {
    put(
        out,
        format_args!(
            "event: content_block_delta\ndata: {{\"type\":\"content_block_delta\",\"index\":{index},\"delta\":{{\"type\":\"{kind}\",\"{field}\":\""
        ),
    );
    out.extend_from_slice(piece);
    out.extend_from_slice(b"\"}}\n\n");
}

/// Everything but content, end and usage.
fn message(answer: &Answer) -> Value {
    json!({
        "id": answer.id, "type": "message", "role": "assistant", "model": answer.asked.model, "content": [],
        "stop_reason": null, "stop_sequence": null,
    })
}

/// As a stream opens it: nothing was written yet but the first token.
fn opening(answer: &Answer) -> Value {
    let mut message = message(answer);
    if answer.prepared.script.usage.report != ReportUsage::Never {
        message["usage"] = usage_of(answer, Figures { completion: 1, reasoning: 0, ..answer.figures });
    }
    message
}

fn empty_block(answer: &Answer, item: Item) -> Value {
    match item {
        Item::Thinking => json!({"type": "thinking", "thinking": "", "signature": ""}),
        Item::Text => json!({"type": "text", "text": ""}),
        Item::Tool(tool) => tool_use(answer, tool, json!({})),
    }
}

fn whole_block(answer: &Answer, item: Item) -> Value {
    match item {
        Item::Thinking => {
            let thinking = unescaped(&answer.prepared.thoughts);
            json!({"type": "thinking", "signature": request::signature(&thinking), "thinking": thinking})
        }
        Item::Text => json!({"type": "text", "text": unescaped(&answer.prepared.pieces[..answer.chunks])}),
        Item::Tool(tool) => {
            let arguments = unescaped_text(&answer.prepared.tools[tool].fragments);
            // A model that writes no JSON has, as far as the API tells, called with nothing.
            tool_use(answer, tool, serde_json::from_str(&arguments).unwrap_or_else(|_| json!({})))
        }
    }
}

fn tool_use(answer: &Answer, tool: usize, input: Value) -> Value {
    let call = &answer.prepared.tools[tool];
    let text = |json: &str| serde_json::from_str::<Value>(json).unwrap_or_default();
    json!({"type": "tool_use", "id": text(&call.id), "name": text(&call.name), "input": input})
}

fn stop_reason(answer: &Answer) -> Value {
    match answer.prepared.script.finish_reason.as_deref() {
        Some("") => Value::Null,
        Some(reason) => reason.into(),
        None if answer.capped => "max_tokens".into(),
        None if !answer.prepared.tools.is_empty() => "tool_use".into(),
        None => "end_turn".into(),
    }
}

fn usage(answer: &Answer) -> Value {
    match &answer.prepared.script.usage.verbatim {
        Some(verbatim) => verbatim.clone(),
        None => usage_of(answer, answer.figures),
    }
}

fn usage_of(answer: &Answer, figures: Figures) -> Value {
    let script = &answer.prepared.script;
    json!({
        "input_tokens": figures.uncached(),
        "cache_creation_input_tokens": figures.cache_write,
        "cache_read_input_tokens": figures.cached,
        "cache_creation": {
            "ephemeral_5m_input_tokens": figures.cache_write.saturating_sub(figures.cache_write_long),
            "ephemeral_1h_input_tokens": figures.cache_write_long,
        },
        "output_tokens": figures.completion,
        "output_tokens_details": {"thinking_tokens": figures.reasoning},
        "service_tier": script.service_tier.as_deref().unwrap_or("standard"),
    })
}

/// What `message_delta` repeats: neither how long the cache is kept, nor the tier.
fn cumulative_usage(answer: &Answer) -> Value {
    if let Some(verbatim) = &answer.prepared.script.usage.verbatim {
        return verbatim.clone();
    }
    let figures = answer.figures;
    json!({
        "input_tokens": figures.uncached(),
        "cache_creation_input_tokens": figures.cache_write,
        "cache_read_input_tokens": figures.cached,
        "output_tokens": figures.completion,
        "output_tokens_details": {"thinking_tokens": figures.reasoning},
    })
}

fn error_body(status: StatusCode, message: &str, field: Option<&str>) -> Bytes {
    let kind = match status.as_u16() {
        401 => "authentication_error",
        402 => "billing_error",
        403 => "permission_error",
        404 => "not_found_error",
        409 => "conflict_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        400..500 => "invalid_request_error",
        504 => "timeout_error",
        529 => "overloaded_error",
        _ => "api_error",
    };
    let told = field.map_or_else(|| message.to_owned(), |field| format!("{field}: {message}"));
    let error = json!({"type": "error", "error": {"type": kind, "message": told}, "request_id": "req_stub"});
    Bytes::from(error.to_string())
}
