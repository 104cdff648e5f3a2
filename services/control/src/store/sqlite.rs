//! The control store in one SQLite file.
//!
//! Write-ahead log with full sync: an answered act survives a loss of power. The connection is behind a lock, because
//! acts are rare and short, and readers of the request path never come here.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::time::Duration;

use parking_lot::Mutex;
use rusqlite::{Connection, OptionalExtension as _, Row, ToSql, Transaction, TransactionBehavior, params};
use serde::de::DeserializeOwned;

use weir_domain::calendar::{Calendar, Zone};
use weir_domain::ids::{KeyId, PriceVersion, TeamId, TenantId};
use weir_domain::price::PriceEntry;
use weir_migrations::Set;

use super::{ControlStore, StoreError};
use crate::catalog::{Catalog, KeyHashText};
use crate::secrets::{ControlSecrets, WrappedSecret};
use crate::state::{Change, KeyRecord, Origin, Publication, Revoked, State, TeamRecord, TenantRecord, TenantState};

/// How long another process may hold the file: a write takes milliseconds.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub struct SqliteControlStore {
    connection: Mutex<Connection>,
}

impl SqliteControlStore {
    /// Opens or makes the store at `path`, with the newest schema.
    ///
    /// # Errors
    /// [`StoreError::WrongSecret`] where the store was made with another pepper or master key.
    pub fn open(path: &Path, secrets: &ControlSecrets) -> Result<Self, StoreError> {
        Self::prepare(Connection::open(path)?, secrets)
    }

    /// A store that is gone with the process.
    pub fn in_memory(secrets: &ControlSecrets) -> Result<Self, StoreError> {
        Self::prepare(Connection::open_in_memory()?, secrets)
    }

    fn prepare(mut connection: Connection, secrets: &ControlSecrets) -> Result<Self, StoreError> {
        connection.busy_timeout(BUSY_TIMEOUT)?;
        connection.pragma_update(None, "journal_mode", "wal")?;
        connection.pragma_update(None, "synchronous", "full")?;
        connection.pragma_update(None, "foreign_keys", true)?;
        weir_migrations::run(&mut connection, Set::Control)?;
        let checks = (secrets.pepper.check(), secrets.master.check());
        connection.execute(
            "INSERT INTO control (id, revision, pepper_check, master_check) VALUES (1, 0, ?1, ?2) ON CONFLICT DO NOTHING",
            params![checks.0, checks.1],
        )?;
        let stored: ([u8; 32], [u8; 32]) =
            connection.query_row("SELECT pepper_check, master_check FROM control", [], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })?;
        for (what, is_same) in [("pepper", stored.0 == checks.0), ("master key", stored.1 == checks.1)] {
            if !is_same {
                return Err(StoreError::WrongSecret { what });
            }
        }
        Ok(Self { connection: Mutex::new(connection) })
    }
}

impl ControlStore for SqliteControlStore {
    fn read(&self) -> Result<State, StoreError> {
        let mut connection = self.connection.lock();
        let transaction = connection.transaction()?;
        let catalog = read_catalog(&transaction)?;
        Ok(State {
            revision: transaction.query_row("SELECT revision FROM control", [], |row| row.get(0))?,
            tenants: read_tenants(&transaction, &catalog)?,
            catalog,
            teams: read_teams(&transaction)?,
            keys: read_keys(&transaction, &format!("SELECT {KEY} FROM keys"), &[])?,
            published: read_publications(&transaction, 1)?.pop(),
        })
    }

    fn tenant_ids(&self) -> Result<BTreeMap<String, TenantId>, StoreError> {
        let connection = self.connection.lock();
        let mut statement = connection.prepare("SELECT name, id FROM tenants")?;
        let rows = statement.query_map([], |row| Ok((row.get(0)?, TenantId::from(row.get::<_, String>(1)?))))?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    fn tenant(&self, asked: &str) -> Result<Option<TenantState>, StoreError> {
        let mut connection = self.connection.lock();
        let transaction = connection.transaction()?;
        // A name goes before an id that somebody chose as a name.
        let select = format!("SELECT {TENANT} FROM tenants WHERE name = ?1 OR id = ?1 ORDER BY name <> ?1 LIMIT 1");
        let zones = |name: &str| {
            let catalog = read_catalog(&transaction)?;
            Ok(catalog.tenants.iter().find(|tenant| tenant.name == name).map(|tenant| tenant.zone).unwrap_or_default())
        };
        let mut statement = transaction.prepare(&select)?;
        let mut rows = statement.query([asked])?;
        let Some(row) = rows.next()? else { return Ok(None) };
        let tenant = read_tenant(row, zones)?;
        let teams = format!("SELECT {TEAM} FROM teams WHERE tenant_id = ?1 ORDER BY name");
        let mut teams = transaction.prepare(&teams)?;
        let teams = teams.query_map([tenant.id.as_str()], read_team)?.collect::<Result<_, _>>()?;
        let keys =
            read_keys(&transaction, &format!("SELECT {KEY} FROM keys WHERE tenant_id = ?1"), &[&tenant.id.as_str()])?;
        Ok(Some(TenantState { tenant, teams, keys: keys.into_values().collect() }))
    }

    fn write(&self, revision: u64, changes: &[Change]) -> Result<u64, StoreError> {
        let mut connection = self.connection.lock();
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let raise = "UPDATE control SET revision = revision + 1 WHERE revision = ?1";
        if transaction.execute(raise, [revision])? == 0 {
            return Err(StoreError::Conflict);
        }
        for change in changes {
            write_change(&transaction, change)?;
        }
        transaction.commit()?;
        Ok(revision + 1)
    }

    fn prices(&self, version: &PriceVersion) -> Result<Option<Vec<PriceEntry>>, StoreError> {
        let connection = self.connection.lock();
        let select = "SELECT entries FROM price_books WHERE version = ?1";
        let entries: Option<String> = connection.query_row(select, [version.as_str()], |row| row.get(0)).optional()?;
        entries.map(|entries| from_json("price book", &entries)).transpose()
    }

    fn catalog(&self, content_sha256: &str) -> Result<Option<Catalog>, StoreError> {
        let connection = self.connection.lock();
        let select = "SELECT document FROM catalogs WHERE content_sha256 = ?1";
        let document: Option<String> = connection.query_row(select, [content_sha256], |row| row.get(0)).optional()?;
        document.map(|document| from_json("catalog", &document)).transpose()
    }

    fn publications(&self, most: usize) -> Result<Vec<Publication>, StoreError> {
        read_publications(&self.connection.lock(), most)
    }
}

fn read_catalog(transaction: &Transaction<'_>) -> Result<Catalog, StoreError> {
    let select = "SELECT document FROM applications JOIN catalogs USING (content_sha256) ORDER BY number DESC LIMIT 1";
    let document: Option<String> = transaction.query_row(select, [], |row| row.get(0)).optional()?;
    document.map_or_else(|| Ok(Catalog::default()), |document| from_json("catalog", &document))
}

const TENANT: &str = "id, name, wrapped_secret, created_at_ms, calendar";
const TEAM: &str = "id, tenant_id, name, created_at_ms";
const KEY: &str = "id, hash, prefix, origin, name, tenant_id, team_id, models, labels, created_at_ms, expires_at_ms, \
                   revoked_at_ms, revoked_by";

fn read_tenants(transaction: &Transaction<'_>, catalog: &Catalog) -> Result<HashMap<String, TenantRecord>, StoreError> {
    let zones: HashMap<&str, Zone> = catalog.tenants.iter().map(|tenant| (tenant.name.as_str(), tenant.zone)).collect();
    let mut statement = transaction.prepare(&format!("SELECT {TENANT} FROM tenants"))?;
    let mut tenants = HashMap::new();
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let tenant = read_tenant(row, |name| Ok(zones.get(name).copied().unwrap_or_default()))?;
        tenants.insert(tenant.name.clone(), tenant);
    }
    Ok(tenants)
}

/// `zone` is asked for the zone of a tenant whose calendar is not kept.
fn read_tenant(row: &Row<'_>, zone: impl FnOnce(&str) -> Result<Zone, StoreError>) -> Result<TenantRecord, StoreError> {
    let name: String = row.get(1)?;
    let calendar = match row.get::<_, Option<String>>(4)? {
        Some(calendar) => from_json("tenant's calendar", &calendar)?,
        // Written before calendars were kept: no zone had ever changed.
        None => Calendar::new(zone(&name)?),
    };
    Ok(TenantRecord {
        id: TenantId::from(row.get::<_, String>(0)?),
        name,
        secret: WrappedSecret(row.get(2)?),
        calendar,
        created_at_ms: row.get(3)?,
    })
}

fn read_teams(transaction: &Transaction<'_>) -> Result<HashMap<(TenantId, String), TeamRecord>, StoreError> {
    let mut statement = transaction.prepare(&format!("SELECT {TEAM} FROM teams"))?;
    let rows = statement.query_map([], read_team)?;
    rows.map(|row| row.map(|team| ((team.tenant.clone(), team.name.clone()), team)).map_err(StoreError::from)).collect()
}

fn read_team(row: &Row<'_>) -> rusqlite::Result<TeamRecord> {
    Ok(TeamRecord {
        id: TeamId::from(row.get::<_, String>(0)?),
        tenant: TenantId::from(row.get::<_, String>(1)?),
        name: row.get(2)?,
        created_at_ms: row.get(3)?,
    })
}

fn read_keys(
    transaction: &Transaction<'_>,
    select: &str,
    of: &[&dyn ToSql],
) -> Result<BTreeMap<KeyId, KeyRecord>, StoreError> {
    let mut statement = transaction.prepare(select)?;
    let mut keys = BTreeMap::new();
    let mut rows = statement.query(of)?;
    while let Some(row) = rows.next()? {
        let key = read_key(row)?;
        keys.insert(key.id.clone(), key);
    }
    Ok(keys)
}

fn read_key(row: &Row<'_>) -> Result<KeyRecord, StoreError> {
    let models: Option<String> = row.get(7)?;
    let labels: String = row.get(8)?;
    let revoked_at_ms: Option<i64> = row.get(11)?;
    let revoked_by: Option<String> = row.get(12)?;
    let revoked = match (revoked_at_ms, revoked_by) {
        (Some(at_ms), Some(by)) => Some(Revoked { at_ms, by: origin(&by)? }),
        (None, _) | (_, None) => None,
    };
    Ok(KeyRecord {
        id: KeyId::from(row.get::<_, String>(0)?),
        hash: KeyHashText(row.get(1)?),
        prefix: row.get(2)?,
        origin: origin(&row.get::<_, String>(3)?)?,
        name: row.get(4)?,
        tenant: TenantId::from(row.get::<_, String>(5)?),
        team: row.get::<_, Option<String>>(6)?.map(TeamId::from),
        models: models.map(|models| from_json("key's list of models", &models)).transpose()?,
        labels: from_json("key's labels", &labels)?,
        created_at_ms: row.get(9)?,
        expires_at_ms: row.get(10)?,
        revoked,
    })
}

fn read_publications(connection: &Connection, most: usize) -> Result<Vec<Publication>, StoreError> {
    let mut statement = connection.prepare(
        "SELECT version, content_sha256, price_version, published_at_ms FROM snapshots ORDER BY version DESC LIMIT ?1",
    )?;
    let rows = statement.query_map([most], |row| {
        Ok(Publication {
            version: row.get(0)?,
            content_sha256: row.get(1)?,
            price_version: PriceVersion::from(row.get::<_, String>(2)?),
            published_at_ms: row.get(3)?,
        })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

fn write_change(transaction: &Transaction<'_>, change: &Change) -> Result<(), StoreError> {
    match change {
        Change::AddTenant(TenantRecord { id, name, secret, calendar, created_at_ms }) => {
            let insert = "INSERT INTO tenants (id, name, wrapped_secret, created_at_ms, calendar)
                          VALUES (?1, ?2, ?3, ?4, ?5)";
            let calendar = to_json(calendar)?;
            transaction.prepare_cached(insert)?.execute(params![
                id.as_str(),
                name,
                secret.0,
                created_at_ms,
                calendar
            ])?;
        }
        Change::SetCalendar { tenant, calendar } => {
            let update = "UPDATE tenants SET calendar = ?2 WHERE name = ?1";
            transaction.prepare_cached(update)?.execute(params![tenant, to_json(calendar)?])?;
        }
        Change::AddTeam(TeamRecord { id, tenant, name, created_at_ms }) => {
            let insert = "INSERT INTO teams (id, tenant_id, name, created_at_ms) VALUES (?1, ?2, ?3, ?4)";
            transaction.prepare_cached(insert)?.execute(params![id.as_str(), tenant.as_str(), name, created_at_ms])?;
        }
        Change::PutKey(key) => put_key(transaction, key)?,
        Change::RevokeKey { id, revoked } => {
            let update = "UPDATE keys SET revoked_at_ms = ?2, revoked_by = ?3 WHERE id = ?1";
            transaction.prepare_cached(update)?.execute(params![id.as_str(), revoked.at_ms, revoked.by.as_str()])?;
        }
        Change::SetCatalog { catalog, content_sha256, file, applied_at_ms } => {
            let insert = "INSERT INTO catalogs (content_sha256, document, created_at_ms) VALUES (?1, ?2, ?3)
                          ON CONFLICT DO NOTHING";
            transaction.execute(insert, params![content_sha256, to_json(catalog)?, applied_at_ms])?;
            let insert = "INSERT INTO applications (content_sha256, file, applied_at_ms) VALUES (?1, ?2, ?3)";
            transaction.execute(insert, params![content_sha256, file, applied_at_ms])?;
        }
        Change::Publish { publication, prices_json } => {
            let Publication { version, content_sha256, price_version, published_at_ms } = publication;
            let insert = "INSERT INTO price_books (version, entries, created_at_ms) VALUES (?1, ?2, ?3)
                          ON CONFLICT DO NOTHING";
            transaction.execute(insert, params![price_version.as_str(), prices_json, published_at_ms])?;
            let insert = "INSERT INTO snapshots (version, content_sha256, price_version, published_at_ms)
                          VALUES (?1, ?2, ?3, ?4)";
            transaction.execute(insert, params![version, content_sha256, price_version.as_str(), published_at_ms])?;
        }
    }
    Ok(())
}

fn put_key(transaction: &Transaction<'_>, key: &KeyRecord) -> Result<(), StoreError> {
    let upsert = "INSERT INTO keys (id, hash, prefix, origin, name, tenant_id, team_id, models, labels, created_at_ms,
                                    expires_at_ms, revoked_at_ms, revoked_by)
                  VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)
                  ON CONFLICT (id) DO UPDATE SET
                      name = excluded.name, team_id = excluded.team_id, models = excluded.models,
                      labels = excluded.labels, expires_at_ms = excluded.expires_at_ms,
                      revoked_at_ms = excluded.revoked_at_ms, revoked_by = excluded.revoked_by";
    transaction.prepare_cached(upsert)?.execute(params![
        key.id.as_str(),
        key.hash.0,
        key.prefix,
        key.origin.as_str(),
        key.name,
        key.tenant.as_str(),
        key.team.as_ref().map(TeamId::as_str),
        key.models.as_ref().map(to_json).transpose()?,
        to_json(&key.labels)?,
        key.created_at_ms,
        key.expires_at_ms,
        key.revoked.map(|revoked| revoked.at_ms),
        key.revoked.map(|revoked| revoked.by.as_str()),
    ])?;
    Ok(())
}

fn origin(text: &str) -> Result<Origin, StoreError> {
    match text {
        "file" => Ok(Origin::File),
        "admin" => Ok(Origin::Admin),
        other => Err(StoreError::Unreadable { what: "key's origin", reason: format!("`{other}`") }),
    }
}

fn from_json<T: DeserializeOwned>(what: &'static str, json: &str) -> Result<T, StoreError> {
    serde_json::from_str(json).map_err(|error| StoreError::Unreadable { what, reason: error.to_string() })
}

fn to_json<T: serde::Serialize>(value: &T) -> Result<String, StoreError> {
    serde_json::to_string(value)
        .map_err(|error| StoreError::Unreadable { what: "value to write", reason: error.to_string() })
}

#[cfg(test)]
#[path = "sqlite_tests.rs"]
mod tests;
