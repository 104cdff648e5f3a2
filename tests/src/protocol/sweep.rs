//! The sweep: looks at the store, asks the ledger, plans, appends, tells the store. Between any two of these the world
//! may move on, and the sweep may be killed. Plan and moves are the reconciler's own.

use std::borrow::Cow;
use std::sync::Arc;

use weir_domain::attempt::AttemptNumber;
use weir_domain::ids::ReservationId;
use weir_domain::ledger::LedgerLine;
use weir_domain::money::Amounts;
use weir_domain::quota::Book;
use weir_domain::reconcile::{LedgerView, Plan, plan};
use weir_domain::reservation::{Closing, Command, Decision, Reservation, ReservationStatus};
use weir_ledger::contract::StoredReservation;
use weir_reconciler::moves::{Moves, moves};
use weir_reconciler::projection::{taken_back, totals_of, unheard, untold};
use weir_reconciler::rehearsal::after;

use super::pool::Id;
use super::scenario::Mutation;
use super::state::{Next, State, Step, Work};
use super::values::{now_ms, patience, reservation_id};
use super::world::{Log, World};

impl World {
    /// A look that would come to nothing is left out: it changes nothing.
    pub(super) fn sweep_looks(&mut self, state: &State, request: usize, nexts: &mut Vec<Next>) {
        if state.is_fenced || state.sweep != self.idle {
            return;
        }
        let Some(looked) = self.sees(state, request) else { return };
        let Some(planned) = self.sweep_plan(state, request, looked) else { return };
        if !self.scenario.are_consumers_quick {
            nexts.push(Next::to(Step::of("sweep looks", request), State { sweep: looked, ..*state }));
        } else if !state.is_log_away {
            let (log, sweep) = self.work_appends(state, planned);
            nexts.push(Next::to(Step::of("sweep plans and appends", request), State { log, sweep, ..*state }));
        }
    }

    /// What the sweep would look at: a lease that ended, or what is pending.
    fn sees(&mut self, state: &State, request: usize) -> Option<Id> {
        let key = ("sees", request, [state.store, state.moment.into(), 0, 0]);
        if let Some(known) = self.plans.get(&key) {
            return *known;
        }
        let book = self.books.get(state.store);
        let now_ms = now_ms(&self.scenario, state.moment);
        let is_work = |seen: &Cow<'_, Reservation>| match seen.status() {
            ReservationStatus::Reserved => seen.is_expired(now_ms),
            ReservationStatus::PendingReconciliation => true,
            ReservationStatus::Settled | ReservationStatus::Released => false,
        };
        let seen = book.reservation(reservation_id(request)).filter(is_work);
        let looked =
            seen.map(|seen| self.works.keep_shown(Work::Looked { request, seen: Box::new(seen.into_owned()) }));
        self.plans.insert(key, looked);
        looked
    }

    pub(super) fn sweep_goes_on(&mut self, state: &State, nexts: &mut Vec<Next>) {
        if state.sweep == self.idle {
            return;
        }
        match &*self.works.get(state.sweep) {
            Work::Idle => {}
            Work::Looked { request, .. } => {
                let sweep = self.sweep_plan(state, *request, state.sweep).unwrap_or(self.idle);
                nexts.push(Next::to(Step::of("sweep plans", *request), State { sweep, ..*state }));
            }
            Work::Planned { request, .. } => {
                if !state.is_log_away {
                    let (log, sweep) = self.work_appends(state, state.sweep);
                    nexts.push(Next::to(Step::of("sweep appends", *request), State { log, sweep, ..*state }));
                }
            }
            Work::Appended { request, commands, .. } => {
                let store =
                    if state.is_fenced { state.store } else { self.told(state, *request, commands, state.sweep) };
                let next = State { store, sweep: self.idle, ..*state };
                nexts.push(Next::to(Step::of("sweep tells the store", *request), next));
            }
        }
    }

    /// The log with what is planned behind it, and the work that is left.
    pub(super) fn work_appends(&mut self, state: &State, planned: Id) -> (Id, Id) {
        let work = self.works.get(planned);
        let Work::Planned { request, entry, commands, reports } = &*work else { return (state.log, self.idle) };
        let log = entry.map_or(state.log, |entry| self.append(state.log, entry));
        let key = ("is appended", *request, [planned, 0, 0, 0]);
        let appended = match self.steps.get(&key) {
            Some([appended, _]) => *appended,
            None => {
                let (request, reports) = (*request, *reports);
                self.works.keep_shown(Work::Appended { request, commands: commands.clone(), reports })
            }
        };
        self.steps.insert(key, [appended, 0]);
        (log, appended)
    }

    /// The store after `commands`, of which the first that is refused is the last.
    pub(super) fn told(&mut self, state: &State, request: usize, commands: &[Command], work: Id) -> Id {
        let key = ("is told", request, [state.store, work, state.moment.into(), 0]);
        if let Some([store, _]) = self.steps.get(&key) {
            return *store;
        }
        let mut book = (*self.books.get(state.store)).clone();
        let now_ms = now_ms(&self.scenario, state.moment);
        tell(&mut book, reservation_id(request), commands, now_ms);
        if self.scenario.mutation == Some(Mutation::NaiveExpiry) && commands.last() == Some(&Command::Release) {
            forget_the_mark(&mut book, reservation_id(request), now_ms);
        }
        let store = self.keep_book(book);
        self.steps.insert(key, [store, 0]);
        store
    }

    /// What is to be done about `seen`, or `None` when that is to wait.
    fn sweep_plan(&mut self, state: &State, request: usize, looked: Id) -> Option<Id> {
        let lags = state.built != state.log || !self.are_spools_drained(state);
        let key = ("plans", request, [looked, state.built, state.moment.into(), lags.into()]);
        if let Some(known) = self.plans.get(&key) {
            return *known;
        }
        let work = self.works.get(looked);
        let Work::Looked { seen, .. } = &*work else { return None };
        let now_ms = now_ms(&self.scenario, state.moment);
        let stored = stored(self.log(state.built), request);
        let view = view(stored.as_ref(), lags);
        let mut commands = unheard(seen, stored.as_ref());
        commands.extend(taken_back(seen, stored.as_ref(), &view));
        let informed = after(seen, &commands, now_ms);
        let mut plan = plan(&informed, &view, patience(&self.scenario), now_ms);
        if self.scenario.mutation == Some(Mutation::NaiveExpiry) && plan == Plan::CompleteAndPend && stored.is_none() {
            plan = Plan::ReleaseInFull;
        }
        let mut events = untold(&informed, stored.as_ref(), &view);
        // What one of the two has not heard is told it even when there is nothing to plan.
        let is_news = plan != Plan::Wait || !commands.is_empty() || !events.is_empty();
        let planned = is_news.then(|| {
            let Moves { log, store } = moves(&informed, &view, &plan, now_ms);
            events.extend(log);
            commands.extend(store);
            let events = if self.scenario.mutation == Some(Mutation::NaiveExpiry) && plan == Plan::ReleaseInFull {
                Vec::new()
            } else {
                events
            };
            let entry = (!events.is_empty()).then(|| self.keep_entry(request, events, now_ms));
            self.works.keep_shown(Work::Planned { request, entry, commands, reports: None })
        });
        self.plans.insert(key, planned);
        planned
    }
}

fn tell(book: &mut Book, id: ReservationId, commands: &[Command], now_ms: i64) {
    for command in commands {
        match book.execute(id, command, now_ms).decision {
            Decision::Change(_) | Decision::NoChange(_) => {}
            Decision::Refused(_) | Decision::Denied(_) | Decision::Conflict(_) => return,
        }
    }
}

/// The mutation: what expired is taken as never sent.
fn forget_the_mark(book: &mut Book, id: ReservationId, now_ms: i64) {
    let attempts = book.reservation(id).map(|reservation| reservation.attempts.clone()).unwrap_or_default();
    for attempt in attempts {
        let never = Command::CloseAttempt { number: attempt.number, closing: Closing::NotExecuted };
        book.execute(id, &never, now_ms);
    }
    book.execute(id, &Command::Close, now_ms);
}

fn view(stored: Option<&StoredReservation>, lags: bool) -> LedgerView {
    if lags {
        return LedgerView::NotYetKnown;
    }
    let totals = stored.map(|stored| totals_of(&stored.lines)).unwrap_or_default();
    if totals.is_empty() { LedgerView::Absent } else { LedgerView::Found(totals) }
}

/// A reservation as the ledger's store gives it.
pub(super) fn stored(log: &Log, request: usize) -> Option<StoredReservation> {
    let state = &log.stored[request].as_ref()?.state;
    let id = reservation_id(request);
    let mut lines: Vec<LedgerLine> = log.lines.iter().filter(|line| line.key.reservation == id).cloned().collect();
    lines.sort_by_key(|line| line.key);
    Some(StoredReservation {
        created: Arc::clone(&state.created),
        status: state.status(),
        status_since_ms: 0,
        due_ms: state.due_ms,
        held: Amounts::ZERO,
        escalated: state.escalated,
        flagged: state.flagged,
        attempts: state.attempts.clone(),
        events: Vec::new(),
        lines,
    })
}

/// Attempts of a request that a search can have.
pub(super) fn numbers(attempts: u16) -> impl Iterator<Item = AttemptNumber> {
    1..=attempts
}
