//! Everything that follows the log: the ledger's builder, the corrector, the reports, and the sweep beside them.
//!
//! They are the consumers that run in processes of their own elsewhere; here they share one. At a stop each is let run
//! until it has read what the one before it wrote, so that a clean stop leaves nothing to fold.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::watch;

use weir_domain::ids::{Region, TenantId};
use weir_domain::policy::Snapshot;
use weir_domain::reconcile::CeilingPolicy;
use weir_ledger::builder::{self, LedgerBuilder};
use weir_quota::{MemoryQuota, QuotaStore};
use weir_reconciler::{CeilingPolicies, Corrector, Journal, Projection, ReconcilerMetrics, Sweep, corrector};
use weir_runtime::clock::SharedClock;
use weir_runtime::metrics::Metrics;
use weir_runtime::tasks::{Task, Tasks};
use weir_streams::consumer::{Consumer, ConsumerError, ConsumerOptions, Effect, Subscription};
use weir_streams::{EventLog, OnPoison, Topic};

use super::storage::Storage;
use crate::config::Config;

/// What the consumers are made of.
pub(super) struct Parts<'a> {
    pub config: &'a Config,
    pub storage: &'a Storage,
    pub builder: Arc<LedgerBuilder>,
    pub quota: &'a Arc<MemoryQuota>,
    pub snapshot: &'a Arc<ArcSwap<Snapshot>>,
    pub clock: &'a SharedClock,
    pub metrics: &'a Metrics,
    pub tasks: &'a Tasks,
}

#[derive(Debug)]
pub(super) struct Consumers {
    /// In the order in which they are stopped: each reads what the one before it writes.
    followers: Vec<Follower>,
    builder: Arc<LedgerBuilder>,
    log: Arc<dyn EventLog>,
    /// Ends the sweep; nobody renews a lease any more when requests stop.
    sweeping: Tasks,
}

/// A consumer that runs.
#[derive(Debug)]
pub(super) struct Follower {
    consumer: Arc<Consumer>,
    stop: watch::Sender<bool>,
    task: Task<Result<(), ConsumerError>>,
}

impl Consumers {
    pub fn start(parts: Parts<'_>) -> Self {
        let Parts { config, storage, builder, quota, snapshot, clock, metrics, tasks } = parts;
        let log = storage.log();
        let counted = ReconcilerMetrics::declare(metrics);
        let store: Arc<dyn QuotaStore> = Arc::clone(quota) as Arc<dyn QuotaStore>;
        let effects: [(&'static str, Topic, Arc<dyn Effect>); 2] = [
            (builder::CONSUMER, Topic::Reservations, Arc::clone(&builder) as Arc<dyn Effect>),
            (corrector::CONSUMER, Topic::Ledger, Arc::new(Corrector::new(Arc::clone(&store), counted.clone()))),
        ];
        let start = |(name, topic, effect): (&'static str, Topic, Arc<dyn Effect>)| {
            // Both are money topics, see `topics.toml`.
            let options = ConsumerOptions::new(OnPoison::ParkKey);
            Follower::start(name, topic, effect, options, storage, tasks)
        };
        let followers = effects.into_iter().map(start).collect();

        let region = Region::new(&config.gateway.region);
        let patience = config.reconciler.projection_patience.duration();
        let sweep = Sweep::new(
            store,
            Projection::new(storage.store(), Arc::clone(&log), patience),
            Journal::new(Arc::clone(&log), Arc::clone(clock), region),
            Arc::new(SnapshotPolicies(Arc::clone(snapshot))),
            counted,
            config.reconciler.clone(),
        );
        let sweeping = Tasks::new();
        drop(sweeping.spawn("sweep", Arc::new(sweep).run(sweeping.clone())));
        Self { followers, builder, log, sweeping }
    }

    pub fn handles(&self) -> Vec<Arc<Consumer>> {
        self.followers.iter().map(|follower| Arc::clone(&follower.consumer)).collect()
    }

    /// Ends the sweep. A step that began is finished.
    pub async fn stop_sweeping(&self, within: Duration) {
        self.sweeping.stop(within).await;
    }

    /// Lets every consumer read to the end, then stops it; then takes a checkpoint. `false` where the time did not
    /// suffice: the next start goes on from where they stand.
    pub async fn settle(self, within: Duration) -> bool {
        let deadline = tokio::time::Instant::now() + within;
        let mut is_settled = true;
        for follower in self.followers {
            is_settled &= follower.finish(self.log.as_ref(), deadline).await;
        }
        if let Err(error) = self.builder.checkpoint().await {
            tracing::warn!(error = &error as &dyn std::error::Error, "no checkpoint at the stop");
            is_settled = false;
        }
        is_settled
    }
}

impl Follower {
    fn start(
        name: &'static str,
        topic: Topic,
        effect: Arc<dyn Effect>,
        options: ConsumerOptions,
        storage: &Storage,
        tasks: &Tasks,
    ) -> Self {
        // The embedded log has one partition.
        let subscription = Subscription { consumer: Arc::from(name), topic, partition: 0 };
        let (positions, parking) = (Arc::clone(&storage.ledger), Arc::clone(&storage.ledger));
        let consumer = Arc::new(Consumer::new(subscription, storage.log(), effect, positions, parking, options));
        let (stop, mut stopping) = watch::channel(false);
        let running = Arc::clone(&consumer);
        let task = tasks.spawn(name, async move {
            let stopped = async move {
                // An error means that whoever would say so is gone.
                let _told = stopping.wait_for(|told| *told).await.is_ok();
            };
            let ended = running.run(stopped).await;
            if let Err(error) = &ended {
                let consumer = running.subscription();
                tracing::error!(%consumer, error = error as &dyn std::error::Error, "consumer ended: a person is needed");
            }
            ended
        });
        Self { consumer, stop, task }
    }

    /// Whether it has ended although nobody stopped it.
    fn has_ended(&self) -> bool {
        self.task.is_finished()
    }

    async fn finish(self, log: &dyn EventLog, deadline: tokio::time::Instant) -> bool {
        let Subscription { topic, partition, .. } = *self.consumer.subscription();
        let has_read_all = match log.offsets(topic, partition).await {
            Err(_) => false,
            Ok(_) if self.has_ended() => false,
            Ok(offsets) => {
                tokio::time::timeout_at(deadline, self.consumer.reached(offsets.written)).await.is_ok()
            }
        };
        self.stop.send_replace(true);
        let ended = tokio::time::timeout_at(deadline.max(tokio::time::Instant::now() + LAST_DELIVERY), self.task).await;
        has_read_all && matches!(ended, Ok(Ok(Ok(()))))
    }
}

/// What a delivery that began may still take once its consumer was told to stop.
const LAST_DELIVERY: Duration = Duration::from_secs(5);

/// What a tenant wants after the ceiling, as the catalog says now.
#[derive(Debug)]
struct SnapshotPolicies(Arc<ArcSwap<Snapshot>>);

impl CeilingPolicies for SnapshotPolicies {
    fn policy(&self, tenant: &TenantId) -> CeilingPolicy {
        self.0.load().tenants.get(tenant).map_or_else(CeilingPolicy::default, |tenant| tenant.on_ceiling)
    }
}
