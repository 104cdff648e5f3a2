use bytes::{Bytes, BytesMut};

use super::{Delivered, Form, Seam, Stitch};
use crate::anthropic::AnthropicVersion;
use crate::request::Limits;
use crate::{ClientRequest, Dialect};

const EVENT_BYTES: usize = 1 << 16;
const SEAM: Seam<'static> = Seam { reason: "transport_error", attempt: 2, deployment: "b" };

fn chunk(id: &str, delta: &str, finish: &str) -> String {
    format!(r#"data: {{"id":"{id}","choices":[{{"index":0,"delta":{{{delta}}},"finish_reason":{finish}}}]}}"#) + "\n\n"
}

fn event(name: &str, rest: &str) -> String {
    format!("event: {name}\ndata: {{\"type\":\"{name}\"{rest}}}\n\n")
}

fn delivered(dialect: Dialect, written: &str) -> Delivered {
    let mut delivered = Delivered::new(dialect, 100, EVENT_BYTES).unwrap();
    delivered.observe(written.as_bytes());
    delivered
}

fn request(dialect: Dialect, body: &str) -> ClientRequest {
    let body = Bytes::copy_from_slice(body.as_bytes());
    ClientRequest::parse(dialect, body, &Limits::default(), AnthropicVersion::V2023_06_01).unwrap()
}

#[test]
fn plain_text_can_be_gone_on_with_and_nothing_else_can() {
    let role = chunk("a", r#""role":"assistant","content":"""#, "null");
    let text = chunk("a", r#""content":"Once \u00fcpon\n""#, "null");
    let chat = |more: &str| delivered(Dialect::OpenAiChat, &(role.clone() + &text + more));
    assert_eq!(chat("").continuable(), Some("Once üpon\n"));
    assert_eq!(chat(": ping\n\n").continuable(), Some("Once üpon\n"));
    for (delta, finish) in [
        (r#""tool_calls":[{"index":0}]"#, "null"),
        (r#""reasoning_content":"hm""#, "null"),
        (r#""refusal":"no""#, "null"),
        ("", "\"stop\""),
    ] {
        assert_eq!(chat(&chunk("a", delta, finish)).continuable(), None, "{delta}");
    }
    assert_eq!(chat("data: {\"choices\":[{\"index\":1,\"delta\":{\"content\":\"x\"}}]}\n\n").continuable(), None);
    assert_eq!(
        chat(&chunk("a", &format!(r#""content":"{}""#, "x".repeat(200)), "null")).continuable(),
        None,
        "too long"
    );

    let start = event("message_start", r#","message":{"id":"m"}"#);
    let block = event("content_block_start", r#","index":0,"content_block":{"type":"text","text":""}"#);
    let delta = event("content_block_delta", r#","index":0,"delta":{"type":"text_delta","text":"Once"}"#);
    let messages = |more: &str| delivered(Dialect::AnthropicMessages, &(start.clone() + &block + &delta + more));
    assert_eq!(messages("").continuable(), Some("Once"));
    let thinking = event("content_block_start", r#","index":1,"content_block":{"type":"thinking"}"#);
    assert_eq!(messages(&thinking).continuable(), None);
    assert_eq!(messages(&event("message_delta", r#","delta":{"stop_reason":"end_turn"}"#)).continuable(), None);
    assert!(Delivered::new(Dialect::OpenAiResponses, 1, 1).is_none());
}

#[test]
fn the_rest_is_asked_for_after_the_messages_and_no_other_byte_changes() {
    let body = r#"{"x":1.0,"messages":[{"role":"user","content":"hi"} ] ,"model":"m","max_tokens":5}"#;
    for dialect in [Dialect::OpenAiChat, Dialect::AnthropicMessages] {
        let request = request(dialect, body);
        let prefill = request.continued("Once \"u", Form::Prefill).unwrap();
        let expected = body.replace("} ] ,", r#"} ,{"role":"assistant","content":"Once \"u"}] ,"#);
        assert_eq!(prefill, expected.as_bytes());
        for (begun, form) in [("Once", Form::Instruction), ("Once ", Form::Prefill)] {
            let told = request.continued(begun, form).unwrap();
            let told = std::str::from_utf8(&told).unwrap();
            assert!(told.contains(r#"},{"role":"user","content":"Your answer above was cut off"#), "{told}");
        }
        assert_eq!(request.continued("", Form::Prefill).unwrap(), body.as_bytes());
    }
}

#[test]
fn o09_a_second_chat_stream_goes_on_under_the_first_id_with_one_role_and_one_mark() {
    let first = delivered(
        Dialect::OpenAiChat,
        &(chunk("first", r#""role":"assistant""#, "null") + &chunk("first", r#""content":"Once""#, "null")),
    );
    let second = chunk("second", r#""role":"assistant","content":"""#, "null")
        + &chunk("second", r#""content":" upon""#, "null")
        + &chunk("second", r#""content":" a""#, "null")
        + &chunk("second", "", "\"stop\"")
        + ": ping\n\ndata: [DONE]\n\n";
    let expected = chunk("first", r#""content":" upon""#, "null")
        .replace("data: {", r#"data: {"weir_continuation":{"reason":"transport_error","attempt":2,"deployment":"b"},"#)
        + &chunk("first", r#""content":" a""#, "null")
        + &chunk("first", "", "\"stop\"")
        + ": ping\n\ndata: [DONE]\n\n";
    let mut out = BytesMut::new();
    Stitch::new(&first, SEAM, EVENT_BYTES).write(second.as_bytes(), &mut out);
    assert_eq!(std::str::from_utf8(&out).unwrap(), expected);
}

#[test]
fn o09_a_second_message_goes_on_in_the_open_block_and_counts_on() {
    let start = event("message_start", r#","message":{"id":"m"}"#);
    let text = |index: u64| {
        event("content_block_start", &format!(r#","index":{index},"content_block":{{"type":"text","text":""}}"#))
    };
    let delta = |index: u64, text: &str| {
        event("content_block_delta", &format!(r#","index":{index},"delta":{{"type":"text_delta","text":"{text}"}}"#))
    };
    let stop = |index: u64| event("content_block_stop", &format!(r#","index":{index}"#));
    let end = event("message_delta", r#","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":3}"#)
        + &event("message_stop", "");
    let first = start.clone() + &text(0) + &delta(0, "a") + &stop(0) + &text(1) + &delta(1, "Once");
    let second = start + &text(0) + &delta(0, " upon") + &stop(0) + &text(1) + &delta(1, "b") + &stop(1) + &end;
    let marked = |event: String| {
        event.replacen(
            "data: {",
            r#"data: {"weir_continuation":{"reason":"transport_error","attempt":2,"deployment":"b"},"#,
            1,
        )
    };
    let expected = marked(delta(1, " upon")) + &stop(1) + &text(2) + &delta(2, "b") + &stop(2) + &end;
    let mut out = BytesMut::new();
    Stitch::new(&delivered(Dialect::AnthropicMessages, &first), SEAM, EVENT_BYTES).write(second.as_bytes(), &mut out);
    assert_eq!(std::str::from_utf8(&out).unwrap(), expected);

    // Broken between two blocks, and gone on with something else than text.
    let closed = delivered(Dialect::AnthropicMessages, &(first.clone() + &stop(1)));
    let mut out = BytesMut::new();
    Stitch::new(&closed, SEAM, EVENT_BYTES).write((text(0) + &delta(0, "x")).as_bytes(), &mut out);
    assert_eq!(std::str::from_utf8(&out).unwrap(), text(2) + &marked(delta(2, "x")));
    let tool = |index: u64| {
        event("content_block_start", &format!(r#","index":{index},"content_block":{{"type":"tool_use","id":"t"}}"#))
    };
    let mut out = BytesMut::new();
    Stitch::new(&delivered(Dialect::AnthropicMessages, &first), SEAM, EVENT_BYTES).write(tool(0).as_bytes(), &mut out);
    assert_eq!(std::str::from_utf8(&out).unwrap(), stop(1) + &tool(2));
}
