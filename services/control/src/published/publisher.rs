//! What keeps `weir.snapshots` equal to the control store.
//!
//! It reads the topic first and appends what differs, so a restart and a publication that was cut off come to the same:
//! the next round finds what is missing. So do several publishers: each looks at the topic again after it has appended,
//! and whoever finds that another one's older parts came after newer ones puts that right at once. (Whoever follows puts
//! only whole versions in force, and never an older one.) Acts never wait for it; what they answer is in force in the
//! store, and on its way.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use thiserror::Error;

use weir_domain::ids::PriceVersion;
use weir_runtime::clock::SharedClock;
use weir_runtime::story::story;
use weir_runtime::tasks::Tasks;
use weir_schemas::snapshot::SnapshotPublished;
use weir_schemas::{DecodeError, EncodeError, Record as _};
use weir_streams::{Append, AppendError, Batch, EventLog, Limits, Position, ReadError, Topic, Visibility};

use super::parts::{Cut, Head, Parts, PartsError, cut, sha256};
use crate::SnapshotSource as _;
use crate::control::{Control, ControlError};

/// The topic has one partition: a head must not overtake its parts.
pub(super) const PARTITION: u32 = 0;

/// Parts that wait for one sync: at most some ten megabytes.
const APPENDED_AT_ONCE: usize = 256;

const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Why a version is not on the topic. The next round tries again.
#[derive(Debug, Error)]
pub enum PublishError {
    #[error(transparent)]
    Control(#[from] ControlError),
    #[error(transparent)]
    Parts(#[from] PartsError),
    #[error("the topic of snapshots cannot be read")]
    Read(#[from] ReadError),
    #[error("a record at offset {offset} of the topic of snapshots cannot be read")]
    Record { offset: u64, source: DecodeError },
    #[error("the log did not take the snapshot")]
    Append(#[from] AppendError),
    /// Entries whose ids fall into one bucket are larger than a record may be.
    #[error("the part `{scope}` cannot be published: fewer or smaller limits, labels and models for what it holds")]
    TooLarge { scope: String, source: EncodeError },
    #[error(
        "the topic of snapshots has version {on_topic} and the control store only {here}: was the store restored from a \
         backup? gateways stay at {on_topic} until the store has passed it; apply and take back a change of the catalog \
         until it has"
    )]
    StoreIsOlder { on_topic: u64, here: u64 },
    #[error("the thread that cut the snapshot was lost")]
    Lost,
}

/// What stands on the topic.
#[derive(Debug, Default)]
struct OnTopic {
    next: Option<u64>,
    hashes: BTreeMap<String, [u8; 32]>,
    head: Option<Head>,
}

/// Publishes every version of one control plane.
#[derive(Debug)]
pub struct Publisher {
    control: Arc<Control>,
    log: Arc<dyn EventLog>,
    clock: SharedClock,
    /// How often the head is said again, so that followers know how fresh their policy is. `None`: only new versions.
    confirm_every: Option<Duration>,
    /// Why the topic is behind, if it is.
    trouble: Mutex<Option<String>>,
}

impl Publisher {
    #[must_use]
    pub fn new(
        control: Arc<Control>,
        log: Arc<dyn EventLog>,
        clock: SharedClock,
        confirm_every: Option<Duration>,
    ) -> Self {
        Self { control, log, clock, confirm_every, trouble: Mutex::new(Some("nothing is published yet".to_owned())) }
    }

    /// Why the topic is behind the store, if it is.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        self.trouble.lock().clone()
    }

    /// Publishes until `tasks` stop.
    pub async fn run(self: Arc<Self>, tasks: Tasks) {
        let (stopping, mut published) = (tasks.stopping(), self.control.subscribe());
        tokio::pin!(stopping);
        let (mut seen, mut pause) = (OnTopic::default(), FIRST_PAUSE);
        loop {
            published.borrow_and_update();
            let round = tokio::select! {
                biased;
                () = &mut stopping => return,
                round = self.round(&mut seen, &tasks) => round,
            };
            let again = match &round {
                Ok(()) => {
                    pause = FIRST_PAUSE;
                    self.confirm_every
                }
                Err(error) => {
                    tracing::warn!(error = story(error), "snapshot not published");
                    pause = (pause * 2).min(LONGEST_PAUSE);
                    Some(pause)
                }
            };
            *self.trouble.lock() = round.err().map(|error| story(&error));
            tokio::select! {
                () = &mut stopping => return,
                changed = published.changed() => if changed.is_err() { return },
                () = sleep_or_for_ever(again) => {}
            }
        }
    }

    /// Brings the topic to what the store has, until nobody came between.
    async fn round(&self, seen: &mut OnTopic, tasks: &Tasks) -> Result<(), PublishError> {
        let mut confirms = self.confirm_every.is_some();
        loop {
            self.catch_up(seen).await?;
            let appended = self.append_what_differs(seen, tasks, confirms).await?;
            if appended == 0 {
                return Ok(());
            }
            let alone = seen.next.map(|next| next + appended);
            self.catch_up(seen).await?;
            if seen.next == alone {
                return Ok(());
            }
            confirms = false;
        }
    }

    /// How many records were appended. The store is read after the topic, so it is never the older of the two.
    async fn append_what_differs(&self, seen: &OnTopic, tasks: &Tasks, confirms: bool) -> Result<u64, PublishError> {
        let Some(cut) = self.cut(tasks).await? else { return Ok(0) };
        if let Some(head) = seen.head.as_ref().filter(|head| head.version > cut.head.version) {
            return Err(PublishError::StoreIsOlder { on_topic: head.version, here: cut.head.version });
        }
        let changed = seen.differing_from(&cut);
        let is_new = seen.head.as_ref() != Some(&cut.head);
        if changed.is_empty() && !is_new && !confirms {
            return Ok(0);
        }
        for chunk in changed.chunks(APPENDED_AT_ONCE) {
            let mut appends = Vec::with_capacity(chunk.len());
            for (scope, body) in chunk {
                appends.push(self.append(&cut.head, scope, (*body).to_owned())?);
            }
            for append in appends {
                append.durable().await?;
            }
        }
        let head = cut.head.record()?;
        self.append_record(&head.scope.clone(), &head)?.durable().await?;
        if is_new {
            tracing::info!(
                version = cut.head.version,
                parts = cut.head.parts,
                changed = changed.len(),
                "snapshot published"
            );
        }
        Ok(changed.len() as u64 + 1)
    }

    /// Cutting 100,000 tenants is a second of work: not on a thread that serves requests.
    async fn cut(&self, tasks: &Tasks) -> Result<Option<Cut>, PublishError> {
        let control = Arc::clone(&self.control);
        let cutting = move || -> Result<Option<Cut>, PublishError> {
            let Some((publication, document)) = control.published()? else { return Ok(None) };
            Ok(Some(cut(&document, &publication, &control.secrets().master)?))
        };
        tasks.spawn_blocking("snapshot parts", cutting).await.map_err(|_| PublishError::Lost)?
    }

    fn append(&self, head: &Head, scope: &str, body: String) -> Result<Append, PublishError> {
        let record = SnapshotPublished::new(scope.to_owned(), head.version, self.clock.now_ms(), body);
        self.append_record(scope, &record)
    }

    fn append_record(&self, scope: &str, record: &SnapshotPublished) -> Result<Append, PublishError> {
        let mut frame = Vec::with_capacity(record.body.len() + 128);
        record.encode(&mut frame).map_err(|source| PublishError::TooLarge { scope: scope.to_owned(), source })?;
        let key = Bytes::copy_from_slice(scope.as_bytes());
        Ok(self.log.append(Batch::new(Topic::Snapshots, key, self.clock.now_ms(), vec![Bytes::from(frame)])))
    }

    /// Reads what came to the topic since the last round, of this process or of another.
    async fn catch_up(&self, seen: &mut OnTopic) -> Result<(), PublishError> {
        let offsets = self.log.offsets(Topic::Snapshots, PARTITION).await?;
        let mut next = seen.next.unwrap_or(offsets.start);
        while next < offsets.durable {
            let at = Position { topic: Topic::Snapshots, partition: PARTITION, offset: next };
            let records = self.log.read(at, Limits::default(), Visibility::Durable).await?;
            let Some(last) = records.last() else { break };
            next = last.offset + 1;
            for record in &records {
                let offset = record.offset;
                let record = SnapshotPublished::decode(&record.value);
                seen.take(record.map_err(|source| PublishError::Record { offset, source })?, &self.control);
            }
        }
        seen.next = Some(next);
        Ok(())
    }
}

impl OnTopic {
    fn take(&mut self, record: SnapshotPublished, control: &Control) {
        let (scope, hash, is_empty) = (record.scope.clone(), record.content_hash, record.body.is_empty());
        let mut one = Parts::default();
        match one.take(record, &control.secrets().master) {
            Ok(true) => self.head = one.head().cloned(),
            Ok(false) if is_empty => {
                self.hashes.remove(&scope);
            }
            Ok(false) => {
                self.hashes.insert(scope, hash);
            }
            // A head of another installation's: this one's follows, and readers leave the other out.
            Err(error) => tracing::error!(error = story(&error), "a foreign snapshot on the topic"),
        }
    }

    /// What must be appended: parts that are new or other, and an empty one for each that is gone.
    fn differing_from<'a>(&'a self, cut: &'a Cut) -> Vec<(&'a str, &'a str)> {
        let is_of_book = |scope: &str, version: &PriceVersion| scope.starts_with(&format!("prices/{version}/"));
        // A book that becomes the one in force is said again, so that no reader has let go of it.
        let is_other_book = self.head.as_ref().is_none_or(|head| head.price_version != cut.head.price_version);
        let wanted = cut.parts.iter().filter(|(scope, body)| {
            let is_there = self.hashes.get(*scope) == Some(&sha256(body));
            !is_there || (is_other_book && is_of_book(scope, &cut.head.price_version))
        });
        let gone = self.hashes.keys().filter(|scope| !scope.starts_with("prices/") && !cut.parts.contains_key(*scope));
        wanted
            .map(|(scope, body)| (scope.as_str(), body.as_str()))
            .chain(gone.map(|scope| (scope.as_str(), "")))
            .collect()
    }
}

async fn sleep_or_for_ever(pause: Option<Duration>) {
    match pause {
        Some(pause) => tokio::time::sleep(pause).await,
        None => std::future::pending().await,
    }
}
