//! Where the bound by bytes would refuse: text is counted exactly, once, and only if every deployment names how.

use crate::support::{House, MODEL, Setup, key_id};
use weir_domain::calendar::WindowKind;
use weir_domain::quota::{Limit, Measure, Scope, Subject, Unit};
use weir_domain::registry::{Deployment, Tokenizer};
use weir_domain::reservation::ReservationStatus;
use weir_stub::script::{Script, UsageScript};

/// 4,000 bytes, and about 800 tokens.
fn prompt() -> String {
    let text = "the quick brown fox ".repeat(200);
    format!(r#"{{"model":"{MODEL}","messages":[{{"role":"user","content":"{text}"}}]}}"#)
}

fn limit(measure: Measure, max: i64) -> Vec<Limit> {
    vec![Limit { scope: Scope { subject: Subject::Key(key_id()), model: None }, measure, max }]
}

const TOKENS: Measure = Measure::PerMinute { unit: Unit::Tokens };
const USD: Measure = Measure::Calendar { unit: Unit::Usd, window: WindowKind::Day };

fn o200k(deployment: &mut Deployment) {
    deployment.tokenizer = Some(Tokenizer::O200k);
}

fn script() -> Script {
    let usage = UsageScript { prompt: Some(810), completion: Some(5), ..UsageScript::default() };
    Script { usage, ..Script::default() }
}

#[tokio::test]
async fn what_the_bound_by_bytes_refuses_the_exact_count_admits_and_the_charge_stays_the_providers() {
    // By bytes the hold is above 4,100 tokens and $0.043; counted, about 1,000 and $0.012.
    for (measure, max) in [(TOKENS, 3_000), (USD, 20_000_000)] {
        let setup = Setup { tiers: vec![script()], limits: limit(measure, max), adapt: o200k, ..Setup::default() };
        let house = House::build(setup).await;
        let read = house.post(prompt()).await;
        assert_eq!(read.status, 200, "{measure}: {}", read.text());
        let reservation = house.reservation_of(&read).await;
        assert!((910..1_200).contains(&reservation.created.hold.tokens), "{:?}", reservation.created.hold);
        assert_eq!((reservation.status(), reservation.charged().tokens), (ReservationStatus::Settled, 815));
    }
}

#[tokio::test]
async fn what_both_refuse_is_refused_by_the_exact_count_and_leaves_nothing() {
    let setup = Setup { limits: limit(TOKENS, 500), adapt: o200k, ..Setup::default() };
    let house = House::build(setup).await;
    let read = house.post(prompt()).await;
    assert_eq!((read.status.as_u16(), read.json()["error"]["code"].as_str()), (400, Some("request_exceeds_limit")));
    let needed = needed(&read.text());
    assert!((910..1_200).contains(&needed), "the message tells the smaller need: {needed}");
    assert!(house.events().await.is_empty() && house.stubs[0].journal().is_empty());
}

#[tokio::test]
async fn one_deployment_without_a_tokenizer_keeps_the_bound_by_bytes() {
    let only_first = |deployment: &mut Deployment| {
        if deployment.id.as_str() == "deployment-0" {
            o200k(deployment);
        }
    };
    let tiers = vec![Script::default(), Script::default()];
    let house =
        House::build(Setup { tiers, limits: limit(TOKENS, 3_000), adapt: only_first, ..Setup::default() }).await;
    let read = house.post(prompt()).await;
    assert_eq!(read.status, 400, "{}", read.text());
    assert!(needed(&read.text()) > 4_100, "{}", read.text());
}

#[tokio::test]
async fn what_the_bound_by_bytes_admits_is_held_by_bytes() {
    let setup = Setup { tiers: vec![script()], limits: limit(TOKENS, 5_000), adapt: o200k, ..Setup::default() };
    let house = House::build(setup).await;
    let read = house.post(prompt()).await;
    assert!(house.reservation_of(&read).await.created.hold.tokens > 4_100);
}

#[tokio::test]
async fn a_limit_of_requests_counts_no_text() {
    let per_minute = Measure::PerMinute { unit: Unit::Requests };
    let house = House::build(Setup { limits: limit(per_minute, 1), adapt: o200k, ..Setup::default() }).await;
    house.post(prompt()).await;
    let read = house.post(prompt()).await;
    assert_eq!(read.status, 429);
    assert!(!house.tasks.running().contains_key("recount"));
}

/// The tokens that a refusal says the request needs.
fn needed(message: &str) -> i64 {
    let (_, rest) = message.split_once("needs ").unwrap();
    rest.split_once(' ').unwrap().0.parse().unwrap()
}
