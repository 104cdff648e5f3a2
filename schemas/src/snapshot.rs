//! Published policy: the topic `snapshots`.
//!
//! The body is JSON text and not Avro: it is the catalog's own typed form, checked by who reads it, and its hash must
//! hold for the very bytes that were published.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::frame::{FieldError, FieldProblem};
use crate::parts::{hash, millis};
use crate::record::Record;

/// The policy of one scope, immutable; a newer version replaces it as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotPublished {
    pub scope: String,
    /// Rises by publication within the scope.
    pub version: u64,
    #[serde(with = "hash")]
    pub content_hash: [u8; 32],
    #[serde(rename = "published_at", with = "millis")]
    pub published_at_ms: i64,
    pub body: String,
}

impl SnapshotPublished {
    #[must_use]
    pub fn new(scope: String, version: u64, published_at_ms: i64, body: String) -> Self {
        Self { scope, version, content_hash: Sha256::digest(&body).into(), published_at_ms, body }
    }
}

impl Record for SnapshotPublished {
    const NAME: &'static str = "SnapshotPublished";
    const SCHEMA_ID: u32 = 70801;

    fn check(&self) -> Result<(), FieldError> {
        if self.content_hash == <[u8; 32]>::from(Sha256::digest(&self.body)) {
            return Ok(());
        }
        Err(FieldError { record: Self::NAME, field: "content_hash", problem: FieldProblem::NotTheHash })
    }
}
