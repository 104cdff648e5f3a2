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

    fn absorb(&mut self, event: &Event) {
        match event {
            Event::ReservationCreated(_) => {}
            Event::ReservationExtended { number, by } => self.extend(*number, *by),
            Event::AttemptStarted { number, hold, target } => {
                if self.attempt(*number).is_none() {
                    self.attempts.push(Attempt::started(*number, *hold, Arc::clone(target)));
                    self.free = Amounts::ZERO;
                }
            }
            Event::AttemptCorrelated { number, provider_id } => {
                if let Some(attempt) = self.attempt_mut(*number) {
                    attempt.provider_id.get_or_insert_with(|| provider_id.clone());
                }
            }
            Event::UsageBounded { number, hold } => {
                if let Some(attempt) = self.attempt_mut(*number) {
                    attempt.hold = attempt.hold.min(*hold);
                }
            }
            Event::UsageRecorded { number, record } => self.record_first_charge(*number, record.charge),
            Event::AttemptClosed { number, outcome } => self.close_attempt(*number, *outcome),
            Event::ReservationPending { cause, ordinal } => {
                if *ordinal == self.resumes && !self.closed {
                    self.pended = Some(*cause);
                    self.end();
                }
            }
            Event::ReservationSettled { .. } | Event::ReservationReleased => self.end(),
            Event::ReservationResumed { ordinal, due_ms } => {
                let answers_the_last_pending = *ordinal == self.resumes.saturating_add(1);
                // What became known meanwhile has ended it for good.
                let is_pending = self.status() == super::ReservationStatus::PendingReconciliation;
                if answers_the_last_pending && is_pending && self.pended == Some(PendCause::Expired) {
                    self.closed = false;
                    self.pended = None;
                    self.resumes = *ordinal;
                    // A slot lives as long as its lease, and the lease lives again.
                    self.slot = true;
                    self.due_ms = self.due_ms.max(*due_ms);
                }
            }
            Event::ReservationEscalated => self.escalated = true,
            Event::SlotFreed => self.slot = false,
            Event::LeaseRenewed { due_ms } => self.due_ms = self.due_ms.max(*due_ms),
            Event::ChargeCorrected { number, total } => self.correct(*number, *total),
        }
    }

    fn extend(&mut self, number: AttemptNumber, by: Hold) {
        let is_copy = self.extended.iter().any(|(of, _)| *of == number) || self.attempt(number).is_some();
        if !is_copy && !self.closed {
            self.extended.push((number, by));
            self.free += by;
        }
    }

    /// The first usage of an attempt charges it; later ones are the ledger's to rank, and come back as corrections.
    fn record_first_charge(&mut self, number: AttemptNumber, charge: Charge) {
        self.flag_if_nothing_was_owed(charge);
        if let Some(attempt) = self.attempt_mut(number) {
            attempt.charge.get_or_insert(charge);
        }
    }

    fn close_attempt(&mut self, number: AttemptNumber, outcome: AttemptOutcome) {
        let is_open = !self.closed;
        let Some(attempt) = self.attempt_mut(number) else { return };
        let learns_something = match attempt.outcome {
            None => true,
            Some(AttemptOutcome::MayHaveExecuted | AttemptOutcome::ExecutedUsageUnknown) => outcome.is_known(),
            Some(AttemptOutcome::NotExecuted | AttemptOutcome::Executed) => false,
        };
        if !learns_something {
            return;
        }
        attempt.outcome = Some(outcome);
        let hold_serves_the_next = outcome == AttemptOutcome::NotExecuted && attempt.charge.is_none() && is_open;
        if hold_serves_the_next {
            let hold = attempt.hold;
            self.free += hold;
        }
    }

    fn end(&mut self) {
        self.closed = true;
        self.free = Amounts::ZERO;
        self.slot = false;
    }

    /// A charge on what was Released is right, and somebody should look at it.
    fn flag_if_nothing_was_owed(&mut self, charge: Charge) {
        let nothing_was_owed = self.status() == super::ReservationStatus::Released;
        self.flagged |= nothing_was_owed && !charge.is_zero();
    }

    fn correct(&mut self, number: AttemptNumber, total: Charge) {
        self.flag_if_nothing_was_owed(total);
        match self.attempt_mut(number) {
            Some(attempt) => {
                attempt.charge = Some(total);
            }
            None => self.attempts.push(Attempt::from_ledger(number, total)),
        }
    }
}
