//! What stands above the contract (builder, checkpoints, verification, export), on the real server and on a file:
//! the same, to the last byte.

use std::sync::Arc;

use weir_domain::quota::BookOptions;
use weir_ledger::conformance::Outcome;
use weir_ledger::conformance::traffic::{admitted, requests};
use weir_ledger::export::{ExportFormat, ExportRange, export};
use weir_ledger::verify::{VerifyOptions, verify_folder};
use weir_ledger::{CheckpointOptions, LedgerBuilder, LedgerStore, SqliteLedger, start, subscription};
use weir_runtime::clock::SystemClock;
use weir_streams::consumer::{Delivery, Effect as _};
use weir_streams::segment::{SegmentLog, SegmentOptions};
use weir_streams::{EventLog, Limits, Position, Topic, Visibility};

use crate::support::{Failure, is_skipped, turn};

const REQUESTS: u64 = 150;
/// Of one request.
const EVENTS: u64 = 6;
const OPTIONS: BookOptions = BookOptions { retry_horizon_ms: 600_000 };
const ONLY_ASKED: CheckpointOptions = CheckpointOptions { every_events: u64::MAX, every_ms: i64::MAX, keep: 2 };

/// Builds what the log has got behind the store's position, takes a checkpoint, and gives how much the start folded.
async fn build(log: &Arc<SegmentLog>, store: &Arc<dyn LedgerStore>) -> Result<u64, Failure> {
    let started = start(&**log, store, OPTIONS).await?;
    let folded_at_start = started.replayed_events;
    let (of, log) = (subscription(0), Arc::clone(log) as Arc<dyn EventLog>);
    let clock = SystemClock::shared();
    let builder = LedgerBuilder::new(started.at_builder, Arc::clone(&log), Arc::clone(store), clock, ONLY_ASKED);
    loop {
        let offset = store.load(&of).await?.unwrap_or(0);
        let at = Position { topic: Topic::Reservations, partition: 0, offset };
        let records = log.read(at, Limits { records: 97, ..Limits::default() }, Visibility::Durable).await?;
        let Some(last) = records.last() else { break };
        let position = last.offset + 1;
        builder.apply(Delivery { subscription: &of, records: &records, position: Some(position) }).await?;
        store.store(&of, position).await?;
    }
    builder.checkpoint().await?;
    Ok(folded_at_start)
}

async fn exported(store: &dyn LedgerStore) -> Result<Vec<u8>, Failure> {
    let mut out = Vec::new();
    let range = ExportRange { tenant: "acme".into(), from_ms: i64::MIN, until_ms: i64::MAX };
    let exported = export(store, &range, ExportFormat::Csv, &mut out).await?;
    assert_eq!(exported.lines, 2 * REQUESTS);
    Ok(out)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i13_builder_checkpoint_verification_and_export_are_those_of_a_file() -> Outcome {
    if is_skipped("the builder") {
        return Ok(());
    }
    let turn = turn().await?;
    let folder = tempfile::tempdir()?;
    let log_folder = folder.path().join("log");
    let log = Arc::new(SegmentLog::open(SegmentOptions::new(log_folder.clone()))?);
    let on_file: Arc<dyn LedgerStore> = Arc::new(SqliteLedger::open(&folder.path().join("ledger.db"))?);
    let on_server: Arc<dyn LedgerStore> = turn.server.ledger().await?;
    for part in 0..2 {
        for batch in requests(part * REQUESTS, REQUESTS, 40)? {
            log.append(batch).durable().await?;
        }
        for store in [&on_file, &on_server] {
            let folded = build(&log, store).await?;
            assert_eq!(folded, EVENTS * REQUESTS, "a start folds the tail behind its checkpoint and nothing else");
        }
    }
    let on_server: Arc<dyn LedgerStore> = turn.server.ledger().await?;
    let options = VerifyOptions { book: OPTIONS, counters: None, most_differences: 10 };
    let report = verify_folder(&log_folder, &*on_server, options).await?;
    assert!(report.agrees(), "{report}");
    assert_eq!((report.lines, report.not_built_yet), (2 * REQUESTS, 0));
    assert_eq!(exported(&*on_server).await?, exported(&*on_file).await?);
    let id = admitted(7).id;
    assert_eq!(on_server.find(id).await?, on_file.find(id).await?);
    log.close().await;
    Ok(())
}
