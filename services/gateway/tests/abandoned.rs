//! O46 and the policies for what nobody waits for any more: closed at once and pending, or read on, bounded, so that its
//! usage becomes known. Whatever the policy, the slot is free at once and no other attempt starts for nobody.

use std::sync::Arc;

use crate::support::{House, PATIENCE, Setup, body, tenant};
use http_body_util::BodyExt;
use tokio::time::{Duration, Instant, sleep, timeout};
use weir_domain::attempt::AttemptOutcome;
use weir_domain::ids::ReservationId;
use weir_domain::money::Amounts;
use weir_domain::registry::{Deadlines, Deployment, OnAbandon, ProviderDialect};
use weir_domain::reservation::{Reservation, ReservationStatus};
use weir_gateway::GatewayOptions;
use weir_quota::QuotaStore;
use weir_runtime::units::{ByteSize, HumanDuration};
use weir_stub::journal::State;
use weir_stub::script::{Billing, Fault, FaultKind, Script, UsageScript};

fn usage(prompt: i64, completion: i64) -> UsageScript {
    UsageScript { prompt: Some(prompt), completion: Some(completion), ..UsageScript::default() }
}

fn drain(deployment: &mut Deployment) {
    Arc::make_mut(&mut deployment.provider).on_abandon = OnAbandon::Drain;
}

fn drain_within(deployment: &mut Deployment) {
    Arc::make_mut(&mut deployment.provider).on_abandon = OnAbandon::DrainWithin;
}

/// A stream of a second, or an answer after half of one.
fn slow() -> Script {
    Script { before_headers_ms: 300, chunks: 15, gap_ms: 50, usage: usage(5, 15), ..Script::default() }
}

async fn house(script: Script, adapt: fn(&mut Deployment), options: GatewayOptions) -> House {
    House::build(Setup { tiers: vec![script, Script::default()], adapt, options, ..Setup::default() }).await
}

/// Sends a request and leaves after `chunks` pieces of its answer; with none, before its head.
async fn leave(house: &House, stream: bool, chunks: usize) -> ReservationId {
    if chunks == 0 {
        let left = timeout(Duration::from_millis(150), house.post(body(stream))).await;
        assert!(left.is_err(), "the client left first");
        // The provider is called once the attempt is written; the disk may take longer.
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some((id, _)) = house.events().await.last() {
                return *id;
            }
            assert!(Instant::now() < deadline, "nothing of the request is on the log");
            sleep(Duration::from_millis(5)).await;
        }
    }
    let mut response = house.open(house.request(body(stream))).await;
    let id = response.headers()["x-weir-reservation"].to_str().unwrap().parse().unwrap();
    for _ in 0..chunks {
        response.body_mut().frame().await.unwrap().unwrap();
    }
    id
}

/// Waits until the reservation has `status`.
async fn until(house: &House, id: ReservationId, status: ReservationStatus) -> Reservation {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let found = house.quota.find(&tenant(), id).await.unwrap().unwrap();
        if found.closed && found.status() == status {
            return found;
        }
        assert!(Instant::now() < deadline, "{:?}", found.status());
        sleep(Duration::from_millis(5)).await;
    }
}

async fn until_ended(house: &House) -> State {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let state = house.stubs[0].journal()[0].state;
        if state != State::Running {
            return state;
        }
        assert!(Instant::now() < deadline, "the provider still answers");
        sleep(Duration::from_millis(5)).await;
    }
}

/// Before the head of an answer, within a plain one, before and after the first content of a stream.
const LEAVES: [(bool, usize); 3] = [(false, 0), (true, 0), (true, 3)];

#[tokio::test]
async fn o46_close_hangs_up_within_a_second_and_leaves_it_pending() {
    for (stream, chunks) in LEAVES {
        let house = house(slow(), |_| {}, GatewayOptions::default()).await;
        let id = leave(&house, stream, chunks).await;
        let left = Instant::now();
        assert_eq!(until_ended(&house).await, State::Cancelled);
        assert!(left.elapsed() < Duration::from_secs(1));
        let reservation = until(&house, id, ReservationStatus::PendingReconciliation).await;
        assert!(!reservation.slot && reservation.held().tokens > 0);
        assert!(house.stubs[1].journal().is_empty(), "no attempt starts for nobody");
    }
}

#[tokio::test]
async fn o46_drain_is_pending_at_once_and_settled_when_the_answer_ends() {
    for adapt in [drain as fn(&mut Deployment), drain_within] {
        for (stream, chunks) in LEAVES {
            let house = house(slow(), adapt, GatewayOptions::default()).await;
            let id = leave(&house, stream, chunks).await;
            let pending = until(&house, id, ReservationStatus::PendingReconciliation).await;
            assert!(!pending.slot, "the slot is free while the provider still answers");
            assert_eq!(house.stubs[0].journal()[0].state, State::Running);
            let settled = until(&house, id, ReservationStatus::Settled).await;
            assert_eq!((settled.charged().tokens, settled.held()), (20, Amounts::ZERO));
            assert!(settled.attempts[0].provider_id.is_some(), "what a report would be matched by");
            assert_eq!(until_ended(&house).await, State::Complete);
            let billed = house.stubs[0].totals().billed;
            assert_eq!(billed.prompt + billed.completion, 20, "what the provider bills is what was charged");
            assert!(house.stubs[1].journal().is_empty());
            let kinds = house.kinds().await;
            let of_end: Vec<_> = kinds.iter().rev().take(4).rev().copied().collect();
            assert_eq!(of_end.last(), Some(&"ReservationSettled"), "{kinds:?}");
            assert_eq!(kinds.iter().filter(|kind| **kind == "UsageRecorded").count(), 1, "{kinds:?}");
        }
    }
}

#[tokio::test]
async fn a_spent_first_content_budget_fails_over_and_the_first_attempt_is_still_learnt() {
    let first = Script { before_content_ms: 600, usage: usage(5, 7), ..Script::default() };
    let second = Script { text: Some("from b".to_owned()), usage: usage(3, 2), ..Script::default() };
    let deadlines = Deadlines { first_content_ms: 200, ..Deadlines::default() };
    for (adapt, status) in [
        (drain as fn(&mut Deployment), ReservationStatus::Settled),
        (|_: &mut Deployment| {}, ReservationStatus::PendingReconciliation),
    ] {
        let tiers = vec![first.clone(), second.clone()];
        let house = House::build(Setup { tiers, adapt, deadlines, ..Setup::default() }).await;
        let read = house.post(body(true)).await;
        assert_eq!((read.content().as_str(), read.header("x-weir-attempts")), ("from b", "2"));
        let id = read.header("x-weir-reservation").parse().unwrap();
        let reservation = until(&house, id, status).await;
        let charged = if status == ReservationStatus::Settled { 5 + 7 + 3 + 2 } else { 3 + 2 };
        assert_eq!(reservation.charged().tokens, charged);
    }
}

/// A drain that learns that nothing was executed gives the hold back.
#[tokio::test]
async fn a_drain_that_ends_in_a_refusal_releases() {
    let house = house(Script { status: 429, ..slow() }, drain, GatewayOptions::default()).await;
    let id = leave(&house, true, 0).await;
    let released = until(&house, id, ReservationStatus::Released).await;
    assert_eq!(released.attempts[0].outcome, Some(AttemptOutcome::NotExecuted));
}

#[tokio::test]
async fn drains_are_bounded_in_time_bytes_and_number_and_end_with_the_process() {
    let endless = Script { chunks: 2_000, gap_ms: 20, chunk_bytes: Some(500), ..slow() };
    let short = GatewayOptions { drain_within: HumanDuration::from_ms(200), ..GatewayOptions::default() };
    let little = GatewayOptions { drain_bytes: ByteSize::kib(8), ..GatewayOptions::default() };
    let none = GatewayOptions { max_drains: 0, ..GatewayOptions::default() };
    // The time of `drain` is far beyond the patience here, so nothing but the bytes and the number end those.
    let cases = [(drain_within as fn(&mut Deployment), short), (drain, little), (drain, none)];
    for (policy, options) in cases {
        let house = house(endless.clone(), policy, options).await;
        let id = leave(&house, true, 3).await;
        assert_eq!(until_ended(&house).await, State::Cancelled);
        until(&house, id, ReservationStatus::PendingReconciliation).await;
    }
    let house = house(endless, drain, GatewayOptions::default()).await;
    let id = leave(&house, true, 3).await;
    until(&house, id, ReservationStatus::PendingReconciliation).await;
    assert_eq!(house.stubs[0].journal()[0].state, State::Running, "it is read on");
    let started = Instant::now();
    house.tasks.stop(PATIENCE).await;
    assert!(started.elapsed() < Duration::from_secs(2), "a process that stops waits for no drain");
}

/// Input usage that came first bounds what is held: Anthropic's `message_start` brings it before any content.
#[tokio::test]
async fn input_usage_that_came_first_tightens_what_is_pending() {
    let setup = Setup {
        tiers: vec![Script { chunks: 200, gap_ms: 20, usage: usage(5, 200), ..Script::default() }],
        speak: vec![ProviderDialect::Anthropic],
        adapt: |deployment| {
            let key = concat!("file:", env!("CARGO_MANIFEST_DIR"), "/tests/support/upstream-key");
            Arc::make_mut(&mut deployment.provider).credential = Some(key.to_owned());
        },
        ..Setup::default()
    };
    let house = House::build(setup).await;
    let id = leave(&house, true, 2).await;
    let pending = until(&house, id, ReservationStatus::PendingReconciliation).await;
    // The 100 tokens of output that were allowed, and exactly the input that the provider counted.
    assert_eq!(pending.held().tokens, 105);
    assert!(pending.created.hold.tokens > 105, "{:?}", pending.created.hold);
    assert!(house.kinds().await.contains(&"UsageBounded"));
}

/// What a drain read of an answer that then broke off is a bound, no bill (I7): the hold shrinks to it, nothing is charged.
#[tokio::test]
async fn i07_a_drain_that_breaks_off_tightens_and_charges_nothing() {
    let breaks =
        Fault { kind: FaultKind::Cut, after_chunks: 5, after_bytes: None, code: None, message: None, bytes: None };
    let setup = Setup {
        tiers: vec![Script { chunks: 15, gap_ms: 20, usage: usage(5, 15), fault: Some(breaks), ..slow() }],
        speak: vec![ProviderDialect::Anthropic],
        adapt: |deployment| {
            let key = concat!("file:", env!("CARGO_MANIFEST_DIR"), "/tests/support/upstream-key");
            let provider = Arc::make_mut(&mut deployment.provider);
            provider.credential = Some(key.to_owned());
            provider.on_abandon = OnAbandon::Drain;
        },
        ..Setup::default()
    };
    let house = House::build(setup).await;
    // Before the head: whatever is known of the usage, the drain has read.
    let id = leave(&house, true, 0).await;
    let pending = until(&house, id, ReservationStatus::PendingReconciliation).await;
    assert!(pending.held().tokens > 105, "{:?}", pending.held());
    // The log has it first, then the store.
    let deadline = Instant::now() + PATIENCE;
    let bounded = loop {
        let found = house.quota.find(&tenant(), id).await.unwrap().unwrap();
        if found.held() != pending.held() {
            break found;
        }
        assert!(Instant::now() < deadline, "{:?}", house.kinds().await);
        sleep(Duration::from_millis(5)).await;
    };
    assert_eq!(bounded.status(), ReservationStatus::PendingReconciliation);
    assert_eq!((bounded.charged().tokens, bounded.held().tokens), (0, 105));
    let kinds = house.kinds().await;
    assert!(kinds.contains(&"UsageBounded") && !kinds.contains(&"UsageRecorded"), "{kinds:?}");
}

/// A provider that bills an abandoned answer in full: what is held covers it, whatever the policy.
#[tokio::test]
async fn what_is_held_covers_what_is_billed_until_it_is_known() {
    for adapt in [(|_: &mut Deployment| {}) as fn(&mut Deployment), drain_within, drain] {
        let house = house(Script { billing: Some(Billing::Full), ..slow() }, adapt, GatewayOptions::default()).await;
        let id = leave(&house, true, 3).await;
        until_ended(&house).await;
        let billed = house.stubs[0].totals().billed;
        let found = house.quota.find(&tenant(), id).await.unwrap().unwrap();
        let counted = found.charged().tokens + found.held().tokens;
        assert!(counted >= billed.prompt + billed.completion, "{counted} for {billed:?}");
    }
}
