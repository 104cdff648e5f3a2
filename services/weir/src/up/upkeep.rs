//! What keeps a running process honest about itself: the snapshot in force, readiness, and how far consumers are.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;

use weir_control::{Control, Publisher, SnapshotSource};
use weir_domain::policy::Snapshot;
use weir_quota::QuotaStore;
use weir_runtime::clock::SharedClock;
use weir_runtime::health::Health;
use weir_runtime::metrics::{EncodeLabelSet, Family, Gauge, Metrics};
use weir_runtime::tasks::Tasks;
use weir_streams::consumer::Lag;
use weir_streams::{self as streams, EventLog, Topic};

use super::consumers::{Consumers, Follower, Pulse};
use super::storage::Storage;
use crate::process::Running;

/// What must hold for `/readyz` to say yes.
pub mod conditions {
    /// The event log takes new events.
    pub const LOG: &str = "log";
    /// Every consumer runs and none is held up.
    pub const LEDGER: &str = "ledger";
    /// The counters are validated.
    pub const QUOTA: &str = "quota";
    /// There is a model to ask for and a key to ask with.
    pub const CATALOG: &str = "catalog";
    /// The control store answers, and the log has what it says. Of control planes apart.
    #[cfg(all(feature = "kafka", feature = "cql", feature = "redis"))]
    pub const CONTROL: &str = "control";

    pub const ALL: &[&str] = &[LOG, LEDGER, QUOTA, CATALOG];
}

/// Looks at everything once, so that a process that is up is ready; then keeps on until the tasks stop.
pub(super) async fn start(
    running: &Running<'_>,
    storage: &Storage,
    quota: &Arc<dyn QuotaStore>,
    control: &Arc<Control>,
    consumers: &Consumers,
) {
    let watcher = Watcher {
        log: Arc::clone(running.log),
        pulses: consumers.followers.iter().map(Follower::pulse).collect(),
        quota: Arc::clone(quota),
        snapshot: Arc::clone(running.snapshot),
        health: running.health.clone(),
        lag: LagMetrics::declare(running.metrics),
        clock: Arc::clone(running.clock),
    };
    watcher.look().await;
    let tasks = &running.owners.beside;
    follow_snapshots(&**control, running.snapshot, tasks);
    drop(publish(running, control, None));
    super::heart::start(running);
    expire(storage, consumers, running.clock, tasks);
    let stopping = tasks.stopping();
    drop(tasks.spawn("watch", async move {
        tokio::pin!(stopping);
        loop {
            tokio::select! {
                () = &mut stopping => return,
                () = tokio::time::sleep(LOOK_EVERY) => watcher.look().await,
            }
        }
    }));
}

/// Tells every version of the policy on `weir.snapshots`. In one process nobody else needs it; auditors read it.
pub(crate) fn publish(
    running: &Running<'_>,
    control: &Arc<Control>,
    confirm_every: Option<Duration>,
) -> Arc<Publisher> {
    let (control, log) = (Arc::clone(control), Arc::clone(running.log));
    let publisher = Arc::new(Publisher::new(control, log, Arc::clone(running.clock), confirm_every));
    let tasks = &running.owners.beside;
    drop(tasks.spawn("publisher", Arc::clone(&publisher).run(tasks.clone())));
    publisher
}

/// Puts every new snapshot in force.
pub(crate) fn follow_snapshots(source: &dyn SnapshotSource, snapshot: &Arc<ArcSwap<Snapshot>>, tasks: &Tasks) {
    let (mut published, snapshot, stopping) = (source.subscribe(), Arc::clone(snapshot), tasks.stopping());
    drop(tasks.spawn("snapshots", async move {
        tokio::pin!(stopping);
        loop {
            let next = published.borrow_and_update().clone();
            snapshot.store(next);
            tokio::select! {
                () = &mut stopping => return,
                changed = published.changed() => if changed.is_err() { return },
            }
        }
    }));
}

/// How often the conditions are looked at: a probe asks every few seconds.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// How often old segments are looked for: they are kept for weeks.
const EXPIRE_EVERY: Duration = Duration::from_secs(600);

/// Lets go of what every topic's retention allows and every consumer has read.
fn expire(storage: &Storage, consumers: &Consumers, clock: &SharedClock, tasks: &Tasks) {
    // Kafka lets go of old records by itself.
    let Some(segments) = storage.segments.clone() else { return };
    let (clock, owner) = (Arc::clone(clock), tasks.clone());
    let readers: Vec<_> = consumers.followers.iter().map(|follower| Arc::clone(&follower.consumer)).collect();
    drop(tasks.spawn("retention", async move {
        let stopping = owner.stopping();
        tokio::pin!(stopping);
        loop {
            tokio::select! {
                () = &mut stopping => return,
                () = tokio::time::sleep(EXPIRE_EVERY) => {}
            }
            for topic in Topic::ALL {
                let read_by = readers.iter().filter(|reader| reader.subscription().topic == topic);
                let consumed = read_by.map(|reader| reader.position()).min().unwrap_or(u64::MAX);
                let (segments, now_ms) = (Arc::clone(&segments), clock.now_ms());
                let expired = owner.spawn_blocking("expire", move || segments.expire(topic, now_ms, consumed)).await;
                match expired {
                    Ok(Ok(0)) | Err(_) => {}
                    Ok(Ok(segments)) => tracing::info!(%topic, segments, "old segments deleted"),
                    Ok(Err(error)) => tracing::warn!(%topic, error = %error, "old segments not deleted"),
                }
            }
        }
    }));
}

struct Watcher {
    log: Arc<dyn EventLog>,
    pulses: Vec<Pulse>,
    quota: Arc<dyn QuotaStore>,
    snapshot: Arc<ArcSwap<Snapshot>>,
    health: Health,
    lag: LagMetrics,
    clock: SharedClock,
}

impl Watcher {
    async fn look(&self) {
        let log = match self.log.health() {
            streams::Health::Accepting => Ok(()),
            streams::Health::Closed(closed) => Err(closed.to_string()),
        };
        self.report(conditions::LOG, log);
        self.report(conditions::QUOTA, self.quota.now_ms().await.map(|_| ()).map_err(|error| error.to_string()));
        self.report(conditions::CATALOG, has_policy(&self.snapshot.load()));
        let mut trouble = Ok(());
        for pulse in &self.pulses {
            if let Ok(lag) = pulse.consumer.lag().await {
                self.lag.note(&pulse.consumer.subscription().consumer, &[lag], self.clock.now_ms());
            }
            if let Some(reason) = pulse.trouble() {
                trouble = Err(reason);
            }
        }
        self.report(conditions::LEDGER, trouble);
    }

    fn report(&self, condition: &'static str, found: Result<(), String>) {
        match found {
            Ok(()) => self.health.ready(condition),
            Err(reason) => self.health.not_ready(condition, reason),
        }
    }
}

pub(crate) fn has_policy(snapshot: &Snapshot) -> Result<(), String> {
    if snapshot.models.is_empty() {
        return Err("no catalog is applied: run `weir catalog apply FILE`".to_owned());
    }
    if snapshot.keys.is_empty() {
        return Err("there is no key: run `weir key create --tenant T --name N`".to_owned());
    }
    Ok(())
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByConsumer {
    consumer: String,
}

/// How far each consumer is behind. The labels are names in this program.
#[derive(Debug, Default)]
pub(crate) struct LagMetrics {
    records: Family<ByConsumer, Gauge>,
    partitions: Family<ByConsumer, Gauge>,
    age_ms: Family<ByConsumer, Gauge>,
    parked_keys: Family<ByConsumer, Gauge>,
}

impl LagMetrics {
    pub fn declare(metrics: &Metrics) -> Self {
        let own = Self::default();
        metrics.declare("consumer", |registry| {
            registry.register("lag_records", "Durable records that are not applied yet", own.records.clone());
            registry.register("partitions", "Partitions that are followed here", own.partitions.clone());
            registry.register("lag_ms", "Age of the oldest record that is not applied yet", own.age_ms.clone());
            registry.register("parked_keys", "Keys that wait for a person", own.parked_keys.clone());
        });
        own
    }

    /// `lags` are those of all partitions that `consumer` follows here: they are summed, the oldest record counts.
    pub fn note(&self, consumer: &str, lags: &[Lag], now_ms: i64) {
        let label = ByConsumer { consumer: consumer.to_owned() };
        let sum = |of: fn(&Lag) -> u64| i64::try_from(lags.iter().map(of).sum::<u64>()).unwrap_or(i64::MAX);
        self.records.get_or_create(&label).set(sum(|lag| lag.records));
        self.partitions.get_or_create(&label).set(i64::try_from(lags.len()).unwrap_or(i64::MAX));
        self.parked_keys.get_or_create(&label).set(sum(|lag| lag.parked_keys as u64));
        self.age_ms.get_or_create(&label).set(lags.iter().map(|lag| lag.age_ms(now_ms)).max().unwrap_or(0));
    }
}
