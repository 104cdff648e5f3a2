//! Streams: order of events, usage, tools, choices, framing, and time.

use std::io::Read;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Client, STREAM, STREAM_WITH_USAGE, ask, ended, stub};
use crate::journal::State;

#[tokio::test]
async fn the_exact_bytes_of_a_stream() {
    let stub = stub("text = 'ab'\nchunks = 2\nid = 'x'");
    let answer = ask(&stub, STREAM).await;
    assert!(answer.head.contains("content-type: text/event-stream; charset=utf-8"));
    let created = answer.events().0[0]["created"].to_string();
    let event = |rest: &str| {
        format!(
            "data: {{\"id\":\"x\",\"object\":\"chat.completion.chunk\",\"created\":{created},\"model\":\"m\",\
             \"system_fingerprint\":\"fp_stub\",\"choices\":[{{\"index\":0,\"delta\":{rest}}}]}}\n\n"
        )
    };
    let expected = [
        event(r#"{"role":"assistant","content":""},"logprobs":null,"finish_reason":null"#),
        event(r#"{"content":"a"},"logprobs":null,"finish_reason":null"#),
        event(r#"{"content":"b"},"logprobs":null,"finish_reason":null"#),
        event(r#"{},"logprobs":null,"finish_reason":"stop""#),
        "data: [DONE]\n\n".to_owned(),
    ];
    assert_eq!(answer.text(), expected.concat());
    assert_eq!(answer.writes.len(), 5, "each event is a chunk of its own");
}

#[tokio::test]
async fn usage_comes_only_to_those_who_ask_unless_scripted() {
    let quiet = ask(&stub(""), STREAM).await;
    assert!(!quiet.text().contains("usage"));

    let stub_with_figures = stub("usage = { prompt = 9, completion = 4 }");
    let (events, done) = ask(&stub_with_figures, STREAM_WITH_USAGE).await.events();
    let (last, others) = events.split_last().unwrap();
    assert_eq!((&last["choices"], &last["usage"]["total_tokens"], done), (&json!([]), &json!(13), true));
    assert!(others.iter().all(|event| event["usage"] == Value::Null && event.get("usage").is_some()));

    let unasked = ask(&stub("usage = { report = 'always' }\ndone = false\nrole_chunk = false"), STREAM).await;
    let (events, done) = unasked.events();
    assert!(events.last().unwrap()["usage"].is_object() && !done);
    assert_eq!(events[0]["choices"][0]["delta"], json!({"content": "word0 "}), "no role chunk");
    let never = ask(&stub("usage = { report = 'never' }"), STREAM_WITH_USAGE).await;
    assert!(never.events().0.iter().all(|event| event["usage"].is_null()));
}

#[tokio::test]
async fn tool_arguments_arrive_in_fragments_and_choices_take_turns() {
    let toml =
        "n = 2\ntool_calls = [{ name = 'a', arguments = '{\"k\":1}', fragments = 3 }, { name = 'b', id = 'call_b' }]";
    let (events, _) = ask(&stub(toml), STREAM).await.events();
    for choice in 0..2 {
        let deltas = events.iter().filter(|event| event["choices"][0]["index"] == json!(choice));
        let calls: Vec<_> = deltas.filter_map(|event| event["choices"][0]["delta"]["tool_calls"].get(0)).collect();
        let arguments = |tool: usize| -> String {
            let of_tool = calls.iter().filter(|call| call["index"] == json!(tool));
            of_tool.filter_map(|call| call["function"]["arguments"].as_str()).collect()
        };
        assert_eq!((arguments(0).as_str(), arguments(1).as_str()), ("{\"k\":1}", ""));
        let opened: Vec<_> = calls.iter().filter_map(|call| call["id"].as_str()).collect();
        assert_eq!(opened, ["call_stub_0", "call_b"], "an id comes once");
    }
    let finishes: Vec<_> = events.iter().filter_map(|event| event["choices"][0]["finish_reason"].as_str()).collect();
    assert_eq!(finishes, ["tool_calls", "tool_calls"]);
}

#[tokio::test]
async fn line_ends_and_comments() {
    let lf = ask(&stub("id = 'x'\ncomments = [{ before_chunk = 1, text = 'ping' }]"), STREAM).await;
    let before_second = lf.text().find(": ping\n\ndata: ").unwrap();
    assert!(lf.text()[..before_second].contains("word0") && lf.text()[before_second..].contains("word1"));
    for (name, end) in [("crlf", "\r\n"), ("cr", "\r")] {
        let text = ask(&stub(&format!("line_end = '{name}'")), STREAM).await.text();
        assert!(text.ends_with(&format!("data: [DONE]{end}{end}")) && !text.replace(end, "").contains(['\r', '\n']));
    }
}

#[tokio::test]
async fn raw_bytes_arrive_in_the_writes_that_were_asked_for() {
    let raw = ask(&stub("raw = \"data: {'a'¦:1}\\r¦\\n\\r\\ndata: [DONE]\""), STREAM).await;
    assert_eq!(raw.writes, [&b"data: {'a'"[..], b":1}\r", b"\n\r\ndata: [DONE]"]);

    // The two bytes of an e with an acute accent, in two writes.
    let cut = ask(&stub("raw_base64 = ['ZGF0YTogw6k=', 'w6kKCg==']"), STREAM).await;
    assert_eq!(cut.writes.len(), 2);
    let cut = ask(&stub("raw_base64 = ['ww==', 'qQ==']"), STREAM).await;
    assert_eq!((cut.writes.len(), cut.text().as_str()), (2, "é"));

    let small = ask(&stub("text = 'abc'\nchunks = 1\nwrite_bytes = 7"), STREAM).await;
    assert!(small.writes.len() > 30 && small.writes.iter().all(|write| write.len() <= 7));
    assert_eq!(small.content(), "abc");
}

#[tokio::test]
async fn gaps_are_kept_and_the_first_chunk_does_not_wait_for_them() {
    let stub = stub("chunks = 4\ngap_ms = 40\nbefore_headers_ms = 30\nbefore_content_ms = 20");
    let started = Instant::now();
    let mut client = Client::connect(&stub).await;
    client.send("POST", "/openai/v1/chat/completions", "", STREAM).await;
    client.read_until("word0").await;
    assert!(started.elapsed() >= Duration::from_millis(50));
    client.read_until("[DONE]").await;
    assert!(started.elapsed() >= Duration::from_millis(50 + 3 * 40));
}

#[tokio::test]
async fn a_held_stream_ends_later_than_its_last_byte() {
    let held = stub("hold_open_ms = 600000");
    let mut client = Client::connect(&held).await;
    client.send("POST", "/v1/chat/completions", "", STREAM).await;
    client.read_until("[DONE]").await;
    assert_eq!(held.journal()[0].state, State::Running);

    let briefly = stub("hold_open_ms = 60");
    let started = Instant::now();
    assert!(ask(&briefly, STREAM).await.complete && started.elapsed() >= Duration::from_millis(60));
    assert_eq!(ended(&briefly).await.state, State::Complete);
}

#[tokio::test]
async fn a_compressed_stream_can_be_read_event_by_event() {
    let stub = stub("gzip = true\nchunks = 2\ngap_ms = 20");
    let answer = ask(&stub, STREAM).await;
    let mut first = Vec::new();
    // The reader gets the first two writes only: they must be whole events.
    let start = answer.writes[..2].concat();
    let _ends_early = flate2::read::GzDecoder::new(&start[..]).read_to_end(&mut first).is_err();
    assert!(String::from_utf8(first).unwrap().contains("word0"));
    let mut whole = String::new();
    flate2::read::GzDecoder::new(&answer.bytes()[..]).read_to_string(&mut whole).unwrap();
    assert!(whole.ends_with("[DONE]\n\n"));
}
