//! Streams through the gateway: framing, the commitment point, what breaks and what it costs.

use std::time::Duration;

use crate::support::{House, MODEL, Read, Setup, body};
use weir_domain::attempt::AttemptOutcome;
use weir_domain::registry::Deadlines;
use weir_domain::reservation::ReservationStatus;
use weir_gateway::GatewayOptions;
use weir_stub::script::{Comment, Fault, FaultKind, LineEnd, Script, UsageScript};

fn usage(prompt: i64, completion: i64) -> UsageScript {
    UsageScript { prompt: Some(prompt), completion: Some(completion), ..UsageScript::default() }
}

fn fault(kind: FaultKind, after_chunks: usize) -> Option<Fault> {
    Some(Fault { kind, after_chunks, after_bytes: None, code: None, message: None, bytes: None })
}

fn raw(text: &str) -> Script {
    Script { raw: Some(text.to_owned()), usage: usage(5, 1), ..Script::default() }
}

fn ok(content: &str) -> String {
    format!(
        r#"data: {{"id":"c1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{{"index":0,"delta":{{"content":"{content}"}},"finish_reason":null}}]}}"#
    ) + "\n\n"
}

const ROLE: &str = "data: {\"id\":\"c1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}]}\n\n";
const STOP: &str = "data: {\"id\":\"c1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
const DONE: &str = "data: [DONE]\n\n";

fn usage_chunk(prompt: i64, completion: i64) -> String {
    format!(
        r#"data: {{"id":"c1","object":"chat.completion.chunk","created":1,"model":"m","choices":[],"usage":{{"prompt_tokens":{prompt},"completion_tokens":{completion},"total_tokens":{}}}}}"#,
        prompt + completion
    ) + "\n\n"
}

/// The error of the last event, which must be an error event without a sentinel after it.
fn broken(read: &Read) -> serde_json::Value {
    assert!(!read.text().contains("[DONE]"), "{}", read.text());
    let last = read.events().pop().unwrap();
    let value: serde_json::Value = serde_json::from_str(&last).unwrap();
    assert!(value["error"]["message"].is_string(), "{last}");
    value["error"].clone()
}

fn assert_complete(read: &Read) {
    assert_eq!(read.status, 200, "{}", read.text());
    assert_eq!(read.events().iter().filter(|event| *event == "[DONE]").count(), 1, "{}", read.text());
    assert_eq!(read.events().last().map(String::as_str), Some("[DONE]"));
}

async fn two_tiers(first: Script) -> House {
    let second = Script { text: Some("from b".to_owned()), usage: usage(3, 2), ..Script::default() };
    House::build(Setup { tiers: vec![first, second], ..Setup::default() }).await
}

#[tokio::test]
async fn o01_a_character_cut_between_reads_arrives_whole() {
    let text = ok("中文") + STOP + &usage_chunk(4, 2) + DONE;
    for cut in 1..6 {
        let at = text.find('中').unwrap() + cut;
        let pieces = [&text.as_bytes()[..at], &text.as_bytes()[at..]].map(base64);
        let house = House::of(Script { raw_base64: pieces.to_vec(), ..Script::default() }).await;
        let read = house.post(body(true)).await;
        assert_complete(&read);
        assert_eq!(read.content(), "中文", "cut at {cut}");
    }
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digit = |n: u32| char::from(DIGITS[(n & 63) as usize]);
    bytes
        .chunks(3)
        .flat_map(|chunk| {
            let bits = chunk.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
            let padded = |at: usize, c: char| if at <= chunk.len() { c } else { '=' };
            [digit(bits >> 18), digit(bits >> 12), padded(2, digit(bits >> 6)), padded(3, digit(bits))]
        })
        .collect()
}

#[tokio::test]
async fn o02_crlf_and_cr_line_ends_are_line_ends() {
    for line_end in [LineEnd::Crlf, LineEnd::Cr] {
        let script =
            Script { chunks: 2, text: Some("ab".to_owned()), line_end, usage: usage(6, 2), ..Script::default() };
        let house = House::of(script).await;
        let read = house.post(body(true)).await;
        assert_complete(&read);
        assert_eq!(read.content(), "ab");
        assert_eq!(house.reservation_of(&read).await.charged().tokens, 8);
    }
}

#[tokio::test]
async fn o03_comments_are_no_content_and_do_not_extend_the_first_content_budget() {
    let comments = (0..20).map(|_| Comment { before_chunk: 0, text: "PROCESSING".to_owned() }).collect();
    let first = Script { comments, before_content_ms: 60_000, usage: usage(5, 1), ..Script::default() };
    let second = Script { text: Some("from b".to_owned()), usage: usage(3, 2), ..Script::default() };
    let deadlines = Deadlines { first_content_ms: 300, ..Deadlines::default() };
    let house = House::build(Setup { tiers: vec![first, second], deadlines, ..Setup::default() }).await;
    let read = house.post(body(true)).await;
    assert_complete(&read);
    assert_eq!(read.content(), "from b");
    assert!(!read.text().contains("PROCESSING"));
    // The first attempt may have executed: it keeps its own worst case while the second is charged.
    let reservation = house.reservation_of(&read).await;
    assert_eq!(reservation.status(), ReservationStatus::PendingReconciliation);
    assert_eq!(reservation.attempts[0].outcome, Some(AttemptOutcome::MayHaveExecuted));
    assert_eq!(reservation.charged().tokens, 5);
    assert_eq!(reservation.held().tokens, reservation.attempts[0].hold.tokens);
}

/// Before its first content, too, a provider that says nothing at all is left after the idle time, long before its budget
/// for content is spent.
#[tokio::test]
async fn o45_a_provider_that_is_silent_before_its_first_content_is_left() {
    let first = Script { before_content_ms: 60_000, ..Script::default() };
    let second = Script { text: Some("from b".to_owned()), ..Script::default() };
    let deadlines = Deadlines { idle_ms: 200, first_content_ms: 50_000, ..Deadlines::default() };
    let house = House::build(Setup { tiers: vec![first, second], deadlines, ..Setup::default() }).await;
    let read = tokio::time::timeout(Duration::from_secs(10), house.post(body(true))).await.unwrap();
    assert_complete(&read);
    assert_eq!(read.content(), "from b");
}

#[tokio::test]
async fn o05_one_event_of_three_megabytes_is_relayed_whole() {
    let image = "A".repeat(3 * 1024 * 1024);
    let big = format!(
        r#"data: {{"id":"c1","model":"m","choices":[{{"index":0,"delta":{{"images":[{{"image_url":{{"url":"{image}"}}}}]}},"finish_reason":null}}]}}"#
    ) + "\n\n";
    let text = ok("a") + &big + STOP + &usage_chunk(10, 900) + DONE;
    let script = Script { write_bytes: Some(16 * 1024), ..raw(&text) };
    let house = House::of(script.clone()).await;
    let read = house.post(body(true)).await;
    assert_complete(&read);
    let event: serde_json::Value = serde_json::from_str(&read.events()[1]).unwrap();
    assert_eq!(event["choices"][0]["delta"]["images"][0]["image_url"]["url"].as_str().map(str::len), Some(image.len()));
    assert_eq!(house.reservation_of(&read).await.charged().tokens, 910);

    // Over a lower bound the stream says that it is incomplete.
    let options = GatewayOptions { max_event: weir_runtime::units::ByteSize::mib(1), ..GatewayOptions::default() };
    let house = House::build(Setup { tiers: vec![script], options, ..Setup::default() }).await;
    let read = house.post(body(true)).await;
    assert_eq!(broken(&read)["reason"], "upstream_decode_error");
}

#[tokio::test]
async fn o06_an_error_in_a_200_before_content_is_a_true_status_or_a_failover() {
    let overloaded = "data: {\"error\":{\"message\":\"overloaded\",\"type\":\"server_error\",\"code\":503}}\n\n";
    let house = two_tiers(raw(overloaded)).await;
    let read = house.post(body(true)).await;
    assert_complete(&read);
    assert_eq!(read.content(), "from b");

    let house = House::of(raw(overloaded)).await;
    let read = house.post(body(true)).await;
    assert_eq!(read.status, 503, "{}", read.text());
    assert_eq!(read.json()["error"]["message"], "overloaded");

    let house = two_tiers(raw("data: {\"error\":{\"message\":\"context length\",\"code\":400}}\n\n")).await;
    let read = house.post(body(true)).await;
    assert_eq!(read.status, 400, "{}", read.text());
    assert_eq!(house.stubs[1].journal().len(), 0, "a 400 does not fail over");
}

#[tokio::test]
async fn o07_a_clean_close_without_a_finish_reason_is_incomplete() {
    let house = House::of(raw(&(ROLE.to_owned() + &ok("The answer is")))).await;
    let read = house.post(body(true)).await;
    let error = broken(&read);
    assert_eq!((error["reason"].as_str(), error["incomplete"].as_bool()), (Some("stream_incomplete"), Some(true)));
    assert!(!read.text().contains(r#""finish_reason":"stop""#));
    let reservation = house.reservation_of(&read).await;
    assert_eq!(reservation.status(), ReservationStatus::PendingReconciliation);

    let second_choice =
        r#"data: {"id":"c1","model":"m","choices":[{"index":1,"delta":{"content":"x"},"finish_reason":null}]}"#;
    let house = House::of(raw(&(ok("x") + second_choice + "\n\n" + STOP))).await;
    let read = house.post(body(true).replace("\"stream\"", "\"n\":2,\"stream\"")).await;
    assert_eq!(broken(&read)["reason"], "stream_incomplete");
}

#[tokio::test]
async fn o08_a_finished_stream_without_the_sentinel_is_complete() {
    let whole = ok("hi") + STOP + &usage_chunk(9, 1);
    let late = ok("hi") + STOP + "¦" + &usage_chunk(9, 1);
    for text in [whole, late] {
        let house = House::of(raw(&text)).await;
        let read = house.post(body(true)).await;
        assert_complete(&read);
        assert_eq!(house.reservation_of(&read).await.charged().tokens, 10);
    }
}

#[tokio::test]
async fn o09_a_role_chunk_does_not_commit() {
    let house = two_tiers(Script { fault: fault(FaultKind::Reset, 0), ..Script::default() }).await;
    let read = house.post(body(true)).await;
    assert_complete(&read);
    assert_eq!(read.content(), "from b");
    assert_eq!(read.text().matches("\"role\":\"assistant\"").count(), 1);

    let house = House::of(raw(&(ROLE.to_owned() + STOP))).await;
    let read = house.post(body(true)).await;
    assert_complete(&read);
}

#[tokio::test]
async fn o10_content_before_an_error_in_the_same_read_is_content() {
    let error = "data: {\"error\":{\"message\":\"boom\",\"code\":500}}\n\n";
    for separator in ["", "¦"] {
        let text = [ROLE, &ok("Hel"), error].join(separator);
        let house = two_tiers(raw(&text)).await;
        let read = house.post(body(true)).await;
        assert_eq!(read.content(), "Hel");
        assert_eq!(broken(&read)["reason"], "upstream_in_band_error");
        assert_eq!(house.stubs[1].journal().len(), 0);
    }
}

#[tokio::test]
async fn o11_a_break_after_seventeen_chunks_is_said_and_never_spliced() {
    let house = two_tiers(Script { chunks: 40, fault: fault(FaultKind::Reset, 17), ..Script::default() }).await;
    let read = house.post(body(true)).await;
    assert_eq!(read.status, 200);
    let error = broken(&read);
    assert_eq!(error["chunks_delivered"], 17);
    assert_eq!(error["incomplete"], true);
    assert_eq!(error["reason"], "transport_error");
    assert_eq!(house.stubs[1].journal().len(), 0, "no other generation is asked for");
    let reservation = house.reservation_of(&read).await;
    assert_eq!(reservation.status(), ReservationStatus::PendingReconciliation);
    assert_eq!(reservation.attempts[0].outcome, Some(AttemptOutcome::ExecutedUsageUnknown));
    assert!(!reservation.slot, "the slot is free");
}

#[tokio::test]
async fn o13_usage_is_asked_for_by_the_gateway_and_hidden_from_a_client_that_did_not_ask() {
    let request = |options: &str| body(true).replace("\"stream\":true", &format!("\"stream\":true{options}"));
    for options in ["", r#","stream_options":{"include_usage":false,"x":1}"#, r#","stream_options":null"#] {
        let house = House::of(Script { text: Some("hi".to_owned()), usage: usage(20, 1), ..Script::default() }).await;
        let read = house.post(request(options)).await;
        assert_complete(&read);
        assert!(!read.text().contains("prompt_tokens"), "{}", read.text());
        assert_eq!(house.reservation_of(&read).await.charged().tokens, 21);
        let sent: serde_json::Value = serde_json::from_str(&house.stubs[0].journal()[0].body).unwrap();
        assert_eq!(sent["stream_options"]["include_usage"], true);
        assert_eq!(sent["stream_options"].get("x").is_some(), options.contains("\"x\""));
    }
    let house = House::of(Script { usage: usage(20, 1), ..Script::default() }).await;
    let read = house.post(request(r#","stream_options":{"include_usage":true}"#)).await;
    assert_complete(&read);
    let events = read.events();
    assert!(events[events.len() - 2].contains("\"choices\":[]"), "the usage chunk comes right before the end");
    assert_eq!(read.text().matches("\"choices\":[]").count(), 1);

    let house = House::of(Script { usage: usage(20, 1), ..Script::default() }).await;
    let read = house.post(body(false)).await;
    assert_eq!(house.reservation_of(&read).await.charged().tokens, 21);
    let sent: serde_json::Value = serde_json::from_str(&house.stubs[0].journal()[0].body).unwrap();
    assert!(sent.get("stream_options").is_none());
}

#[tokio::test]
async fn o13_a_target_without_stream_options_leaves_the_usage_unknown_not_zero() {
    let setup = Setup {
        tiers: vec![Script { usage: usage(20, 1), ..Script::default() }],
        adapt: |deployment| deployment.accepts_stream_options = false,
        ..Setup::default()
    };
    let house = House::build(setup).await;
    let read = house.post(body(true)).await;
    assert_complete(&read);
    let reservation = house.reservation_of(&read).await;
    assert_eq!(reservation.status(), ReservationStatus::PendingReconciliation);
    assert!(reservation.held().tokens > 0);
}

#[tokio::test]
async fn o14_usage_in_odd_shapes_is_read_and_odd_events_do_no_harm() {
    let figures = r#""usage":{"prompt_tokens":7,"completion_tokens":1,"total_tokens":8}"#;
    let preamble = "data: {\"id\":\"\",\"object\":\"\",\"created\":0,\"model\":\"\",\"prompt_filter_results\":[{\"prompt_index\":0,\"content_filter_results\":{}}],\"choices\":[]}\n\n";
    let odd = [
        preamble.to_owned() + &ok("hi") + STOP + &usage_chunk(7, 1),
        ok("hi") + STOP + &format!("data: {{\"id\":\"c1\",\"choices\":null,{figures}}}\n\n"),
        ok("hi") + STOP + &format!("data: {{\"id\":\"c1\",{figures}}}\n\n"),
        ok("hi") + STOP + &format!("data: {{\"id\":\"c1\",\"choices\":[{{\"delta\":{{}}}}],{figures}}}\n\n"),
    ];
    for text in odd {
        let house = House::of(raw(&(text + DONE))).await;
        let read = house.post(body(true)).await;
        assert_complete(&read);
        assert_eq!(read.content(), "hi");
        assert_eq!(house.reservation_of(&read).await.charged().tokens, 8, "{}", read.text());
    }
}

#[tokio::test]
async fn o32_unknown_fields_survive_in_both_directions() {
    let chunk = r#"data: {"id":"c1","model":"m","system_fingerprint":"fp","x_vendor":{"a":[1,2]},"choices":[{"index":0,"delta":{"content":"x","reasoning_content":"r","x_vendor":1.0},"logprobs":{"content":[{"token":"x"}]},"finish_reason":null}]}"#;
    let house = House::of(raw(&(chunk.to_owned() + "\n\n" + STOP + &usage_chunk(1, 1) + DONE))).await;
    let request =
        body(true).replace("\"stream\"", "\"x_req\":1,\"metadata\":{\"a\":1.0,\"b\":1234567890123456789},\"stream\"");
    let read = house.post(request).await;
    assert_complete(&read);
    assert_eq!(read.events()[0], chunk.replace("\"model\":\"m\"", "\"model\":\"fast\"").trim_start_matches("data: "));
    let sent = &house.stubs[0].journal()[0].body;
    assert!(sent.contains("\"x_req\":1,\"metadata\":{\"a\":1.0,\"b\":1234567890123456789}"), "{sent}");
}

#[tokio::test]
async fn o33_every_chunk_names_the_alias_also_after_a_failover() {
    let first = Script { status: 500, ..Script::default() };
    let second = Script { text: Some("vendor/model-1 says hi".to_owned()), usage: usage(1, 1), ..Script::default() };
    let house = House::build(Setup { tiers: vec![first, second], ..Setup::default() }).await;
    let read = house.post(body(true)).await;
    assert_complete(&read);
    for event in read.events().iter().filter(|event| *event != "[DONE]") {
        let value: serde_json::Value = serde_json::from_str(event).unwrap();
        assert_eq!(value["model"], MODEL, "{event}");
    }
    assert_eq!(read.content(), "vendor/model-1 says hi", "text is not touched");
    assert_eq!(read.headers["x-weir-deployment"], "deployment-1");
    assert_eq!(read.headers["x-weir-attempts"], "2");
}

#[tokio::test]
async fn o34_several_choices_end_when_all_have_finished() {
    let choice = |index: u32, delta: &str, finish: &str| {
        format!(
            r#"data: {{"id":"c1","model":"m","choices":[{{"index":{index},"delta":{{{delta}}},"finish_reason":{finish}}}]}}"#
        ) + "\n\n"
    };
    let content = |text: &str| format!("\"content\":\"{text}\"");
    let text = choice(0, &content("A1"), "null")
        + &choice(1, &content("B1"), "null")
        + &choice(0, "", "\"stop\"")
        + &choice(1, &content("B2"), "null")
        + &choice(1, "", "\"length\"")
        + &usage_chunk(4, 3)
        + DONE;
    let house = House::of(raw(&text)).await;
    let request = body(true).replace("\"stream\"", "\"n\":2,\"max_tokens\":100,\"stream\"");
    let read = house.post(request).await;
    assert_complete(&read);
    assert!(read.text().contains("B2"));
    let reservation = house.reservation_of(&read).await;
    assert_eq!(reservation.charged().tokens, 7);
    let input_bound = reservation.created.hold.tokens - 200;
    assert!((1..200).contains(&input_bound), "two choices of a hundred tokens each are held: {input_bound}");
}

#[tokio::test]
async fn o44_a_compressed_stream_is_read_and_an_unknown_encoding_fails_over() {
    let house = House::of(Script { gzip: true, chunks: 3, usage: usage(5, 3), ..Script::default() }).await;
    for stream in [true, false] {
        let read = house.post(body(stream)).await;
        assert_eq!(read.status, 200);
        assert!(read.headers.get("content-encoding").is_none());
        assert_eq!(house.reservation_of(&read).await.charged().tokens, 8);
    }
    let mut unreadable = Script { chunks: 1, ..Script::default() };
    unreadable.headers.insert("content-encoding".to_owned(), "br".to_owned());
    let house = two_tiers(unreadable).await;
    let read = house.post(body(true)).await;
    assert_complete(&read);
    assert_eq!(read.content(), "from b");
}

#[tokio::test]
async fn o45_a_slow_healthy_stream_passes_and_a_silent_one_is_cut_by_the_idle_timeout() {
    let slow = Script { chunks: 10, gap_ms: 40, usage: usage(5, 10), ..Script::default() };
    let deadlines = Deadlines { idle_ms: 250, ..Deadlines::default() };
    let house = House::build(Setup { tiers: vec![slow], deadlines, ..Setup::default() }).await;
    let read = house.post(body(true)).await;
    assert_complete(&read);

    let stalled = Script { chunks: 10, fault: fault(FaultKind::Stall, 2), ..Script::default() };
    let house = House::build(Setup { tiers: vec![stalled], deadlines, ..Setup::default() }).await;
    let started = std::time::Instant::now();
    let read = house.post(body(true)).await;
    assert_eq!(broken(&read)["reason"], "read_timeout");
    assert!(started.elapsed() < Duration::from_millis(1_250), "cut within the idle timeout and a second");
    assert_eq!(house.reservation_of(&read).await.status(), ReservationStatus::PendingReconciliation);
}

#[tokio::test]
async fn a_silent_stream_gets_its_status_and_comments_and_then_its_content() {
    let options = GatewayOptions {
        status_after: weir_runtime::units::HumanDuration::from_ms(50),
        keep_alive_every: weir_runtime::units::HumanDuration::from_ms(20),
        ..GatewayOptions::default()
    };
    let slow =
        Script { before_headers_ms: 300, text: Some("late".to_owned()), usage: usage(5, 1), ..Script::default() };
    let house = House::build(Setup { tiers: vec![slow], options: options.clone(), ..Setup::default() }).await;
    let read = house.post(body(true)).await;
    assert!(read.text().contains(": ping"), "{}", read.text());
    assert_eq!((read.status.as_u16(), read.content().as_str()), (200, "late"));

    // Exhaustion after the status line is the error event with nothing delivered.
    let failing = Script { before_headers_ms: 300, status: 503, ..Script::default() };
    let house = House::build(Setup { tiers: vec![failing], options, ..Setup::default() }).await;
    let read = house.post(body(true)).await;
    assert_eq!(read.status, 200);
    assert_eq!(broken(&read)["chunks_delivered"], 0);
}
