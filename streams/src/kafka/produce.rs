//! The producing side: from a batch to acknowledgements.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use rdkafka::ClientContext;
use rdkafka::Message as _;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError as LibraryError, RDKafkaErrorCode};
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer as _, ProducerContext, ThreadedProducer};
use tokio::sync::watch;

use super::client;
use crate::contract::{AppendError, Batch, CloseCause, Closed, Position};
use crate::ticket::Ticket;
use crate::topics::Topic;

/// What the library calls back.
#[derive(Debug)]
pub(super) struct Deliveries {
    outstanding_bytes: AtomicUsize,
    /// Why nothing more is taken. Set once.
    closed: watch::Sender<Option<Closed>>,
}

pub(super) struct Producer {
    producer: ThreadedProducer<Deliveries>,
    deliveries: Arc<Deliveries>,
    /// Held while the records of a batch are enqueued, by topic: two batches of a partition never mix.
    enqueuing: Vec<Mutex<()>>,
    max_outstanding_bytes: usize,
}

impl std::fmt::Debug for Producer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Producer").field("deliveries", &self.deliveries).finish_non_exhaustive()
    }
}

impl ClientContext for Deliveries {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        client::log_line(level, facility, line);
    }

    fn error(&self, error: LibraryError, reason: &str) {
        if error.rdkafka_error_code() == Some(RDKafkaErrorCode::Fatal) {
            // The library has lost track of what it sent in which order, and refuses everything from now on.
            tracing::error!(%error, reason, "kafka producer failed");
            self.close(CloseCause::Io, &format!("the Kafka producer failed: {reason}"));
        } else {
            tracing::debug!(%error, reason, "kafka producer error");
        }
    }
}

impl ProducerContext for Deliveries {
    type DeliveryOpaque = Arc<Ticket>;

    fn delivery(&self, result: &DeliveryResult<'_>, ticket: Arc<Ticket>) {
        let answer = match result {
            // An acknowledged record has an offset.
            Ok(message) => Ok(u64::try_from(message.offset()).unwrap_or(u64::MAX)),
            Err((error, _)) => Err(unconfirmed(error)),
        };
        if ticket.answered(answer) {
            self.outstanding_bytes.fetch_sub(ticket.bytes, Ordering::AcqRel);
        }
    }
}

/// A record that was handed to the library and not acknowledged may be in the log, whatever the reason.
fn unconfirmed(error: &LibraryError) -> AppendError {
    let detail = format!("Kafka has not confirmed it: {error}");
    AppendError::Unknown(Closed { cause: CloseCause::Unconfirmed, detail: detail.into() })
}

impl Deliveries {
    pub fn new() -> Self {
        Self { outstanding_bytes: AtomicUsize::new(0), closed: watch::Sender::new(None) }
    }

    fn close(&self, cause: CloseCause, detail: &str) {
        self.closed.send_if_modified(|closed| {
            let is_first = closed.is_none();
            closed.get_or_insert(Closed { cause, detail: detail.into() });
            is_first
        });
    }
}

impl Producer {
    pub fn new(producer: ThreadedProducer<Deliveries>, max_outstanding_bytes: usize) -> Self {
        let deliveries = Arc::clone(producer.context());
        let enqueuing = Topic::ALL.map(|_| Mutex::new(())).into();
        Self { producer, deliveries, enqueuing, max_outstanding_bytes }
    }

    pub fn client(&self) -> &rdkafka::client::Client<Deliveries> {
        self.producer.client()
    }

    pub fn closed(&self) -> Option<Closed> {
        self.deliveries.closed.borrow().clone()
    }

    pub fn closing(&self) -> watch::Receiver<Option<Closed>> {
        self.deliveries.closed.subscribe()
    }

    /// Hands all records of the batch to the library, side by side.
    pub fn send(&self, topic: &str, partition: u32, batch: &Batch) -> Result<Arc<Ticket>, AppendError> {
        let bytes = batch.checked_bytes()?;
        if let Some(closed) = self.closed() {
            return Err(AppendError::Closed(closed));
        }
        self.reserve(bytes)?;
        let at = Position { topic: batch.topic, partition, offset: 0 };
        let count = u32::try_from(batch.values.len()).unwrap_or(u32::MAX);
        let ticket = Arc::new(Ticket::new(at, count, bytes));
        let _side_by_side = self.enqueuing[batch.topic.index()].lock();
        for value in &batch.values {
            let record = BaseRecord::with_opaque_to(topic, Arc::clone(&ticket))
                .partition(i32::try_from(partition).unwrap_or(i32::MAX))
                .key(batch.key.as_ref())
                .payload(value.as_ref())
                .timestamp(batch.time_ms);
            if let Err((error, _)) = self.producer.send(record) {
                // The records before it are on their way, so the batch is unknown rather than refused.
                tracing::error!(%error, topic, "kafka producer takes nothing");
                if ticket.answered(Err(unconfirmed(&error))) {
                    self.deliveries.outstanding_bytes.fetch_sub(bytes, Ordering::AcqRel);
                }
            }
        }
        Ok(ticket)
    }

    fn reserve(&self, bytes: usize) -> Result<(), AppendError> {
        let limit_bytes = self.max_outstanding_bytes;
        let outstanding = &self.deliveries.outstanding_bytes;
        let queued_bytes = outstanding.fetch_add(bytes, Ordering::AcqRel);
        // A batch that is larger than the bound passes when nothing else waits.
        if queued_bytes > 0 && queued_bytes.saturating_add(bytes) > limit_bytes {
            outstanding.fetch_sub(bytes, Ordering::AcqRel);
            return Err(AppendError::Busy { queued_bytes, limit_bytes });
        }
        Ok(())
    }

    /// Takes nothing more. Blocks until everything is answered, at most for `patience`; what is not is given up, its
    /// outcome unknown.
    pub fn stop(&self, patience: std::time::Duration) {
        self.deliveries.close(CloseCause::Stopped, "it was asked to stop");
        // A batch that passed the check before is enqueued once each lock was taken.
        for lock in &self.enqueuing {
            drop(lock.lock());
        }
        if let Err(error) = self.producer.flush(patience) {
            tracing::warn!(%error, "kafka did not confirm everything before the stop");
            self.producer.purge(rdkafka::producer::PurgeConfig::default().queue().inflight());
            let purged = self.producer.flush(patience);
            tracing::debug!(?purged, "kafka producer purged");
        }
    }
}
