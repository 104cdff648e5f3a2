//! Anthropic's messages: blocks are opened in order, filled while they are open, and closed once.

use serde_json::Value;

use super::{Event, Reading, ToolCall, named};

/// The types that the API documents; SDKs make their exceptions of them.
const ERROR_TYPES: [&str; 11] = [
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

pub(super) fn read(events: &[Event], reading: &mut Reading) {
    let mut blocks = Blocks::default();
    for event in events {
        reading.note();
        let Some((kind, data)) = named(event, reading) else { continue };
        match kind.as_str() {
            "message_start" => {
                let message = data.get("message").unwrap_or(&Value::Null);
                reading.id_and_model(message);
                read_usage(message.get("usage"), reading);
                blocks.has_started = true;
            }
            "content_block_start" => blocks.open(&data, reading),
            "content_block_delta" => blocks.fill(&data, reading),
            "content_block_stop" => blocks.close(&data, reading),
            "message_delta" => {
                reading.finishes.extend(data.pointer("/delta/stop_reason").and_then(Value::as_str).map(str::to_owned));
                read_usage(data.get("usage"), reading);
            }
            "message_stop" => {
                if blocks.is_open {
                    reading.violations.push("the message ends inside a block".to_owned());
                }
                reading.terminals += 1;
            }
            "error" => read_error(&data, reading),
            "ping" => reading.pings += 1,
            // What the API may add.
            _ => {}
        }
        if !blocks.has_started && kind != "ping" && kind != "error" {
            reading.violations.push(format!("`{kind}` comes before `message_start`"));
        }
    }
}

fn read_error(data: &Value, reading: &mut Reading) {
    let error = data.get("error").cloned().unwrap_or_default();
    let kind = error.get("type").and_then(Value::as_str).unwrap_or_default();
    if !ERROR_TYPES.contains(&kind) {
        reading.violations.push(format!("the error type `{kind}` is not documented"));
    }
    reading.errors.push(error);
}

fn read_usage(usage: Option<&Value>, reading: &mut Reading) {
    let Some(usage) = usage.filter(|usage| usage.is_object()) else { return };
    let count = |field: &str| usage.get(field).and_then(Value::as_i64);
    let Some(output) = count("output_tokens") else { return };
    // What the last event leaves out is as the first one said.
    let known = reading.usages.last().map_or(0, |(input, _)| *input);
    let cache = count("cache_read_input_tokens").unwrap_or(0) + count("cache_creation_input_tokens").unwrap_or(0);
    let input = count("input_tokens").map_or(known, |input| input + cache);
    reading.usages.push((input, output));
}

#[derive(Default)]
struct Blocks {
    has_started: bool,
    started: u64,
    is_open: bool,
    /// Of the open block: the tool call that it is.
    tool: Option<usize>,
}

impl Blocks {
    fn open(&mut self, data: &Value, reading: &mut Reading) {
        if self.is_open || data.get("index").and_then(Value::as_u64) != Some(self.started) {
            reading.violations.push(format!("block {} is opened out of order", data["index"]));
        }
        self.started += 1;
        self.is_open = true;
        self.tool = None;
        let block = &data["content_block"];
        if block["type"] == "tool_use" {
            let text = |field: &str| block[field].as_str().unwrap_or_default().to_owned();
            if block["input"] != serde_json::json!({}) {
                reading.violations.push("a tool call opens with an input that is not `{}`".to_owned());
            }
            self.tool = Some(reading.tools.len());
            reading.tools.push(ToolCall { id: text("id"), name: text("name"), arguments: String::new() });
            reading.pieces += 1;
        }
    }

    fn fill(&mut self, data: &Value, reading: &mut Reading) {
        if !self.is_open || data.get("index").and_then(Value::as_u64) != self.started.checked_sub(1) {
            reading.violations.push(format!("block {} is filled but not open", data["index"]));
        }
        let delta = &data["delta"];
        match (delta["type"].as_str().unwrap_or_default(), self.tool) {
            ("text_delta", _) => {
                let text = delta["text"].as_str().unwrap_or_default();
                reading.text.push_str(text);
                reading.pieces += usize::from(!text.is_empty());
            }
            ("input_json_delta", Some(tool)) => {
                reading.tools[tool].arguments.push_str(delta["partial_json"].as_str().unwrap_or_default());
                reading.pieces += 1;
            }
            ("input_json_delta", None) => reading.violations.push("arguments outside a tool call".to_owned()),
            _ => {}
        }
    }

    fn close(&mut self, data: &Value, reading: &mut Reading) {
        if !self.is_open || data.get("index").and_then(Value::as_u64) != self.started.checked_sub(1) {
            reading.violations.push(format!("block {} is closed but not open", data["index"]));
        }
        self.is_open = false;
    }
}

pub(super) fn read_whole(body: &Value, reading: &mut Reading) {
    reading.id_and_model(body);
    read_usage(body.get("usage"), reading);
    for block in body.get("content").and_then(Value::as_array).into_iter().flatten() {
        let text = |field: &str| block[field].as_str().unwrap_or_default().to_owned();
        match block["type"].as_str().unwrap_or_default() {
            "text" => reading.text.push_str(&text("text")),
            "tool_use" => reading.tools.push(ToolCall {
                id: text("id"),
                name: text("name"),
                arguments: block["input"].to_string(),
            }),
            _ => {}
        }
    }
    reading.finishes.extend(body.get("stop_reason").and_then(Value::as_str).map(str::to_owned));
}
