//! Ended reservations, packed: what a late or repeated command may still ask, in a tenth of the room.
//!
//! A book holds an ended reservation for a whole retry horizon, at a thousand requests a second some hundred thousand of
//! them, while only some hundred run. So what has ended and is confirmed is written down: what it shares with its
//! neighbours (key, model, counters, prices, targets) once for all of them, its own figures as bytes. Nothing is lost:
//! whoever asks gets the very entry back.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::attempt::{Attempt, AttemptNumber, AttemptOutcome, Target};
use crate::ids::{KeyId, ModelName, PriceVersion, ReservationId, ReservationMap, TeamId, TenantId};
use crate::money::{Charge, Hold};
use crate::quota::Counting;
use crate::reservation::{Created, IdempotencyRecord, Labels, PendCause, Reservation};

use super::Entry;

/// What reservations of the same key and model have in common.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Common {
    tenant: TenantId,
    team: Option<TeamId>,
    key: KeyId,
    model: ModelName,
    counting: Counting,
    price_version: PriceVersion,
    owner: Arc<str>,
    labels: Labels,
    adjust_on_mismatch: bool,
    /// Of the attempts, in their order.
    targets: Vec<Option<Arc<Target>>>,
}

/// One ended reservation.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub common: Arc<Common>,
    /// [`Figures`], by postcard.
    pub figures: Box<[u8]>,
}

/// What a reservation has for itself; whatever it shares is in [`Common`].
#[derive(Debug, Serialize, Deserialize)]
struct Figures<'a> {
    fingerprint: [u8; 32],
    hold: Hold,
    admitted_at_ms: i64,
    first_due_ms: i64,
    #[serde(borrow)]
    end_user: Option<Cow<'a, str>>,
    idempotency: Option<IdempotencyRecord>,
    free: Hold,
    #[serde(borrow)]
    attempts: Vec<AttemptFigures<'a>>,
    extended: Cow<'a, [(AttemptNumber, Hold)]>,
    closed: bool,
    pended: Option<PendCause>,
    resumes: u16,
    escalated: bool,
    slot: bool,
    due_ms: i64,
    flagged: bool,
    lapsed: bool,
    confirmed: Cow<'a, [(AttemptNumber, i64)]>,
}

#[derive(Debug, Serialize, Deserialize)]
struct AttemptFigures<'a> {
    number: AttemptNumber,
    started_with: Hold,
    /// Where it was tightened.
    hold: Option<Hold>,
    outcome: Option<AttemptOutcome>,
    charge: Option<Charge>,
    #[serde(borrow)]
    provider_id: Option<Cow<'a, str>>,
}

/// All of a book.
#[derive(Debug, Clone, Default)]
pub(super) struct Ended {
    rows: ReservationMap<Row>,
    /// What the newest ones have in common.
    recent: Vec<Arc<Common>>,
    scratch: Vec<u8>,
}

/// One for each pair of key and model that is busy at a time; more of them only cost room.
const RECENT: usize = 16;
/// A peak gives its room back; below this there is nothing to give.
const SHRINKS_FROM: usize = 4096;

impl Ended {
    /// Takes an entry in. `false`, and nothing happens, where it cannot be written down; none is known.
    pub fn put(&mut self, entry: &Entry) -> bool {
        let figures = Figures::of(entry);
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        let Ok(written) = postcard::to_extend(&figures, scratch) else { return false };
        let common = self.common(&entry.reservation);
        self.rows.insert(entry.reservation.created.id, Row { common, figures: Box::from(&written[..]) });
        self.scratch = written;
        true
    }

    fn common(&mut self, reservation: &Reservation) -> Arc<Common> {
        if let Some(known) = self.recent.iter().find(|known| known.is_of(reservation)) {
            return Arc::clone(known);
        }
        if self.recent.len() >= RECENT {
            self.recent.remove(0);
        }
        let common = Arc::new(Common::of(reservation));
        self.recent.push(Arc::clone(&common));
        common
    }

    pub fn get(&self, id: ReservationId) -> Option<Entry> {
        self.rows.get(&id).and_then(|row| row.entry(id))
    }

    pub fn take(&mut self, id: ReservationId) -> Option<Entry> {
        let entry = self.rows.get(&id)?.entry(id)?;
        self.remove(id);
        Some(entry)
    }

    pub fn contains(&self, id: ReservationId) -> bool {
        self.rows.contains_key(&id)
    }

    pub fn remove(&mut self, id: ReservationId) -> bool {
        let is_removed = self.rows.remove(&id).is_some();
        if self.rows.is_empty() {
            // A tenant that rests costs nothing.
            *self = Self::default();
        } else if self.rows.capacity() > SHRINKS_FROM && self.rows.len() < self.rows.capacity() / 8 {
            self.rows.shrink_to(2 * self.rows.len());
        }
        is_removed
    }

    pub fn ids(&self) -> impl Iterator<Item = ReservationId> {
        self.rows.keys().copied()
    }

    pub fn entries(&self) -> impl Iterator<Item = (ReservationId, Entry)> {
        self.rows.iter().filter_map(|(id, row)| Some((*id, row.entry(*id)?)))
    }

    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Bytes that the rows take, without what is common to them.
    pub fn bytes(&self) -> usize {
        let of_row = |row: &Row| row.figures.len();
        let slot = size_of::<(ReservationId, Row)>() + 1;
        self.rows.capacity() * slot + self.rows.values().map(of_row).sum::<usize>()
    }
}

impl Common {
    fn of(reservation: &Reservation) -> Self {
        let created = &reservation.created;
        Self {
            tenant: created.tenant.clone(),
            team: created.team.clone(),
            key: created.key.clone(),
            model: created.model.clone(),
            counting: created.counting.clone(),
            price_version: created.price_version.clone(),
            owner: Arc::clone(&created.owner),
            labels: Arc::clone(&created.labels),
            adjust_on_mismatch: created.adjust_on_mismatch,
            targets: reservation.attempts.iter().map(|attempt| attempt.target.clone()).collect(),
        }
    }

    fn is_of(&self, reservation: &Reservation) -> bool {
        let created = &reservation.created;
        let (ours, theirs) = (&self.counting, &created.counting);
        let targets = reservation.attempts.iter().map(|attempt| &attempt.target);
        (Arc::ptr_eq(&ours.scopes, &theirs.scopes) || ours.scopes == theirs.scopes)
            && ours.windows == theirs.windows
            && (&self.team, &self.key, &self.model) == (&created.team, &created.key, &created.model)
            && self.tenant == created.tenant
            && self.price_version == created.price_version
            && self.owner == created.owner
            && self.labels == created.labels
            && self.adjust_on_mismatch == created.adjust_on_mismatch
            && self.targets.iter().eq(targets)
    }
}

impl<'a> Figures<'a> {
    fn of(entry: &'a Entry) -> Self {
        let Entry { reservation, lapsed, confirmed, leaving: _ } = entry;
        let created = &reservation.created;
        Self {
            fingerprint: created.fingerprint,
            hold: created.hold,
            admitted_at_ms: created.admitted_at_ms,
            first_due_ms: created.due_ms,
            end_user: created.end_user.as_deref().map(Cow::Borrowed),
            idempotency: created.idempotency.clone(),
            free: reservation.free,
            attempts: reservation.attempts.iter().map(AttemptFigures::of).collect(),
            extended: Cow::Borrowed(&reservation.extended),
            closed: reservation.closed,
            pended: reservation.pended,
            resumes: reservation.resumes,
            escalated: reservation.escalated,
            slot: reservation.slot,
            due_ms: reservation.due_ms,
            flagged: reservation.flagged,
            lapsed: *lapsed,
            confirmed: Cow::Borrowed(confirmed),
        }
    }
}

impl<'a> AttemptFigures<'a> {
    fn of(attempt: &'a Attempt) -> Self {
        Self {
            number: attempt.number,
            started_with: attempt.started_with,
            hold: (attempt.hold != attempt.started_with).then_some(attempt.hold),
            outcome: attempt.outcome,
            charge: attempt.charge,
            provider_id: attempt.provider_id.as_deref().map(Cow::Borrowed),
        }
    }

    fn unpack(self, target: Option<&Arc<Target>>) -> Attempt {
        Attempt {
            number: self.number,
            target: target.cloned(),
            started_with: self.started_with,
            hold: self.hold.unwrap_or(self.started_with),
            outcome: self.outcome,
            charge: self.charge,
            provider_id: self.provider_id.map(Cow::into_owned),
        }
    }
}

impl Row {
    /// The entry as it was. `None` would say that these are not bytes of [`Ended::put`].
    pub fn entry(&self, id: ReservationId) -> Option<Entry> {
        let Self { common, figures } = self;
        let figures: Figures<'_> = postcard::from_bytes(figures).ok()?;
        let created = Created {
            id,
            tenant: common.tenant.clone(),
            team: common.team.clone(),
            key: common.key.clone(),
            model: common.model.clone(),
            fingerprint: figures.fingerprint,
            hold: figures.hold,
            counting: common.counting.clone(),
            price_version: common.price_version.clone(),
            admitted_at_ms: figures.admitted_at_ms,
            due_ms: figures.first_due_ms,
            owner: Arc::clone(&common.owner),
            labels: Arc::clone(&common.labels),
            end_user: figures.end_user.map(Cow::into_owned),
            idempotency: figures.idempotency,
            adjust_on_mismatch: common.adjust_on_mismatch,
        };
        let attempts = figures.attempts.into_iter().zip(&common.targets);
        let reservation = Reservation {
            created: Arc::new(created),
            free: figures.free,
            attempts: attempts.map(|(attempt, target)| attempt.unpack(target.as_ref())).collect(),
            extended: figures.extended.into_owned(),
            closed: figures.closed,
            pended: figures.pended,
            resumes: figures.resumes,
            escalated: figures.escalated,
            slot: figures.slot,
            due_ms: figures.due_ms,
            flagged: figures.flagged,
        };
        let confirmed = figures.confirmed.into_owned();
        Some(Entry { reservation, lapsed: figures.lapsed, confirmed, leaving: true })
    }
}

/// All of [`Ended`], sorted: equal ones give equal images.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct EndedImage {
    commons: Vec<Arc<Common>>,
    /// Each with the place of what it shares.
    rows: Vec<(ReservationId, u32, Box<[u8]>)>,
}

impl Ended {
    pub fn image(&self) -> EndedImage {
        let mut sorted: Vec<(&ReservationId, &Row)> = self.rows.iter().collect();
        sorted.sort_unstable_by_key(|(id, _)| **id);
        let (mut commons, mut by_value, mut by_address) = (Vec::new(), HashMap::new(), HashMap::new());
        let mut place = |common: &'_ Arc<Common>| {
            // Most have the very same one; only those that were evicted and came again are compared.
            let address = Arc::as_ptr(common).addr();
            *by_address.entry(address).or_insert_with(|| {
                *by_value.entry(Arc::clone(common)).or_insert_with(|| {
                    commons.push(Arc::clone(common));
                    u32::try_from(commons.len() - 1).unwrap_or(u32::MAX)
                })
            })
        };
        let rows = sorted.into_iter().map(|(id, row)| (*id, place(&row.common), row.figures.clone())).collect();
        EndedImage { commons, rows }
    }

    pub fn from_image(image: EndedImage) -> Self {
        let EndedImage { commons, rows } = image;
        let row = |(id, place, figures): (ReservationId, u32, Box<[u8]>)| {
            let common = Arc::clone(commons.get(place as usize)?);
            Some((id, Row { common, figures }))
        };
        Self { rows: rows.into_iter().filter_map(row).collect(), ..Self::default() }
    }
}

#[cfg(test)]
#[path = "ended_tests.rs"]
mod tests;
