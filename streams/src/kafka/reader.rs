//! The reading side: cursors, each a buffer in front of one partition at the place where its reader goes on.
//!
//! The contract reads from any place at any time; the library streams partitions from where it was told to begin. A
//! [`Cursor`] joins the two: who reads on from where the last read ended finds it by that place and takes what has
//! arrived meanwhile. Followers of one partition at different places have cursors of their own, and as a client of the
//! library has one place for a partition, they lie in different [`Reader`]s.
//!
//! The library is known to stop bringing a partition for good, now and then, when brokers went and came back, while it
//! answers everything else about it (librdkafka's issues 4492 and 5153). So a client that brings nothing of what the
//! brokers say is there is replaced ([`Readers::replace`]), as by a restart of the process.
//!
//! A reader's thread moves records from the library to the cursors. It is a thread because the library's poll blocks,
//! and because following must not stop while a runtime is busy.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use parking_lot::Mutex;
use rdkafka::Message as _;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaError as LibraryError;
use rdkafka::message::BorrowedMessage;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::client::Quiet;
use crate::contract::{Limits, Position, StoredRecord};
use crate::topics::{Retention, Topic, Topics};

/// A cursor holds a few deliveries of a consumer; then its partition is paused until half is taken.
const CURSOR_RECORDS: usize = 4096;
const CURSOR_BYTES: usize = 4 * 1024 * 1024;
/// More followers of one partition at different places than any process has; beyond, the one that was silent longest
/// starts anew.
const MAX_READERS: usize = 8;
/// A cursor that nobody used for so long belongs to a reader that is gone.
const IDLE: Duration = Duration::from_secs(60);
/// A cursor may be taken over by another reader this long after its last use.
const FREE: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(100);
const SWEEP_EVERY: Duration = Duration::from_secs(10);

type Place = (Topic, u32);

/// All readers of a log.
pub(super) struct Readers {
    config: ClientConfig,
    names: Arc<HashMap<String, Topic>>,
    /// Topics whose records may vanish between others.
    compacted: Vec<Topic>,
    all: Mutex<Vec<Arc<Reader>>>,
}

impl std::fmt::Debug for Readers {
    /// The settings may hold a password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Readers").field("count", &self.all.lock().len()).finish_non_exhaustive()
    }
}

/// One client of the library, with a cursor in each partition that is read by it.
struct Reader {
    consumer: BaseConsumer<Quiet>,
    cursors: Mutex<HashMap<Place, Arc<Cursor>>>,
    stops: AtomicBool,
}

#[derive(Debug)]
pub(super) struct Cursor {
    place: Place,
    state: Mutex<State>,
    /// Whether the library was told to pause; held while it is told.
    is_held: Mutex<bool>,
    arrived: Notify,
    users: AtomicUsize,
    may_skip: bool,
}

#[derive(Debug)]
struct State {
    /// What the next read must ask for.
    next: u64,
    /// What the library brings next.
    end: u64,
    records: VecDeque<StoredRecord>,
    bytes: usize,
    is_paused: bool,
    /// Its place in the library was lost: whoever uses it starts another one.
    is_stale: bool,
    /// How often, since the last record, somebody waited in vain for one that is there.
    misses: u32,
    last_use: Instant,
}

/// Why a cursor has stopped to be of use to who waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waited {
    Arrived,
    /// It is full without the record that was waited for, which is further ahead.
    Full,
    Stale,
}

/// While it lives the cursor is not swept away.
#[derive(Debug)]
pub(super) struct InUse(Arc<Cursor>);

impl std::ops::Deref for InUse {
    type Target = Cursor;

    fn deref(&self) -> &Cursor {
        &self.0
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        self.0.state.lock().last_use = Instant::now();
        self.0.users.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Readers {
    pub fn new(config: ClientConfig, names: &[String], table: &Topics) -> Self {
        let names = names.iter().cloned().zip(Topic::ALL).collect();
        let is_compacted = |topic: &Topic| table.spec(*topic).retention == Retention::Compacted;
        let compacted = Topic::ALL.into_iter().filter(is_compacted).collect();
        Self { config, names: Arc::new(names), compacted, all: Mutex::default() }
    }

    /// The cursor of who reads on from exactly here.
    pub fn at(&self, at: Position) -> Option<InUse> {
        self.find(at, |state| state.next == at.offset)
    }

    /// A cursor that will come across this place soon.
    pub fn before(&self, at: Position) -> Option<InUse> {
        let reach = CURSOR_RECORDS as u64;
        self.find(at, |state| state.next <= at.offset && at.offset - state.next < reach)
    }

    fn find(&self, at: Position, is_it: impl Fn(&State) -> bool) -> Option<InUse> {
        let all = self.all.lock();
        all.iter().find_map(|reader| {
            let cursor = reader.cursors.lock().get(&(at.topic, at.partition)).cloned()?;
            let fits = {
                let state = cursor.state.lock();
                !state.is_stale && is_it(&state)
            };
            fits.then(|| cursor.in_use())
        })
    }

    /// A new cursor. Blocks for a moment: the library's main thread must answer.
    pub fn begin(&self, at: Position, name: &str) -> Result<InUse, LibraryError> {
        let mut all = self.all.lock();
        let place = (at.topic, at.partition);
        let free = all.iter().position(|reader| reader.is_free(place, FREE));
        let reader = match free {
            Some(found) => Arc::clone(&all[found]),
            None if all.len() < MAX_READERS => {
                let reader = Reader::start(&self.config, Arc::clone(&self.names))?;
                all.push(Arc::clone(&reader));
                reader
            }
            None => {
                let longest = all.iter().min_by_key(|reader| reader.last_use(place)).map(Arc::clone);
                longest.ok_or(LibraryError::Canceled)?
            }
        };
        reader.assign(at, name, self.compacted.contains(&at.topic))
    }

    /// Lets go of the library. Threads end by themselves within a poll.
    pub fn stop(&self) {
        self.all.lock().drain(..).for_each(|reader| reader.stop());
    }

    /// Lets go of the client that a cursor is of, with all others of its cursors: whoever uses one begins with another.
    pub fn replace(&self, cursor: &Cursor) {
        let mut all = self.all.lock();
        if let Some(found) = all.iter().position(|reader| reader.owns(cursor)) {
            tracing::warn!(topic = %cursor.place.0, partition = cursor.place.1, "kafka reader brings nothing: replaced");
            all.swap_remove(found).stop();
        }
    }

    /// As the library is when it has stopped bringing a partition: it does not say so.
    #[cfg(test)]
    pub fn silence(&self, at: Position, name: &str) {
        for reader in &*self.all.lock() {
            reader.consumer.pause(&list(at.partition, name)).expect("a partition can be paused");
        }
    }

    /// Takes from a cursor, and lets the library go on if it was paused.
    pub fn take(&self, cursor: &Cursor, limits: Limits, name: &str) -> Vec<StoredRecord> {
        let (records, resumes) = cursor.take(limits);
        if resumes {
            let owner = self.all.lock().iter().find(|reader| reader.owns(cursor)).cloned();
            if let Some(reader) = owner {
                reader.hold(cursor, name);
            }
        }
        records
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.stop();
    }
}

fn list(partition: u32, name: &str) -> TopicPartitionList {
    let mut list = TopicPartitionList::new();
    list.add_partition(name, i32::try_from(partition).unwrap_or(i32::MAX));
    list
}

impl Reader {
    fn start(config: &ClientConfig, names: Arc<HashMap<String, Topic>>) -> Result<Arc<Self>, LibraryError> {
        let consumer: BaseConsumer<Quiet> = config.create_with_context(Quiet)?;
        let reader = Arc::new(Self { consumer, cursors: Mutex::default(), stops: AtomicBool::new(false) });
        let running = Arc::clone(&reader);
        let thread = thread::Builder::new().name("kafka-reader".to_owned());
        thread.spawn(move || running.run(&names)).map_err(|error| LibraryError::ClientCreation(error.to_string()))?;
        Ok(reader)
    }

    fn run(&self, names: &HashMap<String, Topic>) {
        let mut swept = Instant::now();
        while !self.stops.load(Ordering::Acquire) {
            match self.consumer.poll(POLL) {
                Some(Ok(message)) => self.deliver(&message, names),
                Some(Err(error)) => self.judge(&error),
                None => {}
            }
            if swept.elapsed() >= SWEEP_EVERY {
                self.sweep(names);
                swept = Instant::now();
            }
        }
    }

    fn deliver(&self, message: &BorrowedMessage<'_>, names: &HashMap<String, Topic>) {
        let Some(topic) = names.get(message.topic()).copied() else { return };
        let partition = u32::try_from(message.partition()).unwrap_or(u32::MAX);
        // A cursor that was swept a moment ago: its records are read again by who wants them.
        let Some(cursor) = self.cursors.lock().get(&(topic, partition)).cloned() else { return };
        if cursor.push(stored(message, partition)) {
            self.hold(&cursor, message.topic());
        }
    }

    /// Pauses or resumes the cursor's partition, whichever it wants at this moment. Who fills and who takes may both
    /// have changed its mind since, and the library must end up as the last of them.
    fn hold(&self, cursor: &Cursor, name: &str) {
        let mut is_held = cursor.is_held.lock();
        let is_wanted = cursor.state.lock().is_paused;
        if *is_held == is_wanted {
            return;
        }
        let partition = list(cursor.place.1, name);
        let held = if is_wanted { self.consumer.pause(&partition) } else { self.consumer.resume(&partition) };
        match held {
            Ok(()) => *is_held = is_wanted,
            Err(error) => {
                tracing::warn!(%error, is_wanted, "kafka reader cannot pause or resume");
                cursor.lose();
            }
        }
    }

    /// The library does not say which partition an error is of, so all cursors start anew if it is one of a place.
    fn judge(&self, error: &LibraryError) {
        use rdkafka::error::RDKafkaErrorCode as Code;
        match error.rdkafka_error_code() {
            Some(Code::OffsetOutOfRange | Code::AutoOffsetReset | Code::UnknownTopicOrPartition | Code::Fatal) => {
                tracing::warn!(%error, "kafka reader lost its place");
                self.cursors.lock().values().for_each(|cursor| cursor.lose());
            }
            Some(_) | None => tracing::debug!(%error, "kafka reader"),
        }
    }

    fn stop(&self) {
        self.stops.store(true, Ordering::Release);
        self.cursors.lock().values().for_each(|cursor| cursor.lose());
    }

    fn owns(&self, cursor: &Cursor) -> bool {
        self.cursors.lock().get(&cursor.place).is_some_and(|own| std::ptr::eq(Arc::as_ptr(own), cursor))
    }

    fn is_free(&self, place: Place, after: Duration) -> bool {
        self.cursors.lock().get(&place).is_none_or(|cursor| cursor.is_free(after))
    }

    fn last_use(&self, place: Place) -> Option<Instant> {
        self.cursors.lock().get(&place).map(|cursor| cursor.state.lock().last_use)
    }

    fn assign(&self, at: Position, name: &str, may_skip: bool) -> Result<InUse, LibraryError> {
        let place = (at.topic, at.partition);
        let mut assignment = list(at.partition, name);
        if let Some(old) = self.cursors.lock().remove(&place) {
            old.lose();
            self.consumer.incremental_unassign(&assignment)?;
        }
        let cursor = Arc::new(Cursor::new(place, at.offset, may_skip));
        let used = cursor.in_use();
        // Before the library is told: its first record may come at once.
        self.cursors.lock().insert(place, cursor);
        assignment.set_all_offsets(Offset::Offset(i64::try_from(at.offset).unwrap_or(i64::MAX)))?;
        if let Err(error) = self.consumer.incremental_assign(&assignment) {
            self.cursors.lock().remove(&place);
            return Err(error);
        }
        Ok(used)
    }

    fn sweep(&self, names: &HashMap<String, Topic>) {
        let mut cursors = self.cursors.lock();
        let idle: Vec<Place> =
            cursors.iter().filter(|(_, cursor)| cursor.is_free(IDLE)).map(|(place, _)| *place).collect();
        for place in idle {
            let name = names.iter().find(|(_, topic)| **topic == place.0).map(|(name, _)| name);
            if let (Some(cursor), Some(name)) = (cursors.remove(&place), name) {
                cursor.lose();
                if let Err(error) = self.consumer.incremental_unassign(&list(place.1, name)) {
                    tracing::debug!(%error, "kafka reader cannot let go of a partition");
                }
            }
        }
    }
}

/// Key and value in one allocation.
fn stored(message: &BorrowedMessage<'_>, partition: u32) -> StoredRecord {
    let (key, value) = (message.key().unwrap_or_default(), message.payload().unwrap_or_default());
    let mut both = BytesMut::with_capacity(key.len() + value.len());
    both.put_slice(key);
    both.put_slice(value);
    let both: Bytes = both.freeze();
    StoredRecord {
        partition,
        offset: u64::try_from(message.offset()).unwrap_or(u64::MAX),
        key: both.slice(..key.len()),
        value: both.slice(key.len()..),
        time_ms: message.timestamp().to_millis().unwrap_or(0),
    }
}

impl Cursor {
    fn new(place: Place, next: u64, may_skip: bool) -> Self {
        let state = State {
            next,
            end: next,
            records: VecDeque::new(),
            bytes: 0,
            is_paused: false,
            is_stale: false,
            misses: 0,
            last_use: Instant::now(),
        };
        Self {
            place,
            state: Mutex::new(state),
            is_held: Mutex::new(false),
            arrived: Notify::new(),
            users: AtomicUsize::new(0),
            may_skip,
        }
    }

    fn in_use(self: &Arc<Self>) -> InUse {
        self.users.fetch_add(1, Ordering::AcqRel);
        InUse(Arc::clone(self))
    }

    fn is_free(&self, after: Duration) -> bool {
        self.users.load(Ordering::Acquire) == 0 && self.state.lock().last_use.elapsed() >= after
    }

    /// True when the partition must be paused.
    fn push(&self, record: StoredRecord) -> bool {
        let pauses = {
            let mut state = self.state.lock();
            // What is not the next one is from before a pause or an assignment. Where no record can be missing, one that
            // is missing means that the place is lost; a new cursor asks again.
            if state.is_stale || record.offset < state.end {
                return false;
            }
            if record.offset > state.end && !self.may_skip {
                let (expected, found) = (state.end, record.offset);
                tracing::warn!(topic = %self.place.0, partition = self.place.1, expected, found, "kafka reader jumped");
                state.is_stale = true;
                drop(state);
                self.arrived.notify_waiters();
                return false;
            }
            state.end = record.offset + 1;
            state.misses = 0;
            state.bytes += record.key.len() + record.value.len();
            state.records.push_back(record);
            let pauses = !state.is_paused && state.is_full();
            state.is_paused |= pauses;
            pauses
        };
        self.arrived.notify_waiters();
        pauses
    }

    /// What is here within the limits, and whether the partition must be resumed.
    fn take(&self, limits: Limits) -> (Vec<StoredRecord>, bool) {
        let mut state = self.state.lock();
        let (mut taken, mut bytes) = (Vec::new(), 0);
        while let Some(first) = state.records.front() {
            let size = first.key.len() + first.value.len();
            if !taken.is_empty() && (taken.len() >= limits.records || bytes + size > limits.bytes) {
                break;
            }
            bytes += size;
            taken.extend(state.records.pop_front());
        }
        state.bytes -= bytes;
        state.next = taken.last().map_or(state.next, |last: &StoredRecord| last.offset + 1);
        let resumes = state.is_paused && state.records.len() * 2 < CURSOR_RECORDS && state.bytes * 2 < CURSOR_BYTES;
        state.is_paused &= !resumes;
        (taken, resumes)
    }

    pub fn is_empty(&self) -> bool {
        self.state.lock().records.is_empty()
    }

    /// Returns once a record at or after `offset` is here.
    pub async fn has(&self, offset: u64) -> Waited {
        loop {
            let arrived = self.arrived.notified();
            {
                let state = self.state.lock();
                if state.is_stale {
                    return Waited::Stale;
                }
                if state.records.back().is_some_and(|last| last.offset >= offset) {
                    return Waited::Arrived;
                }
                if state.is_full() {
                    return Waited::Full;
                }
            }
            arrived.await;
        }
    }

    /// Counts a wait in vain for a record that is there; how many in a row by now.
    pub fn missed(&self) -> u32 {
        let mut state = self.state.lock();
        state.misses += 1;
        state.misses
    }

    fn lose(&self) {
        self.state.lock().is_stale = true;
        self.arrived.notify_waiters();
    }
}

impl State {
    fn is_full(&self) -> bool {
        self.records.len() >= CURSOR_RECORDS || self.bytes >= CURSOR_BYTES
    }
}
