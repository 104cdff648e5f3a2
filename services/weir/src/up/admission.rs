//! The gateway, put together.

use std::sync::Arc;

use weir_gateway::{Gateway, GatewayParts, Pepper};
use weir_providers::Upstream;
use weir_quota::QuotaStore;

use super::Running;

/// A gateway that renews its leases.
pub(super) fn gateway(running: &Running<'_>, pepper: Pepper, upstream: Upstream) -> Gateway {
    // A restarted process is another owner: what it left behind is nobody's, and the sweep ends it.
    let owner = format!("{}/{}-{}", running.config.gateway.region, std::process::id(), running.clock.now_ms());
    let gateway = Gateway::new(GatewayParts {
        options: running.config.gateway.clone(),
        owner: Arc::from(owner),
        clock: Arc::clone(running.clock),
        entropy: Arc::clone(running.entropy),
        tasks: running.owners.requests.clone(),
        health: running.health.clone(),
        metrics: running.metrics.clone(),
        snapshot: Arc::clone(running.snapshot),
        pepper,
        quota: Arc::clone(running.quota) as Arc<dyn QuotaStore>,
        log: running.storage.log(),
        upstream,
    });
    drop(gateway.start());
    gateway
}
