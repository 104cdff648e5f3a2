//! The policy in force: an immutable, versioned snapshot of tenants, keys, models and prices.
//!
//! A gateway answers every question on the request path from one snapshot and never asks the control plane. The
//! version is on every event, so that an audit can say which policy a request met.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use crate::calendar::Calendar;
use crate::ids::{DeploymentId, KeyId, ModelName, ProviderId, TeamId, TenantId};
use crate::price::PriceBook;
use crate::quota::Limit;
use crate::reconcile::CeilingPolicy;
use crate::registry::{Deployment, LogicalModel, Provider};

/// A keyed hash of a virtual key (HMAC-SHA256 under the pepper, I6).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyHash(pub [u8; 32]);

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyHash(…)")
    }
}

/// The secret under which a tenant's fingerprints, idempotency keys and end users are hashed. Destroying it makes them
/// meaningless.
#[derive(Clone, PartialEq, Eq)]
pub struct TenantSecret(pub [u8; 32]);

impl fmt::Debug for TenantSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TenantSecret(…)")
    }
}

/// What may be asked for: everything, or a list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Allowed<T: std::hash::Hash + Eq> {
    #[default]
    Everything,
    Only(HashSet<T>),
}

impl<T: std::hash::Hash + Eq> Allowed<T> {
    #[must_use]
    pub fn contains(&self, item: &T) -> bool {
        match self {
            Self::Everything => true,
            Self::Only(items) => items.contains(item),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tenant {
    pub id: TenantId,
    /// For people; never on the log.
    pub name: String,
    /// In whose windows the tenant counts.
    pub calendar: Calendar,
    pub limits: Vec<Limit>,
    pub models: Allowed<ModelName>,
    /// Provider regions that may see this tenant's data (I5).
    pub regions: Allowed<String>,
    pub providers: Allowed<ProviderId>,
    /// Tools that requests may not offer to a model.
    pub denied_tools: HashSet<String>,
    /// Whether a report that contradicts a response of the same rank corrects the ledger.
    pub adjust_on_mismatch: bool,
    pub on_ceiling: CeilingPolicy,
    pub secret: TenantSecret,
}

/// A virtual key, as a gateway knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    pub id: KeyId,
    pub hash: KeyHash,
    /// What people recognise it by; not secret.
    pub prefix: String,
    pub tenant: Arc<Tenant>,
    pub team: Option<TeamId>,
    pub models: Allowed<ModelName>,
    pub limits: Vec<Limit>,
    /// Ms since the epoch; refused from then on.
    pub expires_at_ms: Option<i64>,
    pub labels: Vec<(String, String)>,
}

#[derive(Debug, Clone)]
pub struct Snapshot {
    /// Rises with every publication.
    pub version: u64,
    pub tenants: HashMap<TenantId, Arc<Tenant>>,
    pub keys: HashMap<KeyHash, Arc<Key>>,
    pub models: HashMap<ModelName, Arc<LogicalModel>>,
    pub deployments: HashMap<DeploymentId, Arc<Deployment>>,
    pub providers: HashMap<ProviderId, Arc<Provider>>,
    pub prices: Arc<PriceBook>,
}

impl Snapshot {
    /// A snapshot that admits nobody.
    #[must_use]
    pub fn empty(prices: Arc<PriceBook>) -> Self {
        Self {
            version: 0,
            tenants: HashMap::new(),
            keys: HashMap::new(),
            models: HashMap::new(),
            deployments: HashMap::new(),
            providers: HashMap::new(),
            prices,
        }
    }

    /// The model that `key` may use under `name`: a name that the key may not use is `None`, as one that does not
    /// exist; [`Self::models`] tells the two apart for the answer's status.
    #[must_use]
    pub fn model_for(&self, key: &Key, name: &str) -> Option<&Arc<LogicalModel>> {
        let model = self.models.get(name)?;
        let is_allowed = key.models.contains(&model.name) && key.tenant.models.contains(&model.name);
        is_allowed.then_some(model)
    }

    /// Every limit that a request of `key` for `model` meets: the tenant's and team's, then the key's own.
    pub fn limits_for<'a>(&self, key: &'a Key, model: &'a ModelName) -> impl Iterator<Item = &'a Limit> {
        let meets = move |limit: &&Limit| limit.scope.model.as_ref().is_none_or(|of| of == model);
        let is_own = move |limit: &&Limit| match &limit.scope.subject {
            crate::quota::Subject::Tenant => true,
            crate::quota::Subject::Team(team) => key.team.as_ref() == Some(team),
            crate::quota::Subject::Key(id) => *id == key.id,
        };
        key.tenant.limits.iter().chain(&key.limits).filter(is_own).filter(meets)
    }
}
