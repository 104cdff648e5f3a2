//! OpenAI's responses: items, typed events that each carry a number, and answers that are kept to be built on.

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};

use super::openai::{self, Metadata};
use super::text::{put, put_event, texts_of, unescaped, unescaped_text};
use super::{Answer, Asked, Dialect, Refusal, Special, Work};
use crate::outline::{Item, Outline, Part, Step};
use crate::script::{Fault, ReportUsage};

#[derive(Debug)]
pub(super) struct Responses;

#[derive(Deserialize)]
struct Request {
    model: Option<String>,
    input: Option<Value>,
    #[serde(default)]
    stream: Option<bool>,
    #[serde(default)]
    max_output_tokens: Option<u64>,
    #[serde(default)]
    service_tier: Option<String>,
    #[serde(default)]
    store: Option<bool>,
    #[serde(default)]
    previous_response_id: Option<String>,
    #[serde(default)]
    metadata: Option<Metadata>,
}

impl Dialect for Responses {
    fn read(&self, _: &HeaderMap, body: &[u8]) -> Result<Asked, Refusal> {
        let request: Request = openai::parse(body)?;
        if request.input.is_none() {
            return Err(Refusal::bad(Some("input"), "Missing required parameter: 'input'."));
        }
        Ok(Asked {
            model: request.model.ok_or_else(openai::no_model)?,
            stream: request.stream.unwrap_or(false),
            include_usage: true,
            choices: None,
            cap: request.max_output_tokens,
            service_tier: request.service_tier,
            metadata: request.metadata.and_then(|metadata| metadata.stub),
            special: Special::Responses {
                store: request.store.unwrap_or(true),
                previous: request.previous_response_id,
            },
        })
    }

    fn prompt_texts(&self, body: &[u8]) -> Vec<String> {
        let Ok(Value::Object(request)) = serde_json::from_slice(body) else { return Vec::new() };
        let items = request.get("input").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let contents = items.iter().flat_map(|item| [item.get("content"), item.get("output")]).flatten();
        let texts = [request.get("instructions"), request.get("input").filter(|input| input.is_string())];
        texts.into_iter().flatten().chain(contents).flat_map(texts_of).collect()
    }

    fn work(&self) -> Work {
        Work::Generates
    }

    fn plain(&self, answer: &Answer) -> Bytes {
        Bytes::from(whole(answer).to_string())
    }

    fn outline(&self, answer: &Answer) -> Outline {
        let script = &answer.prepared.script;
        let mut outline = Outline::default().then(Step::Opening, if script.role_chunk { 2 } else { 0 });
        for item in answer.items() {
            let (starts, pieces, ends) = match item {
                Item::Thinking => (2, answer.prepared.thoughts.len(), 3),
                Item::Text => (2, answer.chunks, 3),
                Item::Tool(tool) => (0, answer.prepared.tools[tool].fragments.len() + 1, 2),
            };
            outline =
                outline.then(Step::Start(item), starts).then(Step::Piece(item), pieces).then(Step::End(item), ends);
        }
        outline.then(Step::Done, usize::from(script.done))
    }

    fn part(&self, answer: &Answer, part: Part, out: &mut Vec<u8>) {
        match part.step {
            Step::Piece(Item::Text) => put_delta(answer, part, Item::Text, &answer.prepared.pieces[part.turn], out),
            Step::Piece(Item::Thinking) => {
                put_delta(answer, part, Item::Thinking, &answer.prepared.thoughts[part.turn], out);
            }
            Step::Piece(item @ Item::Tool(tool)) if part.turn > 0 => {
                let fragment = answer.prepared.tools[tool].fragments[part.turn - 1].as_bytes();
                put_delta(answer, part, item, fragment, out);
            }
            Step::Opening
            | Step::Piece(Item::Tool(_))
            | Step::Start(_)
            | Step::End(_)
            | Step::Done
            | Step::Finish
            | Step::Usage
            | Step::Ping => {
                let Some(mut event) = event(answer, part) else { return };
                event["sequence_number"] = part.sequence.into();
                put_event(out, &event);
            }
        }
    }

    fn error_event(&self, fault: &Fault, sequence: usize, out: &mut Vec<u8>) {
        let message = fault.message.as_deref().unwrap_or("The server had an error while processing your request");
        let code = fault.code.as_deref().unwrap_or("server_error");
        let event =
            json!({"type": "error", "sequence_number": sequence, "code": code, "message": message, "param": null});
        put_event(out, &event);
    }

    fn error_body(&self, status: StatusCode, message: &str, field: Option<&str>) -> Bytes {
        openai::error_body(status, message, field)
    }

    fn stored(&self, answer: &Answer) -> Option<Value> {
        match answer.asked.special {
            Special::Responses { store: true, .. } => Some(whole(answer)),
            Special::Responses { store: false, .. } | Special::Nothing | Special::Embeddings { .. } => None,
        }
    }
}

/// The events that are not pieces.
fn event(answer: &Answer, part: Part) -> Option<Value> {
    let item_event = |kind: &str, item: Item| json!({"type": format!("response.{kind}"), "output_index": answer.index_of(item), "item_id": item_id(answer, item)});
    Some(match (part.step, part.turn) {
        (Step::Opening, 0) => json!({"type": "response.created", "response": frame(answer)}),
        (Step::Opening, _) => json!({"type": "response.in_progress", "response": frame(answer)}),
        (Step::Start(item), 0) | (Step::Piece(item @ Item::Tool(_)), _) => {
            let empty = whole_item(answer, item, false);
            json!({"type": "response.output_item.added", "output_index": answer.index_of(item), "item": empty})
        }
        (Step::Start(Item::Thinking), _) => {
            let mut event = item_event("reasoning_summary_part.added", Item::Thinking);
            event["summary_index"] = 0.into();
            event["part"] = json!({"type": "summary_text", "text": ""});
            event
        }
        (Step::Start(item), _) => {
            let mut event = item_event("content_part.added", item);
            event["content_index"] = 0.into();
            event["part"] = text_part("");
            event
        }
        (Step::End(Item::Thinking), turn @ (0 | 1)) => {
            let text = unescaped(&answer.prepared.thoughts);
            let kind = if turn == 0 { "reasoning_summary_text.done" } else { "reasoning_summary_part.done" };
            let mut event = item_event(kind, Item::Thinking);
            event["summary_index"] = 0.into();
            if turn == 0 {
                event["text"] = text.into();
            } else {
                event["part"] = json!({"type": "summary_text", "text": text});
            }
            event
        }
        (Step::End(Item::Text), turn @ (0 | 1)) => {
            let text = unescaped(&answer.prepared.pieces[..answer.chunks]);
            let mut event = item_event(if turn == 0 { "output_text.done" } else { "content_part.done" }, Item::Text);
            event["content_index"] = 0.into();
            if turn == 0 {
                event["logprobs"] = json!([]);
                event["text"] = text.into();
            } else {
                event["part"] = text_part(&text);
            }
            event
        }
        (Step::End(item @ Item::Tool(tool)), 0) => {
            let mut event = item_event("function_call_arguments.done", item);
            event["arguments"] = unescaped_text(&answer.prepared.tools[tool].fragments).into();
            event["name"] = json_text(&answer.prepared.tools[tool].name);
            event
        }
        (Step::End(item), _) => {
            let done = whole_item(answer, item, true);
            json!({"type": "response.output_item.done", "output_index": answer.index_of(item), "item": done})
        }
        (Step::Done, _) => {
            let response = whole(answer);
            json!({"type": format!("response.{}", response["status"].as_str().unwrap_or("completed")), "response": response})
        }
        (Step::Finish | Step::Usage | Step::Ping | Step::Piece(Item::Thinking | Item::Text), _) => return None,
    })
}

fn put_delta(answer: &Answer, part: Part, item: Item, piece: &[u8], out: &mut Vec<u8>) {
    let (kind, place) = match item {
        Item::Thinking => ("response.reasoning_summary_text.delta", r#","summary_index":0"#),
        Item::Text => ("response.output_text.delta", r#","content_index":0,"logprobs":[]"#),
        Item::Tool(_) => ("response.function_call_arguments.delta", ""),
    };
    put(
        out,
        format_args!(
            "event: {kind}\ndata: {{\"type\":\"{kind}\",\"sequence_number\":{},\"item_id\":{},\"output_index\":{}{place},\"delta\":\"",
            part.sequence,
            Value::from(item_id(answer, item)),
            answer.index_of(item),
        ),
    );
    out.extend_from_slice(piece);
    out.extend_from_slice(b"\"}\n\n");
}

fn item_id(answer: &Answer, item: Item) -> String {
    match item {
        Item::Thinking => format!("rs_{}", answer.id),
        Item::Text => format!("msg_{}", answer.id),
        Item::Tool(tool) => format!("fc_{}_{tool}", answer.id),
    }
}

fn json_text(json: &str) -> Value {
    serde_json::from_str(json).unwrap_or_default()
}

fn text_part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}

/// An item as it begins, or as it ends.
fn whole_item(answer: &Answer, item: Item, is_done: bool) -> Value {
    let id = item_id(answer, item);
    let status = if is_done { "completed" } else { "in_progress" };
    match item {
        Item::Thinking => {
            let part = || json!({"type": "summary_text", "text": unescaped(&answer.prepared.thoughts)});
            let summary: Vec<_> = is_done.then(part).into_iter().collect();
            json!({"id": id, "type": "reasoning", "summary": summary})
        }
        Item::Text => {
            let part = || text_part(&unescaped(&answer.prepared.pieces[..answer.chunks]));
            let content: Vec<_> = is_done.then(part).into_iter().collect();
            json!({"id": id, "type": "message", "status": status, "role": "assistant", "content": content})
        }
        Item::Tool(tool) => {
            let call = &answer.prepared.tools[tool];
            let arguments = if is_done { unescaped_text(&call.fragments) } else { String::new() };
            json!({
                "id": id, "type": "function_call", "status": status, "call_id": json_text(&call.id),
                "name": json_text(&call.name), "arguments": arguments,
            })
        }
    }
}

/// Everything but what was generated.
fn frame(answer: &Answer) -> Value {
    let (store, previous) = match &answer.asked.special {
        Special::Responses { store, previous } => (*store, previous.clone()),
        Special::Nothing | Special::Embeddings { .. } => (false, None),
    };
    let script = &answer.prepared.script;
    json!({
        "id": answer.id, "object": "response", "created_at": answer.created, "status": "in_progress", "error": null,
        "incomplete_details": null, "instructions": null, "metadata": {}, "model": answer.asked.model, "output": [],
        "parallel_tool_calls": true, "previous_response_id": previous, "store": store, "temperature": 1.0,
        "tool_choice": "auto", "tools": [], "top_p": 1.0, "usage": null,
        "service_tier": script.service_tier.as_ref().or(answer.asked.service_tier.as_ref()).map_or("default", String::as_str),
    })
}

/// As the last event has it. `finish_reason` of a script says why it is incomplete, or that it `failed`.
fn whole(answer: &Answer) -> Value {
    let mut response = frame(answer);
    response["output"] = answer.items().into_iter().map(|item| whole_item(answer, item, true)).collect();
    response["status"] = "completed".into();
    let reason = answer.prepared.script.finish_reason.as_deref().or(answer.capped.then_some("max_output_tokens"));
    match reason {
        None => {}
        Some("failed") => {
            response["status"] = "failed".into();
            response["error"] = json!({"code": "server_error", "message": "The model failed to generate a response."});
        }
        Some(reason) => {
            response["status"] = "incomplete".into();
            response["incomplete_details"] = json!({"reason": reason});
        }
    }
    let (usage, figures) = (&answer.prepared.script.usage, answer.figures);
    if usage.report != ReportUsage::Never {
        let counted = || {
            json!({
                "input_tokens": figures.prompt,
                "input_tokens_details": {
                    "cached_tokens": figures.cached, "cache_write_tokens": figures.cache_write,
                    "cache_write_tokens_details": {
                        "ttl_30m_tokens": figures.cache_write.saturating_sub(figures.cache_write_long),
                        "ttl_12h_tokens": figures.cache_write_long,
                    },
                },
                "output_tokens": figures.completion,
                "output_tokens_details": {"reasoning_tokens": figures.reasoning},
                "total_tokens": figures.prompt.saturating_add(figures.completion),
            })
        };
        response["usage"] = usage.verbatim.clone().unwrap_or_else(counted);
    }
    response
}
