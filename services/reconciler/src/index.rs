//! From a provider's id of an answer to our attempt.
//!
//! Unknown attempts are found among the pending reservations, whose records carry the id; that is all that settling
//! needs. This index is for the others, whose reports only confirm or contradict: it holds the newest correlations of
//! the log in memory, bounded, and is read again from the log's end at a start.

use std::future::Future;
use std::hash::{BuildHasher as _, RandomState};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use thiserror::Error;

use weir_domain::attempt::AttemptNumber;
use weir_domain::ids::{OwnMap, ReservationId};
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

/// What one generation takes: all that a table of 2^18 places holds before it doubles. Two of them are at most 22 MB, 47
/// bytes an answer; they know the newest 229,000 answers at least and 458,000 at most.
const GENERATION: usize = 229_376;
/// Six events a request: what fills the index at a start is read in seconds.
const LOOK_BACK_RECORDS: u64 = 12 * GENERATION as u64;
/// Pause after the log could not be read.
const PAUSE: Duration = Duration::from_secs(1);

/// The newest correlations of the log.
#[derive(Debug, Default)]
pub struct RecentCorrelations(Mutex<Newest>);

/// Two generations: when the younger one is full, the elder one goes as a whole, so that no order is kept beside.
#[derive(Debug, Default)]
struct Newest {
    younger: Generation,
    elder: Generation,
    digests: [RandomState; 2],
}

/// By a digest of 128 bits under keys of this process, because ids are long and foreign: that two of them meet is less
/// likely than that the machine errs, and nobody can make them.
type Generation = OwnMap<[u64; 2], (ReservationId, AttemptNumber)>;

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
    fn digest(&self, provider_id: &str) -> [u64; 2] {
        self.digests.each_ref().map(|digest| digest.hash_one(provider_id))
    }

    fn insert(&mut self, provider_id: &str, attempt: (ReservationId, AttemptNumber)) {
        if self.younger.len() >= GENERATION {
            self.elder = std::mem::take(&mut self.younger);
        }
        let digest = self.digest(provider_id);
        self.younger.insert(digest, attempt);
    }

    fn find(&self, provider_id: &str) -> Option<(ReservationId, AttemptNumber)> {
        let digest = self.digest(provider_id);
        self.younger.get(&digest).or_else(|| self.elder.get(&digest)).copied()
    }
}

#[async_trait]
impl AttemptIndex for RecentCorrelations {
    async fn find(&self, provider_id: &str) -> Result<Option<(ReservationId, AttemptNumber)>, IndexError> {
        Ok(self.0.lock().find(provider_id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(n: u128) -> (ReservationId, AttemptNumber) {
        (ReservationId::from_bytes(n.to_be_bytes()), 1)
    }

    #[test]
    fn the_newest_are_known_the_oldest_go_and_room_is_bounded() {
        let mut newest = Newest::default();
        let all = 2 * GENERATION as u128 + 1;
        for n in 0..all {
            newest.insert(&format!("chatcmpl-{n:029}"), attempt(n));
        }
        let known = |n: u128| newest.find(&format!("chatcmpl-{n:029}"));
        assert!((GENERATION as u128..all).all(|n| known(n) == Some(attempt(n))));
        assert_eq!((known(0), known(GENERATION as u128 - 1), newest.find("another")), (None, None, None));
        let bytes = |of: &Generation| of.capacity() * 8 / 7 * (size_of::<([u64; 2], (ReservationId, u16))>() + 1);
        let taken = bytes(&newest.elder) + bytes(&newest.younger);
        assert!(taken < 22_000_000, "{taken}");
    }

    #[test]
    fn an_id_that_comes_again_names_the_newest() {
        let mut newest = Newest::default();
        newest.insert("same", attempt(1));
        newest.elder = std::mem::take(&mut newest.younger);
        newest.insert("same", attempt(2));
        assert_eq!(newest.find("same"), Some(attempt(2)));
    }
}
