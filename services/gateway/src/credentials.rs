//! Providers' credentials, resolved at call time from references and kept out of everything that is printed (I6).

use std::collections::HashMap;
use std::str::FromStr;

use http::HeaderValue;
use parking_lot::RwLock;
use secrecy::ExposeSecret;
use thiserror::Error;

use weir_domain::registry::Provider;
use weir_runtime::secrets::SecretRef;

/// How long a resolved credential is used before its source is asked again: a rotated file is picked up within this.
const FRESH_FOR_MS: i64 = 30_000;

#[derive(Debug, Error)]
#[error("the credential of provider `{provider}` cannot be read: {why}")]
pub(crate) struct CredentialError {
    provider: String,
    why: String,
}

#[derive(Debug, Default)]
pub(crate) struct Credentials {
    resolved: RwLock<HashMap<String, (HeaderValue, i64)>>,
}

impl Credentials {
    /// The header value that authenticates Weir at `provider`: `prefix` and the secret, marked sensitive.
    pub(crate) fn header(
        &self,
        provider: &Provider,
        prefix: &str,
        now_ms: i64,
    ) -> Result<Option<HeaderValue>, CredentialError> {
        let Some(reference) = &provider.credential else { return Ok(None) };
        if let Some((value, until_ms)) = self.resolved.read().get(reference)
            && now_ms < *until_ms
        {
            return Ok(Some(value.clone()));
        }
        let fail = |why: String| CredentialError { provider: provider.id.to_string(), why };
        let secret = SecretRef::from_str(reference)
            .map_err(|error| fail(error.to_string()))?
            .resolve()
            .map_err(|error| fail(error.to_string()))?;
        let mut value = HeaderValue::from_str(&format!("{prefix}{}", secret.expose_secret()))
            .map_err(|_| fail("it has characters that no header can carry".to_owned()))?;
        value.set_sensitive(true);
        self.resolved.write().insert(reference.clone(), (value.clone(), now_ms + FRESH_FOR_MS));
        Ok(Some(value))
    }
}
