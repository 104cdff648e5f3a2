//! Who calls: the virtual key of a request, looked up in the snapshot by its keyed hash. No I/O.

use std::fmt;
use std::sync::Arc;

use hmac::{Hmac, Mac};
use http::HeaderMap;
use http::header::AUTHORIZATION;
use sha2::Sha256;

use weir_domain::policy::{Key, KeyHash, Snapshot};

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
    headers: &HeaderMap,
    snapshot: &Snapshot,
    pepper: &Pepper,
    now_ms: i64,
) -> Result<Arc<Key>, CallerRefusal> {
    let presented = bearer(headers).ok_or(CallerRefusal::Missing)?;
    let key = snapshot.keys.get(&pepper.hash(presented)).ok_or(CallerRefusal::Unknown)?;
    if key.expires_at_ms.is_some_and(|expiry| now_ms >= expiry) {
        return Err(CallerRefusal::Expired { prefix: key.prefix.clone() });
    }
    Ok(Arc::clone(key))
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn only_a_bearer_token_is_a_key() {
        let cases =
            [("Bearer k", Some("k")), ("bearer  k ", Some("k")), ("Basic k", None), ("Bearer ", None), ("k", None)];
        for (value, expected) in cases {
            let headers = HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_static(value))]);
            assert_eq!(bearer(&headers), expected, "{value}");
        }
    }

    #[test]
    fn i06_the_pepper_changes_the_hash_and_is_never_printed() {
        let (one, other) = (Pepper::new(b"one").unwrap(), Pepper::new(b"other").unwrap());
        assert_ne!(one.hash("weir_key"), other.hash("weir_key"));
        assert_eq!(format!("{one:?} {:?}", one.hash("weir_key")), "Pepper(…) KeyHash(…)");
    }
}
