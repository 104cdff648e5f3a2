//! [`SpooledLog`]: Kafka with the spool in front.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use thiserror::Error;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::forward;
use super::forwarded;
use super::lane::{Gear, Lane, Room, cost_of};
use super::metrics::SpoolMetrics;
use crate::append::Append;
use crate::contract::{
    Batch, CloseCause, Closed, EventLog, Health, Limits, Offsets, Position, ReadError, StoredRecord, Visibility,
};
use crate::kafka::{KafkaLog, KafkaOptions, OpenError};
use crate::segment::{self, SegmentLog, SegmentOptions};
use crate::topics::Topic;

/// Small, so that what was forwarded can be deleted soon.
const SEGMENT_BYTES: u64 = 8 * 1024 * 1024;
/// What the forwarder reads at the tail; older records are read from their files.
const TAIL_BYTES: usize = 2 * 1024 * 1024;
/// How long a close waits for the brokers before it leaves the rest in the spool.
const CLOSE_PATIENCE: Duration = Duration::from_secs(3);
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Why a spool cannot be used.
#[derive(Debug, Error)]
pub enum SpoolError {
    #[error("the spool in {} cannot be opened", folder.display())]
    Segment { folder: PathBuf, source: segment::OpenError },
    #[error("the spool in {} cannot be read", folder.display())]
    Read { folder: PathBuf, source: ReadError },
    #[error("the spool in {}", folder.display())]
    Io { folder: PathBuf, source: std::io::Error },
    #[error("there is no spool in {}", folder.display())]
    Absent { folder: PathBuf },
    #[error(transparent)]
    Kafka(#[from] OpenError),
}

impl SpoolError {
    /// Whether the same call may succeed later by itself.
    #[must_use]
    pub const fn is_temporary(&self) -> bool {
        match self {
            Self::Kafka(error) => error.is_temporary(),
            Self::Segment { .. } | Self::Read { .. } | Self::Io { .. } | Self::Absent { .. } => false,
        }
    }
}

/// What waits in a spool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpoolStatus {
    pub records: u64,
    pub bytes: u64,
    /// How long it has not been empty.
    pub age: Option<Duration>,
    /// By topic that is not empty: everything below the first offset is confirmed by the brokers, the second is the end.
    /// Offsets are the spool's own.
    pub heads: Vec<(Topic, u64, u64)>,
}

/// An [`EventLog`] on Kafka that goes on while the brokers do not.
#[derive(Debug)]
pub struct SpooledLog {
    gear: Arc<Gear>,
    lanes: Arc<[Lane]>,
    stop: watch::Sender<bool>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl SpooledLog {
    /// Opens Kafka, then the spool in `folder`, which belongs to one process, and begins to forward what an earlier one
    /// left.
    ///
    /// # Errors
    /// [`SpoolError`], which says whether waiting helps.
    pub async fn open(options: &KafkaOptions, folder: &Path, metrics: SpoolMetrics) -> Result<Self, SpoolError> {
        let kafka = KafkaLog::beside_a_spool(options).await?;
        let of = |folder: &Path| folder.to_owned();
        let io = |source| SpoolError::Io { folder: of(folder), source };
        let mut segments = SegmentOptions::new(folder);
        segments.segment_bytes = SEGMENT_BYTES;
        segments.tail_bytes = TAIL_BYTES;
        let opened = tokio::task::spawn_blocking(move || SegmentLog::open(segments)).await;
        let opened = opened.map_err(|join| io(std::io::Error::other(join)))?;
        let spool = opened.map_err(|source| SpoolError::Segment { folder: of(folder), source })?;
        let forwarded = forwarded::read(folder).map_err(io)?;
        let room = Room::new(options.spool.max.bytes(), options.spool.reserve.bytes());
        let mut lanes = Vec::with_capacity(Topic::COUNT);
        for found in spool.found() {
            // A file from before a power loss may be ahead of what was kept.
            let begin = forwarded[found.topic.index()].clamp(found.start_offset, found.end_offset);
            let left = left_bytes(&spool, found.topic, begin, found.end_offset).await;
            room.force(left.map_err(|source| SpoolError::Read { folder: of(folder), source })?);
            if begin < found.end_offset {
                let records = found.end_offset - begin;
                tracing::warn!(topic = %found.topic, records, "the spool of an earlier process is forwarded");
            }
            lanes.push(Lane::new(found.topic, begin, found.end_offset));
        }
        let gear = Arc::new(Gear { kafka, spool, room, after: options.spool.after.duration(), metrics });
        let lanes: Arc<[Lane]> = lanes.into();
        let (stop, stopping) = watch::channel(false);
        let (running, followed, place) = (Arc::clone(&gear), Arc::clone(&lanes), of(folder));
        let thread = thread::Builder::new().name("spool".to_owned()).spawn(move || {
            if let Err(error) = forward::run(&running, &followed, &place, &stopping) {
                tracing::error!(%error, "the spool cannot be forwarded: restart the process");
            }
        });
        let thread = Mutex::new(Some(thread.map_err(io)?));
        Ok(Self { gear, lanes, stop, thread })
    }

    /// What waits for the brokers.
    #[must_use]
    pub fn status(&self) -> SpoolStatus {
        let mut status = SpoolStatus { records: 0, bytes: self.gear.room.used_bytes(), age: None, heads: Vec::new() };
        for lane in self.lanes.iter() {
            let state = lane.state.lock();
            if state.forwarded < state.end {
                status.records += state.end - state.forwarded;
                status.heads.push((lane.topic, state.forwarded, state.end));
                status.age = status.age.max(state.since.map(|since| since.elapsed()));
            }
        }
        status
    }

    /// Returns once the brokers have confirmed everything that was appended before.
    pub async fn drained(&self) {
        while !self.lanes.iter().all(Lane::is_clear) {
            sleep(LOOK_EVERY).await;
        }
    }

    /// Returns once the brokers have confirmed everything of `topic` that was appended before the call, by an earlier
    /// process on this folder too. What is appended meanwhile does not hold it up.
    pub async fn confirmed(&self, topic: Topic) {
        let lane = self.lane(topic);
        let (direct, end) = lane.outstanding();
        for ticket in direct {
            // Whoever appended a batch that failed was told so.
            drop(ticket.delivered().await);
        }
        while lane.forwarded() < end {
            sleep(LOOK_EVERY).await;
        }
    }

    fn lane(&self, topic: Topic) -> &Lane {
        &self.lanes[topic.index()]
    }
}

async fn left_bytes(spool: &SegmentLog, topic: Topic, begin: u64, end: u64) -> Result<u64, ReadError> {
    let (mut offset, mut bytes) = (begin, 0);
    while offset < end {
        let at = Position { topic, partition: 0, offset };
        let records = spool.read(at, Limits::default(), Visibility::Written).await?;
        let Some(last) = records.last() else { break };
        offset = last.offset + 1;
        bytes += records.iter().map(cost_of).sum::<u64>();
    }
    Ok(bytes)
}

impl Drop for SpooledLog {
    /// The thread ends by itself; what is in the spool is there at the next start.
    fn drop(&mut self) {
        self.stop.send_replace(true);
    }
}

#[async_trait]
impl EventLog for SpooledLog {
    fn append(&self, batch: Batch) -> Append {
        self.lane(batch.topic).append(&self.gear, batch)
    }

    async fn read(&self, at: Position, limits: Limits, seen: Visibility) -> Result<Vec<StoredRecord>, ReadError> {
        self.gear.kafka.read(at, limits, seen).await
    }

    async fn wait(&self, at: Position, seen: Visibility) -> Result<(), ReadError> {
        self.gear.kafka.wait(at, seen).await
    }

    async fn offsets(&self, topic: Topic, partition: u32) -> Result<Offsets, ReadError> {
        self.gear.kafka.offsets(topic, partition).await
    }

    fn partitions(&self, topic: Topic) -> u32 {
        self.gear.kafka.partitions(topic)
    }

    fn health(&self) -> Health {
        match (self.gear.kafka.health(), self.gear.spool.health()) {
            (Health::Closed(closed), _) | (_, Health::Closed(closed)) => Health::Closed(closed),
            (Health::Accepting, Health::Accepting) if self.gear.room.is_full_for_new() => {
                let used = self.gear.room.used_bytes();
                let detail = format!("the spool holds {used} bytes that the brokers do not confirm");
                Health::Closed(Closed { cause: CloseCause::SpoolFull, detail: detail.into() })
            }
            (Health::Accepting, Health::Accepting) => Health::Accepting,
        }
    }

    async fn close(&self) {
        self.lanes.iter().for_each(Lane::close);
        let deadline = Instant::now() + CLOSE_PATIENCE;
        while Instant::now() < deadline && !self.lanes.iter().all(Lane::is_clear) {
            sleep(LOOK_EVERY).await;
        }
        for lane in self.lanes.iter() {
            lane.spill(&self.gear);
        }
        self.stop.send_replace(true);
        let thread = self.thread.lock().take();
        let joined = tokio::task::spawn_blocking(move || thread.map(JoinHandle::join)).await;
        if !matches!(joined, Ok(None | Some(Ok(())))) {
            tracing::error!("the spool's thread panicked");
        }
        self.gear.spool.close().await;
        self.gear.kafka.close_within(Duration::from_millis(100)).await;
    }
}

/// What was done with an orphaned spool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Adopted {
    /// Records that the brokers have confirmed now. Some may have been there before: copies are harmless.
    pub records: u64,
}

/// Forwards the spool of a process that will not come back. The folder is left with nothing to forward, so that doing
/// it again does nothing.
///
/// # Errors
/// [`SpoolError`]: among others when a process uses the folder, or when there is none.
pub async fn adopt(options: &KafkaOptions, folder: &Path) -> Result<Adopted, SpoolError> {
    // Written whenever a segment log is opened.
    if !folder.join("durable").is_file() {
        return Err(SpoolError::Absent { folder: folder.to_owned() });
    }
    let log = SpooledLog::open(options, folder, SpoolMetrics::default()).await?;
    let records = log.status().records;
    log.drained().await;
    log.close().await;
    Ok(Adopted { records })
}
