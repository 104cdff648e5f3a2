//! Years of traffic in a moment: a log and a ledger that grow through the real log, the real builder and its
//! checkpoints, without a gateway and a provider in front.
//!
//! Requests are spread over a month that ends now, as they are where this matters: most are behind the retry horizon, so
//! that they are lines of the ledger and nothing in memory.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

use weir_domain::attempt::AttemptOutcome;
use weir_domain::ids::{KeyId, ModelName, ReservationId, TenantId};
use weir_domain::money::Amounts;
use weir_domain::quota::BookOptions;
use weir_domain::reservation::{Created, Event};
use weir_domain::testing::{Request, of_attempt, record, request, target};
use weir_domain::usage::UsageSource;
use weir_ledger::{CheckpointOptions, LedgerBuilder, LedgerStore, SqliteLedger, start, subscription};
use weir_reconciler::corrector;
use weir_runtime::clock::SystemClock;
use weir_schemas::reservation_event::{Header, ReservationEvent};
use weir_streams::consumer::{Delivery, Effect as _, Subscription};
use weir_streams::segment::{SegmentLog, SegmentOptions};
use weir_streams::{Batch, EventLog, Limits, Position, Topic, Visibility};

use crate::catalog::key_hash;

const MONTH_MS: i64 = 30 * 24 * 60 * 60 * 1000;
/// Requests appended before the builder reads: bounds what is in memory, and what one append waits for.
const AT_A_TIME: u64 = 4_096;
/// What the builder takes at once: all of that, for one commit.
const DELIVERY: Limits = Limits { records: 6 * AT_A_TIME as usize, bytes: 64 * 1024 * 1024 };
/// The retry horizon of one process: a checkpoint that was taken with another is not used.
const OPTIONS: BookOptions = BookOptions { retry_horizon_ms: 10 * 60 * 1000 };

/// What a folder has grown to.
#[derive(Debug)]
pub struct Grown {
    /// A reservation of a month ago, and one of just now.
    pub oldest: ReservationId,
    pub newest: ReservationId,
    pub lines: u64,
}

/// The name of the tenant of number `n`.
#[must_use]
pub fn tenant(n: u64) -> String {
    format!("tenant-{n:06}")
}

/// The key of tenant `n`, as its client presents it.
#[must_use]
pub fn key(n: u64) -> String {
    format!("weir_live_{n:034}")
}

/// Entries of a catalog: `tenants` tenants with a key each.
#[must_use]
pub fn tenants(tenants: u64) -> String {
    let entry = |n| {
        let (tenant, hash) = (tenant(n), key_hash(&key(n)));
        format!(
            "\n[[tenant]]\nname = \"{tenant}\"\n[[key]]\nname = \"main\"\ntenant = \"{tenant}\"\nhash = \"{hash}\"\n"
        )
    };
    (0..tenants).map(entry).collect()
}

/// Adds `lines` settled requests, spread evenly over `owners`, to the data folder of a process that does not run.
pub async fn grow(data: &Path, owners: &[(TenantId, KeyId)], lines: u64) -> Grown {
    let log = Arc::new(SegmentLog::open(SegmentOptions::new(data.join("log"))).expect("the log opens"));
    let store = SqliteLedger::open(&data.join("ledger.sqlite")).expect("the ledger opens");
    let store: Arc<dyn LedgerStore> = Arc::new(store);
    let clock = SystemClock::shared();
    let from_ms = clock.now_ms() - MONTH_MS;
    let folded = start(&*log, &store, OPTIONS).await.expect("the log folds").at_builder;
    let mut read = folded.positions.get(&0).copied().unwrap_or(0);
    let events: Arc<dyn EventLog> = Arc::clone(&log) as Arc<dyn EventLog>;
    let builder = LedgerBuilder::new(folded, events, Arc::clone(&store), clock, CheckpointOptions::default());
    let at = |n: u64| {
        from_ms
            + i64::try_from(u128::from(n) * u128::from(MONTH_MS.unsigned_abs()) / u128::from(lines)).expect("a time")
    };
    let mut due = (0..lines).zip(owners.iter().cycle()).peekable();
    while due.peek().is_some() {
        let some = due.by_ref().take(usize::try_from(AT_A_TIME).expect("a number"));
        let appends: Vec<_> = some.map(|(n, owner)| log.append(settled(&created(n, owner, at(n))))).collect();
        for append in appends {
            append.durable().await.expect("an append is durable");
        }
        read = build(&log, &builder, &store, read).await;
    }
    builder.checkpoint().await.expect("a checkpoint is taken");
    // The counters come from the same fold: the corrector has nothing to do.
    let consumer = Arc::from(corrector::CONSUMER);
    let of_corrector = Subscription { consumer, topic: Topic::Ledger, partition: 0 };
    let end = log.offsets(Topic::Ledger, 0).await.expect("the log has an end").written;
    store.store(&of_corrector, end).await.expect("a position is stored");
    log.close().await;
    let last = lines - 1;
    Grown { oldest: id(0, at(0)), newest: id(last, at(last)), lines }
}

/// Everything appended, as the consumer's loop delivers it.
async fn build(log: &SegmentLog, builder: &LedgerBuilder, store: &Arc<dyn LedgerStore>, mut read: u64) -> u64 {
    loop {
        let at = Position { topic: Topic::Reservations, partition: 0, offset: read };
        let records = log.read(at, DELIVERY, Visibility::Durable).await.expect("the log is read");
        let Some(last) = records.last() else { return read };
        read = last.offset + 1;
        let delivery = Delivery { subscription: &subscription(0), records: &records, position: Some(read) };
        builder.apply(delivery).await.expect("the builder applies");
        store.store(&subscription(0), read).await.expect("a position is stored");
    }
}

fn id(n: u64, at_ms: i64) -> ReservationId {
    let mut bytes = [0; 16];
    bytes[..6].copy_from_slice(&at_ms.to_be_bytes()[2..]);
    (bytes[6], bytes[8]) = (0x70, 0x80);
    bytes[10..].copy_from_slice(&n.to_be_bytes()[2..]);
    ReservationId::from_bytes(bytes)
}

fn created(n: u64, (tenant, key): &(TenantId, KeyId), at_ms: i64) -> Arc<Created> {
    let model = ModelName::new("fast");
    let asked =
        Request { id: id(n, at_ms), tenant: tenant.clone(), team: None, key: key.clone(), model, at_ms, ..request(1) };
    Arc::new(asked.created())
}

/// All that a plain request leaves on the log.
fn settled(created: &Arc<Created>) -> Batch {
    let hold = Amounts { requests: 0, ..created.hold };
    let used =
        record(UsageSource::Response, Amounts { requests: created.hold.requests, ..of_attempt(410, "0.0082") }, "");
    let charged = used.charge;
    let events = [
        Event::ReservationCreated(Arc::clone(created)),
        Event::AttemptStarted { number: 1, hold, target: target("fast-0") },
        Event::AttemptCorrelated { number: 1, provider_id: format!("chatcmpl-{}", created.id) },
        Event::UsageRecorded { number: 1, record: used },
        Event::AttemptClosed { number: 1, outcome: AttemptOutcome::Executed },
        Event::ReservationSettled { charged },
    ];
    let at_ms = created.admitted_at_ms;
    let frame = |event| {
        let header = Header {
            reservation: created.id,
            recorded_at_us: at_ms * 1000,
            region: "eu".into(),
            tenant: created.tenant.clone(),
            key: created.key.clone(),
            snapshot_version: 1,
            trace_id: None,
        };
        let mut frame = Vec::new();
        let event = ReservationEvent::new(header, event).expect("an event of the log");
        event.encode(&mut frame).expect("an event can be written");
        Bytes::from(frame)
    };
    let frames: Vec<Bytes> = events.into_iter().map(frame).collect();
    Batch::new(Topic::Reservations, Bytes::copy_from_slice(created.id.as_bytes()), at_ms, frames)
}
