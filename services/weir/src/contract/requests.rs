//! The requests of the clauses, in each API's own words.

use serde_json::{Value, json};

use super::pair::ClientApi;

/// What a step of a clause asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ask {
    pub stream: bool,
    /// Offers the tool [`TOOL`].
    pub tools: bool,
    /// Sends the result of a call that was made before: the second turn of an agent.
    pub with_result: bool,
    /// Asks a chat stream to tell its usage, as the other APIs do anyway.
    pub usage: bool,
    /// The client leaves once it has read this text.
    pub leave_at: Option<&'static str>,
    pub key: Key,
    pub model: Model,
    /// Sent as `Idempotency-Key` where present, the same in each step that has it.
    pub idempotent: bool,
}

/// With which key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    Own,
    /// One that nobody was given.
    Unknown,
}

/// For which model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Model {
    /// The clause's own.
    Own,
    /// One that the gateway does not offer.
    Refused,
}

impl Ask {
    pub const PLAIN: Self = Self {
        stream: false,
        tools: false,
        with_result: false,
        usage: false,
        leave_at: None,
        key: Key::Own,
        model: Model::Own,
        idempotent: false,
    };
    pub const STREAM: Self = Self { stream: true, ..Self::PLAIN };
    pub const WITH_TOOLS: Self = Self { tools: true, ..Self::STREAM };
}

pub(super) const TOOL: &str = "weather";
/// The call of an earlier turn, and what it came to: told apart from any other text.
pub(super) const CALL_ID: &str = "call_contract_1";
pub(super) const RESULT: &str = "raining-since-tuesday";

/// More than any script writes.
const CAP: u64 = 2_000;

impl Ask {
    /// The body for `model`.
    pub fn body(&self, api: ClientApi, model: &str) -> Value {
        let mut body = match api {
            ClientApi::Chat => json!({"model": model, "messages": self.chat_messages(), "max_tokens": CAP}),
            ClientApi::Messages => json!({"model": model, "messages": self.messages(), "max_tokens": CAP}),
            ClientApi::Responses => {
                json!({"model": model, "input": self.items(), "max_output_tokens": CAP, "store": false})
            }
        };
        if self.stream {
            body["stream"] = true.into();
        }
        if self.usage && self.stream && api == ClientApi::Chat {
            body["stream_options"] = json!({"include_usage": true});
        }
        if self.tools {
            body["tools"] = json!([tool(api)]);
        }
        body
    }

    fn chat_messages(&self) -> Value {
        let asked = json!({"role": "user", "content": PROMPT});
        if !self.with_result {
            return json!([asked]);
        }
        let function = json!({"name": TOOL, "arguments": ARGUMENTS});
        let call = json!({"id": CALL_ID, "type": "function", "function": function});
        json!([
            asked,
            {"role": "assistant", "content": null, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": CALL_ID, "content": RESULT},
        ])
    }

    fn messages(&self) -> Value {
        let asked = json!({"role": "user", "content": PROMPT});
        if !self.with_result {
            return json!([asked]);
        }
        let call = json!({"type": "tool_use", "id": CALL_ID, "name": TOOL, "input": {"city": "Köln"}});
        let result = json!({"type": "tool_result", "tool_use_id": CALL_ID, "content": RESULT});
        json!([asked, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}])
    }

    fn items(&self) -> Value {
        let asked = json!({"role": "user", "content": PROMPT});
        if !self.with_result {
            return json!([asked]);
        }
        json!([
            asked,
            {"type": "function_call", "call_id": CALL_ID, "name": TOOL, "arguments": ARGUMENTS},
            {"type": "function_call_output", "call_id": CALL_ID, "output": RESULT},
        ])
    }
}

const PROMPT: &str = "What is the weather in Köln?";
const ARGUMENTS: &str = r#"{"city":"Köln"}"#;

fn tool(api: ClientApi) -> Value {
    let schema = json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]});
    match api {
        ClientApi::Chat => json!({"type": "function", "function": {"name": TOOL, "parameters": schema}}),
        ClientApi::Messages => json!({"name": TOOL, "input_schema": schema}),
        ClientApi::Responses => json!({"type": "function", "name": TOOL, "parameters": schema}),
    }
}
