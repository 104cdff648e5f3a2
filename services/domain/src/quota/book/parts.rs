//! A book taken apart, for a store that keeps it in another form.

use std::borrow::Cow;

use crate::ids::{KeyId, ReservationId};
use crate::ledger::SourcePosition;
use crate::quota::{Scope, ScopeCounters};

use super::{Book, Entry};

impl Book {
    pub fn entries(&self) -> impl Iterator<Item = (ReservationId, Cow<'_, Entry>)> {
        let ended = self.ended.entries().map(|(id, entry)| (id, Cow::Owned(entry)));
        self.entries.iter().map(|(id, held)| (*id, Cow::Borrowed(&held.entry))).chain(ended)
    }

    /// How many ended reservations are kept, and the bytes that they take.
    #[must_use]
    pub fn kept(&self) -> (usize, usize) {
        (self.ended.len(), self.ended.bytes())
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = ReservationId> {
        self.entries.keys().copied().chain(self.ended.ids())
    }

    pub fn scopes(&self) -> impl Iterator<Item = (&Scope, &ScopeCounters)> {
        self.scopes.iter()
    }

    /// Each `Idempotency-Key` with its reservation and when it is free again, ms.
    pub fn idempotency_keys(&self) -> impl Iterator<Item = (&[u8; 32], ReservationId, i64)> {
        self.idempotency.iter().map(|(hash, (id, expires_at_ms))| (hash, *id, *expires_at_ms))
    }

    pub fn revoked(&self) -> impl Iterator<Item = &KeyId> {
        self.revoked.iter()
    }

    /// The last ledger position counted, of each partition.
    pub fn applied(&self) -> impl Iterator<Item = SourcePosition> {
        self.applied.iter().map(|(partition, offset)| SourcePosition { partition: *partition, offset: *offset })
    }
}
