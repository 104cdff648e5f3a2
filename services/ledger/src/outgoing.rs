//! What a stored change tells the other topics: ledger entries, usage rows, discrepancies.
//!
//! All of it may be said twice after a crash; readers tell a repetition by the line's key, or by the source position.

use std::collections::BTreeMap;
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

/// The batches that follow from the pending `changes` of `projection`, which are stored.
pub(crate) async fn batches(
    store: &dyn LedgerStore,
    changes: &[Change],
    projection: &Projection,
) -> Result<Vec<Batch>, OutgoingError> {
    let mut batches = Vec::new();
    let mut rows: BTreeMap<TenantId, (i64, Vec<Bytes>)> = BTreeMap::new();
    for change in changes {
        let created = &change.reservation.created;
        let Some(pending) = projection.pending(created.id) else { continue };
        if let Some(newest) = change.lines.last() {
            let entry = |line| frame(&LedgerEntry::from_line(line, &pending.region));
            let entries = change.lines.iter().map(entry).collect::<Result<_, _>>()?;
            batches.push(Batch::new(Topic::Ledger, pending.key.clone(), newest.posted_at_ms, entries));
        }
        for (found, behind) in &pending.discrepancies {
            let (at_ms, source) = (behind.recorded_at_ms, behind.position);
            let record = frame(&Discrepancy::new(found, &created.tenant, &pending.region, at_ms, source))?;
            batches.push(Batch::new(Topic::Discrepancies, pending.key.clone(), at_ms, vec![record]));
        }
        for (number, behind) in &pending.rows {
            let attempt = change.reservation.attempt(*number).filter(|attempt| attempt.outcome.is_some());
            let Some(attempt) = attempt else { continue };
            let record = usage_of(store, change, attempt).await?;
            let row = UsageRow::of_attempt(created, &pending.region, attempt, record.as_deref(), *behind);
            let (newest_ms, of_tenant) = rows.entry(created.tenant.clone()).or_default();
            *newest_ms = behind.recorded_at_ms.max(*newest_ms);
            of_tenant.push(frame(&row)?);
        }
    }
    for (tenant, (newest_ms, of_tenant)) in rows {
        let key = Bytes::copy_from_slice(tenant.as_str().as_bytes());
        let parts = of_tenant.chunks(ROWS_PER_BATCH);
        batches.extend(parts.map(|part| Batch::new(Topic::Usage, key.clone(), newest_ms, part.to_vec())));
    }
    Ok(batches)
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

fn frame<R: Record>(record: &R) -> Result<Bytes, EncodeError> {
    let mut frame = Vec::with_capacity(512);
    record.encode(&mut frame)?;
    Ok(Bytes::from(frame))
}
