//! Revoked virtual keys: the topic `revocations`, apart from the snapshots so that a revocation waits for nothing.

use serde::{Deserialize, Serialize};
use weir_domain::ids::{KeyId, TenantId};

use crate::frame::FieldError;
use crate::parts::millis;
use crate::record::Record;

/// A virtual key is void from now on. There is no way back: a new key is made instead.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyRevoked {
    #[serde(rename = "key_id")]
    pub key: KeyId,
    pub tenant: TenantId,
    pub who: String,
    pub why: String,
    #[serde(rename = "revoked_at", with = "millis")]
    pub revoked_at_ms: i64,
}

impl Record for KeyRevoked {
    const NAME: &'static str = "KeyRevoked";
    const SCHEMA_ID: u32 = 70701;

    fn check(&self) -> Result<(), FieldError> {
        Ok(())
    }
}
