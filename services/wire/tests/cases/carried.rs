//! The cases about messages, tools and parameters, carried into the other dialect.

use bytes::Bytes;
use serde_json::{Value, json};
use weir_wire::Dialect::{self, AnthropicMessages, OpenAiChat};
use weir_wire::anthropic::AnthropicVersion;
use weir_wire::envelope::keep_alive;
use weir_wire::openai::chat::{CapField, DeveloperRole, Limits, StreamState};
use weir_wire::sse::{Decoder, EventKind};
use weir_wire::{ClientRequest, ProviderAnswer, ProviderSide, Step, Target, Translator};

use crate::across::{client_side, message_start, text_block};

fn target(dialect: Dialect) -> Target<'static> {
    Target {
        dialect,
        model: "m",
        cap: None,
        cap_field: CapField::MaxCompletionTokens,
        supports_stream_options: true,
        correlation: None,
        developer_role: DeveloperRole::Keep,
        version: AnthropicVersion::V2023_06_01,
    }
}

fn request(from: Dialect, body: &str) -> ClientRequest {
    let version = AnthropicVersion::V2023_06_01;
    ClientRequest::parse(from, Bytes::from(body.to_owned()), &Limits::default(), version).expect(body)
}

/// A chat conversation for an Anthropic target.
fn turns(messages: &str) -> Value {
    let body = format!(r#"{{"model":"fast","messages":[{messages}]}}"#);
    let target = Target { cap: Some(9), ..target(AnthropicMessages) };
    let upstream = request(OpenAiChat, &body).for_target(&target).expect(messages);
    serde_json::from_slice(&upstream.body()).unwrap()
}

fn roles(body: &Value) -> Vec<&str> {
    body["messages"].as_array().unwrap().iter().map(|message| message["role"].as_str().unwrap()).collect()
}

#[test]
fn o25_arguments_of_the_history_are_objects() {
    let call = |arguments: &str| {
        turns(&format!(
            r#"{{"role":"user","content":"q"}},{{"role":"assistant","content":null,"tool_calls":[{{"id":"c","type":"function","function":{{"name":"f","arguments":{arguments}}}}}]}}"#
        ))
    };
    for (arguments, input) in [(r#""""#, json!({})), (r#"" ""#, json!({})), (r#""{\"a\":[1.5]}""#, json!({"a": [1.5]}))]
    {
        assert_eq!(call(arguments)["messages"][1]["content"][0]["input"], input, "{arguments}");
    }
}

#[test]
fn o26_tool_results_are_one_turn_and_come_first() {
    let body = turns(
        r#"{"role":"user","content":"q"},{"role":"assistant","content":null,"tool_calls":[
            {"id":"call_a","type":"function","function":{"name":"f","arguments":"{}"}},
            {"id":"call_b","type":"function","function":{"name":"g","arguments":"{}"}}]},
        {"role":"tool","tool_call_id":"call_a","content":"1"},{"role":"tool","tool_call_id":"call_b","content":"2"},
        {"role":"user","content":"and now?"}"#,
    );
    assert_eq!(roles(&body), ["user", "assistant", "user"]);
    let last = &body["messages"][2]["content"];
    let kinds: Vec<_> = last.as_array().unwrap().iter().map(|block| block["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["tool_result", "tool_result", "text"]);
    assert_eq!((&last[0]["tool_use_id"], &last[1]["tool_use_id"]), (&json!("call_a"), &json!("call_b")));
}

#[test]
fn o27_nothing_empty_is_sent_and_nothing_else_is_lost() {
    let body = turns(
        r#"{"role":"system","content":[{"type":"text","text":"Be brief"}]},{"role":"user","content":""},
        {"role":"user","content":"go"},{"role":"assistant","content":"   "},
        {"role":"user","content":[{"type":"text","text":""},{"type":"image_url","image_url":{"url":"data:image/png;base64,AA=="}}]}"#,
    );
    assert_eq!(body["system"], json!([{"type": "text", "text": "Be brief"}]));
    assert_eq!(roles(&body), ["user"], "turns between which nothing is said are one");
    let kinds: Vec<_> =
        body["messages"][0]["content"].as_array().unwrap().iter().map(|block| block["type"].clone()).collect();
    assert_eq!(kinds, ["text", "image"]);
    let same = r#"{"model":"m","messages":[{"role":"user","content":""},{"role":"assistant","content":"   "}]}"#;
    let upstream = request(OpenAiChat, same).for_target(&target(OpenAiChat)).unwrap();
    assert_eq!(upstream.body(), same.as_bytes(), "a chat target gets the bytes as they were");
}

#[test]
fn o30_each_target_gets_one_cap_under_its_own_name() {
    let both =
        r#"{"model":"fast","messages":[{"role":"user","content":"q"}],"max_tokens":500,"max_completion_tokens":400}"#;
    let parsed = request(OpenAiChat, both);
    let cap = parsed.facts().cap_tokens;
    assert_eq!(cap, Some(400));
    let sent = |target: &Target<'_>, request: &ClientRequest| -> Value {
        serde_json::from_slice(&request.for_target(target).unwrap().body()).unwrap()
    };
    let body = sent(&Target { cap, ..target(AnthropicMessages) }, &parsed);
    assert_eq!((&body["max_tokens"], body.get("max_completion_tokens")), (&json!(400), None));
    let error = parsed.for_target(&target(AnthropicMessages)).unwrap_err();
    assert_eq!(error.field, "max_tokens", "a cap is required there");
    let messages =
        request(AnthropicMessages, r#"{"model":"fast","max_tokens":500,"messages":[{"role":"user","content":"q"}]}"#);
    for (field, name, other) in [
        (CapField::MaxTokens, "max_tokens", "max_completion_tokens"),
        (CapField::MaxCompletionTokens, "max_completion_tokens", "max_tokens"),
    ] {
        let body = sent(&Target { cap_field: field, ..target(OpenAiChat) }, &messages);
        assert_eq!((&body[name], body.get(other)), (&json!(500), None));
    }
}

#[test]
fn o31_developer_messages_lead_or_are_refused() {
    let body = turns(r#"{"role":"developer","content":"D"},{"role":"user","content":"U"}"#);
    assert_eq!((&body["system"][0]["text"], roles(&body)), (&json!("D"), vec!["user"]));
    let middle = r#"{"model":"m","messages":[{"role":"user","content":"U"},{"role":"developer","content":"D"},{"role":"user","content":"V"}]}"#;
    let error = request(OpenAiChat, middle).for_target(&Target { cap: Some(9), ..target(AnthropicMessages) });
    assert_eq!(error.unwrap_err().field, "messages[1]");
    let system = Target { developer_role: DeveloperRole::System, ..target(OpenAiChat) };
    let upstream = request(OpenAiChat, middle).for_target(&system).unwrap();
    assert_eq!(upstream.body(), middle.replace("developer", "system").as_bytes(), "it keeps its place");
}

#[test]
fn o35_thinking_makes_the_round_through_a_chat_client() {
    let answer = r#"{"id":"msg_1","type":"message","role":"assistant","model":"c","stop_reason":"tool_use","content":[
        {"type":"thinking","thinking":"","signature":"SIG1=="},{"type":"redacted_thinking","data":"R1"},
        {"type":"text","text":"hi"},{"type":"tool_use","id":"t","name":"f","input":{"a":1}}],
        "usage":{"input_tokens":3,"output_tokens":4}}"#;
    let answer = ProviderAnswer::parse(AnthropicMessages, Bytes::from(answer)).unwrap();
    let given: Value = serde_json::from_slice(&answer.for_client(&client_side(OpenAiChat, true)).unwrap()).unwrap();
    let message = given["choices"][0]["message"].clone();
    let body = turns(&format!(
        r#"{{"role":"user","content":"q"}},{message},{{"role":"tool","tool_call_id":"t","content":"1"}}"#
    ));
    assert_eq!(
        body["messages"][1]["content"],
        json!([
            {"type": "thinking", "thinking": "", "signature": "SIG1=="},
            {"type": "redacted_thinking", "data": "R1"},
            {"type": "text", "text": "hi"},
            {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}},
        ])
    );
}

#[test]
fn o12_an_answer_to_go_on_from_stays_the_last_turn() {
    let body = turns(r#"{"role":"user","content":"Tell"},{"role":"assistant","content":"Once upon"}"#);
    assert_eq!(roles(&body), ["user", "assistant"]);
}

#[test]
fn o04_o45_keep_alives_between_steps_are_safe_in_every_dialect() {
    for dialect in [OpenAiChat, AnthropicMessages, Dialect::OpenAiResponses] {
        let mut decoder = Decoder::new(1_000);
        decoder.push(Bytes::from_static(keep_alive(dialect)));
        let event = decoder.next_event().unwrap().unwrap();
        let is_ping = event.kind == EventKind::Data && event.name.as_ref() == b"ping";
        assert!(event.kind == EventKind::Comment || is_ping, "{dialect}");
        assert_eq!(decoder.held_bytes(), 0);
    }
}

#[test]
fn o46_what_was_read_is_known_before_the_first_content() {
    for client in [OpenAiChat, AnthropicMessages] {
        let provider = ProviderSide { dialect: AnthropicMessages, choices: 1, max_event_bytes: 1 << 20 };
        let mut stream = Translator::new(&provider, &client_side(client, true)).unwrap();
        let mut out = bytes::BytesMut::new();
        stream.push(Bytes::from(message_start()));
        assert_eq!(stream.next_step(&mut out), Some(Step::Event { content: false }));
        let facts = stream.facts();
        let usage = facts.usage.unwrap().usage.unwrap();
        assert_eq!((usage.input_tokens(), facts.usage_is_final, facts.state), (25, false, StreamState::Preamble));
        assert_eq!(facts.response_id.as_deref(), Some("msg_1"), "by it a report can be matched");
        stream.push(Bytes::from(text_block(0, &["x"])));
        while stream.next_step(&mut out).is_some() {}
        assert_eq!(stream.state(), StreamState::Content);
    }
}
