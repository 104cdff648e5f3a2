//! The table of the design's section 3: one function a row, one arm a cell.
//!
//! Repeats come first in every row: a command equal to what is recorded is `NoChange`, the same id with other content
//! is a `Conflict` that names the field. The cells hold for first occurrences.

use std::sync::Arc;

use crate::attempt::{Attempt, AttemptNumber, AttemptOutcome, Target};
use crate::money::{Amounts, Charge, Hold};
use crate::quota::{Counting, Denial, Limit};

use super::command::{Closing, Command, Conflict, Decision, Refusal, Reserve};
use super::event::{Event, PendCause, UsageRecord};
use super::{Reservation, ReservationStatus};

/// What a decision must know of the counters: whether more can be held (I2).
pub trait Balances {
    /// `Ok` when every one of `limits` has room for `extra` (and `slots` more slots), otherwise the first that has not.
    fn admit(
        &self,
        counting: &Counting,
        limits: &[Limit],
        extra: Amounts,
        slots: i64,
        now_ms: i64,
    ) -> Result<(), Denial>;
}

/// What `command` comes to in `state`. Pure and total: it reads no clock and changes nothing.
pub fn decide(state: Option<&Reservation>, balances: &impl Balances, command: &Command, now_ms: i64) -> Decision {
    let reservation = match (state, command) {
        (None, Command::Reserve(reserve)) => return admit(reserve, balances, now_ms),
        (None, _) => return Decision::Refused(Refusal::Absent),
        (Some(reservation), _) => reservation,
    };
    match command {
        Command::Reserve(reserve) => repeated_reserve(reservation, reserve),
        Command::StartAttempt { number, hold, target, previous } => {
            start_attempt(reservation, *number, *hold, target, previous.as_ref())
        }
        Command::Correlate { number, provider_id } => correlate(reservation, *number, provider_id),
        Command::Extend { number, hold, limits } => extend(reservation, balances, *number, *hold, limits, now_ms),
        Command::Tighten { number, hold } => tighten(reservation, *number, *hold),
        Command::FreeSlot => free_slot(reservation),
        Command::Renew { until_ms, owner } => renew(reservation, *until_ms, owner),
        Command::CloseAttempt { number, closing } => close_attempt(reservation, *number, closing),
        Command::Close => close(reservation),
        Command::Pend { cause } => pend(reservation, *cause, now_ms),
        Command::Release => release(reservation),
        Command::Escalate => escalate(reservation),
        Command::Correct { number, total } => correct(reservation, *number, *total),
    }
}

fn admit(reserve: &Reserve, balances: &impl Balances, now_ms: i64) -> Decision {
    let asked = &reserve.created;
    if asked.hold.has_negative() {
        return Decision::Refused(Refusal::NegativeAmount);
    }
    if let Err(denial) = balances.admit(&asked.counting, &reserve.limits, asked.hold, 1, now_ms) {
        return Decision::Denied(Box::new(denial));
    }
    let mut created = asked.clone();
    created.admitted_at_ms = now_ms;
    created.due_ms = now_ms.saturating_add(reserve.lease_ms);
    Decision::Change(vec![Event::ReservationCreated(Arc::new(created))])
}

fn repeated_reserve(reservation: &Reservation, reserve: &Reserve) -> Decision {
    if reservation.created.fingerprint == reserve.created.fingerprint {
        Decision::NoChange(reservation.status())
    } else {
        Decision::Conflict(Conflict::Fingerprint)
    }
}

fn start_attempt(
    reservation: &Reservation,
    number: AttemptNumber,
    hold: Hold,
    target: &Arc<Target>,
    previous: Option<&Closing>,
) -> Decision {
    let hold = Amounts { requests: 0, ..hold };
    if let Some(recorded) = reservation.attempt(number) {
        return match (&recorded.target, recorded.started_with == hold) {
            (Some(known), _) if known != target => Decision::Conflict(Conflict::AttemptTarget),
            (_, false) => Decision::Conflict(Conflict::AttemptHold),
            (_, true) => Decision::NoChange(reservation.status()),
        };
    }
    match reservation.status() {
        ReservationStatus::PendingReconciliation | ReservationStatus::Settled | ReservationStatus::Released => {
            return Decision::Refused(Refusal::NotOpen);
        }
        ReservationStatus::Reserved => {}
    }
    if hold.has_negative() {
        return Decision::Refused(Refusal::NegativeAmount);
    }
    if number != reservation.next_attempt() {
        return Decision::Refused(Refusal::AttemptOutOfOrder);
    }
    let mut events = match close_previous(reservation, previous) {
        Ok(events) => events,
        Err(refusal) => return Decision::Refused(refusal),
    };
    let free = free_after(reservation, &events);
    if !hold.beyond(free).is_zero() {
        return Decision::Refused(Refusal::NotCovered);
    }
    events.push(Event::AttemptStarted { number, hold, target: Arc::clone(target) });
    Decision::Change(events)
}

/// The events that close the attempt before, when it is still open.
fn close_previous(reservation: &Reservation, previous: Option<&Closing>) -> Result<Vec<Event>, Refusal> {
    let open = reservation.attempts.last().filter(|attempt| attempt.outcome.is_none());
    match (open, previous) {
        (None, _) => Ok(Vec::with_capacity(1)),
        (Some(_), None) => Err(Refusal::PreviousAttemptOpen),
        (Some(_), Some(closing)) if closing.has_negative() => Err(Refusal::NegativeAmount),
        (Some(attempt), Some(closing)) => Ok(closing_events(reservation, attempt.number, closing)),
    }
}

fn free_after(reservation: &Reservation, events: &[Event]) -> Hold {
    if events.is_empty() {
        return reservation.free;
    }
    let after = events.iter().fold(Some(reservation.clone()), super::apply);
    after.map_or(Amounts::ZERO, |reservation| reservation.free)
}

fn correlate(reservation: &Reservation, number: AttemptNumber, provider_id: &str) -> Decision {
    let Some(attempt) = reservation.attempt(number) else {
        return Decision::Refused(Refusal::UnknownAttempt);
    };
    match &attempt.provider_id {
        Some(known) if known == provider_id => return Decision::NoChange(reservation.status()),
        Some(_) => return Decision::Conflict(Conflict::ProviderId),
        None => {}
    }
    match reservation.status() {
        ReservationStatus::Reserved | ReservationStatus::PendingReconciliation => {
            Decision::Change(vec![Event::AttemptCorrelated { number, provider_id: provider_id.to_owned() }])
        }
        status @ (ReservationStatus::Settled | ReservationStatus::Released) => Decision::NoChange(status),
    }
}

fn extend(
    reservation: &Reservation,
    balances: &impl Balances,
    number: AttemptNumber,
    hold: Hold,
    limits: &[Limit],
    now_ms: i64,
) -> Decision {
    let hold = Amounts { requests: 0, ..hold };
    let was_extended = reservation.extended.iter().any(|(of, _)| *of == number);
    if reservation.attempt(number).is_some() {
        return Decision::NoChange(reservation.status());
    }
    match reservation.status() {
        ReservationStatus::Reserved => {}
        status @ (ReservationStatus::PendingReconciliation
        | ReservationStatus::Settled
        | ReservationStatus::Released)
            if was_extended =>
        {
            return Decision::NoChange(status);
        }
        ReservationStatus::PendingReconciliation | ReservationStatus::Settled | ReservationStatus::Released => {
            return Decision::Refused(Refusal::NotOpen);
        }
    }
    if hold.has_negative() {
        return Decision::Refused(Refusal::NegativeAmount);
    }
    let missing = hold.beyond(reservation.free);
    match (was_extended, missing.is_zero()) {
        (_, true) => Decision::NoChange(reservation.status()),
        (true, false) => Decision::Conflict(Conflict::ExtensionHold),
        (false, false) => match balances.admit(&reservation.created.counting, limits, missing, 0, now_ms) {
            Ok(()) => Decision::Change(vec![Event::ReservationExtended { number, by: missing }]),
            Err(denial) => Decision::Denied(Box::new(denial)),
        },
    }
}

fn tighten(reservation: &Reservation, number: AttemptNumber, bound: Hold) -> Decision {
    let Some(attempt) = reservation.attempt(number) else {
        return Decision::Refused(Refusal::UnknownAttempt);
    };
    match reservation.status() {
        ReservationStatus::Reserved | ReservationStatus::PendingReconciliation => {}
        status @ (ReservationStatus::Settled | ReservationStatus::Released) => return Decision::NoChange(status),
    }
    if bound.has_negative() {
        return Decision::Refused(Refusal::NegativeAmount);
    }
    let hold = attempt.hold.min(Amounts { requests: 0, ..bound });
    if attempt.is_known() || hold == attempt.hold {
        return Decision::NoChange(reservation.status());
    }
    Decision::Change(vec![Event::UsageBounded { number, hold }])
}

fn free_slot(reservation: &Reservation) -> Decision {
    match (reservation.status(), reservation.slot) {
        (ReservationStatus::Reserved, true) => Decision::Change(vec![Event::SlotFreed]),
        (status, _) => Decision::NoChange(status),
    }
}

fn renew(reservation: &Reservation, until_ms: i64, owner: &str) -> Decision {
    let status = reservation.status();
    let is_owner = &*reservation.created.owner == owner;
    match status {
        ReservationStatus::Reserved if !is_owner => Decision::Refused(Refusal::NotOwner),
        ReservationStatus::Reserved if until_ms <= reservation.due_ms => Decision::NoChange(status),
        ReservationStatus::Reserved => Decision::Change(vec![Event::LeaseRenewed { due_ms: until_ms }]),
        ReservationStatus::PendingReconciliation => match (reservation.pended, is_owner) {
            (Some(PendCause::Expired), true) => Decision::Change(vec![Event::ReservationResumed {
                ordinal: reservation.resumes.saturating_add(1),
                due_ms: until_ms,
            }]),
            (Some(PendCause::Expired), false) => Decision::Refused(Refusal::NotOwner),
            (Some(PendCause::UsageUnknown) | None, _) => Decision::Refused(Refusal::NotOpen),
        },
        ReservationStatus::Settled => Decision::NoChange(status),
        ReservationStatus::Released => Decision::Refused(Refusal::NotOpen),
    }
}

fn close_attempt(reservation: &Reservation, number: AttemptNumber, closing: &Closing) -> Decision {
    let Some(attempt) = reservation.attempt(number) else {
        return Decision::Refused(Refusal::UnknownAttempt);
    };
    if closing.has_negative() {
        return Decision::Refused(Refusal::NegativeAmount);
    }
    if !tells_something_new(attempt, closing) {
        return Decision::NoChange(reservation.status());
    }
    let mut events = closing_events(reservation, number, closing);
    if reservation.closed {
        events.extend(final_event(reservation, &events));
    }
    Decision::Change(events)
}

/// Known stays known: a differing usage is for the ledger's ranks, a weaker word is nothing.
const fn tells_something_new(attempt: &Attempt, closing: &Closing) -> bool {
    match (attempt.outcome, closing.outcome()) {
        (None, _) => true,
        (Some(AttemptOutcome::NotExecuted | AttemptOutcome::Executed), _) => false,
        (Some(AttemptOutcome::MayHaveExecuted | AttemptOutcome::ExecutedUsageUnknown), outcome) => {
            // The ledger may have charged it meanwhile; then the usage that comes now is one for its ranks.
            outcome.is_known() && attempt.charge.is_none()
        }
    }
}

fn closing_events(reservation: &Reservation, number: AttemptNumber, closing: &Closing) -> Vec<Event> {
    let closed = Event::AttemptClosed { number, outcome: closing.outcome() };
    match closing {
        Closing::NotExecuted | Closing::MayHaveExecuted | Closing::ExecutedUsageUnknown => vec![closed],
        Closing::Executed(record) => {
            let record =
                Arc::new(UsageRecord { charge: line_charge(reservation, record.charge), ..(**record).clone() });
            vec![Event::UsageRecorded { number, record }, closed]
        }
    }
}

/// The first line of a reservation carries its one request.
fn line_charge(reservation: &Reservation, charge: Charge) -> Charge {
    let requests = if reservation.charged().requests > 0 { 0 } else { reservation.created.hold.requests };
    Amounts { requests, ..charge }
}

/// The event that ends a pending reservation once `events` make its last unknown attempt known.
fn final_event(reservation: &Reservation, events: &[Event]) -> Option<Event> {
    let after = events.iter().fold(Some(reservation.clone()), super::apply)?;
    match after.status() {
        ReservationStatus::Settled => Some(Event::ReservationSettled { charged: after.charged() }),
        ReservationStatus::Released => Some(Event::ReservationReleased),
        ReservationStatus::Reserved | ReservationStatus::PendingReconciliation => None,
    }
}

fn close(reservation: &Reservation) -> Decision {
    match reservation.status() {
        ReservationStatus::Reserved => Decision::Change(vec![closing_event(reservation, PendCause::UsageUnknown)]),
        status @ (ReservationStatus::PendingReconciliation
        | ReservationStatus::Settled
        | ReservationStatus::Released) => Decision::NoChange(status),
    }
}

/// What closing comes to, by what is known of the attempts.
fn closing_event(reservation: &Reservation, cause: PendCause) -> Event {
    if reservation.attempts.iter().any(|attempt| !attempt.is_known()) {
        Event::ReservationPending { cause, ordinal: reservation.resumes }
    } else if reservation.attempts.iter().any(|attempt| attempt.charge.is_some()) {
        Event::ReservationSettled { charged: reservation.charged() }
    } else {
        Event::ReservationReleased
    }
}

fn pend(reservation: &Reservation, cause: PendCause, now_ms: i64) -> Decision {
    match reservation.status() {
        ReservationStatus::Reserved if reservation.attempts.is_empty() => Decision::Refused(Refusal::NothingMarked),
        ReservationStatus::Reserved if !reservation.is_expired(now_ms) => Decision::Refused(Refusal::NotExpired),
        ReservationStatus::Reserved => Decision::Change(vec![closing_event(reservation, cause)]),
        status @ (ReservationStatus::PendingReconciliation
        | ReservationStatus::Settled
        | ReservationStatus::Released) => Decision::NoChange(status),
    }
}

fn release(reservation: &Reservation) -> Decision {
    match reservation.status() {
        ReservationStatus::Reserved if reservation.attempts.is_empty() => {
            Decision::Change(vec![Event::ReservationReleased])
        }
        ReservationStatus::Reserved => Decision::Refused(Refusal::AttemptMarked),
        ReservationStatus::PendingReconciliation => Decision::Refused(Refusal::NotOpen),
        status @ (ReservationStatus::Settled | ReservationStatus::Released) => Decision::NoChange(status),
    }
}

fn escalate(reservation: &Reservation) -> Decision {
    match (reservation.status(), reservation.escalated) {
        (ReservationStatus::Reserved, _) => Decision::Refused(Refusal::StillOpen),
        (ReservationStatus::PendingReconciliation, false) => Decision::Change(vec![Event::ReservationEscalated]),
        (
            status @ (ReservationStatus::PendingReconciliation
            | ReservationStatus::Settled
            | ReservationStatus::Released),
            _,
        ) => Decision::NoChange(status),
    }
}

fn correct(reservation: &Reservation, number: AttemptNumber, total: Charge) -> Decision {
    let recorded = reservation.attempt(number).and_then(|attempt| attempt.charge);
    if recorded == Some(total) {
        return Decision::NoChange(reservation.status());
    }
    Decision::Change(vec![Event::ChargeCorrected { number, total }])
}
