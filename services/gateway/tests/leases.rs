//! Time against requests that run: keys that expire (O59), leases that are renewed, stall, and are taken back.

use std::sync::Arc;

use crate::support::{House, KEY, PATIENCE, Setup, body, tenant};
use bytes::Bytes;
use http_body_util::BodyExt;
use tokio::time::{Duration, Instant, sleep};
use weir_domain::fold::Fold;
use weir_domain::ledger::SourcePosition;
use weir_domain::policy::Key;
use weir_domain::quota::BookOptions;
use weir_domain::reservation::{Command, Decision, Event, PendCause, Reservation, ReservationStatus};
use weir_gateway::GatewayOptions;
use weir_quota::QuotaStore;
use weir_runtime::clock::ManualClock;
use weir_runtime::units::HumanDuration;
use weir_schemas::reservation_event::{Header, ReservationEvent};
use weir_streams::{Batch, EventLog, Topic};
use weir_stub::script::{Script, UsageScript};

/// 2026-03-01T12:00:00Z: far from midnight in every zone that matters here.
const NOON_MS: i64 = 1_772_366_400_000;

/// A stream that takes long enough for anything to happen meanwhile, of 20 and 5 tokens.
fn slow_stream() -> Script {
    let usage = UsageScript { prompt: Some(20), completion: Some(5), ..UsageScript::default() };
    Script { chunks: 5, gap_ms: 100, usage, ..Script::default() }
}

async fn house(clock: &Arc<ManualClock>, script: Script, renew_every_ms: u64) -> House {
    let options = GatewayOptions { renew_every: HumanDuration::from_ms(renew_every_ms), ..GatewayOptions::default() };
    let clock = Arc::clone(clock) as weir_runtime::clock::SharedClock;
    House::build(Setup { tiers: vec![script], options, clock, ..Setup::default() }).await
}

fn expire_at(house: &House, expires_at_ms: i64) {
    house.publish(|snapshot| {
        for key in snapshot.keys.values_mut() {
            *key = Arc::new(Key { expires_at_ms: Some(expires_at_ms), ..Key::clone(key) });
        }
    });
}

#[tokio::test]
async fn o59_a_key_is_good_until_its_instant_and_a_stream_begun_before_may_finish() {
    let clock = Arc::new(ManualClock::at_ms(NOON_MS));
    let house = house(&clock, slow_stream(), 20_000).await;
    expire_at(&house, NOON_MS + 10_000);
    assert_eq!(house.post(body(false)).await.status, 200);
    clock.set_ms(NOON_MS + 9_900);
    assert_eq!(house.post(body(false)).await.status, 200);
    let open = house.open(house.request(body(true))).await;
    assert_eq!(open.status(), 200);
    clock.set_ms(NOON_MS + 10_000);
    for at_ms in [10_000, 10_100, 1_000_000] {
        clock.set_ms(NOON_MS + at_ms);
        let read = house.post(body(false)).await;
        assert_eq!((read.status.as_u16(), read.json()["error"]["code"].as_str()), (401, Some("expired_api_key")));
        assert!(!read.text().contains(KEY), "at most a prefix: {}", read.text());
    }
    let text = String::from_utf8(open.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap();
    assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
    house.assert_at_rest().await;
}

#[tokio::test]
async fn o59_a_key_that_was_unknown_a_moment_ago_is_good_once_it_is_published() {
    let house = House::of(Script::default()).await;
    let fresh = "weir_live_created-a-second-ago";
    let refused = house.send(house.request_with(fresh, body(false))).await;
    assert_eq!(refused.status, 401);
    assert!(!refused.text().contains(fresh));
    house.publish(|snapshot| {
        let template = snapshot.keys.values().next().unwrap().clone();
        let hash = house.pepper.hash(fresh);
        snapshot.keys.insert(hash, Arc::new(Key { hash, ..Key::clone(&template) }));
    });
    assert_eq!(house.send(house.request_with(fresh, body(false))).await.status, 200);
}

/// The one reservation that runs, once `is_so`.
async fn until(house: &House, is_so: impl Fn(&Reservation) -> bool) -> Reservation {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let id = house.events().await.first().map(|(id, _)| *id);
        if let Some(id) = id
            && let Some(found) = house.quota.find(&tenant(), id).await.unwrap().filter(&is_so)
        {
            return found;
        }
        assert!(Instant::now() < deadline, "it did not come to that in time");
        sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn a_stream_of_many_leases_stays_reserved_and_is_charged_exactly() {
    let clock = Arc::new(ManualClock::at_ms(NOON_MS));
    let house = house(&clock, slow_stream(), 10).await;
    let open = house.open(house.request(body(true))).await;
    let mut running = until(&house, |reservation| reservation.slot).await;
    for _ in 0..10 {
        clock.advance_ms(59_000);
        let due_ms = running.due_ms;
        running = until(&house, |reservation| reservation.due_ms > due_ms).await;
        assert_eq!(running.status(), ReservationStatus::Reserved);
        assert!(house.quota.due(10).await.unwrap().is_empty());
    }
    let text = open.into_body().collect().await.unwrap().to_bytes();
    assert!(text.ends_with(b"data: [DONE]\n\n"));
    let ended = until(&house, |reservation| reservation.closed).await;
    assert_eq!((ended.status(), ended.charged().tokens), (ReservationStatus::Settled, 25));
}

/// As the sweep does: the log first.
async fn pend(house: &House, reservation: &Reservation) {
    let (id, created) = (reservation.created.id, &reservation.created);
    let command = Command::Pend { cause: PendCause::Expired };
    let header = Header {
        reservation: id,
        recorded_at_us: NOON_MS * 1000,
        region: "eu".into(),
        tenant: created.tenant.clone(),
        key: created.key.clone(),
        snapshot_version: 1,
        trace_id: None,
    };
    let event = Event::ReservationPending { cause: PendCause::Expired, ordinal: reservation.resumes };
    let mut frame = Vec::new();
    ReservationEvent::new(header, event).unwrap().encode(&mut frame).unwrap();
    let key = Bytes::copy_from_slice(id.as_bytes());
    let appended = house.log.append(Batch::new(Topic::Reservations, key, NOON_MS, vec![Bytes::from(frame)]));
    appended.durable().await.unwrap();
    let reply = house.quota.execute(&tenant(), id, &command).await.unwrap();
    assert!(matches!(reply.decision, Decision::Change(_)), "{:?}", reply.decision);
}

/// Nobody renewed, so the sweeper was right to pend it; the gateway was slow, not dead, and closes late.
#[tokio::test]
async fn a_stream_whose_renewals_stalled_is_pended_and_its_late_close_is_exact() {
    let clock = Arc::new(ManualClock::at_ms(NOON_MS));
    let house = house(&clock, slow_stream(), 3_600_000).await;
    let open = house.open(house.request(body(true))).await;
    let running = until(&house, |reservation| !reservation.attempts.is_empty()).await;
    assert!(house.quota.due(10).await.unwrap().is_empty());
    clock.advance_ms(60_001);
    let due = house.quota.due(10).await.unwrap();
    assert_eq!(due.iter().map(|found| found.created.id).collect::<Vec<_>>(), [running.created.id]);
    pend(&house, &running).await;
    let pended = until(&house, |reservation| reservation.closed).await;
    assert_eq!(pended.status(), ReservationStatus::PendingReconciliation);
    assert!(!pended.held().is_zero(), "what may have executed stays held");

    let text = open.into_body().collect().await.unwrap().to_bytes();
    assert!(text.ends_with(b"data: [DONE]\n\n"), "the client notices nothing");
    let ended = until(&house, |reservation| reservation.status() == ReservationStatus::Settled).await;
    assert_eq!((ended.charged().requests, ended.charged().tokens), (1, 25));
    assert!(ended.held().is_zero());
    assert!(house.quota.pending(10).await.unwrap().is_empty());
    let read = house.quota.read(&tenant()).await.unwrap();
    assert!(read.counters.iter().all(|reading| reading.counter.charged == ended.charged()));
    assert!(read.counters.iter().all(|reading| reading.counter.held.is_zero()));
    let recorded = house.kinds().await.iter().filter(|kind| **kind == "UsageRecorded").count();
    assert_eq!(recorded, 1);
}

/// Renewals come back before the end: the reservation is taken back, and the log says so before it is closed.
#[tokio::test]
async fn a_lease_that_ended_is_taken_back_by_its_owner_on_the_log() {
    let clock = Arc::new(ManualClock::at_ms(NOON_MS));
    let house = house(&clock, slow_stream(), 150).await;
    let open = house.open(house.request(body(true))).await;
    let running = until(&house, |reservation| !reservation.attempts.is_empty()).await;
    clock.advance_ms(60_001);
    pend(&house, &running).await;
    let resumed = until(&house, |reservation| reservation.resumes == 1).await;
    assert_eq!(resumed.status(), ReservationStatus::Reserved);
    let text = open.into_body().collect().await.unwrap().to_bytes();
    assert!(text.ends_with(b"data: [DONE]\n\n"));
    let ended = until(&house, |reservation| reservation.closed).await;
    assert_eq!((ended.status(), ended.charged().tokens), (ReservationStatus::Settled, 25));
    let kinds = house.kinds().await;
    let at = |kind: &str| kinds.iter().position(|found| *found == kind);
    assert!(at("ReservationResumed").is_some() && at("ReservationResumed") < at("ReservationSettled"), "{kinds:?}");
}

/// What pends it now is not the pending that was taken back: whoever reads the log takes it for news.
#[tokio::test]
async fn a_stream_that_is_left_after_its_lease_was_taken_back_is_pending_on_the_log() {
    let clock = Arc::new(ManualClock::at_ms(NOON_MS));
    let house = house(&clock, Script { gap_ms: 2_000, ..slow_stream() }, 50).await;
    let open = house.open(house.request(body(true))).await;
    let running = until(&house, |reservation| !reservation.attempts.is_empty()).await;
    clock.advance_ms(60_001);
    pend(&house, &running).await;
    until(&house, |reservation| reservation.resumes == 1).await;
    drop(open);
    let left = until(&house, |reservation| reservation.closed).await;
    assert_eq!(left.status(), ReservationStatus::PendingReconciliation);
    let mut fold = Fold::new(BookOptions::default());
    for (offset, (id, event)) in (0..).zip(house.events().await) {
        fold.absorb(SourcePosition { partition: 0, offset }, id, &event, NOON_MS).unwrap();
    }
    let folded = fold.reservation(left.created.id).unwrap();
    assert_eq!((folded.status(), folded.closed, folded.held()), (left.status(), true, left.held()));
}
