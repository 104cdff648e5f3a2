//! What the reconciler does with a reservation that did not end by itself: a plan, as data (design section 6).
//!
//! [`plan`] reads what is known and names one step; acting on it is idempotent and may be stale, because every step is
//! a command that decides again. Nothing here is ever released because time went by: only because nothing was sent, or
//! because somebody who knows said so (I9).

#[cfg(test)]
#[path = "reconcile_tests.rs"]
mod tests;

use crate::attempt::AttemptNumber;
use crate::money::Charge;
use crate::reservation::{Reservation, ReservationStatus};

/// What the ledger's projection shows of one reservation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LedgerView {
    /// The running totals of the attempts that have lines.
    Found(Vec<(AttemptNumber, Charge)>),
    /// The projection has read the whole log, and there is no line.
    Absent,
    /// The projection lags, or a gateway's spool is not drained: absence proves nothing.
    NotYetKnown,
}

/// What the tenant wants once the ceiling is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CeilingPolicy {
    /// Escalate; a person decides, and the worst case stays held until then.
    #[default]
    Person,
    /// Charge the worst case as an estimate whose flag stays for ever.
    Estimate,
}

/// Bounds of the reconciler's patience.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// How old a pending reservation may become before it is escalated, ms.
    pub ceiling_ms: i64,
    pub policy: CeilingPolicy,
}

/// How many ceilings a lagging projection or a spool that is not drained is waited for: a volume is found within days,
/// or it is lost.
const CEILINGS_FOR_A_VIEW: i64 = 3;

impl Patience {
    const fn for_a_view_ms(self) -> i64 {
        self.ceiling_ms.saturating_mul(CEILINGS_FOR_A_VIEW)
    }
}

/// One step, to be acted on idempotently.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Plan {
    /// The ledger has the charge of these attempts: correct them.
    Correct(Vec<(AttemptNumber, Charge)>),
    /// Everything is known: close, and the status follows.
    Close,
    /// Nothing was ever sent.
    ReleaseInFull,
    /// Something may have executed: complete the log from the mark, then pend.
    CompleteAndPend,
    Escalate,
    /// Charge the unknown attempts at their worst case, flagged.
    Estimate(Vec<AttemptNumber>),
    Wait,
}

/// Names the step for `reservation`, by what `ledger` shows and the store's clock.
#[must_use]
pub fn plan(reservation: &Reservation, ledger: &LedgerView, patience: Patience, now_ms: i64) -> Plan {
    match reservation.status() {
        ReservationStatus::Settled | ReservationStatus::Released => Plan::Wait,
        ReservationStatus::Reserved if !reservation.is_expired(now_ms) => Plan::Wait,
        ReservationStatus::Reserved => plan_expired(reservation, ledger, patience, now_ms),
        ReservationStatus::PendingReconciliation => plan_pending(reservation, ledger, patience, now_ms),
    }
}

fn plan_expired(reservation: &Reservation, ledger: &LedgerView, patience: Patience, now_ms: i64) -> Plan {
    // Nothing sent and nothing known is no proof that nothing was sent: the mark may be what is missing.
    let may_wait_on = reservation.attempts.is_empty() || age_ms(reservation, now_ms) < patience.for_a_view_ms();
    let found = match ledger {
        LedgerView::NotYetKnown if may_wait_on => return Plan::Wait,
        LedgerView::NotYetKnown => Vec::new(),
        LedgerView::Found(totals) => news(reservation, totals),
        LedgerView::Absent => Vec::new(),
    };
    if !found.is_empty() {
        return Plan::Correct(found);
    }
    if reservation.attempts.is_empty() {
        return Plan::ReleaseInFull;
    }
    if unknown_attempts(reservation).is_empty() { Plan::Close } else { Plan::CompleteAndPend }
}

fn plan_pending(reservation: &Reservation, ledger: &LedgerView, patience: Patience, now_ms: i64) -> Plan {
    if let LedgerView::Found(totals) = ledger {
        let found = news(reservation, totals);
        if !found.is_empty() {
            return Plan::Correct(found);
        }
    }
    let is_lagging = *ledger == LedgerView::NotYetKnown;
    let patience_ms = if is_lagging { patience.for_a_view_ms() } else { patience.ceiling_ms };
    if age_ms(reservation, now_ms) < patience_ms {
        return Plan::Wait;
    }
    match patience.policy {
        // What is not yet known may still be known exactly: that is for a person, not for an estimate.
        CeilingPolicy::Estimate if !is_lagging => Plan::Estimate(unknown_attempts(reservation)),
        CeilingPolicy::Estimate | CeilingPolicy::Person if reservation.escalated => Plan::Wait,
        CeilingPolicy::Estimate | CeilingPolicy::Person => Plan::Escalate,
    }
}

fn age_ms(reservation: &Reservation, now_ms: i64) -> i64 {
    now_ms.saturating_sub(reservation.created.admitted_at_ms)
}

/// Totals that the store does not have yet.
fn news(reservation: &Reservation, totals: &[(AttemptNumber, Charge)]) -> Vec<(AttemptNumber, Charge)> {
    let is_news = |(number, total): &&(AttemptNumber, Charge)| {
        reservation.attempt(*number).and_then(|attempt| attempt.charge) != Some(*total)
    };
    totals.iter().filter(is_news).copied().collect()
}

/// The attempts of which nobody knows what they cost.
#[must_use]
pub fn unknown_attempts(reservation: &Reservation) -> Vec<AttemptNumber> {
    reservation.attempts.iter().filter(|attempt| !attempt.is_known()).map(|attempt| attempt.number).collect()
}
