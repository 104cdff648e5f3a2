//! Errors read back with a JSON parser, as a client's SDK does.

use serde_json::{Value, json};

use super::*;

fn parsed(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).unwrap()
}

#[test]
fn o38_an_error_body_has_all_four_members() {
    let error = ClientError::new("invalid_request_error", "invalid_value", "say \"why\"\n").with_param(Some("n"));
    assert_eq!(
        parsed(&error_body(Dialect::OpenAiChat, 400, &error, "r-1")),
        json!({"error": {"message": "say \"why\"\n", "type": "invalid_request_error", "param": "n", "code": "invalid_value"}})
    );
    let bare = ClientError { message: "m".into(), kind: "t".into(), ..ClientError::default() };
    let body = parsed(&error_body(Dialect::OpenAiChat, 400, &bare, "r-1"));
    assert_eq!(body, json!({"error": {"message": "m", "type": "t", "param": null, "code": null}}));
}

#[test]
fn o11_the_event_of_a_broken_stream_is_one_data_line_with_everything_inside_error() {
    let error = ClientError::new("stream_error", "stream_incomplete", "the provider went away");
    let broken = Break { reason: "upstream_closed", chunks_delivered: 17, request_id: "r-1", sequence_number: 3 };
    let event = stream_error_event(Dialect::OpenAiChat, &error, &broken);
    let data = event.strip_prefix(b"data: ").unwrap().strip_suffix(b"\n\n").unwrap();
    assert!(!data.contains(&b'\n'));
    let expected = json!({"error": {
        "message": "the provider went away", "type": "stream_error", "param": null, "code": "stream_incomplete",
        "reason": "upstream_closed", "chunks_delivered": 17, "incomplete": true, "request_id": "r-1",
    }});
    assert_eq!(parsed(data), expected);
}

#[test]
fn o38_o39_an_anthropic_error_has_the_type_of_its_status() {
    let error = ClientError::new("invalid_request_error", "model_not_found", "no such model").with_param(Some("model"));
    assert_eq!(
        parsed(&error_body(Dialect::AnthropicMessages, 404, &error, "r-1")),
        json!({"type": "error", "error": {"type": "not_found_error", "message": "no such model",
               "details": {"error_code": "model_not_found", "param": "model"}}, "request_id": "r-1"})
    );
    for (status, kind, expected) in [
        (400, "invalid_request_error", "invalid_request_error"),
        (401, "invalid_request_error", "authentication_error"),
        (403, "permission_denied", "permission_error"),
        (413, "invalid_request_error", "request_too_large"),
        (415, "invalid_request_error", "invalid_request_error"),
        (429, "insufficient_quota", "rate_limit_error"),
        (503, "server_error", "api_error"),
        (503, "overloaded_error", "overloaded_error"),
        (529, "server_error", "overloaded_error"),
        (504, "server_error", "timeout_error"),
    ] {
        let body = parsed(&error_body(Dialect::AnthropicMessages, status, &ClientError::new(kind, "c", "m"), "r"));
        assert_eq!(body["error"]["type"], expected, "{status} {kind}");
    }
}

#[test]
fn o11_the_events_of_broken_streams_of_the_other_dialects() {
    let error = ClientError::new("stream_error", "read_timeout", "silence");
    let broken = Break { reason: "read_timeout", chunks_delivered: 17, request_id: "r-1", sequence_number: 9 };
    let event = stream_error_event(Dialect::AnthropicMessages, &error, &broken);
    let data = event.strip_prefix(b"event: error\ndata: ").unwrap().strip_suffix(b"\n\n").unwrap();
    assert_eq!(
        parsed(data),
        json!({"type": "error", "error": {"type": "timeout_error", "message": "silence",
               "details": {"error_code": "read_timeout"}, "reason": "read_timeout", "chunks_delivered": 17,
               "incomplete": true}, "request_id": "r-1"})
    );
    let event = stream_error_event(Dialect::OpenAiResponses, &error, &broken);
    let data = event.strip_prefix(b"event: error\ndata: ").unwrap().strip_suffix(b"\n\n").unwrap();
    assert_eq!(
        parsed(data),
        json!({"type": "error", "sequence_number": 9, "code": "read_timeout", "message": "silence", "param": null,
               "error": {"message": "silence", "type": "stream_error", "param": null, "code": "read_timeout",
                         "reason": "read_timeout", "chunks_delivered": 17, "incomplete": true, "request_id": "r-1"}})
    );
}

/// The decoder of anthropic's SDK dispatches an event by its name and skips `ping`; one without data fails.
#[test]
fn o04_an_anthropic_keep_alive_is_its_own_event() {
    let mut decoder = crate::sse::Decoder::new(1_000);
    decoder.push(Bytes::from_static(keep_alive(Dialect::AnthropicMessages)));
    let event = decoder.next_event().unwrap().unwrap();
    assert_eq!((event.name.as_ref(), parsed(&event.data)), (&b"ping"[..], json!({"type": "ping"})));
    assert_eq!(decoder.held_bytes(), 0);
}

/// The decoder of openai-python as the issues behind O04 describe it: fields are kept over blank lines unless an event
/// was dispatched, and an `id` alone makes a blank line dispatch an event with empty data.
#[test]
fn o04_a_keep_alive_makes_old_decoders_dispatch_nothing() {
    let ping = std::str::from_utf8(keep_alive(Dialect::OpenAiChat)).unwrap();
    let stream = format!("data: {{\"a\":1}}\n\n{ping}{ping}data: {{\"b\":2}}\n\n");
    let (mut events, mut data, mut last_id) = (Vec::new(), Vec::new(), String::new());
    for line in stream.lines() {
        if line.is_empty() {
            if !data.is_empty() || !last_id.is_empty() {
                events.push(std::mem::take(&mut data).join("\n"));
            }
        } else if let Some(value) = line.strip_prefix("data: ") {
            data.push(value.to_owned());
        } else if let Some(value) = line.strip_prefix("id: ") {
            last_id = value.to_owned();
        }
    }
    assert_eq!(events, ["{\"a\":1}", "{\"b\":2}"]);
}

fn relayed(status: u16, body: &str) -> ClientError {
    let hidden = ["UPKEY-A", "api.vendor.test"];
    let redaction = Redaction { upstream_model: "vendor/m-7b", alias: "Team-Fast", hidden: &hidden };
    relayed_error(status, body.as_bytes(), &redaction)
}

#[test]
fn o33_a_providers_error_says_the_alias_and_no_secret() {
    let error = relayed(
        400,
        r#"{"error":{"message":"vendor/m-7b at api.vendor.test: key UPKEY-A, sk-proj-12345678 Bearer abcdefghi is bad; not vendor/m-7b-x","type":"invalid_request_error","param":"model","code":"bad_model"}}"#,
    );
    assert_eq!(
        error.message,
        "Team-Fast at [hidden]: key [hidden], [hidden] Bearer [hidden] is bad; not vendor/m-7b-x"
    );
    assert_eq!((error.kind.as_str(), error.param.as_deref()), ("invalid_request_error", Some("model")));
    assert_eq!(error.code.as_deref(), Some("bad_model"));
}

#[test]
fn bodies_in_other_forms_are_said_not_relayed() {
    for (body, message) in [
        ("<html>secret stack trace</html>", "The provider answered with status 503."),
        ("", "The provider answered with status 503."),
        (r#"{"detail":"model is loading"}"#, "model is loading"),
        (r#"{"object":"error","message":"too long","code":400}"#, "too long"),
        (r#"{"error":"plain words"}"#, "plain words"),
        (r#"{"error":{"error":{"message":"nested"}}}"#, "nested"),
    ] {
        assert_eq!(relayed(503, body).message, message, "{body}");
    }
}

#[test]
fn i6_keys_are_masked_and_words_that_look_alike_are_not() {
    let redaction = Redaction { upstream_model: "", alias: "fast", hidden: &[] };
    for (message, expected) in [
        ("key 'sk-abcdefgh12' is bad", "key '[hidden] is bad"),
        ("sk_live_1234567\nnext", "[hidden]\nnext"),
        ("a task-specific risk_assessment", "a task-specific risk_assessment"),
        ("Authorization: Bearer VK1-abcdef", "Authorization: Bearer [hidden]"),
    ] {
        let error = InBandError { message: message.into(), ..InBandError::default() };
        assert_eq!(relayed_in_band(401, &error, &redaction).message, expected);
    }
}

#[test]
fn a_short_model_name_is_not_replaced_inside_words() {
    let redaction = Redaction { upstream_model: "m", alias: "fast", hidden: &[] };
    let error = InBandError { message: "m: my model `m` met mm, m-1.".into(), ..InBandError::default() };
    assert_eq!(relayed_in_band(400, &error, &redaction).message, "fast: my model `fast` met mm, m-1.");
}
