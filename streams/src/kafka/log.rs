//! [`KafkaLog`]: the contract on top of producer and cursors.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rdkafka::error::{KafkaError as LibraryError, RDKafkaErrorCode};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::client::{self, CALL_TIMEOUT};
use super::open::{self, OpenError, Opened};
use super::options::KafkaOptions;
use super::partition;
use super::produce::Producer;
use super::reader::{InUse, Readers, Waited};
use crate::append::Append;
use crate::contract::{
    AppendError, Batch, CloseCause, Closed, EventLog, Health, Limits, Offsets, Position, ReadError, StoredRecord,
    Visibility,
};
use crate::ticket::Ticket;
use crate::topics::Topic;

/// How often a place is looked for that is far beyond the end, or that has no leader.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// So many times in a row a reader may bring nothing, within [`CALL_TIMEOUT`], of what the brokers say is there. Brokers
/// with slow disks may take one or two of them for old records, and a client that is replaced asks them anew.
const MOST_MISSES: u32 = 3;

/// An [`EventLog`] on a Kafka cluster.
#[derive(Debug)]
pub struct KafkaLog {
    producer: Arc<Producer>,
    readers: Arc<Readers>,
    /// By [`Topic::index`].
    names: Arc<[String]>,
    partitions: Vec<u32>,
    /// How long a close waits for what is not confirmed.
    patience: Duration,
}

impl KafkaLog {
    /// Connects, and checks that every topic is there and can keep the promise. Needs a runtime of tokio.
    ///
    /// # Errors
    /// [`OpenError`], which says whether waiting helps.
    pub async fn open(options: &KafkaOptions) -> Result<Self, OpenError> {
        Self::with_timeout(options, options.message_timeout.duration()).await
    }

    /// A log on which nothing times out, because a spool stands in for what waits.
    pub(crate) async fn beside_a_spool(options: &KafkaOptions) -> Result<Self, OpenError> {
        Self::with_timeout(options, Duration::ZERO).await
    }

    async fn with_timeout(options: &KafkaOptions, timeout: Duration) -> Result<Self, OpenError> {
        let table = options.topics()?;
        let Opened { producer, names, partitions } = open::open(options, &table, timeout).await?;
        let readers = Arc::new(Readers::new(client::reader(options)?, &names, &table));
        let patience = if timeout.is_zero() { CALL_TIMEOUT } else { timeout };
        Ok(Self { producer: Arc::new(producer), readers, names: names.into(), partitions, patience })
    }

    /// The partition of a key, by the rule of Kafka's own clients.
    #[must_use]
    pub fn partition_of(&self, topic: Topic, key: &[u8]) -> u32 {
        partition::of_key(key, self.partitions(topic))
    }

    /// Hands the batch over; its outcome comes by the ticket.
    pub(crate) fn produce(&self, batch: &Batch) -> Result<Arc<Ticket>, AppendError> {
        self.producer.send(self.name(batch.topic), self.partition_of(batch.topic, &batch.key), batch)
    }

    /// As [`EventLog::close`], but waits only so long for what is not confirmed.
    pub(crate) async fn close_within(&self, patience: Duration) {
        let (producer, readers) = (Arc::clone(&self.producer), Arc::clone(&self.readers));
        let closed = client::blocking(move || {
            producer.stop(patience);
            readers.stop();
            Ok(())
        });
        if let Err(error) = closed.await {
            tracing::debug!(%error, "kafka log was closed by a runtime that ends");
        }
    }

    fn name(&self, topic: Topic) -> &str {
        &self.names[topic.index()]
    }

    fn check(&self, at: Position) -> Result<(), ReadError> {
        let Position { topic, partition, .. } = at;
        if partition < self.partitions(topic) { Ok(()) } else { Err(ReadError::NoPartition { topic, partition }) }
    }

    fn io(&self, at: Position, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> ReadError {
        let file = format!("{}/{}", self.name(at.topic), at.partition);
        ReadError::Io { file, source: std::io::Error::other(error) }
    }

    async fn begin(&self, at: Position) -> Result<InUse, ReadError> {
        let (readers, names) = (Arc::clone(&self.readers), Arc::clone(&self.names));
        let begun = client::blocking(move || readers.begin(at, &names[at.topic.index()]));
        begun.await.map_err(|error| self.io(at, error))
    }

    /// A cursor at a place where a record is, or `None` where none is yet. A new one gathers up to `records` of those
    /// that are there, so that who reads from afar takes whole deliveries.
    async fn cursor(&self, at: Position, records: usize) -> Result<Option<InUse>, ReadError> {
        if let Some(cursor) = self.readers.at(at)
            && !cursor.is_empty()
        {
            return Ok(Some(cursor));
        }
        let Offsets { start, durable, .. } = self.offsets(at.topic, at.partition).await?;
        if at.offset < start {
            return Err(ReadError::Gone { topic: at.topic, offset: at.offset, start });
        }
        if at.offset >= durable {
            return Ok(None);
        }
        let cursor = match self.readers.at(at) {
            Some(cursor) => cursor,
            None => self.begin(at).await?,
        };
        let last = at.offset.saturating_add(records.max(1) as u64).min(durable) - 1;
        match timeout(CALL_TIMEOUT, cursor.has(last)).await {
            Ok(Waited::Arrived | Waited::Full) => Ok(Some(cursor)),
            Ok(Waited::Stale) => Err(self.io(at, "the reader lost its place")),
            // Fewer than there are, but not none.
            Err(_) if !cursor.is_empty() => Ok(Some(cursor)),
            Err(_) => {
                self.note_miss(&cursor);
                Err(self.io(at, "the brokers give no records"))
            }
        }
    }

    async fn watermarks(&self, at: Position) -> Result<(i64, i64), LibraryError> {
        let (producer, names) = (Arc::clone(&self.producer), Arc::clone(&self.names));
        let asked = client::blocking(move || {
            let partition = i32::try_from(at.partition).unwrap_or(i32::MAX);
            let name = &names[at.topic.index()];
            let found = producer.client().fetch_watermarks(name, partition, CALL_TIMEOUT);
            if found.as_ref().is_err_and(is_moving) {
                // The library takes "has no leader", once heard, for an answer of a quarter of an hour. A question of its
                // own makes it forget that.
                producer.client().fetch_metadata(Some(name), CALL_TIMEOUT)?;
            }
            found
        });
        asked.await
    }

    /// Waits until it is worth looking again.
    async fn come_closer(&self, at: Position) -> Result<bool, ReadError> {
        if let Some(cursor) = self.readers.before(at) {
            return Ok(match timeout(CALL_TIMEOUT, cursor.has(at.offset)).await {
                // Full: whoever reads from there must take what is here before more can come.
                Ok(Waited::Arrived | Waited::Full) => true,
                Ok(Waited::Stale) => false,
                Err(_) => {
                    // Who waits goes on waiting while the brokers are away.
                    let offsets = self.offsets(at.topic, at.partition).await;
                    if offsets.is_ok_and(|offsets| offsets.durable > at.offset) {
                        self.note_miss(&cursor);
                    }
                    false
                }
            });
        }
        let offsets = self.offsets(at.topic, at.partition).await?;
        if at.offset < offsets.durable {
            return Ok(true);
        }
        if at.offset == offsets.durable {
            drop(self.begin(at).await?);
        } else {
            sleep(LOOK_EVERY).await;
        }
        Ok(false)
    }

    /// A cursor was brought nothing of what is there.
    fn note_miss(&self, cursor: &InUse) {
        if cursor.missed() >= MOST_MISSES {
            self.readers.replace(cursor);
        }
    }
}

/// A partition that is between two leaders, or was just created, has one again in a moment.
fn is_moving(error: &LibraryError) -> bool {
    use RDKafkaErrorCode::{LeaderNotAvailable, NotLeaderForPartition, UnknownPartition, UnknownTopicOrPartition};
    matches!(
        error.rdkafka_error_code(),
        Some(LeaderNotAvailable | NotLeaderForPartition | UnknownPartition | UnknownTopicOrPartition)
    )
}

async fn closing(mut closed: watch::Receiver<Option<Closed>>) -> Closed {
    let gone = || Closed { cause: CloseCause::Stopped, detail: "the log is gone".into() };
    match closed.wait_for(Option::is_some).await {
        Ok(closed) => closed.clone().unwrap_or_else(gone),
        Err(_) => gone(),
    }
}

#[async_trait]
impl EventLog for KafkaLog {
    fn append(&self, batch: Batch) -> Append {
        self.produce(&batch).map_or_else(Append::refused, Append::ticket)
    }

    /// On Kafka nothing is written that is not durable: both kinds of readers see the same.
    async fn read(&self, at: Position, limits: Limits, _seen: Visibility) -> Result<Vec<StoredRecord>, ReadError> {
        self.check(at)?;
        let cursor = self.cursor(at, limits.records).await?;
        Ok(cursor.map(|cursor| self.readers.take(&cursor, limits, self.name(at.topic))).unwrap_or_default())
    }

    async fn wait(&self, at: Position, _seen: Visibility) -> Result<(), ReadError> {
        self.check(at)?;
        let closed = closing(self.producer.closing());
        let arrived = async {
            while !self.come_closer(at).await? {}
            Ok(())
        };
        tokio::select! {
            biased;
            arrived = arrived => arrived,
            closed = closed => Err(ReadError::Closed(closed)),
        }
    }

    async fn offsets(&self, topic: Topic, partition: u32) -> Result<Offsets, ReadError> {
        let at = Position { topic, partition, offset: 0 };
        self.check(at)?;
        let deadline = Instant::now() + CALL_TIMEOUT;
        let (low, high) = loop {
            match self.watermarks(at).await {
                Ok(found) => break found,
                Err(error) if is_moving(&error) && Instant::now() < deadline => sleep(LOOK_EVERY).await,
                Err(error) => return Err(self.io(at, error)),
            }
        };
        let (start, durable) = (u64::try_from(low).unwrap_or(0), u64::try_from(high).unwrap_or(0));
        Ok(Offsets { start, durable, written: durable })
    }

    fn partitions(&self, topic: Topic) -> u32 {
        self.partitions[topic.index()]
    }

    fn health(&self) -> Health {
        self.producer.closed().map_or(Health::Accepting, Health::Closed)
    }

    async fn close(&self) {
        self.close_within(self.patience).await;
    }
}

#[cfg(test)]
#[path = "log_tests.rs"]
mod tests;
