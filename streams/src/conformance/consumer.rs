//! What following the log must do, whatever the stores: one function per promise, run by the crate of each store.

use std::collections::HashSet;
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, timeout};

use super::{Outcome, PATIENCE};
use crate::consumer::{
    Applied, Consumer, ConsumerError, ConsumerOptions, DeadLetter, Delivery, Effect, EffectError, Parking, Positions,
    Resolution, StoreError, Subscription,
};
use crate::contract::{Batch, EventLog, Limits, Position, StoredRecord, Visibility};
use crate::topics::{OnPoison, Topic};

const TOPIC: Topic = Topic::Reservations;

/// A log of one partition and empty stores. Asked again, it gives the same ones, opened anew if they can be.
#[async_trait]
pub trait ConsumerHarness: Send + Sync {
    async fn log(&self) -> Result<Arc<dyn EventLog>, Box<dyn Error + Send + Sync>>;
    async fn positions(&self) -> Result<Arc<dyn Positions>, Box<dyn Error + Send + Sync>>;
    async fn parking(&self) -> Result<Arc<dyn Parking>, Box<dyn Error + Send + Sync>>;
}

/// One `#[tokio::test]` per case, for stores with an `async fn() -> impl ConsumerHarness` named `$fresh`.
#[macro_export]
macro_rules! consumer_conformance {
    ($fresh:path) => {
        $crate::consumer_conformance!($fresh, unless $crate::conformance::never);
    };
    ($fresh:path, unless $skips:path) => {
        $crate::consumer_conformance!($fresh, unless $skips:
            applies_everything_in_order_and_goes_on_where_it_stopped,
            delivers_again_after_a_crash_between_effect_and_position,
            parks_a_poison_key_and_only_that, keeps_followers_parked_over_a_restart, retries_in_order,
            replays_a_parked_key_in_order, skips_only_the_named_record, keeps_a_key_parked_that_is_still_poison,
            goes_on_with_the_key_where_records_are_skipped, holds_when_too_much_is_poison,
            refuses_a_log_that_is_shorter_than_its_position, leaves_the_position_to_an_effect_that_stores_it,
            keeps_parked_records_apart_and_in_order,
        );
    };
    ($fresh:path, unless $skips:path: $($case:ident),+ $(,)?) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() -> $crate::conformance::Outcome {
                if $skips(stringify!($case)) {
                    return Ok(());
                }
                $crate::conformance::consumer::$case(&$fresh().await).await
            }
        )+
    };
}

/// An effect that remembers what it applied and fails where it is told to.
#[derive(Debug, Default)]
struct Recorder {
    applied: Mutex<Vec<String>>,
    poison: Mutex<HashSet<String>>,
    fails_times: Mutex<u32>,
    stores_position: AtomicBool,
    positions_seen: Mutex<Vec<Option<u64>>>,
}

impl Recorder {
    fn applied(&self) -> Vec<String> {
        self.applied.lock().clone()
    }

    fn set_poison(&self, values: &[&str]) {
        *self.poison.lock() = values.iter().map(|value| (*value).to_owned()).collect();
    }
}

fn text(bytes: &Bytes) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[async_trait]
impl Effect for Recorder {
    /// Applies in order up to the first poison record, as an effect without a transaction would.
    async fn apply(&self, delivery: Delivery<'_>) -> Result<Applied, EffectError> {
        {
            let mut fails = self.fails_times.lock();
            if *fails > 0 {
                *fails -= 1;
                return Err(EffectError::Retry { reason: "the store is away".to_owned() });
            }
        }
        for record in delivery.records {
            let value = text(&record.value);
            if self.poison.lock().contains(&value) {
                return Err(EffectError::Poison { offset: record.offset, reason: format!("{value} is poison") });
            }
            self.applied.lock().push(value);
        }
        self.positions_seen.lock().push(delivery.position);
        let stores = self.stores_position.load(Ordering::SeqCst);
        Ok(if stores { Applied::EffectAndPosition } else { Applied::Effect })
    }
}

/// One consumer with everything it needs, as it is after a start of the process.
struct Setup {
    log: Arc<dyn EventLog>,
    effect: Arc<Recorder>,
    positions: Arc<dyn Positions>,
    parking: Arc<dyn Parking>,
    options: ConsumerOptions,
}

impl Setup {
    async fn of(harness: &dyn ConsumerHarness) -> Result<Self, Box<dyn Error + Send + Sync>> {
        let mut options = ConsumerOptions::new(OnPoison::ParkKey);
        options.first_pause = Duration::from_millis(1);
        options.longest_pause = Duration::from_millis(4);
        options.look_every = Duration::from_millis(5);
        Ok(Self {
            log: harness.log().await?,
            effect: Arc::default(),
            positions: harness.positions().await?,
            parking: harness.parking().await?,
            options,
        })
    }

    fn consumer(&self) -> Consumer {
        let (log, effect) = (Arc::clone(&self.log), Arc::clone(&self.effect) as Arc<dyn Effect>);
        let (positions, parking) = (Arc::clone(&self.positions), Arc::clone(&self.parking));
        Consumer::new(subscription(), log, effect, positions, parking, self.options)
    }

    /// Appends records given as `key:value`, each a batch of its own, and returns the end.
    async fn append(&self, records: &[&str]) -> Result<u64, Box<dyn Error + Send + Sync>> {
        let mut end = 0;
        for record in records {
            let (key, _) = record.split_once(':').unwrap_or((record, ""));
            let bytes = |text: &str| Bytes::copy_from_slice(text.as_bytes());
            let placed = self.log.append(Batch::new(TOPIC, bytes(key), 5, vec![bytes(record)])).durable().await?;
            end = placed.first.offset + 1;
        }
        Ok(end)
    }

    /// Runs a consumer until its position is `position`.
    async fn run(&self, position: u64) -> Result<Consumer, ConsumerError> {
        let consumer = self.consumer();
        consumer.run(async { drop(timeout(PATIENCE, consumer.reached(position)).await) }).await?;
        assert!(consumer.position() >= position, "{:?}, {:?}", consumer.position(), self.effect);
        Ok(consumer)
    }

    async fn parked(&self) -> Result<Vec<(String, u64, u64)>, StoreError> {
        let keys = self.parking.list(&subscription()).await?;
        Ok(keys.into_iter().map(|key| (text(&key.key), key.offset, key.records)).collect())
    }

    async fn dead_letters(&self) -> Result<Vec<(u64, String)>, Box<dyn Error + Send + Sync>> {
        let at = Position { topic: TOPIC.dead_letters(), partition: 0, offset: 0 };
        let stored = self.log.read(at, Limits::default(), Visibility::Durable).await?;
        let letters: Result<Vec<_>, _> = stored.iter().map(DeadLetter::parse).collect();
        for letter in letters.as_ref().into_iter().flatten() {
            assert_eq!((letter.consumer.as_str(), letter.topic, letter.partition), ("test", TOPIC, 0));
            assert!(letter.value.starts_with(&letter.key), "the record's own bytes");
        }
        Ok(letters?.into_iter().map(|letter| (letter.offset, letter.reason)).collect())
    }

    /// Orders a resolution and runs until it was carried out.
    async fn order(&self, key: &str, resolution: Resolution) -> Outcome {
        let key = Bytes::copy_from_slice(key.as_bytes());
        assert!(self.parking.ask(&subscription(), &key, resolution).await?);
        let consumer = self.consumer();
        let acted = async {
            let deadline = Instant::now() + PATIENCE;
            while Instant::now() < deadline {
                let keys = self.parking.list(&subscription()).await.unwrap_or_default();
                if !keys.iter().any(|parked| parked.asked.is_some()) {
                    return;
                }
                sleep(Duration::from_millis(1)).await;
            }
        };
        consumer.run(acted).await?;
        let keys = self.parking.list(&subscription()).await?;
        assert!(!keys.iter().any(|parked| parked.asked.is_some()), "not carried out: {keys:?}");
        Ok(())
    }
}

fn subscription() -> Subscription {
    Subscription { consumer: "test".into(), topic: TOPIC, partition: 0 }
}

/// Ready when `done`, or when patience is over; the caller asserts which.
async fn until(done: impl Fn() -> bool + Send) {
    let deadline = Instant::now() + PATIENCE;
    while !done() && Instant::now() < deadline {
        sleep(Duration::from_millis(1)).await;
    }
}

pub async fn applies_everything_in_order_and_goes_on_where_it_stopped(harness: &dyn ConsumerHarness) -> Outcome {
    let setup = Setup::of(harness).await?;
    let end = setup.append(&["a:1", "b:1", "a:2"]).await?;
    let consumer = setup.run(end).await?;
    assert_eq!(setup.effect.applied(), ["a:1", "b:1", "a:2"]);
    let lag = consumer.lag().await?;
    assert_eq!((lag.records, lag.age_ms(99), lag.parked_keys), (0, 0, 0));

    let setup = Setup::of(harness).await?;
    let end = setup.append(&["b:2", "a:3"]).await?;
    setup.run(end).await?;
    assert_eq!(setup.effect.applied(), ["b:2", "a:3"]);
    Ok(())
}

/// Positions that take a position and never come back: the process dies in that moment.
struct DiesInStore(Arc<dyn Positions>);

#[async_trait]
impl Positions for DiesInStore {
    async fn load(&self, subscription: &Subscription) -> Result<Option<u64>, StoreError> {
        self.0.load(subscription).await
    }

    async fn store(&self, _subscription: &Subscription, _next: u64) -> Result<(), StoreError> {
        std::future::pending().await
    }
}

pub async fn delivers_again_after_a_crash_between_effect_and_position(harness: &dyn ConsumerHarness) -> Outcome {
    let mut setup = Setup::of(harness).await?;
    setup.positions = Arc::new(DiesInStore(setup.positions));
    let end = setup.append(&["a:1", "b:1"]).await?;
    let consumer = setup.consumer();
    tokio::select! {
        ended = consumer.run(std::future::pending()) => assert!(ended.is_err(), "a crash does not end a run"),
        () = until(|| !setup.effect.applied().is_empty()) => {}
    }
    // One delivery or the first of two: how a log cuts them is its own affair.
    let applied = setup.effect.applied();
    assert!(["a:1", "b:1"].starts_with(&applied.iter().map(String::as_str).collect::<Vec<_>>()), "{applied:?}");

    let setup = Setup::of(harness).await?;
    setup.run(end).await?;
    assert_eq!(setup.effect.applied(), ["a:1", "b:1"], "delivered again");
    Ok(())
}

pub async fn parks_a_poison_key_and_only_that(harness: &dyn ConsumerHarness) -> Outcome {
    let setup = Setup::of(harness).await?;
    setup.effect.set_poison(&["a:2"]);
    let end = setup.append(&["a:1", "b:1", "a:2", "b:2", "a:3", "c:1"]).await?;
    let consumer = setup.run(end).await?;
    let applied: HashSet<String> = setup.effect.applied().into_iter().collect();
    assert_eq!(applied, ["a:1", "b:1", "b:2", "c:1"].map(str::to_owned).into());
    assert_eq!(setup.parked().await?, [("a".to_owned(), 2, 2)]);
    assert_eq!(setup.dead_letters().await?, [(2, "a:2 is poison".to_owned())]);
    assert_eq!(consumer.lag().await?.parked_keys, 1);
    Ok(())
}

pub async fn keeps_followers_parked_over_a_restart(harness: &dyn ConsumerHarness) -> Outcome {
    let setup = Setup::of(harness).await?;
    setup.effect.set_poison(&["a:1"]);
    let end = setup.append(&["a:1"]).await?;
    setup.run(end).await?;

    let setup = Setup::of(harness).await?;
    let end = setup.append(&["a:2", "b:1", "a:3"]).await?;
    setup.run(end).await?;
    assert_eq!(setup.effect.applied(), ["b:1"]);
    let records = setup.parking.records(&subscription(), &Bytes::from("a")).await?;
    assert_eq!(records.iter().map(|record| text(&record.value)).collect::<Vec<_>>(), ["a:1", "a:2", "a:3"]);
    Ok(())
}

pub async fn retries_in_order(harness: &dyn ConsumerHarness) -> Outcome {
    let mut setup = Setup::of(harness).await?;
    setup.options.limits.records = 1;
    *setup.effect.fails_times.lock() = 5;
    let end = setup.append(&["a:1", "a:2", "b:1"]).await?;
    let consumer = setup.run(end).await?;
    assert_eq!(setup.effect.applied(), ["a:1", "a:2", "b:1"]);
    assert_eq!((consumer.retries(), consumer.trouble()), (5, None));
    Ok(())
}

/// Parks `a:1` with two followers.
async fn with_parked(harness: &dyn ConsumerHarness) -> Result<Setup, Box<dyn Error + Send + Sync>> {
    let setup = Setup::of(harness).await?;
    setup.effect.set_poison(&["a:1"]);
    let end = setup.append(&["a:1", "a:2", "b:1", "a:3"]).await?;
    setup.run(end).await?;
    assert_eq!(setup.parked().await?, [("a".to_owned(), 0, 3)]);
    setup.effect.applied.lock().clear();
    Ok(setup)
}

pub async fn replays_a_parked_key_in_order(harness: &dyn ConsumerHarness) -> Outcome {
    let setup = with_parked(harness).await?;
    setup.effect.set_poison(&[]);
    setup.order("a", Resolution::Replay).await?;
    assert_eq!(setup.effect.applied(), ["a:1", "a:2", "a:3"]);
    assert_eq!(setup.parked().await?, []);
    assert!(setup.effect.positions_seen.lock().ends_with(&[None, None, None]), "a replay moves no position");
    let end = setup.append(&["a:4"]).await?;
    setup.run(end).await?;
    assert_eq!(setup.effect.applied().last().map(String::as_str), Some("a:4"), "the key goes on");
    Ok(())
}

pub async fn skips_only_the_named_record(harness: &dyn ConsumerHarness) -> Outcome {
    let setup = with_parked(harness).await?;
    setup.order("a", Resolution::Skip { offset: 0 }).await?;
    assert_eq!(setup.effect.applied(), ["a:2", "a:3"]);
    assert_eq!(setup.parked().await?, []);
    let nothing = setup.parking.ask(&subscription(), &Bytes::from("a"), Resolution::Skip { offset: 0 }).await?;
    assert!(!nothing, "a key that is not parked takes no order");
    Ok(())
}

pub async fn keeps_a_key_parked_that_is_still_poison(harness: &dyn ConsumerHarness) -> Outcome {
    let setup = with_parked(harness).await?;
    setup.effect.set_poison(&["a:2"]);
    setup.order("a", Resolution::Replay).await?;
    assert_eq!(setup.effect.applied(), ["a:1"]);
    assert_eq!(setup.parked().await?, [("a".to_owned(), 1, 2)], "a:2 and a:3 wait");
    let parked = setup.parking.list(&subscription()).await?;
    assert_eq!(parked[0].reason, "a:2 is poison");
    setup.order("a", Resolution::Skip { offset: 0 }).await?;
    assert_eq!(setup.parked().await?, [("a".to_owned(), 1, 2)], "an old skip does not skip another record");
    Ok(())
}

pub async fn goes_on_with_the_key_where_records_are_skipped(harness: &dyn ConsumerHarness) -> Outcome {
    let mut setup = Setup::of(harness).await?;
    setup.options.on_poison = OnPoison::SkipRecord;
    setup.options.limits.records = 2;
    setup.effect.set_poison(&["a:2"]);
    let end = setup.append(&["a:1", "a:2", "a:3"]).await?;
    setup.run(end).await?;
    let mut applied = setup.effect.applied();
    applied.dedup(); // a:1 was beside the poison record and came twice, as the contract of effects allows.
    assert_eq!(applied, ["a:1", "a:3"]);
    assert_eq!(setup.parked().await?, []);
    assert_eq!(setup.dead_letters().await?.len(), 1);
    Ok(())
}

pub async fn holds_when_too_much_is_poison(harness: &dyn ConsumerHarness) -> Outcome {
    let mut setup = Setup::of(harness).await?;
    setup.options.max_parked_keys = 2;
    setup.effect.set_poison(&["a:1", "b:1", "c:1"]);
    setup.append(&["a:1", "b:1", "c:1"]).await?;
    let consumer = setup.consumer();
    consumer.run(until(|| consumer.retries() > 2)).await?;
    assert_eq!(setup.parked().await?.len(), 2);
    assert!(consumer.trouble().is_some_and(|reason| reason.contains("c:1 is poison")), "{:?}", consumer.trouble());
    let lag = consumer.lag().await?;
    assert_eq!((lag.records, lag.age_ms(105)), (3, 100));
    Ok(())
}

pub async fn refuses_a_log_that_is_shorter_than_its_position(harness: &dyn ConsumerHarness) -> Outcome {
    let setup = Setup::of(harness).await?;
    let end = setup.append(&["a:1"]).await?;
    setup.positions.store(&subscription(), end + 1).await?;
    let refused = setup.consumer().run(std::future::pending()).await;
    assert!(matches!(refused, Err(ConsumerError::Ahead { position, end: at, .. }) if position == end + 1 && at == end));
    Ok(())
}

pub async fn leaves_the_position_to_an_effect_that_stores_it(harness: &dyn ConsumerHarness) -> Outcome {
    let setup = Setup::of(harness).await?;
    setup.effect.stores_position.store(true, Ordering::SeqCst);
    let end = setup.append(&["a:1"]).await?;
    setup.run(end).await?;
    assert_eq!(*setup.effect.positions_seen.lock(), [Some(end)]);
    assert_eq!(setup.positions.load(&subscription()).await?, None, "the loop has stored nothing itself");
    Ok(())
}

/// The store alone: subscriptions and keys apart, order by offset, repeats harmless.
pub async fn keeps_parked_records_apart_and_in_order(harness: &dyn ConsumerHarness) -> Outcome {
    let parking = harness.parking().await?;
    let other = Subscription { consumer: "other".into(), ..subscription() };
    let record = |key: &str, offset: u64| StoredRecord {
        partition: 0,
        offset,
        key: Bytes::copy_from_slice(key.as_bytes()),
        value: Bytes::from(offset.to_string()),
        time_ms: 7,
    };
    for (of, key, offset) in
        [(&subscription(), "a", 5), (&subscription(), "a", 3), (&subscription(), "", 4), (&other, "a", 9)]
    {
        parking.park(of, &record(key, offset), "first").await?;
        parking.park(of, &record(key, offset), "again").await?;
    }
    let a = Bytes::from("a");
    assert_eq!(parking.records(&subscription(), &a).await?, [record("a", 3), record("a", 5)]);
    let mut keys = parking.list(&subscription()).await?;
    keys.sort_by_key(|key| key.offset);
    let seen: Vec<_> = keys.iter().map(|key| (text(&key.key), key.offset, key.records, key.reason.as_str())).collect();
    assert_eq!(seen, [("a".to_owned(), 3, 2, "first"), (String::new(), 4, 1, "first")]);
    assert!(parking.ask(&subscription(), &a, Resolution::Replay).await?);
    parking.resolve(&subscription(), &a, 3).await?;
    parking.keep_parked(&subscription(), &a, "now this").await?;
    let keys = parking.list(&subscription()).await?;
    let left = keys.iter().find(|key| key.key == a);
    assert!(left.is_some_and(|key| key.offset == 5 && key.asked.is_none() && key.reason == "now this"));
    parking.resolve(&subscription(), &a, 5).await?;
    assert_eq!(parking.records(&subscription(), &a).await?, []);
    assert_eq!(parking.list(&subscription()).await?.len(), 1);
    assert_eq!(parking.list(&other).await?.len(), 1);
    Ok(())
}
