//! What an applied catalog changes: a plan, as data.
//!
//! A file replaces only what files created. Where it meets something that the admin API made, or said the last word
//! about, the whole apply is refused and the thing is named, so that neither side wins by being the later one.

use std::collections::{BTreeSet, HashMap, HashSet};

use thiserror::Error;

use weir_domain::calendar::Calendar;
use weir_domain::ids::{KeyId, TeamId, TenantId};
use weir_runtime::entropy::Entropy;

use crate::catalog::{Catalog, KeyEntry, KeyHashText};
use crate::secrets::MasterKey;
use crate::state::{Change, KeyRecord, Origin, Revoked, State, TeamRecord, TenantRecord};
use crate::virtual_key::random_text;

/// Ids are drawn from 62¹⁶: two never meet.
const ID_CHARS: usize = 16;

/// Where a catalog and the admin API disagree. Each names the thing and what to do.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Collision {
    #[error(
        "key `{name}` of tenant `{tenant}`: the admin API has an active key of this name; rename the one in the file"
    )]
    KeyName { tenant: String, name: String },
    #[error("key `{name}`: the admin API made this very key as `{made_as}`; remove it from the file")]
    KeyMade { name: String, made_as: String },
    #[error("key `{name}` of tenant `{tenant}` was revoked through the admin API; remove it from the file")]
    KeyRevoked { tenant: String, name: String },
    #[error("key `{name}` belonged to another tenant than `{tenant}`; a key cannot move: make a new one")]
    KeyMoved { tenant: String, name: String },
    #[error(
        "tenant `{tenant}` is not in the file, but its key `{key}` from the admin API is active; revoke the key first"
    )]
    TenantInUse { tenant: String, key: String },
    #[error(
        "team `{team}` of tenant `{tenant}` is not in the file, but its key `{key}` from the admin API is active; \
             revoke the key first"
    )]
    TeamInUse { tenant: String, team: String, key: String },
}

/// Plans the apply of `catalog` over `state`. An empty plan: everything is there already.
pub(crate) fn plan_apply(
    state: &State,
    catalog: &Catalog,
    now_ms: i64,
    master: &MasterKey,
    entropy: &dyn Entropy,
) -> Result<Vec<Change>, Vec<Collision>> {
    let mut plan =
        Plan { state, now_ms, master, entropy, after: state.clone(), changes: Vec::new(), collisions: Vec::new() };
    plan.tenants_and_teams(catalog);
    plan.keys(catalog);
    plan.check_admin_keys(catalog);
    if plan.collisions.is_empty() { Ok(plan.changes) } else { Err(plan.collisions) }
}

struct Plan<'a> {
    state: &'a State,
    now_ms: i64,
    master: &'a MasterKey,
    entropy: &'a dyn Entropy,
    after: State,
    changes: Vec<Change>,
    collisions: Vec<Collision>,
}

impl Plan<'_> {
    fn change(&mut self, change: Change) {
        self.after.apply(&change);
        self.changes.push(change);
    }

    fn tenants_and_teams(&mut self, catalog: &Catalog) {
        for entry in &catalog.tenants {
            if let Some(known) = self.state.tenants.get(&entry.name) {
                let calendar = known.calendar.with_zone(entry.zone, self.now_ms);
                if calendar != known.calendar {
                    self.change(Change::SetCalendar { tenant: entry.name.clone(), calendar });
                }
            } else {
                let id = TenantId::from(format!("tnt_{}", random_text(self.entropy, ID_CHARS)));
                let secret = self.master.new_tenant_secret(&id, self.entropy);
                let (name, created_at_ms) = (entry.name.clone(), self.now_ms);
                let calendar = Calendar::new(entry.zone);
                self.change(Change::AddTenant(TenantRecord { id, name, secret, calendar, created_at_ms }));
            }
        }
        for entry in &catalog.teams {
            let Some(tenant) = self.after.tenants.get(&entry.tenant).map(|tenant| tenant.id.clone()) else { continue };
            if self.state.team_named(&tenant, &entry.name).is_none() {
                let id = TeamId::from(format!("team_{}", random_text(self.entropy, ID_CHARS)));
                let (name, created_at_ms) = (entry.name.clone(), self.now_ms);
                self.change(Change::AddTeam(TeamRecord { id, tenant, name, created_at_ms }));
            }
        }
    }

    fn keys(&mut self, catalog: &Catalog) {
        let state = self.state;
        let by_hash: HashMap<KeyHashText, &KeyRecord> = state.keys.values().map(|key| (key.hash, key)).collect();
        let admin_names: HashSet<(&str, &str)> = state
            .keys
            .values()
            .filter(|key| key.origin == Origin::Admin && key.is_active(self.now_ms))
            .map(|key| (key.tenant.as_str(), key.name.as_str()))
            .collect();
        for entry in &catalog.keys {
            let Some(tenant) = self.after.tenants.get(&entry.tenant).map(|tenant| tenant.id.clone()) else { continue };
            let known = by_hash.get(&entry.hash).copied();
            if let Some(collision) = collision(entry, known, &tenant) {
                self.collisions.push(collision);
            } else if admin_names.contains(&(tenant.as_str(), entry.name.as_str())) {
                self.collisions.push(Collision::KeyName { tenant: entry.tenant.clone(), name: entry.name.clone() });
            } else {
                let record = self.file_key(entry, tenant, known);
                if known != Some(&record) {
                    self.change(Change::PutKey(record));
                }
            }
        }
        let kept: HashSet<KeyHashText> = catalog.keys.iter().map(|entry| entry.hash).collect();
        let is_dropped =
            |key: &&KeyRecord| key.origin == Origin::File && key.revoked.is_none() && !kept.contains(&key.hash);
        for key in state.keys.values().filter(is_dropped) {
            let revoked = Revoked { at_ms: self.now_ms, by: Origin::File };
            self.change(Change::RevokeKey { id: key.id.clone(), revoked });
        }
    }

    fn file_key(&self, entry: &KeyEntry, tenant: TenantId, known: Option<&KeyRecord>) -> KeyRecord {
        let new_id = || new_key_id(self.entropy);
        let team = entry.team.as_ref().and_then(|name| self.after.team_named(&tenant, name));
        KeyRecord {
            id: known.map_or_else(new_id, |key| key.id.clone()),
            hash: entry.hash,
            prefix: String::new(),
            origin: Origin::File,
            name: entry.name.clone(),
            team: team.map(|team| team.id.clone()),
            tenant,
            models: entry.models.as_ref().map(|models| models.iter().map(ToString::to_string).collect()),
            labels: entry.labels.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
            created_at_ms: known.map_or(self.now_ms, |key| key.created_at_ms),
            expires_at_ms: entry.expires_at.map(|at| at.0),
            revoked: None,
        }
    }

    /// A key that the admin API made must not lose its tenant or team behind its back.
    fn check_admin_keys(&mut self, catalog: &Catalog) {
        let tenants: BTreeSet<&str> = catalog.tenants.iter().map(|entry| entry.name.as_str()).collect();
        let teams: BTreeSet<(&str, &str)> =
            catalog.teams.iter().map(|entry| (entry.tenant.as_str(), entry.name.as_str())).collect();
        let names = self.state.names();
        let name_of = |id: &str| names.get(id).copied().unwrap_or_default();
        for key in self.state.keys.values() {
            if key.origin != Origin::Admin || !key.is_active(self.now_ms) {
                continue;
            }
            let tenant = name_of(key.tenant.as_str());
            let team = key.team.as_ref().map(|team| name_of(team.as_str()));
            if !tenants.contains(tenant) {
                self.collisions.push(Collision::TenantInUse { tenant: tenant.to_owned(), key: key.name.clone() });
            } else if let Some(team) = team.filter(|team| !teams.contains(&(tenant, *team))) {
                let (tenant, team) = (tenant.to_owned(), team.to_owned());
                self.collisions.push(Collision::TeamInUse { tenant, team, key: key.name.clone() });
            }
        }
    }
}

fn collision(entry: &KeyEntry, known: Option<&KeyRecord>, tenant: &TenantId) -> Option<Collision> {
    let known = known?;
    let name = entry.name.clone();
    let was_revoked_by_admin = known.revoked.is_some_and(|revoked| revoked.by == Origin::Admin);
    if was_revoked_by_admin {
        Some(Collision::KeyRevoked { tenant: entry.tenant.clone(), name })
    } else if known.origin == Origin::Admin {
        Some(Collision::KeyMade { name, made_as: known.name.clone() })
    } else if known.tenant != *tenant {
        Some(Collision::KeyMoved { tenant: entry.tenant.clone(), name })
    } else {
        None
    }
}

/// A fresh id for a key that the admin API makes.
pub(crate) fn new_key_id(entropy: &dyn Entropy) -> KeyId {
    KeyId::from(format!("key_{}", random_text(entropy, ID_CHARS)))
}
