//! What goes wrong, and what the world does about it by itself: time, the log that comes back, spools that are
//! forwarded, a store that fails over and is rebuilt.

use weir_domain::quota::Book;
use weir_domain::reconcile::LedgerView;
use weir_domain::reservation::Reservation;
use weir_reconciler::rehearsal::told_again;

use super::pool::Id;
use super::scenario::{Faults, Mutation};
use super::state::{Next, Parked, State, Step};
use super::values::{RENEWAL_MS, now_ms, request_of, reservation_id};
use super::world::World;

impl World {
    /// What happens by itself, sooner or later.
    pub(super) fn world_turns(&mut self, state: &State, nexts: &mut Vec<Next>) {
        let is_last = self.is_last(state);
        if !is_last && !state.is_fenced {
            nexts.push(Next::to(Step::any("time passes"), State { moment: state.moment + 1, ..*state }));
        }
        if state.is_log_away {
            nexts.push(Next::to(Step::any("log is back"), State { is_log_away: false, ..*state }));
        }
        for request in 0..self.scenario.requests {
            let waiting = self.queues.get(state.spools[request]);
            if let (Some((first, rest)), false) = (waiting.split_first(), state.is_log_away) {
                let mut next = State { log: self.append(state.log, *first), ..*state };
                next.spools[request] = self.queues.keep_shown(rest.to_vec());
                nexts.push(Next::to(Step::of("spool is forwarded", request), next));
            }
        }
        if state.is_fenced && !state.is_log_away && self.are_spools_drained(state) {
            let store = self.rebuilt(state, true);
            let next = State { store, replica: store, is_fenced: false, ..*state };
            nexts.push(Next::to(Step::any("store is rebuilt"), next));
        }
    }

    pub(super) fn are_spools_drained(&self, state: &State) -> bool {
        state.spools.iter().all(|spool| self.queues.get(*spool).is_empty())
    }

    fn is_last(&self, state: &State) -> bool {
        usize::from(state.moment) + 1 == self.scenario.moments_ms.len()
    }

    pub(super) fn faults(&mut self, state: &State, nexts: &mut Vec<Next>) {
        self.kills(state, nexts);
        self.store_fails_over(state, nexts);
        self.log_repeats(state, nexts);
        self.corrector_stumbles(state, nexts);
    }

    fn kills(&mut self, state: &State, nexts: &mut Vec<Next>) {
        let Faults { kills, consumer_kills, .. } = state.left;
        for request in 0..self.scenario.requests {
            if kills > 0 && state.gateways[request] != self.gone {
                let mut next = *state;
                next.gateways[request] = self.gone;
                next.left.kills -= 1;
                nexts.push(Next::to(Step::fault("is killed", Some(request)), next));
            }
        }
        if consumer_kills == 0 {
            return;
        }
        let idle = self.idle;
        let left = Faults { consumer_kills: consumer_kills - 1, ..state.left };
        if state.sweep != idle {
            nexts.push(Next::to(Step::fault("sweep is killed", None), State { sweep: idle, left, ..*state }));
        }
        if state.reports != idle {
            nexts.push(Next::to(Step::fault("reports are killed", None), State { reports: idle, left, ..*state }));
        }
    }

    fn store_fails_over(&mut self, state: &State, nexts: &mut Vec<Next>) {
        let Faults { rollbacks, absences, .. } = state.left;
        if rollbacks > 0 && !state.is_fenced {
            nexts.push(Next::to(Step::fault("replica catches up", None), State { replica: state.store, ..*state }));
        }
        // The rebuilt leases must be able to end within the run.
        if rollbacks > 0 && !state.is_fenced && !self.is_last(state) && state.replica != state.store {
            let is_fenced = self.scenario.mutation != Some(Mutation::NoFence);
            let left = Faults { rollbacks: rollbacks - 1, ..state.left };
            let next = State { store: state.replica, is_fenced, left, has_lost_writes: true, ..*state };
            nexts.push(Next::to(Step::fault("store fails over", None), next));
        }
        if absences > 0 && state.is_fenced {
            let store = self.rebuilt(state, false);
            let left = Faults { absences: absences - 1, ..state.left };
            let next = State { store, replica: store, is_fenced: false, left, was_rebuilt_early: true, ..*state };
            nexts.push(Next::to(Step::fault("store is rebuilt without absentees", None), next));
        }
    }

    fn log_repeats(&mut self, state: &State, nexts: &mut Vec<Next>) {
        let Faults { copies, outages, .. } = state.left;
        if outages > 0 && !state.is_log_away {
            let left = Faults { outages: outages - 1, ..state.left };
            nexts.push(Next::to(Step::fault("log is away", None), State { is_log_away: true, left, ..*state }));
        }
        if copies == 0 || state.is_log_away {
            return;
        }
        let mut entries = self.entries_of(state.log);
        entries.sort_unstable();
        entries.dedup();
        for entry in entries {
            let left = Faults { copies: copies - 1, ..state.left };
            let request = request_of(self.entries.get(entry).id);
            let next = State { log: self.append(state.log, entry), left, ..*state };
            nexts.push(Next::to(Step::fault("an append comes again", Some(request)), next));
        }
    }

    fn corrector_stumbles(&mut self, state: &State, nexts: &mut Vec<Next>) {
        let Faults { rewinds, parks, .. } = state.left;
        if state.parked.is_some() {
            return;
        }
        if rewinds > 0 {
            let left = Faults { rewinds: rewinds - 1, ..state.left };
            for corrected in 0..state.corrected {
                let next = State { corrected, left, ..*state };
                nexts.push(Next::to(Step::fault("corrector reads again", None), next));
            }
        }
        if parks > 0 && usize::from(state.corrected) < self.log(state.built).lines.len() {
            let line = self.line(state, state.corrected);
            let request = u8::try_from(request_of(line.key.reservation)).expect("one of two");
            let parked = Some(Parked { request, from: state.corrected });
            let left = Faults { parks: parks - 1, ..state.left };
            let next = State { parked, corrected: state.corrected + 1, left, ..*state };
            nexts.push(Next::to(Step::fault("an entry is parked", Some(request.into())), next));
        }
    }

    /// The store from the log, from what the old one still knows of reservations that the log has never heard of, and
    /// from what living gateways assert again.
    fn rebuilt(&mut self, state: &State, asks_gateways: bool) -> Id {
        let [first, second] = if asks_gateways { state.gateways } else { [self.gone; 2] };
        let key =
            ("is rebuilt", (second as usize) << 8 | usize::from(state.moment), [state.store, state.log, first, 0]);
        if let Some([store, _]) = self.steps.get(&key) {
            return *store;
        }
        let now_ms = now_ms(&self.scenario, state.moment);
        let log = self.log(state.log);
        let mut book = log.book();
        for request in 0..self.scenario.requests {
            let on_log = log.stored[request].as_ref().map(|stored| &stored.state);
            let slot = self.books.get(state.store);
            let old = slot.reservation(reservation_id(request));
            let gateway = self.gateways.get(state.gateways[request]);
            let own = gateway.state.as_ref().filter(|_| asks_gateways);
            for known in old.as_deref().into_iter().chain(own).filter(|known| is_more(known, on_log)) {
                assert_again(&mut book, known, now_ms);
            }
        }
        book.grace(now_ms, RENEWAL_MS);
        let store = self.keep_book(book);
        self.steps.insert(key, [store, 0]);
        store
    }
}

fn assert_again(book: &mut Book, reservation: &Reservation, now_ms: i64) {
    for event in told_again(reservation, &LedgerView::NotYetKnown) {
        book.record(reservation.created.id, &event, now_ms);
    }
}

/// Whether somebody knows of a hold that the log does not: of the reservation, or of an attempt. What has ended on the
/// log has ended, whatever a gateway that slept still believes, but a mark is never forgotten: it may have executed.
fn is_more(known: &Reservation, on_log: Option<&Reservation>) -> bool {
    match on_log {
        Some(on_log) => known.attempts.iter().any(|attempt| on_log.attempt(attempt.number).is_none()),
        None => !known.status().is_final(),
    }
}
