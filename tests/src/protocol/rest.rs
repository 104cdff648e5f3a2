//! What must be true: of every state (unknown stays held, nobody is admitted over the budget), and of every world at
//! rest, where nothing more will happen by itself: ledger = what providers ran, counters = ledger + open holds, in the
//! store and in a replay of the log alike.

use weir_domain::attempt::AttemptNumber;
use weir_domain::calendar::Zone;
use weir_domain::money::{Amounts, Charge};
use weir_domain::quota::{Book, Counter};
use weir_domain::reconcile::CeilingPolicy;
use weir_domain::reservation::{Event, Reservation, ReservationStatus};
use weir_domain::testing::{NOON_MS, tenant_scope, windows};

use super::pool::Id;
use super::scenario::ReportsSay;
use super::state::{Fact, State};
use super::sweep::numbers;
use super::values::{BOUND_UNITS, HELD_UNITS, now_ms, patience, reservation_id};
use super::world::{Log, World};

/// What is known and stated: the store lost the mark, and its gateway died before the append was durable.
const LOST_MARK: &str = "residual: executed, and the store lost the only record";
/// Somebody was not waited for.
const NOT_WAITED_FOR: &str = "residual: the rebuild did not wait for everybody";
pub(super) const RESIDUAL: &str = "residual";

impl World {
    /// What is wrong with a state, wherever the run goes on from it: an attempt that ran, of which nobody has said what
    /// it used, is not held at its worst case (I9).
    pub(super) fn wrong_now(&mut self, state: &State) -> Option<&'static str> {
        if state.is_fenced {
            return None;
        }
        for request in 0..self.scenario.requests {
            for number in numbers(self.scenario.attempts) {
                if !matches!(state.facts[request][usize::from(number) - 1], Fact::Ran { .. })
                    || self.heard(state, request, number).is_some()
                {
                    continue;
                }
                if !self.is_held(state.store, request, number) {
                    return Some(self.residual(state, request, number).unwrap_or("may have executed, and is not held"));
                }
            }
        }
        None
    }

    /// Whether the store holds the worst case of an attempt, or has its charge.
    fn is_held(&mut self, store: Id, request: usize, number: AttemptNumber) -> bool {
        let key = ("is held", request, [store, number.into(), 0, 0]);
        if let Some([is_held, _]) = self.steps.get(&key) {
            return *is_held > 0;
        }
        let least = if self.scenario.breaks_streams { BOUND_UNITS } else { HELD_UNITS };
        let book = self.books.get(store);
        let record = book.reservation(reservation_id(request));
        let attempt = record.as_deref().and_then(|record| record.attempt(number));
        let is_held = attempt.is_some_and(|a| a.charge.is_some() || a.held().usd.nanos() >= least);
        self.steps.insert(key, [is_held.into(), 0]);
        is_held
    }

    /// What is wrong with a world at rest.
    pub(super) fn wrong_at_rest(&self, state: &State) -> Option<&'static str> {
        for request in 0..self.scenario.requests {
            for number in numbers(self.scenario.attempts) {
                if let Some(wrong) = self.wrong_attempt(state, request, number) {
                    return Some(wrong);
                }
            }
            if let Some(wrong) = self.wrong_end(state, request) {
                return Some(wrong);
            }
        }
        self.wrong_counters(state)
    }

    fn wrong_attempt(&self, state: &State, request: usize, number: AttemptNumber) -> Option<&'static str> {
        let log = self.log(state.log);
        let total = log.total(reservation_id(request), number).map(|total| total.usd.nanos());
        let said = self.said(log, request, number);
        if total != said {
            return Some("the ledger is not what its ranks make of the log");
        }
        let is_estimate = self.scenario.ceiling == CeilingPolicy::Estimate
            && log.said.iter().all(|(_, _, record)| record.source.is_flagged());
        match (state.facts[request][usize::from(number) - 1], total) {
            (Fact::NotCalled | Fact::DidNotRun, Some(_)) if is_estimate => None,
            (Fact::NotCalled | Fact::DidNotRun, Some(_)) => Some("a ledger line without an execution"),
            (Fact::NotCalled | Fact::DidNotRun, None) => None,
            (Fact::Ran { .. }, None) if log.attempt(request, number).is_none() => {
                Some(self.residual(state, request, number).unwrap_or("executed, and nothing is on record"))
            }
            (Fact::Ran { .. }, None) if self.scenario.reports == ReportsSay::Nothing => None,
            (Fact::Ran { .. }, None) => Some("executed and reported, and no ledger line"),
            (Fact::Ran { .. }, Some(_)) if is_estimate => None,
            (Fact::Ran { bill, .. }, Some(total)) => {
                let bill = i64::from(bill);
                let more = i64::from(self.scenario.reports == ReportsSay::OneMore);
                let is_right = total == bill || total == bill + more;
                (!is_right).then_some("the ledger is not what the provider bills")
            }
        }
    }

    /// Every reservation ends, or waits for a report, held and in time escalated (I11).
    fn wrong_end(&self, state: &State, request: usize) -> Option<&'static str> {
        let store = self.books.get(state.store);
        let in_store = store.reservation(reservation_id(request));
        let on_log = self.log(state.log).stored[request].as_ref().map(|stored| &stored.state);
        let patience = patience(&self.scenario);
        let is_over = now_ms(&self.scenario, state.moment) - NOON_MS >= patience.ceiling_ms;
        match (in_store, on_log) {
            (None, None) => None,
            (Some(record), None) if record.status().is_final() && record.charged().is_zero() => None,
            (Some(record), _) if record.status() == ReservationStatus::Reserved => Some("never ended"),
            (Some(_), None) => Some("ended in the store, and nothing is on the log"),
            (Some(record), Some(on_log)) if record.status() != on_log.status() => {
                Some(if state.was_rebuilt_early { NOT_WAITED_FOR } else { "store and log differ in status" })
            }
            (Some(record), Some(_)) if is_over && is_pending(&record) && !record.escalated => {
                Some("pending behind the ceiling, and nobody was told")
            }
            (Some(_), Some(_)) => None,
            (None, Some(on_log)) if on_log.status().is_final() => None,
            (None, Some(_)) if state.was_rebuilt_early => Some(NOT_WAITED_FOR),
            (None, Some(_)) => Some("open on the log, and not in the store"),
        }
    }

    /// Counters = Σ ledger lines + open holds, in every window, in the store and in a replay (I12, I13).
    fn wrong_counters(&self, state: &State) -> Option<&'static str> {
        let log = self.log(state.log);
        let charged: Charge = log.lines.iter().map(|line| line.amount).sum();
        let open = log.stored.iter().flatten().map(|stored| stored.state.position());
        let (held, pending) = open.fold((Amounts::ZERO, Amounts::ZERO), |(held, pending), position| {
            (held + position.held, pending + position.pending)
        });
        let counter = Counter { charged, held, pending };
        let is_right = |book: &Book| {
            let windows = windows(NOON_MS, Zone::UTC);
            windows.into_iter().all(|window| book.counter(&tenant_scope(), window) == counter)
        };
        if !is_right(&log.book()) {
            return Some("a replay has other counters than the ledger");
        }
        let is_right_in_store = is_right(&self.books.get(state.store));
        match (is_right_in_store, state.was_rebuilt_early) {
            (true, _) => None,
            (false, true) => Some(NOT_WAITED_FOR),
            (false, false) => Some("counters differ from the ledger"),
        }
    }

    /// What the tenant may have to pay, by what providers and the log know, beside one hold more: the budget may not be
    /// passed by it (I2).
    pub(super) fn over_admission(&self, state: &State) -> Option<&'static str> {
        let budget = self.scenario.budget?;
        let mut owed = HELD_UNITS;
        let mut residual = state.was_rebuilt_early.then_some(NOT_WAITED_FOR);
        for request in 0..self.scenario.requests {
            let may_call = self.gateways.get(state.gateways[request]).may_call();
            for number in numbers(self.scenario.attempts) {
                let fact = state.facts[request][usize::from(number) - 1];
                owed += match (self.heard(state, request, number), fact) {
                    (Some(units), _) => units,
                    (None, Fact::Ran { .. }) => {
                        residual = residual.or_else(|| self.residual(state, request, number));
                        HELD_UNITS
                    }
                    (None, Fact::NotCalled) if may_call == Some(number) => HELD_UNITS,
                    (None, Fact::NotCalled | Fact::DidNotRun) => 0,
                };
            }
        }
        (owed > budget).then(|| residual.unwrap_or("admitted over the budget"))
    }

    /// The stated risk that explains why nobody knows of an attempt that ran, if one does.
    fn residual(&self, state: &State, request: usize, number: AttemptNumber) -> Option<&'static str> {
        let is_on_log = self.log(state.log).attempt(request, number).is_some();
        let is_spooled = !self.queues.get(state.spools[request]).is_empty();
        let is_alive = state.gateways[request] != self.gone;
        if state.was_rebuilt_early {
            return Some(NOT_WAITED_FOR);
        }
        let is_lost = state.has_lost_writes && !self.scenario.durable_first;
        (is_lost && !is_on_log && !is_spooled && !is_alive).then_some(LOST_MARK)
    }

    /// What an attempt used, as far as it is said where nothing is lost any more: on the log, or in a spool.
    fn heard(&self, state: &State, request: usize, number: AttemptNumber) -> Option<i64> {
        let on_log = self.log(state.log).total(reservation_id(request), number).map(|total| total.usd.nanos());
        let in_entry = |entry: &Id| self.entries.get(*entry).events.iter().find_map(|event| used_by(event, number));
        on_log.or_else(|| self.queues.get(state.spools[request]).iter().find_map(in_entry))
    }

    /// The rule of ranks once more, in a few words: the first of the highest rank, or the last of it where reports
    /// adjust; a copy says nothing.
    fn said(&self, log: &Log, request: usize, number: AttemptNumber) -> Option<i64> {
        let mut causes = Vec::new();
        let mut best: Option<(u8, i64)> = None;
        for (id, of, record) in &log.said {
            if *id != reservation_id(request) || *of != number || causes.contains(&&record.cause) {
                continue;
            }
            causes.push(&record.cause);
            let (rank, units) = (record.source.rank(), record.charge.usd.nanos());
            best = match best {
                Some((known, _)) if rank > known || (rank == known && self.scenario.adjust_on_mismatch) => {
                    Some((rank, units))
                }
                Some(known) => Some(known),
                None => Some((rank, units)),
            };
        }
        best.map(|(_, units)| units)
    }
}

fn used_by(event: &Event, number: AttemptNumber) -> Option<i64> {
    match event {
        Event::UsageRecorded { number: of, record } if *of == number => Some(record.charge.usd.nanos()),
        _ => None,
    }
}

fn is_pending(reservation: &Reservation) -> bool {
    reservation.status() == ReservationStatus::PendingReconciliation
}
