//! The log refuses an event: whatever it would have said has not happened, neither at a provider nor in the quota store (I8).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::logs::{Intercepted, kind};
use crate::support::{House, PATIENCE, Setup, body, tenant};
use http_body_util::BodyExt;
use tokio::time::{Duration, Instant, sleep};
use weir_domain::ids::ReservationId;
use weir_domain::money::Amounts;
use weir_domain::registry::OnAbandon;
use weir_domain::reservation::{EventKind, Reservation, ReservationStatus};
use weir_quota::QuotaStore;
use weir_streams::segment::SegmentLog;
use weir_streams::{Batch, EventLog, Topic};
use weir_stub::script::{Script, UsageScript};

/// A house whose log takes nothing more from the first event of a kind on, and whether it has come to that.
async fn house(setup: Setup, from: EventKind) -> (House, Arc<AtomicBool>) {
    let mut house = House::build(setup).await;
    let refuses = Arc::new(AtomicBool::new(false));
    let refused = Arc::clone(&refuses);
    let append = move |log: &SegmentLog, batch: Batch| {
        if batch.topic == Topic::Reservations && batch.values.iter().any(|value| kind(value) == Some(from)) {
            refused.store(true, Ordering::SeqCst);
        }
        // A batch without records is refused by every log.
        let values = if refused.load(Ordering::SeqCst) { Vec::new() } else { batch.values };
        log.append(Batch { values, ..batch })
    };
    house.gateway = house.replica_on("refused", Arc::new(Intercepted { log: Arc::clone(&house.log), append }));
    (house, refuses)
}

/// The reservation as the store has it, once the log has refused and everything that followed has ended.
async fn after(house: &House, refuses: &AtomicBool, id: ReservationId) -> Reservation {
    let deadline = Instant::now() + PATIENCE;
    while !refuses.load(Ordering::SeqCst) {
        assert!(Instant::now() < deadline, "nothing was refused");
        sleep(Duration::from_millis(5)).await;
    }
    house.tasks.stop(PATIENCE).await;
    house.quota.find(&tenant(), id).await.unwrap().unwrap()
}

fn answer() -> Script {
    let usage = UsageScript { prompt: Some(5), completion: Some(15), ..UsageScript::default() };
    Script { chunks: 15, gap_ms: 20, usage, ..Script::default() }
}

#[tokio::test]
async fn i08_an_attempt_that_is_not_on_the_log_calls_nobody() {
    for stream in [false, true] {
        let setup = Setup { tiers: vec![answer()], ..Setup::default() };
        let (house, _refuses) = house(setup, EventKind::AttemptStarted).await;
        let read = house.post(body(stream)).await;
        assert_eq!(read.status, 503, "{}", read.text());
        assert!(house.stubs[0].journal().is_empty(), "no provider is called");
    }
}

#[tokio::test]
async fn i08_an_attempt_whose_end_is_not_on_the_log_is_followed_by_none() {
    let setup = Setup { tiers: vec![Script { status: 503, ..Script::default() }, answer()], ..Setup::default() };
    let (house, refuses) = house(setup, EventKind::AttemptClosed).await;
    let read = house.post(body(false)).await;
    assert_eq!(read.status, 503, "{}", read.text());
    let id = read.header("x-weir-reservation").parse().unwrap();
    let reservation = after(&house, &refuses, id).await;
    assert_eq!(reservation.attempts[0].outcome, None, "the store hears of no end that the log does not have");
    assert!(house.stubs[1].journal().is_empty(), "no provider is called");
}

#[tokio::test]
async fn i08_a_charge_that_is_not_on_the_log_is_none_in_the_counters() {
    for stream in [false, true] {
        let (house, refuses) =
            house(Setup { tiers: vec![answer()], ..Setup::default() }, EventKind::UsageRecorded).await;
        let read = house.post(body(stream)).await;
        let id = read.header("x-weir-reservation").parse().unwrap();
        let reservation = after(&house, &refuses, id).await;
        assert_eq!((reservation.status(), reservation.charged()), (ReservationStatus::Reserved, Amounts::ZERO));
        assert!(!reservation.held().is_zero(), "the sweep ends what is still held");
    }
}

#[tokio::test]
async fn i08_what_a_drain_learnt_and_the_log_refused_stays_pending() {
    let adapt = |deployment: &mut weir_domain::registry::Deployment| {
        Arc::make_mut(&mut deployment.provider).on_abandon = OnAbandon::Drain;
    };
    let setup = Setup { tiers: vec![answer()], adapt, ..Setup::default() };
    let (house, refuses) = house(setup, EventKind::UsageRecorded).await;
    let mut response = house.open(house.request(body(true))).await;
    let id = response.headers()["x-weir-reservation"].to_str().unwrap().parse().unwrap();
    response.body_mut().frame().await.unwrap().unwrap();
    drop(response);
    let reservation = after(&house, &refuses, id).await;
    assert_eq!(
        (reservation.status(), reservation.charged()),
        (ReservationStatus::PendingReconciliation, Amounts::ZERO)
    );
}
