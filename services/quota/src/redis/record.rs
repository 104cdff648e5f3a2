//! A reservation's record as stored bytes: `generation version admitted due body`.
//!
//! The four words are for the scripts; the body is for this crate alone. Times that the store stamps are in the words, so
//! the body is written before they are known. What the record's key or the other fields imply is left out: records of a
//! day are the store's largest part.

use std::sync::Arc;

use weir_domain::ids::{ReservationId, TenantId};
use weir_domain::quota::{Entry, Scope};
use weir_domain::reservation::Created;

use crate::contract::QuotaError;

/// The first byte of a body. A change of meaning takes another one; readers keep knowing the old.
const FORMAT: u8 = 1;

/// A record and the version that the next step must find.
#[derive(Debug, Clone)]
pub(super) struct Known {
    pub(super) version: String,
    pub(super) entry: Entry,
}

/// The body of `entry`, whose times are relative to its admission.
pub(super) fn body(tenant: &TenantId, id: ReservationId, entry: &Entry) -> Result<Vec<u8>, QuotaError> {
    let created = &entry.reservation.created;
    let mut bare = Created {
        admitted_at_ms: 0,
        due_ms: created.due_ms.saturating_sub(created.admitted_at_ms),
        ..(**created).clone()
    };
    if bare.id == id {
        bare.id = ReservationId::from_bytes([0; 16]);
    }
    if bare.tenant == *tenant {
        bare.tenant = TenantId::new("");
    }
    if bare.counting.scopes == implied_scopes(&bare) {
        bare.counting.scopes = Arc::from([]);
    }
    let mut entry = entry.clone();
    entry.reservation.created = Arc::new(bare);
    entry.reservation.due_ms = 0;
    postcard::to_extend(&entry, vec![FORMAT])
        .map_err(|error| QuotaError::Unavailable { reason: format!("a record cannot be encoded: {error}") })
}

/// Reads a record; `bytes` is what the key holds.
pub(super) fn read(tenant: &TenantId, id: ReservationId, bytes: &[u8]) -> Result<Known, QuotaError> {
    parsed(tenant, id, bytes)
        .ok_or_else(|| QuotaError::NotValidated { reason: format!("the record of {id} is not readable: rebuild") })
}

/// The generation that a record belongs to.
pub(super) fn generation(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == b' ').next().unwrap_or_default()
}

fn parsed(tenant: &TenantId, id: ReservationId, bytes: &[u8]) -> Option<Known> {
    let mut words = bytes.splitn(5, |byte| *byte == b' ').skip(1);
    let mut word = || words.next();
    let version = std::str::from_utf8(word()?).ok()?.to_owned();
    let admitted_at_ms: i64 = std::str::from_utf8(word()?).ok()?.parse().ok()?;
    let due_ms: i64 = std::str::from_utf8(word()?).ok()?.parse().ok()?;
    let (format, body) = word()?.split_first()?;
    if *format != FORMAT {
        return None;
    }
    let mut entry: Entry = postcard::from_bytes(body).ok()?;
    let created = Arc::make_mut(&mut entry.reservation.created);
    created.admitted_at_ms = admitted_at_ms;
    created.due_ms = created.due_ms.saturating_add(admitted_at_ms);
    if created.id == ReservationId::from_bytes([0; 16]) {
        created.id = id;
    }
    if created.tenant.as_str().is_empty() {
        created.tenant = tenant.clone();
    }
    if created.counting.scopes.is_empty() {
        created.counting.scopes = implied_scopes(created);
    }
    entry.reservation.due_ms = due_ms;
    Some(Known { version, entry })
}

fn implied_scopes(created: &Created) -> Arc<[Scope]> {
    Scope::of_request(created.team.as_ref(), &created.key, &created.model)
}
