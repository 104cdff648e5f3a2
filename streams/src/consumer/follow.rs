//! The loop: wait, read, park what must wait, apply, move the position.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use thiserror::Error;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use weir_runtime::story::story;

use super::dead_letter::{DeadLetter, DeadLetterError};
use super::{
    Applied, ConsumerOptions, Delivery, Effect, EffectError, ParkedKey, Parking, Positions, Resolution, StoreError,
    Subscription,
};
use crate::contract::{AppendError, CloseCause, EventLog, Position, ReadError, StoredRecord};
use crate::topics::OnPoison;

/// Why a consumer ended although nobody stopped it. A person is needed.
#[derive(Debug, Error)]
pub enum ConsumerError {
    #[error("{subscription} cannot read the log")]
    Read { subscription: Subscription, source: ReadError },
    #[error("{subscription} cannot append a dead letter")]
    DeadLetter { subscription: Subscription, source: AppendError },
    #[error("{subscription} cannot write a dead letter")]
    Envelope { subscription: Subscription, source: DeadLetterError },
    #[error(
        "{subscription} has applied records up to offset {position}, but the log ends at {end}: it is not the log that \
         this consumer has followed, or it has lost records"
    )]
    Ahead { subscription: Subscription, position: u64, end: u64 },
}

/// How far a consumer is behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lag {
    /// Durable records not applied yet.
    pub records: u64,
    /// Time of the oldest record that was read and is not applied yet, in milliseconds since the Unix epoch.
    pub oldest_ms: Option<i64>,
    pub parked_keys: usize,
}

impl Lag {
    /// Age of the oldest uncommitted record in milliseconds; zero when there is none.
    #[must_use]
    pub fn age_ms(&self, now_ms: i64) -> i64 {
        self.oldest_ms.map_or(0, |oldest| now_ms.saturating_sub(oldest).max(0))
    }
}

/// One consumer of one partition. Only one process may run a subscription at a time.
pub struct Consumer {
    subscription: Subscription,
    log: Arc<dyn EventLog>,
    effect: Arc<dyn Effect>,
    positions: Arc<dyn Positions>,
    parking: Arc<dyn Parking>,
    options: ConsumerOptions,
    state: State,
}

#[derive(Debug, Default)]
struct State {
    /// Its receivers are those who wait in `reached`.
    position: watch::Sender<u64>,
    /// Tells a loop that gathers of a new receiver.
    hurry: Notify,
    oldest_ms: Mutex<Option<i64>>,
    parked_keys: AtomicUsize,
    retries: AtomicU64,
    trouble: Mutex<Option<String>>,
}

impl fmt::Debug for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer").field("subscription", &self.subscription).finish_non_exhaustive()
    }
}

/// The parked keys, each with the offset of its poison record: records of the key before it are still to be applied
/// when they are delivered again after a crash.
type Parked = HashMap<Bytes, u64>;

/// Whether the loop goes on.
#[derive(Debug, PartialEq, Eq)]
enum Flow {
    Go,
    Stop,
}

/// Doubling pauses.
#[derive(Debug)]
struct Backoff {
    next: Duration,
    longest: Duration,
}

impl Consumer {
    #[must_use]
    pub fn new(
        subscription: Subscription,
        log: Arc<dyn EventLog>,
        effect: Arc<dyn Effect>,
        positions: Arc<dyn Positions>,
        parking: Arc<dyn Parking>,
        options: ConsumerOptions,
    ) -> Self {
        Self { subscription, log, effect, positions, parking, options, state: State::default() }
    }

    /// Follows the log until `stop` is ready, which is looked at between deliveries and in every pause: a delivery
    /// that began is finished.
    ///
    /// # Errors
    /// [`ConsumerError`]: the log cannot be followed without a person. What only needs time is retried.
    pub async fn run(&self, stop: impl Future<Output = ()> + Send) -> Result<(), ConsumerError> {
        let mut stop = pin!(stop);
        let Some((mut next, mut parked)) = self.begin(stop.as_mut()).await? else { return Ok(()) };
        let (mut last_look, mut gathers_until) = (None, None);
        let mut pauses = self.pauses();
        loop {
            self.note(next, None, parked.len());
            if !parked.is_empty() && last_look.is_none_or(|at: Instant| at.elapsed() >= self.options.look_every) {
                self.act_on_orders(&mut parked).await;
                last_look = Some(Instant::now());
            }
            let read = tokio::select! {
                biased;
                () = stop.as_mut() => return Ok(()),
                read = self.next_records(next, !parked.is_empty(), gathers_until) => read,
            };
            let records = match read {
                Ok(Some(records)) => records,
                Ok(None) => continue,
                Err(ReadError::Closed(closed)) if closed.cause == CloseCause::Stopped => return Ok(()),
                Err(error) if error.is_temporary() => {
                    if self.pause(&mut pauses, &story(&error), stop.as_mut()).await == Flow::Stop {
                        return Ok(());
                    }
                    continue;
                }
                Err(source) => return Err(ConsumerError::Read { subscription: self.subscription.clone(), source }),
            };
            let (Some(first), Some(last)) = (records.first(), records.last()) else {
                // A log that wakes its readers for nothing: without a pause this would be a loop that only burns.
                if self.pause(&mut pauses, "the log has records but gives none", stop.as_mut()).await == Flow::Stop {
                    return Ok(());
                }
                continue;
            };
            pauses = self.pauses();
            let after = last.offset + 1;
            self.note(next, Some(first.time_ms), parked.len());
            if self.digest(records, after, &mut parked, stop.as_mut()).await? == Flow::Stop {
                return Ok(());
            }
            next = after;
            gathers_until = Some(Instant::now() + self.options.gather);
        }
    }

    /// How far behind the durable end this consumer is.
    ///
    /// # Errors
    /// When the log cannot say where it ends.
    pub async fn lag(&self) -> Result<Lag, ReadError> {
        let offsets = self.log.offsets(self.subscription.topic, self.subscription.partition).await?;
        Ok(Lag {
            records: offsets.durable.saturating_sub(self.position()),
            oldest_ms: *self.state.oldest_ms.lock(),
            parked_keys: self.state.parked_keys.load(Ordering::Relaxed),
        })
    }

    /// Offset of the next record to apply, as far as this process knows.
    #[must_use]
    pub fn position(&self) -> u64 {
        *self.state.position.borrow()
    }

    /// Returns once every record below `offset` was applied or parked: a start that must not open before its stores have
    /// caught up waits here.
    pub async fn reached(&self, offset: u64) {
        let mut position = self.state.position.subscribe();
        self.state.hurry.notify_one();
        // The sender lives in `self`, so the channel cannot close while this waits.
        let _ = position.wait_for(|position| *position >= offset).await;
    }

    /// How many times something was tried again since the start.
    #[must_use]
    pub fn retries(&self) -> u64 {
        self.state.retries.load(Ordering::Relaxed)
    }

    /// Why it is being retried at this moment, if it is.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        self.state.trouble.lock().clone()
    }

    #[must_use]
    pub const fn subscription(&self) -> &Subscription {
        &self.subscription
    }

    /// Position and parked keys from the stores. `None` when stopped meanwhile.
    async fn begin(
        &self,
        mut stop: Pin<&mut (impl Future<Output = ()> + Send)>,
    ) -> Result<Option<(u64, Parked)>, ConsumerError> {
        let mut pauses = self.pauses();
        let subscription = self.subscription.clone();
        let ((stored, parked), offsets) = loop {
            let trouble = match self.load().await {
                Ok(loaded) => match self.log.offsets(subscription.topic, subscription.partition).await {
                    Ok(offsets) => break (loaded, offsets),
                    Err(error) if error.is_temporary() => story(&error),
                    Err(source) => return Err(ConsumerError::Read { subscription, source }),
                },
                Err(error) => story(&error),
            };
            if self.pause(&mut pauses, &trouble, stop.as_mut()).await == Flow::Stop {
                return Ok(None);
            }
        };
        *self.state.trouble.lock() = None;
        let position = stored.unwrap_or(offsets.start);
        if position > offsets.written {
            return Err(ConsumerError::Ahead { subscription, position, end: offsets.written });
        }
        Ok(Some((position, parked)))
    }

    async fn load(&self) -> Result<(Option<u64>, Parked), StoreError> {
        let position = self.positions.load(&self.subscription).await?;
        let parked = self.parking.list(&self.subscription).await?;
        Ok((position, parked.into_iter().map(|parked| (parked.key, parked.offset)).collect()))
    }

    /// Waits for records and reads them; `None` when it is time to look for orders.
    async fn next_records(
        &self,
        next: u64,
        looks: bool,
        gathers_until: Option<Instant>,
    ) -> Result<Option<Vec<StoredRecord>>, ReadError> {
        let (topic, partition) = (self.subscription.topic, self.subscription.partition);
        let at = Position { topic, partition, offset: next };
        let wait = self.log.wait(at, self.options.seen);
        if looks {
            match timeout(self.options.look_every, wait).await {
                Ok(waited) => waited?,
                Err(_) => return Ok(None),
            }
        } else {
            wait.await?;
        }
        if let Some(until) = gathers_until.filter(|until| *until > Instant::now()) {
            self.gather(at, until).await;
        }
        self.log.read(at, self.options.limits, self.options.seen).await.map(Some)
    }

    /// Lets records gather until then, or until there is a full delivery, which a consumer that catches up finds at once.
    async fn gather(&self, at: Position, until: Instant) {
        let last_of_full = at.offset.saturating_add(self.options.limits.records.saturating_sub(1) as u64);
        let is_awaited = async {
            while self.state.position.receiver_count() == 0 {
                self.state.hurry.notified().await;
            }
        };
        tokio::select! {
            // An error is left to the read: what a log that was closed has is still delivered.
            _ = self.log.wait(Position { offset: last_of_full, ..at }, self.options.seen) => {}
            () = is_awaited => {}
            () = sleep_until(until) => {}
        }
    }

    /// Applies one delivery, whatever it takes, and moves the position to `after`.
    async fn digest(
        &self,
        mut records: Vec<StoredRecord>,
        after: u64,
        parked: &mut Parked,
        mut stop: Pin<&mut (impl Future<Output = ()> + Send)>,
    ) -> Result<Flow, ConsumerError> {
        let mut pauses = self.pauses();
        while let Err(error) = self.park_followers(&mut records, parked).await {
            if self.pause(&mut pauses, &story(&error), stop.as_mut()).await == Flow::Stop {
                return Ok(Flow::Stop);
            }
        }
        loop {
            let trouble = match self.step(&mut records, after, parked).await? {
                Ok(true) => {
                    *self.state.trouble.lock() = None;
                    return Ok(Flow::Go);
                }
                Ok(false) => continue,
                Err(reason) => reason,
            };
            if self.pause(&mut pauses, &trouble, stop.as_mut()).await == Flow::Stop {
                return Ok(Flow::Stop);
            }
        }
    }

    /// One try. `Ok(true)`: all applied and stored. `Ok(false)`: a poison record was dealt with, try the others.
    /// `Err`: try again after a pause.
    async fn step(
        &self,
        records: &mut Vec<StoredRecord>,
        after: u64,
        parked: &mut Parked,
    ) -> Result<Result<bool, String>, ConsumerError> {
        if records.is_empty() {
            return Ok(self.store(after).await);
        }
        let delivery = Delivery { subscription: &self.subscription, records, position: Some(after) };
        match self.effect.apply(delivery).await {
            Ok(Applied::Effect) => Ok(self.store(after).await),
            Ok(Applied::EffectAndPosition) => Ok(Ok(true)),
            Err(EffectError::Retry { reason }) => Ok(Err(reason)),
            Err(EffectError::Poison { offset, reason }) => self.set_aside(records, offset, &reason, parked).await,
        }
    }

    async fn store(&self, after: u64) -> Result<bool, String> {
        self.positions.store(&self.subscription, after).await.map(|()| true).map_err(|error| story(&error))
    }

    /// Moves the records of parked keys behind those that are parked already, once per delivery.
    async fn park_followers(&self, records: &mut Vec<StoredRecord>, parked: &Parked) -> Result<(), StoreError> {
        let follows = |record: &StoredRecord| parked.get(&record.key).is_some_and(|poison| record.offset >= *poison);
        for record in records.iter().filter(|record| follows(record)) {
            self.parking.park(&self.subscription, record, "").await?;
        }
        records.retain(|record| !follows(record));
        Ok(())
    }

    /// Deals with a poison record: dead letter, then parked with its key or left out alone.
    async fn set_aside(
        &self,
        records: &mut Vec<StoredRecord>,
        offset: u64,
        reason: &str,
        parked: &mut Parked,
    ) -> Result<Result<bool, String>, ConsumerError> {
        let Some(at) = records.iter().position(|record| record.offset == offset) else {
            return Ok(Err(format!("offset {offset} was called poison but was not delivered: {reason}")));
        };
        let parks = match self.options.on_poison {
            OnPoison::ParkKey => true,
            OnPoison::SkipRecord => false,
        };
        if parks && parked.len() >= self.options.max_parked_keys {
            return Ok(Err(format!("{} keys are parked already: {reason}", parked.len())));
        }
        tracing::error!(subscription = %self.subscription, offset, reason, parks, "poison record set aside");
        let key = records[at].key.clone();
        let goes =
            |record: &StoredRecord| record.offset == offset || (parks && record.offset > offset && record.key == key);
        if parks {
            for record in records.iter().filter(|record| goes(record)) {
                if let Err(error) = self.parking.park(&self.subscription, record, reason).await {
                    return Ok(Err(story(&error)));
                }
            }
        }
        // Last, so that trouble with the parked store does not leave a copy here at every retry.
        if let Err(trouble) = self.append_dead_letter(&records[at], reason).await? {
            return Ok(Err(trouble));
        }
        records.retain(|record| !goes(record));
        if parks {
            parked.entry(key).and_modify(|first| *first = offset.min(*first)).or_insert(offset);
        }
        Ok(Ok(false))
    }

    async fn append_dead_letter(
        &self,
        record: &StoredRecord,
        reason: &str,
    ) -> Result<Result<(), String>, ConsumerError> {
        let subscription = || self.subscription.clone();
        let letter = DeadLetter::of(&self.subscription.consumer, self.subscription.topic, record, reason);
        let batch =
            letter.into_batch().map_err(|source| ConsumerError::Envelope { subscription: subscription(), source })?;
        match self.log.append(batch).durable().await {
            Ok(_) => Ok(Ok(())),
            Err(error) if error.is_temporary() => Ok(Err(story(&error))),
            Err(source) => Err(ConsumerError::DeadLetter { subscription: subscription(), source }),
        }
    }

    /// Carries out what operators asked for. Trouble leaves the order in place: it is looked at again later.
    async fn act_on_orders(&self, parked: &mut Parked) {
        let keys = match self.parking.list(&self.subscription).await {
            Ok(keys) => keys,
            Err(error) => {
                tracing::warn!(subscription = %self.subscription, %error, "parked keys cannot be listed");
                return;
            }
        };
        for key in keys {
            let Some(resolution) = key.asked else { continue };
            match self.resolve(&key, resolution).await {
                Ok(true) => {
                    parked.remove(&key.key);
                }
                Ok(false) => {}
                Err(reason) => {
                    tracing::warn!(subscription = %self.subscription, reason, "parked key cannot be resolved yet");
                }
            }
        }
    }

    /// Applies a parked key's records one by one, in order. True when none is left.
    async fn resolve(&self, parked: &ParkedKey, resolution: Resolution) -> Result<bool, String> {
        let (of, key) = (&self.subscription, &parked.key);
        let store_error = |error: StoreError| story(&error);
        for record in self.parking.records(of, key).await.map_err(store_error)? {
            let is_skipped = match resolution {
                Resolution::Replay => false,
                Resolution::Skip { offset } => offset == record.offset,
            };
            if !is_skipped {
                let delivery = Delivery { subscription: of, records: std::slice::from_ref(&record), position: None };
                match self.effect.apply(delivery).await {
                    Ok(Applied::Effect | Applied::EffectAndPosition) => {}
                    Err(EffectError::Retry { reason }) => return Err(reason),
                    Err(EffectError::Poison { reason, .. }) => {
                        self.parking.keep_parked(of, key, &reason).await.map_err(store_error)?;
                        return Ok(false);
                    }
                }
            }
            self.parking.resolve(of, key, record.offset).await.map_err(store_error)?;
        }
        Ok(true)
    }

    fn note(&self, position: u64, oldest_ms: Option<i64>, parked_keys: usize) {
        self.state.position.send_if_modified(|known| std::mem::replace(known, position) != position);
        self.state.parked_keys.store(parked_keys, Ordering::Relaxed);
        *self.state.oldest_ms.lock() = oldest_ms;
    }

    const fn pauses(&self) -> Backoff {
        Backoff { next: self.options.first_pause, longest: self.options.longest_pause }
    }

    async fn pause(
        &self,
        pauses: &mut Backoff,
        reason: &str,
        stop: Pin<&mut (impl Future<Output = ()> + Send)>,
    ) -> Flow {
        let pause = pauses.next;
        pauses.next = (pause * 2).min(pauses.longest);
        tracing::warn!(subscription = %self.subscription, reason, pause_ms = pause.as_millis(), "consumer retries");
        self.state.retries.fetch_add(1, Ordering::Relaxed);
        *self.state.trouble.lock() = Some(reason.to_owned());
        tokio::select! {
            biased;
            () = stop => Flow::Stop,
            () = sleep(pause) => Flow::Go,
        }
    }
}
