//! The log of a house with something in its way.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use weir_domain::reservation::EventKind;
use weir_schemas::reservation_event::ReservationEvent;
use weir_streams::segment::SegmentLog;
use weir_streams::{
    Append, Batch, EventLog, Health, Limits, Offsets, Position, ReadError, StoredRecord, Topic, Visibility,
};

/// Appends as `append` says, and does everything else as the log beneath.
pub struct Intercepted<F> {
    pub log: Arc<SegmentLog>,
    pub append: F,
}

impl<F> fmt::Debug for Intercepted<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Intercepted").field("log", &self.log).finish_non_exhaustive()
    }
}

/// What happened, by a record of the reservations.
pub fn kind(value: &[u8]) -> Option<EventKind> {
    ReservationEvent::decode(value).unwrap().into_parts().1.kind()
}

#[async_trait]
impl<F: Fn(&SegmentLog, Batch) -> Append + Send + Sync> EventLog for Intercepted<F> {
    fn append(&self, batch: Batch) -> Append {
        (self.append)(&self.log, batch)
    }

    async fn read(&self, at: Position, limits: Limits, seen: Visibility) -> Result<Vec<StoredRecord>, ReadError> {
        self.log.read(at, limits, seen).await
    }

    async fn wait(&self, at: Position, seen: Visibility) -> Result<(), ReadError> {
        self.log.wait(at, seen).await
    }

    async fn offsets(&self, topic: Topic, partition: u32) -> Result<Offsets, ReadError> {
        self.log.offsets(topic, partition).await
    }

    fn partitions(&self, topic: Topic) -> u32 {
        self.log.partitions(topic)
    }

    fn health(&self) -> Health {
        self.log.health()
    }

    async fn close(&self) {
        self.log.close().await;
    }
}
