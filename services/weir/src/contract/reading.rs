//! What a client understands of an answer, by the published rules of its API.
//!
//! A reading says what came, not whether that is right; but what breaks the API's own rules, so that an official SDK would
//! stumble or be misled, is a violation and is listed.

mod chat;
mod messages;
mod responses;
mod sse;

use std::collections::BTreeSet;

use serde_json::Value;

use super::evidence::Transcript;
use super::pair::ClientApi;
use sse::Event;

#[derive(Debug, Clone, Default)]
pub(super) struct Reading {
    pub is_stream: bool,
    /// Of the first choice.
    pub text: String,
    /// Events that carried a part of the answer.
    pub pieces: usize,
    pub tools: Vec<ToolCall>,
    pub finishes: Vec<String>,
    /// Signs that the answer is whole: `[DONE]`, `message_stop`, `response.completed`.
    pub terminals: usize,
    /// The error objects, in order.
    pub errors: Vec<Value>,
    /// Events after an error or a terminal.
    pub after_end: usize,
    pub ids: BTreeSet<String>,
    pub models: BTreeSet<String>,
    /// `(input, output)`; the last is in force.
    pub usages: Vec<(i64, i64)>,
    pub comments: usize,
    /// The API's own signs of life.
    pub pings: usize,
    pub violations: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ToolCall {
    pub id: String,
    pub name: String,
    pub arguments: String,
}

impl Reading {
    /// Reads what `transcript` holds of an answer of `api`.
    pub fn of(api: ClientApi, transcript: &Transcript) -> Self {
        let body = transcript.body();
        let mut reading = Self { is_stream: transcript.is_event_stream(), ..Self::default() };
        if reading.is_stream {
            let stream = sse::parse(&body);
            reading.comments = stream.comments;
            reading.violations.extend(stream.violations);
            match api {
                ClientApi::Chat => chat::read(&stream.events, &mut reading),
                ClientApi::Messages => messages::read(&stream.events, &mut reading),
                ClientApi::Responses => responses::read(&stream.events, &mut reading),
            }
        } else if let Ok(body) = serde_json::from_slice::<Value>(&body) {
            match body.get("error").filter(|error| !error.is_null()) {
                Some(error) => reading.errors.push(error.clone()),
                None => match api {
                    ClientApi::Chat => chat::read_whole(&body, &mut reading),
                    ClientApi::Messages => messages::read_whole(&body, &mut reading),
                    ClientApi::Responses => responses::read_whole(&body, &mut reading),
                },
            }
        }
        reading
    }

    /// Notes an event that came although the stream was over.
    fn note(&mut self) {
        if self.terminals > 0 || !self.errors.is_empty() {
            self.after_end += 1;
        }
    }

    fn id_and_model(&mut self, of: &Value) {
        for (field, into) in [("id", &mut self.ids), ("model", &mut self.models)] {
            if let Some(text) = of.get(field).and_then(Value::as_str).filter(|text| !text.is_empty()) {
                into.insert(text.to_owned());
            }
        }
    }

    fn usage(&mut self, usage: &Value, input: &str, output: &str) {
        let count = |field: &str| usage.get(field).and_then(Value::as_i64);
        if let (Some(input), Some(output)) = (count(input), count(output)) {
            self.usages.push((input, output));
        }
    }

    /// The data of an event as an object.
    fn data(&mut self, event: &Event) -> Option<Value> {
        match serde_json::from_str(&event.data) {
            Ok(data @ Value::Object(_)) => Some(data),
            Ok(_) | Err(_) => {
                self.violations.push(format!("an event is no JSON object: {}", start_of(&event.data)));
                None
            }
        }
    }
}

fn start_of(text: &str) -> String {
    text.chars().take(60).collect()
}

/// The named event's data, whose type must say the same: SDKs skip an event whose name is missing.
fn named(event: &Event, reading: &mut Reading) -> Option<(String, Value)> {
    let data = reading.data(event)?;
    let kind = data.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
    if event.name.as_deref() != Some(kind.as_str()) {
        reading
            .violations
            .push(format!("the event `{}` says that it is `{kind}`", event.name.as_deref().unwrap_or("")));
    }
    Some((kind, data))
}

#[cfg(test)]
#[path = "reading_tests.rs"]
mod tests;
