//! A role apart, on its way to the policy in force.
//!
//! It reads `weir.snapshots` and `weir.revocations` from their start, puts every whole version in force, and keeps the
//! newest on disk. The control plane may be away for as long as it likes: the last good version stays, unless the
//! operator has set how old it may become. A version never goes back.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;

use weir_domain::ids::{KeyId, PriceVersion};
use weir_domain::policy::Snapshot;
use weir_domain::price::{PriceBook, PriceBookError};
use weir_runtime::clock::SharedClock;
use weir_runtime::story::story;
use weir_runtime::tasks::Tasks;
use weir_schemas::Record as _;
use weir_schemas::revocation::KeyRevoked;
use weir_schemas::snapshot::SnapshotPublished;
use weir_streams::{EventLog, Limits, Position, ReadError, StoredRecord, Topic, Visibility};

use super::last_good;
use super::parts::{Assembled, Head, Parts};
use super::publisher::PARTITION;
use crate::SnapshotSource;
use crate::document::price_version;
use crate::secrets::MasterKey;

/// Pause after the log could not be read.
const PAUSE: Duration = Duration::from_secs(1);

/// How a follower behaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FollowOptions {
    /// Where the last good version is kept.
    pub file: PathBuf,
    /// How long the control plane may be silent before the policy counts as too old to serve; `None`: for ever.
    pub max_age: Option<Duration>,
}

/// The policy in force, as the topic tells it.
#[derive(Debug)]
pub struct SnapshotFollower {
    log: Arc<dyn EventLog>,
    master: MasterKey,
    clock: SharedClock,
    options: FollowOptions,
    snapshots: watch::Sender<Arc<Snapshot>>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    parts: Parts,
    /// As opened, before revocations.
    opened: Option<Arc<Snapshot>>,
    revoked: HashSet<KeyId>,
    /// When the control plane was last heard of, by this process's clock.
    confirmed_at_ms: Option<i64>,
    /// Why the topic cannot be followed, if it cannot.
    trouble: Option<String>,
}

impl SnapshotSource for SnapshotFollower {
    fn current(&self) -> Arc<Snapshot> {
        Arc::clone(&self.snapshots.borrow())
    }

    fn subscribe(&self) -> watch::Receiver<Arc<Snapshot>> {
        self.snapshots.subscribe()
    }
}

impl SnapshotFollower {
    /// Takes up the last good version, if the disk has one. Asks nobody.
    ///
    /// # Errors
    /// None: an empty book has no two prices that could contradict each other. The type is the price book's.
    pub fn open(
        log: Arc<dyn EventLog>,
        master: MasterKey,
        clock: SharedClock,
        options: FollowOptions,
    ) -> Result<Self, PriceBookError> {
        let no_prices = PriceBook::new(&[], price_version)?;
        let (snapshots, _) = watch::channel(Arc::new(Snapshot::empty(Arc::new(no_prices))));
        let parts = last_good::read(&options.file, &master);
        let follower = Self { log, master, clock, options, snapshots, state: Mutex::default() };
        if let Some(parts) = parts {
            follower.put_in_force(&parts);
            follower.state.lock().confirmed_at_ms = None;
            tracing::info!(version = follower.current().version, "last good snapshot taken up from disk");
            // Its books stay at hand; the topic is read from its start all the same.
            follower.state.lock().parts = parts;
        }
        Ok(follower)
    }

    /// Follows both topics until `tasks` stop.
    pub async fn run(self: Arc<Self>, tasks: Tasks) {
        let stopping = tasks.stopping();
        tokio::select! {
            () = stopping => {}
            () = self.follow(Topic::Snapshots, &tasks) => {}
            () = self.follow(Topic::Revocations, &tasks) => {}
        }
    }

    /// Why nothing should be served by this policy, if nothing should.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        let state = self.state.lock();
        if state.opened.is_none() {
            let told = state.trouble.clone();
            return Some(told.unwrap_or_else(|| "no snapshot has come yet: is `weir control` running?".to_owned()));
        }
        self.staleness(&state)
    }

    /// Whether the policy is older than the operator allows.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        self.options.max_age.is_some() && self.staleness(&self.state.lock()).is_some()
    }

    fn staleness(&self, state: &State) -> Option<String> {
        let max_age_ms = i64::try_from(self.options.max_age?.as_millis()).unwrap_or(i64::MAX);
        let Some(heard_ms) = state.confirmed_at_ms else {
            return Some("the snapshot is from disk and the control plane was not heard of yet".to_owned());
        };
        let age_ms = self.clock.now_ms().saturating_sub(heard_ms);
        (age_ms > max_age_ms).then(|| format!("the control plane was last heard of {} s ago", age_ms / 1000))
    }

    /// The prices that were published under `version`.
    #[must_use]
    pub fn price_book(&self, version: &PriceVersion) -> Option<PriceBook> {
        self.state.lock().parts.price_book(version)
    }

    /// Follows one topic for ever.
    async fn follow(self: &Arc<Self>, topic: Topic, tasks: &Tasks) {
        let mut next = None;
        loop {
            if let Err(error) = self.step(topic, &mut next, tasks).await {
                if let ReadError::Gone { start, .. } = error {
                    // Compaction took what was there; what is left is the policy.
                    next = Some(start);
                    continue;
                }
                tracing::warn!(%topic, error = story(&error), "topic not followed");
                self.state.lock().trouble = Some(story(&error));
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    /// Reads and takes in what there is, or waits for more.
    async fn step(self: &Arc<Self>, topic: Topic, next: &mut Option<u64>, tasks: &Tasks) -> Result<(), ReadError> {
        let offset = match *next {
            Some(offset) => offset,
            None => self.log.offsets(topic, PARTITION).await?.start,
        };
        *next = Some(offset);
        let at = Position { topic, partition: PARTITION, offset };
        self.log.wait(at, Visibility::Durable).await?;
        let records = self.log.read(at, Limits::default(), Visibility::Durable).await?;
        let Some(last) = records.last() else { return Ok(()) };
        let read_until = last.offset + 1;
        *next = Some(read_until);
        if topic == Topic::Snapshots {
            self.take_parts(&records);
        } else {
            self.take_revocations(&records);
        }
        // Only the newest is opened: at a start there may be thousands of versions on the way to it.
        if self.log.offsets(topic, PARTITION).await?.durable <= read_until {
            self.renew(tasks).await;
        }
        Ok(())
    }

    fn take_parts(&self, records: &[StoredRecord]) {
        let mut state = self.state.lock();
        for record in records {
            let part = SnapshotPublished::decode(&record.value).map_err(|error| story(&error));
            let taken = part.and_then(|part| state.parts.take(part, &self.master).map_err(|error| story(&error)));
            if let Err(reason) = taken {
                tracing::error!(offset = record.offset, reason, "record of a snapshot left out");
            }
        }
        state.trouble = None;
    }

    fn take_revocations(&self, records: &[StoredRecord]) {
        let mut state = self.state.lock();
        for record in records {
            match KeyRevoked::decode(&record.value) {
                Ok(revoked) => {
                    state.revoked.insert(revoked.key);
                }
                Err(error) => tracing::error!(offset = record.offset, %error, "revocation left out"),
            }
        }
    }

    /// Puts the newest whole version in force, and on disk.
    async fn renew(self: &Arc<Self>, tasks: &Tasks) {
        let follower = Arc::clone(self);
        // Opening 100,000 tenants is half a second of work: not on a thread that serves requests.
        let renewing = move || {
            let parts = follower.state.lock().parts.clone();
            let is_new = follower.put_in_force(&parts);
            let file = &follower.options.file;
            if is_new && let Err(error) = last_good::write(file, &parts) {
                tracing::warn!(path = %file.display(), %error, "the last good snapshot was not kept on disk");
            }
        };
        if tasks.spawn_blocking("open snapshot", renewing).await.is_err() {
            tracing::error!("the thread that opened a snapshot was lost");
        }
    }

    /// Says whether a version came into force that was not before.
    fn put_in_force(&self, parts: &Parts) -> bool {
        let is_new = parts.head().is_some_and(|head| self.is_newer(head)) && self.open_version(parts);
        self.show();
        is_new
    }

    fn is_newer(&self, head: &Head) -> bool {
        let mut state = self.state.lock();
        let in_force = state.opened.as_ref().map_or(0, |snapshot| snapshot.version);
        if head.version < in_force {
            // Of a control plane that was slower than another one: it puts that right by itself.
            tracing::warn!(version = head.version, in_force, "an older snapshot was published and is left out");
            return false;
        }
        state.confirmed_at_ms = Some(self.clock.now_ms());
        head.version > in_force
    }

    fn open_version(&self, parts: &Parts) -> bool {
        let opened = match parts.assemble() {
            // The rest is on its way.
            Ok(None) => return false,
            Ok(Some(Assembled { head, document })) => {
                document.open(head.version, &self.master).map_err(|error| story(&error))
            }
            Err(error) => Err(story(&error)),
        };
        let mut state = self.state.lock();
        match opened {
            Ok(snapshot) => {
                tracing::info!(version = snapshot.version, keys = snapshot.keys.len(), "snapshot in force");
                (state.opened, state.trouble) = (Some(Arc::new(snapshot)), None);
                true
            }
            Err(reason) => {
                tracing::error!(reason, "snapshot not opened");
                state.trouble = Some(reason);
                false
            }
        }
    }

    /// Shows what is in force, without the keys that were revoked since.
    fn show(&self) {
        let state = self.state.lock();
        let Some(opened) = &state.opened else { return };
        let has_revoked = |snapshot: &Snapshot| snapshot.keys.values().any(|key| state.revoked.contains(&key.id));
        let shown = self.current();
        if shown.version == opened.version && !has_revoked(&shown) {
            return;
        }
        let mut next = Arc::clone(opened);
        if has_revoked(opened) {
            Arc::make_mut(&mut next).keys.retain(|_, key| !state.revoked.contains(&key.id));
        }
        self.snapshots.send_replace(next);
    }
}
