//! Consumer groups on a real broker: who follows what, and what happens when that changes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use weir_runtime::units::HumanDuration;
use weir_streams::consumer::{MemoryParking, Parking, Positions};
use weir_streams::kafka::{Assignee, Group, KafkaOptions, Work};
use weir_streams::{Applied, ConsumerOptions, Delivery, Effect, EffectError, EventLog, OnPoison, Subscription, Topic};

use crate::support::{Outcome, batch, broker, is_skipped, open, text};

const PATIENCE: Duration = Duration::from_secs(60);

/// A store that outlives all members: which values each key has had, in order, counting a repeated one once.
#[derive(Debug, Default)]
struct Store {
    by_key: Mutex<BTreeMap<String, Vec<u32>>>,
    deliveries: Mutex<Vec<(u32, u64)>>,
    /// The key's records are applied only once it may go on.
    held: Mutex<BTreeMap<String, Arc<Notify>>>,
    poison: Mutex<BTreeSet<String>>,
    parking: Arc<MemoryParking>,
}

impl Store {
    /// Values of a key ascend from 0: one that skips is lost, one that goes back is a repeat.
    fn apply(&self, key: &str, value: u32) {
        let mut by_key = self.by_key.lock();
        let values = by_key.entry(key.to_owned()).or_default();
        if !values.contains(&value) {
            values.push(value);
        }
    }

    fn count(&self) -> usize {
        self.by_key.lock().values().map(Vec::len).sum()
    }
}

#[derive(Debug)]
struct Into(Arc<Store>);

#[async_trait]
impl Effect for Into {
    async fn apply(&self, delivery: Delivery<'_>) -> Result<Applied, EffectError> {
        for record in delivery.records {
            let (key, value) = (text(&record.key), text(&record.value));
            let held = self.0.held.lock().get(&key).cloned();
            if let Some(held) = held {
                held.notified().await;
            }
            if self.0.poison.lock().contains(&value) {
                return Err(EffectError::Poison { offset: record.offset, reason: format!("{value} is poison") });
            }
            self.0.deliveries.lock().push((record.partition, record.offset));
            self.0.apply(&key, value.parse().unwrap());
        }
        Ok(Applied::Effect)
    }
}

#[derive(Debug)]
struct Worker {
    store: Arc<Store>,
    given_up: Mutex<Vec<u32>>,
}

#[async_trait]
impl Assignee for Worker {
    async fn take(&self, _of: &Subscription, positions: Arc<dyn Positions>) -> Result<Work, String> {
        let parking = Arc::clone(&self.store.parking) as Arc<dyn Parking>;
        Ok(Work { effect: Arc::new(Into(Arc::clone(&self.store))), positions, parking })
    }

    async fn give_up(&self, of: &Subscription) {
        self.given_up.lock().push(of.partition);
    }
}

/// One process of the group.
struct Member {
    group: Arc<Group>,
    worker: Arc<Worker>,
    stop: watch::Sender<bool>,
    running: JoinSet<()>,
}

impl Member {
    fn join(options: &KafkaOptions, log: &Arc<dyn EventLog>, store: &Arc<Store>) -> Outcome<Self> {
        let worker = Arc::new(Worker { store: Arc::clone(store), given_up: Mutex::default() });
        let mut consumer = ConsumerOptions::new(OnPoison::ParkKey);
        consumer.first_pause = Duration::from_millis(5);
        consumer.look_every = Duration::from_millis(50);
        let assignee = Arc::clone(&worker) as Arc<dyn Assignee>;
        let group = Group::new(options, "test", Topic::Reservations, Arc::clone(log), assignee, consumer)?;
        let (stop, mut stopping) = watch::channel(false);
        let (running, of) = (JoinSet::new(), Arc::clone(&group));
        let mut member = Self { group, worker, stop, running };
        member.running.spawn(async move {
            let stopped = async move {
                let _told = stopping.wait_for(|told| *told).await.is_ok();
            };
            of.run(stopped).await.unwrap();
        });
        Ok(member)
    }

    async fn leave(mut self) {
        self.stop.send_replace(true);
        timeout(PATIENCE, self.running.join_next()).await.unwrap();
    }

    async fn holds(&self, count: usize) {
        until("partitions", || self.group.assigned_partitions().len() == count).await;
    }
}

async fn until(what: &str, done: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "no {what} within {PATIENCE:?}");
        sleep(Duration::from_millis(5)).await;
    }
}

/// R1 to R7 at offsets 0 to 6; what is applied is in order, but R4 is in flight when its partition goes to another
/// process. The committed position is not past R4, the new owner applies it, nothing is lost and nothing counts twice.
#[tokio::test(flavor = "multi_thread")]
async fn o55_a_partition_is_given_up_only_when_its_effect_is_finished_or_abandoned() -> Outcome {
    if is_skipped("o55") {
        return Ok(());
    }
    for finishes in [true, false] {
        let options = KafkaOptions {
            revoke_timeout: HumanDuration::from_ms(if finishes { 30_000 } else { 300 }),
            ..broker().installation(1).await
        };
        let log: Arc<dyn EventLog> = open(&options).await?;
        for reservation in 1..=7 {
            log.append(batch(&format!("R{reservation}"), &["0"])).durable().await?;
        }
        // A produce whose answer was lost is repeated: a copy of R2.
        log.append(batch("R2", &["0"])).durable().await?;
        let store = Arc::new(Store::default());
        let hold = Arc::new(Notify::new());
        store.held.lock().insert("R4".to_owned(), Arc::clone(&hold));

        let first = Member::join(&options, &log, &store)?;
        until("R3", || store.by_key.lock().contains_key("R3")).await;
        let (given_up, group) = (Arc::clone(&first.worker), Arc::clone(&first.group));
        let releases = async {
            if finishes {
                // While the partition is being given up: the effect that began is awaited.
                until("a partition that goes", || group.assigned_partitions().is_empty()).await;
                hold.notify_one();
            }
        };
        tokio::join!(releases, first.leave());
        assert_eq!(*given_up.given_up.lock(), [0]);

        let before = store.deliveries.lock().len();
        store.held.lock().clear();
        let second = Member::join(&options, &log, &store)?;
        until("all seven", || store.count() == 7).await;
        until("the end", || store.deliveries.lock().last() == Some(&(0, 7))).await;
        second.leave().await;
        let again: Vec<u64> = store.deliveries.lock()[before..].iter().map(|(_, offset)| *offset).collect();
        if finishes {
            assert!(before >= 4, "R4 was finished and committed before its partition went");
            assert_eq!(again, (before as u64..8).collect::<Vec<_>>());
        } else {
            assert_eq!(before, 3, "R4 was abandoned");
            assert!(again.ends_with(&[3, 4, 5, 6, 7]), "R4 comes again: {again:?}");
        }
        assert!(store.by_key.lock().values().all(|values| values.len() == 1), "each reservation once");
        log.close().await;
    }
    Ok(())
}

/// Members come and go twenty times while records flow: each key's values arrive complete and in order.
#[tokio::test(flavor = "multi_thread")]
async fn o55_twenty_rebalances_under_load_lose_nothing_and_keep_the_order_of_each_key() -> Outcome {
    const KEYS: u32 = 20;
    if is_skipped("twenty rebalances") {
        return Ok(());
    }
    // A short session makes a short heartbeat, by which members learn of each other.
    let session_timeout = HumanDuration::from_ms(1500);
    let options = KafkaOptions { session_timeout, ..broker().installation(6).await };
    let log: Arc<dyn EventLog> = open(&options).await?;
    let store = Arc::new(Store::default());
    let (done, is_done) = watch::channel(false);
    let appender = {
        let log = Arc::clone(&log);
        async move {
            let mut rounds = 0;
            while !*is_done.borrow() {
                for key in 0..KEYS {
                    log.append(batch(&format!("k{key}"), &[&rounds.to_string()])).durable().await.unwrap();
                }
                rounds += 1;
                sleep(Duration::from_millis(2)).await;
            }
            rounds
        }
    };
    let rebalances = async {
        let stays = Member::join(&options, &log, &store).unwrap();
        stays.holds(6).await;
        for _ in 0..10 {
            let comes = Member::join(&options, &log, &store).unwrap();
            comes.holds(3).await;
            comes.leave().await;
            stays.holds(6).await;
        }
        done.send_replace(true);
        stays
    };
    let (rounds, stays) = tokio::join!(appender, rebalances);
    until("all records", || store.count() == (rounds * KEYS) as usize).await;
    for (key, values) in store.by_key.lock().iter() {
        assert_eq!(*values, (0..rounds).collect::<Vec<_>>(), "{key}");
    }
    until("no lag", || stays.group.troubles().is_empty()).await;
    let lags = timeout(PATIENCE, async {
        loop {
            let lags = stays.group.lags().await.unwrap();
            if lags.iter().all(|(_, lag)| lag.records == 0 && lag.oldest_ms.is_none()) {
                return lags.len();
            }
            sleep(Duration::from_millis(20)).await;
        }
    });
    assert_eq!(lags.await?, 6);
    stays.leave().await;
    eprintln!("20 rebalances, {rounds} rounds of {KEYS} keys, {} deliveries", store.deliveries.lock().len());
    Ok(())
}

/// A key that was parked by one owner is parked for the next: later events follow it, others go on.
#[tokio::test(flavor = "multi_thread")]
async fn a_parked_key_stays_parked_over_a_rebalance() -> Outcome {
    if is_skipped("parking over a rebalance") {
        return Ok(());
    }
    let options = broker().installation(1).await;
    let log: Arc<dyn EventLog> = open(&options).await?;
    let store = Arc::new(Store::default());
    store.poison.lock().insert("100".to_owned());
    log.append(batch("bad", &["100"])).durable().await?;
    log.append(batch("good", &["0"])).durable().await?;
    let first = Member::join(&options, &log, &store)?;
    until("the good one", || store.count() == 1).await;
    until("a parked key", || first.group.consumers().first().is_some_and(|it| it.position() == 2)).await;
    first.leave().await;

    store.poison.lock().clear();
    log.append(batch("bad", &["1"])).durable().await?;
    log.append(batch("good", &["1"])).durable().await?;
    let second = Member::join(&options, &log, &store)?;
    until("the second good one", || store.count() == 2).await;
    until("its position", || second.group.consumers().first().is_some_and(|it| it.position() == 4)).await;
    assert!(!store.by_key.lock().contains_key("bad"), "{:?}", store.by_key);
    second.leave().await;
    let of = Subscription { consumer: "test".into(), topic: Topic::Reservations, partition: 0 };
    let parked = store.parking.list(&of).await?;
    assert_eq!(parked.iter().map(|key| (text(&key.key), key.records)).collect::<Vec<_>>(), [("bad".to_owned(), 2)]);
    Ok(())
}
