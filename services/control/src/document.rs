//! The snapshot as a document: what a version publishes, with every secret left out or wrapped (I6).
//!
//! [`compile`] turns the state of the store into a document, a pure function whose text is hashed; [`SnapshotDocument::open`]
//! turns a document into the domain's `Snapshot`, which needs the master key. A process that runs apart from the control
//! plane opens the same document.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use thiserror::Error;

use weir_domain::calendar::Calendar;
use weir_domain::ids::{KeyId, ModelName, PriceVersion, ProviderId, TeamId, TenantId};
use weir_domain::policy::{Allowed, Key, KeyHash, Snapshot, Tenant};
use weir_domain::price::{PriceBook, PriceBookError, PriceEntry};
use weir_domain::quota::{Limit, Scope, Subject};
use weir_domain::reconcile::CeilingPolicy;
use weir_domain::registry::{Deadlines, Deployment, LogicalModel, OnBreak, Provider};
use weir_runtime::units::HumanDuration;

use crate::catalog::{
    DeadlinesEntry, DeploymentEntry, KeyHashText, LimitEntry, ModelEntry, OnReportMismatch, ProviderEntry,
    StreamFailureEntry, StreamFailureMode, limit_max,
};
use crate::secrets::{MasterKey, UnwrapError, WrappedSecret};
use crate::state::{KeyRecord, State};

/// Everything that a gateway needs, in a fixed order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotDocument {
    pub providers: Vec<ProviderEntry>,
    pub deployments: Vec<DeploymentEntry>,
    pub models: Vec<ModelEntry>,
    pub tenants: Vec<TenantDocument>,
    pub keys: Vec<KeyDocument>,
    pub prices: Vec<PriceEntry>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantDocument {
    pub id: TenantId,
    pub name: String,
    pub calendar: Calendar,
    pub limits: Vec<Limit>,
    pub models: Option<BTreeSet<ModelName>>,
    pub regions: Option<BTreeSet<String>>,
    pub providers: Option<BTreeSet<ProviderId>>,
    pub denied_tools: BTreeSet<String>,
    pub adjust_on_mismatch: bool,
    pub on_ceiling: CeilingPolicy,
    /// In hexadecimal, inside the master key.
    pub wrapped_secret: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyDocument {
    pub id: KeyId,
    pub hash: KeyHashText,
    pub prefix: String,
    pub tenant: TenantId,
    pub team: Option<TeamId>,
    pub models: Option<BTreeSet<ModelName>>,
    pub limits: Vec<Limit>,
    pub expires_at_ms: Option<i64>,
    pub labels: Vec<(String, String)>,
}

/// Why a document is no snapshot. What was checked on its way in never fails here; a document from elsewhere may.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SnapshotError {
    #[error("the prices of the snapshot are no price book")]
    Prices(#[from] PriceBookError),
    #[error(transparent)]
    Secret(#[from] UnwrapError),
    #[error("{what} `{name}` refers to `{reference}`, which the snapshot does not have")]
    Dangling { what: &'static str, name: String, reference: String },
}

/// The document of `state`, over the price book that ships with this binary.
#[must_use]
pub fn compile(state: &State, shipped: &[PriceEntry]) -> SnapshotDocument {
    let catalog = &state.catalog;
    let limits = LimitsByOwner::new(state);
    let tenants: Vec<TenantDocument> = catalog
        .tenants
        .iter()
        .filter_map(|entry| {
            let record = state.tenants.get(&entry.name)?;
            Some(TenantDocument {
                id: record.id.clone(),
                name: entry.name.clone(),
                calendar: record.calendar.clone(),
                limits: limits.of_tenant(&record.id),
                models: entry.models.clone(),
                regions: entry.regions.clone(),
                providers: entry.providers.clone(),
                denied_tools: entry.denied_tools.clone(),
                adjust_on_mismatch: entry.on_report_mismatch == OnReportMismatch::Adjust,
                on_ceiling: entry.on_ceiling,
                wrapped_secret: hex::encode(&record.secret.0),
            })
        })
        .collect();
    let in_force: HashSet<&TenantId> = tenants.iter().map(|tenant| &tenant.id).collect();
    let keys = state
        .keys
        .values()
        .filter(|key| key.revoked.is_none() && in_force.contains(&key.tenant))
        .map(|key| key_document(key, limits.of_key(key)))
        .collect();
    SnapshotDocument {
        providers: catalog.providers.clone(),
        deployments: catalog.deployments.clone(),
        models: catalog.models.clone(),
        keys,
        tenants,
        prices: catalog.prices_over(shipped),
    }
}

fn key_document(key: &KeyRecord, limits: Vec<Limit>) -> KeyDocument {
    KeyDocument {
        id: key.id.clone(),
        hash: key.hash,
        prefix: key.prefix.clone(),
        tenant: key.tenant.clone(),
        team: key.team.clone(),
        models: key.models.as_ref().map(|models| models.iter().map(|name| ModelName::new(name)).collect()),
        limits,
        expires_at_ms: key.expires_at_ms,
        labels: key.labels.clone(),
    }
}

/// The limits of a catalog with ids in the place of names.
struct LimitsByOwner<'a> {
    tenants: HashMap<TenantId, Vec<Limit>>,
    /// By tenant and a key's name: the subject is each key of that name.
    keys: HashMap<(TenantId, &'a str), Vec<&'a LimitEntry>>,
}

impl<'a> LimitsByOwner<'a> {
    fn new(state: &'a State) -> Self {
        let mut limits = Self { tenants: HashMap::new(), keys: HashMap::new() };
        for entry in &state.catalog.limits {
            let Some(tenant) = state.tenants.get(&entry.tenant).map(|tenant| tenant.id.clone()) else { continue };
            match (&entry.key, &entry.team) {
                (Some(key), _) => limits.keys.entry((tenant, key)).or_default().push(entry),
                (None, Some(team)) => {
                    if let Some(team) = state.team_named(&tenant, team) {
                        let limit = limit(entry, Subject::Team(team.id.clone()));
                        limits.tenants.entry(tenant).or_default().extend(limit);
                    }
                }
                (None, None) => limits.tenants.entry(tenant).or_default().extend(limit(entry, Subject::Tenant)),
            }
        }
        limits
    }

    fn of_tenant(&self, tenant: &TenantId) -> Vec<Limit> {
        self.tenants.get(tenant).cloned().unwrap_or_default()
    }

    fn of_key(&self, key: &KeyRecord) -> Vec<Limit> {
        let entries = self.keys.get(&(key.tenant.clone(), key.name.as_str()));
        entries.into_iter().flatten().filter_map(|entry| limit(entry, Subject::Key(key.id.clone()))).collect()
    }
}

/// `None` for an amount that the check of the catalog refuses.
fn limit(entry: &LimitEntry, subject: Subject) -> Option<Limit> {
    let max = limit_max(entry).ok()?;
    Some(Limit { scope: Scope { subject, model: entry.model.clone() }, measure: entry.kind.0, max })
}

/// The version of a price book: the first 16 digits of the SHA-256 of its canonical text. 64 bits tell the books of one
/// installation apart, and are short enough for every event.
#[must_use]
pub fn price_version(canonical_text: &str) -> PriceVersion {
    let digest = hex::encode(Sha256::digest(canonical_text));
    PriceVersion::new(digest.get(..16).unwrap_or(&digest))
}

impl SnapshotDocument {
    /// SHA-256 of the document's JSON, in hexadecimal.
    pub fn content_sha256(&self) -> Result<String, serde_json::Error> {
        Ok(hex::encode(Sha256::digest(serde_json::to_vec(self)?)))
    }

    pub fn price_book(&self) -> Result<PriceBook, PriceBookError> {
        PriceBook::new(&self.prices, price_version)
    }

    /// The snapshot of this document as `version`.
    ///
    /// # Errors
    /// A reference to nothing, a secret of another master key, or prices that contradict each other.
    pub fn open(&self, version: u64, master: &MasterKey) -> Result<Snapshot, SnapshotError> {
        let providers: HashMap<_, _> = self.providers.iter().map(|entry| (entry.id.clone(), provider(entry))).collect();
        let mut deployments = HashMap::new();
        for entry in &self.deployments {
            let provider =
                found(&providers, &entry.provider, "deployment", entry.id.as_str(), entry.provider.as_str())?;
            deployments.insert(entry.id.clone(), Arc::new(deployment(entry, provider)));
        }
        let mut models = HashMap::new();
        for entry in &self.models {
            models.insert(entry.name.clone(), Arc::new(model(entry, &deployments)?));
        }
        let mut tenants = HashMap::new();
        for document in &self.tenants {
            tenants.insert(document.id.clone(), Arc::new(tenant(document, master)?));
        }
        let mut keys = HashMap::new();
        for document in &self.keys {
            let tenant = found(&tenants, &document.tenant, "key", document.id.as_str(), document.tenant.as_str())?;
            let key = key(document, tenant);
            keys.insert(key.hash, Arc::new(key));
        }
        let prices = Arc::new(self.price_book()?);
        Ok(Snapshot { version, tenants, keys, models, deployments, providers, prices })
    }
}

fn found<K: Hash + Eq, V>(
    all: &HashMap<K, Arc<V>>,
    id: &K,
    what: &'static str,
    name: &str,
    reference: &str,
) -> Result<Arc<V>, SnapshotError> {
    let dangling = || SnapshotError::Dangling { what, name: name.to_owned(), reference: reference.to_owned() };
    all.get(id).cloned().ok_or_else(dangling)
}

fn provider(entry: &ProviderEntry) -> Arc<Provider> {
    Arc::new(Provider {
        id: entry.id.clone(),
        dialect: entry.dialect,
        base_url: entry.base_url.clone(),
        credential: entry.credential.as_ref().map(ToString::to_string),
        organization: entry.organization.clone(),
        project: entry.project.clone(),
        on_abandon: entry.on_abandon,
        bills_filtered_errors: entry.bills_filtered_errors,
    })
}

fn deployment(entry: &DeploymentEntry, provider: Arc<Provider>) -> Deployment {
    Deployment {
        id: entry.id.clone(),
        provider,
        upstream_model: entry.model.clone(),
        region: entry.region.clone(),
        capabilities: entry.capabilities.iter().copied().collect(),
        max_output_tokens: entry.max_output_tokens,
        price: entry.price_name().to_owned(),
        cap_field: entry.cap_field,
        accepts_stream_options: entry.accepts_stream_options,
        accepts_developer_role: entry.accepts_developer_role,
        accepts_prefill: entry.accepts_prefill,
        anthropic_version: entry.anthropic_version,
        tokens_per_kilobyte: entry.tokens_per_kilobyte,
        tokens_per_image: entry.tokens_per_image.unwrap_or(0),
        tokenizer: entry.tokenizer,
    }
}

fn model(
    entry: &ModelEntry,
    deployments: &HashMap<weir_domain::ids::DeploymentId, Arc<Deployment>>,
) -> Result<LogicalModel, SnapshotError> {
    let name = entry.name.as_str();
    let tiers = entry
        .tiers()
        .map(|tier| tier.iter().map(|id| found(deployments, id, "model", name, id.as_str())).collect())
        .collect::<Result<_, _>>()?;
    Ok(LogicalModel {
        name: entry.name.clone(),
        tiers,
        default_output_tokens: entry.default_output_tokens,
        max_attempts: entry.max_attempts,
        deadlines: deadlines(&entry.deadlines),
        on_break: on_break(&entry.stream_failure),
    })
}

fn on_break(entry: &StreamFailureEntry) -> OnBreak {
    match entry.mode {
        StreamFailureMode::Terminate => OnBreak::Terminate,
        StreamFailureMode::Continue => OnBreak::Continue { on: entry.on.clone(), most: entry.max_fallbacks },
    }
}

fn deadlines(entry: &DeadlinesEntry) -> Deadlines {
    let ms = |duration: Option<HumanDuration>, default_ms: i64| {
        duration.map_or(default_ms, |duration| i64::try_from(duration.as_ms()).unwrap_or(i64::MAX))
    };
    let default = Deadlines::default();
    Deadlines {
        plain_total_ms: ms(entry.plain_total, default.plain_total_ms),
        stream_total_ms: ms(entry.stream_total, default.stream_total_ms),
        first_content_ms: ms(entry.first_content, default.first_content_ms),
        idle_ms: ms(entry.idle, default.idle_ms),
        connect_ms: ms(entry.connect, default.connect_ms),
        usage_after_finish_ms: ms(entry.usage_after_finish, default.usage_after_finish_ms),
        write_stall_ms: ms(entry.write_stall, default.write_stall_ms),
    }
}

fn tenant(document: &TenantDocument, master: &MasterKey) -> Result<Tenant, SnapshotError> {
    // What is no hexadecimal opens no better than what is empty.
    let wrapped = WrappedSecret(hex::decode(&document.wrapped_secret).unwrap_or_default());
    Ok(Tenant {
        id: document.id.clone(),
        name: document.name.clone(),
        calendar: document.calendar.clone(),
        limits: document.limits.clone(),
        models: allowed(document.models.as_ref()),
        regions: allowed(document.regions.as_ref()),
        providers: allowed(document.providers.as_ref()),
        denied_tools: document.denied_tools.iter().cloned().collect(),
        adjust_on_mismatch: document.adjust_on_mismatch,
        on_ceiling: document.on_ceiling,
        secret: master.open(&document.id, &wrapped)?,
    })
}

fn key(document: &KeyDocument, tenant: Arc<Tenant>) -> Key {
    Key {
        id: document.id.clone(),
        hash: KeyHash(document.hash.0),
        prefix: document.prefix.clone(),
        tenant,
        team: document.team.clone(),
        models: allowed(document.models.as_ref()),
        limits: document.limits.clone(),
        expires_at_ms: document.expires_at_ms,
        labels: document.labels.clone(),
    }
}

fn allowed<T: Hash + Eq + Clone>(list: Option<&BTreeSet<T>>) -> Allowed<T> {
    list.map_or(Allowed::Everything, |items| Allowed::Only(items.iter().cloned().collect()))
}

#[cfg(test)]
#[path = "document_tests.rs"]
mod tests;
