//! The Responses API and embeddings, in their own dialect: facts, splices, streams, usage.

use bytes::Bytes;
use serde_json::{Value, json};
use weir_domain::registry::Capability;
use weir_domain::usage::Meter;
use weir_wire::Dialect::{self, OpenAiEmbeddings, OpenAiResponses};
use weir_wire::anthropic::AnthropicVersion;
use weir_wire::openai::chat::{CapField, DeveloperRole, Limits, StreamState};
use weir_wire::{ClientRequest, ProviderAnswer, RequestError, Target};

use crate::across::*;

fn parse(dialect: Dialect, body: &str) -> Result<ClientRequest, RequestError> {
    ClientRequest::parse(dialect, Bytes::from(body.to_owned()), &Limits::default(), AnthropicVersion::V2023_06_01)
}

fn target(dialect: Dialect) -> Target<'static> {
    Target {
        dialect,
        model: "gpt-x-2026",
        cap: Some(500),
        cap_field: CapField::MaxTokens,
        supports_stream_options: true,
        correlation: Some(("gw_attempt", "r-1")),
        developer_role: DeveloperRole::Keep,
        version: AnthropicVersion::V2026_10_21,
    }
}

fn sent(request: &ClientRequest) -> String {
    let target = target(request.dialect());
    String::from_utf8(request.for_target(&target).unwrap().body().to_vec()).unwrap()
}

#[test]
fn facts_of_a_full_request() {
    let body = r#"{"model":"Team-Fast","stream":true,"max_output_tokens":100,"instructions":"I","previous_response_id":"resp_0",
        "input":[{"role":"user","content":[{"type":"input_text","text":"hi"},
            {"type":"input_image","image_url":"data:image/png;base64,AAAA"},{"type":"input_file","file_data":"BBBBB"},
            {"type":"input_file","file_id":"f"}]}],
        "tools":[{"type":"function","name":"f","parameters":{}},{"type":"web_search"}],
        "text":{"format":{"type":"json_schema","name":"x","schema":{}}},"service_tier":"fast","safety_identifier":"s-1"}"#;
    let request = parse(OpenAiResponses, body).unwrap();
    let facts = request.facts();
    assert_eq!(
        (facts.model.as_str(), facts.cap_tokens, facts.stream, facts.store),
        ("Team-Fast", Some(100), true, true)
    );
    assert_eq!(
        (facts.continues.as_ref().map(|state| state.id.as_str()), facts.service_tier.as_deref()),
        (Some("resp_0"), Some("priority"))
    );
    assert_eq!(facts.end_user.as_deref(), Some("s-1"));
    assert_eq!((facts.size.images, facts.size.file_bytes), (1, 5));
    assert_eq!(facts.size.file_references, 2, "a file by its id, and the turns before");
    for capability in
        [Capability::Streaming, Capability::Tools, Capability::Vision, Capability::WebSearch, Capability::JsonSchema]
    {
        assert!(facts.needs.contains(capability), "{capability:?}");
    }
    let unstored = parse(OpenAiResponses, r#"{"model":"m","input":"x","store":false}"#).unwrap();
    assert!(!unstored.facts().store);
    assert!(parse(OpenAiResponses, r#"{"model":"m","input":"x","store":null}"#).unwrap().facts().store);
}

#[test]
fn o38_refusals_name_the_field() {
    for (dialect, body, field) in [
        (OpenAiResponses, r#"{"input":"x"}"#, "model"),
        (OpenAiResponses, r#"{"model":"m"}"#, "input"),
        (OpenAiResponses, r#"{"model":"m","input":7}"#, "input"),
        (OpenAiResponses, r#"{"model":"m","input":"x","max_output_tokens":0}"#, "max_output_tokens"),
        (OpenAiResponses, r#"{"model":"m","input":"x","background":true}"#, "background"),
        (OpenAiResponses, r#"{"model":"m","model":"m","input":"x"}"#, "model"),
        (OpenAiEmbeddings, r#"{"input":"x"}"#, "model"),
        (OpenAiEmbeddings, r#"{"model":"m"}"#, "input"),
        (OpenAiEmbeddings, r#"{"model":"m","input":{}}"#, "input"),
        (OpenAiEmbeddings, r#"{"model":"m","input":"x","Input":"y"}"#, "input"),
    ] {
        assert_eq!(parse(dialect, body).expect_err(body).field.as_deref(), Some(field), "{body}");
    }
}

#[test]
fn o32_a_rewrite_changes_what_it_owns_and_no_other_byte() {
    let request = parse(OpenAiResponses, r#"{ "model":"m", "input":"x", "max_output_tokens":5, "x":1.0 }"#).unwrap();
    assert_eq!(
        sent(&request),
        r#"{"metadata":{"gw_attempt":"r-1"}, "model":"gpt-x-2026", "input":"x", "max_output_tokens":500, "x":1.0 }"#
    );
    for (metadata, expected) in [
        (r#"{}"#, r#"{"gw_attempt":"r-1"}"#),
        (r#"{"a":"b"}"#, r#"{"gw_attempt":"r-1","a":"b"}"#),
        (r#"{"gw_attempt":"own"}"#, r#"{"gw_attempt":"own"}"#),
        ("null", "null"),
    ] {
        let body = format!(r#"{{"model":"m","input":"x","max_output_tokens":500,"metadata":{metadata}}}"#);
        assert!(
            sent(&parse(OpenAiResponses, &body).unwrap()).ends_with(&format!(r#""metadata":{expected}}}"#)),
            "{metadata}"
        );
    }
    let capless = sent(&parse(OpenAiResponses, r#"{"model":"m","input":"x","metadata":null}"#).unwrap());
    assert_eq!(capless, r#"{"max_output_tokens":500,"model":"gpt-x-2026","input":"x","metadata":null}"#);
    let embeddings = parse(OpenAiEmbeddings, r#"{"model":"m","input":["a",[1,2]],"dimensions":8,"user":"u"}"#).unwrap();
    assert_eq!(sent(&embeddings), r#"{"model":"gpt-x-2026","input":["a",[1,2]],"dimensions":8,"user":"u"}"#);
    assert_eq!(embeddings.facts().size.text_bytes, r#"["a",[1,2]]"#.len() as u64);
    assert_eq!(embeddings.facts().cap_tokens, Some(0), "no output is held");
}

fn created() -> String {
    event(
        r#"{"type":"response.created","sequence_number":0,"response":{"id":"resp_1","object":"response","status":"in_progress","model":"gpt-x-2026","output":[],"usage":null,"x":1.0}}"#,
    )
}

fn delta(text: &str) -> String {
    event(&format!(
        r#"{{"type":"response.output_text.delta","sequence_number":4,"item_id":"i","output_index":0,"content_index":0,"delta":"{text}","logprobs":[]}}"#
    ))
}

fn ended(status: &str) -> String {
    event(&format!(
        r#"{{"type":"response.{status}","sequence_number":9,"response":{{"id":"resp_1","status":"{status}","model":"gpt-x-2026","output":[],"service_tier":"default","tool_usage":{{"web_search":{{"num_requests":2}}}},"usage":{{"input_tokens":50,"input_tokens_details":{{"cached_tokens":10}},"output_tokens":16,"output_tokens_details":{{"reasoning_tokens":6}},"total_tokens":66}}}}}}"#
    ))
}

fn passed(stream: &str) -> Passed {
    pass_text(OpenAiResponses, OpenAiResponses, stream)
}

#[test]
fn a_stream_changes_the_model_and_no_other_byte() {
    let added =
        event(r#"{"type":"response.output_item.added","sequence_number":2,"item":{"type":"message","id":"i"}}"#);
    let stream = [created(), added, delta("Hi"), delta("中文"), ended("completed")].concat();
    let found = passed(&stream);
    assert_eq!(found.client, stream.replace(r#""model":"gpt-x-2026""#, r#""model":"Team-Fast""#));
    assert_eq!((found.facts.chunks_delivered, tokens(&found.facts)), (2, Some((50, 16))));
    let usage = found.facts.usage.clone().unwrap().usage.unwrap();
    assert_eq!((usage.get(Meter::InCacheRead), usage.get(Meter::ToolWebSearch)), (10, 2));
    assert_eq!(
        (found.facts.response_id.as_deref(), found.facts.served_tier.as_deref()),
        (Some("resp_1"), Some("default"))
    );
    assert!(found.facts.is_complete && found.facts.usage_is_final);
    for size in 1..64 {
        let pieces: Vec<&[u8]> = stream.as_bytes().chunks(size).collect();
        assert_eq!(pass(OpenAiResponses, OpenAiResponses, &pieces, true), found);
    }
    assert!(passed(&[created(), delta("Hi"), ended("incomplete")].concat()).has_terminal(), "cut by the cap is an end");
}

#[test]
fn o07_o09_lifecycle_events_are_neither_content_nor_an_end() {
    let found = passed(
        &[created(), event(r#"{"type":"response.in_progress","sequence_number":1,"response":{"id":"resp_1"}}"#)]
            .concat(),
    );
    assert_eq!((found.facts.state, found.facts.response_id.as_deref()), (StreamState::Preamble, Some("resp_1")));
    let cut = passed(&[created(), delta("Hi")].concat());
    assert!(cut.is_broken() && !cut.has_terminal());
    assert_eq!(cut.json().last().unwrap()["sequence_number"], 5, "the error has the next number");
    let call = event(
        r#"{"type":"response.output_item.added","sequence_number":2,"item":{"type":"function_call","name":"f"}}"#,
    );
    assert_eq!(passed(&[created(), call].concat()).facts.state, StreamState::Content);
}

#[test]
fn o06_failed_responses_and_error_events_are_errors() {
    let failed = event(
        r#"{"type":"response.failed","sequence_number":3,"response":{"id":"resp_1","status":"failed","error":{"code":"server_error","message":"boom"},"usage":{"input_tokens":5,"output_tokens":1}}}"#,
    );
    let found = passed(&[created(), failed].concat());
    let error = found.error.clone().unwrap();
    assert_eq!((error.message.as_str(), error.code.as_deref()), ("boom", Some("server_error")));
    assert_eq!(tokens(&found.facts), Some((5, 1)), "usage beside an error counts");
    let bare =
        event(r#"{"type":"error","sequence_number":3,"code":"rate_limit_exceeded","message":"slow","param":null}"#);
    let found = passed(&[created(), delta("x"), bare].concat());
    assert_eq!(found.error.clone().unwrap().code.as_deref(), Some("rate_limit_exceeded"));
    assert!(found.is_broken() && found.facts.chunks_delivered == 1);
}

#[test]
fn plain_answers_keep_their_bytes() {
    let body = r#"{"id":"resp_1","object":"response","status":"completed","model":"gpt-x-2026","output":[{"x":1.0}],"service_tier":"default","usage":{"input_tokens":50,"output_tokens":16,"total_tokens":66}}"#;
    let answer = ProviderAnswer::parse(OpenAiResponses, Bytes::from(body)).unwrap();
    assert!(answer.is_answer() && answer.error().is_none());
    let given = answer.for_client(&client_side(OpenAiResponses, false)).unwrap();
    assert_eq!(given, body.replace("gpt-x-2026", "Team-Fast").as_bytes());
    assert_eq!(answer.usage().unwrap().usage.unwrap().output_tokens(), 16);
    let failed = r#"{"id":"r","status":"failed","error":{"code":"server_error","message":"m"},"output":[]}"#;
    assert!(ProviderAnswer::parse(OpenAiResponses, Bytes::from(failed)).unwrap().error().is_some());

    let body = r#"{"object":"list","data":[{"object":"embedding","index":0,"embedding":[0.25,-1.0]}],"model":"e-1","usage":{"prompt_tokens":8,"total_tokens":8}}"#;
    let answer = ProviderAnswer::parse(OpenAiEmbeddings, Bytes::from(body)).unwrap();
    let usage = answer.usage().unwrap().usage.unwrap();
    assert_eq!((usage.input_tokens(), usage.output_tokens(), answer.is_answer()), (8, 0, true));
    assert_eq!(
        answer.for_client(&client_side(OpenAiEmbeddings, false)).unwrap(),
        body.replace("e-1", "Team-Fast").as_bytes()
    );
    let empty: Value = json!({"object": "list"});
    let empty = ProviderAnswer::parse(OpenAiEmbeddings, Bytes::from(empty.to_string())).unwrap();
    assert!(!empty.is_answer() && empty.usage().is_none());
}
