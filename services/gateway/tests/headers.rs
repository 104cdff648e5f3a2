//! What the headers of an answer tell: the reservation, and how the rates stand.

use crate::support::{House, Read, Setup, body, key_id};
use weir_domain::quota::{Limit, Measure, Scope, Subject, Unit};
use weir_gateway::GatewayOptions;
use weir_runtime::units::HumanDuration;
use weir_stub::script::Script;

fn limit(subject: Subject, measure: Measure, max: i64) -> Limit {
    Limit { scope: Scope { subject, model: None }, measure, max }
}

fn per_minute(unit: Unit, max: i64) -> Limit {
    limit(Subject::Key(key_id()), Measure::PerMinute { unit }, max)
}

/// Limit and what remains, of requests and of tokens.
fn rates(read: &Read) -> [(&str, &str); 2] {
    ["requests", "tokens"].map(|unit| {
        let header = |what| read.header(&format!("x-ratelimit-{what}-{unit}"));
        (header("limit"), header("remaining"))
    })
}

/// A duration of about a minute, as Go prints it.
#[track_caller]
fn assert_resets_within_61_s(read: &Read, unit: &str) {
    let reset = read.header(&format!("x-ratelimit-reset-{unit}"));
    let seconds: f64 = reset.strip_prefix("1m").unwrap_or(reset).strip_suffix('s').unwrap().parse().unwrap();
    assert!((0.0..=60.0).contains(&seconds), "{reset}");
}

#[tokio::test]
async fn o40_every_answer_tells_the_tightest_rates_in_the_form_that_sdks_know() {
    let limits = vec![
        limit(Subject::Tenant, Measure::PerMinute { unit: Unit::Requests }, 1_000),
        per_minute(Unit::Requests, 3),
        per_minute(Unit::Tokens, 1_000),
    ];
    let house = House::build(Setup { limits, ..Setup::default() }).await;
    let plain = house.post(body(false)).await;
    assert_eq!(plain.status, 200, "{}", plain.text());
    let [requests, tokens] = rates(&plain);
    assert_eq!(requests, ("3", "2"));
    // What is held counts: the cap of 100 and some bytes of prompt.
    let left: i64 = tokens.1.parse().unwrap();
    assert!(tokens.0 == "1000" && (700..900).contains(&left), "{tokens:?}");
    for unit in ["requests", "tokens"] {
        assert_resets_within_61_s(&plain, unit);
    }
    let stream = house.post(body(true)).await;
    assert_eq!(rates(&stream)[0], ("3", "1"));
    assert!(!stream.header("x-weir-reservation").is_empty());
    house.post(body(false)).await;
    let refused = house.post(body(false)).await;
    assert_eq!((refused.status.as_u16(), rates(&refused)[0]), (429, ("3", "0")));
    assert_resets_within_61_s(&refused, "requests");
    assert_eq!(refused.header("x-weir-reservation"), "", "nothing was reserved");
}

#[tokio::test]
async fn a_providers_429_carries_our_rates_and_not_the_providers() {
    let headers = std::collections::BTreeMap::from([("x-ratelimit-remaining-requests".to_owned(), "77".to_owned())]);
    let script = Script { status: 429, headers, ..Script::default() };
    let limits = vec![per_minute(Unit::Requests, 3)];
    let house = House::build(Setup { tiers: vec![script], limits, ..Setup::default() }).await;
    let read = house.post(body(false)).await;
    assert_eq!((read.status.as_u16(), rates(&read)[0]), (429, ("3", "2")));
}

#[tokio::test]
async fn without_a_rate_there_are_no_such_headers() {
    let house =
        House::of(Script { headers: [("x-ratelimit-limit-tokens".into(), "9".into())].into(), ..Script::default() });
    let read = house.await.post(body(false)).await;
    assert!(read.headers.keys().all(|name| !name.as_str().starts_with("x-ratelimit")), "{:?}", read.headers);
}

#[tokio::test]
async fn a_status_that_is_sent_before_content_names_the_reservation_too() {
    let script = Script { before_content_ms: 500, ..Script::default() };
    let options = GatewayOptions { status_after: HumanDuration::from_ms(20), ..GatewayOptions::default() };
    let limits = vec![per_minute(Unit::Requests, 3)];
    let house = House::build(Setup { tiers: vec![script], options, limits, ..Setup::default() }).await;
    let read = house.post(body(true)).await;
    assert_eq!((read.status.as_u16(), rates(&read)[0]), (200, ("3", "2")));
    assert_eq!(read.header("x-weir-deployment"), "", "nobody had answered yet");
    let reservation = house.reservation_of(&read).await;
    assert_eq!(reservation.charged().requests, 1);
}
