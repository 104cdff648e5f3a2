//! Appending to the log, and waiting until nothing can lose it.

use std::sync::Arc;

use bytes::Bytes;
use thiserror::Error;

use weir_domain::ids::Region;
use weir_domain::reservation::{Created, Event};
use weir_runtime::clock::SharedClock;
use weir_schemas::reservation_event::{Header, NotLogged, ReservationEvent};
use weir_schemas::{EncodeError, Record};
use weir_streams::{Append, AppendError, Batch, EventLog, Topic};

/// What most frames take; a larger one grows its buffer.
const FRAME_BYTES: usize = 320;

/// Batches that wait for one sync: some hundred kilobytes, far below what the log's queue takes.
const APPENDED_AT_ONCE: usize = 512;

/// The reconciler's pen.
#[derive(Debug, Clone)]
pub struct Journal {
    log: Arc<dyn EventLog>,
    clock: SharedClock,
    /// The home region of what this process reconciles.
    region: Region,
}

/// Why something is not on the log.
#[derive(Debug, Error)]
pub enum JournalError {
    /// The log refuses or does not answer. Appending the same again is harmless, whatever became of this try.
    #[error("the log did not take it")]
    Log(#[from] AppendError),
    /// A defect, or a figure that no event may carry: trying again does not help.
    #[error("an event cannot be written")]
    NotLogged(#[from] NotLogged),
    #[error("a record cannot be written")]
    Encode(#[from] EncodeError),
}

impl JournalError {
    /// Whether the same append may succeed later.
    #[must_use]
    pub const fn is_temporary(&self) -> bool {
        match self {
            Self::Log(_) => true,
            Self::NotLogged(_) | Self::Encode(_) => false,
        }
    }
}

impl Journal {
    #[must_use]
    pub const fn new(log: Arc<dyn EventLog>, clock: SharedClock, region: Region) -> Self {
        Self { log, clock, region }
    }

    #[must_use]
    pub const fn region(&self) -> &Region {
        &self.region
    }

    #[must_use]
    pub const fn log(&self) -> &Arc<dyn EventLog> {
        &self.log
    }

    #[must_use]
    pub fn now_ms(&self) -> i64 {
        self.clock.now_ms()
    }

    /// Appends `events` of one reservation as one batch. Returns when they are durable; at once when there are none.
    ///
    /// # Errors
    /// [`JournalError`].
    pub async fn tell(&self, created: &Created, events: Vec<Event>) -> Result<(), JournalError> {
        if events.is_empty() {
            return Ok(());
        }
        let now_us = self.clock.now_us();
        let values = events.into_iter().map(|event| self.frame(created, event, now_us)).collect::<Result<_, _>>()?;
        let key = Bytes::copy_from_slice(created.id.as_bytes());
        self.append(Topic::Reservations, key, values).await
    }

    fn frame(&self, created: &Created, event: Event, recorded_at_us: i64) -> Result<Bytes, JournalError> {
        let header = Header {
            reservation: created.id,
            recorded_at_us,
            region: self.region.clone(),
            tenant: created.tenant.clone(),
            key: created.key.clone(),
            // No policy was asked, and no client's request is being served.
            snapshot_version: 0,
            trace_id: None,
        };
        let mut frame = Vec::with_capacity(FRAME_BYTES);
        ReservationEvent::new(header, event)?.encode(&mut frame)?;
        Ok(Bytes::from(frame))
    }

    /// Appends one flat record. Returns when it is durable.
    ///
    /// # Errors
    /// [`JournalError`].
    pub async fn write(&self, topic: Topic, key: Bytes, record: &(impl Record + Sync)) -> Result<(), JournalError> {
        let mut frame = Vec::with_capacity(FRAME_BYTES);
        record.encode(&mut frame)?;
        self.append(topic, key, vec![Bytes::from(frame)]).await
    }

    /// Appends flat records, each under its key, and returns when all are durable. All are encoded before the first is
    /// appended; when the log refuses in the middle, appending all again is harmless.
    ///
    /// # Errors
    /// [`JournalError`].
    pub async fn write_all<R: Record + Sync>(&self, topic: Topic, records: &[(Bytes, R)]) -> Result<(), JournalError> {
        let mut frames = Vec::with_capacity(records.len());
        for (key, record) in records {
            let mut frame = Vec::with_capacity(FRAME_BYTES);
            record.encode(&mut frame)?;
            frames.push((key.clone(), Bytes::from(frame)));
        }
        let time_ms = self.clock.now_ms();
        for chunk in frames.chunks(APPENDED_AT_ONCE) {
            let append = |(key, frame): &(Bytes, Bytes)| {
                self.log.append(Batch::new(topic, key.clone(), time_ms, vec![frame.clone()]))
            };
            let appends: Vec<Append> = chunk.iter().map(append).collect();
            for append in appends {
                append.durable().await?;
            }
        }
        Ok(())
    }

    async fn append(&self, topic: Topic, key: Bytes, values: Vec<Bytes>) -> Result<(), JournalError> {
        let batch = Batch::new(topic, key, self.clock.now_ms(), values);
        self.log.append(batch).durable().await?;
        Ok(())
    }
}
