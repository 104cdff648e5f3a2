//! The gateway, put together.

use std::sync::Arc;

use weir_gateway::{Gateway, GatewayParts, Pepper};
use weir_providers::Upstream;
use weir_quota::{QuotaStore, Trust};

use super::consumers::journal;
use crate::process::Running;

/// A gateway that renews its leases.
pub(crate) fn gateway(
    running: &Running<'_>,
    quota: &Arc<dyn QuotaStore>,
    trust: &Arc<Trust>,
    pepper: Pepper,
    upstream: Upstream,
) -> Gateway {
    let gateway = Gateway::new(GatewayParts {
        options: running.config.gateway.clone(),
        owner: running.identity.owner(&journal(running)),
        clock: Arc::clone(running.clock),
        entropy: Arc::clone(running.entropy),
        tasks: running.owners.requests.clone(),
        health: running.health.clone(),
        metrics: running.metrics.clone(),
        snapshot: Arc::clone(running.snapshot),
        pepper,
        quota: Arc::clone(quota),
        trust: Arc::clone(trust),
        log: Arc::clone(running.log),
        upstream,
    });
    drop(gateway.start());
    gateway
}
