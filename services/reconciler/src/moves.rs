//! From a plan to what is said and done: events for the log first, then commands for the store (I8, I11).
//!
//! Pure. Every command decides again in the store, and the first that is refused ends the list: the world has moved on,
//! and the next round plans anew.

use std::sync::Arc;

use weir_domain::attempt::{Attempt, AttemptNumber};
use weir_domain::money::{Charge, Hold};
use weir_domain::reconcile::{LedgerView, Plan};
use weir_domain::reservation::{Closing, Command, Event, PendCause, Reservation, ReservationStatus, UsageRecord};
use weir_domain::usage::{Usage, UsageSource};

use crate::rehearsal::{rehearse, told_again};

/// The cause of a usage that the tenant's policy made up after the ceiling.
pub const ESTIMATE_CAUSE: &str = "estimate";

/// One step of the sweep.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Moves {
    /// Durable before the store is asked anything.
    pub log: Vec<Event>,
    /// In order; a refusal ends them.
    pub store: Vec<Command>,
}

/// What `plan` comes to for `reservation`, at `now_ms` of the store's clock.
#[must_use]
pub fn moves(reservation: &Reservation, ledger: &LedgerView, plan: &Plan, now_ms: i64) -> Moves {
    match plan {
        Plan::Wait => Moves::default(),
        Plan::Correct(totals) => correct(reservation, ledger, totals, now_ms),
        Plan::ReleaseInFull => complete(reservation, ledger, vec![Command::Release], now_ms),
        Plan::Close => complete(reservation, ledger, vec![pend()], now_ms),
        Plan::CompleteAndPend => complete(reservation, ledger, pend_and_close(reservation), now_ms),
        Plan::Escalate => said(reservation, vec![Command::Escalate], now_ms),
        Plan::Estimate(numbers) => {
            let estimates = numbers.iter().filter_map(|number| estimate(reservation, *number)).collect();
            said(reservation, estimates, now_ms)
        }
    }
}

/// The lines are on the log; only the store has not heard of them. When they are all that was missing of an expired
/// reservation, it is closed in the same step.
fn correct(reservation: &Reservation, ledger: &LedgerView, totals: &[(AttemptNumber, Charge)], now_ms: i64) -> Moves {
    let mut store: Vec<Command> = totals.iter().map(|&(number, total)| Command::Correct { number, total }).collect();
    let is_known = |attempt: &Attempt| attempt.is_known() || totals.iter().any(|(number, _)| *number == attempt.number);
    match reservation.status() {
        ReservationStatus::Reserved if reservation.attempts.iter().all(is_known) => {
            store.push(pend());
            complete(reservation, ledger, store, now_ms)
        }
        ReservationStatus::Reserved
        | ReservationStatus::PendingReconciliation
        | ReservationStatus::Settled
        | ReservationStatus::Released => Moves { log: Vec::new(), store },
    }
}

/// Pending by expiry is the one closing that looks at the lease again: a late gateway that renewed meanwhile keeps its
/// reservation. Where everything is known it settles or releases, exactly as `Close` would.
const fn pend() -> Command {
    Command::Pend { cause: PendCause::Expired }
}

/// Pends first: when that is refused, a living gateway still runs the attempts, and none of them may be closed.
fn pend_and_close(reservation: &Reservation) -> Vec<Command> {
    let running = reservation.attempts.iter().filter(|attempt| attempt.outcome.is_none());
    let close = |number| Command::CloseAttempt { number, closing: Closing::MayHaveExecuted };
    std::iter::once(pend()).chain(running.map(|attempt| close(attempt.number))).collect()
}

/// The whole record again, then what the commands come to.
fn complete(reservation: &Reservation, ledger: &LedgerView, store: Vec<Command>, now_ms: i64) -> Moves {
    let mut log = told_again(reservation, ledger);
    log.extend(rehearse(reservation, &store, now_ms));
    Moves { log, store }
}

/// A pending reservation is on the log already.
fn said(reservation: &Reservation, store: Vec<Command>, now_ms: i64) -> Moves {
    Moves { log: rehearse(reservation, &store, now_ms), store }
}

/// The worst case as a charge. No meters: nobody counted anything (I7).
fn estimate(reservation: &Reservation, number: AttemptNumber) -> Option<Command> {
    let charge: Hold = reservation.attempt(number)?.hold;
    let record = UsageRecord {
        usage: Usage::default(),
        source: UsageSource::Estimate,
        charge,
        price_version: reservation.created.price_version.clone(),
        served_tier: None,
        cause: ESTIMATE_CAUSE.to_owned(),
    };
    Some(Command::CloseAttempt { number, closing: Closing::Executed(Arc::new(record)) })
}
