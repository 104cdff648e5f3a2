//! The four pairs of chat and messages: the same story told by a provider of either API, and read by a client of either.

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use serde_json::{Value, json};

use weir_domain::registry::ProviderDialect;

use super::{House, KEY, MODEL, Read};

/// Whose API the client speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Client {
    Chat,
    Messages,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pair {
    pub client: Client,
    pub provider: ProviderDialect,
}

pub const PAIRS: [Pair; 4] = [
    Pair { client: Client::Chat, provider: ProviderDialect::Openai },
    Pair { client: Client::Chat, provider: ProviderDialect::Anthropic },
    Pair { client: Client::Messages, provider: ProviderDialect::Openai },
    Pair { client: Client::Messages, provider: ProviderDialect::Anthropic },
];

impl Client {
    pub const BOTH: [Self; 2] = [Self::Chat, Self::Messages];

    pub const fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Messages => "/v1/messages",
        }
    }

    /// A request with a tool, capped at 50 tokens.
    pub fn body(self, stream: bool) -> Value {
        let schema = json!({"type": "object", "properties": {"at": {"type": "string"}}});
        let tool = match self {
            Self::Chat => json!({"type": "function", "function": {"name": "quote", "parameters": schema}}),
            Self::Messages => json!({"name": "quote", "input_schema": schema}),
        };
        json!({"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 50, "stream": stream, "tools": [tool]})
    }

    pub fn request(self, house: &House, stream: bool) -> Request<Full<Bytes>> {
        self.request_of(house, self.body(stream).to_string())
    }

    pub fn request_of(self, house: &House, body: impl Into<Bytes>) -> Request<Full<Bytes>> {
        let request = Request::post(format!("http://{}{}", house.gateway, self.path()))
            .header("content-type", "application/json");
        let request = match self {
            Self::Chat => request.header("authorization", format!("Bearer {KEY}")),
            Self::Messages => request.header("x-api-key", KEY).header("anthropic-version", "2023-06-01"),
        };
        request.body(Full::new(body.into())).unwrap()
    }
}

/// What a provider tells: text in pieces, then perhaps one call of a tool, its arguments in pieces.
#[derive(Debug, Clone)]
pub struct Story {
    pub text: Vec<String>,
    pub arguments: Vec<String>,
    pub prompt_tokens: i64,
    pub output_tokens: i64,
}

impl Default for Story {
    fn default() -> Self {
        Self {
            text: vec!["Let me ".to_owned(), "see…".to_owned()],
            arguments: vec![r#"{"at":"#.to_owned(), r#""noon"}"#.to_owned()],
            prompt_tokens: 9,
            output_tokens: 7,
        }
    }
}

impl Story {
    /// Text alone.
    pub fn said(text: &[&str]) -> Self {
        Self { text: text.iter().map(|text| (*text).to_owned()).collect(), arguments: Vec::new(), ..Self::default() }
    }

    pub fn tokens(&self) -> i64 {
        self.prompt_tokens + self.output_tokens
    }

    /// The events of a stream, each with its blank line.
    pub fn events(&self, provider: ProviderDialect) -> Vec<String> {
        match provider {
            ProviderDialect::Openai => self.chunks(),
            ProviderDialect::Anthropic => self.message_events(),
        }
    }

    pub fn stream(&self, provider: ProviderDialect) -> String {
        self.events(provider).concat()
    }

    fn chunks(&self) -> Vec<String> {
        let event = |value: Value| format!("data: {value}\n\n");
        let chunk = |choices: Value, usage: Value| {
            event(
                json!({"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "vendor/m", "choices": choices, "usage": usage}),
            )
        };
        let delta = |delta: Value, finish: Value| {
            chunk(json!([{"index": 0, "delta": delta, "finish_reason": finish}]), Value::Null)
        };
        let mut events = vec![delta(json!({"role": "assistant", "content": ""}), Value::Null)];
        events.extend(self.text.iter().map(|text| delta(json!({"content": text}), Value::Null)));
        if !self.arguments.is_empty() {
            let function = json!({"name": "quote", "arguments": ""});
            let call = json!({"index": 0, "id": "call_1", "type": "function", "function": function});
            events.push(delta(json!({"tool_calls": [call]}), Value::Null));
            let more = |part: &String| json!({"tool_calls": [{"index": 0, "function": {"arguments": part}}]});
            events.extend(self.arguments.iter().map(|part| delta(more(part), Value::Null)));
        }
        events.push(delta(json!({}), json!(if self.arguments.is_empty() { "stop" } else { "tool_calls" })));
        events.push(chunk(json!([]), self.chat_usage()));
        events.push("data: [DONE]\n\n".to_owned());
        events
    }

    fn chat_usage(&self) -> Value {
        json!({"prompt_tokens": self.prompt_tokens, "completion_tokens": self.output_tokens, "total_tokens": self.tokens()})
    }

    fn message_events(&self) -> Vec<String> {
        let event = |value: Value| format!("event: {}\ndata: {value}\n\n", value["type"].as_str().unwrap());
        let message = json!({"id": "msg_1", "type": "message", "role": "assistant", "model": "vendor-m", "content": [], "stop_reason": null, "stop_sequence": null, "usage": {"input_tokens": self.prompt_tokens, "output_tokens": 1}});
        let mut events =
            vec![event(json!({"type": "message_start", "message": message})), event(json!({"type": "ping"}))];
        let mut block = |index: usize, start: Value, deltas: Vec<Value>| {
            events.push(event(json!({"type": "content_block_start", "index": index, "content_block": start})));
            let told = |delta| event(json!({"type": "content_block_delta", "index": index, "delta": delta}));
            events.extend(deltas.into_iter().map(told));
            events.push(event(json!({"type": "content_block_stop", "index": index})));
        };
        let text = self.text.iter().map(|text| json!({"type": "text_delta", "text": text}));
        block(0, json!({"type": "text", "text": ""}), text.collect());
        if !self.arguments.is_empty() {
            let parts = self.arguments.iter().map(|part| json!({"type": "input_json_delta", "partial_json": part}));
            block(1, json!({"type": "tool_use", "id": "toolu_1", "name": "quote", "input": {}}), parts.collect());
        }
        let reason = if self.arguments.is_empty() { "end_turn" } else { "tool_use" };
        events.push(event(json!({"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": null}, "usage": {"output_tokens": self.output_tokens}})));
        events.push(event(json!({"type": "message_stop"})));
        events
    }

    /// A plain answer.
    pub fn answer(&self, provider: ProviderDialect) -> String {
        let (text, arguments) = (self.text.concat(), self.arguments.concat());
        match provider {
            ProviderDialect::Openai => {
                let mut message = json!({"role": "assistant", "content": text});
                if !arguments.is_empty() {
                    let function = json!({"name": "quote", "arguments": arguments});
                    message["tool_calls"] = json!([{"id": "call_1", "type": "function", "function": function}]);
                }
                let finish = if arguments.is_empty() { "stop" } else { "tool_calls" };
                json!({"id": "c1", "object": "chat.completion", "created": 1, "model": "vendor/m", "choices": [{"index": 0, "message": message, "finish_reason": finish}], "usage": self.chat_usage()})
            }
            ProviderDialect::Anthropic => {
                let mut content = vec![json!({"type": "text", "text": text})];
                if !arguments.is_empty() {
                    let input: Value = serde_json::from_str(&arguments).unwrap();
                    content.push(json!({"type": "tool_use", "id": "toolu_1", "name": "quote", "input": input}));
                }
                let reason = if arguments.is_empty() { "end_turn" } else { "tool_use" };
                json!({"id": "msg_1", "type": "message", "role": "assistant", "model": "vendor-m", "content": content, "stop_reason": reason, "stop_sequence": null, "usage": {"input_tokens": self.prompt_tokens, "output_tokens": self.output_tokens}})
            }
        }
        .to_string()
    }
}

/// What a client has of an answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Told {
    pub text: String,
    pub arguments: String,
    /// In the words of chat.
    pub finish: Option<String>,
    /// The terminal signals: `[DONE]`, `message_stop`.
    pub terminals: usize,
    pub errors: Vec<Value>,
    /// Every name that the answer says the model has.
    pub models: Vec<String>,
}

impl Told {
    pub fn of_stream(client: Client, text: &str) -> Self {
        let mut told = Self::default();
        for event in text.split("\n\n").filter(|event| !event.is_empty()) {
            let lines: Vec<&str> = event.lines().collect();
            let field = |name: &str| lines.iter().find_map(|line| line.strip_prefix(name));
            let Some(data) = field("data: ") else {
                assert!(event.starts_with(':'), "neither data nor a comment: {event:?}");
                continue;
            };
            match client {
                Client::Chat => {
                    assert_eq!(lines.len(), 1, "{event}");
                    told.chunk(data);
                }
                Client::Messages => {
                    let value: Value = serde_json::from_str(data).unwrap();
                    assert_eq!(field("event: "), value["type"].as_str(), "{event}");
                    told.message_event(&value);
                }
            }
        }
        told.models.dedup();
        told
    }

    fn chunk(&mut self, data: &str) {
        assert!(self.terminals == 0 && self.errors.is_empty(), "something follows the end: {data}");
        if data == "[DONE]" {
            self.terminals += 1;
            return;
        }
        let value: Value = serde_json::from_str(data).unwrap_or_else(|error| panic!("{error}: {data}"));
        if value["error"].is_object() {
            return self.errors.push(value["error"].clone());
        }
        self.models.extend(value["model"].as_str().map(str::to_owned));
        let choice = &value["choices"][0];
        self.text.push_str(choice["delta"]["content"].as_str().unwrap_or_default());
        let call = &choice["delta"]["tool_calls"][0];
        self.arguments.push_str(call["function"]["arguments"].as_str().unwrap_or_default());
        self.finish = choice["finish_reason"].as_str().map(str::to_owned).or(self.finish.take());
    }

    fn message_event(&mut self, value: &Value) {
        assert!(self.terminals == 0 && self.errors.is_empty(), "something follows the end: {value}");
        match value["type"].as_str().unwrap() {
            "message_start" => self.models.extend(value["message"]["model"].as_str().map(str::to_owned)),
            "content_block_delta" => {
                self.text.push_str(value["delta"]["text"].as_str().unwrap_or_default());
                self.arguments.push_str(value["delta"]["partial_json"].as_str().unwrap_or_default());
            }
            "message_delta" => self.finish = value["delta"]["stop_reason"].as_str().map(in_words_of_chat),
            "message_stop" => self.terminals += 1,
            "error" => self.errors.push(value["error"].clone()),
            "content_block_start" | "content_block_stop" | "ping" => {}
            other => panic!("an event that no story tells: {other}"),
        }
    }

    pub fn of_answer(client: Client, value: &Value) -> Self {
        let mut told =
            Self { terminals: 1, models: vec![value["model"].as_str().unwrap().to_owned()], ..Self::default() };
        match client {
            Client::Chat => {
                let choice = &value["choices"][0];
                told.text = choice["message"]["content"].as_str().unwrap_or_default().to_owned();
                let call = &choice["message"]["tool_calls"][0]["function"]["arguments"];
                told.arguments = call.as_str().unwrap_or_default().to_owned();
                told.finish = choice["finish_reason"].as_str().map(str::to_owned);
            }
            Client::Messages => {
                for block in value["content"].as_array().unwrap() {
                    told.text.push_str(block["text"].as_str().unwrap_or_default());
                    if block["input"].is_object() {
                        told.arguments = block["input"].to_string();
                    }
                }
                told.finish = value["stop_reason"].as_str().map(in_words_of_chat);
            }
        }
        told
    }

    /// The one error of a stream that broke.
    #[track_caller]
    pub fn broken(&self) -> &Value {
        assert_eq!((self.terminals, self.errors.len()), (0, 1), "{self:?}");
        let error = &self.errors[0];
        assert!(error["message"].is_string() && error["incomplete"] == true, "{error}");
        error
    }

    #[track_caller]
    pub fn assert_whole(&self, story: &Story) {
        assert_eq!((self.terminals, self.errors.len()), (1, 0), "{self:?}");
        assert_eq!((&self.text, &self.arguments), (&story.text.concat(), &story.arguments.concat()), "{self:?}");
        let finish = if story.arguments.is_empty() { "stop" } else { "tool_calls" };
        assert_eq!(self.finish.as_deref(), Some(finish), "{self:?}");
        assert_eq!(self.models, [MODEL], "o33: the alias and nothing else");
    }
}

fn in_words_of_chat(reason: &str) -> String {
    match reason {
        "end_turn" => "stop",
        "tool_use" => "tool_calls",
        other => other,
    }
    .to_owned()
}

impl Read {
    pub fn told(&self, client: Client, stream: bool) -> Told {
        assert_eq!(self.status, 200, "{}", self.text());
        if stream { Told::of_stream(client, &self.text()) } else { Told::of_answer(client, &self.json()) }
    }
}
