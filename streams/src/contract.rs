//! The contract of an event log: what a caller may rely on, whatever stores the bytes.
//!
//! A batch has one topic and **one key**. Everything that must be atomic here is one step of one reservation, so it
//! has one key, hence one partition, hence one place where it is whole or absent. Batches over several topics or keys
//! would need a commit protocol on every backend and nothing in Weir needs them.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use thiserror::Error;

use crate::append::Append;
use crate::topics::Topic;

/// A batch larger than this is refused: it bounds what recovery must hold in memory and what one caller can queue.
/// Eight times the largest record that the suite appends (2 MB).
pub const MAX_BATCH_BYTES: usize = 16 * 1024 * 1024;
/// More records than one step ever makes (a request makes six), so that a count in a damaged frame is bounded.
pub const MAX_BATCH_RECORDS: usize = 4096;

/// An ordered, durable, keyed log.
///
/// ```text
///   offset   0   1   2   3   4   5   6   7
///          [ a   a ][ b ][ a   a   a ][ b ]      batches: contiguous, whole or absent
///            ^              ^          ^
///            start          durable    written   start ≤ durable ≤ written
/// ```
///
/// **Order.** Batches of one key are stored in the order in which `append` was called for them, and the records of a
/// batch in theirs. Offsets of a partition ascend and are never used twice with other content. The embedded log has
/// no holes in them, and keeps the records of a batch contiguous. On Kafka records of other writers may lie between
/// those of a batch, and a compacted topic has holes.
///
/// **Atomic.** The embedded log MUST give a batch whole or not at all, also after a crash at any byte. **Kafka cannot**:
/// the client library may cut a batch into two requests, and a process that dies between them leaves a *prefix*, never
/// anything else. So a step that ends early must mean something to readers: every event of Weir names its own step, and
/// the reconciler completes from the log what a prefix leaves open. A batch is confirmed only as a whole.
///
/// **Written, durable.** *Written* means that a killed process cannot lose it; *durable* that a lost machine power
/// (embedded) or a lost broker (Kafka) cannot. *Written* MUST NOT wait for a sync. A backend without a stage between
/// (Kafka) resolves both together. Both are awaited apart and in any order; dropping the [`Append`] changes nothing.
///
/// **Reads** see up to the durable position by default. A consumer whose effects leave the log (money, another store)
/// MUST NOT act on a record that could still vanish.
///
/// **Copies.** A backend MAY store a batch twice (a repeated produce); it MUST NOT reorder a key by that. Readers
/// deduplicate by event id.
///
/// **Failure.** After an I/O error the log closes for admission and says why in [`EventLog::health`]; it MUST NOT
/// become shorter in silence, nor accept again until it is opened again. What was durable stays readable. Brokers that
/// do not answer are no such error: what is appended meanwhile waits, in memory and in the spool, and where it waits
/// too long its outcome is unknown. A spool that runs full closes the log for *admission* only: `health` says so, while
/// `append` still takes the closing events of what runs, for which room was kept.
#[async_trait]
pub trait EventLog: fmt::Debug + Send + Sync {
    /// Hands one batch over. Never blocks on I/O; the result is in the [`Append`]. An `Err` there says by
    /// [`AppendError::may_have_happened`] whether the batch can still turn up.
    fn append(&self, batch: Batch) -> Append;

    /// Up to `limits` records from `at` on, in order. At least one record if one is there, however large. Empty at or
    /// beyond the end.
    ///
    /// # Errors
    /// [`ReadError`]; a damaged record is an error that names its place, never skipped.
    async fn read(&self, at: Position, limits: Limits, seen: Visibility) -> Result<Vec<StoredRecord>, ReadError>;

    /// Returns once a record at `at` can be read.
    ///
    /// # Errors
    /// [`ReadError::Closed`] when it never will, because the log was closed before.
    async fn wait(&self, at: Position, seen: Visibility) -> Result<(), ReadError>;

    /// # Errors
    /// When the partition does not exist or the backend cannot be asked.
    async fn offsets(&self, topic: Topic, partition: u32) -> Result<Offsets, ReadError>;

    /// How many partitions the topic has; they are numbered from 0.
    fn partitions(&self, topic: Topic) -> u32;

    fn health(&self) -> Health;

    /// Refuses new batches, makes all accepted ones durable, lets go of the storage. May be called again.
    async fn close(&self);
}

/// The records of one step: appended together or not at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    pub topic: Topic,
    pub key: Bytes,
    /// Milliseconds since the Unix epoch, from the caller's clock.
    pub time_ms: i64,
    /// One or more opaque payloads, in order.
    pub values: Vec<Bytes>,
}

impl Batch {
    #[must_use]
    pub fn new(topic: Topic, key: impl Into<Bytes>, time_ms: i64, values: Vec<Bytes>) -> Self {
        Self { topic, key: key.into(), time_ms, values }
    }

    /// Bytes of key and values.
    #[must_use]
    pub fn payload_bytes(&self) -> usize {
        self.values.iter().fold(self.key.len(), |sum, value| sum.saturating_add(value.len()))
    }

    /// The bytes of a batch that is within the bounds of every backend.
    pub(crate) fn checked_bytes(&self) -> Result<usize, AppendError> {
        let (records, bytes) = (self.values.len(), self.payload_bytes());
        match records {
            0 => Err(AppendError::Empty),
            MAX_BATCH_RECORDS.. if records > MAX_BATCH_RECORDS => Err(AppendError::TooManyRecords { records }),
            _ if bytes > MAX_BATCH_BYTES => Err(AppendError::TooLarge { bytes }),
            _ => Ok(bytes),
        }
    }
}

/// One place in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    pub topic: Topic,
    pub partition: u32,
    pub offset: u64,
}

/// Where a batch came to be: `count` records from `first` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Placed {
    pub first: Position,
    pub count: u32,
    /// The place is one in the spool beside the log, whence the batch goes to the log later.
    pub in_spool: bool,
}

/// A record as it is read. Copies of it share their bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredRecord {
    pub partition: u32,
    pub offset: u64,
    pub key: Bytes,
    pub value: Bytes,
    /// Of its batch: milliseconds since the Unix epoch, from the writer's clock.
    pub time_ms: i64,
}

/// Bounds of one read. The first record is returned even when it is larger than `bytes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    pub records: usize,
    pub bytes: usize,
}

impl Default for Limits {
    /// What a consumer digests in a few milliseconds.
    fn default() -> Self {
        Self { records: 1024, bytes: 4 * 1024 * 1024 }
    }
}

/// Up to where a reader sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Visibility {
    #[default]
    Durable,
    /// Also what a power loss could still take: only for readers whose effects vanish with the log.
    Written,
}

/// The ends of one partition: offsets of the first record kept, and one past the last durable and written ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offsets {
    pub start: u64,
    pub durable: u64,
    pub written: u64,
}

/// Whether the log takes batches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    Accepting,
    Closed(Closed),
}

/// Why a log takes nothing more.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("the event log is closed for new events: {detail}")]
pub struct Closed {
    pub cause: CloseCause,
    /// Names the file and the system's error.
    pub detail: Arc<str>,
}

/// What an operator does about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloseCause {
    /// Make room, then restart.
    DiskFull,
    /// Make the file system writable, then restart.
    ReadOnly,
    /// Check the disk, then restart.
    Io,
    /// Nothing: it was asked to stop.
    Stopped,
    /// Nothing to it here: the brokers do not confirm, and it goes on by itself once they do.
    Unconfirmed,
    /// Bring the brokers back, or give the spool more room. It opens again by itself.
    SpoolFull,
}

/// Why a batch was not confirmed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum AppendError {
    #[error("a batch needs at least one record")]
    Empty,
    #[error("the batch has {records} records, the limit is {MAX_BATCH_RECORDS}")]
    TooManyRecords { records: usize },
    #[error("the batch has {bytes} bytes, the limit is {MAX_BATCH_BYTES}")]
    TooLarge { bytes: usize },
    #[error("{queued_bytes} bytes wait for the log's writer, the limit is {limit_bytes}: try again later")]
    Busy { queued_bytes: usize, limit_bytes: usize },
    #[error("not appended")]
    Closed(#[source] Closed),
    #[error("may or may not have been appended")]
    Unknown(#[source] Closed),
}

impl AppendError {
    /// False means that the batch certainly is not in the log and never will be.
    #[must_use]
    pub const fn may_have_happened(&self) -> bool {
        match self {
            Self::Unknown(_) => true,
            Self::Empty | Self::TooManyRecords { .. } | Self::TooLarge { .. } | Self::Busy { .. } | Self::Closed(_) => {
                false
            }
        }
    }

    /// Whether the same batch may be taken by this log a little later. After an unknown outcome that leaves a copy at
    /// worst, which readers count once.
    #[must_use]
    pub const fn is_temporary(&self) -> bool {
        match self {
            Self::Busy { .. } => true,
            Self::Unknown(closed) => matches!(closed.cause, CloseCause::Unconfirmed),
            Self::Empty | Self::TooManyRecords { .. } | Self::TooLarge { .. } | Self::Closed(_) => false,
        }
    }
}

/// Why nothing could be read.
#[derive(Debug, Error)]
pub enum ReadError {
    #[error("{topic} has no partition {partition}")]
    NoPartition { topic: Topic, partition: u32 },
    #[error("{topic} begins at offset {start} now: offset {offset} is no longer kept")]
    Gone { topic: Topic, offset: u64, start: u64 },
    #[error("{file} is damaged at byte {byte}: {flaw}")]
    Damaged { file: String, byte: u64, flaw: String },
    #[error(transparent)]
    Closed(Closed),
    #[error("cannot read {file}")]
    Io { file: String, source: std::io::Error },
}

impl ReadError {
    /// Whether the same read may succeed later without anybody's help.
    #[must_use]
    pub const fn is_temporary(&self) -> bool {
        match self {
            Self::Io { .. } => true,
            Self::NoPartition { .. } | Self::Gone { .. } | Self::Damaged { .. } | Self::Closed(_) => false,
        }
    }
}
