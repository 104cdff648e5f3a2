//! Folding one event into the state.
//!
//! Total: whatever comes, in whatever order and however often, gives a state. The first occurrence of a fact counts; a
//! copy at any distance finds its fact recorded and changes nothing. That is what makes redelivery harmless (I13).

use std::sync::Arc;

use crate::attempt::{Attempt, AttemptNumber, AttemptOutcome};
use crate::money::{Amounts, Charge, Hold};

use super::Reservation;
use super::event::{Created, Event, PendCause};

/// The state after `event`. Events of a reservation that was never created change nothing: its records are gone, or
/// never were, and the ledger alone speaks for it.
#[must_use]
pub fn apply(state: Option<Reservation>, event: &Event) -> Option<Reservation> {
    match (state, event) {
        (None, Event::ReservationCreated(created)) => Some(Reservation::admitted(Arc::clone(created))),
        (None, _) => None,
        (Some(mut reservation), event) => {
            reservation.absorb(event);
            Some(reservation)
        }
    }
}

impl Reservation {
    fn admitted(created: Arc<Created>) -> Self {
        let free = Amounts { requests: 0, ..created.hold };
        Self {
            due_ms: created.due_ms,
            created,
            free,
            attempts: Vec::with_capacity(1),
            extended: Vec::new(),
            closed: false,
            pended: None,
            resumes: 0,
            escalated: false,
            slot: true,
            flagged: false,
        }
    }

    /// Takes `event` in; says whether it changed anything.
    pub(crate) fn absorb(&mut self, event: &Event) -> bool {
        match event {
            Event::ReservationCreated(_) => false,
            Event::ReservationExtended { number, by } => self.extend(*number, *by),
            Event::AttemptStarted { number, hold, target } => {
                let is_new = self.attempt(*number).is_none();
                if is_new {
                    self.attempts.push(Attempt::started(*number, *hold, Arc::clone(target)));
                    self.free = Amounts::ZERO;
                }
                is_new
            }
            Event::AttemptCorrelated { number, provider_id } => match self.attempt_mut(*number) {
                Some(attempt) if attempt.provider_id.is_none() => {
                    attempt.provider_id = Some(provider_id.clone());
                    true
                }
                Some(_) | None => false,
            },
            Event::UsageBounded { number, hold } => self.attempt_mut(*number).is_some_and(|attempt| {
                let tightened = attempt.hold.min(*hold);
                set(&mut attempt.hold, tightened)
            }),
            Event::UsageRecorded { number, record } => self.record_first_charge(*number, record.charge),
            Event::AttemptClosed { number, outcome } => self.close_attempt(*number, *outcome),
            Event::ReservationPending { cause, ordinal } => {
                let is_next = *ordinal == self.resumes && !self.closed;
                if is_next {
                    self.pended = Some(*cause);
                    self.end();
                }
                is_next
            }
            Event::ReservationSettled { .. } | Event::ReservationReleased => self.end(),
            Event::ReservationResumed { ordinal, due_ms } => self.resume(*ordinal, *due_ms),
            Event::ReservationEscalated => set(&mut self.escalated, true),
            Event::SlotFreed => set(&mut self.slot, false),
            Event::LeaseRenewed { due_ms } => {
                let due_ms = self.due_ms.max(*due_ms);
                set(&mut self.due_ms, due_ms)
            }
            Event::ChargeCorrected { number, total } => self.correct(*number, *total),
        }
    }

    fn extend(&mut self, number: AttemptNumber, by: Hold) -> bool {
        let is_copy = self.extended.iter().any(|(of, _)| *of == number) || self.attempt(number).is_some();
        let extends = !is_copy && !self.closed;
        if extends {
            self.extended.push((number, by));
            self.free += by;
        }
        extends
    }

    fn resume(&mut self, ordinal: u16, due_ms: i64) -> bool {
        let answers_the_last_pending = ordinal == self.resumes.saturating_add(1);
        // What became known meanwhile has ended it for good.
        let is_pending = self.status() == super::ReservationStatus::PendingReconciliation;
        let resumes = answers_the_last_pending && is_pending && self.pended == Some(PendCause::Expired);
        if resumes {
            self.closed = false;
            self.pended = None;
            self.resumes = ordinal;
            // A slot lives as long as its lease, and the lease lives again.
            self.slot = true;
            self.due_ms = self.due_ms.max(due_ms);
        }
        resumes
    }

    /// The first usage of an attempt charges it; later ones are the ledger's to rank, and come back as corrections.
    fn record_first_charge(&mut self, number: AttemptNumber, charge: Charge) -> bool {
        let is_flagged = self.flag_if_nothing_was_owed(charge);
        match self.attempt_mut(number) {
            Some(attempt) if attempt.charge.is_none() => {
                attempt.charge = Some(charge);
                true
            }
            Some(_) | None => is_flagged,
        }
    }

    fn close_attempt(&mut self, number: AttemptNumber, outcome: AttemptOutcome) -> bool {
        let is_open = !self.closed;
        let Some(attempt) = self.attempt_mut(number) else { return false };
        let learns_something = match attempt.outcome {
            None => true,
            Some(AttemptOutcome::MayHaveExecuted | AttemptOutcome::ExecutedUsageUnknown) => outcome.is_known(),
            Some(AttemptOutcome::NotExecuted | AttemptOutcome::Executed) => false,
        };
        if !learns_something {
            return false;
        }
        attempt.outcome = Some(outcome);
        let hold_serves_the_next = outcome == AttemptOutcome::NotExecuted && attempt.charge.is_none() && is_open;
        if hold_serves_the_next {
            let hold = attempt.hold;
            self.free += hold;
        }
        true
    }

    fn end(&mut self) -> bool {
        // Each of the three, whatever the others come to.
        set(&mut self.closed, true) | set(&mut self.free, Amounts::ZERO) | set(&mut self.slot, false)
    }

    /// A charge on what was Released is right, and somebody should look at it. Says whether the flag is new.
    fn flag_if_nothing_was_owed(&mut self, charge: Charge) -> bool {
        let nothing_was_owed = self.status() == super::ReservationStatus::Released;
        nothing_was_owed && !charge.is_zero() && set(&mut self.flagged, true)
    }

    fn correct(&mut self, number: AttemptNumber, total: Charge) -> bool {
        let is_flagged = self.flag_if_nothing_was_owed(total);
        match self.attempt_mut(number) {
            Some(attempt) => set(&mut attempt.charge, Some(total)) || is_flagged,
            None => {
                self.attempts.push(Attempt::from_ledger(number, total));
                true
            }
        }
    }
}

/// Whether that is another value than before.
fn set<T: PartialEq>(place: &mut T, value: T) -> bool {
    let is_other = *place != value;
    *place = value;
    is_other
}
