//! Anthropic's messages: every event in its order, what is refused, what is billed.

use serde_json::{Value, json};

use super::client::Answer;
use super::{Client, ended, script, stub};
use crate::Stub;
use crate::journal::{Billed, State};

const HEADERS: &str = "x-api-key: k\r\nanthropic-version: 2023-06-01\r\n";

fn request(stream: bool) -> Value {
    json!({"model": "m", "max_tokens": 100, "stream": stream, "messages": [{"role": "user", "content": "hi"}]})
}

async fn ask(stub: &Stub, body: &Value) -> Answer {
    Client::connect(stub).await.call("POST", "/v1/messages?beta=true", HEADERS, &body.to_string()).await
}

/// The message that refuses `body`.
async fn refusal(stub: &Stub, body: &Value) -> String {
    let answer = ask(stub, body).await;
    assert_eq!((answer.status, &answer.json()["error"]["type"]), (400, &json!("invalid_request_error")), "{body}");
    answer.json()["error"]["message"].as_str().unwrap().to_owned()
}

const EVERYTHING: &str = "id = 'msg_1'\nthinking = 'so, so'\ntext = 'an answer'\nchunks = 2\n\
     tool_calls = [{ name = 'f', arguments = '{\"k\":1}', id = 't0' }, { name = 'g', arguments = '', id = 't1', fragments = 0 }]\n\
     usage = { prompt = 100, completion = 30, cached = 40, cache_write = 20, cache_write_long = 5, reasoning = 4 }";

#[tokio::test]
async fn a_stream_has_every_event_in_the_real_order() {
    let stub = stub(EVERYTHING);
    let answer = ask(&stub, &request(true)).await;
    assert!(answer.head.contains("request-id: msg_1") && answer.head.contains("text/event-stream"));
    let events = answer.named_events();
    let kinds: Vec<_> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    let (open, delta, close) = ("content_block_start", "content_block_delta", "content_block_stop");
    let expected = [
        &["message_start", open, "ping", delta, delta, delta, close][..],
        &[open, delta, delta, close],
        &[open, delta, delta, close, open, close],
        &["message_delta", "message_stop"],
    ];
    assert_eq!(kinds, expected.concat());
    let usage = &events[0]["message"]["usage"];
    assert_eq!(
        (&usage["input_tokens"], &usage["cache_read_input_tokens"], &usage["cache_creation_input_tokens"]),
        (&json!(40), &json!(40), &json!(20))
    );
    assert_eq!(usage["cache_creation"], json!({"ephemeral_5m_input_tokens": 15, "ephemeral_1h_input_tokens": 5}));
    assert_eq!(usage["output_tokens"], json!(1), "nothing is written yet");
    let signature = events[5]["delta"]["signature"].as_str().unwrap();
    assert!(signature.starts_with("stub-"), "{signature}");
    assert_eq!(events[11]["content_block"], json!({"type": "tool_use", "id": "t0", "name": "f", "input": {}}));
    let arguments: String = events[12..14].iter().filter_map(|event| event["delta"]["partial_json"].as_str()).collect();
    assert_eq!(arguments, "{\"k\":1}");
    let last = &events[events.len() - 2];
    assert_eq!((&last["delta"]["stop_reason"], &last["usage"]["output_tokens"]), (&json!("tool_use"), &json!(30)));
    let billed = Billed { prompt: 100, completion: 30, cached: 40, cache_write: 20, cache_write_long: 5, reasoning: 4 };
    assert_eq!(ended(&stub).await.billed, Some(billed));
}

#[tokio::test]
async fn a_plain_answer_has_the_same_blocks_and_usage() {
    let body = ask(&stub(EVERYTHING), &request(false)).await.json();
    let kinds: Vec<_> =
        body["content"].as_array().unwrap().iter().map(|block| block["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["thinking", "text", "tool_use", "tool_use"]);
    assert_eq!((&body["content"][1]["text"], &body["content"][2]["input"]), (&json!("an answer"), &json!({"k": 1})));
    assert_eq!((&body["stop_reason"], &body["usage"]["output_tokens"]), (&json!("tool_use"), &json!(30)));
    let capped = stub("chunks = 9");
    let mut request = request(false);
    request["max_tokens"] = json!(2);
    let body = ask(&capped, &request).await.json();
    assert_eq!((&body["stop_reason"], &body["usage"]["output_tokens"]), (&json!("max_tokens"), &json!(2)));
}

#[tokio::test]
async fn what_the_model_thought_comes_back_as_it_was_signed() {
    let stub = stub("thinking = 'déjà \"vu\"'\ntool_calls = [{ name = 'f', arguments = '{}' }]");
    let first = ask(&stub, &request(false)).await.json();
    let turn = |content: Value| {
        let result = json!([{"type": "tool_result", "tool_use_id": "call_stub_0", "content": "1"}]);
        let mut next = request(false);
        next["messages"] = json!([{"role": "user", "content": "hi"}, {"role": "assistant", "content": content}, {"role": "user", "content": result}]);
        next
    };
    assert_eq!(ask(&stub, &turn(first["content"].clone())).await.status, 200);
    let mut changed = first["content"].clone();
    changed[0]["thinking"] = json!("something else");
    assert!(refusal(&stub, &turn(changed.clone())).await.contains("Invalid `signature`"));
    changed[0].as_object_mut().unwrap().remove("signature");
    assert!(refusal(&stub, &turn(changed)).await.contains("Field required"));
}

#[tokio::test]
async fn what_the_real_one_refuses_is_refused_by_name_and_not_billed() {
    let stub = stub("");
    let with = |field: &str, value: Value| {
        let mut body = request(false);
        body[field] = value;
        body
    };
    let called = json!({"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]});
    let result = |id: &str| json!({"type": "tool_result", "tool_use_id": id, "content": "1"});
    let after_call = |content: Value| {
        with(
            "messages",
            json!([{"role": "user", "content": "x"}, called.clone(), {"role": "user", "content": content}]),
        )
    };
    let text = json!({"type": "text", "text": "and now?"});
    let cases = [
        (with("max_tokens", Value::Null), "max_tokens: Field required"),
        (with("messages", json!([])), "messages: at least one"),
        (with("messages", json!([{"role": "tool", "content": "x"}])), "messages.0.role: unexpected role \"tool\""),
        (with("messages", json!([{"role": "user", "content": " "}])), "messages.0: text content must be non-empty"),
        (with("messages", json!([{"role": "user", "content": []}])), "messages.0: content must be non-empty"),
        (with("system", json!([{"type": "text", "text": ""}])), "system: text content blocks"),
        (with("stream_options", json!({})), "stream_options: Extra inputs"),
        (after_call(json!([text])), "messages.2: `tool_use` ids were found without"),
        (after_call(json!([result("b")])), "messages.2: unexpected `tool_use_id`"),
        (after_call(json!([text, result("a")])), "messages.2: `tool_result` blocks must come first"),
        (with("messages", json!([{"role": "user", "content": "x"}, called])), "messages: `tool_use` ids"),
    ];
    for (body, expected) in cases {
        let message = refusal(&stub, &body).await;
        assert!(message.starts_with(expected), "{message}");
    }
    assert_eq!(ask(&stub, &after_call(json!([result("a"), text]))).await.status, 200);

    let mut client = Client::connect(&stub).await;
    let heads = [
        ("anthropic-version: 2023-06-01\r\n", 401, "x-api-key header is required"),
        ("x-api-key: k\r\n", 400, "anthropic-version: header is required"),
        ("x-api-key: k\r\nanthropic-version: 2020-01-01\r\n", 400, "anthropic-version: \"2020-01-01\""),
        ("authorization: Bearer k\r\nanthropic-version: 2026-10-21\r\n", 400, "temperature: not permitted"),
    ];
    for (headers, status, expected) in heads {
        let body = with("temperature", json!(1)).to_string();
        let answer = client.call("POST", "/v1/messages", headers, &body).await;
        assert_eq!(answer.status, status);
        assert!(answer.json()["error"]["message"].as_str().unwrap().starts_with(expected), "{}", answer.text());
    }
    assert_eq!(stub.totals().executed, 1);
}

#[tokio::test]
async fn errors_before_and_in_a_stream() {
    let stub = stub("status = 529");
    let answer = ask(&stub, &request(true)).await;
    assert_eq!((answer.status, &answer.json()["error"]["type"]), (529, &json!("overloaded_error")));
    stub.queue("m", vec![script("chunks = 3\npings = [1]\nfault = { kind = 'error', after_chunks = 1 }")]).unwrap();
    let events = ask(&stub, &request(true)).await.named_events();
    let kinds: Vec<_> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["message_start", "content_block_start", "ping", "content_block_delta", "error"]);
    assert_eq!(events[4]["error"]["type"], json!("overloaded_error"));

    stub.queue("m", vec![script("chunks = 2\npings = [1]\nfault = { kind = 'cut', after_chunks = 2 }")]).unwrap();
    let answer = ask(&stub, &request(true)).await;
    assert!(!answer.complete && !answer.text().contains("content_block_stop"));
    assert_eq!(answer.text().matches("event: ping").count(), 2);
}

#[tokio::test]
async fn tokens_are_counted_for_nothing() {
    let stub = stub("usage = { prompt = 77 }\nbilling = 'full'");
    let body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]}).to_string();
    let answer = Client::connect(&stub).await.call("POST", "/v1/messages/count_tokens", HEADERS, &body).await;
    assert_eq!(answer.json(), json!({"input_tokens": 77}));
    let entry = ended(&stub).await;
    assert_eq!((entry.state, entry.billed), (State::Complete, None));
}

#[tokio::test]
async fn a_script_is_found_in_any_text_of_the_prompt() {
    let stub = stub("");
    let marker = |text: &str| json!([{"type": "text", "text": format!("[[stub {{\"text\":\"{text}\"}}]]")}]);
    let mut body = request(false);
    body["system"] = marker("by system");
    assert_eq!(ask(&stub, &body).await.json()["content"][0]["text"], json!("by system"));
    body["system"] = json!("be brief");
    body["messages"] = json!([
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": marker("by result")}]},
    ]);
    assert_eq!(ask(&stub, &body).await.json()["content"][0]["text"], json!("by result"));
}
