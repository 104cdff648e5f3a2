//! Attempts that fail, clients that leave, limits that refuse: what may be tried again and what it costs.

use std::sync::Arc;
use std::time::Duration;

use crate::support::{House, PATIENCE, Setup, body, key_id, tenant};
use http_body_util::BodyExt;
use tokio::time::{Instant, sleep};
use weir_domain::attempt::AttemptOutcome;
use weir_domain::calendar::WindowKind;
use weir_domain::money::NanoUsd;
use weir_domain::quota::{Limit, Measure, Scope, Subject, Unit};
use weir_domain::registry::Deadlines;
use weir_domain::reservation::ReservationStatus;
use weir_quota::QuotaStore;
use weir_runtime::clock::ManualClock;
use weir_stub::script::{Fault, FaultKind, Refuse, Script, UsageScript};

fn usage(prompt: i64, completion: i64) -> UsageScript {
    UsageScript { prompt: Some(prompt), completion: Some(completion), ..UsageScript::default() }
}

fn status(status: u16, headers: &[(&str, &str)]) -> Script {
    let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    Script { status, headers, ..Script::default() }
}

fn limit(measure: Measure, max: i64) -> Limit {
    Limit { scope: Scope { subject: Subject::Key(key_id()), model: None }, measure, max }
}

const USD_PER_DAY: Measure = Measure::Calendar { unit: Unit::Usd, window: WindowKind::Day };

#[tokio::test]
async fn o21_a_model_without_a_price_is_refused_and_skipped_when_another_has_one() {
    let unpriced = |deployment: &mut weir_domain::registry::Deployment| deployment.price = "nobody knows".to_owned();
    let house = House::build(Setup { adapt: unpriced, ..Setup::default() }).await;
    let read = house.post(body(false)).await;
    assert_eq!(read.status, 503, "{}", read.text());
    assert_eq!(read.json()["error"]["code"], "model_unpriced");
    assert!(house.stubs[0].journal().is_empty());
    assert!(house.events().await.is_empty(), "no reservation is left behind");

    let first_unpriced = |deployment: &mut weir_domain::registry::Deployment| {
        if deployment.id.as_str() == "deployment-0" {
            deployment.price = "nobody knows".to_owned();
        }
    };
    let tiers = vec![Script::default(), Script { usage: usage(1, 1), ..Script::default() }];
    let house = House::build(Setup { adapt: first_unpriced, tiers, ..Setup::default() }).await;
    let read = house.post(body(false)).await;
    assert_eq!(read.headers["x-weir-deployment"], "deployment-1");
    assert!(house.stubs[0].journal().is_empty(), "an unpriced target is not used for free");
}

#[tokio::test]
async fn o23_a_charge_above_the_hold_is_recorded_in_full_and_the_next_request_refused() {
    // The hold is about $0.0043 (cap 100 at $30, some 130 bytes at $10); the provider reports far more.
    let script = Script { usage: usage(100, 2_000), ..Script::default() };
    let setup = Setup { tiers: vec![script], limits: vec![limit(USD_PER_DAY, 10_000_000)], ..Setup::default() };
    let house = House::build(setup).await;
    let read = house.post(body(false)).await;
    assert_eq!(read.status, 200, "{}", read.text());
    let reservation = house.reservation_of(&read).await;
    assert_eq!(reservation.charged().usd, NanoUsd::from_nanos(100 * 10_000 + 2_000 * 30_000));
    assert!(reservation.charged().usd > reservation.created.hold.usd);
    let read = house.post(body(false)).await;
    assert_eq!((read.status.as_u16(), read.json()["error"]["code"].as_str()), (429, Some("budget_exceeded")));
}

#[tokio::test]
async fn o30_the_cap_is_sent_under_the_name_that_the_target_knows() {
    use weir_domain::registry::CapField;
    let old = |deployment: &mut weir_domain::registry::Deployment| deployment.cap_field = CapField::MaxTokens;
    let new = |deployment: &mut weir_domain::registry::Deployment| deployment.cap_field = CapField::MaxCompletionTokens;
    for (adapt, present, absent) in
        [(old as fn(&mut _), "max_tokens", "max_completion_tokens"), (new, "max_completion_tokens", "max_tokens")]
    {
        for sent in ["max_tokens", "max_completion_tokens"] {
            let house = House::build(Setup { adapt, ..Setup::default() }).await;
            house.post(body(false).replace("\"stream\"", &format!("\"{sent}\":500,\"stream\""))).await;
            let upstream: serde_json::Value = serde_json::from_str(&house.stubs[0].journal()[0].body).unwrap();
            assert_eq!((upstream[present].as_i64(), upstream.get(absent)), (Some(500), None));
        }
    }
    let house = House::of(Script::default()).await;
    for nonsense in ["0", "-1", "1e30", "\"5\""] {
        let read =
            house.post(body(false).replace("\"stream\"", &format!("\"max_tokens\":{nonsense},\"stream\""))).await;
        assert_eq!((read.status.as_u16(), read.json()["error"]["param"].as_str()), (400, Some("max_tokens")));
    }
    // The policy's default is written where the client gave none.
    house.post(body(false)).await;
    let upstream: serde_json::Value = serde_json::from_str(&house.stubs[0].journal()[0].body).unwrap();
    assert_eq!(upstream["max_completion_tokens"], 100);
}

#[tokio::test]
async fn o40_waits_are_passed_on_rounded_up_and_never_zero() {
    let house = House::of(status(429, &[("retry-after", "7"), ("retry-after-ms", "6500")])).await;
    let read = house.post(body(false)).await;
    assert_eq!(read.status, 429);
    assert_eq!((read.header("retry-after"), read.header("retry-after-ms")), ("7", "6500"));
    house.post(body(false)).await;
    assert_eq!(house.stubs[0].journal().len(), 1, "the provider is left alone as long as it asked");

    let tiers = vec![status(429, &[("retry-after", "7")]), status(429, &[("retry-after", "3")])];
    let house = House::build(Setup { tiers, ..Setup::default() }).await;
    let read = house.post(body(false)).await;
    assert_eq!((read.status.as_u16(), read.header("retry-after")), (429, "3"));

    let per_minute = Measure::PerMinute { unit: Unit::Requests };
    let house = House::build(Setup { limits: vec![limit(per_minute, 1)], ..Setup::default() }).await;
    house.post(body(false)).await;
    let read = house.post(body(false)).await;
    assert_eq!(
        (read.status.as_u16(), read.json()["error"]["code"].as_str()),
        (429, Some("requests_per_minute_exceeded"))
    );
    let wait: u64 = read.headers["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=61).contains(&wait), "{wait}");

    // A hold is some $0.004 and the charge $0.002: the second fits neither before nor after the first is settled.
    let for_ever = Measure::Calendar { unit: Unit::Usd, window: WindowKind::Total };
    let tiers = vec![Script { usage: usage(50, 50), ..Script::default() }];
    let house = House::build(Setup { limits: vec![limit(for_ever, 5_000_000)], tiers, ..Setup::default() }).await;
    house.post(body(false)).await;
    let read = house.post(body(false)).await;
    assert_eq!(read.status, 429);
    assert_eq!(read.headers["x-should-retry"], "false", "no wait helps, and SDKs retry 429 by themselves");
}

#[tokio::test]
async fn o41_the_provider_sees_one_credential_and_nothing_of_the_client() {
    let house = House::build(Setup {
        adapt: |deployment| {
            let mut provider = (*deployment.provider).clone();
            provider.credential = Some("file:tests/support/upstream-key".to_owned());
            deployment.provider = std::sync::Arc::new(provider);
        },
        ..Setup::default()
    })
    .await;
    let mut request = house.request(body(false));
    for (name, value) in [
        ("x-api-key", "VK1"),
        ("api-key", "VK1"),
        ("x-goog-api-key", "VK1"),
        ("cookie", "s=1"),
        ("openai-organization", "org-client"),
        ("openai-project", "proj-client"),
        ("proxy-authorization", "Basic x"),
        ("x-forwarded-for", "10.0.0.9"),
        ("connection", "keep-alive, x-hop"),
        ("x-hop", "1"),
        ("openai-beta", "assistants=v2"),
    ] {
        request.headers_mut().append(name, value.parse().unwrap());
    }
    let read = house.send(request).await;
    assert_eq!(read.status, 200, "{}", read.text());
    let seen = &house.stubs[0].journal()[0];
    let header =
        |name: &str| seen.headers.iter().filter(|(n, _)| n == name).map(|(_, v)| v.as_str()).collect::<Vec<_>>();
    assert_eq!(header("authorization"), ["Bearer UPKEY-A"]);
    assert_eq!(header("openai-beta"), ["assistants=v2"]);
    for name in ["x-api-key", "api-key", "cookie", "openai-organization", "openai-project", "x-forwarded-for", "x-hop"]
    {
        assert!(header(name).is_empty(), "{name}");
    }
    assert!(!format!("{seen:?}").contains("VK1") && !format!("{seen:?}").contains(crate::support::KEY));
}

/// Waits until the provider saw its call cancelled.
async fn cancelled(house: &House) {
    let deadline = Instant::now() + PATIENCE;
    while house.stubs[0].totals().cancelled == 0 {
        if Instant::now() >= deadline {
            panic!(
                "the provider's connection was not closed: {:?} {:?}",
                house.kinds().await,
                house.stubs[0].journal()
            );
        }
        sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn o46_a_client_that_leaves_closes_upstream_and_leaves_the_reservation_pending() {
    for stream in [true, false] {
        let script = Script { before_headers_ms: 60_000, ..Script::default() };
        let tiers = vec![script, Script::default()];
        let house = House::build(Setup { tiers, ..Setup::default() }).await;
        let left = tokio::time::timeout(Duration::from_millis(300), house.post(body(stream))).await;
        assert!(left.is_err(), "the client gave up");
        let left_at = Instant::now();
        cancelled(&house).await;
        assert!(left_at.elapsed() < Duration::from_secs(1), "closed within a second");
        let id = house.events().await[0].0;
        let reservation = house.settled(id).await;
        assert_eq!(reservation.status(), ReservationStatus::PendingReconciliation);
        assert_eq!(reservation.attempts[0].outcome, Some(AttemptOutcome::MayHaveExecuted));
        assert!(!reservation.slot);
        assert!(house.stubs[1].journal().is_empty(), "no failover for nobody");
        assert_eq!(house.quota.read(&tenant()).await.unwrap().pending, 1);
    }
}

#[tokio::test]
async fn o46_a_client_that_leaves_after_three_chunks_is_one_pending_record() {
    let house = House::of(Script { chunks: 50, gap_ms: 50, ..Script::default() }).await;
    let mut response = house.open(house.request(body(true))).await;
    let id = response.headers()["x-weir-reservation"].to_str().unwrap().parse().unwrap();
    for _ in 0..3 {
        response.body_mut().frame().await.unwrap().unwrap();
    }
    drop(response);
    cancelled(&house).await;
    let reservation = house.settled(id).await;
    assert_eq!(reservation.status(), ReservationStatus::PendingReconciliation);
    assert_eq!(reservation.attempts[0].outcome, Some(AttemptOutcome::ExecutedUsageUnknown));
    assert_eq!(house.kinds().await.iter().filter(|kind| **kind == "ReservationPending").count(), 1);
}

#[tokio::test]
async fn o58_the_refund_follows_what_was_sent_not_the_status() {
    // (a) nothing was sent.
    let gone = House::build(Setup {
        adapt: |deployment| {
            let mut provider = (*deployment.provider).clone();
            provider.base_url = "http://nowhere.invalid/v1".to_owned();
            deployment.provider = std::sync::Arc::new(provider);
        },
        ..Setup::default()
    })
    .await;
    let read = gone.post(body(false)).await;
    assert_eq!(read.status, 502, "{}", read.text());
    assert_eq!(gone.reservation_of(&read).await.status(), ReservationStatus::Released);

    // (b) the connection broke after the request, or a part of it, went out.
    let broke = House::of(Script { refuse: Some(Refuse::Reset), ..Script::default() }).await;
    let read = broke.post(body(false)).await;
    assert_eq!((read.status.as_u16(), read.header("x-should-retry")), (502, "false"));
    assert_eq!(broke.reservation_of(&read).await.status(), ReservationStatus::PendingReconciliation);

    // (c), (d) an error status is no charge, and an error body with usage is one.
    for refused in [500, 400] {
        let house = House::of(status(refused, &[])).await;
        let read = house.post(body(false)).await;
        let reservation = house.reservation_of(&read).await;
        assert_eq!(reservation.status(), ReservationStatus::Released, "{refused}");
        assert_eq!(reservation.attempts[0].outcome, Some(AttemptOutcome::NotExecuted));
    }
    let billed = serde_json::json!({
        "error": {"message": "filtered", "type": "x", "code": null, "param": null},
        "usage": {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10}
    });
    let house = House::of(Script { status: 500, body: Some(billed), ..Script::default() }).await;
    let read = house.post(body(false)).await;
    let reservation = house.reservation_of(&read).await;
    assert_eq!((reservation.status(), reservation.charged().tokens), (ReservationStatus::Settled, 10));
}

#[tokio::test]
async fn a_second_possible_execution_is_covered_or_not_started() {
    let silent = Script { fault: Some(stall()), ..Script::default() };
    let deadlines = Deadlines { first_content_ms: 200, ..Deadlines::default() };
    // One worst case fits, two do not.
    let setup = Setup {
        tiers: vec![silent, Script::default()],
        deadlines,
        limits: vec![limit(USD_PER_DAY, 6_000_000)],
        ..Setup::default()
    };
    let house = House::build(setup).await;
    let read = house.post(body(true)).await;
    assert_eq!((read.status.as_u16(), read.json()["error"]["code"].as_str()), (429, Some("not_covered")));
    assert!(house.stubs[1].journal().is_empty());
    assert_eq!(house.reservation_of(&read).await.status(), ReservationStatus::PendingReconciliation);
}

fn stall() -> Fault {
    Fault { kind: FaultKind::Stall, after_chunks: 0, after_bytes: None, code: None, message: None, bytes: None }
}

#[tokio::test]
async fn o61_directing_fields_direct_nothing() {
    let house = House::of(Script::default()).await;
    let fields = [
        r#""api_base":"http://203.0.113.9/v1""#,
        r#""base_url":"http://203.0.113.9/v1""#,
        r#""api_key":"X""#,
        r#""custom_llm_provider":"openai""#,
        r#""extra_headers":{"authorization":"X"}"#,
        r#""extra_body":{"api_base":"http://203.0.113.9"}"#,
        r#""model_list":["a"]"#,
        r#""tools":[{"type":"x","api_base":"http://203.0.113.9"}]"#,
    ];
    for field in fields {
        let mut request = house.request(body(false).replace("\"stream\"", &format!("{field},\"stream\"")));
        request.headers_mut().insert("x-base-url", "http://203.0.113.9".parse().unwrap());
        let read = house.send(request).await;
        assert!(read.status == 200 || read.status == 400, "{field}: {}", read.text());
    }
    for model in ["openai/../../admin", "a@203.0.113.9/x"] {
        let read = house.post(body(false).replace("\"fast\"", &format!("\"{model}\""))).await;
        assert_eq!(read.status, 404, "{model}");
    }
    for entry in house.stubs[0].journal() {
        assert_eq!(entry.path, "/v1/chat/completions");
    }
}

#[tokio::test]
async fn a_request_that_no_window_could_admit_says_so() {
    let house = House::build(Setup { limits: vec![limit(USD_PER_DAY, 1_000)], ..Setup::default() }).await;
    let read = house.post(body(false)).await;
    assert_eq!((read.status.as_u16(), read.json()["error"]["code"].as_str()), (400, Some("request_exceeds_limit")));
    assert_eq!(read.headers["x-should-retry"], "false");
    assert!(house.events().await.is_empty());
}

/// A limit of a day says to the second when its next window begins.
#[tokio::test]
async fn o40_a_spent_day_says_when_the_next_one_begins() {
    // 30 seconds before midnight, UTC, of the first of January 2026.
    let clock = Arc::new(ManualClock::at_ms(1_767_311_970_000));
    let a_day = Measure::Calendar { unit: Unit::Requests, window: WindowKind::Day };
    let house = House::build(Setup { limits: vec![limit(a_day, 1)], clock, ..Setup::default() }).await;
    assert_eq!(house.post(body(false)).await.status, 200);
    let read = house.post(body(false)).await;
    assert_eq!((read.status.as_u16(), read.header("retry-after")), (429, "30"));
}

#[tokio::test]
async fn i15_a_quota_store_that_was_not_validated_admits_nothing() {
    let house = House::of(Script::default()).await;
    house.quota.fence();
    let read = house.post(body(false)).await;
    assert_eq!((read.status.as_u16(), read.json()["error"]["code"].as_str()), (503, Some("quota_unavailable")));
    assert!(!read.header("retry-after").is_empty());
    assert!(house.stubs[0].journal().is_empty(), "no provider is called");
    assert!(house.events().await.is_empty(), "nothing is on the log");
    house.quota.open(std::collections::HashMap::new(), 60_000);
    assert_eq!(house.post(body(false)).await.status, 200);
}
