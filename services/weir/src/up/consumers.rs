//! Everything that follows the log: the ledger's builder, the corrector, the reports, and the sweep beside them.
//!
//! They are the consumers that run in processes of their own elsewhere; here they share one. At a stop each is let run
//! until it has read what the one before it wrote, so that a clean stop leaves nothing to fold.

mod follower;

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::time::Instant;

use weir_control::Control;
use weir_domain::ids::{Region, TenantId};
use weir_domain::policy::Snapshot;
use weir_domain::reconcile::CeilingPolicy;
use weir_ledger::builder::{self, LedgerBuilder};
use weir_quota::{MemoryQuota, QuotaStore};
use weir_reconciler::{
    CeilingPolicies, Corrector, Journal, Projection, RecentCorrelations, ReconcilerMetrics, ReportPorts, Reports,
    Sweep, corrector, reports,
};
use weir_runtime::clock::SharedClock;
use weir_runtime::metrics::Metrics;
use weir_runtime::tasks::Tasks;
use weir_streams::consumer::Effect;
use weir_streams::{EventLog, Topic};

use super::prices::PublishedPrices;
use super::storage::Storage;
use crate::config::Config;

pub(super) use follower::{Follower, Pulse};

/// What the consumers are made of.
pub(super) struct Parts<'a> {
    pub config: &'a Config,
    pub storage: &'a Storage,
    pub builder: Arc<LedgerBuilder>,
    pub quota: &'a Arc<MemoryQuota>,
    pub control: &'a Arc<Control>,
    pub snapshot: &'a Arc<ArcSwap<Snapshot>>,
    pub clock: &'a SharedClock,
    pub metrics: &'a Metrics,
    pub tasks: &'a Tasks,
}

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
    pub fn start(parts: &Parts<'_>) -> Self {
        let (log, periodic) = (parts.storage.log(), Tasks::new());
        let counted = ReconcilerMetrics::declare(parts.metrics);
        let reports = parts.reports(&counted);
        let corrector = Corrector::new(parts.quota(), counted.clone());
        let effects: [(&'static str, Topic, Arc<dyn Effect>); 3] = [
            (reports::CONSUMER, Topic::UsageReports, Arc::clone(&reports) as Arc<dyn Effect>),
            (builder::CONSUMER, Topic::Reservations, Arc::clone(&parts.builder) as Arc<dyn Effect>),
            (corrector::CONSUMER, Topic::Ledger, Arc::new(corrector)),
        ];
        let follow = |(name, topic, effect)| Follower::start(name, topic, effect, parts.storage, parts.tasks);
        let followers = effects.into_iter().map(follow).collect();
        drop(periodic.spawn("parked reports", reports.run(periodic.clone())));
        drop(periodic.spawn("sweep", Arc::new(parts.sweep(counted)).run(periodic.clone())));
        Self { followers, builder: Arc::clone(&parts.builder), log, periodic }
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

impl Parts<'_> {
    fn quota(&self) -> Arc<dyn QuotaStore> {
        Arc::clone(self.quota) as Arc<dyn QuotaStore>
    }

    fn projection(&self) -> Projection {
        let patience = self.config.reconciler.projection_patience.duration();
        Projection::new(self.storage.store(), self.storage.log(), patience)
    }

    fn journal(&self) -> Journal {
        Journal::new(self.storage.log(), Arc::clone(self.clock), Region::new(&self.config.gateway.region))
    }

    fn reports(&self, counted: &ReconcilerMetrics) -> Arc<Reports> {
        let ports = ReportPorts {
            quota: self.quota(),
            projection: self.projection(),
            journal: self.journal(),
            prices: Arc::new(PublishedPrices::new(self.control, self.snapshot)),
            index: self.correlations(),
        };
        Arc::new(Reports::new(ports, counted.clone(), self.config.reconciler.clone()))
    }

    /// The newest provider ids, followed from the log; one partition here.
    fn correlations(&self) -> Arc<RecentCorrelations> {
        let index = Arc::new(RecentCorrelations::default());
        let (following, log, stopping) = (Arc::clone(&index), self.storage.log(), self.tasks.stopping());
        drop(self.tasks.spawn("correlations", async move {
            if let Err(error) = following.follow(log, 0, stopping).await {
                tracing::error!(error = &error as &dyn std::error::Error, "provider ids are not followed any more");
            }
        }));
        index
    }

    fn sweep(&self, counted: ReconcilerMetrics) -> Sweep {
        Sweep::new(
            self.quota(),
            self.projection(),
            self.journal(),
            Arc::new(SnapshotPolicies(Arc::clone(self.snapshot))),
            counted,
            self.config.reconciler.clone(),
        )
    }
}

/// What a tenant wants after the ceiling, as the catalog says now.
#[derive(Debug)]
struct SnapshotPolicies(Arc<ArcSwap<Snapshot>>);

impl CeilingPolicies for SnapshotPolicies {
    fn policy(&self, tenant: &TenantId) -> CeilingPolicy {
        self.0.load().tenants.get(tenant).map_or_else(CeilingPolicy::default, |tenant| tenant.on_ceiling)
    }
}
