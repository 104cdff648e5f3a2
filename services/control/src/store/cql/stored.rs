//! What the texts in the tables say, exactly.
//!
//! JSON, because a row must stay readable for years: a reader passes over fields that it does not know, and what a later
//! release adds has a default. Texts of released versions are pinned by a test.

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use weir_domain::calendar::Calendar;
use weir_domain::ids::{KeyId, TenantId};

use crate::secrets::WrappedSecret;
use crate::state::{Change, KeyRecord, Publication, Revoked, State, TeamRecord, TenantRecord};
use crate::store::StoreError;

/// A change without what is kept elsewhere: a tenant's secret, a catalog's text, a book of prices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum StoredChange {
    AddTenant { id: TenantId, name: String, calendar: Calendar, created_at_ms: i64 },
    SetCalendar { tenant: String, calendar: Calendar },
    AddTeam(TeamRecord),
    PutKey(KeyRecord),
    RevokeKey { id: KeyId, revoked: Revoked },
    SetCatalog { content_sha256: String, parts: i32, file: String, applied_at_ms: i64 },
    Publish(Publication),
}

impl StoredChange {
    /// `parts` are those of the catalog that the change may bring.
    pub fn of(change: &Change, parts: i32) -> Self {
        match change {
            Change::AddTenant(TenantRecord { id, name, secret: _, calendar, created_at_ms }) => Self::AddTenant {
                id: id.clone(),
                name: name.clone(),
                calendar: calendar.clone(),
                created_at_ms: *created_at_ms,
            },
            Change::SetCalendar { tenant, calendar } => {
                Self::SetCalendar { tenant: tenant.clone(), calendar: calendar.clone() }
            }
            Change::AddTeam(team) => Self::AddTeam(team.clone()),
            Change::PutKey(key) => Self::PutKey(key.clone()),
            Change::RevokeKey { id, revoked } => Self::RevokeKey { id: id.clone(), revoked: *revoked },
            Change::SetCatalog { catalog: _, content_sha256, file, applied_at_ms } => Self::SetCatalog {
                content_sha256: content_sha256.clone(),
                parts,
                file: file.clone(),
                applied_at_ms: *applied_at_ms,
            },
            Change::Publish { publication, prices_json: _ } => Self::Publish(publication.clone()),
        }
    }

    /// Applies it to `state`, which gets secrets and catalogs afterwards: those of many changes at once.
    pub fn apply(self, state: &mut State, wanting: &mut Wanting) {
        match self {
            Self::AddTenant { id, name, calendar, created_at_ms } => {
                wanting.secrets.push((name.clone(), id.clone()));
                let secret = WrappedSecret(Vec::new());
                state.tenants.insert(name.clone(), TenantRecord { id, name, secret, calendar, created_at_ms });
            }
            Self::SetCalendar { tenant, calendar } => state.apply(&Change::SetCalendar { tenant, calendar }),
            Self::AddTeam(team) => state.apply(&Change::AddTeam(team)),
            Self::PutKey(key) => state.apply(&Change::PutKey(key)),
            Self::RevokeKey { id, revoked } => state.apply(&Change::RevokeKey { id, revoked }),
            Self::SetCatalog { content_sha256, parts, .. } => wanting.catalog = Some((content_sha256, parts)),
            Self::Publish(publication) => state.published = Some(publication),
        }
    }
}

/// What the changes that were applied speak of, and is not there yet.
#[derive(Debug, Clone, Default)]
pub(super) struct Wanting {
    /// Of tenants, by name.
    pub secrets: Vec<(String, TenantId)>,
    /// The last one, by its SHA-256 and the number of its parts.
    pub catalog: Option<(String, i32)>,
}

impl Wanting {
    pub const fn is_empty(&self) -> bool {
        self.secrets.is_empty() && self.catalog.is_none()
    }
}

pub(super) fn text<T: Serialize + ?Sized>(what: &'static str, value: &T) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(|error| unreadable(what, &error))
}

pub(super) fn parsed<T: DeserializeOwned>(what: &'static str, text: &[u8]) -> Result<T, StoreError> {
    serde_json::from_slice(text).map_err(|error| unreadable(what, &error))
}

pub(super) fn unreadable(what: &'static str, reason: &dyn ToString) -> StoreError {
    StoreError::Unreadable { what, reason: reason.to_string() }
}
