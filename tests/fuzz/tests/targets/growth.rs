//! Sixteen times the bytes take about sixteen times as long, whatever they are: shapes that make careless readers square.

use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use weir_wire::anthropic::AnthropicVersion;
use weir_wire::openai::chat::stream::StreamStep;
use weir_wire::openai::chat::{
    CapField, ChatRequest, DeveloperRole, Limits, PlainAnswer, StreamEditor, StreamReader, UpstreamEdits,
};
use weir_wire::sse::Decoder;
use weir_wire::{ClientRequest, ClientSide, Dialect, ProviderAnswer, ProviderSide, Target, Translator};

const SMALL: usize = 32 * 1024;
const FACTOR: usize = 16;
/// The small input is worked on `FACTOR` times, so that both measurements are as long and a busy machine slows both
/// alike: linear work then gives 1, square work `FACTOR`.
const MOST: u32 = 5;
/// A machine that is busy with something else may spoil one measurement.
const TRIES: usize = 3;

fn time(work: impl FnOnce()) -> Duration {
    let started = Instant::now();
    work();
    started.elapsed()
}

/// The least of several times, which is what others disturb least; taken in turns, so that both meet the same machine.
fn least_of_both(small: &Bytes, large: &Bytes, work: &impl Fn(Bytes)) -> (Duration, Duration) {
    (0..2).fold((Duration::MAX, Duration::MAX), |(few, many), _| {
        let all_small = || (0..FACTOR).for_each(|_| work(small.clone()));
        (few.min(time(all_small)), many.min(time(|| work(large.clone()))))
    })
}

fn assert_linear(name: &str, input: impl Fn(usize) -> Bytes, work: impl Fn(Bytes)) {
    let (small, large) = (input(SMALL), input(SMALL * FACTOR));
    let mut measured = Vec::new();
    for _ in 0..TRIES {
        let (few, many) = least_of_both(&small, &large, &work);
        if many <= few.max(Duration::from_micros(800)) * MOST {
            return;
        }
        measured.push((few, many));
    }
    panic!("{name}: {FACTOR} times the bytes, at once and in as many pieces, took {measured:?}");
}

/// `start`, then `unit` as often as it takes, then `end`.
fn filled(start: &str, unit: impl Fn(usize) -> String, end: &str, bytes: usize) -> Bytes {
    let mut text = start.to_owned();
    let mut number = 0;
    while text.len() < bytes {
        text.push_str(&unit(number));
        number += 1;
    }
    Bytes::from(text + end)
}

const START: &str = r#"{"model":"m","messages":[{"role":"user","content":"hi"}]"#;

#[test]
fn requests_are_read_and_rewritten_in_linear_time() {
    let read = |body: Bytes| {
        let Ok(request) =
            ChatRequest::parse(body, &Limits { max_members: 1 << 20, max_tools: 1 << 20, ..Limits::default() })
        else {
            return;
        };
        let edits = UpstreamEdits {
            model: "other",
            cap: Some((CapField::MaxTokens, 5)),
            supports_stream_options: true,
            correlation: Some(("gw", "1")),
            developer_role: DeveloperRole::System,
        };
        assert!(!request.rewrite(&edits).is_empty());
    };
    let fixed = |unit: &'static str| move |_: usize| unit.to_owned();
    assert_linear("members", |n| filled(START, |i| format!(",\"x{i}\":1"), "}", n), read);
    assert_linear("equal members", |n| filled(START, fixed(",\"x\":1"), "}", n), read);
    assert_linear("metadata", |n| filled(r#"{"metadata":{"a":"b""#, |i| format!(",\"k{i}\":\"v\""), "}}", n), read);
    let messages = r#"{"model":"m","messages":[{"role":"user","content":"a"}"#;
    assert_linear("developers", |n| filled(messages, fixed(r#",{"role":"developer","content":"b"}"#), "]}", n), read);
    let text = r#"{"model":"m","messages":[{"role":"user","content":""#;
    assert_linear("escapes", |n| filled(text, fixed(r"\u0041\n\\"), "\"}]}", n), read);
    assert_linear("an open string", |n| filled(text, fixed("\\\""), "", n), read);
    assert_linear("open arrays", |n| filled("", fixed("["), "", n), read);
    assert_linear("blanks", |n| filled("{", fixed(" \n"), "", n), read);
    assert_linear("a late error", |n| filled(START, fixed("\n\n"), "x", n), read);
    assert_linear("a long number", |n| filled(r#"{"seed":"#, fixed("12345678"), "}", n), read);
    let tools = r#"{"model":"m","messages":[{"role":"user","content":"a"}],"tools":[{"type":"function","function":{"name":"f"}}"#;
    assert_linear("tools", |n| filled(tools, |i| format!(r#",{{"function":{{"name":"f{i}"}}}}"#), "]}", n), read);
}

#[test]
fn streams_are_read_in_linear_time_whatever_the_pieces() {
    let chunk = |_: usize| {
        r#"data: {"id":"c","model":"m","choices":[{"index":0,"delta":{"content":"a"}}]}"#.to_owned() + "\n\n"
    };
    let stream = |piece_bytes: usize| {
        move |input: Bytes| {
            let mut decoder = Decoder::new(usize::MAX);
            let (mut reader, mut editor) = (StreamReader::new(1), StreamEditor::new("alias", "id", true));
            let mut out = BytesMut::new();
            for piece in input.chunks(piece_bytes) {
                decoder.push(Bytes::copy_from_slice(piece));
                while let Ok(Some(event)) = decoder.next_event() {
                    if let StreamStep::Chunk(facts) = reader.feed(&event) {
                        editor.edit(&event, &facts, &mut out);
                    }
                }
            }
            let _last = decoder.finish();
        }
    };
    let line = |text: &'static str| move |_: usize| text.to_owned();
    for piece in [1, 7, 16 * 1024, usize::MAX] {
        assert_linear("chunks", |n| filled("", chunk, "", n), stream(piece));
        assert_linear("blank lines", |n| filled("", line("\n"), "", n), stream(piece));
        assert_linear("carriage returns", |n| filled("", line("\r\n\r"), "", n), stream(piece));
        assert_linear("one endless line", |n| filled("data: ", line("x"), "", n), stream(piece));
        assert_linear("one event of many lines", |n| filled("", line("data: x\n"), "\n\n", n), stream(piece));
        assert_linear("comments", |n| filled("", line(": x\n"), "\n\n", n), stream(piece));
    }
}

#[test]
fn plain_answers_are_read_in_linear_time() {
    let read = |body: Bytes| {
        if let Ok(answer) = PlainAnswer::parse(body) {
            let _seen = (answer.for_client("alias"), answer.usage(), answer.error());
        }
    };
    let choice = |i: usize| format!(r#",{{"index":{i},"message":{{"content":"a"}}}}"#);
    assert_linear("choices", |n| filled(r#"{"choices":[{"index":0}"#, choice, "]}", n), read);
    assert_linear("members", |n| filled(r#"{"id":"c""#, |i| format!(",\"x{i}\":1"), "}", n), read);
    assert_linear("usage", |n| filled(r#"{"usage":{"prompt_tokens":1"#, |i| format!(",\"x{i}\":1"), "}}", n), read);
}

/// A target of the other dialect.
fn target(dialect: Dialect) -> Target<'static> {
    Target {
        dialect,
        model: "m",
        cap: Some(5),
        cap_field: CapField::MaxTokens,
        supports_stream_options: true,
        correlation: None,
        developer_role: DeveloperRole::Keep,
        version: AnthropicVersion::V2023_06_01,
    }
}

#[test]
fn requests_are_carried_across_in_linear_time() {
    let carry = |from: Dialect, to: Dialect| {
        move |body: Bytes| {
            let limits = Limits { max_members: 1 << 20, max_tools: 1 << 20, ..Limits::default() };
            let request = ClientRequest::parse(from, body, &limits, AnthropicVersion::V2023_06_01).unwrap();
            let _carried = request.for_target(&target(to));
        }
    };
    let fixed = |unit: &'static str| move |_: usize| unit.to_owned();
    let to_messages = || carry(Dialect::OpenAiChat, Dialect::AnthropicMessages);
    let to_chat = || carry(Dialect::AnthropicMessages, Dialect::OpenAiChat);
    let chat = r#"{"model":"m","messages":[{"role":"user","content":"a"}"#;
    assert_linear("turns", |n| filled(chat, fixed(r#",{"role":"user","content":"b"}"#), "]}", n), to_messages());
    let pair = r#",{"role":"assistant","content":""},{"role":"user","content":"b"}"#;
    assert_linear("turns between which nothing is said", |n| filled(chat, fixed(pair), "]}", n), to_messages());
    let parts = r#"{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a"}"#;
    assert_linear("parts", |n| filled(parts, fixed(r#",{"type":"text","text":"b"}"#), "]}]}", n), to_messages());
    let tools = r#"{"model":"m","messages":[{"role":"user","content":"a"}],"tools":[{"type":"function","function":{"name":"f"}}"#;
    let tool = |i: usize| format!(r#",{{"type":"function","function":{{"name":"f{i}","parameters":{{}}}}}}"#);
    assert_linear("tools", |n| filled(tools, tool, "]}", n), to_messages());
    let members = |i: usize| format!(r#","x{i}":1"#);
    assert_linear("members", |n| filled(START, members, "}", n), to_messages());
    let messages = r#"{"model":"m","max_tokens":5,"messages":[{"role":"user","content":[{"type":"text","text":"a"}"#;
    let block = r#",{"type":"text","text":"b","cache_control":{"type":"ephemeral"}}"#;
    assert_linear("blocks", |n| filled(messages, fixed(block), "]}]}", n), to_chat());
    let result = r#",{"type":"tool_result","tool_use_id":"t","content":[{"type":"text","text":"b"}]}"#;
    assert_linear("results", |n| filled(messages, fixed(result), "]}]}", n), to_chat());
}

#[test]
fn streams_are_translated_in_linear_time_whatever_the_pieces() {
    let side =
        |dialect| ClientSide { dialect, alias: "alias", fallback_id: "id", wants_usage: true, created_s: 1, ids: None };
    let pass = |provider: Dialect, client: Dialect, piece_bytes: usize| {
        move |input: Bytes| {
            let provider = ProviderSide { dialect: provider, choices: 1, max_event_bytes: usize::MAX };
            let mut stream = Translator::new(&provider, &side(client)).unwrap();
            let mut out = BytesMut::new();
            for piece in input.chunks(piece_bytes) {
                stream.push(Bytes::copy_from_slice(piece));
                while stream.next_step(&mut out).is_some() {}
            }
            let _last = stream.close(&mut out);
        }
    };
    let call = |i: usize| {
        format!(
            "data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"tool_calls\":[{{\"index\":0,\"id\":\"c{i}\",\"function\":{{\"name\":\"f\",\"arguments\":\"1\"}}}}]}}}}]}}\n\n"
        )
    };
    let delta = |_: usize| {
        "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"a\"}}\n\n"
            .to_owned()
    };
    let start =
        "data: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n";
    for piece in [7, usize::MAX] {
        for client in [Dialect::OpenAiChat, Dialect::AnthropicMessages] {
            assert_linear("calls", |n| filled("", call, "", n), pass(Dialect::OpenAiChat, client, piece));
            assert_linear("deltas", |n| filled(start, delta, "", n), pass(Dialect::AnthropicMessages, client, piece));
        }
    }
}

#[test]
fn answers_are_carried_across_in_linear_time() {
    let side =
        |dialect| ClientSide { dialect, alias: "alias", fallback_id: "id", wants_usage: true, created_s: 1, ids: None };
    let carry = |from: Dialect, to: Dialect| {
        move |body: Bytes| {
            let answer = ProviderAnswer::parse(from, body).unwrap();
            assert!(answer.for_client(&side(to)).is_ok());
        }
    };
    let block = |i: usize| format!(r#",{{"type":"tool_use","id":"t{i}","name":"f","input":{{"a":1}}}}"#);
    let message = r#"{"content":[{"type":"text","text":"a"}"#;
    assert_linear(
        "blocks",
        |n| filled(message, block, "]}", n),
        carry(Dialect::AnthropicMessages, Dialect::OpenAiChat),
    );
    let call = |i: usize| format!(r#",{{"id":"t{i}","function":{{"name":"f","arguments":"{{}}"}}}}"#);
    let chat = r#"{"choices":[{"message":{"tool_calls":[{"id":"t","function":{"name":"f"}}"#;
    assert_linear("calls", |n| filled(chat, call, "]}}]}", n), carry(Dialect::OpenAiChat, Dialect::AnthropicMessages));
}
