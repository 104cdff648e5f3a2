//! What providers report of what they ran, on its way to log and store: the steps of the reconciler's `Reports`.

use std::borrow::Cow;

use weir_domain::attempt::AttemptNumber;
use weir_domain::ledger::{Context, Posting, ReservationAccount, SourcePosition};
use weir_domain::money::Amounts;
use weir_domain::reservation::{Closing, Command, Event, Reservation, ReservationStatus};
use weir_ledger::contract::StoredReservation;
use weir_reconciler::projection::unheard;
use weir_reconciler::rehearsal::{after, rehearse};

use super::pool::Id;
use super::scenario::ReportsSay;
use super::state::{Fact, Next, State, Step, Work};
use super::sweep::{numbers, stored};
use super::values::{REPORT_CAUSE, now_ms, reported, reservation_id};
use super::world::World;

impl World {
    /// A report comes at any time after the run, once the projection knows the attempt; until then it is set aside.
    pub(super) fn reports_come(&mut self, state: &State, request: usize, nexts: &mut Vec<Next>) {
        if state.is_fenced || state.reports != self.idle {
            return;
        }
        for number in numbers(self.scenario.attempts) {
            let Fact::Ran { bill, is_reported: false } = state.facts[request][usize::from(number) - 1] else {
                continue;
            };
            let more = match self.scenario.reports {
                ReportsSay::Nothing => continue,
                ReportsSay::TheTruth => 0,
                ReportsSay::OneMore => 1,
            };
            if self.log(state.built).attempt(request, number).is_none() {
                continue;
            }
            let planned = self.report(state, request, number, i64::from(bill) + more);
            if !self.scenario.are_consumers_quick {
                nexts.push(Next::to(Step::of("report comes", request), State { reports: planned, ..*state }));
            } else if !state.is_log_away {
                let (log, reports) = self.work_appends(state, planned);
                nexts.push(Next::to(Step::of("report is appended", request), State { log, reports, ..*state }));
            }
        }
    }

    pub(super) fn reports_go_on(&mut self, state: &State, nexts: &mut Vec<Next>) {
        if state.reports == self.idle {
            return;
        }
        match &*self.works.get(state.reports) {
            Work::Idle | Work::Looked { .. } => {}
            Work::Planned { request, .. } => {
                if !state.is_log_away {
                    let (log, reports) = self.work_appends(state, state.reports);
                    nexts.push(Next::to(Step::of("report is appended", *request), State { log, reports, ..*state }));
                }
            }
            Work::Appended { request, commands, reports } => {
                let mut next = State { reports: self.idle, ..*state };
                // A store that does not answer has the report delivered again.
                if !state.is_fenced || commands.is_empty() {
                    next.store = self.told_all(state, *request, commands);
                    if let Some(number) = reports
                        && let Fact::Ran { is_reported, .. } = &mut next.facts[*request][usize::from(*number) - 1]
                    {
                        *is_reported = true;
                    }
                }
                nexts.push(Next::to(Step::of("report reaches the store", *request), next));
            }
        }
    }

    /// `execute_all`: what the store makes of each command is its own.
    fn told_all(&mut self, state: &State, request: usize, commands: &[Command]) -> Id {
        let key = ("is told all", request, [state.store, state.reports, state.moment.into(), 0]);
        if let Some([store, _]) = self.steps.get(&key) {
            return *store;
        }
        let mut book = (*self.books.get(state.store)).clone();
        for command in commands {
            book.execute(reservation_id(request), command, now_ms(&self.scenario, state.moment));
        }
        let store = self.keep_book(book);
        self.steps.insert(key, [store, 0]);
        store
    }

    fn report(&mut self, state: &State, request: usize, number: AttemptNumber, bill: i64) -> Id {
        let of = u32::from(number) << 16 | u32::from(state.moment);
        let key = ("is reported", request, [state.store, state.built, of, bill.unsigned_abs().try_into().unwrap_or(0)]);
        if let Some([planned, _]) = self.steps.get(&key) {
            return *planned;
        }
        let now_ms = now_ms(&self.scenario, state.moment);
        let in_store = self.books.get(state.store).reservation(reservation_id(request)).map(Cow::into_owned);
        let stored = stored(self.log(state.built), request);
        let (events, commands) =
            stored.map_or_else(Default::default, |stored| moves_of(in_store, &stored, number, bill, now_ms));
        let entry = (!events.is_empty()).then(|| self.keep_entry(request, events, now_ms));
        let planned = self.works.keep_shown(Work::Planned { request, entry, commands, reports: Some(number) });
        self.steps.insert(key, [planned, 0]);
        planned
    }
}

/// What a report of `number` says to the log and to the store.
fn moves_of(
    in_store: Option<Reservation>,
    stored: &StoredReservation,
    number: AttemptNumber,
    bill: i64,
    now_ms: i64,
) -> (Vec<Event>, Vec<Command>) {
    let is_posted =
        |line: &weir_domain::ledger::LedgerLine| line.key.attempt == number && line.record.cause == REPORT_CAUSE;
    if stored.lines.iter().any(is_posted) {
        return (Vec::new(), Vec::new());
    }
    let in_store = in_store.filter(|state| state.attempt(number).is_some());
    let mut commands = in_store.as_ref().map(|state| unheard(state, Some(stored))).unwrap_or_default();
    let state = in_store.map_or_else(|| as_stored(stored), |state| after(&state, &commands, now_ms));
    let record = reported(bill);
    let close = Command::CloseAttempt { number, closing: Closing::Executed(std::sync::Arc::clone(&record)) };
    let mut events = rehearse(&state, std::slice::from_ref(&close), now_ms);
    if events.is_empty() {
        let source = SourcePosition { partition: 0, offset: 0 };
        let context = Context { created: &stored.created, target: None, number, recorded_at_ms: 0, source };
        if ReservationAccount::of_lines(&stored.lines).post(context, &record) != Posting::AlreadyPosted {
            events.push(Event::UsageRecorded { number, record });
        }
    } else {
        commands.push(close);
    }
    (events, commands)
}

/// A reservation whose record has left the store: what it holds, it holds no more.
fn as_stored(stored: &StoredReservation) -> Reservation {
    Reservation {
        created: std::sync::Arc::clone(&stored.created),
        free: Amounts::ZERO,
        attempts: stored.attempts.clone(),
        extended: Vec::new(),
        closed: stored.status != ReservationStatus::Reserved,
        pended: None,
        resumes: 0,
        escalated: stored.escalated,
        slot: false,
        due_ms: stored.due_ms,
        flagged: stored.flagged,
    }
}
