//! The book of one tenant: its reservations, counters, slots and revoked keys.
//!
//! This is the quota store as a value. The counters are never computed apart from the reservations: every event moves
//! them by the difference of the reservation's [`Position`] before and after, so that
//! conservation (counters = charges + open holds, I12) cannot be broken by a forgotten case.

mod ended;
mod image;
mod parts;
mod reading;
mod scopes;

pub use image::BookImage;

use std::collections::hash_map::Entry as Place;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use serde::{Deserialize, Serialize};

use crate::attempt::{AttemptNumber, AttemptOutcome};
use crate::ids::{KeyId, ReservationId, ReservationMap};
use crate::ledger::SourcePosition;
use crate::money::{Amounts, Charge};
use crate::reservation::{
    Balances, Command, Conflict, Decision, Event, Position, Reservation, ReservationStatus, Reserve, apply, decide,
};

use ended::Ended;
use scopes::{Moved, Places, Scopes};

use super::counters::admits;
use super::{Counting, Denial, Limit, RateStandings};

/// How long a book remembers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BookOptions {
    /// How long the record of an ended reservation stays, so that a repeated command finds it. Milliseconds.
    pub retry_horizon_ms: i64,
}

impl Default for BookOptions {
    fn default() -> Self {
        Self { retry_horizon_ms: 24 * 60 * 60 * 1000 }
    }
}

/// A reservation in the book.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    pub reservation: Reservation,
    /// The slot went back because the lease ended; a renewal takes it again.
    pub lapsed: bool,
    /// Attempts whose line the ledger confirmed, each with the log offset of the newest one.
    pub confirmed: Vec<(AttemptNumber, i64)>,
    /// Waits in the queue of records that may go.
    pub leaving: bool,
}

impl Entry {
    /// When its lease ends, if it has one.
    fn due_ms(&self) -> Option<i64> {
        (!self.reservation.closed).then_some(self.reservation.due_ms)
    }

    fn position(&self) -> Position {
        let mut position = self.reservation.position();
        if self.lapsed {
            position.slots = 0;
        }
        position
    }

    #[must_use]
    pub const fn new(reservation: Reservation) -> Self {
        Self { reservation, lapsed: false, confirmed: Vec::new(), leaving: false }
    }

    /// The log offset of the newest line of an attempt.
    #[must_use]
    pub fn confirmed_until(&self, number: AttemptNumber) -> Option<i64> {
        self.confirmed.iter().find(|(confirmed, _)| *confirmed == number).map(|(_, offset)| *offset)
    }

    /// The ledger has a line of the attempt, justified by the event at `offset`.
    pub fn confirm(&mut self, number: AttemptNumber, offset: i64) {
        match self.confirmed.iter_mut().find(|(confirmed, _)| *confirmed == number) {
            Some((_, newest)) => *newest = offset.max(*newest),
            None => {
                // Hardly any reservation has a second one, and a list that grows takes room for four at once.
                self.confirmed.reserve_exact(1);
                self.confirmed.push((number, offset));
            }
        }
    }

    /// Whether `command` is a total that somebody read from the ledger and the corrector may have overtaken: only the
    /// corrector's word says where on the log it stands.
    #[must_use]
    pub fn is_overtaken(&self, command: &Command) -> bool {
        matches!(command, Command::Correct { number, .. } if self.confirmed_until(*number).is_some())
    }

    /// Whether nothing can be asked of the record that the ledger does not answer.
    #[must_use]
    pub fn may_go(&self) -> bool {
        self.reservation.status().is_final()
            && self.reservation.attempts.iter().all(|attempt| {
                let is_free = attempt.outcome == Some(AttemptOutcome::NotExecuted) && attempt.charge.is_none();
                is_free || self.confirmed_until(attempt.number).is_some()
            })
    }
}

/// An entry and where its counters are.
#[derive(Debug, Clone)]
struct Held {
    entry: Entry,
    places: Places,
}

/// What a store answers. `reservation` differs from the id of the command only when an `Idempotency-Key` is already
/// tied to another reservation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    pub reservation: ReservationId,
    pub decision: Decision,
    /// The status after the command; `None` when there is no such reservation.
    pub status: Option<ReservationStatus>,
    /// The store's clock, ms.
    pub now_ms: i64,
    /// How the rates stand after a Reserve that was admitted, or denied by a limit; otherwise empty.
    pub rates: RateStandings,
}

/// A ledger line on its way back to the counters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Correction {
    pub reservation: ReservationId,
    pub number: AttemptNumber,
    /// The attempt's running total after the line.
    pub total: Charge,
    /// The line's own, signed amount.
    pub amount: Charge,
    pub counting: Counting,
    pub admitted_at_ms: i64,
    pub source: SourcePosition,
}

#[derive(Debug, Clone, Default)]
pub struct Book {
    options: BookOptions,
    scopes: Scopes,
    /// What runs, waits, or is not confirmed yet.
    entries: ReservationMap<Held>,
    /// What ended, is confirmed, and stays until its retry horizon is over.
    ended: Ended,
    /// Leases of what is Reserved, by their end.
    due: BTreeSet<(i64, ReservationId)>,
    /// Leases that ended up to here have given their slot back.
    lapsed_until_ms: i64,
    leaving: BTreeSet<(i64, ReservationId)>,
    idempotency: HashMap<[u8; 32], (ReservationId, i64)>,
    revoked: HashSet<KeyId>,
    /// The last ledger position applied, by partition; a line at or below it was counted already.
    applied: BTreeMap<i32, i64>,
}

/// How many records may leave with one command: bounds the time that one command can take.
const LEAVING_PER_COMMAND: usize = 4;

impl Book {
    #[must_use]
    pub fn new(options: BookOptions) -> Self {
        Self { options, ..Self::default() }
    }

    /// Decides and applies one command. Everything it changes, it changes at once.
    pub fn execute(&mut self, id: ReservationId, command: &Command, now_ms: i64) -> Reply {
        self.advance(now_ms);
        if matches!(command, Command::Correct { .. })
            && let Some(entry) = self.entry(id).filter(|entry| entry.is_overtaken(command))
        {
            return self.reply(id, Decision::NoChange(entry.reservation.status()), now_ms);
        }
        let reply = self.execute_now(id, command, now_ms);
        let _ended = self.rest(id);
        reply
    }

    /// What the passing of time changes by itself.
    fn advance(&mut self, now_ms: i64) {
        self.lapse_slots(now_ms);
        self.forget(now_ms, &mut Vec::new());
    }

    fn execute_now(&mut self, id: ReservationId, command: &Command, now_ms: i64) -> Reply {
        if let Command::Reserve(reserve) = command
            && let Some(reply) = self.refuse_at_the_door(id, reserve, now_ms)
        {
            return reply;
        }
        let state = self.reservation(id);
        let decision = decide(state.as_deref(), self, command, now_ms);
        if let Decision::Change(events) = &decision {
            for event in events {
                self.record(id, event, now_ms);
            }
        }
        let rates = self.rates(command, &decision, now_ms);
        Reply { rates, ..self.reply(id, decision, now_ms) }
    }

    fn rates(&self, command: &Command, decision: &Decision, now_ms: i64) -> RateStandings {
        let Command::Reserve(reserve) = command else { return RateStandings::default() };
        match decision {
            Decision::Change(_) | Decision::NoChange(_) | Decision::Denied(_) => {
                RateStandings::of(&reserve.limits, |scope| self.scopes.get(scope), now_ms)
            }
            Decision::Refused(_) | Decision::Conflict(_) => RateStandings::default(),
        }
    }

    /// A revoked key and a repeated `Idempotency-Key` never reach the limits.
    fn refuse_at_the_door(&self, id: ReservationId, reserve: &Reserve, now_ms: i64) -> Option<Reply> {
        let asked = &reserve.created;
        if self.entries.contains_key(&id) || self.ended.contains(id) {
            return None;
        }
        if self.revoked.contains(&asked.key) {
            let denial = Box::new(Denial::revoked(&asked.key));
            return Some(self.reply(id, Decision::Denied(denial), now_ms));
        }
        let (holder, expires_at_ms) = asked.idempotency.as_ref().and_then(|r| self.idempotency.get(&r.key_hash))?;
        let holding = self.reservation(*holder)?;
        let status = holding.status();
        if now_ms >= *expires_at_ms || status == ReservationStatus::Released {
            return None;
        }
        let decision = if holding.created.fingerprint == asked.fingerprint {
            Decision::NoChange(status)
        } else {
            Decision::Conflict(Conflict::Fingerprint)
        };
        Some(self.reply(*holder, decision, now_ms))
    }

    fn reply(&self, id: ReservationId, decision: Decision, now_ms: i64) -> Reply {
        let status = self.reservation(id).map(|reservation| reservation.status());
        Reply { reservation: id, decision, status, now_ms, rates: RateStandings::default() }
    }

    /// Applies a ledger line: the ledger always wins. While the record exists the attempt's newest total decides, and a
    /// line older than that is a copy; where it is gone, a line at or below the applied position was counted already.
    pub fn correct(&mut self, correction: &Correction, now_ms: i64) -> Reply {
        self.advance(now_ms);
        let Correction { reservation: id, number, total, source, .. } = *correction;
        let reply = match self.entry(id) {
            Some(entry) if entry.confirmed_until(number).is_some_and(|offset| offset >= source.offset) => {
                self.reply(id, Decision::NoChange(entry.reservation.status()), now_ms)
            }
            Some(_) => {
                let reply = self.execute_now(id, &Command::Correct { number, total }, now_ms);
                self.confirm(id, number, source, now_ms);
                reply
            }
            None if self.applied.get(&source.partition).is_some_and(|applied| *applied >= source.offset) => {
                self.reply(id, Decision::NoChange(ReservationStatus::Settled), now_ms)
            }
            None => {
                self.charge_directly(correction, now_ms);
                let event = Event::ChargeCorrected { number, total };
                self.reply(id, Decision::Change(vec![event]), now_ms)
            }
        };
        self.mark_applied(source);
        let _ended = self.rest(id);
        reply
    }

    fn charge_directly(&mut self, correction: &Correction, now_ms: i64) {
        let charged = Position { charged: correction.amount, ..Position::default() };
        let places = self.scopes.places(&correction.counting.scopes);
        let at = Moved { windows: &correction.counting.windows, admitted_at_ms: correction.admitted_at_ms, now_ms };
        at.shift(&mut self.scopes, &places, Position::default(), charged);
    }

    /// The ledger has a line of the attempt, justified by the event at `source`.
    pub(crate) fn confirm(&mut self, id: ReservationId, number: AttemptNumber, source: SourcePosition, now_ms: i64) {
        let Some(Held { entry, .. }) = awake(&mut self.entries, &mut self.ended, &mut self.scopes, id) else { return };
        entry.confirm(number, source.offset);
        see_off(&mut self.leaving, entry, self.options, now_ms);
    }

    /// Records an event that was decided elsewhere: by this book, or by whoever wrote the log that is being folded. Says
    /// whether it changed the reservation.
    pub fn record(&mut self, id: ReservationId, event: &Event, now_ms: i64) -> bool {
        let Some(Held { entry, places }) = awake(&mut self.entries, &mut self.ended, &mut self.scopes, id) else {
            return self.begin(id, event, now_ms);
        };
        let (before, due_before) = (entry.position(), entry.due_ms());
        let is_news = entry.reservation.absorb(event);
        // A renewal takes the slot again, unless it too is over by now.
        entry.lapsed = entry.reservation.due_ms <= self.lapsed_until_ms;
        let (after, due_after) = (entry.position(), entry.due_ms());
        Moved::of(&entry.reservation, now_ms).shift(&mut self.scopes, places, before, after);
        see_off(&mut self.leaving, entry, self.options, now_ms);
        self.move_due(id, due_before, due_after);
        is_news
    }

    /// Only a creation begins a reservation; whatever else is said of one that is not here changes nothing.
    fn begin(&mut self, id: ReservationId, event: &Event, now_ms: i64) -> bool {
        let Some(reservation) = apply(None, event) else { return false };
        if let Some(record) = &reservation.created.idempotency {
            self.idempotency.insert(record.key_hash, (id, record.expires_at_ms));
        }
        let lapsed = reservation.due_ms <= self.lapsed_until_ms;
        let mut entry = Entry { lapsed, ..Entry::new(reservation) };
        let places = self.scopes.places(&entry.reservation.created.counting.scopes);
        let at = Moved::of(&entry.reservation, now_ms);
        at.shift(&mut self.scopes, &places, Position::default(), entry.position());
        see_off(&mut self.leaving, &mut entry, self.options, now_ms);
        self.move_due(id, None, entry.due_ms());
        self.entries.insert(id, Held { entry, places });
        true
    }

    fn move_due(&mut self, id: ReservationId, before: Option<i64>, after: Option<i64>) {
        if before == after {
            return;
        }
        if let Some(due_ms) = before {
            self.due.remove(&(due_ms, id));
        }
        if let Some(due_ms) = after {
            self.due.insert((due_ms, id));
        }
    }

    /// Gives back the slots of leases that ended: a dead process must not hold concurrency for longer.
    fn lapse_slots(&mut self, now_ms: i64) {
        if now_ms <= self.lapsed_until_ms {
            return;
        }
        let low = (self.lapsed_until_ms, ReservationId::from_bytes([0; 16]));
        let high = (now_ms, ReservationId::from_bytes([0xff; 16]));
        self.lapsed_until_ms = now_ms;
        for (_, id) in self.due.range(low..=high) {
            let Some(Held { entry, places }) = self.entries.get_mut(id) else { continue };
            let before = entry.position();
            entry.lapsed = true;
            Moved::of(&entry.reservation, now_ms).shift(&mut self.scopes, places, before, entry.position());
        }
    }

    /// Drops records whose retry horizon is over, a few at a time, and names them in `gone`.
    pub(crate) fn forget(&mut self, now_ms: i64, gone: &mut Vec<ReservationId>) {
        for _ in 0..LEAVING_PER_COMMAND {
            let Some((at_ms, id)) = self.leaving.first().copied() else { return };
            if at_ms > now_ms {
                return;
            }
            self.leaving.pop_first();
            let Some(Held { entry, .. }) = self.entries.get_mut(&id) else {
                if !self.idempotency.is_empty()
                    && let Some(entry) = self.ended.get(id)
                {
                    self.forget_idempotency(&entry.reservation);
                }
                if self.ended.remove(id) {
                    gone.push(id);
                }
                continue;
            };
            // A late event may have made it pending again in the meantime; then it stays until it may go once more.
            entry.leaving = false;
            if entry.may_go()
                && let Some(held) = self.entries.remove(&id)
            {
                gone.push(id);
                self.forget_idempotency(&held.entry.reservation);
            }
        }
    }

    fn forget_idempotency(&mut self, reservation: &Reservation) {
        let Some(record) = &reservation.created.idempotency else { return };
        if self.idempotency.get(&record.key_hash).is_some_and(|(holder, _)| *holder == reservation.created.id) {
            self.idempotency.remove(&record.key_hash);
        }
    }

    /// Takes back a record that left, as the ledger's lines describe it. Its charges are counted already.
    pub(crate) fn restore(&mut self, reservation: Reservation, confirmed: Vec<(AttemptNumber, i64)>, now_ms: i64) {
        let id = reservation.created.id;
        if self.ended.contains(id) {
            return;
        }
        let places = self.scopes.places(&reservation.created.counting.scopes);
        let entry = Entry { confirmed, ..Entry::new(reservation) };
        let held = self.entries.entry(id).or_insert(Held { entry, places });
        see_off(&mut self.leaving, &mut held.entry, self.options, now_ms);
    }

    /// Packs the reservation if it has ended and is confirmed, and gives back what it was.
    pub(crate) fn rest(&mut self, id: ReservationId) -> Option<Reservation> {
        let Place::Occupied(place) = self.entries.entry(id) else { return None };
        let entry = &place.get().entry;
        let rests = entry.leaving && entry.may_go() && self.ended.put(entry);
        rests.then(|| place.remove().entry.reservation)
    }

    pub fn revoke(&mut self, key: KeyId) {
        self.revoked.insert(key);
    }

    /// Gives every open lease `lease_ms` from now on: after a restart nobody has had the time to renew.
    pub fn grace(&mut self, now_ms: i64, lease_ms: i64) {
        let open: Vec<ReservationId> = self.due.iter().map(|(_, id)| *id).collect();
        for id in open {
            self.record(id, &Event::LeaseRenewed { due_ms: now_ms.saturating_add(lease_ms) }, now_ms);
        }
    }

    /// Marks the ledger lines up to `source` as counted: what a fold of the log has seen.
    pub fn mark_applied(&mut self, source: SourcePosition) {
        let last = self.applied.entry(source.partition).or_insert(-1);
        *last = (*last).max(source.offset);
    }
}

/// The entry of `id` to be changed, unpacked if it has ended. Whoever changes it lets it rest again.
fn awake<'a>(
    entries: &'a mut ReservationMap<Held>,
    ended: &mut Ended,
    scopes: &mut Scopes,
    id: ReservationId,
) -> Option<&'a mut Held> {
    match entries.entry(id) {
        Place::Occupied(place) => Some(place.into_mut()),
        Place::Vacant(place) => {
            let entry = ended.take(id)?;
            let places = scopes.places(&entry.reservation.created.counting.scopes);
            Some(place.insert(Held { entry, places }))
        }
    }
}

/// Queues what may go, until its retry horizon is over.
fn see_off(leaving: &mut BTreeSet<(i64, ReservationId)>, entry: &mut Entry, options: BookOptions, now_ms: i64) {
    if entry.leaving || !entry.may_go() {
        return;
    }
    entry.leaving = true;
    let created = &entry.reservation.created;
    let horizon_ms = now_ms.saturating_add(options.retry_horizon_ms);
    // An `Idempotency-Key` answers from the record, so the record lives as long as the key.
    let key_expires_at_ms = created.idempotency.as_ref().map(|record| record.expires_at_ms);
    leaving.insert((key_expires_at_ms.map_or(horizon_ms, |at_ms| at_ms.max(horizon_ms)), created.id));
}

impl Balances for Book {
    fn admit(
        &self,
        counting: &Counting,
        limits: &[Limit],
        extra: Amounts,
        slots: i64,
        now_ms: i64,
    ) -> Result<(), Denial> {
        admits(|scope| self.scopes.get(scope), counting, limits, (extra, slots), now_ms)
    }
}
