//! S05 with `stream_failure = continue`, and O09 to O12: another deployment goes on with plain text, visibly and as an
//! attempt of its own; with anything else, or without a covered hold, the stream ends as it broke.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::support::logs::{Intercepted, kind};
use crate::support::{House, KEY, PATIENCE, Read, Setup, body};
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use tokio::time::{Duration, Instant, sleep};
use weir_domain::attempt::AttemptOutcome;
use weir_domain::calendar::WindowKind;
use weir_domain::quota::{Limit, Measure, Scope, Subject, Unit};
use weir_domain::registry::{BreakTrigger, Deadlines, Deployment, OnBreak, ProviderDialect};
use weir_domain::reservation::{EventKind, ReservationStatus};
use weir_domain::retry::RetryBudgetPolicy;
use weir_streams::conformance::faults::FaultyDisk;
use weir_streams::segment::{Disk, SegmentLog, SegmentOptions};
use weir_streams::{Batch, EventLog, Topic};
use weir_stub::journal::State;
use weir_stub::script::{Fault, FaultKind, Script, ToolCall, UsageScript};

fn usage(prompt: i64, completion: i64) -> UsageScript {
    UsageScript { prompt: Some(prompt), completion: Some(completion), ..UsageScript::default() }
}

fn fault(kind: FaultKind, after_chunks: usize) -> Option<Fault> {
    Some(Fault { kind, after_chunks, after_bytes: None, code: None, message: None, bytes: None })
}

/// Seventeen of forty chunks.
fn breaks() -> Script {
    Script { chunks: 40, fault: fault(FaultKind::Reset, 17), ..Script::default() }
}

fn goes_on() -> Script {
    Script { text: Some("and the rest".to_owned()), usage: usage(30, 4), ..Script::default() }
}

fn always(most: u16) -> OnBreak {
    OnBreak::Continue { on: BreakTrigger::ALL.to_vec(), most }
}

/// Stubs of both APIs ask for a key.
fn with_key(deployment: &mut Deployment) {
    let key = concat!("file:", env!("CARGO_MANIFEST_DIR"), "/tests/support/upstream-key");
    Arc::make_mut(&mut deployment.provider).credential = Some(key.to_owned());
}

async fn house(tiers: Vec<Script>, on_break: OnBreak) -> House {
    House::build(Setup { tiers, on_break, ..Setup::default() }).await
}

fn messages(house: &House) -> Request<Full<Bytes>> {
    let body = r#"{"model":"fast","max_tokens":100,"messages":[{"role":"user","content":"hi"}],"stream":true}"#;
    Request::post(format!("http://{}/v1/messages", house.gateway))
        .header("x-api-key", KEY)
        .header("anthropic-version", "2023-06-01")
        .header("content-type", "application/json")
        .body(Full::new(body.into()))
        .unwrap()
}

/// The text, the ids and the ends of a stream, whatever its dialect.
#[derive(Debug, Default)]
struct Told {
    text: String,
    ends: usize,
    starts: usize,
    marks: Vec<serde_json::Value>,
    ids: Vec<String>,
    error: Option<serde_json::Value>,
}

fn told(read: &Read) -> Told {
    let mut told = Told::default();
    for data in read.text().lines().filter_map(|line| line.strip_prefix("data: ")) {
        if data == "[DONE]" {
            told.ends += 1;
            continue;
        }
        let event: serde_json::Value = serde_json::from_str(data).unwrap();
        let chunk = &event["choices"][0]["delta"];
        told.text += chunk["content"].as_str().or(event["delta"]["text"].as_str()).unwrap_or_default();
        told.ends += usize::from(event["type"] == "message_stop");
        told.starts += usize::from(chunk["role"].is_string() || event["type"] == "message_start");
        told.marks.extend(event.get("weir_continuation").cloned());
        if let Some(id) = event["id"].as_str().filter(|id| !told.ids.iter().any(|known| known == id)) {
            told.ids.push(id.to_owned());
        }
        if event.get("error").is_some() {
            told.error = Some(event["error"].clone());
        }
    }
    told
}

fn assert_broken(read: &Read, reason: &str, chunks: u64) {
    let told = told(read);
    let error = told.error.unwrap_or_else(|| panic!("{}", read.text()));
    assert_eq!((error["reason"].as_str(), error["chunks_delivered"].as_u64()), (Some(reason), Some(chunks)));
    assert_eq!((error["incomplete"].as_bool(), told.ends), (Some(true), 0), "{}", read.text());
}

const PAIRS: [[ProviderDialect; 2]; 4] = [
    [ProviderDialect::Openai, ProviderDialect::Openai],
    [ProviderDialect::Openai, ProviderDialect::Anthropic],
    [ProviderDialect::Anthropic, ProviderDialect::Openai],
    [ProviderDialect::Anthropic, ProviderDialect::Anthropic],
];

#[tokio::test]
async fn s05_another_deployment_goes_on_after_seventeen_chunks_for_both_dialects_over_all_pairs() {
    for speak in PAIRS {
        for is_chat in [true, false] {
            let setup = Setup {
                tiers: vec![breaks(), goes_on()],
                speak: speak.to_vec(),
                adapt: with_key,
                on_break: always(1),
                ..Setup::default()
            };
            let house = House::build(setup).await;
            let request = if is_chat { house.request(body(true)) } else { messages(&house) };
            let read = house.send(request).await;
            let what = format!("{speak:?}, chat: {is_chat}: {}", read.text());
            let told = told(&read);
            assert_eq!((told.ends, told.starts, told.error.is_none()), (1, 1, true), "{what}");
            assert!(told.ids.len() <= 1, "one answer has one id: {what}");
            assert!(told.text.ends_with("and the rest"), "{what}");
            let begun = told.text.strip_suffix("and the rest").unwrap();
            assert_eq!(told.marks.len(), 1, "{what}");
            let mark = &told.marks[0];
            assert_eq!((mark["reason"].as_str(), mark["attempt"].as_u64()), (Some("transport_error"), Some(2)));
            assert_eq!(mark["deployment"], "deployment-1");

            let asked: serde_json::Value = serde_json::from_str(&house.stubs[1].journal()[0].body).unwrap();
            let turns = asked["messages"].as_array().unwrap();
            let said = &turns[turns.len() - 2];
            assert_eq!(said["role"], "assistant", "{asked}");
            let content = said["content"].as_str().or(said["content"][0]["text"].as_str()).unwrap();
            assert_eq!(content, begun, "the target is told exactly what the client has");

            let reservation = house.reservation_of(&read).await;
            assert_eq!(reservation.status(), ReservationStatus::PendingReconciliation);
            assert_eq!(reservation.attempts[0].outcome, Some(AttemptOutcome::ExecutedUsageUnknown));
            assert_eq!(reservation.attempts[1].outcome, Some(AttemptOutcome::Executed));
            assert_eq!(reservation.charged().tokens, 34, "the continuation is charged as what it is");
            assert_eq!(reservation.held(), reservation.attempts[0].held(), "the broken attempt stays held");
            assert!(house.kinds().await.contains(&"ReservationExtended"), "a hold of its own");
        }
    }
}

#[tokio::test]
async fn o12_a_continuation_that_fails_reports_the_first_break() {
    let refuses = Script { status: 400, ..Script::default() };
    let house = house(vec![breaks(), refuses], always(1)).await;
    let read = house.post(body(true)).await;
    assert_broken(&read, "transport_error", 17);
    let reservation = house.reservation_of(&read).await;
    assert_eq!(reservation.attempts[1].outcome, Some(AttemptOutcome::NotExecuted));
    assert!(!reservation.slot);
    assert_eq!(house.stubs[1].journal().len(), 1);
}

/// However many may go on, none is asked twice.
#[tokio::test]
async fn o12_no_deployment_is_asked_twice_to_go_on() {
    let away = Script { status: 503, ..Script::default() };
    let house = house(vec![breaks(), away.clone(), away], always(9)).await;
    assert_broken(&house.post(body(true)).await, "transport_error", 17);
    let asked: Vec<usize> = house.stubs.iter().map(|stub| stub.journal().len()).collect();
    assert_eq!(asked, [1, 1, 1]);
}

/// What a provider says is the client's own fault, in the stream, is so everywhere: nobody else is asked.
#[tokio::test]
async fn o12_a_stream_that_ends_by_the_clients_own_fault_is_not_gone_on_with() {
    for (code, asked) in [("invalid_request_error", 0), ("server_error", 1)] {
        let says = Fault { code: Some(code.to_owned()), ..fault(FaultKind::Error, 17).unwrap() };
        let house = house(vec![Script { fault: Some(says), ..breaks() }, goes_on()], always(9)).await;
        let read = house.post(body(true)).await;
        assert_eq!(house.stubs[1].journal().len(), asked, "{code}: {}", read.text());
    }
}

#[tokio::test]
async fn o12_a_target_that_takes_a_prefill_is_given_one() {
    let setup = Setup {
        tiers: vec![breaks(), goes_on()],
        adapt: |deployment| deployment.accepts_prefill = true,
        on_break: always(1),
        ..Setup::default()
    };
    let house = House::build(setup).await;
    // The words of the stub end in a space, which no target takes as a prefill.
    let script = Script { text: Some("abcdefgh".repeat(5)), ..breaks() };
    house.stubs[0].queue("vendor/model-0", vec![script]).unwrap();
    let read = house.post(body(true)).await;
    assert_eq!(told(&read).ends, 1, "{}", read.text());
    let asked: serde_json::Value = serde_json::from_str(&house.stubs[1].journal()[0].body).unwrap();
    let last = asked["messages"].as_array().unwrap().last().unwrap();
    assert_eq!(
        (last["role"].as_str(), last["content"].as_str()),
        (Some("assistant"), Some(&"abcdefgh".repeat(5)[..17]))
    );
}

#[tokio::test]
async fn o11_tools_thoughts_forms_and_other_choices_are_never_gone_on_with() {
    let tool = ToolCall { name: "f".to_owned(), arguments: "{\"a\":1}".to_owned(), id: None, fragments: 3 };
    let with_tool =
        Script { chunks: 1, tool_calls: vec![tool], fault: fault(FaultKind::Reset, 1), ..Script::default() };
    let thought = "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x\",\"reasoning_content\":\"hm\"},\"finish_reason\":null}]}\n\n";
    let thinks = Script { raw: Some(thought.to_owned()), ..Script::default() };
    let plain = body(true);
    let json = plain.replace("\"stream\"", r#""response_format":{"type":"json_object"},"stream""#);
    let two = plain.replace("\"stream\"", r#""n":2,"stream""#);
    for (script, request) in [(with_tool, &plain), (thinks, &plain), (breaks(), &json), (breaks(), &two)] {
        let house = house(vec![Script { done: false, ..script }, goes_on()], always(1)).await;
        let read = house.post(request.clone()).await;
        if told(&read).error.is_none() {
            // The tool call came whole before the break; nothing is left to go on with.
            assert_eq!(told(&read).ends, 1, "{}", read.text());
        }
        assert!(told(&read).marks.is_empty(), "{}", read.text());
        assert!(house.stubs[1].journal().is_empty(), "no other generation is asked for: {request}");
    }
}

#[tokio::test]
async fn only_what_policy_names_is_gone_on_after() {
    let stalls = Script { fault: fault(FaultKind::Stall, 17), ..breaks() };
    let error = Script { fault: fault(FaultKind::Error, 17), ..breaks() };
    let deadlines = Deadlines { idle_ms: 200, ..Deadlines::default() };
    let cases = [
        (breaks(), BreakTrigger::TransportError, "transport_error"),
        (stalls, BreakTrigger::ReadTimeout, "read_timeout"),
        (error, BreakTrigger::UpstreamInBandError, "upstream_in_band_error"),
        (
            Script { fault: fault(FaultKind::Garbage, 17), ..breaks() },
            BreakTrigger::UpstreamDecodeError,
            "upstream_decode_error",
        ),
    ];
    for (script, trigger, reason) in cases {
        for is_named in [true, false] {
            let on = BreakTrigger::ALL.into_iter().filter(|one| (*one == trigger) == is_named).collect();
            let on_break = OnBreak::Continue { on, most: 1 };
            let tiers = vec![script.clone(), goes_on()];
            let house = House::build(Setup { tiers, deadlines, on_break, ..Setup::default() }).await;
            let read = house.post(body(true)).await;
            if is_named {
                assert_eq!(told(&read).marks[0]["reason"], reason, "{}", read.text());
            } else {
                assert_broken(&read, reason, 17);
                assert!(house.stubs[1].journal().is_empty());
            }
        }
    }
}

#[tokio::test]
async fn a_hold_that_the_limits_do_not_cover_ends_the_stream_as_it_broke() {
    let one = House::of(Script::default()).await;
    let hold = one.reservation_of(&one.post(body(true)).await).await.created.hold;
    let measure = Measure::Calendar { unit: Unit::Tokens, window: WindowKind::Day };
    let limit = Limit { scope: Scope { subject: Subject::Tenant, model: None }, measure, max: hold.tokens + 10 };
    let setup =
        Setup { tiers: vec![breaks(), goes_on()], limits: vec![limit], on_break: always(1), ..Setup::default() };
    let house = House::build(setup).await;
    assert_broken(&house.post(body(true)).await, "transport_error", 17);
    assert!(house.stubs[1].journal().is_empty(), "never called without a hold");
    house.assert_at_rest().await;
}

#[tokio::test]
async fn a_second_break_goes_on_within_the_budget_and_then_tells_of_the_first() {
    let second = Script { chunks: 9, fault: fault(FaultKind::Cut, 5), ..Script::default() };
    let house = House::build(Setup {
        tiers: vec![breaks(), Script { fault: fault(FaultKind::Stall, 5), ..second.clone() }, goes_on()],
        deadlines: Deadlines { idle_ms: 200, ..Deadlines::default() },
        on_break: always(1),
        ..Setup::default()
    })
    .await;
    assert_broken(&house.post(body(true)).await, "transport_error", 22);
    assert!(house.stubs[2].journal().is_empty(), "one continuation is allowed");

    let house = self::house(vec![breaks(), second, goes_on()], always(2)).await;
    let read = house.post(body(true)).await;
    let told = told(&read);
    assert_eq!((told.ends, told.marks.len(), told.starts), (1, 2, 1), "{}", read.text());
    assert!(told.text.ends_with("and the rest"));
    assert_eq!(house.reservation_of(&read).await.attempts.len(), 3);
}

#[tokio::test]
async fn a_client_that_leaves_at_the_seam_ends_the_continuation() {
    let slow = Script { before_headers_ms: 60_000, ..goes_on() };
    let house = house(vec![breaks(), slow, goes_on()], always(2)).await;
    let mut response = house.open(house.request(body(true))).await;
    let id = response.headers()["x-weir-reservation"].to_str().unwrap().parse().unwrap();
    let deadline = Instant::now() + PATIENCE;
    while house.stubs[1].journal().is_empty() {
        assert!(Instant::now() < deadline, "the second is asked");
        let _ = tokio::time::timeout(Duration::from_millis(20), response.body_mut().frame()).await;
    }
    drop(response);
    let left = Instant::now();
    while house.stubs[1].journal()[0].state == State::Running {
        assert!(left.elapsed() < Duration::from_secs(1), "closed within a second");
        sleep(Duration::from_millis(5)).await;
    }
    let reservation = house.settled(id).await;
    assert_eq!(reservation.status(), ReservationStatus::PendingReconciliation);
    assert_eq!(reservation.attempts[1].outcome, Some(AttemptOutcome::MayHaveExecuted));
    assert!(house.stubs[2].journal().is_empty(), "no attempt starts for nobody");
}

#[tokio::test]
async fn a_continuation_that_takes_until_the_streams_deadline_is_the_last() {
    let slow = Script { before_headers_ms: 60_000, ..goes_on() };
    let deadlines = Deadlines { stream_total_ms: 700, ..Deadlines::default() };
    let setup = Setup { tiers: vec![breaks(), slow, goes_on()], deadlines, on_break: always(9), ..Setup::default() };
    let house = House::build(setup).await;
    let read = house.post(body(true)).await;
    assert_broken(&read, "transport_error", 17);
    let asked: Vec<usize> = house.stubs.iter().map(|stub| stub.journal().len()).collect();
    assert_eq!(asked, [1, 1, 0]);
    assert_eq!(house.reservation_of(&read).await.attempts.len(), 2, "no further one is even begun");
}

/// Going on is a retry: where those are used up, failures would amplify themselves.
#[tokio::test]
async fn a_gateway_without_retries_left_goes_on_with_nothing() {
    let away = Script { status: 503, ..Script::default() };
    for (failures, goes_on_with) in
        [(RetryBudgetPolicy::default().at_least - 1, 1), (RetryBudgetPolicy::default().at_least, 0)]
    {
        let failures = usize::try_from(failures).unwrap();
        let mut tiers = vec![away.clone(); failures];
        tiers.extend([breaks(), goes_on()]);
        let house = house(tiers, always(1)).await;
        house.publish(|snapshot| {
            snapshot.models.values_mut().for_each(|model| Arc::make_mut(model).max_attempts = 100);
        });
        let read = house.post(body(true)).await;
        assert_eq!(house.stubs[failures].journal().len(), 1, "{}", read.text());
        assert_eq!(house.stubs[failures + 1].journal().len(), goes_on_with, "{}", read.text());
    }
}

/// The log writes, and cannot sync: what a power loss would forget is not shown.
#[tokio::test]
async fn i14_a_continuation_that_is_not_durable_is_not_shown() {
    let mut house = house(vec![breaks(), goes_on()], always(1)).await;
    let (folder, disk) = (tempfile::tempdir().unwrap(), Arc::new(FaultyDisk::default()));
    let on_disk = SegmentOptions { disk: Arc::clone(&disk) as Arc<dyn Disk>, ..SegmentOptions::new(folder.path()) };
    let log = Arc::new(SegmentLog::open(on_disk).unwrap());
    let started = AtomicUsize::new(0);
    let append = move |log: &SegmentLog, batch: Batch| {
        let starts = |value: &Bytes| kind(value) == Some(EventKind::AttemptStarted);
        if batch.topic == Topic::Reservations
            && batch.values.iter().any(starts)
            && started.fetch_add(1, Ordering::SeqCst) == 1
        {
            disk.fail_syncs();
        }
        log.append(batch)
    };
    house.gateway = house.replica_on("faulty", Arc::new(Intercepted { log, append }));
    let read = house.post(body(true)).await;
    assert_broken(&read, "transport_error", 17);
    assert!(told(&read).marks.is_empty(), "{}", read.text());
    assert_eq!(house.stubs[1].journal().len(), 1, "it was asked");
}
