//! A book as stored bytes, for checkpoints.
//!
//! An image is the whole book, the sliding minute included: a process that restarts within a minute must not forget
//! what it admitted. It is sorted, so that equal books give equal images, and it leaves out what the entries imply.

use serde::{Deserialize, Serialize};

use crate::ids::{KeyId, ReservationId};
use crate::quota::{Scope, ScopeCounters};

use super::ended::{Ended, EndedImage};
use super::scopes::Scopes;
use super::{Book, BookOptions, Entry, Held};

/// Everything of a [`Book`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BookImage {
    options: BookOptions,
    scopes: Vec<(Scope, ScopeCounters)>,
    entries: Vec<(ReservationId, Entry)>,
    ended: EndedImage,
    lapsed_until_ms: i64,
    leaving: Vec<(i64, ReservationId)>,
    idempotency: Vec<([u8; 32], ReservationId, i64)>,
    revoked: Vec<KeyId>,
    applied: Vec<(i32, i64)>,
}

impl Book {
    #[must_use]
    pub fn image(&self) -> BookImage {
        let mut scopes: Vec<_> = self.scopes.iter().map(|(scope, c)| (scope.clone(), c.clone())).collect();
        scopes.sort_by(|a, b| a.0.cmp(&b.0));
        let mut entries: Vec<_> = self.entries.iter().map(|(id, held)| (*id, held.entry.clone())).collect();
        entries.sort_by_key(|(id, _)| *id);
        let mut idempotency: Vec<_> =
            self.idempotency.iter().map(|(hash, (id, expires_at_ms))| (*hash, *id, *expires_at_ms)).collect();
        idempotency.sort_unstable();
        let mut revoked: Vec<_> = self.revoked.iter().cloned().collect();
        revoked.sort();
        BookImage {
            options: self.options,
            scopes,
            entries,
            ended: self.ended.image(),
            lapsed_until_ms: self.lapsed_until_ms,
            leaving: self.leaving.iter().copied().collect(),
            idempotency,
            revoked,
            applied: self.applied.iter().map(|(partition, offset)| (*partition, *offset)).collect(),
        }
    }

    #[must_use]
    pub fn from_image(image: BookImage) -> Self {
        let mut scopes: Scopes = image.scopes.into_iter().collect();
        let due = image.entries.iter().filter_map(|(id, entry)| Some((entry.due_ms()?, *id))).collect();
        let held = |(id, entry): (ReservationId, Entry)| {
            let places = scopes.places(&entry.reservation.created.counting.scopes);
            (id, Held { entry, places })
        };
        Self {
            options: image.options,
            due,
            entries: image.entries.into_iter().map(held).collect(),
            ended: Ended::from_image(image.ended),
            scopes,
            lapsed_until_ms: image.lapsed_until_ms,
            leaving: image.leaving.into_iter().collect(),
            idempotency: image.idempotency.into_iter().map(|(hash, id, until_ms)| (hash, (id, until_ms))).collect(),
            revoked: image.revoked.into_iter().collect(),
            applied: image.applied.into_iter().collect(),
        }
    }
}
