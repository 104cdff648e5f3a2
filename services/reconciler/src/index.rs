//! From a provider's id of an answer to our attempt.
//!
//! Unknown attempts are found among the pending reservations, whose records carry the id; that is all that settling
//! needs. This index is for the others, whose reports only confirm or contradict: it holds the newest correlations of
//! the log in memory, bounded, and is read again from the log's end at a start.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use thiserror::Error;

use weir_domain::attempt::AttemptNumber;
use weir_domain::ids::ReservationId;
use weir_domain::reservation::Event;
use weir_ledger::Witness;
use weir_schemas::reservation_event::ReservationEvent;
use weir_streams::{EventLog, Limits, Position, ReadError, StoredRecord, Topic, Visibility};

use crate::tail;

/// Finds the attempt that a provider's id belongs to.
///
/// An implementation may forget old ones and MUST NOT answer with another attempt; the caller checks the provider.
#[async_trait]
pub trait AttemptIndex: std::fmt::Debug + Send + Sync {
    /// # Errors
    /// When it cannot be asked now.
    async fn find(&self, provider_id: &str) -> Result<Option<(ReservationId, AttemptNumber)>, IndexError>;
}

#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("the index of provider ids does not answer: {reason}")]
pub struct IndexError {
    pub reason: String,
}

/// Some 100 bytes each: 50 MB for the newest half million answers, hours of reports at a thousand requests a second.
const MOST: usize = 500_000;
/// Six events a request: what fills the index at a start is read in seconds.
const LOOK_BACK_RECORDS: u64 = 6 * MOST as u64;
/// Pause after the log could not be read.
const PAUSE: Duration = Duration::from_secs(1);

/// The newest correlations of the log.
#[derive(Debug, Default)]
pub struct RecentCorrelations(Mutex<Newest>);

#[derive(Debug, Default)]
struct Newest {
    by_id: HashMap<Arc<str>, (ReservationId, AttemptNumber)>,
    order: VecDeque<Arc<str>>,
}

impl RecentCorrelations {
    /// Takes in what stands on one partition some way before `until`, once: what comes from there on is told.
    ///
    /// # Errors
    /// [`ReadError`], when the log cannot be read without a person.
    pub async fn look_back(
        &self,
        log: Arc<dyn EventLog>,
        partition: u32,
        until: u64,
        stop: impl Future<Output = ()> + Send,
    ) -> Result<(), ReadError> {
        let mut stop = pin!(stop);
        let topic = Topic::Reservations;
        let start = log.offsets(topic, partition).await?.start;
        let mut offset = start.max(until.saturating_sub(LOOK_BACK_RECORDS));
        while offset < until {
            let at = Position { topic, partition, offset };
            let read = tokio::select! {
                biased;
                () = stop.as_mut() => return Ok(()),
                read = log.read(at, Limits::default(), Visibility::Durable) => read,
            };
            match read {
                Ok(records) if records.is_empty() => return Ok(()),
                Ok(records) => {
                    offset = records.last().map_or(offset, |record| record.offset + 1);
                    self.learn(&records);
                }
                Err(error) if error.is_temporary() => tokio::time::sleep(PAUSE).await,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Follows one partition until `stop`, from some way before its end: for a process without a builder.
    ///
    /// # Errors
    /// [`ReadError`], when the log cannot be followed without a person.
    pub async fn follow(
        &self,
        log: Arc<dyn EventLog>,
        partition: u32,
        stop: impl Future<Output = ()> + Send,
    ) -> Result<(), ReadError> {
        let from = (Topic::Reservations, partition);
        tail::follow(&*log, from, LOOK_BACK_RECORDS, stop, |records, _| self.learn(records)).await
    }

    /// Takes in what `records` of the reservations' topic correlate. What cannot be read is the builder's to report.
    pub fn learn(&self, records: &[StoredRecord]) {
        let events = records.iter().filter(|record| is_correlation(&record.value));
        for event in events.filter_map(|record| ReservationEvent::decode(&record.value).ok()) {
            self.saw(&event);
        }
    }
}

impl Witness for RecentCorrelations {
    fn saw(&self, event: &ReservationEvent) {
        if let Event::AttemptCorrelated { number, provider_id } = event.event() {
            self.0.lock().insert(provider_id, (event.header().reservation, *number));
        }
    }
}

/// One record in six is one: the schema id in the frame's head spares the others a decoding.
fn is_correlation(frame: &[u8]) -> bool {
    let Some(&[_, a, b, c, d]) = frame.first_chunk() else { return false };
    let id = u32::from_be_bytes([a, b, c, d]);
    weir_schemas::released::released(id).is_some_and(|released| released.record == "AttemptCorrelated")
}

impl Newest {
    fn insert(&mut self, provider_id: &str, attempt: (ReservationId, AttemptNumber)) {
        let key: Arc<str> = Arc::from(provider_id);
        if self.by_id.insert(Arc::clone(&key), attempt).is_none() {
            self.order.push_back(key);
        }
        if self.order.len() > MOST
            && let Some(oldest) = self.order.pop_front()
        {
            self.by_id.remove(&oldest);
        }
    }
}

#[async_trait]
impl AttemptIndex for RecentCorrelations {
    async fn find(&self, provider_id: &str) -> Result<Option<(ReservationId, AttemptNumber)>, IndexError> {
        Ok(self.0.lock().by_id.get(provider_id).copied())
    }
}
