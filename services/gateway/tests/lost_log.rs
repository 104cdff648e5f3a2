//! The log refuses an event: whatever it would have said has not happened, neither at a provider nor in the quota store (I8).

#![cfg(test)]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use http_body_util::BodyExt;
use support::{House, PATIENCE, Setup, body, tenant};
use tokio::time::{Duration, Instant, sleep};
use weir_domain::ids::ReservationId;
use weir_domain::money::Amounts;
use weir_domain::registry::OnAbandon;
use weir_domain::reservation::{EventKind, Reservation, ReservationStatus};
use weir_quota::QuotaStore;
use weir_schemas::reservation_event::ReservationEvent;
use weir_streams::segment::SegmentLog;
use weir_streams::{Append, Batch, EventLog, Health, Limits, Offsets, Position, ReadError, StoredRecord, Visibility};
use weir_stub::script::{Script, UsageScript};

/// A log that takes nothing more from the first event of a kind on.
#[derive(Debug)]
struct Refusing {
    log: Arc<SegmentLog>,
    from: EventKind,
    refuses: AtomicBool,
}

impl Refusing {
    fn is_of_kind(&self, batch: &Batch) -> bool {
        let kinds =
            batch.values.iter().filter_map(|value| ReservationEvent::decode(value).unwrap().into_parts().1.kind());
        kinds.into_iter().any(|kind| kind == self.from)
    }
}

#[async_trait]
impl EventLog for Refusing {
    fn append(&self, batch: Batch) -> Append {
        if batch.topic == weir_streams::Topic::Reservations && self.is_of_kind(&batch) {
            self.refuses.store(true, Ordering::SeqCst);
        }
        if self.refuses.load(Ordering::SeqCst) {
            // A batch without records is refused by every log.
            return self.log.append(Batch { values: Vec::new(), ..batch });
        }
        self.log.append(batch)
    }

    async fn read(&self, at: Position, limits: Limits, seen: Visibility) -> Result<Vec<StoredRecord>, ReadError> {
        self.log.read(at, limits, seen).await
    }

    async fn wait(&self, at: Position, seen: Visibility) -> Result<(), ReadError> {
        self.log.wait(at, seen).await
    }

    async fn offsets(&self, topic: weir_streams::Topic, partition: u32) -> Result<Offsets, ReadError> {
        self.log.offsets(topic, partition).await
    }

    fn partitions(&self, topic: weir_streams::Topic) -> u32 {
        self.log.partitions(topic)
    }

    fn health(&self) -> Health {
        self.log.health()
    }

    async fn close(&self) {
        self.log.close().await;
    }
}

async fn house(setup: Setup, from: EventKind) -> (House, Arc<Refusing>) {
    let mut house = House::build(setup).await;
    let log = Arc::new(Refusing { log: Arc::clone(&house.log), from, refuses: AtomicBool::new(false) });
    house.gateway = house.replica_on("refused", Arc::clone(&log) as Arc<dyn EventLog>);
    (house, log)
}

/// The reservation as the store has it, once the log has refused and everything that followed has ended.
async fn after(house: &House, log: &Refusing, id: ReservationId) -> Reservation {
    let deadline = Instant::now() + PATIENCE;
    while !log.refuses.load(Ordering::SeqCst) {
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
        let (house, _log) = house(setup, EventKind::AttemptStarted).await;
        let read = house.post(body(stream)).await;
        assert_eq!(read.status, 503, "{}", read.text());
        assert!(house.stubs[0].journal().is_empty(), "no provider is called");
    }
}

#[tokio::test]
async fn i08_an_attempt_whose_end_is_not_on_the_log_is_followed_by_none() {
    let setup = Setup { tiers: vec![Script { status: 503, ..Script::default() }, answer()], ..Setup::default() };
    let (house, log) = house(setup, EventKind::AttemptClosed).await;
    let read = house.post(body(false)).await;
    assert_eq!(read.status, 503, "{}", read.text());
    let id = house.events().await[0].0;
    let reservation = after(&house, &log, id).await;
    assert_eq!(reservation.attempts[0].outcome, None, "the store hears of no end that the log does not have");
    assert!(house.stubs[1].journal().is_empty(), "no provider is called");
}

#[tokio::test]
async fn i08_a_charge_that_is_not_on_the_log_is_none_in_the_counters() {
    for stream in [false, true] {
        let (house, log) = house(Setup { tiers: vec![answer()], ..Setup::default() }, EventKind::UsageRecorded).await;
        let read = house.post(body(stream)).await;
        let id = read.header("x-weir-reservation").parse().unwrap();
        let reservation = after(&house, &log, id).await;
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
    let (house, log) = house(setup, EventKind::UsageRecorded).await;
    let mut response = house.open(house.request(body(true))).await;
    let id = response.headers()["x-weir-reservation"].to_str().unwrap().parse().unwrap();
    response.body_mut().frame().await.unwrap().unwrap();
    drop(response);
    let reservation = after(&house, &log, id).await;
    assert_eq!(
        (reservation.status(), reservation.charged()),
        (ReservationStatus::PendingReconciliation, Amounts::ZERO)
    );
}
