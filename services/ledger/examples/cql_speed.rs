//! What a CQL server takes, and what the ledger's builder makes of it, in one run:
//!
//! ```sh
//! deploy/dev/stack/cassandra.sh DIR start
//! cargo run --release -p weir-ledger --features cql,conformance --example cql_speed -- 127.0.0.1:19042
//! ```
//!
//! Bare inserts are of the ledger's own table and of a row like its own, conditional and plain, 64 at a time. The
//! builder gets the records of plain requests (six events, one line each): at the tail in deliveries of 192 records,
//! and from a backlog in large ones, where a request's two batches meet in one delivery.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use scylla::statement::Consistency;
use scylla::statement::prepared::PreparedStatement;
use uuid::Uuid;

use weir_domain::quota::BookOptions;
use weir_ledger::conformance::traffic::requests;
use weir_ledger::cql::{CqlLedger, CqlOptions, migrate};
use weir_ledger::{CheckpointOptions, LedgerBuilder, LedgerStore, start, subscription};
use weir_runtime::clock::SystemClock;
use weir_runtime::entropy::{Entropy as _, OsEntropy};
use weir_streams::consumer::{Delivery, Effect as _};
use weir_streams::segment::{SegmentLog, SegmentOptions};
use weir_streams::{Append, EventLog, Limits, Position, StoredRecord, Topic, Visibility};

const AT_A_TIME: usize = 64;
const ROUNDS: u64 = 2;
const OF_BARE_INSERTS: Duration = Duration::from_secs(4);
const REQUESTS: u64 = 3_000;

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<(), Failure> {
    let node = std::env::args().nth(1).ok_or("say where the server is: HOST:PORT")?;
    let run = Uuid::from_bytes(random_16());
    let keyspace = format!("speed_{}", &run.simple().to_string()[..12]);
    let options = CqlOptions { nodes: vec![node.clone()], keyspace, replicas: 1, ..CqlOptions::default() };
    migrate(&options, &run.to_string()).await?;
    let session = SessionBuilder::new().known_node(node).use_keyspace(&options.keyspace, false).build().await?;
    // The best of each: whatever else the machine did meanwhile slows, and never hastens.
    let mut best = [0; 3];
    for round in 0..ROUNDS {
        let conditional = bare(&session, " IF NOT EXISTS").await?;
        let plain = bare(&session, "").await?;
        let tail = builder(&options, round * 2, 192).await?;
        let backlog = builder(&options, round * 2 + 1, 8_192).await?;
        for (best, found) in best.iter_mut().zip([conditional, plain, backlog]) {
            *best = found.max(*best);
        }
        println!("round {round}: bare conditional inserts {conditional}/s, plain {plain}/s");
        for (what, rate) in [("at the tail", tail), ("from a backlog", backlog)] {
            let (of_conditional, of_plain) = (rate * 100 / conditional, rate * 100 / plain);
            println!(
                "  builder {what}: {rate} requests/s, {} events/s; its lines are {of_conditional} % of bare conditional \
                 inserts, {of_plain} % of plain ones",
                rate * 6
            );
        }
    }
    println!("figure cql_conditional_inserts {}", best[0]);
    println!("figure cql_plain_inserts {}", best[1]);
    println!("figure cql_builder_alone {}", best[2]);
    session.query_unpaged(format!("DROP KEYSPACE {}", options.keyspace), ()).await?;
    Ok(())
}

/// Rows a second.
async fn bare(session: &Session, condition: &str) -> Result<u64, Failure> {
    let insert = "INSERT INTO reservations (reservation, attempt, seq, cut, created, line, requests, tokens, nusd) \
                  VALUES (?, 1, 0, 0, ?, ?, 1, 100, 82200000)";
    let mut insert: PreparedStatement = session.prepare(format!("{insert}{condition}")).await?;
    insert.set_consistency(Consistency::LocalQuorum);
    let (created, line) = ("c".repeat(800), "l".repeat(400));
    let (until, done) = (Instant::now() + OF_BARE_INSERTS, AtomicU64::new(0));
    let writer = || async {
        while Instant::now() < until {
            let id = Uuid::from_bytes(random_16());
            session.execute_unpaged(&insert, (id, created.as_str(), line.as_str())).await?;
            done.fetch_add(1, Ordering::Relaxed);
        }
        Ok::<(), Failure>(())
    };
    try_join_all((0..AT_A_TIME).map(|_| writer())).await?;
    Ok(done.into_inner() / OF_BARE_INSERTS.as_secs())
}

/// Requests a second, from records to positions.
async fn builder(options: &CqlOptions, part: u64, records_per_delivery: usize) -> Result<u64, Failure> {
    let folder = tempfile::tempdir()?;
    let log = Arc::new(SegmentLog::open(SegmentOptions::new(folder.path().join("log")))?);
    let batches = requests(part * REQUESTS, REQUESTS, AT_A_TIME)?;
    let appends: Vec<Append> = batches.into_iter().map(|batch| log.append(batch)).collect();
    for append in appends {
        append.durable().await?;
    }
    let records = read(&log).await?;
    let store: Arc<dyn LedgerStore> = Arc::new(CqlLedger::open(options, SystemClock::shared()).await?);
    store.store(&subscription(0), 0).await?;
    let folded = start(&*log, &store, BookOptions::default()).await?.at_builder;
    let never = CheckpointOptions { every_events: u64::MAX, every_ms: i64::MAX, keep: 1 };
    let log = log as Arc<dyn EventLog>;
    let builder = LedgerBuilder::new(folded, log, Arc::clone(&store), SystemClock::shared(), never);
    let begun = Instant::now();
    for records in records.chunks(records_per_delivery) {
        let position = records.last().map(|record| record.offset + 1);
        builder.apply(Delivery { subscription: &subscription(0), records, position }).await?;
        store.store(&subscription(0), position.unwrap_or(0)).await?;
    }
    let spent_ms = u64::try_from(begun.elapsed().as_millis())?.max(1);
    Ok(REQUESTS * 1000 / spent_ms)
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

fn random_16() -> [u8; 16] {
    let mut bytes = [0; 16];
    OsEntropy.fill(&mut bytes);
    bytes
}
