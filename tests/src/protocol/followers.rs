//! What follows the log: the builder, and the corrector behind it. Effect and position are one step here; that a killed
//! consumer repeats an effect is the fault "rewinds".

use weir_domain::ledger::LedgerLine;
use weir_domain::money::Amounts;
use weir_domain::quota::{Book, Correction};
use weir_domain::reservation::{Decision, Event};
use weir_domain::testing::correction;

use super::pool::Id;
use super::scenario::Mutation;
use super::state::{Next, Parked, State, Step};
use super::values::{now_ms, request_of, reservation_id};
use super::world::World;

/// Partitions that no position was ever applied of.
const NO_SUCH_PARTITION: i32 = 1000;

impl World {
    pub(super) fn followers(&mut self, state: &State, nexts: &mut Vec<Next>) {
        if state.built != state.log {
            let built = self.following(state.built, state.log);
            nexts.push(Next::to(Step::any("builder reads"), State { built, ..*state }));
        }
        let lines = self.log(state.built).lines.len();
        if usize::from(state.corrected) < lines && !state.is_fenced {
            let next = self.correct_next(state);
            nexts.push(Next::to(Step::any("corrector reads"), next));
        }
        if let Some(parked) = state.parked
            && !state.is_fenced
        {
            let next = self.resolve(state, parked);
            nexts.push(Next::to(Step::any("parked entry is resolved"), next));
        }
    }

    fn correct_next(&mut self, state: &State) -> State {
        let line = self.line(state, state.corrected);
        let mut next = State { corrected: state.corrected + 1, ..*state };
        let waits = state.parked.is_some_and(|parked| usize::from(parked.request) == request_of(line.key.reservation));
        if !waits {
            next.store = self.corrected(state, state.corrected);
        }
        next
    }

    /// The entries that were set aside, in their order.
    fn resolve(&mut self, state: &State, parked: Parked) -> State {
        let mut next = State { parked: None, ..*state };
        for at in parked.from..state.corrected {
            if request_of(self.line(state, at).key.reservation) == usize::from(parked.request) {
                next.store = self.corrected(&next, at);
            }
        }
        next
    }

    pub(super) fn line(&self, state: &State, at: u8) -> LedgerLine {
        self.log(state.built).lines[usize::from(at)].clone()
    }

    /// The store after ledger entry number `at`.
    fn corrected(&mut self, state: &State, at: u8) -> Id {
        let key = ("corrects", usize::from(at), [state.store, state.built, state.moment.into(), 0]);
        if let Some([store, _]) = self.steps.get(&key) {
            return *store;
        }
        let line = self.line(state, at);
        let mut book = (*self.books.get(state.store)).clone();
        let now_ms = now_ms(&self.scenario, state.moment);
        correct(self.scenario.mutation, &mut book, &line, now_ms);
        let store = self.keep_book(book);
        self.steps.insert(key, [store, 0]);
        store
    }
}

/// What the corrector does with one entry, or one of its mutations.
fn correct(mutation: Option<Mutation>, book: &mut Book, line: &LedgerLine, now_ms: i64) {
    let mut entry = correction(line);
    match mutation {
        Some(Mutation::NoSourcePosition) => {
            // Every delivery looks like one that nobody has counted.
            entry.source.partition = NO_SUCH_PARTITION;
            while is_applied(book, &entry, now_ms) {
                entry.source.partition += 1;
            }
        }
        Some(Mutation::PositionBeforeRecord) if is_applied(book, &entry, now_ms) => return,
        Some(
            Mutation::PositionBeforeRecord
            | Mutation::NoFence
            | Mutation::NaiveExpiry
            | Mutation::QuotaFirst
            | Mutation::LastWriter
            | Mutation::CorrectTheWhole
            | Mutation::PartialBilled,
        )
        | None => {}
    }
    book.correct(&entry, now_ms);
    if mutation == Some(Mutation::CorrectTheWhole) {
        let id = line.key.reservation;
        let others = book.reservation(id).map(|reservation| reservation.attempts.clone()).unwrap_or_default();
        for other in others.iter().filter(|other| other.number != line.key.attempt && other.charge.is_some()) {
            book.record(id, &Event::ChargeCorrected { number: other.number, total: Amounts::ZERO }, now_ms);
        }
    }
}

/// Whether the store would take an entry at this position, of a reservation that it does not know, for a copy.
fn is_applied(book: &Book, entry: &Correction, now_ms: i64) -> bool {
    let mut probe = book.clone();
    let of_nobody = Correction { reservation: reservation_id(usize::from(u8::MAX)), ..entry.clone() };
    let reply = probe.correct(&of_nobody, now_ms);
    matches!(reply.decision, Decision::NoChange(_))
}
