//! What a run of commands comes to, decided by the domain before the store is asked.
//!
//! Only three things are the store's to know: its clock, its counters, and whether the record is still the one that was
//! decided on. So a plan assumes that all limits have room and that a lease is over where that matters, says so, and one
//! script compares and applies. What the script refuses is decided again with what it saw.

use std::cell::Cell;
use std::sync::Arc;

use weir_domain::money::Amounts;
use weir_domain::quota::{Counting, Denial, Entry, Limit};
use weir_domain::reservation::{
    Balances, Command, Decision, Event, Reservation, ReservationStatus, Reserve, apply, decide,
};

/// A run of commands that one step can apply.
#[derive(Debug)]
pub(super) struct Plan {
    /// For each command taken: what it comes to, and the status afterwards.
    pub(super) decided: Vec<(Decision, Option<ReservationStatus>)>,
    pub(super) after: Option<Entry>,
    pub(super) changes: bool,
    /// The reservation that the first command asks for, when there was none.
    pub(super) creates: Option<Arc<Reserve>>,
    /// Holds only if the lease has ended by the store's clock.
    pub(super) if_over: bool,
    pub(super) question: Option<Question>,
}

/// What the first command asks of the limits.
#[derive(Debug, Clone)]
pub(super) struct Question {
    pub(super) limits: Arc<[Limit]>,
    pub(super) counting: Counting,
    /// What must fit; `None` when only the standing of the rates is asked.
    pub(super) extra: Option<(Amounts, i64)>,
}

impl Plan {
    /// Takes as many of `commands` as one step can compare and apply: limits are compared before anything of the step is
    /// applied, so a command that asks for room begins a step of its own; a reservation is a step of its own, because its
    /// reply says how the rates stand right after it.
    pub(super) fn of(known: Option<&Entry>, commands: &[Command], now_ms: i64) -> Self {
        let mut plan = Self {
            decided: Vec::with_capacity(commands.len()),
            after: known.cloned(),
            changes: false,
            creates: None,
            if_over: false,
            question: None,
        };
        for command in commands {
            let probe = Probe::default();
            let is_pend = matches!(command, Command::Pend { .. });
            let now_ms = if is_pend { i64::MAX } else { now_ms };
            let state = plan.after.as_ref().map(|entry| &entry.reservation);
            let decision = match plan.after.as_ref().filter(|entry| entry.is_overtaken(command)) {
                Some(entry) => Decision::NoChange(entry.reservation.status()),
                None => decide(state, &probe, command, now_ms),
            };
            let asked = probe.asked.get();
            let stands_alone = is_pend || matches!(command, Command::Reserve(_));
            if !plan.decided.is_empty() && (stands_alone || asked.is_some()) {
                break;
            }
            plan.question = plan.question.take().or_else(|| question(command, state, asked));
            if let Command::Reserve(reserve) = command
                && state.is_none()
                && matches!(decision, Decision::Change(_))
            {
                plan.creates = Some(Arc::clone(reserve));
            }
            plan.take(decision, is_pend);
            if stands_alone {
                break;
            }
        }
        plan
    }

    fn take(&mut self, decision: Decision, is_pend: bool) {
        if let Decision::Change(events) = &decision {
            self.changes = true;
            self.if_over |= is_pend;
            for event in events {
                self.after = recorded(self.after.take(), event);
            }
        }
        let status = self.after.as_ref().map(|entry| entry.reservation.status());
        self.decided.push((decision, status));
    }

    pub(super) fn taken(&self) -> usize {
        self.decided.len()
    }
}

fn question(command: &Command, state: Option<&Reservation>, asked: Option<(Amounts, i64)>) -> Option<Question> {
    match command {
        Command::Reserve(reserve) => Some(Question {
            limits: Arc::clone(&reserve.limits),
            counting: reserve.created.counting.clone(),
            extra: asked,
        }),
        Command::Extend { limits, .. } => Some(Question {
            limits: Arc::clone(limits),
            counting: state?.created.counting.clone(),
            extra: Some(asked?),
        }),
        Command::StartAttempt { .. }
        | Command::Correlate { .. }
        | Command::Tighten { .. }
        | Command::FreeSlot
        | Command::Renew { .. }
        | Command::CloseAttempt { .. }
        | Command::Close
        | Command::Pend { .. }
        | Command::Release
        | Command::Escalate
        | Command::Correct { .. } => None,
    }
}

/// The entry after one event; what the record says beside the reservation stays.
pub(super) fn recorded(entry: Option<Entry>, event: &Event) -> Option<Entry> {
    match entry {
        Some(entry) => apply(Some(entry.reservation), event).map(|reservation| Entry {
            reservation,
            lapsed: entry.lapsed,
            confirmed: entry.confirmed,
            leaving: entry.leaving,
        }),
        None => apply(None, event).map(Entry::new),
    }
}

/// Says yes, and remembers what was asked.
#[derive(Debug, Default)]
struct Probe {
    asked: Cell<Option<(Amounts, i64)>>,
}

impl Balances for Probe {
    fn admit(&self, _: &Counting, _: &[Limit], extra: Amounts, slots: i64, _: i64) -> Result<(), Denial> {
        self.asked.set(Some((extra, slots)));
        Ok(())
    }
}
