//! The secrets of the control plane: the pepper under every key's hash, the master key around every tenant's secret,
//! and the token of the admin API.
//!
//! `weir up` makes all three once in its data folder; elsewhere they are references. The pepper and the master key must
//! be the same for all roles and for ever: the control store remembers a check of each and refuses others by name,
//! because a wrong pepper looks like "no key is valid" and nothing more.

use std::fmt;
use std::path::Path;

use hmac::{Hmac, Mac as _};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use secrecy::{ExposeSecret as _, SecretString};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use thiserror::Error;

use weir_domain::ids::TenantId;
use weir_domain::policy::{KeyHash, TenantSecret};
use weir_runtime::entropy::Entropy;
use weir_runtime::secrets::{SecretError, SecretRef, read_or_create_secret};

/// 32 random bytes: 256 bits, for every secret that is made here.
const SECRET_BYTES: usize = 32;

/// A shorter secret was typed, not drawn.
const SHORTEST_SECRET: usize = 32;

#[derive(Debug, Error)]
pub enum SecretsError {
    #[error(transparent)]
    Unreadable(#[from] SecretError),
    #[error(
        "the {what} has fewer than {SHORTEST_SECRET} characters: draw one, for example with `openssl rand -hex 32`"
    )]
    TooShort { what: &'static str },
}

/// Names of the files in the data folder.
pub const PEPPER_FILE: &str = "pepper";
pub const MASTER_KEY_FILE: &str = "master.key";
pub const ADMIN_TOKEN_FILE: &str = "admin.token";

/// All three, resolved.
#[derive(Debug, Clone)]
pub struct ControlSecrets {
    pub pepper: Pepper,
    pub master: MasterKey,
    pub admin_token: AdminToken,
}

impl ControlSecrets {
    /// Reads the three files in `folder`; makes those that are not there (mode 0600).
    pub fn open_or_create(folder: &Path, entropy: &dyn Entropy) -> Result<Self, SecretsError> {
        let secret = |name| read_or_create_secret(&folder.join(name), SECRET_BYTES, entropy);
        Self::new(&secret(PEPPER_FILE)?, &secret(MASTER_KEY_FILE)?, &secret(ADMIN_TOKEN_FILE)?)
    }

    /// Resolves references, for roles that run apart.
    pub fn resolve(pepper: &SecretRef, master: &SecretRef, admin_token: &SecretRef) -> Result<Self, SecretsError> {
        Self::new(&pepper.resolve()?, &master.resolve()?, &admin_token.resolve()?)
    }

    fn new(pepper: &SecretString, master: &SecretString, admin: &SecretString) -> Result<Self, SecretsError> {
        Ok(Self { pepper: Pepper::new(pepper)?, master: MasterKey::new(master)?, admin_token: AdminToken::new(admin)? })
    }
}

/// The key under which virtual keys are hashed (I6): the bytes of the secret's text, as they are.
#[derive(Clone)]
pub struct Pepper {
    hmac: Hmac<Sha256>,
    secret: SecretString,
}

impl Pepper {
    pub fn new(secret: &SecretString) -> Result<Self, SecretsError> {
        Ok(Self { hmac: keyed(long_enough("pepper", secret)?), secret: secret.clone() })
    }

    /// For whatever else hashes keys in this process: the request path.
    #[must_use]
    pub const fn secret(&self) -> &SecretString {
        &self.secret
    }

    /// HMAC-SHA256 of `key`, a virtual key as a client sends it.
    #[must_use]
    pub fn hash(&self, key: &str) -> KeyHash {
        KeyHash(digest(&self.hmac, key.as_bytes()))
    }

    /// Tells two peppers apart without telling either.
    pub(crate) fn check(&self) -> [u8; 32] {
        digest(&self.hmac, b"weir pepper check")
    }
}

/// The key around tenants' secrets.
#[derive(Clone)]
pub struct MasterKey(Hmac<Sha256>);

/// Why a wrapped secret does not open: another master key, or bytes that were changed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("the secret of tenant {tenant} does not open with this master key")]
pub struct UnwrapError {
    pub tenant: TenantId,
}

impl MasterKey {
    pub fn new(secret: &SecretString) -> Result<Self, SecretsError> {
        Ok(Self(keyed(long_enough("master key", secret)?)))
    }

    pub(crate) fn check(&self) -> [u8; 32] {
        digest(&self.0, b"weir master key check")
    }

    /// A new secret for `tenant`, wrapped: AES-256-GCM, bound to the tenant's id, so that no row of the store can be
    /// put in another's place.
    pub(crate) fn new_tenant_secret(&self, tenant: &TenantId, entropy: &dyn Entropy) -> WrappedSecret {
        let mut secret = [0; SECRET_BYTES];
        let mut nonce = [0; NONCE_LEN];
        entropy.fill(&mut secret);
        entropy.fill(&mut nonce);
        let mut sealed = secret.to_vec();
        let aad = Aad::from(tenant.as_str().as_bytes());
        let sealing = self
            .cipher()
            .map(|cipher| cipher.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), aad, &mut sealed));
        match sealing {
            Some(Ok(())) => WrappedSecret([nonce.as_slice(), &sealed].concat()),
            // AES-256 takes any 32 bytes as a key and seals any 32 bytes; an empty wrapping never opens.
            Some(Err(_)) | None => WrappedSecret(Vec::new()),
        }
    }

    pub(crate) fn open(&self, tenant: &TenantId, wrapped: &WrappedSecret) -> Result<TenantSecret, UnwrapError> {
        let failed = || UnwrapError { tenant: tenant.clone() };
        let (nonce, sealed) = wrapped.0.split_first_chunk::<NONCE_LEN>().ok_or_else(failed)?;
        let mut sealed = sealed.to_vec();
        let aad = Aad::from(tenant.as_str().as_bytes());
        let cipher = self.cipher().ok_or_else(failed)?;
        let opened =
            cipher.open_in_place(Nonce::assume_unique_for_key(*nonce), aad, &mut sealed).map_err(|_| failed())?;
        <[u8; SECRET_BYTES]>::try_from(&*opened).map(TenantSecret).map_err(|_| failed())
    }

    /// What only a holder of the master key can make of `message`: the seal of a published snapshot.
    pub(crate) fn seal_of(&self, message: &[u8]) -> [u8; 32] {
        let key = digest(&self.0, b"weir snapshots 1");
        digest(&keyed(&key), message)
    }

    fn cipher(&self) -> Option<LessSafeKey> {
        let key = digest(&self.0, b"weir tenant secrets 1");
        UnboundKey::new(&AES_256_GCM, &key).ok().map(LessSafeKey::new)
    }
}

/// A tenant's secret inside the master key: a nonce, then the sealed bytes. Safe to store and to publish.
#[derive(Clone, PartialEq, Eq)]
pub struct WrappedSecret(pub(crate) Vec<u8>);

/// The bearer token of the admin API.
#[derive(Clone)]
pub struct AdminToken(SecretString);

impl AdminToken {
    pub fn new(secret: &SecretString) -> Result<Self, SecretsError> {
        long_enough("admin token", secret)?;
        Ok(Self(secret.clone()))
    }

    /// Compares in constant time.
    #[must_use]
    pub fn is(&self, presented: &str) -> bool {
        self.0.expose_secret().as_bytes().ct_eq(presented.as_bytes()).into()
    }

    /// For the CLI, which presents it.
    #[must_use]
    pub const fn secret(&self) -> &SecretString {
        &self.0
    }
}

macro_rules! never_printed {
    ($($type:ident),*) => {
        $(impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(concat!(stringify!($type), "(…)"))
            }
        })*
    };
}

never_printed!(Pepper, MasterKey, AdminToken, WrappedSecret);

fn long_enough<'a>(what: &'static str, secret: &'a SecretString) -> Result<&'a [u8], SecretsError> {
    let secret = secret.expose_secret();
    if secret.len() < SHORTEST_SECRET { Err(SecretsError::TooShort { what }) } else { Ok(secret.as_bytes()) }
}

fn keyed(secret: &[u8]) -> Hmac<Sha256> {
    // What is longer than a block is hashed, what is shorter is padded: HMAC's own definition, in its infallible form.
    let mut block = [0; 64];
    let hashed = Sha256::digest(secret);
    let key = if secret.len() > block.len() { hashed.as_slice() } else { secret };
    block[..key.len()].copy_from_slice(key);
    Hmac::new(&block.into())
}

fn digest(key: &Hmac<Sha256>, message: &[u8]) -> [u8; 32] {
    key.clone().chain_update(message).finalize().into_bytes().into()
}

#[cfg(test)]
#[path = "secrets_tests.rs"]
mod tests;
