//! OpenAI's chat completions. Written as text, not through a JSON tree: a benchmark must not wait for its provider.

use std::borrow::Cow;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};

use super::openai::{self, Metadata};
use super::text::{put, put_text, texts_of};
use super::{Answer, Asked, Dialect, Refusal, Special, Work};
use crate::outline::{Item, Outline, Part, Step};
use crate::script::{Fault, ReportUsage};

#[derive(Debug)]
pub(super) struct OpenAiChat;

#[derive(Deserialize)]
struct Request<'a> {
    #[serde(borrow)]
    model: Option<Cow<'a, str>>,
    #[serde(default)]
    stream: Option<bool>,
    #[serde(default)]
    stream_options: Option<StreamOptions>,
    #[serde(default)]
    n: Option<usize>,
    #[serde(default)]
    max_tokens: Option<u64>,
    #[serde(default)]
    max_completion_tokens: Option<u64>,
    #[serde(default)]
    service_tier: Option<String>,
    #[serde(default)]
    metadata: Option<Metadata>,
}

#[derive(Deserialize)]
struct StreamOptions {
    #[serde(default)]
    include_usage: Option<bool>,
}

impl Dialect for OpenAiChat {
    fn read(&self, _: &HeaderMap, body: &[u8]) -> Result<Asked, Refusal> {
        let request: Request<'_> = openai::parse(body)?;
        let model = request.model.ok_or_else(openai::no_model)?;
        let stream = request.stream.unwrap_or(false);
        if request.stream_options.is_some() && !stream {
            let message = "The 'stream_options' parameter is only allowed when 'stream' is enabled.";
            return Err(Refusal::bad(Some("stream_options"), message));
        }
        Ok(Asked {
            model: model.into_owned(),
            stream,
            include_usage: request.stream_options.and_then(|options| options.include_usage).unwrap_or(false),
            choices: request.n,
            cap: request.max_completion_tokens.or(request.max_tokens),
            service_tier: request.service_tier,
            metadata: request.metadata.and_then(|metadata| metadata.stub),
            special: Special::Nothing,
        })
    }

    fn prompt_texts(&self, body: &[u8]) -> Vec<String> {
        let Ok(Value::Object(request)) = serde_json::from_slice(body) else { return Vec::new() };
        let messages = request.get("messages").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        messages.iter().filter_map(|message| message.get("content")).flat_map(texts_of).collect()
    }

    fn work(&self) -> Work {
        Work::Generates
    }

    /// The most the provider offers.
    fn max_choices(&self) -> usize {
        128
    }

    fn plain(&self, answer: &Answer) -> Bytes {
        let content = &answer.prepared.content;
        let mut out = Vec::with_capacity((content.len() + 200) * answer.choices + 512);
        open(answer, "chat.completion", &mut out);
        for choice in 0..answer.choices {
            if choice > 0 {
                out.push(b',');
            }
            put(&mut out, format_args!(r#"{{"index":{choice},"message":{{"role":"assistant","content":"#));
            if answer.chunks > 0 || answer.prepared.tools.is_empty() {
                out.push(b'"');
                answer.prepared.pieces.iter().take(answer.chunks).for_each(|piece| out.extend_from_slice(piece));
                out.push(b'"');
            } else {
                out.extend_from_slice(b"null");
            }
            out.extend_from_slice(br#","refusal":null"#);
            if !answer.prepared.thoughts.is_empty() {
                out.extend_from_slice(br#","reasoning_content":""#);
                answer.prepared.thoughts.iter().for_each(|piece| out.extend_from_slice(piece));
                out.push(b'"');
            }
            put_tools(answer, &mut out);
            out.extend_from_slice(br#"},"logprobs":null,"finish_reason":"#);
            put_finish(answer, &mut out);
            out.push(b'}');
        }
        out.push(b']');
        match answer.prepared.script.usage.report {
            ReportUsage::Auto | ReportUsage::Always => put_usage(answer, &mut out),
            ReportUsage::Never => {}
        }
        out.push(b'}');
        Bytes::from(out)
    }

    /// Choices take turns, as they do at the real provider.
    fn outline(&self, answer: &Answer) -> Outline {
        let (script, choices) = (&answer.prepared.script, answer.choices);
        let reports = match script.usage.report {
            ReportUsage::Auto => answer.asked.include_usage,
            ReportUsage::Always => true,
            ReportUsage::Never => false,
        };
        let mut outline = Outline::default()
            .then(Step::Opening, if script.role_chunk { choices } else { 0 })
            .then(Step::Piece(Item::Thinking), answer.prepared.thoughts.len() * choices)
            .then(Step::Piece(Item::Text), answer.chunks * choices);
        for (tool, call) in answer.prepared.tools.iter().enumerate() {
            outline = outline.then(Step::Piece(Item::Tool(tool)), (call.fragments.len() + 1) * choices);
        }
        outline
            .then(Step::Finish, choices)
            .then(Step::Usage, usize::from(reports))
            .then(Step::Done, usize::from(script.done))
    }

    fn part(&self, answer: &Answer, part: Part, out: &mut Vec<u8>) {
        if part.step == Step::Done {
            return out.extend_from_slice(b"data: [DONE]\n\n");
        }
        out.extend_from_slice(b"data: ");
        open(answer, "chat.completion.chunk", out);
        let (choice, piece) = (part.turn % answer.choices, part.turn / answer.choices);
        match part.step {
            Step::Usage | Step::Done | Step::Ping | Step::Start(_) | Step::End(_) => {}
            Step::Opening => {
                put(out, format_args!(r#"{{"index":{choice},"delta":{{"role":"assistant","content":""}}"#));
            }
            Step::Piece(Item::Text) => put_piece(choice, "content", &answer.prepared.pieces[piece], out),
            Step::Piece(Item::Thinking) => {
                put_piece(choice, "reasoning_content", &answer.prepared.thoughts[piece], out)
            }
            Step::Piece(Item::Tool(tool)) => {
                put(out, format_args!(r#"{{"index":{choice},"delta":{{"tool_calls":["#));
                put_tool_fragment(answer, tool, piece, out);
                out.extend_from_slice(b"]}");
            }
            Step::Finish => {
                put(out, format_args!(r#"{{"index":{choice},"delta":{{}},"logprobs":null,"finish_reason":"#));
                put_finish(answer, out);
                out.push(b'}');
            }
        }
        if matches!(part.step, Step::Opening | Step::Piece(_)) {
            out.extend_from_slice(br#","logprobs":null,"finish_reason":null}"#);
        }
        out.push(b']');
        if part.step == Step::Usage {
            put_usage(answer, out);
        } else if answer.asked.include_usage {
            out.extend_from_slice(br#","usage":null"#);
        }
        out.extend_from_slice(b"}\n\n");
    }

    fn error_event(&self, fault: &Fault, _: usize, out: &mut Vec<u8>) {
        let message = fault.message.as_deref().unwrap_or("The server had an error while processing your request");
        let code = fault.code.as_deref().unwrap_or("server_error");
        let error = json!({"error": {"message": message, "type": "server_error", "param": null, "code": code}});
        put(out, format_args!("data: {error}\n\n"));
    }

    fn error_body(&self, status: StatusCode, message: &str, field: Option<&str>) -> Bytes {
        openai::error_body(status, message, field)
    }
}

fn put_piece(choice: usize, field: &str, piece: &[u8], out: &mut Vec<u8>) {
    put(out, format_args!(r#"{{"index":{choice},"delta":{{"{field}":""#));
    out.extend_from_slice(piece);
    out.extend_from_slice(br#""}"#);
}

/// From the brace to the opening of the list of choices.
fn open(answer: &Answer, object: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(br#"{"id":"#);
    put_text(out, &answer.id);
    put(out, format_args!(r#","object":"{object}","created":{},"model":"#, answer.created));
    put_text(out, &answer.asked.model);
    if let Some(tier) = answer.prepared.script.service_tier.as_ref().or(answer.asked.service_tier.as_ref()) {
        out.extend_from_slice(br#","service_tier":"#);
        put_text(out, tier);
    }
    out.extend_from_slice(br#","system_fingerprint":"fp_stub","choices":["#);
}

fn put_finish(answer: &Answer, out: &mut Vec<u8>) {
    match answer.prepared.script.finish_reason.as_deref() {
        Some("") => out.extend_from_slice(b"null"),
        Some(reason) => put_text(out, reason),
        None if answer.capped => put_text(out, "length"),
        None if !answer.prepared.tools.is_empty() => put_text(out, "tool_calls"),
        None => put_text(out, "stop"),
    }
}

fn put_tools(answer: &Answer, out: &mut Vec<u8>) {
    for (index, tool) in answer.prepared.tools.iter().enumerate() {
        out.extend_from_slice(if index == 0 { br#","tool_calls":["# } else { b"," });
        put(
            out,
            format_args!(r#"{{"id":{},"type":"function","function":{{"name":{},"arguments":""#, tool.id, tool.name),
        );
        tool.fragments.iter().for_each(|fragment| out.extend_from_slice(fragment.as_bytes()));
        out.extend_from_slice(br#""}}"#);
    }
    if !answer.prepared.tools.is_empty() {
        out.push(b']');
    }
}

/// The first fragment of a call opens it with id and name; the arguments follow.
fn put_tool_fragment(answer: &Answer, tool: usize, fragment: usize, out: &mut Vec<u8>) {
    let call = &answer.prepared.tools[tool];
    match fragment.checked_sub(1) {
        None => put(
            out,
            format_args!(
                r#"{{"index":{tool},"id":{},"type":"function","function":{{"name":{},"arguments":""}}}}"#,
                call.id, call.name
            ),
        ),
        Some(piece) => {
            let arguments = &call.fragments[piece];
            put(out, format_args!(r#"{{"index":{tool},"function":{{"arguments":"{arguments}"}}}}"#));
        }
    }
}

fn put_usage(answer: &Answer, out: &mut Vec<u8>) {
    if let Some(verbatim) = &answer.prepared.script.usage.verbatim {
        return put(out, format_args!(r#","usage":{verbatim}"#));
    }
    let figures = answer.figures;
    put(
        out,
        format_args!(
            concat!(
                r#","usage":{{"prompt_tokens":{},"completion_tokens":{},"total_tokens":{},"#,
                r#""prompt_tokens_details":{{"cached_tokens":{},"cache_write_tokens":{},"audio_tokens":0}},"#,
                r#""completion_tokens_details":{{"reasoning_tokens":{},"audio_tokens":0,"#,
                r#""accepted_prediction_tokens":0,"rejected_prediction_tokens":0}}}}"#
            ),
            figures.prompt,
            figures.completion,
            figures.prompt.saturating_add(figures.completion),
            figures.cached,
            figures.cache_write,
            figures.reasoning,
        ),
    );
}
