//! The acts of the control plane: apply a catalog, make and revoke keys, publish.
//!
//! Every act has one shape: read the state, plan changes on it, compile and open the snapshot that would follow, write
//! all of it in one step, and only then hand the snapshot out. So what a gateway sees is always what is on disk, and a
//! catalog that would not open is refused before anything is written.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Debug;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use thiserror::Error;
use tokio::sync::watch;

use weir_domain::ids::{KeyId, ModelName, PriceVersion, TenantId};
use weir_domain::policy::Snapshot;
use weir_domain::price::{EffectiveMs, PriceBook, PriceEntry};
use weir_runtime::clock::SharedClock;
use weir_runtime::entropy::SharedEntropy;

use crate::apply::{Collision, new_key_id, plan_apply};
use crate::catalog::{Catalog, CatalogProblems, KeyHashText, Surroundings, is_name};
use crate::document::{SnapshotDocument, SnapshotError, compile, price_version};
use crate::prices::{ShippedPricesError, shipped_prices};
use crate::secrets::ControlSecrets;
use crate::state::{Change, KeyRecord, Origin, Publication, Revoked, State, TenantState};
use crate::store::{ControlStore, StoreError};
use crate::virtual_key::VirtualKey;

/// Where a role finds the snapshot in force.
///
/// Versions MUST only rise. While the control plane is away, the last good snapshot stays.
pub trait SnapshotSource: Debug + Send + Sync {
    fn current(&self) -> Arc<Snapshot>;

    /// Wakes at every new version.
    fn subscribe(&self) -> watch::Receiver<Arc<Snapshot>>;
}

/// Why an act was refused. Nothing of it happened.
#[derive(Debug, Error)]
pub enum ControlError {
    #[error(transparent)]
    Catalog(#[from] CatalogProblems),
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Collisions(Vec<Collision>),
    /// A request that does not fit: the field, what is wrong and what to write.
    #[error("{field}: {problem}; {fix}")]
    Invalid { field: &'static str, problem: String, fix: String },
    #[error("there is no key `{id}`")]
    NoKey { id: String },
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the snapshot cannot be published")]
    Snapshot(#[from] SnapshotError),
    #[error("the snapshot cannot be written down")]
    Document(#[from] serde_json::Error),
    #[error(transparent)]
    Shipped(#[from] ShippedPricesError),
}

/// What an apply, or a check of one, comes to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Applied {
    /// False when everything was there already.
    pub changed: bool,
    /// The version in force afterwards; for a check, the one in force now.
    pub version: u64,
    pub price_version: PriceVersion,
    /// What the catalog has, by kind.
    pub counts: BTreeMap<&'static str, usize>,
}

/// What a key is made from.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyRequest {
    /// The tenant's name.
    pub tenant: String,
    /// At most two active keys of a tenant share a name: the old one and the new one of a rotation.
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub team: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub models: Option<BTreeSet<ModelName>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<EffectiveMs>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

/// A key as it may be shown for ever.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyView {
    pub id: KeyId,
    pub name: String,
    pub prefix: String,
    pub tenant: String,
    pub team: Option<String>,
    pub origin: Origin,
    pub status: KeyStatus,
    pub models: Option<Vec<String>>,
    pub labels: BTreeMap<String, String>,
    pub created_at: EffectiveMs,
    pub expires_at: Option<EffectiveMs>,
    pub revoked_at: Option<EffectiveMs>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeyStatus {
    Active,
    Expired,
    Revoked,
}

/// A new key: the only place where it stands in plain text.
#[derive(Debug)]
pub struct CreatedKey {
    pub key: VirtualKey,
    pub view: KeyView,
}

/// One to use, and one to rotate to.
const MOST_ACTIVE_KEYS_OF_A_NAME: usize = 2;

/// Other control planes write as rarely as operators act; a few acts in the way are bad luck, thirty-two are not.
const MOST_CONFLICTS: usize = 32;

/// The control plane of one installation. Calls block on the disk; async callers use a blocking task.
#[derive(Debug)]
pub struct Control {
    store: Arc<dyn ControlStore>,
    secrets: ControlSecrets,
    shipped: Vec<PriceEntry>,
    clock: SharedClock,
    entropy: SharedEntropy,
    snapshots: watch::Sender<Arc<Snapshot>>,
    /// One act at a time in this process, so that snapshots are handed out in the order of their versions.
    acting: Mutex<()>,
}

impl SnapshotSource for Control {
    fn current(&self) -> Arc<Snapshot> {
        Arc::clone(&self.snapshots.borrow())
    }

    fn subscribe(&self) -> watch::Receiver<Arc<Snapshot>> {
        self.snapshots.subscribe()
    }
}

impl Control {
    /// Reads what the store has in force and publishes it again where this binary ships other prices.
    pub fn open(
        store: Arc<dyn ControlStore>,
        secrets: ControlSecrets,
        clock: SharedClock,
        entropy: SharedEntropy,
    ) -> Result<Self, ControlError> {
        let shipped = shipped_prices()?;
        Self::open_with_prices(store, secrets, clock, entropy, shipped)
    }

    pub(crate) fn open_with_prices(
        store: Arc<dyn ControlStore>,
        secrets: ControlSecrets,
        clock: SharedClock,
        entropy: SharedEntropy,
        shipped: Vec<PriceEntry>,
    ) -> Result<Self, ControlError> {
        let prices = PriceBook::new(&shipped, price_version).map_err(SnapshotError::from)?;
        let (snapshots, _) = watch::channel(Arc::new(Snapshot::empty(Arc::new(prices))));
        let control = Self { store, secrets, shipped, clock, entropy, snapshots, acting: Mutex::new(()) };
        control.act(|_| Ok((Vec::new(), ())))?;
        Ok(control)
    }

    /// What [`apply`](Self::apply) would do, without doing it.
    pub fn check(&self, file: &str, text: &str) -> Result<Applied, ControlError> {
        let state = self.store.read()?;
        let (catalog, changes) = self.plan_catalog(&state, file, text)?;
        let mut after = state;
        changes.iter().for_each(|change| after.apply(change));
        let snapshot = compile(&after, &self.shipped).open(0, &self.secrets.master)?;
        Ok(Applied {
            changed: !changes.is_empty(),
            version: self.current().version,
            price_version: snapshot.prices.version().clone(),
            counts: counts(&catalog),
        })
    }

    /// Puts the catalog `text` in the place of what files brought before. Nothing is written where it changes nothing.
    pub fn apply(&self, file: &str, text: &str) -> Result<Applied, ControlError> {
        let (changed, counts) = self.act(|state| {
            let (catalog, changes) = self.plan_catalog(state, file, text)?;
            let outcome = (!changes.is_empty(), counts(&catalog));
            Ok((changes, outcome))
        })?;
        let snapshot = self.current();
        let applied =
            Applied { changed, version: snapshot.version, price_version: snapshot.prices.version().clone(), counts };
        tracing::info!(changed, version = applied.version, file, "catalog applied");
        Ok(applied)
    }

    fn plan_catalog(&self, state: &State, file: &str, text: &str) -> Result<(Catalog, Vec<Change>), ControlError> {
        let now_ms = self.clock.now_ms();
        let names = state.names();
        let admin_keys = state
            .keys
            .values()
            .filter(|key| key.origin == Origin::Admin)
            .filter_map(|key| Some(((*names.get(key.tenant.as_str())?).to_owned(), key.name.clone())))
            .collect();
        let surroundings = Surroundings { file, shipped_prices: &self.shipped, admin_keys: &admin_keys, now_ms };
        let catalog = Catalog::from_toml(text, surroundings)?;
        let mut changes = plan_apply(state, &catalog, now_ms, &self.secrets.master, self.entropy.as_ref())
            .map_err(ControlError::Collisions)?;
        if catalog != state.catalog {
            let content_sha256 = hex::encode(Sha256::digest(serde_json::to_vec(&catalog)?));
            let (catalog, file) = (Box::new(catalog.clone()), file.to_owned());
            changes.push(Change::SetCatalog { catalog, content_sha256, file, applied_at_ms: now_ms });
        }
        Ok((catalog, changes))
    }

    /// Makes a virtual key. It is valid when this returns.
    pub fn create_key(&self, request: &KeyRequest) -> Result<CreatedKey, ControlError> {
        let key = VirtualKey::generate(self.entropy.as_ref());
        let record = self.act(|state| {
            let record = self.plan_key(state, request, &key)?;
            Ok((vec![Change::PutKey(record.clone())], record))
        })?;
        tracing::info!(key_id = %record.id, "key created");
        let tenant = self.store.tenant(record.tenant.as_str())?;
        let names = tenant.as_ref().map(TenantState::names).unwrap_or_default();
        let view = view(&record, &names, self.clock.now_ms());
        Ok(CreatedKey { key, view })
    }

    fn plan_key(&self, state: &State, request: &KeyRequest, key: &VirtualKey) -> Result<KeyRecord, ControlError> {
        let now_ms = self.clock.now_ms();
        check_key_request(state, request, now_ms)?;
        let no_tenant =
            || invalid("tenant", format!("there is no tenant `{}`", request.tenant), "apply a catalog with it");
        let tenant = state.tenants.get(&request.tenant).ok_or_else(no_tenant)?;
        let team = match &request.team {
            None => None,
            Some(name) => Some(state.team_named(&tenant.id, name).map(|team| team.id.clone()).ok_or_else(|| {
                invalid("team", format!("tenant `{}` has no team `{name}`", request.tenant), "apply a catalog with it")
            })?),
        };
        let is_twin =
            |known: &&KeyRecord| known.tenant == tenant.id && known.name == request.name && known.is_active(now_ms);
        let (from_file, made): (Vec<_>, Vec<_>) =
            state.keys.values().filter(is_twin).partition(|known| known.origin == Origin::File);
        if !from_file.is_empty() {
            let problem = format!("a catalog file has a key `{}`", request.name);
            return Err(invalid("name", problem, "choose another name"));
        }
        if made.len() >= MOST_ACTIVE_KEYS_OF_A_NAME {
            let problem = format!("{MOST_ACTIVE_KEYS_OF_A_NAME} active keys are called `{}`", request.name);
            return Err(invalid("name", problem, "revoke one of them, or choose another name"));
        }
        Ok(KeyRecord {
            id: new_key_id(self.entropy.as_ref()),
            hash: KeyHashText(self.secrets.pepper.hash(key.expose()).0),
            prefix: key.prefix().to_owned(),
            origin: Origin::Admin,
            name: request.name.clone(),
            tenant: tenant.id.clone(),
            team,
            models: request.models.as_ref().map(|models| models.iter().map(ToString::to_string).collect()),
            labels: request.labels.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
            created_at_ms: now_ms,
            expires_at_ms: request.expires_at.map(|at| at.0),
            revoked: None,
        })
    }

    /// Ends a key: no snapshot from now on has it. Repeating it changes nothing.
    pub fn revoke_key(&self, id: &str) -> Result<KeyRecord, ControlError> {
        let record = self.act(|state| {
            let Some(known) = state.keys.get(id) else { return Err(ControlError::NoKey { id: id.to_owned() }) };
            if known.revoked.is_some_and(|revoked| revoked.by == Origin::Admin) {
                return Ok((Vec::new(), known.clone()));
            }
            let revoked = Revoked { at_ms: self.clock.now_ms(), by: Origin::Admin };
            let after = KeyRecord { revoked: Some(revoked), ..known.clone() };
            Ok((vec![Change::RevokeKey { id: known.id.clone(), revoked }], after))
        })?;
        tracing::info!(key_id = %record.id, "key revoked");
        Ok(record)
    }

    /// Every key that ever was, newest first.
    pub fn keys(&self) -> Result<Vec<KeyView>, ControlError> {
        let state = self.store.read()?;
        let (names, now_ms) = (state.names(), self.clock.now_ms());
        let mut keys: Vec<&KeyRecord> = state.keys.values().collect();
        keys.sort_by(|a, b| (b.created_at_ms, &b.id).cmp(&(a.created_at_ms, &a.id)));
        Ok(keys.into_iter().map(|key| view(key, &names, now_ms)).collect())
    }

    /// A key as it may be shown.
    pub fn key_view(&self, id: &str) -> Result<KeyView, ControlError> {
        let state = self.store.read()?;
        let key = state.keys.get(id).ok_or_else(|| ControlError::NoKey { id: id.to_owned() })?;
        Ok(view(key, &state.names(), self.clock.now_ms()))
    }

    pub fn key_record(&self, id: &str) -> Result<KeyRecord, ControlError> {
        self.store.read()?.keys.remove(id).ok_or_else(|| ControlError::NoKey { id: id.to_owned() })
    }

    /// The newest publication and its document: what goes on `weir.snapshots`. What another control plane has published
    /// is in force here as well from now on.
    pub fn published(&self) -> Result<Option<(Publication, SnapshotDocument)>, ControlError> {
        let _one_at_a_time = self.acting.lock();
        let state = self.store.read()?;
        let Some(publication) = state.published.clone() else { return Ok(None) };
        let document = self.document_of(&state, &publication)?;
        if publication.version > self.current().version {
            self.snapshots.send_replace(Arc::new(document.open(publication.version, &self.secrets.master)?));
        }
        Ok(Some((publication, document)))
    }

    /// The document as it was published: by a control plane of another release, that is with other shipped prices.
    fn document_of(&self, state: &State, publication: &Publication) -> Result<SnapshotDocument, ControlError> {
        let mut document = compile(state, &self.shipped);
        let prices = document.price_book().map_err(SnapshotError::from)?;
        if *prices.version() != publication.price_version
            && let Some(published) = self.store.prices(&publication.price_version)?
        {
            document.prices = published;
        }
        Ok(document)
    }

    /// The same as JSON, whose SHA-256 the publication names.
    pub fn published_document(&self) -> Result<Option<(Publication, String)>, ControlError> {
        let Some((publication, document)) = self.published()? else { return Ok(None) };
        Ok(Some((publication, serde_json::to_string(&document)?)))
    }

    /// Ids of all tenants by name.
    pub fn tenant_ids(&self) -> Result<BTreeMap<String, TenantId>, ControlError> {
        Ok(self.store.tenant_ids()?)
    }

    /// One tenant, by name or id.
    pub fn tenant(&self, asked: &str) -> Result<Option<TenantState>, ControlError> {
        Ok(self.store.tenant(asked)?)
    }

    /// What is in force.
    pub fn state(&self) -> Result<State, ControlError> {
        Ok(self.store.read()?)
    }

    /// The price book that was published under `version`, at whatever time: for a replay.
    pub fn price_book(&self, version: &PriceVersion) -> Result<Option<PriceBook>, ControlError> {
        let Some(entries) = self.store.prices(version)? else { return Ok(None) };
        Ok(Some(PriceBook::new(&entries, price_version).map_err(SnapshotError::from)?))
    }

    #[must_use]
    pub const fn secrets(&self) -> &ControlSecrets {
        &self.secrets
    }

    fn act<T>(&self, plan: impl Fn(&State) -> Result<(Vec<Change>, T), ControlError>) -> Result<T, ControlError> {
        let _one_at_a_time = self.acting.lock();
        let mut conflicts = 0;
        loop {
            let state = self.store.read()?;
            let (mut changes, outcome) = plan(&state)?;
            let mut after = state.clone();
            changes.iter().for_each(|change| after.apply(change));
            let document = compile(&after, &self.shipped);
            let snapshot = self.prepare(&document, &after, &mut changes)?;
            let written =
                if changes.is_empty() { Ok(state.revision) } else { self.store.write(state.revision, &changes) };
            match written {
                Ok(_) => {
                    if self.current().version != snapshot.version {
                        self.snapshots.send_replace(Arc::new(snapshot));
                    }
                    return Ok(outcome);
                }
                Err(StoreError::Conflict) if conflicts < MOST_CONFLICTS => conflicts += 1,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The snapshot of `document`, with a publication among the `changes` where its content is new.
    fn prepare(
        &self,
        document: &SnapshotDocument,
        after: &State,
        changes: &mut Vec<Change>,
    ) -> Result<Snapshot, ControlError> {
        let content_sha256 = document.content_sha256()?;
        if let Some(published) = after.published.as_ref().filter(|known| known.content_sha256 == content_sha256) {
            return Ok(document.open(published.version, &self.secrets.master)?);
        }
        let version = after.published.as_ref().map_or(0, |known| known.version) + 1;
        let snapshot = document.open(version, &self.secrets.master)?;
        let publication = Publication {
            version,
            content_sha256,
            price_version: snapshot.prices.version().clone(),
            published_at_ms: self.clock.now_ms(),
        };
        changes.push(Change::Publish { publication, prices_json: serde_json::to_string(&document.prices)? });
        Ok(snapshot)
    }
}

fn check_key_request(state: &State, request: &KeyRequest, now_ms: i64) -> Result<(), ControlError> {
    if !is_name(&request.name) {
        let fix = "use 1 to 128 letters, digits and any of `. _ - : / @ +`, beginning with a letter or digit";
        return Err(invalid("name", format!("`{}` is no name", request.name.escape_debug()), fix));
    }
    if !state.catalog.tenants.iter().any(|tenant| tenant.name == request.tenant) {
        let problem = format!("there is no tenant `{}`", request.tenant.escape_debug());
        return Err(invalid("tenant", problem, "apply a catalog with it"));
    }
    let is_model = |name: &&ModelName| state.catalog.models.iter().any(|model| model.name == **name);
    if let Some(unknown) = request.models.iter().flatten().find(|name| !is_model(name)) {
        return Err(invalid("models", format!("there is no model `{unknown}`"), "name models of the catalog"));
    }
    if request.expires_at.is_some_and(|at| at.0 <= now_ms) {
        return Err(invalid("expires_at", "it is in the past".to_owned(), "name a later instant"));
    }
    crate::catalog::check_labels(&request.labels).map_err(|(problem, fix)| invalid("labels", problem, &fix))
}

fn invalid(field: &'static str, problem: String, fix: &str) -> ControlError {
    ControlError::Invalid { field, problem, fix: fix.to_owned() }
}

fn counts(catalog: &Catalog) -> BTreeMap<&'static str, usize> {
    BTreeMap::from([
        ("providers", catalog.providers.len()),
        ("deployments", catalog.deployments.len()),
        ("models", catalog.models.len()),
        ("tenants", catalog.tenants.len()),
        ("teams", catalog.teams.len()),
        ("limits", catalog.limits.len()),
        ("keys", catalog.keys.len()),
        ("prices", catalog.prices.len()),
    ])
}

fn view(key: &KeyRecord, names: &HashMap<&str, &str>, now_ms: i64) -> KeyView {
    let name_of = |id: &str| names.get(id).copied().unwrap_or_default().to_owned();
    let status = match key.revoked {
        Some(_) => KeyStatus::Revoked,
        None if key.is_active(now_ms) => KeyStatus::Active,
        None => KeyStatus::Expired,
    };
    KeyView {
        id: key.id.clone(),
        name: key.name.clone(),
        prefix: key.prefix.clone(),
        tenant: name_of(key.tenant.as_str()),
        team: key.team.as_ref().map(|team| name_of(team.as_str())),
        origin: key.origin,
        status,
        models: key.models.clone(),
        labels: key.labels.iter().cloned().collect(),
        created_at: EffectiveMs(key.created_at_ms),
        expires_at: key.expires_at_ms.map(EffectiveMs),
        revoked_at: key.revoked.map(|revoked| EffectiveMs(revoked.at_ms)),
    }
}

#[cfg(test)]
#[path = "control_tests.rs"]
mod tests;
