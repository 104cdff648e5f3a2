//! OpenAI's responses: typed events with rising numbers; the last one has everything.

use serde_json::Value;

use super::{Event, Reading, ToolCall, named};

pub(super) fn read(events: &[Event], reading: &mut Reading) {
    let mut last_number = None;
    // The tool call of each output item.
    let mut tools: Vec<(u64, usize)> = Vec::new();
    for event in events {
        reading.note();
        let Some((kind, data)) = named(event, reading) else { continue };
        let number = data.get("sequence_number").and_then(Value::as_i64);
        if number.is_none() || number <= last_number {
            reading.violations.push(format!("`{kind}` is out of sequence: {number:?} after {last_number:?}"));
        }
        last_number = number.or(last_number);
        let index = data.get("output_index").and_then(Value::as_u64).unwrap_or(0);
        match kind.strip_prefix("response.").unwrap_or(&kind) {
            "created" => reading.id_and_model(&data["response"]),
            "output_text.delta" => {
                reading.text.push_str(data["delta"].as_str().unwrap_or_default());
                reading.pieces += 1;
            }
            "output_item.added" if data["item"]["type"] == "function_call" => {
                tools.push((index, reading.tools.len()));
                reading.tools.push(call(&data["item"]));
                reading.pieces += 1;
            }
            "function_call_arguments.delta" => match tools.iter().find(|(of, _)| *of == index) {
                Some((_, tool)) => {
                    reading.tools[*tool].arguments.push_str(data["delta"].as_str().unwrap_or_default());
                    reading.pieces += 1;
                }
                None => reading.violations.push("arguments outside a tool call".to_owned()),
            },
            "completed" | "incomplete" => {
                reading.terminals += 1;
                end(&data["response"], reading);
            }
            "failed" => reading.errors.push(data["response"]["error"].clone()),
            "error" => reading.errors.push(data.get("error").unwrap_or(&data).clone()),
            _ => {}
        }
    }
}

fn call(item: &Value) -> ToolCall {
    let text = |field: &str| item[field].as_str().unwrap_or_default().to_owned();
    ToolCall { id: text("call_id"), name: text("name"), arguments: text("arguments") }
}

fn end(response: &Value, reading: &mut Reading) {
    reading.id_and_model(response);
    reading.usage(&response["usage"], "input_tokens", "output_tokens");
    let reason = response.pointer("/incomplete_details/reason").and_then(Value::as_str);
    reading.finishes.extend(reason.or(response["status"].as_str()).map(str::to_owned));
}

pub(super) fn read_whole(body: &Value, reading: &mut Reading) {
    for item in body.get("output").and_then(Value::as_array).into_iter().flatten() {
        if item["type"] == "function_call" {
            reading.tools.push(call(item));
        }
        for part in item.get("content").and_then(Value::as_array).into_iter().flatten() {
            reading.text.push_str(part["text"].as_str().unwrap_or_default());
        }
    }
    if body["status"] == "failed" {
        reading.errors.push(body["error"].clone());
    } else {
        end(body, reading);
    }
}
