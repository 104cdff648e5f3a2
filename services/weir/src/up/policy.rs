//! Secrets, control store and catalog: what a process is allowed to do, before it does anything.

use std::path::PathBuf;
use std::sync::Arc;

use secrecy::{ExposeSecret as _, SecretString};
use thiserror::Error;

use weir_control::catalog::{Catalog, QUICKSTART_TENANT, TomlError};
use weir_control::secrets::{AdminToken, ControlSecrets, MasterKey, Pepper, SecretsError};
#[cfg(feature = "cql")]
use weir_control::store::cql::{CqlControlStore, CqlOptions};
use weir_control::store::{ControlStore, SqliteControlStore, StoreError};
use weir_control::{Control, ControlError, KeyRequest, VirtualKey};
use weir_runtime::clock::SharedClock;
use weir_runtime::entropy::{Entropy, OsEntropy, SharedEntropy};
use weir_runtime::secrets::{SecretError, SecretRef, read_or_create_secret};
use weir_stub::Stub;

use crate::config::{Config, SecretOptions};
use crate::data::{DataError, DataFolder};

/// Where the catalog comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CatalogSource {
    /// What the control store has.
    Stored,
    /// A file, applied at every start.
    File(PathBuf),
    /// `OPENAI_API_KEY`, well-known models with their shipped prices, one tenant, and a first key.
    Quickstart,
    /// The same against the stub, whose key is nobody's secret.
    Stub,
}

/// Why there is no policy to run under.
#[derive(Debug, Error)]
pub enum PolicyError {
    #[error(transparent)]
    Secret(#[from] SecretError),
    #[error(transparent)]
    Secrets(#[from] SecretsError),
    #[error(transparent)]
    Data(#[from] DataError),
    #[error("the pepper is no key for HMAC-SHA256; draw one with `openssl rand -hex 32`")]
    Pepper,
    #[error("the control store {} cannot be opened", path.display())]
    Store { path: PathBuf, source: StoreError },
    #[cfg(feature = "cql")]
    #[error("the control store in keyspace {keyspace} cannot be opened")]
    SharedStore { keyspace: String, source: StoreError },
    #[cfg(feature = "cql")]
    #[error(
        "{field} is not set: every control plane must open the same store; write a reference to it, such as \"file:PATH\""
    )]
    NotShared { field: &'static str },
    #[cfg(all(feature = "kafka", feature = "cql", feature = "redis"))]
    #[error("the thread that opened the control store was lost")]
    Lost,
    #[error("{} cannot be read: {source}; name another file with --catalog", path.display())]
    Unreadable { path: PathBuf, source: std::io::Error },
    #[error("the quickstart's catalog cannot be written")]
    Quickstart(#[from] TomlError),
    #[error(transparent)]
    Control(#[from] ControlError),
}

#[cfg(all(feature = "kafka", feature = "cql", feature = "redis"))]
impl PolicyError {
    /// Whether the control store only has to answer again.
    pub(crate) const fn is_temporary(&self) -> bool {
        match self {
            Self::Store { source, .. } | Self::SharedStore { source, .. } => source.is_temporary(),
            Self::Control(ControlError::Store(error)) => error.is_temporary(),
            Self::Secret(_)
            | Self::Secrets(_)
            | Self::Data(_)
            | Self::Pepper
            | Self::NotShared { .. }
            | Self::Lost
            | Self::Unreadable { .. }
            | Self::Quickstart(_)
            | Self::Control(_) => false,
        }
    }
}

/// All secrets of a process, resolved.
#[derive(Debug)]
pub(crate) struct Secrets {
    pub control: ControlSecrets,
    /// The pepper as the gateway takes it: bytes.
    pepper: SecretString,
}

/// 256 bits, for every secret that is made here.
const SECRET_BYTES: usize = 32;

pub(crate) fn secrets(
    options: &SecretOptions,
    data: &DataFolder,
    entropy: &dyn Entropy,
) -> Result<Secrets, PolicyError> {
    let secret = |reference: &Option<SecretRef>, name: &str| match reference {
        Some(reference) => reference.resolve(),
        None => read_or_create_secret(&data.secret(name), SECRET_BYTES, entropy),
    };
    let pepper = secret(&options.pepper, "pepper")?;
    let control = ControlSecrets {
        pepper: Pepper::new(&pepper)?,
        master: MasterKey::new(&secret(&options.master_key, "master.key")?)?,
        admin_token: AdminToken::new(&secret(&options.admin_token, "admin.token")?)?,
    };
    Ok(Secrets { control, pepper })
}

impl Secrets {
    pub fn gateway_pepper(&self) -> Result<weir_gateway::Pepper, PolicyError> {
        weir_gateway::Pepper::new(self.pepper.expose_secret().as_bytes()).map_err(|_| PolicyError::Pepper)
    }
}

/// The store of one process.
pub(crate) fn embedded_store(
    data: &DataFolder,
    secrets: &ControlSecrets,
) -> Result<Arc<dyn ControlStore>, PolicyError> {
    let path = data.control();
    let store = SqliteControlStore::open(&path, secrets);
    Ok(Arc::new(store.map_err(|source| PolicyError::Store { path, source })?))
}

/// The store of control planes apart. Blocks.
#[cfg(feature = "cql")]
pub(crate) fn shared_store(
    options: &CqlOptions,
    pepper: &Pepper,
    master: &MasterKey,
) -> Result<Arc<dyn ControlStore>, PolicyError> {
    let store = CqlControlStore::open(options, pepper, master);
    let keyspace = || options.keyspace.clone();
    Ok(Arc::new(store.map_err(|source| PolicyError::SharedStore { keyspace: keyspace(), source })?))
}

pub(crate) fn open_control(
    store: Arc<dyn ControlStore>,
    secrets: &ControlSecrets,
    clock: &SharedClock,
    entropy: &SharedEntropy,
) -> Result<Arc<Control>, PolicyError> {
    Ok(Arc::new(Control::open(store, secrets.clone(), Arc::clone(clock), Arc::clone(entropy))?))
}

/// The configured store, for a command beside the process or on another machine of the installation.
pub(crate) fn store_beside(
    config: &Config,
    data: impl FnOnce() -> Result<DataFolder, DataError>,
) -> Result<Arc<dyn ControlStore>, PolicyError> {
    #[cfg(feature = "cql")]
    if let Some(options) = config.control_cql() {
        let secret = |reference: &Option<SecretRef>, field| match reference {
            Some(reference) => Ok(reference.resolve()?),
            None => Err(PolicyError::NotShared { field }),
        };
        let pepper = Pepper::new(&secret(&config.secrets.pepper, "secrets.pepper")?)?;
        let master = MasterKey::new(&secret(&config.secrets.master_key, "secrets.master_key")?)?;
        return shared_store(options, &pepper, &master);
    }
    let data = data()?;
    embedded_store(&data, &secrets(&config.secrets, &data, &OsEntropy)?.control)
}

/// The control plane of an installation whose process does not run.
pub(crate) fn control_beside(
    config: &Config,
    data: &DataFolder,
    clock: &SharedClock,
    entropy: &SharedEntropy,
) -> Result<Arc<Control>, PolicyError> {
    let secrets = secrets(&config.secrets, data, entropy.as_ref())?.control;
    open_control(store_beside(config, || Ok(data.clone()))?, &secrets, clock, entropy)
}

/// Applies the catalog. Returns a key where a quickstart has made its first.
pub(crate) fn bring_catalog(
    control: &Control,
    source: &CatalogSource,
    stub: Option<&Stub>,
    data: &DataFolder,
    entropy: &dyn Entropy,
) -> Result<Option<VirtualKey>, PolicyError> {
    let (credential, base_url) = match source {
        CatalogSource::Stored => return Ok(None),
        CatalogSource::File(path) => {
            let unreadable = |source| PolicyError::Unreadable { path: path.clone(), source };
            let text = std::fs::read_to_string(path).map_err(unreadable)?;
            control.apply(&path.display().to_string(), &text)?;
            return Ok(None);
        }
        CatalogSource::Quickstart => (SecretRef::Env("OPENAI_API_KEY".to_owned()), None),
        CatalogSource::Stub => {
            let path = data.secret("stub.key");
            let path = std::path::absolute(&path).unwrap_or(path);
            read_or_create_secret(&path, SECRET_BYTES, entropy)?;
            (SecretRef::File(path), stub.map(|stub| format!("{}/v1", stub.url())))
        }
    };
    // Better now than at the first request.
    credential.resolve()?;
    control.apply("quickstart", &Catalog::quickstart(credential, base_url.as_deref()).to_toml()?)?;
    first_key(control)
}

const FIRST_KEY: &str = "first";

fn first_key(control: &Control) -> Result<Option<VirtualKey>, PolicyError> {
    if !control.keys()?.is_empty() {
        return Ok(None);
    }
    let request =
        KeyRequest { tenant: QUICKSTART_TENANT.to_owned(), name: FIRST_KEY.to_owned(), ..KeyRequest::default() };
    Ok(Some(control.create_key(&request)?.key))
}
