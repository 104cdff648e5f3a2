//! A start: the newest checkpoint that can be trusted, then the tail of the log.
//!
//! Two things come of it: the fold where the builder stands, for the builder to go on with, and the books at the end of
//! the log, for the embedded quota store. Both equal the fold of the whole log; a test holds that.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use thiserror::Error;

use weir_domain::fold::Fold;
use weir_domain::ids::TenantId;
use weir_domain::quota::{Book, BookOptions};
use weir_runtime::story::story;
use weir_streams::consumer::StoreError;
use weir_streams::{EventLog, Limits, Position, ReadError, StoredRecord, Topic, Visibility};

use crate::builder::subscription;
use crate::checkpoint::{self, CheckpointFlaw, LeftOut, Opened};
use crate::contract::{LedgerError, LedgerStore};
use crate::projection::{AbsorbError, Projection};

/// A projection at a position.
#[derive(Debug, Clone)]
pub struct Folded {
    pub projection: Projection,
    /// Next offset by partition.
    pub positions: BTreeMap<u32, u64>,
    /// Events folded since the checkpoint.
    pub replayed_events: u64,
}

/// What a process starts with.
#[derive(Debug)]
pub struct Started {
    /// For the builder.
    pub at_builder: Folded,
    /// For the embedded quota store.
    pub books_at_end: HashMap<TenantId, Book>,
    /// Events folded in all, since the checkpoint.
    pub replayed_events: u64,
    /// When the checkpoint was taken, ms; `None` when the log was folded from its start.
    pub checkpoint_taken_at_ms: Option<i64>,
}

/// Why a process cannot start from this log and this store.
#[derive(Debug, Error)]
pub enum StartError {
    #[error("the log cannot be read")]
    Read(#[from] ReadError),
    #[error("the ledger cannot be read")]
    Store(#[from] LedgerError),
    #[error("the ledger's positions cannot be read")]
    Positions(#[from] StoreError),
    #[error(
        "partition {partition} of the reservations begins at offset {start} and no checkpoint reaches that far: bring \
         back the archived segments or the ledger's file"
    )]
    HistoryGone { partition: u32, start: u64 },
}

/// How much is read at once: large enough that reading costs nothing beside folding.
const CHUNK: Limits = Limits { records: 8192, bytes: 8 * 1024 * 1024 };

/// Loads and folds. Reads the log up to what is written: nobody may append meanwhile.
///
/// # Errors
/// [`StartError`].
pub async fn start(
    log: &dyn EventLog,
    store: &Arc<dyn LedgerStore>,
    options: BookOptions,
) -> Result<Started, StartError> {
    let bounds = bounds(log, store).await?;
    let (mut folded, left_out, checkpoint_taken_at_ms) = newest_checkpoint(&**store, &bounds, options).await?;
    let mut replay = Replay { log, store: &**store, folded: &mut folded };
    for (partition, bound) in &bounds {
        replay.catch_up(*partition, bound, &left_out).await?;
        replay.follow(*partition, bound, bound.builder).await?;
        replay.folded.projection.stored();
    }
    if bounds.values().all(|bound| bound.builder >= bound.end) {
        // Nothing is left for the builder: its books are those at the end, and only they are copied, not what it keeps
        // of every reservation.
        let books = folded.projection.fold().books();
        let books_at_end = books.map(|(tenant, book)| (tenant.clone(), book.clone())).collect();
        let replayed_events = folded.replayed_events;
        return Ok(Started { at_builder: folded, books_at_end, replayed_events, checkpoint_taken_at_ms });
    }
    let at_builder = replay.folded.clone();
    for (partition, bound) in &bounds {
        replay.follow(*partition, bound, bound.end).await?;
    }
    Ok(Started {
        at_builder,
        books_at_end: folded.projection.into_fold().into_books().collect(),
        replayed_events: folded.replayed_events,
        checkpoint_taken_at_ms,
    })
}

/// The fold of one partition where its builder stands: what a process goes on from that takes it over.
///
/// # Errors
/// [`StartError`].
pub async fn partition(
    log: &dyn EventLog,
    store: &Arc<dyn LedgerStore>,
    partition: u32,
    options: BookOptions,
) -> Result<Folded, StartError> {
    Ok(to_builder(log, store, partition, options).await?.0)
}

/// Books at the end of a log whose partitions are folded apart.
#[derive(Debug, Default)]
pub struct Books {
    /// Of each tenant one for each partition that it has reservations on; what it has in all is their sum.
    pub by_tenant: HashMap<TenantId, Vec<Book>>,
    /// Events folded in all, since the checkpoints.
    pub replayed_events: u64,
}

/// Folds each partition from its own checkpoint up to where it ends now.
///
/// # Errors
/// [`StartError`].
pub async fn books(
    log: &dyn EventLog,
    store: &Arc<dyn LedgerStore>,
    options: BookOptions,
) -> Result<Books, StartError> {
    let mut books = Books::default();
    for partition in 0..log.partitions(Topic::Reservations) {
        let (mut folded, bound) = to_builder(log, store, partition, options).await?;
        Replay { log, store: &**store, folded: &mut folded }.follow(partition, &bound, bound.end).await?;
        books.replayed_events += folded.replayed_events;
        for (tenant, book) in folded.projection.into_fold().into_books() {
            books.by_tenant.entry(tenant).or_default().push(book);
        }
    }
    Ok(books)
}

async fn to_builder(
    log: &dyn EventLog,
    store: &Arc<dyn LedgerStore>,
    partition: u32,
    options: BookOptions,
) -> Result<(Folded, Bounds), StartError> {
    let mut bounds = BTreeMap::from([(partition, bound(log, store, partition).await?)]);
    let (mut folded, left_out, _) = newest_checkpoint(&**store, &bounds, options).await?;
    let bound = bounds.remove(&partition).ok_or(ReadError::NoPartition { topic: Topic::Reservations, partition })?;
    let mut replay = Replay { log, store: &**store, folded: &mut folded };
    replay.catch_up(partition, &bound, &left_out).await?;
    replay.follow(partition, &bound, bound.builder).await?;
    folded.projection.stored();
    Ok((folded, bound))
}

/// Where one partition begins and ends, and where the builder stands.
struct Bounds {
    start: u64,
    builder: u64,
    end: u64,
    /// Keys that wait, each from which offset on.
    parked: HashMap<Bytes, u64>,
}

async fn bounds(log: &dyn EventLog, store: &Arc<dyn LedgerStore>) -> Result<BTreeMap<u32, Bounds>, StartError> {
    let mut bounds = BTreeMap::new();
    for partition in 0..log.partitions(Topic::Reservations) {
        bounds.insert(partition, bound(log, store, partition).await?);
    }
    Ok(bounds)
}

async fn bound(log: &dyn EventLog, store: &Arc<dyn LedgerStore>, partition: u32) -> Result<Bounds, StartError> {
    let offsets = log.offsets(Topic::Reservations, partition).await?;
    let of = subscription(partition);
    let builder = store.load(&of).await?.unwrap_or(offsets.start);
    let parked = store.list(&of).await?.into_iter().map(|parked| (parked.key, parked.offset)).collect();
    Ok(Bounds { start: offsets.start, builder, end: offsets.written, parked })
}

async fn newest_checkpoint(
    store: &dyn LedgerStore,
    bounds: &BTreeMap<u32, Bounds>,
    options: BookOptions,
) -> Result<(Folded, Vec<LeftOut>, Option<i64>), StartError> {
    let mut nth = 0;
    let partitions: Vec<u32> = bounds.keys().copied().collect();
    while let Some(stored) = store.checkpoint(&partitions, nth).await? {
        match checkpoint::open(&stored, options).and_then(|opened| placed(opened, &stored.positions, bounds)) {
            Ok((folded, left_out)) => return Ok((folded, left_out, Some(stored.taken_at_ms))),
            Err(flaw) => {
                let (flaw, taken_at_ms) = (story(&flaw), stored.taken_at_ms);
                tracing::warn!(flaw, taken_at_ms, "checkpoint passed over");
            }
        }
        nth += 1;
    }
    if let Some((partition, bound)) = bounds.iter().find(|(_, bound)| bound.start > 0) {
        return Err(StartError::HistoryGone { partition: *partition, start: bound.start });
    }
    let positions = bounds.iter().map(|(partition, bound)| (*partition, bound.start)).collect();
    let projection = Projection::new(Fold::new(options), i64::MIN);
    Ok((Folded { projection, positions, replayed_events: 0 }, Vec::new(), None))
}

fn placed(
    opened: Opened,
    positions: &[(u32, u64)],
    bounds: &BTreeMap<u32, Bounds>,
) -> Result<(Folded, Vec<LeftOut>), CheckpointFlaw> {
    let Opened { projection, left_out } = opened;
    let known: BTreeMap<u32, u64> = positions.iter().copied().collect();
    let mut positions = BTreeMap::new();
    for (partition, bound) in bounds {
        let at = known.get(partition).copied().unwrap_or(0);
        if at > bound.builder || at < bound.start {
            return Err(CheckpointFlaw::Position);
        }
        positions.insert(*partition, at);
    }
    Ok((Folded { projection, positions, replayed_events: 0 }, left_out))
}

/// Folding on, leaving out what the builder left out: keys that are parked, and records that an operator skipped.
struct Replay<'a> {
    log: &'a dyn EventLog,
    store: &'a dyn LedgerStore,
    folded: &'a mut Folded,
}

impl Replay<'_> {
    /// Folds one partition up to `end`.
    async fn follow(&mut self, partition: u32, bound: &Bounds, end: u64) -> Result<(), StartError> {
        let mut next = self.folded.positions.get(&partition).copied().unwrap_or(bound.start);
        while next < end {
            let records = self.read(partition, next).await?;
            let Some(last) = records.last() else { break };
            next = (last.offset + 1).min(end);
            for record in records.iter().filter(|record| record.offset < end && !bound.is_parked(record)) {
                self.fold(record).await?;
            }
            if next <= bound.builder {
                // What these records decided is in the store already. Kept, it would be all that a start holds.
                self.folded.projection.stored();
            }
        }
        self.folded.positions.insert(partition, next);
        Ok(())
    }

    /// Folds what was parked when the checkpoint was taken and has been resolved since: it stands before the
    /// checkpoint's position, and the image is without it.
    async fn catch_up(&mut self, partition: u32, bound: &Bounds, left_out: &[LeftOut]) -> Result<(), StartError> {
        let of_partition = left_out.iter().filter(|one| one.partition == partition);
        let from: HashMap<&[u8], u64> = of_partition.map(|one| (&one.key[..], one.offset)).collect();
        let is_resolved = |(key, from): &(&&[u8], &u64)| bound.parked.get(**key).is_none_or(|parked| parked > from);
        let Some(mut next) = from.iter().filter(is_resolved).map(|(_, from)| *from).min() else { return Ok(()) };
        let end = self.folded.positions.get(&partition).copied().unwrap_or(bound.start);
        while next < end {
            let records = self.read(partition, next).await?;
            let Some(last) = records.last() else { break };
            next = last.offset + 1;
            let was_left_out =
                |record: &&StoredRecord| from.get(&record.key[..]).is_some_and(|from| record.offset >= *from);
            for record in records.iter().filter(was_left_out) {
                if record.offset < end && !bound.is_parked(record) {
                    self.fold(record).await?;
                }
            }
        }
        Ok(())
    }

    async fn read(&self, partition: u32, offset: u64) -> Result<Vec<StoredRecord>, ReadError> {
        self.log.read(Position { topic: Topic::Reservations, partition, offset }, CHUNK, Visibility::Written).await
    }

    async fn fold(&mut self, record: &StoredRecord) -> Result<(), StartError> {
        match self.folded.projection.absorb(self.store, record).await {
            Ok(_) => self.folded.replayed_events += 1,
            Err(AbsorbError::Store(error)) => return Err(error.into()),
            Err(AbsorbError::Poison(reason)) => {
                let (partition, offset, reason) = (record.partition, record.offset, reason.as_str());
                tracing::warn!(partition, offset, reason, "record left out of the fold");
            }
        }
        Ok(())
    }
}

impl Bounds {
    fn is_parked(&self, record: &StoredRecord) -> bool {
        self.parked.get(&record.key).is_some_and(|from| record.offset >= *from)
    }
}

#[cfg(test)]
#[path = "start_tests.rs"]
mod tests;
