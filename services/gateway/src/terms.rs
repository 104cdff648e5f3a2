//! What admission needs of the policy for one key and model, kept ready: limits, scopes, labels, the windows in force.
//!
//! All of it follows from the snapshot and the hour, so a request clones pointers instead of collecting lists and asking
//! the time zone database. The terms of one snapshot version are kept at a time.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::RwLock;

use weir_domain::calendar::CurrentWindows;
use weir_domain::ids::{KeyId, ModelName};
use weir_domain::policy::{Key, Snapshot};
use weir_domain::quota::{Limit, Scope};
use weir_domain::reservation::Labels;

/// The terms of one key on one model.
#[derive(Debug, Clone)]
pub(crate) struct Terms {
    pub limits: Arc<[Limit]>,
    pub scopes: Arc<[Scope]>,
    pub labels: Labels,
    pub windows: CurrentWindows,
}

impl Terms {
    fn new(snapshot: &Snapshot, key: &Key, model: &ModelName, now_ms: i64) -> Self {
        Self {
            limits: snapshot.limits_for(key, model).cloned().collect(),
            scopes: Scope::of_request(key.team.as_ref(), &key.id, model),
            labels: key.labels.iter().cloned().collect(),
            windows: key.tenant.calendar.at(now_ms),
        }
    }
}

/// How many terms are kept: some 30 MB at six scopes each. At the bound all are dropped, because what is used is made
/// again within one request.
const MOST_TERMS: usize = 65_536;

#[derive(Debug, Default)]
pub(crate) struct TermsCache(RwLock<Kept>);

#[derive(Debug, Default)]
struct Kept {
    /// Of the snapshot that the terms follow from.
    version: u64,
    terms: HashMap<KeyId, HashMap<ModelName, Terms>>,
    count: usize,
}

impl Kept {
    fn find(&self, version: u64, key: &KeyId, model: &ModelName) -> Option<&Terms> {
        if version == self.version { self.terms.get(key)?.get(model) } else { None }
    }

    fn keep(&mut self, version: u64, key: &KeyId, model: &ModelName, terms: Terms) {
        if version < self.version {
            // A request that met the policy before the one in force: it is the last of its kind.
            return;
        }
        if version > self.version || self.count >= MOST_TERMS {
            *self = Self { version, ..Self::default() };
        }
        let is_new = self.terms.entry(key.clone()).or_default().insert(model.clone(), terms).is_none();
        self.count += usize::from(is_new);
    }
}

impl TermsCache {
    /// The terms of `key` on `model` at `now_ms`.
    pub(crate) fn of(&self, snapshot: &Snapshot, key: &Key, model: &ModelName, now_ms: i64) -> Terms {
        if let Some(terms) = self.0.read().find(snapshot.version, &key.id, model)
            && terms.windows.hold_at(now_ms)
        {
            return terms.clone();
        }
        let terms = Terms::new(snapshot, key, model, now_ms);
        self.0.write().keep(snapshot.version, &key.id, model, terms.clone());
        terms
    }
}

#[cfg(test)]
#[path = "terms_tests.rs"]
mod tests;
