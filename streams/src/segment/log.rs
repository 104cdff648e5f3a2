//! The embedded log: a queue in front of one writing thread, and syncing threads behind it.
//!
//! ```text
//!   append ──▶ queue ──▶ writer: one write per topic and drain ──▶ syncer: one sync per topic for all that wait
//!   (offset given here)      │ written                                  │ durable
//!                            └────────────── progress wakes ────────────┘
//! ```
//!
//! Offsets are given out under the queue's lock, so that the order of the queue is the order of the log. The threads
//! are the log's own rather than tasks: they block on the disk for most of their life, and must outlive a runtime that
//! shuts down while batches wait.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;

use super::disk::{Disk, SystemDisk};
use super::lock::FolderLock;
use super::mark::{MarkFile, Marks};
use super::recover::{self, OpenError};
use super::syncer::{Pace, SyncQueue, SyncQueues, Syncer};
use super::tail::Wanted;
use super::topic_log::TopicLog;
use super::writer::{Queue, Writer};
use crate::append::{Append, Counted, Stage};
use crate::contract::{
    AppendError, Batch, CloseCause, Closed, EventLog, Health, Limits, Offsets, Placed, Position, ReadError,
    StoredRecord, Visibility,
};
use crate::metrics::LogMetrics;
use crate::topics::{Retention, Topic, Topics};

/// How an embedded log is opened.
#[derive(Debug, Clone)]
pub struct SegmentOptions {
    /// Created if it is not there.
    pub folder: PathBuf,
    /// A segment is closed once it is this large. 64 MiB: small enough to scan the last one at start in a tenth of a
    /// second, large enough that a year is some thousand files.
    pub segment_bytes: u64,
    /// Memory for the newest batches of each topic. 16 MiB are some ten thousand requests: a consumer that is a
    /// second behind still reads memory.
    pub tail_bytes: usize,
    /// What may wait for the writer. 64 MiB are more than a disk writes in the tenth of a second after which callers
    /// should rather be told.
    pub queue_bytes: usize,
    /// Longest time from the beginning of a drain to that of the next. It gathers batches, so that neither thread is
    /// woken for each, and grows with their number; a log at rest writes at once.
    pub drain_gap: Duration,
    pub disk: Arc<dyn Disk>,
    pub metrics: LogMetrics,
}

impl SegmentOptions {
    #[must_use]
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
            segment_bytes: 64 * 1024 * 1024,
            tail_bytes: 16 * 1024 * 1024,
            queue_bytes: 64 * 1024 * 1024,
            drain_gap: Duration::from_millis(1),
            disk: Arc::new(SystemDisk),
            metrics: LogMetrics::default(),
        }
    }
}

/// What opening found of one topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TopicFound {
    pub topic: Topic,
    pub start_offset: u64,
    pub end_offset: u64,
    /// Of the tail that was never durable. Zero after an orderly stop and after most kills.
    pub cut_bytes: u64,
}

/// An [`EventLog`] in a folder of this machine. One process at a time.
#[derive(Debug)]
pub struct SegmentLog {
    shared: Arc<Shared>,
    found: Vec<TopicFound>,
    running: Mutex<Option<Running>>,
}

/// Dropped in this order: the lock is let go when nothing writes any more.
#[derive(Debug)]
struct Running {
    threads: Vec<JoinHandle<()>>,
    _lock: FolderLock,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub options: SegmentOptions,
    pub table: Topics,
    pub topics: Vec<TopicLog>,
    pub queue: Queue,
    pub sync: SyncQueues,
    pub mark: MarkFile,
}

impl SegmentLog {
    /// Takes the folder's lock, recovers every topic and starts the threads. Blocks on the disk: a second for
    /// each few gigabytes per second it must scan, at most one segment per topic.
    ///
    /// # Errors
    /// [`OpenError`]: in use, damaged, written by a newer version, or refused by the system.
    pub fn open(options: SegmentOptions) -> Result<Self, OpenError> {
        let table = Topics::bundled()?;
        let io = |action, path: String| move |source| OpenError::Io { action, path, source };
        let folder = options.folder.clone();
        std::fs::create_dir_all(&folder).map_err(io("create", folder.display().to_string()))?;
        let lock = FolderLock::take(&folder)?;
        let marks = Marks::read(&folder).map_err(io("read the durable mark in", folder.display().to_string()))?;
        let (mut topics, mut writers, mut found) = (Vec::new(), Vec::new(), Vec::new());
        for topic in Topic::ALL {
            let topic_folder = folder.join(topic.suffix());
            let recovered = recover::recover(options.disk.as_ref(), &topic_folder, topic, marks.of(topic))?;
            let (start_offset, end_offset, cut_bytes) =
                (recovered.start_offset, recovered.end_offset, recovered.cut_bytes);
            if cut_bytes > 0 {
                tracing::warn!(%topic, cut_bytes, end_offset, "unsynced tail cut");
            }
            found.push(TopicFound { topic, start_offset, end_offset, cut_bytes });
            topics.push(TopicLog::new(topic, topic_folder, &recovered, options.tail_bytes));
            writers.push(recovered.active);
        }
        let ends = found.iter().map(|found: &TopicFound| found.end_offset);
        let mark =
            MarkFile::replace(&folder, ends).map_err(io("write the durable mark in", folder.display().to_string()))?;
        recover::sync_folder(options.disk.as_ref(), &folder)?;
        let queue = Queue::new(topics.iter().map(|topic| topic.progress.written()), options.queue_bytes);
        let shared = Arc::new(Shared { options, table, topics, queue, sync: SyncQueues::default(), mark });
        let writer = Writer::new(Arc::clone(&shared), writers);
        let eager = Syncer::new(Arc::clone(&shared), Pace::Eager);
        let paced = Syncer::new(Arc::clone(&shared), Pace::Paced);
        let spawn = |name: &str, run: Box<dyn FnOnce() + Send>| {
            let path = folder.display().to_string();
            thread::Builder::new().name(name.to_owned()).spawn(run).map_err(io("start a thread for", path))
        };
        let threads = vec![
            spawn("log-writer", Box::new(|| writer.run()))?,
            spawn("log-sync", Box::new(|| eager.run()))?,
            spawn("log-sync-paced", Box::new(|| paced.run()))?,
        ];
        Ok(Self { shared, found, running: Mutex::new(Some(Running { threads, _lock: lock })) })
    }

    /// What each topic held when the log was opened.
    #[must_use]
    pub fn found(&self) -> &[TopicFound] {
        &self.found
    }

    /// Deletes the closed segments of a topic whose records are all older than the topic is kept for, as of `now_ms`,
    /// and below `consumed`, the least position of its consumers. Returns how many.
    ///
    /// # Errors
    /// Of the system. Nothing readable is lost by one: segments go oldest first.
    pub fn expire(&self, topic: Topic, now_ms: i64, consumed: u64) -> std::io::Result<usize> {
        match self.shared.table.spec(topic).retention {
            Retention::Forever | Retention::Compacted => Ok(0),
            Retention::Days(days) => {
                let before_ms = now_ms.saturating_sub(i64::from(days) * 86_400_000);
                self.shared.topic(topic).expire(before_ms, consumed)
            }
        }
    }

    /// Deletes the closed segments of a topic that hold nothing at or above `below`, however old they are: for a spool,
    /// whose records are worth nothing once they are elsewhere. Returns how many.
    ///
    /// # Errors
    /// Of the system. Nothing readable is lost by one: segments go oldest first.
    pub fn trim(&self, topic: Topic, below: u64) -> std::io::Result<usize> {
        self.shared.topic(topic).expire(i64::MAX, below)
    }

    /// Checks the batch and hands it to the writer; its offset is known at once.
    pub(crate) fn accept(&self, batch: Batch) -> Result<Counted, AppendError> {
        let records = batch.values.len();
        let bytes = batch.checked_bytes()?;
        let topic = batch.topic;
        let offset = self.shared.queue.push(batch, bytes)?;
        let first = Position { topic, partition: 0, offset };
        let count = u32::try_from(records).unwrap_or(u32::MAX);
        let placed = Placed { first, count, in_spool: false };
        Ok(Counted::new(Arc::clone(&self.shared.topic(topic).progress), placed))
    }

    /// Refuses new batches, makes the accepted ones durable and lets go of the folder. Blocks.
    fn stop(&self) {
        self.shared.queue.stop();
        stop_running(self.running.lock().take());
    }
}

fn stop_running(running: Option<Running>) {
    let Some(Running { threads, _lock }) = running else { return };
    for thread in threads {
        if thread.join().is_err() {
            tracing::error!("a thread of the event log panicked");
        }
    }
}

impl Drop for SegmentLog {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    pub(super) fn topic(&self, topic: Topic) -> &TopicLog {
        &self.topics[topic.index()]
    }

    pub(super) fn sync_queue(&self, topic: Topic) -> &SyncQueue {
        self.sync.of(self.table.spec(topic))
    }

    fn partition(&self, topic: Topic, partition: u32) -> Result<&TopicLog, ReadError> {
        if partition == 0 { Ok(self.topic(topic)) } else { Err(ReadError::NoPartition { topic, partition }) }
    }
}

/// Held by each thread: if it panics, nobody may wait for ever for what it can no longer do.
#[derive(Debug)]
pub(super) struct PanicGuard(pub Arc<Shared>);

impl Drop for PanicGuard {
    fn drop(&mut self) {
        if thread::panicking() {
            let closed = Closed { cause: CloseCause::Io, detail: "a thread of the event log panicked".into() };
            self.0.queue.fail(closed.clone());
            for topic in &self.0.topics {
                topic.progress.fail_writes(closed.clone(), u64::MAX);
                topic.progress.fail_syncs(closed.clone());
            }
            self.0.sync.stop();
        }
    }
}

#[async_trait]
impl EventLog for SegmentLog {
    fn append(&self, batch: Batch) -> Append {
        self.accept(batch).map_or_else(Append::refused, Append::counted)
    }

    async fn read(&self, at: Position, limits: Limits, seen: Visibility) -> Result<Vec<StoredRecord>, ReadError> {
        let topic = self.shared.partition(at.topic, at.partition)?;
        let visible = match seen {
            Visibility::Durable => topic.progress.durable(),
            Visibility::Written => topic.progress.written(),
        };
        if at.offset >= visible {
            return Ok(Vec::new());
        }
        let mut wanted = Wanted::new(at.offset, visible, limits);
        let metrics = &self.shared.options.metrics;
        let Some(from_file) = topic.read_tail(&mut wanted)? else {
            metrics.tail_reads.inc();
            return Ok(wanted.records);
        };
        metrics.file_reads.inc();
        let blocking = tokio::task::spawn_blocking(move || {
            from_file.run(at.topic, &mut wanted)?;
            Ok(wanted.records)
        });
        blocking.await.unwrap_or_else(|join| {
            let file = topic.folder.display().to_string();
            Err(ReadError::Io { file, source: std::io::Error::other(join) })
        })
    }

    async fn wait(&self, at: Position, seen: Visibility) -> Result<(), ReadError> {
        let topic = self.shared.partition(at.topic, at.partition)?;
        let stage = match seen {
            Visibility::Durable => Stage::Durable,
            Visibility::Written => Stage::Written,
        };
        match topic.progress.reached(stage, at.offset.saturating_add(1)).await {
            Ok(()) => Ok(()),
            Err(AppendError::Closed(closed) | AppendError::Unknown(closed)) => Err(ReadError::Closed(closed)),
            Err(
                error @ (AppendError::Empty
                | AppendError::TooManyRecords { .. }
                | AppendError::TooLarge { .. }
                | AppendError::Busy { .. }),
            ) => Err(ReadError::Closed(Closed { cause: CloseCause::Io, detail: error.to_string().into() })),
        }
    }

    async fn offsets(&self, topic: Topic, partition: u32) -> Result<Offsets, ReadError> {
        let topic = self.shared.partition(topic, partition)?;
        // Durable before written: between the two loads both may grow, and durable must not appear ahead.
        let durable = topic.progress.durable();
        Ok(Offsets { start: topic.start_offset(), durable, written: topic.progress.written() })
    }

    fn partitions(&self, _topic: Topic) -> u32 {
        1
    }

    fn health(&self) -> Health {
        self.shared.queue.closed().map_or(Health::Accepting, Health::Closed)
    }

    async fn close(&self) {
        self.shared.queue.stop();
        let running = self.running.lock().take();
        // Joining blocks for as long as the last sync takes. If the runtime is already shutting down, Drop has run it.
        let _ = tokio::task::spawn_blocking(move || stop_running(running)).await;
    }
}

#[cfg(test)]
#[path = "log_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "power_tests.rs"]
mod power_tests;

#[cfg(test)]
#[path = "process_tests.rs"]
mod process_tests;

#[cfg(test)]
#[path = "growth_tests.rs"]
mod growth_tests;
