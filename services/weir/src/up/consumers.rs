//! Everything that follows the log: the ledger's builder, the corrector, the reports, and the sweep beside them.
//!
//! They are the consumers that run in processes of their own elsewhere; here they share one. At a stop each is let run
//! until it has read what the one before it wrote, so that a clean stop leaves nothing to fold.

mod follower;

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::time::Instant;

use weir_domain::ids::{Region, TenantId};
use weir_domain::policy::Snapshot;
use weir_domain::reconcile::CeilingPolicy;
use weir_ledger::LedgerBuilder;
use weir_quota::QuotaStore;
use weir_reconciler::{
    CeilingPolicies, Corrector, Journal, Projection, RecentCorrelations, ReconcilerMetrics, ReportPorts, Reports,
    Sweep, corrector, reports,
};
use weir_runtime::tasks::Tasks;
use weir_streams::consumer::Effect;
use weir_streams::{EventLog, Topic};

use super::Running;
use super::prices::PublishedPrices;

pub(super) use follower::{Follower, Pulse};

#[derive(Debug)]
pub(super) struct Consumers {
    /// In the order in which they are stopped: each reads what those before it write.
    pub followers: Vec<Follower>,
    builder: Arc<LedgerBuilder>,
    log: Arc<dyn EventLog>,
    /// What acts by the clock rather than by the log.
    periodic: Tasks,
}

impl Consumers {
    pub fn start(running: &Running<'_>, builder: Arc<LedgerBuilder>) -> Self {
        let (log, periodic) = (running.storage.log(), Tasks::new());
        let counted = ReconcilerMetrics::declare(running.metrics);
        let reports = reports(running, &counted);
        let corrector = Corrector::new(quota(running), counted.clone());
        let effects: [(&'static str, Topic, Arc<dyn Effect>); 3] = [
            (reports::CONSUMER, Topic::UsageReports, Arc::clone(&reports) as Arc<dyn Effect>),
            (weir_ledger::CONSUMER, Topic::Reservations, Arc::clone(&builder) as Arc<dyn Effect>),
            (corrector::CONSUMER, Topic::Ledger, Arc::new(corrector)),
        ];
        let follow =
            |(name, topic, effect)| Follower::start(name, topic, effect, running.storage, &running.owners.beside);
        let followers = effects.into_iter().map(follow).collect();
        drop(periodic.spawn("parked reports", reports.run(periodic.clone())));
        drop(periodic.spawn("sweep", Arc::new(sweep(running, counted)).run(periodic.clone())));
        Self { followers, builder, log, periodic }
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
            tracing::warn!(error = &error as &dyn std::error::Error, "no checkpoint at the stop");
            is_settled = false;
        }
        is_settled
    }
}

fn quota(running: &Running<'_>) -> Arc<dyn QuotaStore> {
    Arc::clone(running.quota) as Arc<dyn QuotaStore>
}

fn projection(running: &Running<'_>) -> Projection {
    let patience = running.config.reconciler.projection_patience.duration();
    Projection::new(running.storage.store(), running.storage.log(), patience)
}

/// The pen of whatever this process says that is no request.
pub(super) fn journal(running: &Running<'_>) -> Journal {
    let region = Region::new(&running.config.gateway.region);
    Journal::new(running.storage.log(), Arc::clone(running.clock), region)
}

fn reports(running: &Running<'_>, counted: &ReconcilerMetrics) -> Arc<Reports> {
    let ports = ReportPorts {
        quota: quota(running),
        projection: projection(running),
        journal: journal(running),
        prices: Arc::new(PublishedPrices::new(running.control)),
        index: correlations(running),
    };
    Arc::new(Reports::new(ports, counted.clone(), running.config.reconciler.clone()))
}

/// The newest provider ids, followed from the log; one partition here.
fn correlations(running: &Running<'_>) -> Arc<RecentCorrelations> {
    let (index, tasks) = (Arc::new(RecentCorrelations::default()), &running.owners.beside);
    let (following, log, stopping) = (Arc::clone(&index), running.storage.log(), tasks.stopping());
    drop(tasks.spawn("correlations", async move {
        if let Err(error) = following.follow(log, 0, stopping).await {
            tracing::error!(error = &error as &dyn std::error::Error, "provider ids are not followed any more");
        }
    }));
    index
}

fn sweep(running: &Running<'_>, counted: ReconcilerMetrics) -> Sweep {
    let policies = Arc::new(SnapshotPolicies(Arc::clone(running.snapshot)));
    let options = running.config.reconciler.clone();
    Sweep::new(quota(running), projection(running), journal(running), policies, counted, options)
}

/// What a tenant wants after the ceiling, as the catalog says now.
#[derive(Debug)]
struct SnapshotPolicies(Arc<ArcSwap<Snapshot>>);

impl CeilingPolicies for SnapshotPolicies {
    fn policy(&self, tenant: &TenantId) -> CeilingPolicy {
        self.0.load().tenants.get(tenant).map_or_else(CeilingPolicy::default, |tenant| tenant.on_ceiling)
    }
}
