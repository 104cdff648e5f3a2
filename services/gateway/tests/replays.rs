//! I3, for clients: one `Idempotency-Key`, one call. Who comes again reads the first answer from its start, while it runs
//! and for a while after; nothing of that lets one reader hold up another, or a tape grow beyond its bound.

use std::sync::Arc;

use crate::support::provider::{After, SocketProvider};
use crate::support::raw::{Raw, chat_with};
use crate::support::{House, KEY, PATIENCE, Read, Setup, body};
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use tokio::time::{Duration, Instant, sleep, timeout};
use weir_domain::registry::Deadlines;
use weir_domain::reservation::ReservationStatus;
use weir_gateway::GatewayOptions;
use weir_runtime::clock::{ManualClock, SharedClock};
use weir_runtime::units::{ByteSize, HumanDuration};
use weir_stub::journal::State;
use weir_stub::script::{Fault, FaultKind, Refuse, Script, UsageScript};

const CROWD: usize = 200;

fn usage(prompt: i64, completion: i64) -> UsageScript {
    UsageScript { prompt: Some(prompt), completion: Some(completion), ..UsageScript::default() }
}

/// A stream that takes a second.
fn slow() -> Script {
    Script { chunks: 20, gap_ms: 50, usage: usage(5, 20), ..Script::default() }
}

/// More than any tape of these tests keeps, as fast as it can be read.
fn torrent() -> Script {
    Script { chunks: 8_000, chunk_bytes: Some(1_000), usage: usage(20, 8_000), ..Script::default() }
}

fn keyed(house: &House, text: String) -> Request<Full<Bytes>> {
    with_key(house.request(text))
}

fn with_key(mut request: Request<Full<Bytes>>) -> Request<Full<Bytes>> {
    request.headers_mut().insert("idempotency-key", "once".parse().unwrap());
    request
}

async fn house(script: Script, options: GatewayOptions) -> House {
    House::build(Setup { tiers: vec![script], options, ..Setup::default() }).await
}

fn keeping(replay_for_ms: u64) -> GatewayOptions {
    GatewayOptions { replay_for: HumanDuration::from_ms(replay_for_ms), ..GatewayOptions::default() }
}

fn code(read: &Read) -> (u16, String) {
    (read.status.as_u16(), read.json()["error"]["code"].as_str().unwrap_or_default().to_owned())
}

/// That `again` is `first` once more, in all that matters.
fn assert_same(first: &Read, again: &Read) {
    assert_eq!((first.status, &first.body), (again.status, &again.body));
    assert_eq!(again.header("x-weir-replayed"), "true");
    for name in ["x-weir-reservation", "x-weir-deployment", "x-weir-attempts", "content-type"] {
        assert_eq!(first.header(name), again.header(name), "{name}");
    }
    assert_ne!(first.header("x-request-id"), again.header("x-request-id"), "each request has an id of its own");
}

/// The next piece of a body.
async fn piece(body: &mut hyper::body::Incoming) -> Option<Bytes> {
    let frame = timeout(PATIENCE, body.frame()).await.expect("a piece in time")?;
    Some(frame.unwrap().into_data().unwrap())
}

/// Reads on to the end.
async fn rest(mut body: hyper::body::Incoming, mut read: Vec<u8>) -> Vec<u8> {
    while let Some(bytes) = piece(&mut body).await {
        read.extend_from_slice(&bytes);
    }
    read
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i03_two_hundred_at_once_with_one_key_are_one_call_and_two_hundred_equal_answers() {
    for stream in [false, true] {
        let provider = SocketProvider::start(After::Keep).await;
        let gated = Setup { tiers: Vec::new(), providers: vec![provider.url()], ..Setup::default() };
        let setup = if stream { Setup { tiers: vec![slow()], ..Setup::default() } } else { gated };
        let house = Arc::new(House::build(setup).await);
        provider.close_gate();
        let crowd: Vec<_> = (0..CROWD)
            .map(|_| {
                let (of_task, request) = (Arc::clone(&house), keyed(&house, body(stream)));
                house.tasks.spawn("client", async move { of_task.send(request).await })
            })
            .collect();
        if !stream {
            provider.until_seen(1).await;
            provider.open_gate();
        }
        let mut answers = Vec::with_capacity(CROWD);
        for client in crowd {
            answers.push(client.await.unwrap());
        }
        answers.sort_by_key(|answer| answer.headers.contains_key("x-weir-replayed"));
        let (first, again) = answers.split_first().unwrap();
        assert_eq!(first.status, 200, "{}", first.text());
        for answer in again {
            assert_same(first, answer);
        }
        let calls = if stream { house.stubs[0].journal().len() } else { provider.seen().len() };
        assert_eq!(calls, 1, "stream: {stream}");
        let reservation = house.reservation_of(first).await;
        assert_eq!(reservation.status(), ReservationStatus::Settled);
        house.assert_at_rest().await;
    }
}

#[tokio::test]
async fn i03_an_attached_stream_is_the_first_one_from_its_start() {
    let house = house(slow(), GatewayOptions::default()).await;
    let (head, mut stream) = house.open(keyed(&house, body(true))).await.into_parts();
    let start = piece(&mut stream).await.unwrap().to_vec();
    let again = house.send(keyed(&house, body(true))).await;
    let first = Read { status: head.status, headers: head.headers, body: rest(stream, start).await.into() };
    assert_same(&first, &again);
    assert!(first.text().ends_with("data: [DONE]\n\n"));
    // And once more when it is over.
    let after = house.send(keyed(&house, body(true))).await;
    assert_same(&first, &after);
    assert_eq!(house.stubs[0].journal().len(), 1);
    assert_eq!(house.reservation_of(&first).await.charged().tokens, 25);
}

#[tokio::test]
async fn i03_a_broken_stream_is_replayed_as_it_broke() {
    let fault =
        Fault { kind: FaultKind::Reset, after_chunks: 17, after_bytes: None, code: None, message: None, bytes: None };
    let house = house(Script { chunks: 40, fault: Some(fault), ..Script::default() }, GatewayOptions::default()).await;
    let first = house.send(keyed(&house, body(true))).await;
    assert!(first.text().contains("\"chunks_delivered\":17"));
    let again = house.send(keyed(&house, body(true))).await;
    assert_same(&first, &again);
    assert_eq!(house.stubs[0].journal().len(), 1);
}

#[tokio::test]
async fn i03_a_client_that_leaves_cancels_nothing_and_finds_its_answer() {
    let house = house(slow(), GatewayOptions::default()).await;
    let (head, mut stream) = house.open(keyed(&house, body(true))).await.into_parts();
    let start = piece(&mut stream).await.unwrap();
    drop(stream);
    let again = house.send(keyed(&house, body(true))).await;
    assert_eq!(again.header("x-weir-reservation"), head.headers["x-weir-reservation"]);
    assert!(again.body.starts_with(&start) && again.text().ends_with("data: [DONE]\n\n"), "{}", again.text());
    assert_eq!(house.reservation_of(&again).await.charged().tokens, 25, "settled, not pending");
    assert_eq!(house.stubs[0].journal().len(), 1);
}

/// The same before the answer's head, where hyper drops the request's future.
#[tokio::test]
async fn i03_a_client_that_leaves_before_the_head_finds_its_answer() {
    let provider = SocketProvider::start(After::Keep).await;
    provider.close_gate();
    let setup = Setup { tiers: Vec::new(), providers: vec![provider.url()], ..Setup::default() };
    let house = House::build(setup).await;
    assert!(timeout(Duration::from_millis(200), house.send(keyed(&house, body(false)))).await.is_err());
    provider.until_seen(1).await;
    provider.open_gate();
    let again = house.send(keyed(&house, body(false))).await;
    assert_eq!((again.status.as_u16(), again.header("x-weir-replayed")), (200, "true"));
    assert_eq!(provider.seen().len(), 1);
    assert_eq!(house.reservation_of(&again).await.status(), ReservationStatus::Settled);
}

#[tokio::test]
async fn i03_a_call_that_nobody_comes_back_for_is_given_up_and_never_made_again() {
    let house = house(Script { chunks: 600, ..slow() }, keeping(200)).await;
    let (head, mut stream) = house.open(keyed(&house, body(true))).await.into_parts();
    piece(&mut stream).await.unwrap();
    let left = Instant::now();
    drop(stream);
    until("the provider's connection is closed", || house.stubs[0].journal()[0].state == State::Cancelled).await;
    assert!(left.elapsed() >= Duration::from_millis(200), "the grace is waited for");
    let id = head.headers["x-weir-reservation"].to_str().unwrap();
    let reservation = house.settled(id.parse().unwrap()).await;
    assert_eq!(reservation.status(), ReservationStatus::PendingReconciliation);
    let again = house.send(keyed(&house, body(true))).await;
    assert_eq!(code(&again), (409, "idempotency_key_in_use".to_owned()));
    assert_eq!(again.header("x-should-retry"), "false");
    assert!(again.text().contains(id), "{}", again.text());
    assert_eq!(house.stubs[0].journal().len(), 1);
}

#[tokio::test]
async fn i03_after_its_time_an_answer_is_gone_and_its_reservation_is_named() {
    let house = house(Script::default(), keeping(150)).await;
    let first = house.send(keyed(&house, body(false))).await;
    assert_eq!(first.status, 200);
    assert_same(&first, &house.send(keyed(&house, body(false))).await);
    let deadline = Instant::now() + PATIENCE;
    let late = loop {
        let late = house.send(keyed(&house, body(false))).await;
        if late.status != 200 {
            break late;
        }
        assert!(Instant::now() < deadline);
        sleep(Duration::from_millis(20)).await;
    };
    assert_eq!(code(&late), (409, "idempotency_key_in_use".to_owned()));
    assert_eq!(late.header("x-should-retry"), "false");
    assert!(late.text().contains(first.header("x-weir-reservation")));
    // The quota store alone knows by now that the body was another.
    let other = house.send(keyed(&house, body(false).replace("hi", "ho"))).await;
    assert_eq!(code(&other), (422, "idempotency_key_reused".to_owned()));
    assert_eq!(house.stubs[0].journal().len(), 1);
}

/// A key is good for 24 hours from its admission, whether the answer is still there or not.
#[tokio::test]
async fn i03_a_key_is_good_for_a_day() {
    let clock = Arc::new(ManualClock::at_ms(1_767_225_600_000));
    let house =
        House::build(Setup { options: keeping(1), clock: Arc::clone(&clock) as SharedClock, ..Setup::default() }).await;
    assert_eq!(house.send(keyed(&house, body(false))).await.status, 200);
    clock.advance(Duration::from_secs(24 * 60 * 60 - 1));
    let deadline = Instant::now() + PATIENCE;
    let late = loop {
        let late = house.send(keyed(&house, body(false))).await;
        // Until the answer itself is gone, it is played.
        if late.header("x-weir-replayed").is_empty() {
            break late;
        }
        assert!(Instant::now() < deadline);
    };
    assert_eq!(code(&late), (409, "idempotency_key_in_use".to_owned()));
    clock.advance(Duration::from_secs(2));
    assert_eq!(house.send(keyed(&house, body(false))).await.status, 200);
    assert_eq!(house.stubs[0].journal().len(), 2);
}

#[tokio::test]
async fn i03_the_same_body_on_another_path_is_another_request() {
    let house = house(Script::default(), GatewayOptions::default()).await;
    let both = r#"{"model":"fast","max_tokens":9,"messages":[{"role":"user","content":"hi"}]}"#;
    assert_eq!(house.send(keyed(&house, both.to_owned())).await.status, 200);
    let mut request = keyed(&house, both.to_owned());
    *request.uri_mut() = format!("http://{}/v1/messages", house.gateway).parse().unwrap();
    request.headers_mut().insert("anthropic-version", "2023-06-01".parse().unwrap());
    assert_eq!(house.send(request).await.status, 422);
    assert_eq!(house.stubs[0].journal().len(), 1);
}

#[tokio::test]
async fn i03_another_body_under_the_key_is_refused_while_it_runs_and_after() {
    let house = house(slow(), GatewayOptions::default()).await;
    let (head, mut stream) = house.open(keyed(&house, body(true))).await.into_parts();
    let start = piece(&mut stream).await.unwrap().to_vec();
    let id = head.headers["x-weir-reservation"].to_str().unwrap();
    for _ in 0..2 {
        let other = house.send(keyed(&house, body(true).replace("hi", "ho"))).await;
        assert_eq!(code(&other), (422, "idempotency_key_reused".to_owned()));
        assert!(other.text().contains(id), "{}", other.text());
    }
    rest(stream, start).await;
    let other = house.send(keyed(&house, body(true).replace("hi", "ho"))).await;
    assert_eq!(code(&other), (422, "idempotency_key_reused".to_owned()));
    assert_eq!(house.stubs[0].journal().len(), 1);
}

#[tokio::test]
async fn i03_what_was_not_executed_frees_its_key() {
    for failing in [Script { status: 400, ..Script::default() }, Script { status: 503, ..Script::default() }] {
        let house = house(failing.clone(), GatewayOptions::default()).await;
        let first = house.send(keyed(&house, body(true))).await;
        assert_eq!(first.status, failing.status);
        house.stubs[0].queue("vendor/model-0", vec![Script::default()]).unwrap();
        let again = house.send(keyed(&house, body(true))).await;
        assert_eq!((again.status.as_u16(), again.header("x-weir-replayed")), (200, ""), "{}", again.text());
        assert_ne!(first.header("x-weir-reservation"), again.header("x-weir-reservation"));
        assert_eq!(house.stubs[0].journal().len(), 2);
    }
    // What may have been executed does not.
    let house = house(Script { refuse: Some(Refuse::Reset), ..Script::default() }, GatewayOptions::default()).await;
    let first = house.send(keyed(&house, body(true))).await;
    assert_eq!((first.status.as_u16(), first.header("x-should-retry")), (502, "false"), "{}", first.text());
    assert_same(&first, &house.send(keyed(&house, body(true))).await);
    assert_eq!(house.stubs[0].journal().len(), 1);
}

#[tokio::test]
async fn i03_a_call_that_runs_at_another_gateway_is_named_and_worth_a_retry() {
    let house = house(slow(), GatewayOptions::default()).await;
    let other = house.replica("other-gateway");
    let there = || with_key(house.request_to(other, KEY, body(true)));
    let (head, mut stream) = house.open(keyed(&house, body(true))).await.into_parts();
    let start = piece(&mut stream).await.unwrap().to_vec();
    let running = house.send(there()).await;
    assert_eq!(code(&running), (409, "idempotency_key_running".to_owned()));
    assert_eq!((running.header("retry-after"), running.header("x-should-retry")), ("1", ""));
    let id = head.headers["x-weir-reservation"].to_str().unwrap();
    assert!(running.text().contains(id));
    rest(stream, start).await;
    house.settled(id.parse().unwrap()).await;
    let ended = house.send(there()).await;
    assert_eq!(code(&ended), (409, "idempotency_key_in_use".to_owned()));
    assert_eq!(ended.header("x-should-retry"), "false");
    assert_eq!(house.stubs[0].journal().len(), 1);
}

/// Of an answer beyond the bound every byte is delivered, once, and whoever comes later is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i03_an_answer_beyond_the_bounds_is_only_passed_on() {
    let small = ByteSize::kib(256);
    let by_entry = GatewayOptions { replay_entry: small, ..GatewayOptions::default() };
    let by_total = GatewayOptions { replay_total: small, ..GatewayOptions::default() };
    for options in [by_entry, by_total] {
        let house = house(torrent(), options).await;
        let (head, mut stream) = house.open(keyed(&house, body(true))).await.into_parts();
        let mut start = piece(&mut stream).await.unwrap().to_vec();
        while start.len() < 1 << 20 {
            start.extend_from_slice(&piece(&mut stream).await.unwrap());
        }
        // Its client is behind, the provider as well: nothing more than the bound is between them.
        until_still(&house).await;
        let written = house.stubs[0].journal()[0].bytes_written;
        assert!(written < 6 << 20, "{written} bytes were taken from the provider for one that reads nothing");
        let again = house.send(keyed(&house, body(true))).await;
        assert_eq!(code(&again), (409, "idempotency_key_in_use".to_owned()));
        assert!(again.text().contains(head.headers["x-weir-reservation"].to_str().unwrap()));
        let all = rest(stream, start).await;
        let read = Read { status: head.status, headers: head.headers, body: all.into() };
        assert!(read.text().ends_with("data: [DONE]\n\n"));
        assert_eq!(read.text().matches("\"content\":").count(), 8_001, "role and content");
        assert_eq!(house.reservation_of(&read).await.charged().tokens, 8_020);
        assert_eq!(house.stubs[0].journal().len(), 1);
    }
}

/// Waits until the provider can write no more.
async fn until_still(house: &House) {
    let mut before = 0;
    loop {
        sleep(Duration::from_millis(200)).await;
        let written = house.stubs[0].journal()[0].bytes_written;
        if written == before {
            return;
        }
        before = written;
    }
}

async fn attach_raw(house: &House) -> Raw {
    let mut raw = Raw::connect(house.gateway).await;
    socket2::SockRef::from(&*raw.stream()).set_recv_buffer_size(4_096).unwrap();
    raw.send(chat_with(&["idempotency-key: once"], &body(true))).await.unwrap();
    raw
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i03_one_that_attaches_and_reads_nothing_holds_up_nobody() {
    let options = GatewayOptions { replay_entry: ByteSize::kib(512), ..GatewayOptions::default() };
    let house = Arc::new(house(Script { before_content_ms: 300, ..torrent() }, options).await);
    let of_task = Arc::clone(&house);
    let request = keyed(&house, body(true));
    let first = house.tasks.spawn("first", async move { of_task.send(request).await });
    until("the call runs", || !house.stubs[0].journal().is_empty()).await;
    let mut slow = attach_raw(&house).await;
    let leaving = attach_raw(&house).await;
    sleep(Duration::from_millis(50)).await;
    drop(leaving);
    let read = timeout(PATIENCE, first).await.expect("the first is not held up").unwrap();
    assert!(read.text().ends_with("data: [DONE]\n\n"));
    assert_eq!(house.reservation_of(&read).await.charged().tokens, 8_020);
    assert_eq!(house.stubs[0].journal().len(), 1);
    // It fell behind by more than the tape may hold: its connection is reset, not ended in good order.
    let end = timeout(PATIENCE, to_the_end(&mut slow)).await.expect("the slow one is cut");
    assert!(!end.ends_with(b"0\r\n\r\n"), "a cut answer does not look whole");
}

async fn to_the_end(raw: &mut Raw) -> Vec<u8> {
    use tokio::io::AsyncReadExt;
    let (mut all, mut bytes) = (Vec::new(), [0; 64 * 1024]);
    while let Ok(count @ 1..) = raw.stream().read(&mut bytes).await {
        all.extend_from_slice(&bytes[..count]);
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i03_a_first_client_that_takes_nothing_is_cut_and_its_call_goes_on_for_others() {
    let deadlines = Deadlines { write_stall_ms: 300, ..Deadlines::default() };
    let options = GatewayOptions { replay_entry: ByteSize::mib(32), ..GatewayOptions::default() };
    let house = House::build(Setup { tiers: vec![torrent()], options, deadlines, ..Setup::default() }).await;
    let mut stalled = attach_raw(&house).await;
    let cut = timeout(PATIENCE, async {
        // Nothing is read until the gateway has hung up, which a write to it finds out.
        while stalled.send(b"\r\n").await.is_ok() {
            sleep(Duration::from_millis(20)).await;
        }
    });
    cut.await.expect("a client that takes nothing is cut");
    let read = house.send(keyed(&house, body(true))).await;
    assert!(read.text().ends_with("data: [DONE]\n\n"));
    assert_eq!(read.header("x-weir-replayed"), "true");
    assert_eq!(house.reservation_of(&read).await.charged().tokens, 8_020);
    assert_eq!(house.stubs[0].journal().len(), 1);
}

#[tokio::test]
async fn i03_the_oldest_answers_make_room_for_new_ones() {
    // Room for some forty small answers.
    let options = GatewayOptions { replay_total: ByteSize::kib(400), ..GatewayOptions::default() };
    let house = house(Script { chunks: 10, chunk_bytes: Some(200), ..Script::default() }, options).await;
    let ask = |key: usize| {
        let mut request = house.request(body(true));
        request.headers_mut().insert("idempotency-key", format!("key-{key}").parse().unwrap());
        house.send(request)
    };
    for key in 0..100 {
        assert_eq!(ask(key).await.status, 200);
    }
    let (oldest, newest) = (ask(0).await, ask(99).await);
    assert_eq!((oldest.status.as_u16(), newest.status.as_u16()), (409, 200));
    assert_eq!(newest.header("x-weir-replayed"), "true");
    assert_eq!(house.stubs[0].journal().len(), 100);
}

#[tokio::test]
async fn i03_switched_off_the_key_still_never_calls_twice() {
    let house = house(Script::default(), keeping(0)).await;
    let first = house.send(keyed(&house, body(false))).await;
    house.reservation_of(&first).await;
    let again = house.send(keyed(&house, body(false))).await;
    assert_eq!(code(&again), (409, "idempotency_key_in_use".to_owned()));
    assert!(again.text().contains(first.header("x-weir-reservation")));
    assert_eq!(house.stubs[0].journal().len(), 1);
}
