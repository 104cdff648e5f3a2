//! What a stored change tells the other topics: ledger entries, usage rows, discrepancies.
//!
//! All of it may be said twice after a crash; readers tell a repetition by the line's key, or by the source position.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use weir_domain::attempt::Attempt;
use weir_domain::ids::TenantId;
use weir_domain::reservation::UsageRecord;
use weir_schemas::discrepancy::Discrepancy;
use weir_schemas::ledger_entry::LedgerEntry;
use weir_schemas::usage_row::UsageRow;
use weir_schemas::{EncodeError, Record};
use weir_streams::{Batch, Topic};

use crate::contract::{Change, LedgerError, LedgerStore};
use crate::handover::Handed;
use crate::projection::Projection;

/// Rows of one batch: a quarter of what the log takes at once.
const ROWS_PER_BATCH: usize = 1024;

/// Why there is nothing to append.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OutgoingError {
    #[error(transparent)]
    Encode(#[from] EncodeError),
    #[error(transparent)]
    Store(#[from] LedgerError),
}

/// A batch, and for a ledger entry what the corrector makes of it.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub batch: Batch,
    pub corrections: Vec<Handed>,
}

/// A batch whose values are not cut out of the common buffer yet.
struct Draft {
    topic: Topic,
    key: Bytes,
    time_ms: i64,
    values: Vec<Range<usize>>,
    corrections: Vec<Handed>,
}

/// The frames of one delivery behind each other: one allocation, of which every value is a slice.
#[derive(Default)]
struct Frames(Vec<u8>);

impl Frames {
    fn push<R: Record>(&mut self, record: &R) -> Result<Range<usize>, EncodeError> {
        let start = self.0.len();
        record.encode(&mut self.0)?;
        Ok(start..self.0.len())
    }
}

/// The batches that follow from the pending `changes` of `projection`, which are stored.
pub(crate) async fn batches(
    store: &dyn LedgerStore,
    changes: &[Change],
    projection: &Projection,
) -> Result<Vec<Outgoing>, OutgoingError> {
    let (mut frames, mut drafts) = (Frames::default(), Vec::with_capacity(changes.len()));
    let mut rows: BTreeMap<TenantId, (i64, Vec<Range<usize>>)> = BTreeMap::new();
    for change in changes {
        let created = &change.reservation.created;
        let Some(pending) = projection.pending(created.id) else { continue };
        let draft = |topic, time_ms| {
            let (key, values, corrections) = (pending.key.clone(), Vec::with_capacity(1), Vec::new());
            Draft { topic, key, time_ms, values, corrections }
        };
        if let Some(newest) = change.lines.last() {
            let mut entries = draft(Topic::Ledger, newest.posted_at_ms);
            for line in &change.lines {
                entries.values.push(frames.push(&LedgerEntry::from_line(line, &pending.region))?);
                entries.corrections.push(Handed::of(line));
            }
            drafts.push(entries);
        }
        for (found, behind) in &pending.discrepancies {
            let (at_ms, source) = (behind.recorded_at_ms, behind.position);
            let mut discrepancy = draft(Topic::Discrepancies, at_ms);
            let record = Discrepancy::new(found, &created.tenant, &pending.region, at_ms, source);
            discrepancy.values.push(frames.push(&record)?);
            drafts.push(discrepancy);
        }
        for (number, behind) in &pending.rows {
            let attempt = change.reservation.attempt(*number).filter(|attempt| attempt.outcome.is_some());
            let Some(attempt) = attempt else { continue };
            let record = usage_of(store, change, attempt).await?;
            let row = UsageRow::of_attempt(created, &pending.region, attempt, record.as_deref(), *behind);
            let (newest_ms, of_tenant) = rows.entry(created.tenant.clone()).or_default();
            *newest_ms = behind.recorded_at_ms.max(*newest_ms);
            of_tenant.push(frames.push(&row)?);
        }
    }
    for (tenant, (time_ms, of_tenant)) in rows {
        let key = Bytes::copy_from_slice(tenant.as_str().as_bytes());
        let part = |part: &[Range<usize>]| Draft {
            topic: Topic::Usage,
            key: key.clone(),
            time_ms,
            values: part.to_vec(),
            corrections: Vec::new(),
        };
        drafts.extend(of_tenant.chunks(ROWS_PER_BATCH).map(part));
    }
    let frames = Bytes::from(frames.0);
    Ok(drafts.into_iter().map(|draft| draft.cut(&frames)).collect())
}

impl Draft {
    fn cut(self, frames: &Bytes) -> Outgoing {
        let Self { topic, key, time_ms, values, corrections } = self;
        let values = values.into_iter().map(|value| frames.slice(value)).collect();
        Outgoing { batch: Batch::new(topic, key, time_ms, values), corrections }
    }
}

/// The usage that an attempt was charged by: of its newest line, which may be from an earlier batch.
async fn usage_of(
    store: &dyn LedgerStore,
    change: &Change,
    attempt: &Attempt,
) -> Result<Option<Arc<UsageRecord>>, LedgerError> {
    if attempt.charge.is_none() {
        return Ok(None);
    }
    let number = attempt.number;
    if let Some(line) = change.lines.iter().rfind(|line| line.key.attempt == number) {
        return Ok(Some(Arc::clone(&line.record)));
    }
    let stored = store.find(change.reservation.created.id).await?;
    let newest = stored.as_ref().and_then(|stored| stored.lines.iter().rfind(|line| line.key.attempt == number));
    Ok(newest.map(|line| Arc::clone(&line.record)))
}
