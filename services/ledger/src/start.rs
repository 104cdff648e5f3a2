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
use weir_streams::consumer::StoreError;
use weir_streams::{EventLog, Limits, Position, ReadError, Topic, Visibility};

use crate::builder::subscription;
use crate::checkpoint::{self, CheckpointFlaw};
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
    let (mut folded, checkpoint_taken_at_ms) = newest_checkpoint(&**store, &bounds, options).await?;
    for (partition, bound) in &bounds {
        follow(log, &**store, &mut folded, *partition, bound.builder, &mut bound.parked.clone()).await?;
        folded.projection.stored();
    }
    let at_builder = folded.clone();
    for (partition, bound) in &bounds {
        follow(log, &**store, &mut folded, *partition, bound.end, &mut bound.parked.clone()).await?;
    }
    Ok(Started {
        at_builder,
        books_at_end: folded.projection.into_fold().into_books(),
        replayed_events: folded.replayed_events,
        checkpoint_taken_at_ms,
    })
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
        let offsets = log.offsets(Topic::Reservations, partition).await?;
        let of = subscription(partition);
        let builder = store.load(&of).await?.unwrap_or(offsets.start);
        let parked = store.list(&of).await?.into_iter().map(|parked| (parked.key, parked.offset)).collect();
        bounds.insert(partition, Bounds { start: offsets.start, builder, end: offsets.written, parked });
    }
    Ok(bounds)
}

async fn newest_checkpoint(
    store: &dyn LedgerStore,
    bounds: &BTreeMap<u32, Bounds>,
    options: BookOptions,
) -> Result<(Folded, Option<i64>), StartError> {
    let mut nth = 0;
    while let Some(stored) = store.checkpoint(nth).await? {
        match checkpoint::open(&stored, options).and_then(|projection| placed(projection, &stored.positions, bounds)) {
            Ok(folded) => return Ok((folded, Some(stored.taken_at_ms))),
            Err(flaw) => {
                let (flaw, taken_at_ms) = (&flaw as &dyn std::error::Error, stored.taken_at_ms);
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
    Ok((Folded { projection, positions, replayed_events: 0 }, None))
}

fn placed(
    projection: Projection,
    positions: &[(u32, u64)],
    bounds: &BTreeMap<u32, Bounds>,
) -> Result<Folded, CheckpointFlaw> {
    let known: BTreeMap<u32, u64> = positions.iter().copied().collect();
    let mut positions = BTreeMap::new();
    for (partition, bound) in bounds {
        let at = known.get(partition).copied().unwrap_or(0);
        if at > bound.builder || at < bound.start {
            return Err(CheckpointFlaw::Position);
        }
        positions.insert(*partition, at);
    }
    Ok(Folded { projection, positions, replayed_events: 0 })
}

/// Folds one partition up to `end`, leaving out what the builder left out: keys that are parked, and records that an
/// operator skipped.
async fn follow(
    log: &dyn EventLog,
    store: &dyn LedgerStore,
    folded: &mut Folded,
    partition: u32,
    end: u64,
    parked: &mut HashMap<Bytes, u64>,
) -> Result<(), StartError> {
    let mut next = folded.positions.get(&partition).copied().unwrap_or(0);
    while next < end {
        let at = Position { topic: Topic::Reservations, partition, offset: next };
        let records = log.read(at, CHUNK, Visibility::Written).await?;
        let Some(last) = records.last() else { break };
        next = (last.offset + 1).min(end);
        for record in records.iter().filter(|record| record.offset < end) {
            if parked.get(&record.key).is_some_and(|from| record.offset >= *from) {
                continue;
            }
            match folded.projection.absorb(store, record).await {
                Ok(_) => folded.replayed_events += 1,
                Err(AbsorbError::Store(error)) => return Err(error.into()),
                Err(AbsorbError::Poison(reason)) => {
                    let (offset, reason) = (record.offset, reason.as_str());
                    tracing::warn!(partition, offset, reason, "record left out of the fold");
                }
            }
        }
    }
    folded.positions.insert(partition, next);
    Ok(())
}

#[cfg(test)]
#[path = "start_tests.rs"]
mod tests;
