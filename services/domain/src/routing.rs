//! Routing: filter, then order. Only the filter makes an [`Eligible`], so scoring first does not compile (I5).

#[cfg(test)]
#[path = "routing_tests.rs"]
mod tests;

use std::sync::Arc;

use crate::ids::DeploymentId;
use crate::policy::Key;
use crate::price::PriceBook;
use crate::registry::{Capabilities, Deployment, LogicalModel};

/// What a request asks of a deployment.
#[derive(Debug, Clone, Copy)]
pub struct Demand<'a> {
    pub key: &'a Key,
    pub capabilities: Capabilities,
    pub admitted_ms: i64,
}

/// Why a deployment may not serve a request. The order is the order of the checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Ineligible {
    Residency,
    Vendor,
    Capability,
    Unpriced,
    CircuitOpen,
    AlreadyTried,
}

impl Ineligible {
    /// The reason in a 503's code.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Residency => "residency",
            Self::Vendor => "vendor",
            Self::Capability => "capability",
            Self::Unpriced => "unpriced",
            Self::CircuitOpen => "circuits_open",
            Self::AlreadyTried => "already_tried",
        }
    }
}

/// A deployment that passed every hard filter for one request.
#[derive(Debug, Clone)]
pub struct Eligible {
    deployment: Arc<Deployment>,
    tier: usize,
}

impl Eligible {
    #[must_use]
    pub const fn deployment(&self) -> &Arc<Deployment> {
        &self.deployment
    }

    #[must_use]
    pub const fn tier(&self) -> usize {
        self.tier
    }
}

/// What survived, and why the rest did not.
#[derive(Debug, Clone, Default)]
pub struct Filtered {
    pub eligible: Vec<Eligible>,
    pub refused: Vec<(DeploymentId, Ineligible)>,
}

impl Filtered {
    /// The reason to give when nothing is eligible: the one that was nearest to serving.
    #[must_use]
    pub fn reason(&self) -> Option<Ineligible> {
        self.refused.iter().map(|(_, why)| *why).filter(|why| *why != Ineligible::AlreadyTried).max()
    }
}

/// The hard filter, in the order of the model's tiers. `tried` and `circuit_is_open` come from the request and the
/// breakers.
pub fn eligible(
    model: &LogicalModel,
    demand: Demand<'_>,
    prices: &PriceBook,
    tried: &[DeploymentId],
    circuit_is_open: impl Fn(&DeploymentId) -> bool,
) -> Filtered {
    let mut filtered = Filtered::default();
    for (tier, deployments) in model.tiers.iter().enumerate() {
        for deployment in deployments {
            match why_not(deployment, demand, prices, tried, &circuit_is_open) {
                Some(why) => filtered.refused.push((deployment.id.clone(), why)),
                None => filtered.eligible.push(Eligible { deployment: Arc::clone(deployment), tier }),
            }
        }
    }
    filtered
}

/// Orders what is eligible: tiers as the model defines them; within a tier by health, best first, and stable otherwise.
/// A cheap, quick tier never overtakes the one before it.
#[must_use]
pub fn rank(mut eligible: Vec<Eligible>, health: impl Fn(&DeploymentId) -> u16) -> Vec<Eligible> {
    eligible.sort_by_key(|candidate| (candidate.tier, std::cmp::Reverse(health(&candidate.deployment.id))));
    eligible
}

fn why_not(
    deployment: &Deployment,
    demand: Demand<'_>,
    prices: &PriceBook,
    tried: &[DeploymentId],
    circuit_is_open: &impl Fn(&DeploymentId) -> bool,
) -> Option<Ineligible> {
    let tenant = &demand.key.tenant;
    if !tenant.regions.contains(&deployment.region) {
        Some(Ineligible::Residency)
    } else if !tenant.providers.contains(&deployment.provider.id) {
        Some(Ineligible::Vendor)
    } else if !deployment.can(demand.capabilities) {
        Some(Ineligible::Capability)
    } else if prices.price(&deployment.price, demand.admitted_ms).is_err() {
        Some(Ineligible::Unpriced)
    } else if circuit_is_open(&deployment.id) {
        Some(Ineligible::CircuitOpen)
    } else if tried.contains(&deployment.id) {
        Some(Ineligible::AlreadyTried)
    } else {
        None
    }
}
