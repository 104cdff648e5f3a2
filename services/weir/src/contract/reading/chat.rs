//! Chat completions, as the official SDKs accumulate them.

use serde_json::Value;

use super::{Event, Reading, ToolCall};

pub(super) fn read(events: &[Event], reading: &mut Reading) {
    for event in events {
        reading.note();
        if event.name.is_some() {
            reading.violations.push("an event of chat completions has a name".to_owned());
        }
        if event.data == "[DONE]" {
            reading.terminals += 1;
            continue;
        }
        let Some(chunk) = reading.data(event) else { continue };
        if let Some(error) = chunk.get("error").filter(|error| !error.is_null()) {
            if error.get("message").and_then(Value::as_str).is_none() {
                reading.violations.push("an error without a message".to_owned());
            }
            reading.errors.push(error.clone());
            continue;
        }
        reading.id_and_model(&chunk);
        if let Some(usage) = chunk.get("usage") {
            reading.usage(usage, "prompt_tokens", "completion_tokens");
        }
        for choice in chunk.get("choices").and_then(Value::as_array).into_iter().flatten() {
            read_delta(choice.get("delta").unwrap_or(&Value::Null), reading);
            reading.finishes.extend(choice.get("finish_reason").and_then(Value::as_str).map(str::to_owned));
        }
    }
}

fn read_delta(delta: &Value, reading: &mut Reading) {
    let mut is_piece = false;
    if let Some(text) = delta.get("content").and_then(Value::as_str).filter(|text| !text.is_empty()) {
        reading.text.push_str(text);
        is_piece = true;
    }
    for call in delta.get("tool_calls").and_then(Value::as_array).into_iter().flatten() {
        is_piece = true;
        let Some(index) = call.get("index").and_then(Value::as_u64).and_then(|index| usize::try_from(index).ok())
        else {
            reading.violations.push("a fragment of a tool call without an index".to_owned());
            continue;
        };
        if index > reading.tools.len() {
            reading.violations.push(format!("tool call {index} comes before those in front of it"));
            continue;
        }
        if index == reading.tools.len() {
            reading.tools.push(ToolCall::default());
        }
        let text = |field: Option<&Value>| field.and_then(Value::as_str).unwrap_or_default().to_owned();
        let tool = &mut reading.tools[index];
        tool.id.push_str(&text(call.get("id")));
        tool.name.push_str(&text(call.pointer("/function/name")));
        tool.arguments.push_str(&text(call.pointer("/function/arguments")));
    }
    reading.pieces += usize::from(is_piece);
}

pub(super) fn read_whole(body: &Value, reading: &mut Reading) {
    reading.id_and_model(body);
    if let Some(usage) = body.get("usage") {
        reading.usage(usage, "prompt_tokens", "completion_tokens");
    }
    let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
    for choice in body.get("choices").and_then(Value::as_array).into_iter().flatten() {
        reading.text.push_str(&text(choice.pointer("/message/content")));
        for call in choice.pointer("/message/tool_calls").and_then(Value::as_array).into_iter().flatten() {
            reading.tools.push(ToolCall {
                id: text(call.get("id")),
                name: text(call.pointer("/function/name")),
                arguments: text(call.pointer("/function/arguments")),
            });
        }
        reading.finishes.extend(choice.get("finish_reason").and_then(Value::as_str).map(str::to_owned));
    }
}
