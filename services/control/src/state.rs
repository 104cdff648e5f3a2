//! What the control store holds, as a value, and the changes that can be made to it.
//!
//! Every act of the control plane is planned on this value and written as a list of changes, all or none, against the
//! revision that was read (`store`). So the rules of applying and of keys need no database, and the snapshot of an act
//! is known before the act is written.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

use weir_domain::calendar::Calendar;
use weir_domain::ids::{KeyId, PriceVersion, TeamId, TenantId};

use crate::catalog::{Catalog, KeyHashText};
use crate::secrets::WrappedSecret;

/// Everything that is in force.
#[derive(Debug, Clone, Default)]
pub struct State {
    /// Rises with every write.
    pub revision: u64,
    /// What files brought; empty before the first apply.
    pub catalog: Catalog,
    /// By name.
    pub tenants: HashMap<String, TenantRecord>,
    /// By tenant and name.
    pub teams: HashMap<(TenantId, String), TeamRecord>,
    pub keys: BTreeMap<KeyId, KeyRecord>,
    /// The newest publication.
    pub published: Option<Publication>,
}

/// The lasting identity of a tenant's name. It outlives the catalog that named it, so that a tenant that comes back
/// finds its counters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantRecord {
    pub id: TenantId,
    pub name: String,
    pub secret: WrappedSecret,
    /// The zone, and what a change of it left in force (O51).
    pub calendar: Calendar,
    pub created_at_ms: i64,
}

/// One tenant with all that belongs to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantState {
    pub tenant: TenantRecord,
    pub teams: Vec<TeamRecord>,
    /// Every key that ever was.
    pub keys: Vec<KeyRecord>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TeamRecord {
    pub id: TeamId,
    pub tenant: TenantId,
    pub name: String,
    pub created_at_ms: i64,
}

/// Who made something, and so who may change it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// A catalog file; a later apply replaces it.
    File,
    /// The admin API; no file touches it.
    Admin,
}

impl Origin {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Admin => "admin",
        }
    }
}

/// A virtual key, without the key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyRecord {
    pub id: KeyId,
    pub hash: KeyHashText,
    /// What people recognise it by; empty for a key that came as a hash.
    pub prefix: String,
    pub origin: Origin,
    pub name: String,
    pub tenant: TenantId,
    pub team: Option<TeamId>,
    /// Names of logical models; `None` for all of the tenant's.
    pub models: Option<Vec<String>>,
    pub labels: Vec<(String, String)>,
    pub created_at_ms: i64,
    /// Refused from this instant on.
    pub expires_at_ms: Option<i64>,
    pub revoked: Option<Revoked>,
}

/// When a key ended, and by whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revoked {
    pub at_ms: i64,
    /// A file takes away what is no longer in it, and may bring it back; the admin API's word is final.
    pub by: Origin,
}

impl KeyRecord {
    /// Whether it opens anything at `now_ms`.
    #[must_use]
    pub fn is_active(&self, now_ms: i64) -> bool {
        self.revoked.is_none() && self.expires_at_ms.is_none_or(|expires| now_ms < expires)
    }
}

/// One version of the snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Publication {
    pub version: u64,
    /// SHA-256 of the document, in hexadecimal.
    pub content_sha256: String,
    pub price_version: PriceVersion,
    pub published_at_ms: i64,
}

/// One step of a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    AddTenant(TenantRecord),
    /// The tenant's zone is another one from now on.
    SetCalendar {
        /// The tenant's name.
        tenant: String,
        calendar: Calendar,
    },
    AddTeam(TeamRecord),
    /// A new key, or the new form of one that a file owns.
    PutKey(KeyRecord),
    RevokeKey {
        id: KeyId,
        revoked: Revoked,
    },
    SetCatalog {
        catalog: Box<Catalog>,
        content_sha256: String,
        file: String,
        applied_at_ms: i64,
    },
    /// The document's prices, kept for good under their version.
    Publish {
        publication: Publication,
        prices_json: String,
    },
}

impl TenantState {
    /// Names of the tenant and its teams by id, for people.
    #[must_use]
    pub fn names(&self) -> HashMap<&str, &str> {
        let teams = self.teams.iter().map(|team| (team.id.as_str(), team.name.as_str()));
        teams.chain([(self.tenant.id.as_str(), self.tenant.name.as_str())]).collect()
    }
}

impl State {
    /// The state after `change`.
    pub fn apply(&mut self, change: &Change) {
        match change {
            Change::AddTenant(tenant) => {
                self.tenants.insert(tenant.name.clone(), tenant.clone());
            }
            Change::SetCalendar { tenant, calendar } => {
                if let Some(tenant) = self.tenants.get_mut(tenant) {
                    tenant.calendar = calendar.clone();
                }
            }
            Change::AddTeam(team) => {
                self.teams.insert((team.tenant.clone(), team.name.clone()), team.clone());
            }
            Change::PutKey(key) => {
                self.keys.insert(key.id.clone(), key.clone());
            }
            Change::RevokeKey { id, revoked } => {
                if let Some(key) = self.keys.get_mut(id) {
                    key.revoked = Some(*revoked);
                }
            }
            Change::SetCatalog { catalog, .. } => self.catalog = catalog.as_ref().clone(),
            Change::Publish { publication, .. } => self.published = Some(publication.clone()),
        }
    }

    #[must_use]
    pub fn team_named(&self, tenant: &TenantId, name: &str) -> Option<&TeamRecord> {
        self.teams.get(&(tenant.clone(), name.to_owned()))
    }

    /// One tenant, by name or id, with all that belongs to it: teams by name, keys by id.
    #[must_use]
    pub fn tenant(&self, asked: &str) -> Option<TenantState> {
        // A name goes before an id that somebody chose as a name.
        let by_id = || self.tenants.values().find(|tenant| tenant.id.as_str() == asked);
        let tenant = self.tenants.get(asked).or_else(by_id)?.clone();
        let mut teams: Vec<TeamRecord> = self.teams.values().filter(|team| team.tenant == tenant.id).cloned().collect();
        teams.sort_by(|a, b| a.name.cmp(&b.name));
        let keys = self.keys.values().filter(|key| key.tenant == tenant.id).cloned().collect();
        Some(TenantState { tenant, teams, keys })
    }

    /// Ids of all tenants by name.
    #[must_use]
    pub fn tenant_ids(&self) -> BTreeMap<String, TenantId> {
        self.tenants.values().map(|tenant| (tenant.name.clone(), tenant.id.clone())).collect()
    }

    /// Names of tenants and teams by id, for people.
    #[must_use]
    pub fn names(&self) -> HashMap<&str, &str> {
        let tenants = self.tenants.values().map(|tenant| (tenant.id.as_str(), tenant.name.as_str()));
        tenants.chain(self.teams.values().map(|team| (team.id.as_str(), team.name.as_str()))).collect()
    }
}
