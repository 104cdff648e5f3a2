//! Requests in the Anthropic dialect: facts, refusals by name, splices; and what cannot be carried in either direction.

use bytes::Bytes;
use serde_json::{Value, json};
use weir_domain::registry::Capability;
use weir_wire::anthropic::AnthropicVersion;
use weir_wire::anthropic::messages::{MessagesEdits, MessagesRequest, Purpose, TokenCount};
use weir_wire::openai::chat::{CapField, DeveloperRole, Limits};
use weir_wire::request::ResponseFormat;
use weir_wire::{ClientRequest, Dialect, RequestError, RequestErrorCode, Target, Untranslatable};

const V2023: AnthropicVersion = AnthropicVersion::V2023_06_01;
const V2026: AnthropicVersion = AnthropicVersion::V2026_10_21;

fn parse(body: &str, version: AnthropicVersion) -> Result<MessagesRequest, RequestError> {
    MessagesRequest::parse(Bytes::from(body.to_owned()), &Limits::default(), version, Purpose::Answer)
}

fn with(members: &str) -> String {
    format!(r#"{{"model":"fast","max_tokens":9,"messages":[{{"role":"user","content":"hi"}}]{members}}}"#)
}

#[track_caller]
fn refused(body: &str, version: AnthropicVersion) -> (Option<String>, RequestErrorCode) {
    let error = parse(body, version).expect_err(body);
    assert!(!error.message.contains("SECRET"), "a refusal echoes no values: {}", error.message);
    (error.field, error.code)
}

#[test]
fn facts_of_a_full_request() {
    let body = r#"{"model":"Team-Fast","max_tokens":100,"stream":true,"system":[{"type":"text","text":"S"}],
        "messages":[{"role":"user","content":[
            {"type":"image","source":{"type":"base64","media_type":"image/png","data":"AAAAAAAAAA"}},
            {"source":{"data":"BBBB","type":"base64"},"type":"document"},
            {"type":"document","source":{"type":"url","url":"https://x.test"}},
            {"type":"tool_result","tool_use_id":"t","content":[{"type":"image","source":{"type":"url","url":"https://y.test"}}]}]}],
        "tools":[{"name":"f","input_schema":{"type":"object"}},{"type":"web_search_20260318","name":"web_search"}],
        "tool_choice":{"type":"auto"},"metadata":{"user_id":"u-1"},"service_tier":"standard_only",
        "output_config":{"format":{"type":"json_schema","schema":{}}},"container":"cont_1"}"#;
    let request = parse(body, V2023).unwrap();
    let facts = request.facts();
    assert_eq!(
        (facts.model.as_str(), facts.cap_tokens, facts.choices, facts.stream),
        ("Team-Fast", Some(100), 1, true)
    );
    assert_eq!((facts.end_user.as_deref(), facts.service_tier.as_deref()), (Some("u-1"), Some("standard")));
    assert_eq!(
        facts.tools.iter().map(|tool| (tool.kind.as_str(), tool.name.as_str())).collect::<Vec<_>>(),
        [("function", "f"), ("web_search_20260318", "web_search_20260318")]
    );
    assert_eq!((facts.size.images, facts.size.file_bytes, facts.size.file_references), (2, 4, 1));
    assert_eq!((facts.data_url_bytes, facts.size.messages), (10, 1));
    assert_eq!(
        (facts.response_format, facts.continues.as_ref().map(|state| state.id.as_str())),
        (ResponseFormat::JsonSchema, Some("cont_1"))
    );
    for capability in
        [Capability::Streaming, Capability::Tools, Capability::Vision, Capability::WebSearch, Capability::JsonSchema]
    {
        assert!(facts.needs.contains(capability), "{capability:?}");
    }
    assert!(facts.size.text_bytes > 400 && facts.size.text_bytes < body.len() as u64);
    assert!(!format!("{request:?}").contains("u-1"), "i6: Debug shows no content");
}

#[test]
fn o30_o38_refusals_name_the_field() {
    use RequestErrorCode::{DuplicateField, InvalidJson, InvalidValue, MissingField};
    let named = |field: &str| Some(field.to_owned());
    for (body, expected) in [
        ("{".to_owned(), (None, InvalidJson)),
        ("[]".to_owned(), (None, InvalidJson)),
        (r#"{"max_tokens":9,"messages":[{}]}"#.to_owned(), (named("model"), MissingField)),
        (r#"{"model":"m","max_tokens":9}"#.to_owned(), (named("messages"), MissingField)),
        (r#"{"model":"m","messages":[{}]}"#.to_owned(), (named("max_tokens"), MissingField)),
        (r#"{"model":"m","max_tokens":9,"messages":[]}"#.to_owned(), (named("messages"), InvalidValue)),
        (r#"{"model":"m","max_tokens":9,"messages":["SECRET"]}"#.to_owned(), (named("messages[0]"), InvalidValue)),
        (r#"{"model":"m","max_tokens":0,"messages":[{}]}"#.to_owned(), (named("max_tokens"), InvalidValue)),
        (r#"{"model":"m","max_tokens":-1,"messages":[{}]}"#.to_owned(), (named("max_tokens"), InvalidValue)),
        (with(r#","max_tokens":7"#), (named("max_tokens"), DuplicateField)),
        (with(r#","Max_Tokens":7"#), (named("max_tokens"), InvalidValue)),
        (with(r#","stream":"SECRET""#), (named("stream"), InvalidValue)),
        (with(r#","system":7"#), (named("system"), InvalidValue)),
        (with(r#","tools":{}"#), (named("tools"), InvalidValue)),
        (with(r#","metadata":{"user_id":7}"#), (named("metadata.user_id"), InvalidValue)),
    ] {
        assert_eq!(refused(&body, V2023), expected, "{body}");
    }
}

#[test]
fn sampling_is_part_of_the_older_version_only() {
    for name in ["temperature", "top_p", "top_k"] {
        let body = with(&format!(r#","{name}":1"#));
        assert!(parse(&body, V2023).is_ok());
        assert_eq!(refused(&body, V2026), (Some(name.to_owned()), RequestErrorCode::InvalidValue));
        assert!(parse(&with(&format!(r#","{name}":null"#)), V2026).is_ok());
    }
}

#[test]
fn o32_o35_a_rewrite_changes_model_and_cap_and_no_other_byte() {
    let body = with(
        r#", "x_req": 1.0, "messages2":[{"type":"thinking","thinking":"","signature":"SIG\u003d1=="}], "cap":1234567890123456789"#,
    );
    let request = parse(&body, V2023).unwrap();
    let same = request.rewrite(&MessagesEdits { model: "fast", cap: Some(9) });
    assert_eq!(same, body.as_bytes());
    let other = request.rewrite(&MessagesEdits { model: "claude-x", cap: Some(5) });
    let expected =
        body.replace(r#""model":"fast""#, r#""model":"claude-x""#).replace(r#""max_tokens":9"#, r#""max_tokens":5"#);
    assert_eq!(other, expected.as_bytes());
}

#[test]
fn a_count_of_tokens_has_no_cap() {
    let parse = |body: &str| {
        MessagesRequest::parse(Bytes::from(body.to_owned()), &Limits::default(), V2023, Purpose::CountTokens)
    };
    let request = parse(r#"{"model":"fast","messages":[{"role":"user","content":"hi"}]}"#).unwrap();
    assert_eq!(request.facts().cap_tokens, None);
    let sent: Value = serde_json::from_slice(&request.rewrite(&MessagesEdits { model: "m", cap: None })).unwrap();
    assert_eq!(sent["model"], "m");
    assert_eq!(parse(&with("")).unwrap_err().field.as_deref(), Some("max_tokens"));
    assert_eq!(TokenCount::parse(br#"{"input_tokens":17,"x":1}"#), Ok(TokenCount { input_tokens: 17 }));
    assert_eq!(TokenCount { input_tokens: 17 }.to_body(), br#"{"input_tokens":17}"#[..]);
    assert!(TokenCount::parse(br#"{"input_tokens":-1}"#).is_err());
}

fn target(dialect: Dialect, version: AnthropicVersion) -> Target<'static> {
    Target {
        dialect,
        model: "m",
        cap: Some(9),
        cap_field: CapField::MaxTokens,
        supports_stream_options: true,
        correlation: None,
        developer_role: DeveloperRole::Keep,
        version,
    }
}

fn carry(from: Dialect, to: Dialect, body: &str, version: AnthropicVersion) -> Result<Value, Untranslatable> {
    let request = ClientRequest::parse(from, Bytes::from(body.to_owned()), &Limits::default(), V2023).expect(body);
    let upstream = request.for_target(&target(to, version))?;
    Ok(serde_json::from_slice(&upstream.body()).unwrap_or_else(|error| panic!("{error}: {:?}", upstream.body())))
}

fn chat(members: &str) -> String {
    format!(r#"{{"model":"fast","messages":[{{"role":"user","content":"hi"}}]{members}}}"#)
}

fn chat_messages(messages: &str) -> String {
    format!(r#"{{"model":"fast","messages":[{messages}]}}"#)
}

#[test]
fn what_messages_cannot_say_is_refused_by_its_name() {
    let user = r#"{"role":"user","content":"hi"}"#;
    let call = |arguments: &str| {
        chat_messages(&format!(
            r#"{user},{{"role":"assistant","tool_calls":[{{"id":"c","type":"function","function":{{"name":"f","arguments":"{arguments}"}}}}]}}"#
        ))
    };
    for (body, field) in [
        (chat(r#","n":2"#), "n"),
        (chat(r#","seed":7"#), "seed"),
        (chat(r#","temperature":1.5"#), "temperature"),
        (chat(r#","frequency_penalty":0.5"#), "frequency_penalty"),
        (chat(r#","logit_bias":{"5":1}"#), "logit_bias"),
        (chat(r#","logprobs":true"#), "logprobs"),
        (chat(r#","store":true"#), "store"),
        (chat(r#","metadata":{"a":"b"}"#), "metadata"),
        (chat(r#","prediction":{"type":"content","content":"x"}"#), "prediction"),
        (chat(r#","modalities":["text","audio"]"#), "modalities"),
        (chat(r#","audio":{"voice":"x"}"#), "audio"),
        (chat(r#","web_search_options":{}"#), "web_search_options"),
        (chat(r#","verbosity":"low""#), "verbosity"),
        (chat(r#","reasoning_effort":"minimal""#), "reasoning_effort"),
        (chat(r#","response_format":{"type":"json_object"}"#), "response_format.type"),
        (chat(r#","service_tier":"flex""#), "service_tier"),
        (chat(r#","functions":[{"name":"f"}]"#), "functions"),
        (chat(r#","x_invented":1"#), "x_invented"),
        (chat(r#","tools":[{"type":"custom","custom":{"name":"f"}}]"#), "tools[0].type"),
        (chat(r#","tools":[{"type":"function","function":{"name":"f","x":1}}]"#), "tools[0].function.x"),
        (chat(r#","tool_choice":{"type":"allowed_tools","allowed_tools":{}}"#), "tool_choice.type"),
        (chat_messages(r#"{"role":"user","content":"hi","name":"bob"}"#), "messages[0].name"),
        (
            chat_messages(
                r#"{"role":"user","content":[{"type":"input_audio","input_audio":{"data":"","format":"wav"}}]}"#,
            ),
            "messages[0].content[0].type",
        ),
        (
            chat_messages(
                r#"{"role":"user","content":[{"type":"image_url","image_url":{"url":"https://x","detail":"low"}}]}"#,
            ),
            "messages[0].content[0].image_url.detail",
        ),
        (
            chat_messages(r#"{"role":"user","content":[{"type":"image_url","image_url":{"url":"ftp://x"}}]}"#),
            "messages[0].content[0].image_url.url",
        ),
        (
            chat_messages(r#"{"role":"user","content":[{"type":"file","file":{"file_id":"f"}}]}"#),
            "messages[0].content[0].file.file_data",
        ),
        (chat_messages(&format!(r#"{user},{{"role":"developer","content":"later"}}"#)), "messages[1]"),
        (chat_messages(&format!(r#"{user},{{"role":"function","name":"f","content":""}}"#)), "messages[1].role"),
        (
            chat_messages(&format!(r#"{user},{{"role":"assistant","content":"x","reasoning_content":"hm"}}"#)),
            "messages[1].reasoning_content",
        ),
        (
            chat_messages(&format!(r#"{user},{{"role":"assistant","content":"x","refusal":"no"}}"#)),
            "messages[1].refusal",
        ),
        (
            chat_messages(&format!(
                r#"{user},{{"role":"assistant","content":"x","reasoning_details":[{{"type":"reasoning.text","text":"hm","index":0}}]}}"#
            )),
            "messages[1].reasoning_details",
        ),
        (call("{"), "messages[1].tool_calls[0].function.arguments"),
        (call("[]"), "messages[1].tool_calls[0].function.arguments"),
        (chat_messages(r#"{"role":"user","content":" "}"#), "messages"),
    ] {
        let error = carry(Dialect::OpenAiChat, Dialect::AnthropicMessages, &body, V2023).expect_err(&body);
        assert_eq!(error.field, field, "{body}: {error}");
        assert!(error.message.contains(field), "{error}");
    }
}

#[test]
fn the_newer_version_takes_no_sampling_but_its_default() {
    let carried =
        |members: &str, version| carry(Dialect::OpenAiChat, Dialect::AnthropicMessages, &chat(members), version);
    assert_eq!(carried(r#","temperature":0.5"#, V2026).unwrap_err().field, "temperature");
    assert_eq!(carried(r#","temperature":1.0,"top_p":1"#, V2026).unwrap().get("temperature"), None);
    assert_eq!(carried(r#","temperature":0.5"#, V2023).unwrap()["temperature"], json!(0.5));
}

#[test]
fn what_chat_cannot_say_is_refused_by_its_name() {
    let blocks = |blocks: &str| {
        format!(r#"{{"model":"fast","max_tokens":9,"messages":[{{"role":"user","content":[{blocks}]}}]}}"#)
    };
    let said = |blocks: &str| {
        format!(
            r#"{{"model":"fast","max_tokens":9,"messages":[{{"role":"user","content":"hi"}},{{"role":"assistant","content":[{blocks}]}}]}}"#
        )
    };
    for (body, field) in [
        (with(r#","top_k":5"#), "top_k"),
        (with(r#","thinking":{"type":"enabled","budget_tokens":2048}"#), "thinking.budget_tokens"),
        (with(r#","thinking":{"type":"between_tools"}"#), "thinking.type"),
        (with(r#","container":"c""#), "container"),
        (with(r#","inference_geo":"eu""#), "inference_geo"),
        (with(r#","speed":"fast""#), "speed"),
        (with(r#","mcp_servers":[{"x":1}]"#), "mcp_servers"),
        (with(r#","metadata":{"user_id":"u","x":1}"#), "metadata.x"),
        (with(r#","stop_sequences":["a","b","c","d","e"]"#), "stop_sequences"),
        (with(r#","tools":[{"type":"web_search_20260318","name":"web_search"}]"#), "tools[0].type"),
        (with(r#","tools":[{"name":"f","input_schema":{},"defer_loading":true}]"#), "tools[0].defer_loading"),
        (with(r#","output_config":{"format":{"type":"other"}}"#), "output_config.format.type"),
        (blocks(r#"{"type":"search_result","content":[]}"#), "messages[0].content[0].type"),
        (blocks(r#"{"type":"text","text":"x","citations":[{"a":1}]}"#), "messages[0].content[0].citations"),
        (blocks(r#"{"type":"image","source":{"type":"file","file_id":"f"}}"#), "messages[0].content[0].source.type"),
        (blocks(r#"{"type":"document","source":{"type":"url","url":"https://x"}}"#), "messages[0].content[0].source"),
        (
            blocks(r#"{"type":"tool_result","tool_use_id":"t","content":[{"type":"image","source":{}}]}"#),
            "messages[0].content[0].content[0].type",
        ),
        (said(r#"{"type":"thinking","thinking":"hm","signature":"SIG"}"#), "messages[1].content[0]"),
        (said(r#"{"type":"redacted_thinking","data":"R1"}"#), "messages[1].content[0].type"),
        (said(r#"{"type":"server_tool_use","id":"s","name":"web_search","input":{}}"#), "messages[1].content[0].type"),
    ] {
        let error = carry(Dialect::AnthropicMessages, Dialect::OpenAiChat, &body, V2023).expect_err(&body);
        assert_eq!(error.field, field, "{body}: {error}");
        assert_eq!(RequestError::from(error).code, RequestErrorCode::NotCarried);
    }
}

#[test]
fn o34_dialects_without_a_way_between_them_are_not_eligible() {
    use weir_wire::Family::{Anthropic, OpenAi};
    for (client, family, spoken) in [
        (Dialect::OpenAiChat, OpenAi, Some(Dialect::OpenAiChat)),
        (Dialect::OpenAiChat, Anthropic, Some(Dialect::AnthropicMessages)),
        (Dialect::AnthropicMessages, OpenAi, Some(Dialect::OpenAiChat)),
        (Dialect::AnthropicMessages, Anthropic, Some(Dialect::AnthropicMessages)),
        (Dialect::OpenAiResponses, OpenAi, Some(Dialect::OpenAiResponses)),
        (Dialect::OpenAiResponses, Anthropic, None),
        (Dialect::OpenAiEmbeddings, OpenAi, Some(Dialect::OpenAiEmbeddings)),
        (Dialect::OpenAiEmbeddings, Anthropic, None),
    ] {
        assert_eq!(client.towards(family), spoken, "{client} to {family:?}");
    }
    let error = carry(Dialect::OpenAiEmbeddings, Dialect::AnthropicMessages, r#"{"model":"e","input":"x"}"#, V2023);
    assert_eq!(error.unwrap_err().field, "model");
}
