//! Secrets, control store and catalog: what a process is allowed to do, before it does anything.

use std::path::PathBuf;
use std::sync::Arc;

use secrecy::{ExposeSecret as _, SecretString};
use thiserror::Error;

use weir_control::catalog::{Catalog, QUICKSTART_TENANT, TomlError};
use weir_control::secrets::{AdminToken, ControlSecrets, MasterKey, Pepper, SecretsError};
use weir_control::store::{SqliteControlStore, StoreError};
use weir_control::{Control, ControlError, KeyRequest, VirtualKey};
use weir_runtime::clock::SharedClock;
use weir_runtime::entropy::{Entropy, OsEntropy, SharedEntropy};
use weir_runtime::secrets::{SecretError, SecretRef, read_or_create_secret};
use weir_stub::Stub;

use crate::config::{Config, SecretOptions};
use crate::data::DataFolder;

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
    #[error("the pepper is no key for HMAC-SHA256; draw one with `openssl rand -hex 32`")]
    Pepper,
    #[error("the control store {} cannot be opened", path.display())]
    Store { path: PathBuf, source: StoreError },
    #[error("{} cannot be read: {source}; name another file with --catalog", path.display())]
    Unreadable { path: PathBuf, source: std::io::Error },
    #[error("the quickstart's catalog cannot be written")]
    Quickstart(#[from] TomlError),
    #[error(transparent)]
    Control(#[from] ControlError),
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

pub(crate) fn open_control(
    data: &DataFolder,
    secrets: &Secrets,
    clock: &SharedClock,
    entropy: &SharedEntropy,
) -> Result<Arc<Control>, PolicyError> {
    let path = data.control();
    let store = SqliteControlStore::open(&path, &secrets.control);
    let store = store.map_err(|source| PolicyError::Store { path, source })?;
    let control = Control::open(Arc::new(store), secrets.control.clone(), Arc::clone(clock), Arc::clone(entropy))?;
    Ok(Arc::new(control))
}

/// The secrets of an installation, for a command beside its process.
pub(crate) fn secrets_beside(config: &Config, data: &DataFolder) -> Result<ControlSecrets, PolicyError> {
    Ok(secrets(&config.secrets, data, &OsEntropy)?.control)
}

/// The control plane of an installation whose process does not run.
pub(crate) fn control_beside(
    config: &Config,
    data: &DataFolder,
    clock: &SharedClock,
    entropy: &SharedEntropy,
) -> Result<Arc<Control>, PolicyError> {
    open_control(data, &secrets(&config.secrets, data, entropy.as_ref())?, clock, entropy)
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
