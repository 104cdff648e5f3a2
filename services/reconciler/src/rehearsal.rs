//! What commands will come to, before the store is asked: the events that must be on the log first (I8).
//!
//! The store decides again when it is asked, so a rehearsal may be stale. That is harmless, because an event that came
//! too late finds its fact recorded: position and status are derived from the attempts, not from the order in which two
//! writers spoke.

use std::sync::Arc;

use weir_domain::attempt::{Attempt, AttemptNumber, AttemptOutcome};
use weir_domain::money::Amounts;
use weir_domain::quota::{Counting, Denial, Limit};
use weir_domain::reconcile::LedgerView;
use weir_domain::reservation::{
    Balances, Command, Decision, Event, PendCause, Reservation, UsageRecord, apply, decide,
};
use weir_domain::usage::{Usage, UsageSource};

/// The events that `commands`, in order, make of `reservation` at `now_ms` of the store's clock, for the log.
#[must_use]
pub fn rehearse(reservation: &Reservation, commands: &[Command], now_ms: i64) -> Vec<Event> {
    let (_, events) = play(reservation, commands, now_ms);
    events.into_iter().filter(|event| event.kind().is_some()).collect()
}

/// The state that `commands` leave.
#[must_use]
pub fn after(reservation: &Reservation, commands: &[Command], now_ms: i64) -> Reservation {
    play(reservation, commands, now_ms).0
}

fn play(reservation: &Reservation, commands: &[Command], now_ms: i64) -> (Reservation, Vec<Event>) {
    let mut state = reservation.clone();
    let mut all = Vec::new();
    for command in commands {
        match decide(Some(&state), &TakesNothing, command, now_ms) {
            Decision::Change(events) => {
                state = events.iter().fold(state, |state, event| apply(Some(state.clone()), event).unwrap_or(state));
                all.extend(events);
            }
            Decision::NoChange(_) | Decision::Denied(_) | Decision::Refused(_) | Decision::Conflict(_) => {}
        }
    }
    (state, all)
}

/// No command of the reconciler takes anything from a limit.
struct TakesNothing;

impl Balances for TakesNothing {
    fn admit(&self, _: &Counting, _: &[Limit], _: Amounts, _: i64, _: i64) -> Result<(), Denial> {
        Ok(())
    }
}

/// The events that tell the log what the store's record shows: whoever made the record may have died before they were
/// appended. Most are copies with the ids of the originals, hence harmless.
///
/// A charge is told only where the ledger has no line for it: then it can only come from an attempt that was closed in
/// the same step as the next one was marked. Its meters are lost with the process, the amounts are not.
#[must_use]
pub fn told_again(reservation: &Reservation, ledger: &LedgerView) -> Vec<Event> {
    let mut events = vec![Event::ReservationCreated(Arc::clone(&reservation.created))];
    for attempt in &reservation.attempts {
        events.extend(extension_for(reservation, attempt.number));
        tell_attempt(reservation, attempt, ledger, &mut events);
    }
    let is_marked = |number| reservation.attempt(number).is_some();
    let unused = reservation.extended.iter().filter(|(number, _)| !is_marked(*number));
    events.extend(unused.map(|(number, by)| Event::ReservationExtended { number: *number, by: *by }));
    events.extend((0..reservation.resumes).flat_map(|ordinal| resumption(reservation, ordinal)));
    events
}

/// A pending and its resumption: the fold takes the next pending only behind them.
fn resumption(reservation: &Reservation, ordinal: u16) -> [Event; 2] {
    let due_ms = reservation.due_ms;
    [
        Event::ReservationPending { cause: PendCause::Expired, ordinal },
        Event::ReservationResumed { ordinal: ordinal.saturating_add(1), due_ms },
    ]
}

fn extension_for(reservation: &Reservation, number: AttemptNumber) -> Option<Event> {
    let (_, by) = reservation.extended.iter().find(|(of, _)| *of == number)?;
    Some(Event::ReservationExtended { number, by: *by })
}

fn tell_attempt(reservation: &Reservation, attempt: &Attempt, ledger: &LedgerView, events: &mut Vec<Event>) {
    // An attempt without a target is known from its ledger line alone, so the log has it.
    let Some(target) = &attempt.target else { return };
    let number = attempt.number;
    events.push(Event::AttemptStarted { number, hold: attempt.started_with, target: Arc::clone(target) });
    if let Some(provider_id) = &attempt.provider_id {
        events.push(Event::AttemptCorrelated { number, provider_id: provider_id.clone() });
    }
    if attempt.hold != attempt.started_with {
        events.push(Event::UsageBounded { number, hold: attempt.hold });
    }
    let Some(outcome) = attempt.outcome else { return };
    if outcome == AttemptOutcome::Executed && !has_line(ledger, number) {
        events.extend(charge_of(reservation, attempt));
    }
    events.push(Event::AttemptClosed { number, outcome });
}

fn has_line(ledger: &LedgerView, number: AttemptNumber) -> bool {
    match ledger {
        LedgerView::Found(totals) => totals.iter().any(|(of, _)| *of == number),
        LedgerView::Absent => false,
        // Absence proves nothing, and a usage without meters must not come before the real one.
        LedgerView::NotYetKnown => true,
    }
}

fn charge_of(reservation: &Reservation, attempt: &Attempt) -> Option<Event> {
    let record = UsageRecord {
        usage: Usage::default(),
        source: UsageSource::Response,
        charge: attempt.charge?,
        price_version: reservation.created.price_version.clone(),
        served_tier: None,
        cause: String::new(),
    };
    Some(Event::UsageRecorded { number: attempt.number, record: Arc::new(record) })
}

#[cfg(test)]
#[path = "rehearsal_tests.rs"]
mod tests;
