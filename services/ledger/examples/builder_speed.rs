//! What a plain request costs the ledger, part by part:
//! `cargo run --release -p weir-ledger --features conformance --example builder_speed`.
//!
//! A request is six events in two batches, and 64 requests run at a time. Figures are processor time, the best of
//! several rounds, since the machine is shared: of decoding and folding alone, then of all that the builder does, with
//! the threads that it does it on.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;

use weir_domain::fold::Fold;
use weir_domain::ledger::SourcePosition;
use weir_domain::quota::BookOptions;
use weir_ledger::conformance::scene;
use weir_ledger::conformance::traffic::requests;
use weir_ledger::{CheckpointOptions, LedgerBuilder, LedgerStore, SqliteLedger, start, subscription};
use weir_runtime::clock::ManualClock;
use weir_schemas::reservation_event::ReservationEvent;
use weir_streams::consumer::{Delivery, Effect as _};
use weir_streams::segment::{SegmentLog, SegmentOptions};
use weir_streams::{Append, EventLog, Limits, Position, StoredRecord, Topic, Visibility};

const ROUNDS: usize = 5;
const REQUESTS: u64 = 6_400;
const AT_A_TIME: usize = 64;
/// One delivery: what 64 connections append while the one before it is stored.
const RECORDS_PER_DELIVERY: usize = 192;

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let mut best: BTreeMap<String, u64> = BTreeMap::new();
    for _ in 0..ROUNDS {
        for (part, nanos) in round().await? {
            best.entry(part).and_modify(|known| *known = (*known).min(nanos)).or_insert(nanos);
        }
    }
    for (part, nanos) in best {
        println!("{part:<28} {nanos:>7} ns of processor time per request");
    }
    Ok(())
}

async fn round() -> Result<Vec<(String, u64)>, Failure> {
    let folder = tempfile::tempdir()?;
    let log = Arc::new(SegmentLog::open(SegmentOptions::new(folder.path().join("log")))?);
    let appends: Vec<Append> = requests(0, REQUESTS, AT_A_TIME)?.into_iter().map(|batch| log.append(batch)).collect();
    for append in appends {
        append.durable().await?;
    }
    let records = read(&log).await?;
    let mut figures = Vec::new();

    let begun = processor_time()?;
    let events = records.iter().map(|record| ReservationEvent::decode(&record.value)).collect::<Result<Vec<_>, _>>()?;
    figures.push(("decode".to_owned(), per_request(total(&spent_since(&begun)?))));

    let mut fold = Fold::new(BookOptions::default());
    let begun = processor_time()?;
    for (offset, event) in (0..).zip(&events) {
        let source = SourcePosition { partition: 0, offset };
        let header = event.header();
        black_box(fold.absorb(source, header.reservation, event.event(), header.recorded_at_ms())?);
    }
    figures.push(("fold".to_owned(), per_request(total(&spent_since(&begun)?))));

    let store: Arc<dyn LedgerStore> = Arc::new(SqliteLedger::open(&folder.path().join("ledger.db"))?);
    let folded = start(&*log, &store, BookOptions::default()).await?.at_builder;
    let clock = Arc::new(ManualClock::at_ms(scene::NOON_MS));
    let never = CheckpointOptions { every_events: u64::MAX, every_ms: i64::MAX, keep: 1 };
    let builder = LedgerBuilder::new(folded, Arc::clone(&log) as Arc<dyn EventLog>, Arc::clone(&store), clock, never);
    let begun = processor_time()?;
    for records in records.chunks(RECORDS_PER_DELIVERY) {
        let position = records.last().map(|record| record.offset + 1);
        builder.apply(Delivery { subscription: &subscription(0), records, position }).await?;
        store.store(&subscription(0), position.unwrap_or(0)).await?;
    }
    let spent = spent_since(&begun)?;
    figures.push(("builder".to_owned(), per_request(total(&spent))));
    figures.extend(spent.into_iter().map(|(thread, nanos)| (format!("builder: {thread}"), per_request(nanos))));
    Ok(figures)
}

async fn read(log: &SegmentLog) -> Result<Vec<StoredRecord>, Failure> {
    let mut records: Vec<StoredRecord> = Vec::new();
    loop {
        let at = Position { topic: Topic::Reservations, partition: 0, offset: records.len() as u64 };
        let more = log.read(at, Limits::default(), Visibility::Durable).await?;
        if more.is_empty() {
            return Ok(records);
        }
        records.extend(more);
    }
}

/// Nanoseconds of each thread of this process so far, from the scheduler's own account.
fn processor_time() -> Result<BTreeMap<String, u64>, Failure> {
    let mut spent = BTreeMap::new();
    for thread in std::fs::read_dir("/proc/self/task")? {
        let folder = thread?.path();
        let account = std::fs::read_to_string(folder.join("schedstat"))?;
        let nanos = account.split_whitespace().next().map_or(Ok(0), str::parse::<u64>)?;
        *spent.entry(std::fs::read_to_string(folder.join("comm"))?.trim().to_owned()).or_default() += nanos;
    }
    Ok(spent)
}

fn spent_since(begun: &BTreeMap<String, u64>) -> Result<BTreeMap<String, u64>, Failure> {
    let now = processor_time()?.into_iter();
    Ok(now.map(|(thread, nanos)| (thread.clone(), nanos - begun.get(&thread).unwrap_or(&0))).collect())
}

fn total(spent: &BTreeMap<String, u64>) -> u64 {
    spent.values().sum()
}

const fn per_request(nanos: u64) -> u64 {
    nanos / REQUESTS
}
