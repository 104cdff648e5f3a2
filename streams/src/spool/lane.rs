//! One topic's way to Kafka: direct, or through the spool.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::metrics::SpoolMetrics;
use crate::append::Append;
use crate::contract::{AppendError, Batch, CloseCause, Closed, StoredRecord};
use crate::kafka::KafkaLog;
use crate::segment::SegmentLog;
use crate::ticket::Ticket;
use crate::topics::Topic;

/// What a record costs in the spool beyond its key and value.
const RECORD_OVERHEAD_BYTES: u64 = 64;

/// The room that all lanes of a spool share.
#[derive(Debug)]
pub(super) struct Room {
    used_bytes: AtomicU64,
    max_bytes: u64,
    reserve_bytes: u64,
}

impl Room {
    pub fn new(max_bytes: u64, reserve_bytes: u64) -> Self {
        Self { used_bytes: AtomicU64::new(0), max_bytes, reserve_bytes: reserve_bytes.min(max_bytes / 2) }
    }

    pub fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Acquire)
    }

    /// Only what was kept for closing events is left.
    pub fn is_full_for_new(&self) -> bool {
        self.used_bytes() >= self.max_bytes - self.reserve_bytes
    }

    fn take(&self, bytes: u64) -> Result<(), AppendError> {
        let used = self.used_bytes.fetch_add(bytes, Ordering::AcqRel);
        if used.saturating_add(bytes) > self.max_bytes {
            self.release(bytes);
            let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
            return Err(AppendError::Busy { queued_bytes: size(used), limit_bytes: size(self.max_bytes) });
        }
        Ok(())
    }

    /// For what was accepted already: it is bounded by what may be outstanding in memory.
    pub fn force(&self, bytes: u64) {
        self.used_bytes.fetch_add(bytes, Ordering::AcqRel);
    }

    fn release(&self, bytes: u64) {
        self.used_bytes.fetch_sub(bytes, Ordering::AcqRel);
    }
}

pub(super) fn cost(key: usize, values: usize, records: usize) -> u64 {
    // Each record is read and forwarded with its key.
    (key * records + values) as u64 + RECORD_OVERHEAD_BYTES * records as u64
}

pub(super) fn cost_of(record: &StoredRecord) -> u64 {
    cost(record.key.len(), record.value.len(), 1)
}

fn cost_of_batch(batch: &Batch) -> u64 {
    cost(batch.key.len(), batch.values.iter().map(bytes::Bytes::len).sum(), batch.values.len())
}

/// What every lane works with.
#[derive(Debug)]
pub(super) struct Gear {
    pub kafka: KafkaLog,
    pub spool: SegmentLog,
    pub room: Room,
    pub after: Duration,
    pub metrics: SpoolMetrics,
}

#[derive(Debug)]
pub(super) struct Lane {
    pub topic: Topic,
    pub state: Mutex<State>,
    /// Something came that the forwarder does not know of.
    pub news: Notify,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Direct,
    Spooling,
}

#[derive(Debug)]
pub(super) struct State {
    pub mode: Mode,
    /// Handed to Kafka without the spool, in order. Confirmed ones stay until the next look.
    direct: VecDeque<Direct>,
    /// Of the spool, handed to Kafka, in order.
    pub handed: VecDeque<Handed>,
    /// Offsets of the spool: all below is confirmed; the next to hand over; one past the last accepted.
    pub forwarded: u64,
    pub next: u64,
    pub end: u64,
    /// When the spool became other than empty.
    pub since: Option<Instant>,
    closed: Option<Closed>,
}

#[derive(Debug)]
struct Direct {
    batch: Batch,
    ticket: Arc<Ticket>,
    since: Instant,
}

#[derive(Debug)]
pub(super) struct Handed {
    pub end: u64,
    pub bytes: u64,
    pub ticket: Arc<Ticket>,
    pub since: Instant,
}

impl Lane {
    /// With what a process before this one has left between `forwarded` and `end`.
    pub fn new(topic: Topic, forwarded: u64, end: u64) -> Self {
        let has_left = forwarded < end;
        let state = State {
            mode: if has_left { Mode::Spooling } else { Mode::Direct },
            direct: VecDeque::new(),
            handed: VecDeque::new(),
            forwarded,
            next: forwarded,
            end,
            since: has_left.then(Instant::now),
            closed: None,
        };
        Self { topic, state: Mutex::new(state), news: Notify::new() }
    }

    pub fn append(&self, gear: &Gear, batch: Batch) -> Append {
        let mut state = self.state.lock();
        if let Some(closed) = &state.closed {
            return Append::refused(AppendError::Closed(closed.clone()));
        }
        let appended = match state.mode {
            Mode::Direct => match gear.kafka.produce(&batch) {
                Ok(ticket) => {
                    let is_first = state.direct.is_empty();
                    state.direct.push_back(Direct { batch, ticket: Arc::clone(&ticket), since: Instant::now() });
                    if is_first {
                        self.news.notify_one();
                    }
                    return Append::ticket(ticket);
                }
                // More is unconfirmed than memory may hold: the spool takes over before its time.
                Err(AppendError::Busy { .. }) => {
                    state.spill(gear);
                    state.spool(gear, batch)
                }
                Err(error) => Append::refused(error),
            },
            Mode::Spooling => state.spool(gear, batch),
        };
        self.news.notify_one();
        appended
    }

    /// Looks after what went to Kafka directly; returns when to look again.
    pub fn look(&self, gear: &Gear, now: Instant) -> Option<Instant> {
        let mut state = self.state.lock();
        state.forget_confirmed();
        let due = state.direct.front()?.since + gear.after;
        if due > now {
            return Some(due);
        }
        tracing::warn!(topic = %self.topic, batches = state.direct.len(), "kafka does not confirm: spooling");
        state.spill(gear);
        // What the spool's writer had no place for is tried again.
        (!state.direct.is_empty()).then(|| now + gear.after)
    }

    /// Takes note of what the brokers have confirmed of the spool. An error ends the forwarding.
    pub fn retire(&self, gear: &Gear) -> Result<(), AppendError> {
        let mut state = self.state.lock();
        while let Some(outcome) = state.handed.front().and_then(|first| first.ticket.outcome()) {
            outcome?;
            let Some(first) = state.handed.pop_front() else { break };
            gear.metrics.forwarded.inc_by(first.end - state.forwarded);
            state.forwarded = first.end;
            gear.room.release(first.bytes);
        }
        if state.forwarded == state.end {
            state.since = None;
        }
        Ok(())
    }

    /// Back to direct, if the forwarder has handed over everything and the brokers answer in time.
    pub fn settle(&self, gear: &Gear) {
        let mut state = self.state.lock();
        let is_slow = state.handed.front().is_some_and(|oldest| oldest.since.elapsed() >= gear.after);
        if state.mode == Mode::Spooling && state.next == state.end && state.direct.is_empty() && !is_slow {
            state.mode = Mode::Direct;
            tracing::info!(topic = %self.topic, "spool handed over: direct again");
        }
    }

    /// Takes nothing more.
    pub fn close(&self) {
        let closed = Closed { cause: CloseCause::Stopped, detail: "it was asked to stop".into() };
        self.state.lock().closed = Some(closed);
    }

    /// What the brokers have not confirmed: batches on their way without the spool, and the end of the spool.
    pub fn outstanding(&self) -> (Vec<Arc<Ticket>>, u64) {
        let mut state = self.state.lock();
        state.forget_confirmed();
        (state.direct.iter().map(|direct| Arc::clone(&direct.ticket)).collect(), state.end)
    }

    /// Offset of the spool below which everything is confirmed.
    pub fn forwarded(&self) -> u64 {
        self.state.lock().forwarded
    }

    /// Everything is confirmed by the brokers.
    pub fn is_clear(&self) -> bool {
        let mut state = self.state.lock();
        state.forget_confirmed();
        state.direct.is_empty() && state.forwarded == state.end
    }

    /// At a stop: what is not confirmed goes to the spool.
    pub fn spill(&self, gear: &Gear) {
        let mut state = self.state.lock();
        state.forget_confirmed();
        state.spill(gear);
    }
}

impl State {
    fn forget_confirmed(&mut self) {
        while self.direct.front().is_some_and(|first| first.ticket.outcome().is_some()) {
            self.direct.pop_front();
        }
    }

    fn spool(&mut self, gear: &Gear, batch: Batch) -> Append {
        if !self.direct.is_empty() {
            // Older batches have found no place in the spool's queue; this one must not pass them.
            let queued_bytes = self.direct.iter().map(|direct| direct.ticket.bytes).sum();
            return Append::refused(AppendError::Busy { queued_bytes, limit_bytes: queued_bytes });
        }
        let bytes = cost_of_batch(&batch);
        if let Err(error) = batch.checked_bytes().and_then(|_| gear.room.take(bytes)) {
            return Append::refused(error);
        }
        match gear.spool.accept(batch) {
            Ok(counted) => {
                gear.metrics.spooled.inc_by(counted.end() - self.end);
                self.end = counted.end();
                self.since.get_or_insert_with(Instant::now);
                Append::counted(counted.in_spool())
            }
            Err(error) => {
                gear.room.release(bytes);
                Append::refused(error)
            }
        }
    }

    /// Writes what is not confirmed to the spool, in order. It stays on its way to Kafka.
    fn spill(&mut self, gear: &Gear) {
        self.mode = Mode::Spooling;
        while let Some(first) = self.direct.pop_front() {
            if first.ticket.outcome().is_some() {
                continue;
            }
            let bytes = cost_of_batch(&first.batch);
            match gear.spool.accept(first.batch.clone()) {
                Ok(counted) => {
                    gear.room.force(bytes);
                    gear.metrics.spooled.inc_by(counted.end() - self.end);
                    self.end = counted.end();
                    self.next = counted.end();
                    self.since.get_or_insert_with(Instant::now);
                    first.ticket.spooled(counted.in_spool());
                    self.handed.push_back(Handed { end: self.end, bytes, ticket: first.ticket, since: first.since });
                }
                Err(error) => {
                    tracing::error!(%error, "the spool does not take what the brokers do not confirm");
                    self.direct.push_front(first);
                    return;
                }
            }
        }
    }
}
