//! Everything that follows the log: the ledger's builder, the corrector, the reports, and the sweep beside them.
//!
//! They are the consumers that run in processes of their own elsewhere; here they share one. At a stop each is let run
//! until it has read what the one before it wrote, so that a clean stop leaves nothing to fold.

mod follower;
mod thread;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::time::Instant;

use weir_domain::ids::{Region, TenantId};
use weir_domain::policy::Snapshot;
use weir_domain::reconcile::CeilingPolicy;
use weir_ledger::contract::LedgerStore;
use weir_ledger::{Beside, Folded, Handover, LedgerBuilder, Witness};
use weir_quota::QuotaStore;
use weir_reconciler::{
    CeilingPolicies, Corrector, Journal, Presence, Projection, RecentCorrelations, ReconcilerMetrics, ReportPorts,
    Reports, Sweep, TenantLimits, corrector, reports,
};
use weir_runtime::story::story;
use weir_runtime::tasks::Tasks;
use weir_streams::consumer::Effect;
use weir_streams::{EventLog, Topic};

use super::prices::{PriceBooks, PublishedPrices};
use crate::process::Running;

use super::storage::Storage;
pub(crate) use follower::{Follower, Pulse};
use thread::ConsumerThread;

/// Where what is derived from the log is kept, and what deriving needs to know.
#[derive(Debug, Clone)]
pub(crate) struct Derived {
    pub ledger: Arc<dyn LedgerStore>,
    pub quota: Arc<dyn QuotaStore>,
    pub books: Arc<dyn PriceBooks>,
}

#[derive(Debug)]
pub(crate) struct Consumers {
    /// In the order in which they are stopped: each reads what those before it write.
    pub followers: Vec<Follower>,
    builder: Arc<LedgerBuilder>,
    log: Arc<dyn EventLog>,
    /// What acts by the clock rather than by the log.
    periodic: Tasks,
    _thread: ConsumerThread,
}

impl Consumers {
    /// Starts all of them on a thread of their own, the builder where the fold has left it.
    ///
    /// # Errors
    /// When there is no thread to be had.
    pub(in crate::up) fn start(
        running: &Running<'_>,
        storage: &Storage,
        derived: &Derived,
        folded: Folded,
    ) -> io::Result<Self> {
        let thread = ConsumerThread::start()?;
        let on_it = thread.enter();
        let (log, periodic) = (Arc::clone(running.log), Tasks::new());
        let counted = ReconcilerMetrics::declare(running.metrics);
        let (index, handover) = (correlations(running, &folded), Arc::new(Handover::default()));
        let beside = Beside {
            witness: Some(Arc::clone(&index) as Arc<dyn Witness>),
            // Its places are those of the one partition that the embedded log has.
            handover: (log.partitions(Topic::Ledger) == 1).then(|| Arc::clone(&handover)),
        };
        let builder = Arc::new(storage.builder(running.config, folded, running.clock).with(beside));
        let reports = reports(running, derived, &counted, index);
        let corrector = Corrector::new(Arc::clone(&derived.quota), counted.clone()).with_handover(handover);
        let effects: [(&'static str, Topic, Arc<dyn Effect>); 3] = [
            (reports::CONSUMER, Topic::UsageReports, Arc::clone(&reports) as Arc<dyn Effect>),
            (weir_ledger::CONSUMER, Topic::Reservations, Arc::clone(&builder) as Arc<dyn Effect>),
            (corrector::CONSUMER, Topic::Ledger, Arc::new(corrector)),
        ];
        let tasks = &running.owners.beside;
        let follow = |(name, topic, effect)| Follower::start(name, topic, effect, running.log, &derived.ledger, tasks);
        let followers = effects.into_iter().map(follow).collect();
        drop(periodic.spawn("parked reports", reports.run(periodic.clone())));
        let sweep = sweep(running, derived, counted).minding(presence(running));
        drop(periodic.spawn("sweep", Arc::new(sweep).run(periodic.clone())));
        drop(on_it);
        Ok(Self { followers, builder, log, periodic, _thread: thread })
    }

    /// Ends what acts by the clock. A step that began is finished.
    pub async fn stop_periodic(&self, within: Duration) {
        self.periodic.stop(within).await;
    }

    /// Lets every consumer read to the end, then stops it; then takes a checkpoint. `false` where the time did not
    /// suffice: the next start goes on from where they stand.
    pub async fn settle(self, within: Duration) -> bool {
        let deadline = Instant::now() + within;
        let mut is_settled = true;
        for follower in self.followers {
            is_settled &= follower.finish(self.log.as_ref(), deadline).await;
        }
        if let Err(error) = self.builder.checkpoint().await {
            tracing::warn!(error = story(&error), "no checkpoint at the stop");
            is_settled = false;
        }
        is_settled
    }
}

fn projection(running: &Running<'_>, derived: &Derived) -> Projection {
    let patience = running.config.reconciler.projection_patience.duration();
    Projection::new(Arc::clone(&derived.ledger), Arc::clone(running.log), patience)
}

/// The pen of whatever this process says that is no request.
pub(crate) fn journal(running: &Running<'_>) -> Journal {
    let region = Region::new(&running.config.gateway.region);
    Journal::new(Arc::clone(running.log), Arc::clone(running.clock), region)
}

/// Matches what comes on `weir.usage-reports`.
pub(crate) fn reports(
    running: &Running<'_>,
    derived: &Derived,
    counted: &ReconcilerMetrics,
    index: Arc<RecentCorrelations>,
) -> Arc<Reports> {
    let ports = ReportPorts {
        quota: Arc::clone(&derived.quota),
        projection: projection(running, derived),
        journal: journal(running),
        prices: Arc::new(PublishedPrices::new(Arc::clone(&derived.books))),
        index,
    };
    Arc::new(Reports::new(ports, counted.clone(), running.config.reconciler.clone()))
}

/// The newest provider ids: those before the builder's position are read once, those from there on it tells.
fn correlations(running: &Running<'_>, folded: &Folded) -> Arc<RecentCorrelations> {
    let (index, tasks) = (Arc::new(RecentCorrelations::default()), &running.owners.beside);
    for (partition, until) in folded.positions.clone() {
        let (learning, log, stopping) = (Arc::clone(&index), Arc::clone(running.log), tasks.stopping());
        drop(tasks.spawn("correlations", async move {
            if let Err(error) = learning.look_back(log, partition, until, stopping).await {
                tracing::error!(error = story(&error), "older provider ids are not known");
            }
        }));
    }
    index
}

/// Who lives, followed from the log.
pub(crate) fn presence(running: &Running<'_>) -> Arc<Presence> {
    let (presence, tasks) = (Arc::new(Presence::default()), &running.owners.beside);
    for partition in 0..running.log.partitions(Topic::Operations) {
        let (following, log, stopping) = (Arc::clone(&presence), Arc::clone(running.log), tasks.stopping());
        drop(tasks.spawn("presence", async move {
            if let Err(error) = following.follow(log, partition, stopping).await {
                tracing::error!(error = story(&error), "heartbeats are not followed any more");
            }
        }));
    }
    presence
}

/// Ends what did not end by itself.
pub(crate) fn sweep(running: &Running<'_>, derived: &Derived, counted: ReconcilerMetrics) -> Sweep {
    let policies = Arc::new(SnapshotPolicies(Arc::clone(running.snapshot)));
    let (options, quota) = (running.config.reconciler.clone(), Arc::clone(&derived.quota));
    Sweep::new(quota, projection(running, derived), journal(running), policies, counted, options)
}

/// What a tenant wants after the ceiling, and its limits, as the catalog says now.
#[derive(Debug)]
struct SnapshotPolicies(Arc<ArcSwap<Snapshot>>);

impl CeilingPolicies for SnapshotPolicies {
    fn policy(&self, tenant: &TenantId) -> CeilingPolicy {
        self.0.load().tenants.get(tenant).map_or_else(CeilingPolicy::default, |tenant| tenant.on_ceiling)
    }

    fn limits(&self, tenant: &TenantId, now_ms: i64) -> Option<TenantLimits> {
        let snapshot = self.0.load();
        let found = snapshot.tenants.get(tenant)?;
        let of_keys = snapshot.keys.values().filter(|key| key.tenant.id == *tenant).flat_map(|key| &key.limits);
        let limits = found.limits.iter().chain(of_keys).cloned().collect();
        Some(TenantLimits { limits, windows: found.calendar.at(now_ms) })
    }
}
