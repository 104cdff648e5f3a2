//! The writing half: the queue that callers push into, and the thread that empties it into files.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::file::{SegmentWriter, WriteFailed};
use super::frame::FrameBuffer;
use super::log::{PanicGuard, Shared};
use super::topic_log::ensure_folder;
use crate::append::Stage;
use crate::contract::{AppendError, Batch, CloseCause, Closed};
use crate::topics::Topic;

/// Frames of one drain are written in pieces of about this size, which bounds the buffer.
const PIECE_BYTES: usize = 4 * 1024 * 1024;
/// What a drain waits for each batch of the one before, about as long as requests take to bring as many: so waiting for
/// others costs a few requests in flight none of their throughput, and one alone does not pay for what gathers nothing.
const GAP_PER_BATCH: Duration = Duration::from_micros(100);
/// Queued batches cost at least this, so that the bound in bytes also bounds their number.
const QUEUED_OVERHEAD_BYTES: usize = 128;

/// What waits for the writer.
#[derive(Debug)]
pub(super) struct Queue {
    state: Mutex<QueueState>,
    filled: Condvar,
    limit_bytes: usize,
}

#[derive(Debug)]
struct QueueState {
    pending: Vec<(u64, Batch)>,
    bytes: usize,
    next_offset: [u64; Topic::COUNT],
    closed: Option<Closed>,
    /// After a failure what waits is given up; after a stop it is still written.
    gives_up: bool,
}

impl Queue {
    pub(super) fn new(ends: impl Iterator<Item = u64>, limit_bytes: usize) -> Self {
        let mut next_offset = [0; Topic::COUNT];
        next_offset.iter_mut().zip(ends).for_each(|(next, end)| *next = end);
        let state = QueueState { pending: Vec::new(), bytes: 0, next_offset, closed: None, gives_up: false };
        Self { state: Mutex::new(state), filled: Condvar::new(), limit_bytes }
    }

    /// Gives the batch its offset and its place. The lock is held for a few instructions.
    pub(super) fn push(&self, batch: Batch, payload_bytes: usize) -> Result<u64, AppendError> {
        let cost = payload_bytes + QUEUED_OVERHEAD_BYTES;
        let mut state = self.state.lock();
        if let Some(closed) = &state.closed {
            return Err(AppendError::Closed(closed.clone()));
        }
        // One batch always fits into an empty queue, whatever the limit.
        if state.bytes > 0 && state.bytes + cost > self.limit_bytes {
            return Err(AppendError::Busy { queued_bytes: state.bytes, limit_bytes: self.limit_bytes });
        }
        let next = &mut state.next_offset[batch.topic.index()];
        let offset = *next;
        *next += batch.values.len() as u64;
        state.bytes += cost;
        let was_empty = state.pending.is_empty();
        state.pending.push((offset, batch));
        drop(state);
        if was_empty {
            self.filled.notify_one();
        }
        Ok(offset)
    }

    pub(super) fn stop(&self) {
        let closed = Closed { cause: CloseCause::Stopped, detail: "it was asked to stop".into() };
        self.close(closed, false);
    }

    /// Takes no more, and gives up what waits: a disk has failed.
    pub(super) fn fail(&self, closed: Closed) {
        self.close(closed, true);
    }

    fn close(&self, closed: Closed, gives_up: bool) {
        let mut state = self.state.lock();
        state.closed.get_or_insert(closed);
        state.gives_up |= gives_up;
        drop(state);
        self.filled.notify_one();
    }

    pub(super) fn closed(&self) -> Option<Closed> {
        self.state.lock().closed.clone()
    }

    /// Waits for batches and moves all of them into `drain`, which is empty. The reason when none will come.
    fn next(&self, drain: &mut Vec<(u64, Batch)>) -> Result<(), Closed> {
        let mut state = self.state.lock();
        loop {
            match &state.closed {
                Some(closed) if state.gives_up || state.pending.is_empty() => return Err(closed.clone()),
                Some(_) | None => {}
            }
            if !state.pending.is_empty() {
                state.bytes = 0;
                std::mem::swap(&mut state.pending, drain);
                return Ok(());
            }
            self.filled.wait(&mut state);
        }
    }
}

/// Owns the active segments.
#[derive(Debug)]
pub(super) struct Writer {
    shared: Arc<Shared>,
    slots: Vec<Slot>,
}

/// One topic's part of a drain.
#[derive(Debug, Default)]
struct Slot {
    segment: Option<SegmentWriter>,
    frames: FrameBuffer,
    batches: Vec<(u64, Batch)>,
}

/// Where a drain failed. Offsets of `topic` below `doubtful_until` may be in the file.
#[derive(Debug)]
struct Failed {
    topic: Topic,
    action: &'static str,
    source: io::Error,
    doubtful_until: u64,
}

impl Writer {
    pub(super) fn new(shared: Arc<Shared>, segments: Vec<Option<SegmentWriter>>) -> Self {
        let slots = segments.into_iter().map(|segment| Slot { segment, ..Slot::default() }).collect();
        Self { shared, slots }
    }

    /// Until the queue is closed and empty, or a write fails.
    pub(super) fn run(mut self) {
        let _guard = PanicGuard(Arc::clone(&self.shared));
        let mut drain = Vec::new();
        let mut began = None;
        let (closed, failed) = loop {
            if let Err(closed) = self.shared.queue.next(&mut drain) {
                break (closed, None);
            }
            self.shared.options.metrics.drains.inc();
            let batches = drain.len();
            if let Err(failed) = self.write(&mut drain) {
                let closed = failed.closed(self.shared.topic(failed.topic).folder.display());
                tracing::error!(topic = %failed.topic, error = %failed.source, "event log closed after a failed write");
                self.shared.queue.fail(closed.clone());
                break (closed, Some(failed));
            }
            self.pause(&mut began, batches);
        };
        for topic in &self.shared.topics {
            let doubtful = failed.as_ref().filter(|failed| failed.topic == topic.topic);
            topic.progress.fail_writes(closed.clone(), doubtful.map_or(0, |failed| failed.doubtful_until));
        }
        self.shared.sync.stop();
    }

    /// Lets batches gather if drains follow each other closely. Nobody signals a writer that pauses.
    fn pause(&self, began: &mut Option<Instant>, batches: usize) {
        // One more than came, so that under load the gaps grow.
        let expected = if batches == 1 { 1 } else { u32::try_from(batches).unwrap_or(u32::MAX).saturating_add(1) };
        let gap = GAP_PER_BATCH.saturating_mul(expected).min(self.shared.options.drain_gap);
        let rest = began.map_or(gap, |began| gap.saturating_sub(began.elapsed()));
        if began.is_some() && !rest.is_zero() {
            thread::sleep(rest);
        }
        *began = Some(Instant::now());
    }

    fn write(&mut self, drain: &mut Vec<(u64, Batch)>) -> Result<(), Failed> {
        for (offset, batch) in drain.drain(..) {
            let topic = batch.topic;
            let salt = self.segment_for(topic, offset)?;
            let slot = &mut self.slots[topic.index()];
            slot.frames.push(salt, offset, self.shared.topic(topic).progress.durable(), &batch);
            slot.batches.push((offset, batch));
            if slot.frames.len() >= PIECE_BYTES {
                self.flush(topic)?;
            }
        }
        // In the order of the topics, so that the one that clients wait for is first.
        Topic::ALL.into_iter().try_for_each(|topic| self.flush(topic))
    }

    /// Makes sure that there is an active segment with room; returns its salt.
    fn segment_for(&mut self, topic: Topic, offset: u64) -> Result<u32, Failed> {
        let limit = self.shared.options.segment_bytes;
        let slot = &self.slots[topic.index()];
        let len = slot.segment.as_ref().map_or(0, |segment| segment.len() + slot.frames.len() as u64);
        if len >= limit {
            self.flush(topic)?;
            self.close_segment(topic)?;
        }
        match &self.slots[topic.index()].segment {
            Some(segment) => Ok(segment.salt()),
            None => self.open_segment(topic, offset),
        }
    }

    fn close_segment(&mut self, topic: Topic) -> Result<(), Failed> {
        let Some(mut segment) = self.slots[topic.index()].segment.take() else { return Ok(()) };
        let footer = segment.close(self.shared.options.disk.as_ref()).map_err(|error| Failed::of(topic, error, 0))?;
        self.shared.topic(topic).closed(&segment, footer);
        self.shared.sync_queue(topic).mark_file(topic, segment.file());
        Ok(())
    }

    fn open_segment(&mut self, topic: Topic, offset: u64) -> Result<u32, Failed> {
        let shared = &self.shared;
        let log = shared.topic(topic);
        let failed = |source| Failed { topic, action: "create a segment in", source, doubtful_until: 0 };
        if ensure_folder(&log.folder).map_err(failed)? {
            shared.sync_queue(topic).mark_folder(topic, &shared.options.folder);
        }
        let disk = shared.options.disk.as_ref();
        let segment = SegmentWriter::create(disk, &log.folder, topic.suffix(), 0, offset).map_err(failed)?;
        shared.sync_queue(topic).mark_folder(topic, &log.folder);
        log.opened(&segment);
        let salt = segment.salt();
        self.slots[topic.index()].segment = Some(segment);
        Ok(salt)
    }

    /// One write for all frames that have gathered for the topic; then readers and waiters learn of them.
    fn flush(&mut self, topic: Topic) -> Result<(), Failed> {
        let slot = &mut self.slots[topic.index()];
        let Some(segment) = slot.segment.as_mut().filter(|_| !slot.frames.is_empty()) else { return Ok(()) };
        let (until, metrics) = (slot.frames.end_offset, &self.shared.options.metrics);
        segment
            .append(self.shared.options.disk.as_ref(), &slot.frames)
            .map_err(|error| Failed::of(topic, error, until))?;
        metrics.appends.inc_by(slot.batches.len() as u64);
        metrics.append_bytes.inc_by(slot.frames.len() as u64);
        let log = self.shared.topic(topic);
        log.published(segment, slot.batches.drain(..));
        log.progress.advance(Stage::Written, until);
        self.shared.sync_queue(topic).mark_written(topic, segment.file(), until);
        slot.frames.clear();
        Ok(())
    }
}

impl Failed {
    fn of(topic: Topic, error: WriteFailed, until: u64) -> Self {
        let doubtful_until = if error.cut_back { 0 } else { until };
        Self { topic, action: "write to", source: error.source, doubtful_until }
    }

    fn closed(&self, folder: impl std::fmt::Display) -> Closed {
        close_reason(self.action, folder, &self.source)
    }
}

/// What an operator is told when the disk refuses.
pub(super) fn close_reason(action: &str, folder: impl std::fmt::Display, error: &io::Error) -> Closed {
    let cause = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => CloseCause::DiskFull,
        io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => CloseCause::ReadOnly,
        _ => CloseCause::Io,
    };
    Closed { cause, detail: format!("cannot {action} {folder}: {error}").into() }
}
