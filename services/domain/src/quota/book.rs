//! The book of one tenant: its reservations, counters, slots and revoked keys.
//!
//! This is the quota store as a value. The counters are never computed apart from the reservations: every event moves
//! them by the difference of the reservation's [`Position`] before and after, so that
//! conservation (counters = charges + open holds, I12) cannot be broken by a forgotten case.

mod image;
mod parts;

pub use image::BookImage;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use serde::{Deserialize, Serialize};

use crate::attempt::{AttemptNumber, AttemptOutcome};
use crate::calendar::Window;
use crate::ids::{KeyId, ReservationId};
use crate::ledger::SourcePosition;
use crate::money::{Amounts, Charge};
use crate::reservation::{
    Balances, Command, Conflict, Decision, Event, Position, Reservation, ReservationStatus, Reserve, apply, decide,
};

use super::counters::admits;
use super::{Counter, CounterReading, Counting, Denial, Limit, RateStandings, Scope, ScopeCounters};

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
            None => self.confirmed.push((number, offset)),
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
    scopes: HashMap<Scope, ScopeCounters>,
    entries: HashMap<ReservationId, Entry>,
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
        if let Some(entry) = self.entries.get(&id).filter(|entry| entry.is_overtaken(command)) {
            return self.reply(id, Decision::NoChange(entry.reservation.status()), now_ms);
        }
        self.execute_now(id, command, now_ms)
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
        let state = self.entries.get(&id).map(|entry| &entry.reservation);
        let decision = decide(state, self, command, now_ms);
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
        if self.entries.contains_key(&id) {
            return None;
        }
        if self.revoked.contains(&asked.key) {
            let denial = Box::new(Denial::revoked(&asked.key));
            return Some(self.reply(id, Decision::Denied(denial), now_ms));
        }
        let (holder, expires_at_ms) = asked.idempotency.as_ref().and_then(|r| self.idempotency.get(&r.key_hash))?;
        let entry = self.entries.get(holder)?;
        let status = entry.reservation.status();
        if now_ms >= *expires_at_ms || status == ReservationStatus::Released {
            return None;
        }
        let decision = if entry.reservation.created.fingerprint == asked.fingerprint {
            Decision::NoChange(status)
        } else {
            Decision::Conflict(Conflict::Fingerprint)
        };
        Some(self.reply(*holder, decision, now_ms))
    }

    fn reply(&self, id: ReservationId, decision: Decision, now_ms: i64) -> Reply {
        let status = self.entries.get(&id).map(|entry| entry.reservation.status());
        Reply { reservation: id, decision, status, now_ms, rates: RateStandings::default() }
    }

    /// Applies a ledger line: the ledger always wins. While the record exists the attempt's newest total decides, and a
    /// line older than that is a copy; where it is gone, a line at or below the applied position was counted already.
    pub fn correct(&mut self, correction: &Correction, now_ms: i64) -> Reply {
        self.advance(now_ms);
        let Correction { reservation: id, number, total, source, .. } = *correction;
        let reply = match self.entries.get(&id) {
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
        reply
    }

    fn charge_directly(&mut self, correction: &Correction, now_ms: i64) {
        let charged = Position { charged: correction.amount, ..Position::default() };
        self.shift(&correction.counting, correction.admitted_at_ms, Position::default(), charged, now_ms);
    }

    /// The ledger has a line of the attempt, justified by the event at `source`.
    pub(crate) fn confirm(&mut self, id: ReservationId, number: AttemptNumber, source: SourcePosition, now_ms: i64) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.confirm(number, source.offset);
        }
        self.see_off(id, now_ms);
    }

    /// Records an event that was decided elsewhere: by this book, or by whoever wrote the log that is being folded.
    pub fn record(&mut self, id: ReservationId, event: &Event, now_ms: i64) {
        let entry = self.entries.remove(&id);
        let before = entry.as_ref().map(Entry::position).unwrap_or_default();
        let due_before = entry.as_ref().filter(|e| !e.reservation.closed).map(|e| e.reservation.due_ms);
        let is_new = entry.is_none();
        let (state, confirmed, leaving) = match entry {
            Some(entry) => (Some(entry.reservation), entry.confirmed, entry.leaving),
            None => (None, Vec::new(), false),
        };
        let Some(reservation) = apply(state, event) else { return };
        // A renewal takes the slot again, unless it too is over by now.
        let lapsed = reservation.due_ms <= self.lapsed_until_ms;
        // A copy of a creation must not take the key back from a later reservation.
        if is_new && let Some(record) = &reservation.created.idempotency {
            self.idempotency.insert(record.key_hash, (id, record.expires_at_ms));
        }
        let due_after = (!reservation.closed).then_some(reservation.due_ms);
        let entry = Entry { reservation, lapsed, confirmed, leaving };
        let (counting, admitted_at_ms) =
            (entry.reservation.created.counting.clone(), entry.reservation.created.admitted_at_ms);
        let after = entry.position();
        self.entries.insert(id, entry);
        self.shift(&counting, admitted_at_ms, before, after, now_ms);
        self.move_due(id, due_before, due_after);
        self.see_off(id, now_ms);
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

    /// Moves every counter of `counting` by the difference of two positions.
    fn shift(&mut self, counting: &Counting, admitted_at_ms: i64, before: Position, after: Position, now_ms: i64) {
        if before == after {
            return;
        }
        let charged = after.charged - before.charged;
        let held = after.held - before.held;
        let pending = after.pending - before.pending;
        let (admitted_s, now_s) = (admitted_at_ms.div_euclid(1000), now_ms.div_euclid(1000));
        for scope in counting.scopes.iter() {
            let counters = match self.scopes.get_mut(scope) {
                Some(counters) => counters,
                None => self.scopes.entry(scope.clone()).or_default(),
            };
            for window in counting.windows {
                counters.change(window, charged, held, pending);
            }
            counters.change_rate(admitted_s, now_s, charged + held);
            counters.change_slots(after.slots - before.slots);
            counters.prune(&counting.windows);
        }
    }

    /// Gives back the slots of leases that ended: a dead process must not hold concurrency for longer.
    fn lapse_slots(&mut self, now_ms: i64) {
        if now_ms <= self.lapsed_until_ms {
            return;
        }
        let low = (self.lapsed_until_ms, ReservationId::from_bytes([0; 16]));
        let high = (now_ms, ReservationId::from_bytes([0xff; 16]));
        let ended: Vec<ReservationId> = self.due.range(low..=high).map(|(_, id)| *id).collect();
        self.lapsed_until_ms = now_ms;
        for id in ended {
            let Some(entry) = self.entries.get_mut(&id) else { continue };
            let before = entry.position();
            entry.lapsed = true;
            let after = entry.position();
            let created = std::sync::Arc::clone(&entry.reservation.created);
            self.shift(&created.counting, created.admitted_at_ms, before, after, now_ms);
        }
    }

    fn see_off(&mut self, id: ReservationId, now_ms: i64) {
        if let Some(entry) = self.entries.get_mut(&id)
            && !entry.leaving
            && entry.may_go()
        {
            entry.leaving = true;
            let horizon_ms = now_ms.saturating_add(self.options.retry_horizon_ms);
            // An `Idempotency-Key` answers from the record, so the record lives as long as the key.
            let key_expires_at_ms = entry.reservation.created.idempotency.as_ref().map(|record| record.expires_at_ms);
            self.leaving.insert((key_expires_at_ms.map_or(horizon_ms, |at_ms| at_ms.max(horizon_ms)), id));
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
            let Some(entry) = self.entries.get_mut(&id) else { continue };
            // A late event may have made it pending again in the meantime; then it stays until it may go once more.
            entry.leaving = false;
            if entry.may_go()
                && let Some(entry) = self.entries.remove(&id)
            {
                gone.push(id);
                self.forget_idempotency(&entry.reservation);
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
        self.entries.entry(id).or_insert(Entry { reservation, lapsed: false, confirmed, leaving: false });
        self.see_off(id, now_ms);
    }

    /// Reserved reservations whose lease ended by `now_ms`, oldest first, at most `most`.
    #[must_use]
    pub fn due(&self, now_ms: i64, most: usize) -> Vec<Reservation> {
        let ended = self.due.iter().take_while(|(due_ms, _)| *due_ms <= now_ms).take(most);
        ended.filter_map(|(_, id)| self.entries.get(id)).map(|entry| entry.reservation.clone()).collect()
    }

    #[must_use]
    pub fn reservation(&self, id: ReservationId) -> Option<&Reservation> {
        self.entries.get(&id).map(|entry| &entry.reservation)
    }

    pub fn reservations(&self) -> impl Iterator<Item = &Reservation> {
        self.entries.values().map(|entry| &entry.reservation)
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

    #[must_use]
    pub fn counter(&self, scope: &Scope, window: Window) -> Counter {
        self.scopes.get(scope).map(|counters| counters.counter(window)).unwrap_or_default()
    }

    /// Slots taken by `scope` now.
    #[must_use]
    pub fn slots(&self, scope: &Scope) -> i64 {
        self.scopes.get(scope).map_or(0, ScopeCounters::slots)
    }

    /// Requests and tokens of `scope` in the last minute.
    #[must_use]
    pub fn rate(&self, scope: &Scope, now_ms: i64) -> (i64, i64) {
        self.scopes.get(scope).map_or((0, 0), |counters| counters.rate_total(now_ms.div_euclid(1000)))
    }

    /// Every calendar counter, sorted by scope and window.
    #[must_use]
    pub fn counters(&self) -> Vec<CounterReading> {
        let mut readings: Vec<CounterReading> = self
            .scopes
            .iter()
            .flat_map(|(scope, counters)| {
                counters.windows().map(|(window, counter)| CounterReading { scope: scope.clone(), window, counter })
            })
            .filter(|reading| reading.counter != Counter::default())
            .collect();
        readings.sort_by(|a, b| (&a.scope, a.window).cmp(&(&b.scope, b.window)));
        readings
    }

    /// What is held in all, by open reservations.
    #[must_use]
    pub fn held(&self) -> Amounts {
        self.entries.values().map(|entry| entry.reservation.held()).sum()
    }
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
        admits(&self.scopes, counting, limits, (extra, slots), now_ms)
    }
}
