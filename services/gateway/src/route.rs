//! Which deployment is asked next: the hard filter of `domain::routing`, re-run at every hop (I5), then its order.

use std::sync::Arc;

use weir_domain::ids::DeploymentId;
use weir_domain::registry::Deployment;
use weir_domain::routing::{Demand, Ineligible, eligible, rank};

use crate::estimate::Estimate;
use crate::lifecycle::Prepared;
use crate::server::Inner;

/// The next deployment to ask, or why there is none.
pub(crate) fn route(
    gateway: &Inner,
    prepared: &Prepared,
    estimate: &Estimate,
    tried: &[DeploymentId],
) -> Result<Arc<Deployment>, Option<Ineligible>> {
    let now_ms = gateway.clock.now_ms();
    let demand = Demand {
        key: &prepared.key,
        capabilities: prepared.request.facts().needs,
        admitted_ms: prepared.arrival.received_ms,
    };
    let filtered =
        eligible(&prepared.model, demand, &prepared.snapshot.prices, tried, |id| gateway.circuits.is_open(id, now_ms));
    let reason = filtered.reason();
    // A deployment without an estimate has no rate for what this request may use: it is skipped, not used for free.
    let priced = filtered.eligible.into_iter().filter(|e| estimate.of(&e.deployment().id).is_some()).collect();
    let ranked = rank(priced, |id| gateway.circuits.health(id, now_ms));
    ranked.first().map(|best| Arc::clone(best.deployment())).ok_or(reason)
}
