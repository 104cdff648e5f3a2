use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tempfile::TempDir;

use weir_domain::ids::TenantId;
use weir_domain::policy::Snapshot;
use weir_runtime::clock::{ManualClock, SharedClock};
use weir_runtime::entropy::OsEntropy;
use weir_runtime::tasks::Tasks;
use weir_schemas::Record as _;
use weir_schemas::revocation::KeyRevoked;
use weir_schemas::snapshot::SnapshotPublished;
use weir_streams::segment::{SegmentLog, SegmentOptions};
use weir_streams::{
    Append, Batch, EventLog, Health, Limits, Offsets, Position, ReadError, StoredRecord, Topic, Visibility,
};

use super::parts::cut;
use super::*;
use crate::document::{KeyDocument, SnapshotDocument, TenantDocument};
use crate::secrets::ControlSecrets;
use crate::state::Publication;
use crate::store::SqliteControlStore;
use crate::{Control, KeyRequest, SnapshotSource as _};

/// 2026-11-29 12:00 UTC.
const NOW_MS: i64 = 1_795_953_600_000;

const CATALOG: &str = r#"
[[provider]]
id = "p"
dialect = "openai_chat"
base_url = "http://127.0.0.1:9/v1"

[[deployment]]
id = "d"
provider = "p"
model = "gpt-4o-mini"
max_output_tokens = 1000

[[model]]
name = "m"
deployments = ["d"]

[[tenant]]
name = "t"
"#;

/// An installation: a control store, a log, and followers of it.
struct Place {
    folder: TempDir,
    secrets: ControlSecrets,
    clock: Arc<ManualClock>,
    log: Arc<dyn EventLog>,
    control: Arc<Control>,
    tasks: Tasks,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let secrets = ControlSecrets::open_or_create(folder.path(), &OsEntropy).unwrap();
        let clock = Arc::new(ManualClock::at_ms(NOW_MS));
        let log = SegmentLog::open(SegmentOptions::new(folder.path().join("log"))).unwrap();
        let store = SqliteControlStore::open(&folder.path().join("control.sqlite"), &secrets).unwrap();
        let shared: SharedClock = Arc::<ManualClock>::clone(&clock);
        let control = Control::open(Arc::new(store), secrets.clone(), shared, OsEntropy::shared()).unwrap();
        control.apply("catalog.toml", CATALOG).unwrap();
        Self { folder, secrets, clock, log: Arc::new(log), control: Arc::new(control), tasks: Tasks::new() }
    }

    fn shared_clock(&self) -> SharedClock {
        Arc::<ManualClock>::clone(&self.clock)
    }

    /// A control plane as another process has it.
    fn another_plane(&self) -> Arc<Control> {
        let store = SqliteControlStore::open(&self.folder.path().join("control.sqlite"), &self.secrets).unwrap();
        let (secrets, clock) = (self.secrets.clone(), self.shared_clock());
        Arc::new(Control::open(Arc::new(store), secrets, clock, OsEntropy::shared()).unwrap())
    }

    /// A publisher, running.
    fn publish(&self) -> Arc<Publisher> {
        self.publish_of(&self.control)
    }

    fn publish_of(&self, control: &Arc<Control>) -> Arc<Publisher> {
        let publisher = Publisher::new(Arc::clone(control), Arc::clone(&self.log), self.shared_clock(), None);
        let publisher = Arc::new(publisher);
        drop(self.tasks.spawn("publisher", Arc::clone(&publisher).run(self.tasks.clone())));
        publisher
    }

    fn follower(&self, name: &str, max_age: Option<Duration>) -> Arc<SnapshotFollower> {
        let options = FollowOptions { file: self.folder.path().join(name), max_age };
        let master = self.secrets.master.clone();
        Arc::new(SnapshotFollower::open(Arc::clone(&self.log), master, self.shared_clock(), options).unwrap())
    }

    fn follow(&self, name: &str) -> Arc<SnapshotFollower> {
        let follower = self.follower(name, None);
        drop(self.tasks.spawn("follower", Arc::clone(&follower).run(self.tasks.clone())));
        follower
    }

    async fn records(&self) -> u64 {
        self.log.offsets(Topic::Snapshots, 0).await.unwrap().durable
    }

    async fn has_published(&self, publisher: &Publisher) {
        eventually(async || publisher.trouble().is_none()).await;
    }
}

async fn eventually(mut is_so: impl AsyncFnMut() -> bool) {
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while !is_so().await {
        assert!(std::time::Instant::now() < deadline, "it did not come to be");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

async fn comes_to(follower: &SnapshotFollower, control: &Control) {
    eventually(async || follower.current().version == control.current().version).await;
    assert_same(&follower.current(), &control.current());
}

fn assert_same(there: &Snapshot, here: &Snapshot) {
    assert_eq!((there.version, there.prices.version()), (here.version, here.prices.version()));
    assert_eq!((&there.tenants, &there.keys), (&here.tenants, &here.keys));
    assert_eq!(
        (&there.models, &there.deployments, &there.providers),
        (&here.models, &here.deployments, &here.providers)
    );
    assert_eq!(there.prices, here.prices);
}

fn key(name: &str) -> KeyRequest {
    KeyRequest { tenant: "t".to_owned(), name: name.to_owned(), ..KeyRequest::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_version_comes_to_a_role_apart_and_only_what_changed_is_said() {
    let place = Place::new();
    let follower = place.follow("a");
    assert!(follower.trouble().unwrap().contains("is `weir control` running?"));
    let publisher = place.publish();
    comes_to(&follower, &place.control).await;
    assert_eq!(follower.trouble(), None);
    place.has_published(&publisher).await;

    let before = place.records().await;
    let made = place.control.create_key(&key("k")).unwrap();
    comes_to(&follower, &place.control).await;
    assert_eq!(place.records().await - before, 2, "the part of the new key, and the head");
    place.control.revoke_key(made.view.id.as_str()).unwrap();

    let without_tenant = CATALOG.replace("[[tenant]]\nname = \"t\"\n", "");
    place.control.apply("catalog.toml", &without_tenant).unwrap();
    comes_to(&follower, &place.control).await;
    assert!(follower.current().tenants.is_empty() && follower.current().keys.is_empty());

    // One that comes late finds the newest.
    comes_to(&place.follow("b"), &place.control).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn planes_that_publish_at_once_leave_the_newest_version_whole() {
    const KEYS: usize = 15;
    let place = Place::new();
    let planes = [Arc::clone(&place.control), place.another_plane()];
    let follower = place.follow("a");
    let publishers = planes.each_ref().map(|plane| place.publish_of(plane));
    let acts = planes.each_ref().map(|plane| {
        let plane = Arc::clone(plane);
        place.tasks.spawn_blocking("acts", move || {
            for number in 0..KEYS {
                let made = plane.create_key(&key(&format!("k{number}"))).unwrap();
                if number % 3 == 0 {
                    plane.revoke_key(made.view.id.as_str()).unwrap();
                }
            }
        })
    });
    for acting in acts {
        acting.await.unwrap();
    }
    // Whoever looks has what the other one wrote.
    let (publication, _) = planes[0].published().unwrap().unwrap();
    // The empty catalog and the one of the place, then every act.
    assert_eq!(publication.version, 2 + 2 * (KEYS + KEYS / 3) as u64);
    planes[1].published().unwrap();
    assert_same(&planes[1].current(), &planes[0].current());
    comes_to(&follower, &planes[0]).await;
    // One that reads the topic from its start finds it too, whoever's records were the last.
    comes_to(&place.follow("b"), &planes[0]).await;
    for publisher in publishers {
        place.has_published(&publisher).await;
    }
}

/// A log whose next append comes only after something else has happened.
struct Overtaken {
    log: Arc<dyn EventLog>,
    first: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl fmt::Debug for Overtaken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Overtaken").finish_non_exhaustive()
    }
}

#[async_trait]
impl EventLog for Overtaken {
    fn append(&self, batch: Batch) -> Append {
        let first = self.first.lock().take();
        if let Some(first) = first {
            first();
        }
        self.log.append(batch)
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_version_that_comes_after_a_newer_one_is_put_right_by_whoever_was_late() {
    let place = Place::new();
    let first = place.publish();
    place.has_published(&first).await;
    place.tasks.stop(Duration::from_secs(5)).await;
    let place = Place { tasks: Tasks::new(), ..place };
    let made = place.control.create_key(&key("k")).unwrap();
    // Between the look of the one plane and its first record, the other one ends that very key and says all of it.
    let (other, log, master) = (place.another_plane(), Arc::clone(&place.log), place.secrets.master.clone());
    let newest = Arc::clone(&other);
    let overtakes = move || {
        other.revoke_key(made.view.id.as_str()).unwrap();
        let (publication, document) = other.published().unwrap().unwrap();
        let newer = cut(&document, &publication, &master).unwrap();
        let parts = newer
            .parts
            .iter()
            .map(|(scope, body)| SnapshotPublished::new(scope.clone(), publication.version, NOW_MS, body.clone()));
        for record in parts.chain([newer.head.record().unwrap()]) {
            drop(log.append(batch(&record)));
        }
    };
    let log = Overtaken { log: Arc::clone(&place.log), first: Mutex::new(Some(Box::new(overtakes))) };
    let late = Publisher::new(Arc::clone(&place.control), Arc::new(log), place.shared_clock(), None);
    drop(place.tasks.spawn("publisher", Arc::new(late).run(place.tasks.clone())));
    comes_to(&place.follow("a"), &newest).await;
    assert!(newest.current().keys.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publisher_that_starts_again_has_nothing_to_say() {
    let place = Place::new();
    let first = place.publish();
    place.has_published(&first).await;
    place.tasks.stop(Duration::from_secs(5)).await;
    let (before, place) = (place.records().await, Place { tasks: Tasks::new(), ..place });
    let second = place.publish();
    place.has_published(&second).await;
    assert_eq!(place.records().await, before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publication_that_was_cut_off_changes_nothing_until_it_is_whole() {
    let place = Place::new();
    let publisher = place.publish();
    let follower = place.follow("a");
    comes_to(&follower, &place.control).await;
    place.has_published(&publisher).await;
    let in_force = follower.current().version;
    // A head that names parts which are not there: as a publisher that was killed between them leaves it for a reader
    // that comes after compaction.
    place.tasks.stop(Duration::from_secs(5)).await;
    let place = Place { tasks: Tasks::new(), ..place };
    place.control.create_key(&key("k")).unwrap();
    let (publication, document) = place.control.published().unwrap().unwrap();
    let head = cut(&document, &publication, &place.secrets.master).unwrap().head.record().unwrap();
    append(&*place.log, &head).await;

    let follower = place.follow("b");
    eventually(async || follower.trouble().is_some_and(|told| told.contains("no snapshot has come yet"))).await;
    let restarted = place.follow("a");
    assert_eq!(restarted.current().version, in_force, "from disk");
    place.publish();
    comes_to(&follower, &place.control).await;
    comes_to(&restarted, &place.control).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_good_version_is_in_force_at_once_without_log_and_control_plane() {
    let place = Place::new();
    place.publish();
    let follower = place.follow("a");
    comes_to(&follower, &place.control).await;
    eventually(async || place.folder.path().join("a").exists()).await;
    place.tasks.stop(Duration::from_secs(5)).await;

    let restarted = place.follower("a", None);
    assert_same(&restarted.current(), &place.control.current());
    assert_eq!((restarted.trouble(), restarted.is_stale()), (None, false));
    let strict = place.follower("a", Some(Duration::from_secs(60)));
    assert!(strict.is_stale() && strict.trouble().unwrap().contains("was not heard of yet"));

    spoil(&place.folder.path().join("a"));
    assert_eq!(place.follower("a", None).current().version, 0, "a damaged file is passed over");
}

fn spoil(path: &Path) {
    let text = std::fs::read_to_string(path).unwrap();
    std::fs::write(path, text.replace("gpt-4o-mini", "gpt-4o-maxi")).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_that_nobody_confirms_grows_too_old() {
    let place = Place::new();
    let control = Arc::clone(&place.control);
    let often = Some(Duration::from_millis(20));
    let publisher = Arc::new(Publisher::new(control, Arc::clone(&place.log), place.shared_clock(), often));
    let publishing = Tasks::new();
    drop(publishing.spawn("publisher", Arc::clone(&publisher).run(publishing.clone())));
    let follower = place.follower("a", Some(Duration::from_secs(60)));
    drop(place.tasks.spawn("follower", Arc::clone(&follower).run(place.tasks.clone())));
    comes_to(&follower, &place.control).await;
    place.clock.advance_ms(61_000);
    eventually(async || follower.trouble().is_none()).await;
    publishing.stop(Duration::from_secs(5)).await;
    let read = place.records().await;
    eventually(async || {
        place.clock.advance_ms(61_000);
        follower.is_stale()
    })
    .await;
    assert!(follower.trouble().unwrap().contains("last heard of"), "{read}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revoked_key_is_gone_before_the_next_snapshot() {
    let place = Place::new();
    let made = place.control.create_key(&key("k")).unwrap();
    place.publish();
    let follower = place.follow("a");
    comes_to(&follower, &place.control).await;
    assert_eq!(follower.current().keys.len(), 1);
    let revoked = KeyRevoked {
        key: made.view.id,
        tenant: TenantId::new("t"),
        who: "dana".to_owned(),
        why: "leaked".to_owned(),
        revoked_at_ms: NOW_MS,
    };
    let mut frame = Vec::new();
    revoked.encode(&mut frame).unwrap();
    let batch = Batch::new(Topic::Revocations, revoked.key.to_string(), NOW_MS, vec![frame.into()]);
    place.log.append(batch).durable().await.unwrap();
    eventually(async || follower.current().keys.is_empty()).await;
    place.control.create_key(&key("l")).unwrap();
    eventually(async || follower.current().version == place.control.current().version).await;
    assert_eq!(follower.current().keys.len(), 1, "it stays away from later versions as well");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_head_that_another_master_key_signed_is_left_out() {
    let place = Place::new();
    let elsewhere = Place::new();
    let (publication, document) = elsewhere.control.published().unwrap().unwrap();
    let forged = cut(&document, &Publication { version: 99, ..publication }, &elsewhere.secrets.master).unwrap();
    append(&*place.log, &forged.head.record().unwrap()).await;
    place.publish();
    let follower = place.follow("a");
    comes_to(&follower, &place.control).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_was_set_back_does_not_set_gateways_back() {
    let place = Place::new();
    let (publication, document) = place.control.published().unwrap().unwrap();
    let ahead = cut(&document, &Publication { version: 99, ..publication }, &place.secrets.master).unwrap();
    append(&*place.log, &ahead.head.record().unwrap()).await;
    let publisher = place.publish();
    eventually(async || publisher.trouble().is_some_and(|told| told.contains("restored from a backup"))).await;
}

fn batch(record: &SnapshotPublished) -> Batch {
    let mut frame = Vec::new();
    record.encode(&mut frame).unwrap();
    Batch::new(Topic::Snapshots, record.scope.clone(), NOW_MS, vec![frame.into()])
}

async fn append(log: &dyn EventLog, record: &SnapshotPublished) {
    log.append(batch(record)).durable().await.unwrap();
}

#[test]
fn a_hundred_thousand_tenants_are_parts_that_a_record_can_hold() {
    const MANY: usize = 100_000;
    let place = Place::new_without_runtime();
    let (publication, document) = place.0.published().unwrap().unwrap();
    let (tenant, hash) = (document.tenants[0].clone(), "ab".repeat(32));
    let tenants = (0..MANY).map(|n| TenantDocument { id: TenantId::from(format!("t_{n:016x}")), ..tenant.clone() });
    let key = |n: usize| KeyDocument {
        id: format!("k_{n:016x}").into(),
        hash: serde_json::from_value(hash.clone().into()).unwrap(),
        prefix: format!("weir-{n:08x}"),
        tenant: TenantId::from(format!("t_{n:016x}")),
        team: None,
        models: None,
        limits: Vec::new(),
        expires_at_ms: None,
        labels: vec![("env".to_owned(), "production".to_owned())],
    };
    let document = SnapshotDocument { tenants: tenants.collect(), keys: (0..MANY).map(key).collect(), ..document };
    let cut = cut(&document, &publication, &place.1.master).unwrap();
    let largest = cut.parts.values().map(String::len).max().unwrap();
    assert!(largest < weir_schemas::MAX_FRAME_BYTES / 10, "{largest}");
    let mut parts = Parts::default();
    for (scope, body) in cut.parts {
        let record = weir_schemas::snapshot::SnapshotPublished::new(scope, 1, NOW_MS, body);
        parts.take(record, &place.1.master).unwrap();
    }
    assert!(parts.take(cut.head.record().unwrap(), &place.1.master).unwrap());
    let assembled = parts.assemble().unwrap().unwrap();
    assert_eq!((assembled.document.tenants.len(), assembled.document.keys.len()), (MANY, MANY));
}

impl Place {
    fn new_without_runtime() -> (Control, ControlSecrets, TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let secrets = ControlSecrets::open_or_create(folder.path(), &OsEntropy).unwrap();
        let store = SqliteControlStore::in_memory(&secrets).unwrap();
        let clock = Arc::new(ManualClock::at_ms(NOW_MS));
        let control = Control::open(Arc::new(store), secrets.clone(), clock, OsEntropy::shared()).unwrap();
        control.apply("catalog.toml", CATALOG).unwrap();
        (control, secrets, folder)
    }
}
