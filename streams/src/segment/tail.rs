//! The newest batches in memory, so that a consumer that keeps up reads no file and decodes no frame.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::contract::{Batch, Limits, StoredRecord};

/// What a batch and a record cost beside their bytes, roughly: the ring's bound should be about true memory.
const BATCH_OVERHEAD_BYTES: usize = 128;
const RECORD_OVERHEAD_BYTES: usize = 32;

/// A ring of batches without holes, bounded in bytes; the oldest go first.
#[derive(Debug)]
pub(super) struct Tail {
    batches: VecDeque<(u64, Batch)>,
    bytes: usize,
    limit_bytes: usize,
}

impl Tail {
    pub(super) const fn new(limit_bytes: usize) -> Self {
        Self { batches: VecDeque::new(), bytes: 0, limit_bytes }
    }

    /// Moves batches that have no place any more into `evicted`: freeing them takes longer than all the rest, and
    /// readers wait for the ring meanwhile.
    pub(super) fn push(&mut self, base_offset: u64, batch: Batch, evicted: &mut Vec<Batch>) {
        self.bytes += cost(&batch);
        self.batches.push_back((base_offset, batch));
        while self.bytes > self.limit_bytes {
            let Some((_, oldest)) = self.batches.pop_front() else { return };
            self.bytes -= cost(&oldest);
            evicted.push(oldest);
        }
    }

    /// Reads into `wanted`, or returns false if its first record is no longer in the ring.
    pub(super) fn read(&self, wanted: &mut Wanted) -> bool {
        let after = self.batches.partition_point(|(base, _)| *base <= wanted.next);
        let Some(first) = after.checked_sub(1) else { return false };
        for (base, batch) in self.batches.range(first..) {
            if !wanted.take(*base, batch.time_ms, &batch.key, &batch.values) {
                break;
            }
        }
        true
    }
}

fn cost(batch: &Batch) -> usize {
    batch.payload_bytes() + BATCH_OVERHEAD_BYTES + batch.values.len() * RECORD_OVERHEAD_BYTES
}

/// One read in progress: what is still wanted and what was found.
#[derive(Debug)]
pub(super) struct Wanted {
    pub next: u64,
    /// One past the last offset that the reader may see.
    visible: u64,
    limits: Limits,
    bytes: usize,
    pub records: Vec<StoredRecord>,
}

impl Wanted {
    pub(super) const fn new(from: u64, visible: u64, limits: Limits) -> Self {
        Self { next: from, visible, limits, bytes: 0, records: Vec::new() }
    }

    /// True when the reader may see nothing more: a frame beyond may be half written at this moment.
    pub(super) const fn is_satisfied(&self) -> bool {
        self.next >= self.visible
    }

    /// Takes what is wanted of the batch at `base`. False when nothing more is wanted.
    pub(super) fn take(&mut self, base: u64, time_ms: i64, key: &Bytes, values: &[Bytes]) -> bool {
        for (offset, value) in (base..).zip(values) {
            if offset < self.next {
                continue;
            }
            let size = key.len() + value.len();
            let is_first = self.records.is_empty();
            let fits = self.records.len() < self.limits.records && self.bytes + size <= self.limits.bytes;
            if offset >= self.visible || !(is_first || fits) {
                return false;
            }
            self.bytes += size;
            self.next = offset + 1;
            self.records.push(StoredRecord { partition: 0, offset, key: key.clone(), value: value.clone(), time_ms });
        }
        true
    }
}
