//! Who calls: the virtual key of a request, looked up in the snapshot by its keyed hash. No I/O.

use std::fmt;
use std::sync::Arc;

use hmac::{Hmac, Mac};
use http::HeaderMap;
use sha2::Sha256;

use weir_domain::policy::{Key, KeyHash, Snapshot};

use weir_wire::Dialect;
use weir_wire::headers::client_credential_headers;

use crate::respond::CallerRefusal;

/// The server-side secret under which virtual keys are hashed (I6).
#[derive(Clone)]
pub struct Pepper(Hmac<Sha256>);

impl fmt::Debug for Pepper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pepper(…)")
    }
}

impl Pepper {
    /// # Errors
    /// Never for HMAC-SHA256, which takes keys of any length; the type comes from the library.
    pub fn new(secret: &[u8]) -> Result<Self, hmac::digest::InvalidLength> {
        Hmac::new_from_slice(secret).map(Self)
    }

    #[must_use]
    pub fn hash(&self, key: &str) -> KeyHash {
        let mut mac = self.0.clone();
        mac.update(key.as_bytes());
        KeyHash(mac.finalize().into_bytes().into())
    }
}

/// The key that `headers` present, if the snapshot knows it and it has not expired.
///
/// The hash, not the key, is compared, by a map lookup: what its timing tells is about a hash under a secret pepper.
pub(crate) fn authenticate(
    dialect: Dialect,
    headers: &HeaderMap,
    snapshot: &Snapshot,
    pepper: &Pepper,
    now_ms: i64,
) -> Result<Arc<Key>, CallerRefusal> {
    let presented = presented(dialect, headers).ok_or(CallerRefusal::Missing)?;
    let key = snapshot.keys.get(&pepper.hash(presented)).ok_or(CallerRefusal::Unknown)?;
    if key.expires_at_ms.is_some_and(|expiry| now_ms >= expiry) {
        return Err(CallerRefusal::Expired { prefix: key.prefix.clone() });
    }
    Ok(Arc::clone(key))
}

/// The key in the first header that brings one, in the order of the dialect.
fn presented(dialect: Dialect, headers: &HeaderMap) -> Option<&str> {
    client_credential_headers(dialect).iter().find_map(|(name, prefix)| {
        let value = headers.get(*name)?.to_str().ok()?;
        let key = match prefix.trim() {
            "" => value.trim(),
            scheme => {
                let (sent, key) = value.split_once(' ')?;
                if sent.eq_ignore_ascii_case(scheme) { key.trim() } else { return None }
            }
        };
        (!key.is_empty()).then_some(key)
    })
}

#[cfg(test)]
mod tests {
    use http::header::AUTHORIZATION;
    use http::{HeaderName, HeaderValue};

    use super::*;

    #[test]
    fn a_bearer_token_is_a_key_and_for_anthropic_clients_x_api_key_before_it() {
        let cases =
            [("Bearer k", Some("k")), ("bearer  k ", Some("k")), ("Basic k", None), ("Bearer ", None), ("k", None)];
        for (value, expected) in cases {
            let mut headers = HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_static(value))]);
            for dialect in [Dialect::OpenAiChat, Dialect::AnthropicMessages] {
                assert_eq!(presented(dialect, &headers), expected, "{value}");
            }
            headers.insert(HeaderName::from_static("x-api-key"), HeaderValue::from_static("x"));
            assert_eq!(presented(Dialect::OpenAiChat, &headers), expected, "{value}");
            assert_eq!(presented(Dialect::AnthropicMessages, &headers), Some("x"), "{value}");
        }
    }

    #[test]
    fn i06_the_pepper_changes_the_hash_and_is_never_printed() {
        let (one, other) = (Pepper::new(b"one").unwrap(), Pepper::new(b"other").unwrap());
        assert_ne!(one.hash("weir_key"), other.hash("weir_key"));
        assert_eq!(format!("{one:?} {:?}", one.hash("weir_key")), "Pepper(…) KeyHash(…)");
    }
}
