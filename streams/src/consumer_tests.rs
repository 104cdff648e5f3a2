//! The consumer loop over the embedded log, with stores in memory.

use std::error::Error;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::time::timeout;

use super::*;
use crate::append::Append;
use crate::conformance::PATIENCE;
use crate::conformance::consumer::ConsumerHarness;
use crate::consumer_conformance;
use crate::contract::{Batch, EventLog, Health, Limits, Offsets, Position, ReadError, Visibility};
use crate::segment::{SegmentLog, SegmentOptions};
use crate::topics::OnPoison;

struct InMemory {
    _folder: tempfile::TempDir,
    log: Arc<SegmentLog>,
    positions: Arc<MemoryPositions>,
    parking: Arc<MemoryParking>,
}

#[async_trait]
impl ConsumerHarness for InMemory {
    async fn log(&self) -> Result<Arc<dyn EventLog>, Box<dyn Error + Send + Sync>> {
        Ok(Arc::clone(&self.log) as Arc<dyn EventLog>)
    }

    async fn positions(&self) -> Result<Arc<dyn Positions>, Box<dyn Error + Send + Sync>> {
        Ok(Arc::clone(&self.positions) as Arc<dyn Positions>)
    }

    async fn parking(&self) -> Result<Arc<dyn Parking>, Box<dyn Error + Send + Sync>> {
        Ok(Arc::clone(&self.parking) as Arc<dyn Parking>)
    }
}

async fn fresh() -> InMemory {
    let folder = tempfile::tempdir().unwrap();
    let log = Arc::new(SegmentLog::open(SegmentOptions::new(folder.path())).unwrap());
    InMemory { _folder: folder, log, positions: Arc::default(), parking: Arc::default() }
}

consumer_conformance!(fresh);

#[test]
fn a_dead_letter_reads_as_it_was_written() {
    let value = Bytes::from_static(b"\x00\nbinary\n");
    let record = StoredRecord { partition: 3, offset: 17, key: "k".into(), value, time_ms: 5 };
    let letter = DeadLetter::of("ledger", Topic::Ledger, &record, "of two\nlines");
    let batch = letter.clone().into_batch().unwrap();
    assert_eq!((batch.topic, &batch.key, batch.time_ms), (Topic::LedgerDeadLetters, &record.key, 5));
    let stored = StoredRecord { partition: 0, offset: 0, value: batch.values[0].clone(), ..record };
    assert_eq!(DeadLetter::parse(&stored), Ok(letter));
    let of = |text: &'static str| DeadLetter::parse(&StoredRecord { value: text.into(), ..stored.clone() });
    assert!(matches!(of("no end"), Err(DeadLetterError::Head(_))));
    assert!(matches!(of("{}\n"), Err(DeadLetterError::Head(_))));
    let later = r#"{"v":2,"consumer":"c","topic":"usage","partition":0,"offset":0,"time_ms":0,"reason":""}"#;
    let later: &'static str = Box::leak(format!("{later}\n").into_boxed_str());
    assert_eq!(of(later), Err(DeadLetterError::Version(2)));
}

/// A log with a bug: it wakes its readers and has nothing for them, then cannot even say where it ends.
#[derive(Debug)]
struct WakesForNothing {
    log: SegmentLog,
    reads: Mutex<u32>,
    asked: Mutex<u32>,
}

#[async_trait]
impl EventLog for WakesForNothing {
    fn append(&self, batch: Batch) -> Append {
        self.log.append(batch)
    }

    async fn read(&self, _: Position, _: Limits, _: Visibility) -> Result<Vec<StoredRecord>, ReadError> {
        *self.reads.lock() += 1;
        assert!(*self.reads.lock() < 100, "a busy loop");
        Ok(Vec::new())
    }

    async fn wait(&self, _: Position, _: Visibility) -> Result<(), ReadError> {
        Ok(())
    }

    async fn offsets(&self, topic: Topic, partition: u32) -> Result<Offsets, ReadError> {
        *self.asked.lock() += 1;
        if *self.asked.lock() < 3 {
            return Err(ReadError::Io { file: "broker".to_owned(), source: std::io::ErrorKind::TimedOut.into() });
        }
        self.log.offsets(topic, partition).await
    }

    fn partitions(&self, topic: Topic) -> u32 {
        self.log.partitions(topic)
    }

    fn health(&self) -> Health {
        self.log.health()
    }

    async fn close(&self) {
        self.log.close().await;
    }
}

struct Nothing;

#[async_trait]
impl Effect for Nothing {
    async fn apply(&self, _: Delivery<'_>) -> Result<Applied, EffectError> {
        Ok(Applied::Effect)
    }
}

#[tokio::test(start_paused = true)]
async fn a_log_that_wakes_for_nothing_is_asked_with_pauses() {
    let folder = tempfile::tempdir().unwrap();
    let log = SegmentLog::open(SegmentOptions::new(folder.path())).unwrap();
    let log = Arc::new(WakesForNothing { log, reads: Mutex::new(0), asked: Mutex::new(0) });
    let subscription = Subscription { consumer: "test".into(), topic: Topic::Usage, partition: 0 };
    let (positions, parking) = (Arc::<MemoryPositions>::default(), Arc::<MemoryParking>::default());
    let options = ConsumerOptions::new(OnPoison::SkipRecord);
    let consumer = Consumer::new(
        subscription,
        Arc::clone(&log) as Arc<dyn EventLog>,
        Arc::new(Nothing),
        positions,
        parking,
        options,
    );
    consumer.run(tokio::time::sleep(std::time::Duration::from_secs(20))).await.unwrap();
    assert_eq!(*log.asked.lock(), 3, "a log that is away at the start is asked again");
    assert!((5..20).contains(&*log.reads.lock()), "{:?}", log.reads);
    assert!(consumer.trouble().is_some());
}

/// An effect that remembers the sizes of deliveries.
#[derive(Default)]
struct Sizes(Mutex<Vec<usize>>);

#[async_trait]
impl Effect for Sizes {
    async fn apply(&self, delivery: Delivery<'_>) -> Result<Applied, EffectError> {
        self.0.lock().push(delivery.records.len());
        Ok(Applied::Effect)
    }
}

/// A consumer whose full delivery are three records.
fn gathering(setup: &InMemory, gather: Duration) -> (Consumer, Arc<Sizes>) {
    let sizes = Arc::<Sizes>::default();
    let mut options = ConsumerOptions { gather, ..ConsumerOptions::new(OnPoison::SkipRecord) };
    options.limits.records = 3;
    let subscription = Subscription { consumer: "test".into(), topic: Topic::Usage, partition: 0 };
    let (log, effect) = (Arc::clone(&setup.log) as Arc<dyn EventLog>, Arc::clone(&sizes) as Arc<dyn Effect>);
    let (positions, parking) = (Arc::clone(&setup.positions), Arc::clone(&setup.parking));
    (Consumer::new(subscription, log, effect, positions, parking, options), sizes)
}

/// Looks at the position rather than waiting in `reached`, which would end the gathering.
async fn until_position(consumer: &Consumer, position: u64) {
    let looks = async {
        while consumer.position() < position {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(PATIENCE, looks).await.unwrap_or_else(|_| panic!("stands at {}", consumer.position()));
}

#[tokio::test]
async fn records_gather_at_the_tail_and_nowhere_else() {
    let setup = fresh().await;
    // Whatever is delivered before the end was not gathered.
    let (consumer, sizes) = gathering(&setup, Duration::from_secs(3600));
    let log = &setup.log;
    let append = async |records: usize| {
        for _ in 0..records {
            log.append(Batch::new(Topic::Usage, "key", 0, vec!["value".into()])).durable().await.unwrap();
        }
    };
    append(6).await;
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = async { consumer.run(async { drop(stopped.await) }).await.unwrap() };
    let driving = async {
        until_position(&consumer, 6).await;
        assert_eq!(*sizes.0.lock(), [3, 3], "catching up");
        append(2).await;
        timeout(PATIENCE, consumer.reached(8)).await.expect("who waits need not wait for the gathering");
        assert_eq!(*sizes.0.lock(), [3, 3, 2], "gathered");
        append(3).await;
        until_position(&consumer, 11).await;
        assert_eq!(*sizes.0.lock(), [3, 3, 2, 3], "a full delivery does not wait");
        append(1).await;
        stop.send(()).unwrap();
    };
    timeout(PATIENCE, async { tokio::join!(running, driving) }).await.expect("a stop need not wait either");
    assert_eq!(*sizes.0.lock(), [3, 3, 2, 3]);
}

#[tokio::test(start_paused = true)]
async fn a_record_after_silence_is_delivered_at_once() {
    let setup = fresh().await;
    let (consumer, sizes) = gathering(&setup, Duration::from_secs(60));
    let log = &setup.log;
    consumer
        .run(async {
            for (silence, position) in [(0, 1), (60, 2)] {
                tokio::time::advance(Duration::from_secs(silence)).await;
                let began = tokio::time::Instant::now();
                log.append(Batch::new(Topic::Usage, "key", 0, vec!["value".into()])).durable().await.unwrap();
                until_position(&consumer, position).await;
                assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
            }
        })
        .await
        .unwrap();
    assert_eq!(*sizes.0.lock(), [1, 1]);
}
