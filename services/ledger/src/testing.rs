//! Random lives of reservations on a real log, for the tests of this crate.
//!
//! Every life is a list of batches at their times; lives overlap, batches come again at any distance (with the time of
//! the original, as a spool would forward them), reports come late, and the retry horizon is short enough that most
//! reservations have left the fold by then. A seed gives the same log on every machine.

use std::sync::Arc;

use bytes::Bytes;
use tempfile::TempDir;

use weir_domain::attempt::AttemptOutcome;
use weir_domain::calendar::{self, Zone};
use weir_domain::money::{Amounts, NanoUsd};
use weir_domain::quota::BookOptions;
use weir_domain::reservation::{Created, Event, IdempotencyRecord, PendCause, UsageRecord};
use weir_domain::testing::Dice;
use weir_domain::usage::UsageSource;
use weir_runtime::clock::ManualClock;
use weir_schemas::reservation_event::{Header, ReservationEvent};
use weir_streams::consumer::{Delivery, Effect, EffectError};
use weir_streams::segment::{SegmentLog, SegmentOptions};
use weir_streams::{Batch, EventLog, Limits, Position, StoredRecord, Topic, Visibility};

use crate::conformance::scene;
use crate::{CheckpointOptions, Folded, LedgerBuilder, LedgerStore, SqliteLedger, Started, start, subscription};

pub const HORIZON_MS: i64 = 10 * 60 * 1000;
pub const OPTIONS: BookOptions = BookOptions { retry_horizon_ms: HORIZON_MS };
/// Only when asked for.
pub const NO_CHECKPOINTS: CheckpointOptions = CheckpointOptions { every_events: u64::MAX, every_ms: i64::MAX, keep: 3 };

/// A log and a ledger in one folder.
pub struct Place {
    pub folder: TempDir,
    pub log: Arc<SegmentLog>,
    pub store: Arc<dyn LedgerStore>,
}

impl Place {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let log = Arc::new(SegmentLog::open(SegmentOptions::new(folder.path().join("log"))).unwrap());
        let store = Arc::new(SqliteLedger::open(&folder.path().join("ledger.db")).unwrap());
        Self { folder, log, store }
    }

    /// The same log, opened again as after a stop.
    pub async fn reopen_log(&mut self) {
        self.log.close().await;
        self.log = Arc::new(SegmentLog::open(SegmentOptions::new(self.folder.path().join("log"))).unwrap());
    }

    /// Appends all batches and waits until they are durable.
    pub async fn append(&self, batches: &[Batch]) {
        let appends: Vec<_> = batches.iter().map(|batch| self.log.append(batch.clone())).collect();
        for append in appends {
            append.durable().await.unwrap();
        }
    }

    pub async fn records(&self, topic: Topic) -> Vec<StoredRecord> {
        let mut records: Vec<StoredRecord> = Vec::new();
        loop {
            let offset = records.len() as u64;
            let at = Position { topic, partition: 0, offset };
            let more = self.log.read(at, Limits::default(), Visibility::Durable).await.unwrap();
            if more.is_empty() {
                return records;
            }
            records.extend(more);
        }
    }

    pub async fn start(&self) -> Started {
        start(&*self.log, &self.store, OPTIONS).await.unwrap()
    }

    pub fn builder(&self, folded: Folded) -> LedgerBuilder {
        let log: Arc<dyn EventLog> = Arc::clone(&self.log) as Arc<dyn EventLog>;
        let clock = Arc::new(ManualClock::at_ms(scene::NOON_MS));
        LedgerBuilder::new(folded, log, Arc::clone(&self.store), clock, NO_CHECKPOINTS)
    }

    /// Applies `records` as one delivery and stores the position, as the consumer's loop does.
    pub async fn deliver(&self, builder: &LedgerBuilder, records: &[StoredRecord]) -> Result<(), EffectError> {
        apply(builder, records).await?;
        if let Some(last) = records.last() {
            self.store.store(&subscription(0), last.offset + 1).await.unwrap();
        }
        Ok(())
    }

    /// Delivers everything from the stored position on, in pieces of random size.
    pub async fn deliver_all(&self, builder: &LedgerBuilder, dice: &mut Dice) {
        let records = self.records(Topic::Reservations).await;
        let from = self.store.load(&subscription(0)).await.unwrap().unwrap_or(0);
        let mut rest = &records[usize::try_from(from).unwrap()..];
        while !rest.is_empty() {
            let (piece, others) = rest.split_at(piece(rest.len(), dice));
            self.deliver(builder, piece).await.unwrap();
            rest = others;
        }
    }

    /// Every row of the ledger as text, whatever order it was written in.
    pub fn rows(&self) -> Vec<String> {
        let shell = rusqlite::Connection::open(self.folder.path().join("ledger.db")).unwrap();
        let mut rows = Vec::new();
        for sql in [
            "SELECT lower(hex(id)), status, status_since_ms, due_ms, held_tokens, held_nusd, escalated, flagged, attempts,
                 last_offset, tenant, details FROM reservations ORDER BY id",
            "SELECT lower(hex(reservation)), attempt, seq, source, cause, usage, record_nusd, amount_requests,
                 amount_tokens, amount_nusd, total_nusd, corrects, flagged, posted_at_ms, log_offset, deployment
             FROM lines ORDER BY reservation, attempt, seq",
            "SELECT reservation, log_offset, kind, attempt, recorded_at FROM v_events ORDER BY 1, 2",
        ] {
            let mut statement = shell.prepare(sql).unwrap();
            let width = statement.column_count();
            let texts = statement.query_map([], |row| {
                let columns = (0..width).map(|at| row.get::<_, rusqlite::types::Value>(at));
                columns.map(|value| Ok(format!("{:?}", value?))).collect::<rusqlite::Result<Vec<_>>>()
            });
            rows.extend(texts.unwrap().map(|columns| columns.unwrap().join(" ")));
        }
        rows
    }

    /// A ledger made of the log as it is, with every checkpoint and position forgotten.
    pub async fn build_all(&self) -> LedgerBuilder {
        let builder = self.builder(self.start().await.at_builder);
        let records = self.records(Topic::Reservations).await;
        for piece in records.chunks(1000) {
            self.deliver(&builder, piece).await.unwrap();
        }
        builder
    }
}

/// Applies without storing a position: what a process that is killed behind its effect leaves.
pub async fn apply(builder: &LedgerBuilder, records: &[StoredRecord]) -> Result<(), EffectError> {
    let Some(last) = records.last() else { return Ok(()) };
    let position = Some(last.offset + 1);
    builder.apply(Delivery { subscription: &subscription(0), records, position }).await.map(|_| ())
}

pub fn piece(most: usize, dice: &mut Dice) -> usize {
    let wished = if dice.chance(50) { dice.below(4) } else { dice.below(200) };
    usize::try_from(wished + 1).unwrap().min(most)
}

/// The batch that puts `events` of `created` on the log at `at_ms`.
pub fn batch(created: &Created, at_ms: i64, events: Vec<Event>) -> Batch {
    let values = events.into_iter().map(|event| {
        let header = Header {
            reservation: created.id,
            recorded_at_us: at_ms * 1000,
            region: "eu".into(),
            tenant: created.tenant.clone(),
            key: created.key.clone(),
            snapshot_version: 3,
            trace_id: None,
        };
        let mut frame = Vec::new();
        ReservationEvent::new(header, event).unwrap().encode(&mut frame).unwrap();
        Bytes::from(frame)
    });
    let key = Bytes::copy_from_slice(created.id.as_bytes());
    Batch::new(Topic::Reservations, key, at_ms, values.collect())
}

/// `lives` reservations of three tenants within three hours, and what comes late.
pub fn random_log(seed: u64, lives: u64) -> Vec<Batch> {
    let mut dice = Dice::new(seed);
    let mut batches: Vec<(i64, Batch)> = Vec::new();
    for n in 0..lives {
        let mut life = Life::new(n, &mut dice);
        life.live(&mut dice);
        life.repeat(&mut dice);
        batches.extend(life.batches);
    }
    batches.sort_by_key(|(at_ms, _)| *at_ms);
    batches.into_iter().map(|(_, batch)| batch).collect()
}

/// The plain request: six events in two batches.
pub fn plain_life(created: &Arc<Created>, nanos: i64) -> [Batch; 2] {
    let at_ms = created.admitted_at_ms;
    let record = Arc::new(scene::record(100, nanos, UsageSource::Response, ""));
    let charged = Amounts { requests: 1, ..record.charge };
    let begin = vec![
        Event::ReservationCreated(Arc::clone(created)),
        Event::AttemptStarted { number: 1, hold: created.hold, target: scene::target() },
    ];
    let end = vec![
        Event::AttemptCorrelated { number: 1, provider_id: "chatcmpl-1".to_owned() },
        Event::UsageRecorded { number: 1, record },
        Event::AttemptClosed { number: 1, outcome: AttemptOutcome::Executed },
        Event::ReservationSettled { charged },
    ];
    [batch(created, at_ms, begin), batch(created, at_ms + 900, end)]
}

struct Life {
    created: Arc<Created>,
    at_ms: i64,
    batches: Vec<(i64, Batch)>,
    reports: u32,
}

impl Life {
    fn new(n: u64, dice: &mut Dice) -> Self {
        let tenant = *dice.pick(&["acme", "globex", "initech"]);
        let plain = if dice.chance(20) { scene::created_in_full(n, tenant) } else { scene::created(n, tenant) };
        let at_ms = scene::NOON_MS + dice.between(0, 3 * 3600 * 1000);
        let mut counting = plain.counting.clone();
        counting.windows = calendar::windows_at(at_ms, &Zone::default());
        let hash = [u8::try_from(n % 251).unwrap(); 32];
        let idempotency =
            dice.chance(10).then_some(IdempotencyRecord { key_hash: hash, expires_at_ms: at_ms + 86_400_000 });
        let created = Created {
            admitted_at_ms: at_ms,
            due_ms: at_ms + 60_000,
            adjust_on_mismatch: dice.chance(50),
            counting,
            idempotency,
            ..plain
        };
        Self { created: Arc::new(created), at_ms, batches: Vec::new(), reports: 0 }
    }

    /// Appends `events` up to `within_ms` later.
    fn then(&mut self, dice: &mut Dice, within_ms: i64, events: Vec<Event>) {
        self.at_ms += dice.between(1, within_ms);
        self.batches.push((self.at_ms, batch(&self.created, self.at_ms, events)));
    }

    fn started(&self, number: u16) -> Event {
        let hold = Amounts { requests: 0, ..self.created.hold };
        Event::AttemptStarted { number, hold, target: scene::target() }
    }

    fn used(&mut self, number: u16, source: UsageSource, dice: &mut Dice) -> Event {
        let cause = match source {
            UsageSource::Response => String::new(),
            _ => {
                self.reports += 1;
                format!("report-{}/1", self.reports)
            }
        };
        let record: UsageRecord = scene::record(dice.between(0, 900), dice.between(0, 9) * 10_000_000, source, &cause);
        Event::UsageRecorded { number, record: Arc::new(record) }
    }

    fn live(&mut self, dice: &mut Dice) {
        let created = Event::ReservationCreated(Arc::clone(&self.created));
        let close = |number, outcome| Event::AttemptClosed { number, outcome };
        let settle = Event::ReservationSettled { charged: Amounts::new(1, 7, NanoUsd::from_nanos(7)) };
        if dice.chance(10) {
            self.then(dice, 1, vec![created, Event::ReservationReleased]);
            return;
        }
        self.then(dice, 1, vec![created, self.started(1)]);
        let mut number = 1;
        if dice.chance(25) {
            let by = Amounts { requests: 0, ..self.created.hold };
            let (outcome, extends) =
                *dice.pick(&[(AttemptOutcome::NotExecuted, false), (AttemptOutcome::MayHaveExecuted, true)]);
            let extended = extends.then_some(Event::ReservationExtended { number: 2, by });
            let events = [Some(close(1, outcome)), extended, Some(self.started(2))].into_iter().flatten().collect();
            self.then(dice, 5_000, events);
            number = 2;
        }
        match dice.below(10) {
            0 => return, // Still running when the log ends.
            1 | 2 => {
                let hold = Amounts::new(0, 50, NanoUsd::from_nanos(5_000_000));
                let pended = Event::ReservationPending { cause: PendCause::UsageUnknown, ordinal: 0 };
                let outcome = AttemptOutcome::ExecutedUsageUnknown;
                let events = vec![Event::UsageBounded { number, hold }, close(number, outcome), pended];
                self.then(dice, 20_000, events);
                if dice.chance(30) {
                    self.then(dice, 3_600_000, vec![Event::ReservationEscalated]);
                }
            }
            3 => {
                let pended = Event::ReservationPending { cause: PendCause::Expired, ordinal: 0 };
                self.then(dice, 60_000, vec![pended]);
                if dice.chance(60) {
                    let due_ms = self.at_ms + 60_000;
                    let used = self.used(number, UsageSource::Response, dice);
                    let end = vec![used, close(number, AttemptOutcome::Executed), settle];
                    self.then(dice, 5_000, vec![Event::ReservationResumed { ordinal: 1, due_ms }]);
                    self.then(dice, 5_000, end);
                }
            }
            _ => {
                let correlated = Event::AttemptCorrelated { number, provider_id: "chatcmpl-1".to_owned() };
                let used = self.used(number, UsageSource::Response, dice);
                self.then(dice, 30_000, vec![correlated, used, close(number, AttemptOutcome::Executed), settle]);
            }
        }
        self.report(number, dice);
    }

    /// What others say later, about either attempt.
    fn report(&mut self, number: u16, dice: &mut Dice) {
        let sources = [UsageSource::ProviderReport, UsageSource::Person, UsageSource::Estimate, UsageSource::Split];
        while dice.chance(35) {
            let about = if dice.chance(20) { 1 } else { number };
            let used = self.used(about, *dice.pick(&sources), dice);
            let mut events = vec![used];
            if dice.chance(50) {
                events.push(Event::AttemptClosed { number: about, outcome: AttemptOutcome::Executed });
            }
            self.then(dice, 4 * HORIZON_MS, events);
        }
    }

    /// Copies of what was appended, at any distance, with the times of the originals.
    fn repeat(&mut self, dice: &mut Dice) {
        while dice.chance(25) {
            let (at_ms, copy) = dice.pick(&self.batches).clone();
            let newest_ms = self.batches.iter().map(|(at_ms, _)| *at_ms).max().unwrap_or(at_ms);
            let later_ms = if dice.chance(50) { newest_ms } else { at_ms };
            self.batches.push((later_ms + dice.between(0, 4 * HORIZON_MS), copy));
        }
    }
}
