//! Requests: facts and refusals.

use proptest::prelude::*;
use weir_domain::registry::{Capabilities, Capability};
use weir_wire::RequestErrorCode::{DuplicateField, InvalidJson, InvalidValue, MissingField, TooMany};
use weir_wire::openai::chat::{ChatRequest, IncludeUsage, Limits, ResponseFormat};

use crate::support::*;

#[test]
fn facts_of_a_full_request() {
    let body = r#" {"model":"Team-Fast","messages":[
        {"role":"developer","content":"D"},
        {"role":"user","content":[{"type":"text","text":"look"},
            {"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}},
            {"image_url":{"url":"https://example.test/a.png"},"type":"image_url"},
            {"type":"input_audio","input_audio":{"data":"BBBBBB","format":"wav"}},
            {"type":"file","file":{"file_id":"f1"}},{"type":"file","file":{"file_data":"CCC"}}]}],
        "stream":true,"stream_options":{"include_usage":true,"x":1},"max_tokens":500,"max_completion_tokens":400,"n":2,
        "service_tier":"flex","tools":[{"type":"function","function":{"parameters":{},"name":"quote"}},{"type":"web_search"}],
        "tool_choice":"auto","response_format":{"type":"json_schema","json_schema":{}},"modalities":["text","audio"],
        "user":"u","safety_identifier":"s","metadata":{"a":"b"},"store":true,"logprobs":true,"web_search_options":{},
        "prediction":{"type":"content","content":"p"},"temperature":0.5} "#;
    let request = parse(body).unwrap();
    let facts = request.facts();
    assert_eq!((facts.model.as_str(), facts.stream, facts.include_usage), ("Team-Fast", true, IncludeUsage::True));
    assert_eq!((facts.cap_tokens, facts.choices), (Some(400), 2));
    assert_eq!((facts.service_tier.as_deref(), facts.end_user.as_deref()), (Some("flex"), Some("s")));
    let tools: Vec<_> = facts.tools.iter().map(|tool| (tool.kind.as_str(), tool.name.as_str())).collect();
    assert_eq!(tools, [("function", "quote"), ("web_search", "web_search")]);
    assert!(facts.has_tool_choice && facts.store && facts.has_prediction);
    assert_eq!(facts.response_format, ResponseFormat::JsonSchema);
    let size = facts.size;
    assert_eq!((size.messages, size.images, facts.data_url_bytes), (2, 2, 26));
    assert_eq!((size.audio_bytes, size.file_bytes, size.file_references), (6, 3, 1));
    // All that a chat request can need; its form of an answer is the stricter of the two.
    let other = [Capability::JsonMode, Capability::Embeddings];
    let needs: Capabilities = Capability::ALL.iter().copied().filter(|one| !other.contains(one)).collect();
    assert_eq!(facts.needs, needs);
    assert_eq!(request.body(), body);
}

#[test]
fn o43_a_pictures_bytes_are_not_text() {
    let url = format!("data:image/png;base64,{}", "A".repeat(200_000));
    let body = format!(
        r#"{{"model":"m","messages":[{{"role":"user","content":[{{"type":"image_url","image_url":{{"url":"{url}"}}}}]}}]}}"#
    );
    let facts = parse(&body).unwrap().facts().clone();
    assert_eq!((facts.size.images, facts.data_url_bytes), (1, url.len() as u64));
    assert!(facts.size.text_bytes < 150, "{}", facts.size.text_bytes);
}

#[test]
fn a_plain_request_needs_nothing() {
    let facts = parse(&with(r#""stream":null,"stream_options":null,"n":null,"tools":[],"max_tokens":null"#)).unwrap();
    let facts = facts.facts();
    assert!(facts.needs.is_empty() && !facts.stream && !facts.wants_stream_usage());
    assert_eq!((facts.choices, facts.cap_tokens, facts.tools.len()), (1, None, 0));
}

#[test]
fn what_is_not_json_is_refused_with_its_place() {
    let error = parse("{\n \"model\": \"m\",\n \"messages\": [}\n").unwrap_err();
    let position = error.position.unwrap();
    assert_eq!((error.code, position.line, position.column), (InvalidJson, 3, 15));
    assert!(error.message.contains("line 3, column 15"), "{}", error.message);
    for body in ["", "[]", "null", "\"SECRET\"", "{}x", "{\"model\":\"m\"", "{\"a\":1,}"] {
        let (field, code) = refused(body);
        assert!(field.is_none() && code == InvalidJson, "{body}");
    }
    let deep = with(&format!("\"x\":{}{}", "[".repeat(200), "]".repeat(200)));
    assert_eq!(refused(&deep).1, InvalidJson);
    let not_utf8 = ChatRequest::parse(bytes::Bytes::from_static(b"{\"model\":\"\xff\"}"), &Limits::default());
    assert_eq!(not_utf8.unwrap_err().position.map(|position| position.offset), Some(10));
}

#[test]
fn required_fields() {
    for (body, field, code) in [
        (r#"{}"#, "model", MissingField),
        (r#"{"model":"m"}"#, "messages", MissingField),
        (r#"{"messages":[{}]}"#, "model", MissingField),
        (r#"{"model":"m","messages":[]}"#, "messages", InvalidValue),
        (r#"{"model":"m","messages":{}}"#, "messages", InvalidValue),
        (r#"{"model":"m","messages":null}"#, "messages", InvalidValue),
        (r#"{"model":"m","messages":["SECRET"]}"#, "messages[0]", InvalidValue),
        (r#"{"model":"","messages":[{}]}"#, "model", InvalidValue),
        (r#"{"model":7,"messages":[{}]}"#, "model", InvalidValue),
        (r#"{"model":null,"messages":[{}]}"#, "model", InvalidValue),
    ] {
        assert_eq!(refused(body), (Some(field.to_owned()), code), "{body}");
    }
}

#[test]
fn o30_a_cap_is_a_positive_whole_number() {
    for field in ["max_tokens", "max_completion_tokens", "n"] {
        for value in ["0", "-1", "\"5\"", "1e30", "1e1", "5.0", "1.5", "true", "[]", "{}", "99999999999999999999"] {
            let body = with(&format!(r#""{field}":{value}"#));
            let error = parse(&body).expect_err(&body);
            assert_eq!((error.field.as_deref(), error.code), (Some(field), InvalidValue), "{body}");
            let at = error.position.unwrap().offset;
            assert!(body[at..].starts_with(value), "{body}");
        }
    }
    assert_eq!(refused(&with(r#""n":129"#)).0.as_deref(), Some("n"));
    assert_eq!(parse(&with(r#""n":128,"max_tokens":4294967295"#)).unwrap().facts().choices, 128);
}

#[test]
fn o30_of_two_caps_the_smaller_is_in_force() {
    for (members, cap) in [
        (r#""max_tokens":500,"max_completion_tokens":300"#, Some(300)),
        (r#""max_completion_tokens":700,"max_tokens":500"#, Some(500)),
        (r#""max_completion_tokens":null,"max_tokens":500"#, Some(500)),
        (r#""max_completion_tokens":9"#, Some(9)),
    ] {
        assert_eq!(parse(&with(members)).unwrap().facts().cap_tokens, cap, "{members}");
    }
}

#[test]
fn wrong_types_of_owned_fields_name_the_field() {
    for (members, field) in [
        (r#""stream":"SECRET""#, "stream"),
        (r#""stream":1"#, "stream"),
        (r#""stream_options":[]"#, "stream_options"),
        (r#""stream_options":{"include_usage":"SECRET"}"#, "stream_options.include_usage"),
        (r#""tools":{}"#, "tools"),
        (r#""tools":["SECRET"]"#, "tools"),
        (r#""service_tier":1"#, "service_tier"),
        (r#""user":[]"#, "user"),
        (r#""logprobs":2"#, "logprobs"),
    ] {
        assert_eq!(refused(&with(members)), (Some(field.to_owned()), InvalidValue), "{members}");
    }
}

#[test]
fn i2_an_owned_field_stands_there_once_and_in_one_spelling() {
    for (members, field, code) in [
        (r#""max_tokens":5,"max_tokens":900000"#, "max_tokens", DuplicateField),
        (r#""max_tokens":5,"max_tok\u0065ns":900000"#, "max_tokens", DuplicateField),
        (r#""model":"other""#, "model", DuplicateField),
        (r#""stream":true,"stream":false"#, "stream", DuplicateField),
        (r#""messages":[{}]"#, "messages", DuplicateField),
        (
            r#""stream_options":{"include_usage":true,"include_usage":false}"#,
            "stream_options.include_usage",
            DuplicateField,
        ),
        (r#""Max_Tokens":900000"#, "max_tokens", InvalidValue),
        (r#""MODEL":"other""#, "model", InvalidValue),
    ] {
        assert_eq!(refused(&with(members)), (Some(field.to_owned()), code), "{members}");
    }
    assert!(parse(&with(r#""x":1,"x":2"#)).is_ok(), "what is not ours is the provider's business");
}

#[test]
fn everything_is_bounded() {
    let many = |count: usize, item: &str| vec![item; count].join(",");
    let limits = Limits { max_messages: 3, max_tools: 2, max_name_bytes: 8, max_members: 6 };
    let parse = |body: String| ChatRequest::parse(body.into(), &limits);
    let messages = |count| format!(r#"{{"model":"m","messages":[{}]}}"#, many(count, "{}"));
    assert!(parse(messages(3)).is_ok());
    assert_eq!(parse(messages(4)).unwrap_err().code, TooMany);
    let tools = |count| with(&format!(r#""tools":[{}]"#, many(count, r#"{"type":"x"}"#)));
    assert!(parse(tools(2)).is_ok());
    assert_eq!(parse(tools(3)).unwrap_err().code, TooMany);
    assert_eq!(parse(with(&many(5, r#""x":1"#))).unwrap_err().code, TooMany);
    assert_eq!(parse(with(r#""user":"123456789""#)).unwrap_err().field.as_deref(), Some("user"));
}

#[test]
fn i6_debug_never_shows_a_prompt() {
    let request = parse(&with(r#""user":"SECRET-user","x":"SECRET-value""#)).unwrap();
    assert!(!format!("{request:?}").contains("SECRET"));
}

proptest! {
    #[test]
    fn damaged_requests_never_panic_and_a_refusal_has_words(
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        let members = r#""stream":true,"stream_options":{"include_usage":false},"max_tokens":5,"tools":[{"type":"x"}]"#;
        let mut body = with(members).into_bytes();
        for (at, byte) in damage {
            let at = at.index(body.len());
            body[at] = byte;
        }
        if let Err(error) = ChatRequest::parse(body.into(), &Limits::default()) {
            prop_assert!(!error.message.is_empty());
        }
    }
}

#[test]
fn o20_the_tier_fast_is_priced_as_priority_and_sent_as_it_is() {
    let body = r#"{"model":"m","messages":[{"role":"user","content":"x"}],"service_tier":"fast"}"#;
    let request = parse(body).unwrap();
    assert_eq!(request.facts().service_tier.as_deref(), Some("priority"));
    assert_eq!(request.body(), body);
}
