//! What no client should send: broken framing, absurd values, half requests. Each is answered or hung up on, and
//! afterwards the gateway serves on, holds nothing and has not panicked.

use std::time::Duration;

use crate::support::raw::{CHAT, Raw, RawAnswer, chat, chat_with, head};
use crate::support::{House, KEY, MODEL, Setup, body};
use tokio::time::Instant;
use weir_gateway::GatewayOptions;
use weir_runtime::listener::ListenerOptions;
use weir_runtime::units::HumanDuration;
use weir_stub::script::Script;

/// What may come back.
#[derive(Debug, Clone, Copy)]
enum Expect {
    Status(u16),
    /// With this code in the envelope.
    Refused(u16, &'static str),
}

/// A gateway, and how many requests it served that were fine.
struct Bench {
    house: House,
    served: usize,
}

impl Bench {
    async fn new() -> Self {
        Self::build(Setup::default()).await
    }

    async fn build(setup: Setup) -> Self {
        Self { house: House::build(setup).await, served: 0 }
    }

    async fn connect(&self) -> Raw {
        Raw::connect(self.house.gateway).await
    }

    /// Sends `bytes` and checks the answer, then that no harm was done.
    async fn check(&mut self, name: &str, bytes: impl AsRef<[u8]>, expect: Expect) -> RawAnswer {
        let mut raw = self.connect().await;
        // The answer may come, and the connection close, before everything is sent.
        let _ = raw.send(bytes).await;
        let answer = raw.answer().await.unwrap_or_else(|| panic!("{name}: no answer"));
        match expect {
            Expect::Status(status) => assert_eq!(answer.status, status, "{name}: {}", answer.text()),
            Expect::Refused(status, code) => {
                assert_eq!((answer.status, answer.code().as_str()), (status, code), "{name}: {}", answer.text());
            }
        }
        assert_is_envelope(name, &answer);
        self.served += usize::from(answer.status == 200);
        self.assert_unharmed(name).await;
        answer
    }

    async fn assert_unharmed(&mut self, name: &str) {
        let read = self.house.post(body(false)).await;
        assert_eq!(read.status, 200, "after {name}: {}", read.text());
        self.served += 1;
        self.house.assert_at_rest().await;
        let called = self.house.stubs[0].journal().len();
        assert_eq!(called, self.served, "after {name}: the provider saw only what was served");
        let created = self.house.kinds().await.iter().filter(|kind| **kind == "ReservationCreated").count();
        assert_eq!(created, self.served, "after {name}: only what was served was reserved");
    }
}

/// An error is in the dialect's envelope, names a request and never echoes the key. What is no HTTP request at all gets
/// a bare status.
fn assert_is_envelope(name: &str, answer: &RawAnswer) {
    assert!(!answer.text().contains(KEY), "{name}: the key is echoed");
    if answer.status < 400 || answer.body.is_empty() {
        return;
    }
    let value: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
    let error = &value["error"];
    assert!(error["message"].as_str().is_some_and(|text| !text.is_empty()), "{name}: {value}");
    assert!(error["type"].is_string() && error["code"].is_string(), "{name}: {value}");
    assert!(error.get("param").is_some(), "{name}: {value}");
    assert_eq!(answer.header("content-type"), Some("application/json"), "{name}");
    assert!(answer.header("x-request-id").is_some(), "{name}");
}

fn chunked(chunks: &str) -> String {
    head(CHAT, &["content-type: application/json", "transfer-encoding: chunked"]) + chunks
}

fn one_chunk(body: &str) -> String {
    format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len())
}

#[tokio::test]
async fn framing_that_can_be_read_in_two_ways_is_refused() {
    let mut bench = Bench::new().await;
    let fine = body(false);
    let length = format!("content-length: {}", fine.len());
    let json = "content-type: application/json";
    let bad = Expect::Status(400);
    let cases: Vec<(&str, String, Expect)> = vec![
        ("two different lengths", head(CHAT, &[json, "content-length: 5", &length]) + &fine, bad),
        ("one length twice", head(CHAT, &[json, &length, &length]) + &fine, Expect::Status(200)),
        ("a list of lengths", head(CHAT, &[json, "content-length: 5, 5"]) + "hello", bad),
        ("a length with a sign", head(CHAT, &[json, "content-length: +5"]) + "hello", bad),
        ("a negative length", head(CHAT, &[json, "content-length: -1"]), bad),
        ("a length beyond 64 bits", head(CHAT, &[json, "content-length: 99999999999999999999"]), bad),
        ("a folded header", head(CHAT, &[json, "x-a: one\r\n two", &length]) + &fine, bad),
        ("a space before the colon", head(CHAT, &[json, "content-length : 5"]) + "hello", bad),
        ("a header without a colon", head(CHAT, &[json, "nonsense", &length]) + &fine, bad),
        ("a null in a header", head(CHAT, &[json, "x-a: one\0two", &length]) + &fine, bad),
        ("chunked twice", head(CHAT, &[json, "transfer-encoding: chunked, identity"]) + &one_chunk(&fine), bad),
        ("an unknown encoding", head(CHAT, &[json, "transfer-encoding: xchunked"]) + &one_chunk(&fine), bad),
        ("a chunk size that is no number", chunked("zz\r\nhello\r\n0\r\n\r\n"), Expect::Refused(400, "request_broken")),
        ("a chunk size beyond 64 bits", chunked("fffffffffffffffff\r\nx"), Expect::Refused(400, "request_broken")),
        ("a negative chunk size", chunked("-5\r\nhello\r\n0\r\n\r\n"), Expect::Refused(400, "request_broken")),
        ("a chunk longer than its size", chunked("3\r\nhello\r\n0\r\n\r\n"), Expect::Refused(400, "request_broken")),
        ("chunks that are whole", chunked(&one_chunk(&fine)), Expect::Status(200)),
    ];
    for (name, bytes, expect) in cases {
        bench.check(name, bytes, expect).await;
    }
}

/// With both framings the chunks are the body, as the standard says, and the length reaches nobody: the provider gets a
/// request of Weir's own framing.
#[tokio::test]
async fn with_both_framings_the_chunks_are_the_body_and_what_follows_is_not_smuggled() {
    let mut bench = Bench::new().await;
    let smuggled = head("GET /v1/models HTTP/1.1", &[]);
    for length in ["content-length: 4", "content-length: 100000"] {
        for reversed in [false, true] {
            let mut framing = ["transfer-encoding: chunked", length];
            if reversed {
                framing.reverse();
            }
            let start = head(CHAT, &["content-type: application/json", framing[0], framing[1]]);
            bench.check(length, start + &one_chunk(&body(false)), Expect::Status(200)).await;
        }
    }
    // A body that ends early by its length: the rest is a second request of the same client, nothing more.
    let mut raw = bench.connect().await;
    raw.send(chat("{}") + &smuggled).await.unwrap();
    let answers = [raw.answer().await.unwrap().status, raw.answer().await.unwrap().status];
    assert_eq!(answers, [400, 200]);
    bench.assert_unharmed("a second request behind the first").await;
}

/// Line feeds alone end lines: the parser is lenient there (RFC 9112, 2.2 allows it), which is safe because nothing of
/// the client's framing is passed on.
#[tokio::test]
async fn bare_line_feeds_are_read_in_one_way() {
    let mut bench = Bench::new().await;
    bench.check("bare line feeds", chat(&body(false)).replace("\r\n", "\n"), Expect::Status(200)).await;
    bench.check("a bare carriage return", chat_with(&["x-a: one\rx-b: two"], &body(false)), Expect::Status(400)).await;
}

#[tokio::test]
async fn heads_have_bounds() {
    let mut bench = Bench::new().await;
    let large = format!("x-large: {}", "a".repeat(100 * 1024));
    bench.check("a header of 100 KiB", chat_with(&[&large], &body(false)), Expect::Status(431)).await;
    let many: Vec<String> = (0..200).map(|number| format!("x-{number}: v")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    bench.check("200 headers", chat_with(&many, &body(false)), Expect::Status(431)).await;
    let long = format!("GET /{} HTTP/1.1", "a".repeat(100 * 1024));
    bench.check("a path of 100 KiB", head(&long, &[]), Expect::Status(431)).await;
    let key = format!("authorization: Bearer {}", "k".repeat(30 * 1024));
    let start = format!("{CHAT}\r\nhost: weir\r\n{key}\r\ncontent-length: 2\r\n\r\n{{}}");
    bench.check("a key of 30 KiB", start, Expect::Refused(401, "invalid_api_key")).await;
}

#[tokio::test]
async fn slow_heads_and_bodies_are_cut_in_time() {
    let listener = ListenerOptions { header_deadline: HumanDuration::from_ms(300), ..ListenerOptions::default() };
    let options = GatewayOptions { body_deadline: HumanDuration::from_ms(300), ..GatewayOptions::default() };
    let mut bench = Bench::build(Setup { listener, options, ..Setup::default() }).await;

    let mut raw = bench.connect().await;
    raw.send("POST /v1/chat/comp").await.unwrap();
    let started = Instant::now();
    assert!(raw.is_closed_within(Duration::from_secs(5)).await, "a slow head is hung up on");
    assert!(started.elapsed() >= Duration::from_millis(250));
    bench.assert_unharmed("a slow head").await;

    let mut raw = bench.connect().await;
    let whole = chat(&body(false));
    raw.send(&whole[..whole.len() - 5]).await.unwrap();
    let answer = raw.answer().await.expect("a slow body is told so");
    assert_eq!((answer.status, answer.code().as_str()), (408, "request_timeout"));
    assert_eq!(answer.header("x-should-retry"), Some("false"));
    assert_is_envelope("a slow body", &answer);
    bench.assert_unharmed("a slow body").await;

    // One byte at a time does not extend the deadline of a body.
    let mut raw = bench.connect().await;
    raw.send(head(CHAT, &["content-type: application/json", "content-length: 1000"])).await.unwrap();
    let started = Instant::now();
    let mut ticks = tokio::time::interval(Duration::from_millis(20));
    let answer = loop {
        tokio::select! {
            answer = raw.answer() => break answer,
            _ = ticks.tick() => {}
        }
        if raw.send(" ").await.is_err() {
            break raw.answer().await;
        }
    };
    assert_eq!(answer.expect("an answer").status, 408);
    assert!(started.elapsed() < Duration::from_secs(5));
    bench.assert_unharmed("a dripping body").await;
}

#[tokio::test]
async fn a_client_that_stops_in_the_middle_of_a_body_leaves_nothing() {
    let mut bench = Bench::new().await;
    let whole = chat(&body(false));
    for kept in [whole.len() - 1, whole.len() - 60] {
        let mut raw = bench.connect().await;
        raw.send(&whole[..kept]).await.unwrap();
        drop(raw);
        bench.assert_unharmed("a dropped connection").await;
        // Half closed: the client could still read.
        let mut raw = bench.connect().await;
        raw.send(&whole[..kept]).await.unwrap();
        raw.finish().await;
        if let Some(answer) = raw.answer().await {
            assert_eq!((answer.status, answer.code().as_str()), (400, "request_broken"));
        }
        bench.assert_unharmed("half a connection").await;
    }
    let half_a_chunk = chunked("40\r\n{\"model\"");
    let mut raw = bench.connect().await;
    raw.send(half_a_chunk).await.unwrap();
    drop(raw);
    bench.assert_unharmed("half a chunk").await;
}

fn message(content: &str) -> String {
    format!(r#"{{"model":"{MODEL}","messages":[{{"role":"user","content":{content}}}]}}"#)
}

fn with(member: &str) -> String {
    format!(r#"{{"model":"{MODEL}",{member},"messages":[{{"role":"user","content":"hi"}}]}}"#)
}

#[tokio::test]
async fn bodies_that_are_no_request_are_named_and_located() {
    let mut bench = Bench::new().await;
    let nested = |open: &str, close: &str| with(&format!(r#""x":{}{}"#, open.repeat(10_000), close.repeat(10_000)));
    let cases = [
        ("an empty body", String::new()),
        ("blanks", "  \n ".to_owned()),
        ("null bytes", "\0\0\0\0".to_owned()),
        ("a null byte in a string", message("\"a\0b\"")),
        ("10,000 arrays", nested("[", "]")),
        ("10,000 objects", nested(r#"{"a":"#, "").replace(r#"{"a":,"#, r#"{"a":0,"#)),
        ("10,000 open arrays", "[".repeat(10_000)),
        ("no object", "[]".to_owned()),
        ("two objects", body(false) + &body(false)),
        ("half an object", body(false)[..20].to_owned()),
        ("a trailing comma", with(r#""a":1,"#)),
        ("a comment", with(r#"/* */"a":1"#)),
        ("not a number", with(r#""temperature":NaN"#)),
        ("infinity", with(r#""temperature":-Infinity"#)),
        ("a number with zeros before it", with(r#""seed":007"#)),
        ("a lone escape", message(r#""\x41""#)),
        ("a model that is a number", body(false).replace(r#""fast""#, "5")),
        ("an empty model", body(false).replace(r#""fast""#, r#""""#)),
        ("no messages", r#"{"model":"fast"}"#.to_owned()),
        ("messages that are no list", r#"{"model":"fast","messages":{}}"#.to_owned()),
        ("an empty list of messages", r#"{"model":"fast","messages":[]}"#.to_owned()),
        ("a stream that is a text", with(r#""stream":"yes""#)),
        ("stream twice", with(r#""stream":false,"stream":true"#)),
        ("a model twice", with(r#""model":"other""#)),
        ("a cap twice", with(r#""max_tokens":5,"max_tokens":50000"#)),
        ("a cap in another spelling", with(r#""max_tokens":5,"MAX_TOKENS":50000"#)),
        ("a cap escaped", with(r#""max_tokens":5,"max_\u0074okens":50000"#)),
    ];
    for (name, bytes) in cases {
        let answer = bench.check(name, chat(&bytes), Expect::Status(400)).await;
        assert!(!answer.code().is_empty(), "{name}: {}", answer.text());
    }
    let mut invalid = chat(&message("\"ab\"")).into_bytes();
    let at = invalid.windows(4).position(|window| window == b"\"ab\"").unwrap();
    for bytes in [[0xff, 0xfe], [0xc3, 0x28], [0xed, 0xa0]] {
        invalid[at + 1..at + 3].copy_from_slice(&bytes);
        bench.check("invalid UTF-8", &invalid, Expect::Status(400)).await;
    }
}

#[tokio::test]
async fn absurd_numbers_are_refused_and_say_what_would_do() {
    let mut bench = Bench::new().await;
    let absurd = ["1e30", "-1", "0", "\"5\"", "1.5", "5.0", "1e3", "4294967296", "18446744073709551616", "true", "[5]"];
    for field in ["max_tokens", "max_completion_tokens"] {
        for value in absurd {
            let answer = bench.check(value, chat(&with(&format!(r#""{field}":{value}"#))), Expect::Status(400)).await;
            let value: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
            assert_eq!(value["error"]["param"], field);
            assert!(answer.text().contains("whole number from 1"), "{}", answer.text());
        }
    }
    for choices in ["0", "1000", "129", "-1", "1.5", "\"2\""] {
        bench.check("n", chat(&with(&format!(r#""n":{choices}"#))), Expect::Status(400)).await;
    }
    // Numbers that are not Weir's to judge pass as they are, digits and all.
    let odd = r#""seed":123456789012345678901234567890,"temperature":1e-400"#;
    bench.check("odd numbers of others", chat(&with(odd)), Expect::Status(200)).await;
    let sent = bench.house.stubs[0].journal();
    assert!(sent.iter().any(|entry| entry.body.contains(odd)), "{:?}", sent.last().map(|entry| &entry.body));
    // The largest cap that is a number is one that no limit here forbids and no price overflows at.
    bench.check("the largest cap", chat(&with(r#""max_tokens":4294967295,"n":128"#)), Expect::Status(200)).await;
}

#[tokio::test]
async fn what_is_not_json_or_not_there_is_refused_in_the_envelope() {
    let mut bench = Bench::new().await;
    let fine = body(false);
    let length = format!("content-length: {}", fine.len());
    let typed = |content_type: &str| head(CHAT, &[content_type, &length]) + &fine;
    let unsupported = Expect::Refused(415, "unsupported_media_type");
    for content_type in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""] {
        bench.check(content_type, typed(&format!("content-type: {content_type}")), unsupported).await;
    }
    let accepted = ["content-type: application/json; charset=utf-8", "Content-Type: APPLICATION/JSON", "x-none: 1"];
    for content_type in accepted {
        bench.check(content_type, typed(content_type), Expect::Status(200)).await;
    }
    for encoding in ["gzip", "br", "gzip, identity", "deflate"] {
        let encoding = format!("content-encoding: {encoding}");
        bench.check(&encoding, chat_with(&[&encoding], &fine), unsupported).await;
    }
    bench.check("identity", chat_with(&["content-encoding: identity"], &fine), Expect::Status(200)).await;
    for (start, allow) in [
        ("GET /v1/chat/completions HTTP/1.1", "POST"),
        ("DELETE /v1/chat/completions HTTP/1.1", "POST"),
        ("POST /v1/models HTTP/1.1", "GET"),
        ("BREW /v1/chat/completions HTTP/1.1", "POST"),
    ] {
        let wrong = Expect::Refused(405, "method_not_allowed");
        let answer = bench.check(start, head(start, &["content-length: 0"]), wrong).await;
        assert_eq!(answer.header("allow"), Some(allow), "{start}");
    }
    for path in
        ["/", "/v1", "/v1/chat/completions/", "//v1/chat/completions", "/v1/chat%2Fcompletions", "/v1/../v1/models"]
    {
        let missing = Expect::Refused(404, "not_found");
        bench.check(path, head(&format!("POST {path} HTTP/1.1"), &["content-length: 0"]), missing).await;
    }
    bench
        .check("a query", chat(&fine).replacen("completions ", "completions?api-version=1 ", 1), Expect::Status(200))
        .await;
}

#[tokio::test]
async fn targets_in_other_forms_reach_the_same_place_or_none() {
    let mut bench = Bench::new().await;
    let fine = chat(&body(false));
    let absolute = fine.replacen("/v1/chat/completions", "http://elsewhere.example/v1/chat/completions", 1);
    bench.check("an absolute form", absolute, Expect::Status(200)).await;
    bench.check("a letter as percent", fine.replacen("/chat/", "/ch%61t/", 1), Expect::Refused(404, "not_found")).await;
    bench
        .check("an authority", head("CONNECT elsewhere.example:443 HTTP/1.1", &[]), Expect::Refused(404, "not_found"))
        .await;
    bench.check("an asterisk", head("OPTIONS * HTTP/1.1", &[]), Expect::Refused(404, "not_found")).await;
    bench.check("a version of the future", fine.replacen("HTTP/1.1", "HTTP/3.0", 1), Expect::Status(400)).await;
    bench.check("no version", "GET /v1/models\r\n\r\n", Expect::Status(400)).await;
    bench.check("a TLS hello", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", Expect::Status(400)).await;
    let mut raw = bench.connect().await;
    raw.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    assert!(raw.is_closed_within(Duration::from_secs(5)).await, "HTTP/2 is hung up on");
    bench.assert_unharmed("the start of HTTP/2").await;
    let upgrade = ["connection: upgrade", "upgrade: websocket", "sec-websocket-version: 13", "sec-websocket-key: x"];
    bench.check("an upgrade", chat_with(&upgrade, &body(false)), Expect::Status(200)).await;
    let h2c = ["connection: upgrade, http2-settings", "upgrade: h2c", "http2-settings: AAMAAABkAAQAAP__"];
    bench.check("an upgrade to HTTP/2", chat_with(&h2c, &body(false)), Expect::Status(200)).await;
}

#[tokio::test]
async fn http_1_0_and_pipelines_are_served_in_order() {
    let mut bench = Bench::new().await;
    let old = chat(&body(false)).replacen("HTTP/1.1", "HTTP/1.0", 1);
    let mut raw = bench.connect().await;
    raw.send(&old).await.unwrap();
    assert_eq!(raw.answer().await.unwrap().status, 200);
    assert!(raw.is_closed_within(Duration::from_secs(5)).await, "HTTP/1.0 closes");
    bench.served += 1;
    bench.assert_unharmed("HTTP/1.0").await;

    let mut raw = bench.connect().await;
    let (models, fine) = (head("GET /v1/models HTTP/1.1", &[]), chat(&body(false)));
    raw.send(format!("{fine}{models}{fine}{}", chat("{}"))).await.unwrap();
    let mut statuses = Vec::new();
    for _ in 0..4 {
        statuses.push(raw.answer().await.unwrap().status);
    }
    assert_eq!(statuses, [200, 200, 200, 400]);
    bench.served += 2;
    bench.assert_unharmed("a pipeline").await;
}

#[tokio::test]
async fn the_key_is_checked_before_the_body_is_read_and_expect_waits_for_it() {
    let mut bench = Bench::new().await;
    let announced = ["content-type: application/json", "content-length: 30000000", "expect: 100-continue"];
    // Not one byte of the body is sent, and the refusal comes at once.
    let wrong = head(CHAT, &announced).replace(KEY, "weir_live_wrong");
    bench.check("a wrong key", &wrong, Expect::Refused(401, "invalid_api_key")).await;
    bench.check("no key", wrong.replace("authorization", "x-other"), Expect::Refused(401, "missing_api_key")).await;
    let answer =
        bench.check("a wrong key without expect", wrong.replace("expect", "x-expect"), Expect::Status(401)).await;
    assert!(!answer.text().contains("weir_live_wrong"), "{}", answer.text());

    let fine = body(false);
    let length = format!("content-length: {}", fine.len());
    let mut raw = bench.connect().await;
    raw.send(head(CHAT, &["content-type: application/json", &length, "expect: 100-continue"])).await.unwrap();
    assert_eq!(raw.answer().await.unwrap().status, 100, "the body is asked for");
    raw.send(&fine).await.unwrap();
    assert_eq!(raw.answer().await.unwrap().status, 200);
    bench.served += 1;
    bench.assert_unharmed("expect: 100-continue").await;
}

/// Keys where none belongs: nothing that a client could have mistyped comes back to it or goes to the provider.
#[tokio::test]
async fn odd_authorizations_are_refused_without_an_echo() {
    let mut bench = Bench::build(Setup { tiers: vec![Script::default()], ..Setup::default() }).await;
    for value in ["Bearer", "Bearer ", "Basic d2VpcjprZXk=", "bearer\t", KEY, "Bearer \u{e4}", "Bearer a b"] {
        let start = format!("{CHAT}\r\nhost: weir\r\nauthorization: {value}\r\ncontent-length: 2\r\n\r\n{{}}");
        let answer = bench.check(value, start, Expect::Status(401)).await;
        assert_eq!(answer.header("x-should-retry"), Some("false"));
    }
    let twice = chat_with(&["authorization: Bearer weir_live_other"], &body(false));
    bench.check("two keys: the first counts", twice, Expect::Status(200)).await;
    let id = chat_with(&["x-request-id: \"><script>", "traceparent: zz"], &body(false));
    let answer = bench.check("an id of markup", id, Expect::Status(200)).await;
    assert!(answer.header("x-request-id").is_some_and(|id| id.starts_with("req_")));
}
