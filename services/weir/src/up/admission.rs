//! The gateway, put together.

use std::sync::Arc;

use arc_swap::ArcSwap;

use weir_domain::policy::Snapshot;
use weir_gateway::{Gateway, GatewayParts, Pepper};
use weir_providers::Upstream;
use weir_quota::{MemoryQuota, QuotaStore};
use weir_runtime::clock::SharedClock;
use weir_runtime::entropy::SharedEntropy;
use weir_runtime::health::Health;
use weir_runtime::metrics::Metrics;
use weir_runtime::tasks::Tasks;
use weir_streams::EventLog;

use crate::config::Config;

pub(super) struct Parts<'a> {
    pub config: &'a Config,
    pub pepper: Pepper,
    pub upstream: Upstream,
    pub clock: &'a SharedClock,
    pub entropy: &'a SharedEntropy,
    pub tasks: &'a Tasks,
    pub health: &'a Health,
    pub metrics: &'a Metrics,
    pub snapshot: &'a Arc<ArcSwap<Snapshot>>,
    pub quota: &'a Arc<MemoryQuota>,
    pub log: Arc<dyn EventLog>,
}

/// A gateway that renews its leases.
pub(super) fn gateway(parts: Parts<'_>) -> Gateway {
    // A restarted process is another owner: what it left behind is nobody's, and the sweep ends it.
    let owner = format!("{}/{}-{}", parts.config.gateway.region, std::process::id(), parts.clock.now_ms());
    let gateway = Gateway::new(GatewayParts {
        options: parts.config.gateway.clone(),
        owner: Arc::from(owner),
        clock: Arc::clone(parts.clock),
        entropy: Arc::clone(parts.entropy),
        tasks: parts.tasks.clone(),
        health: parts.health.clone(),
        metrics: parts.metrics.clone(),
        snapshot: Arc::clone(parts.snapshot),
        pepper: parts.pepper,
        quota: Arc::clone(parts.quota) as Arc<dyn QuotaStore>,
        log: parts.log,
        upstream: parts.upstream,
    });
    drop(gateway.start());
    gateway
}
