//! The parts of all states, each kept once, and the log as a tree: a log is another log and one append more.

use std::borrow::Cow;
use std::rc::Rc;
use std::sync::Arc;

use weir_domain::attempt::{Attempt, AttemptNumber};
use weir_domain::fold::Fold;
use weir_domain::ids::ReservationId;
use weir_domain::ledger::{LedgerLine, Posting, SourcePosition};
use weir_domain::money::Charge;
use weir_domain::quota::Book;
use weir_domain::reservation::{Created, Event, Reservation, UsageRecord};
use weir_domain::usage::UsageSource;

use super::gateway::Sight;
use super::pool::{Id, Pool, QuickMap};
use super::scenario::{Mutation, Scenario};
use super::state::{Entry, Fact, Gateway, Next, REQUESTS, Stage, State, Step, Work};
use super::values::{OPTIONS, now_ms, reservation_id, tenant};

/// A step of a part: which one, and the parts that it depends on.
pub(super) type StepKey = (&'static str, usize, [Id; 4]);

#[derive(Debug)]
pub(super) struct World {
    pub scenario: Scenario,
    pub books: Pool<Book>,
    pub gateways: Pool<Gateway>,
    pub entries: Pool<Entry>,
    pub works: Pool<Work>,
    /// Queues of entries: spools.
    pub queues: Pool<Vec<Id>>,
    pub logs: Vec<Log>,
    /// A gateway that is done or dead, and a consumer at rest.
    pub gone: Id,
    pub idle: Id,
    grown: QuickMap<(Id, Id), Id>,
    /// Steps that were computed before.
    pub steps: QuickMap<StepKey, [Id; 2]>,
    pub plans: QuickMap<StepKey, Option<Id>>,
    moves: QuickMap<StepKey, Rc<[KeptMove]>>,
}

/// What a gateway may do next, in numbers of parts.
#[derive(Debug, Clone, Copy)]
struct KeptMove {
    what: &'static str,
    gateway: Id,
    store: Id,
    entry: Option<Id>,
    fact: Option<(AttemptNumber, Fact)>,
    is_admission: bool,
}

/// A log, and everything that is a function of it: what the builder makes of all of it.
#[derive(Debug, Clone)]
pub(super) struct Log {
    pub parent: Id,
    /// `None` for the empty one.
    pub entry: Option<Id>,
    pub appends: u8,
    events: i64,
    pub fold: Fold,
    pub lines: Vec<LedgerLine>,
    /// What the projection keeps of each reservation, also behind the fold's horizon.
    pub stored: [Option<Stored>; REQUESTS],
    /// Every usage on the log, copies included.
    pub said: Vec<(ReservationId, AttemptNumber, Arc<UsageRecord>)>,
    latest_ms: i64,
}

#[derive(Debug, Clone)]
pub(super) struct Stored {
    pub created: Arc<Created>,
    pub state: Reservation,
}

/// The empty log.
pub(super) const EMPTY: Id = 0;
/// More appends than any run of these scenarios can make: a run that goes on for ever is a mistake of the world.
const MOST_APPENDS: u8 = 24;

impl World {
    pub(super) fn new(scenario: Scenario) -> (Self, State) {
        let mut world = Self {
            scenario,
            books: Pool::default(),
            gateways: Pool::default(),
            entries: Pool::default(),
            works: Pool::default(),
            queues: Pool::default(),
            logs: vec![Log::empty()],
            gone: 0,
            idle: 0,
            grown: QuickMap::default(),
            steps: QuickMap::default(),
            plans: QuickMap::default(),
            moves: QuickMap::default(),
        };
        let store = world.keep_book(Book::new(OPTIONS));
        let arrived = world.gateways.keep_shown(Gateway::at(Stage::Arrived));
        let gone = world.gateways.keep_shown(Gateway::at(Stage::Gone));
        world.gone = gone;
        world.idle = world.works.keep_shown(Work::Idle);
        let second = if world.scenario.requests == REQUESTS { arrived } else { gone };
        let idle = world.idle;
        let nothing = world.queues.keep_shown(Vec::new());
        let state = State {
            moment: 0,
            gateways: [arrived, second],
            facts: [[Fact::NotCalled; 2]; 2],
            store,
            replica: store,
            is_fenced: false,
            log: EMPTY,
            built: EMPTY,
            corrected: 0,
            parked: None,
            sweep: idle,
            reports: idle,
            spools: [nothing; 2],
            is_log_away: false,
            left: world.scenario.faults,
            has_lost_writes: false,
            was_rebuilt_early: false,
        };
        (world, state)
    }

    /// Every state that can follow.
    pub(super) fn nexts(&mut self, state: &State) -> Vec<Next> {
        let mut nexts = Vec::new();
        for request in 0..self.scenario.requests {
            self.gateway_steps(state, request, &mut nexts);
            self.sweep_looks(state, request, &mut nexts);
            self.reports_come(state, request, &mut nexts);
        }
        self.sweep_goes_on(state, &mut nexts);
        self.reports_go_on(state, &mut nexts);
        self.followers(state, &mut nexts);
        self.world_turns(state, &mut nexts);
        self.faults(state, &mut nexts);
        if self.scenario.is_builder_quick {
            nexts.iter_mut().for_each(|next| next.state.built = next.state.log);
        }
        nexts.retain(|next| next.state != *state || next.wrong.is_some());
        nexts
    }

    fn gateway_steps(&mut self, state: &State, request: usize, nexts: &mut Vec<Next>) {
        if state.gateways[request] == self.gone {
            return;
        }
        for kept in self.moves_of(state, request).iter() {
            let mut next = State { store: kept.store, ..*state };
            next.gateways[request] = kept.gateway;
            if let Some((number, fact)) = kept.fact {
                next.facts[request][usize::from(number) - 1] = fact;
            }
            if let Some(entry) = kept.entry {
                self.put(&mut next, request, entry);
            }
            let wrong = if kept.is_admission { self.over_admission(state) } else { None };
            nexts.push(Next { step: Step::of(kept.what, request), state: next, wrong });
        }
    }

    /// What the gateway of `request` may do next; computed once for each gateway, store and moment.
    fn moves_of(&mut self, state: &State, request: usize) -> Rc<[KeptMove]> {
        let fenced = state.is_fenced.into();
        let key = ("moves", request, [state.gateways[request], state.store, state.moment.into(), fenced]);
        if let Some(known) = self.moves.get(&key) {
            return Rc::clone(known);
        }
        let gateway = self.gateways.get(state.gateways[request]);
        let book = self.books.get(state.store);
        let sight = Sight {
            scenario: &self.scenario,
            request,
            gateway: &gateway,
            book: (!state.is_fenced).then_some(&*book),
            moment: state.moment,
        };
        let moves = sight.moves();
        let kept: Rc<[KeptMove]> = moves.into_iter().map(|one| self.keep_move(state, request, one)).collect();
        self.moves.insert(key, Rc::clone(&kept));
        kept
    }

    fn keep_move(&mut self, state: &State, request: usize, one: super::gateway::Move) -> KeptMove {
        let gateway = if one.gateway.is_gone() { self.gone } else { self.gateways.keep_shown(one.gateway) };
        let at_ms = now_ms(&self.scenario, state.moment);
        KeptMove {
            what: one.what,
            gateway,
            store: one.book.map_or(state.store, |book| self.keep_book(book)),
            entry: (!one.events.is_empty()).then(|| self.keep_entry(request, one.events, at_ms)),
            fact: one.fact,
            is_admission: one.is_admission,
        }
    }

    /// An append of a gateway: to its spool when the log is away, or when something waits there already.
    fn put(&mut self, state: &mut State, request: usize, entry: Id) {
        let waiting = self.queues.get(state.spools[request]);
        if state.is_log_away || !waiting.is_empty() {
            let longer = waiting.iter().copied().chain([entry]).collect();
            state.spools[request] = self.queues.keep_shown(longer);
        } else {
            state.log = self.append(state.log, entry);
        }
    }

    pub(super) fn keep_book(&mut self, book: Book) -> Id {
        let name = serde_json::to_vec(&book.image()).expect("an image can be written");
        self.books.keep(name, book)
    }

    pub(super) fn keep_entry(&mut self, request: usize, events: Vec<Event>, at_ms: i64) -> Id {
        self.entries.keep_shown(Entry { id: reservation_id(request), events, at_ms })
    }

    pub(super) fn log(&self, log: Id) -> &Log {
        &self.logs[log as usize]
    }

    /// The log `log` with `entry` behind it.
    pub(super) fn append(&mut self, log: Id, entry: Id) -> Id {
        if let Some(known) = self.grown.get(&(log, entry)) {
            return *known;
        }
        let mut longer = self.log(log).clone();
        (longer.parent, longer.entry) = (log, Some(entry));
        longer.appends += 1;
        assert!(longer.appends <= MOST_APPENDS, "a run that never ends: {}", self.scenario.name);
        let sums = self.scenario.mutation == Some(Mutation::LastWriter);
        let entry_of = self.entries.get(entry);
        for event in &entry_of.events {
            longer.absorb(entry_of.id, event, entry_of.at_ms, sums);
        }
        let next = Id::try_from(self.logs.len()).expect("fewer logs than numbers");
        self.logs.push(longer);
        self.grown.insert((log, entry), next);
        next
    }

    /// The first append of `log` behind its beginning `read`.
    pub(super) fn following(&self, read: Id, log: Id) -> Id {
        let mut at = log;
        while self.log(at).parent != read {
            at = self.log(at).parent;
        }
        at
    }

    /// Every append of `log`, oldest first.
    pub(super) fn entries_of(&self, log: Id) -> Vec<Id> {
        let mut entries = Vec::new();
        let mut at = self.log(log);
        while let Some(entry) = at.entry {
            entries.push(entry);
            at = self.log(at.parent);
        }
        entries.reverse();
        entries
    }
}

impl Log {
    fn empty() -> Self {
        Self {
            parent: EMPTY,
            entry: None,
            appends: 0,
            events: 0,
            fold: Fold::new(OPTIONS),
            lines: Vec::new(),
            stored: [None, None],
            said: Vec::new(),
            latest_ms: i64::MIN,
        }
    }

    /// What the ledger's projection does with one event: it takes back what the fold forgot, folds, and keeps the line.
    fn absorb(&mut self, id: ReservationId, event: &Event, at_ms: i64, sums: bool) {
        let source = SourcePosition { partition: 0, offset: self.events };
        self.events += 1;
        let request = super::values::request_of(id);
        if !self.fold.knows(id)
            && let Some(stored) = &self.stored[request]
        {
            let of_it: Vec<LedgerLine> = self.lines.iter().filter(|line| line.key.reservation == id).cloned().collect();
            self.fold.restore_ended(&stored.created, &stored.state.attempts, &of_it, self.latest_ms);
        }
        let event = if sums { &self.summed(id, event) } else { event };
        if let Event::UsageRecorded { number, record } = event {
            self.said.push((id, *number, Arc::clone(record)));
        }
        let Ok(absorbed) = self.fold.absorb(source, id, event, at_ms) else { return };
        self.latest_ms = self.latest_ms.max(at_ms);
        self.lines.extend(absorbed.posting.and_then(line_of));
        let state = absorbed.ended.or_else(|| self.fold.reservation(id).map(Cow::into_owned));
        if let Some(state) = state {
            self.stored[request] = Some(Stored { created: Arc::clone(&state.created), state });
        }
    }

    /// The mutation: a usage is added to whatever was said before.
    fn summed(&self, id: ReservationId, event: &Event) -> Event {
        let Event::UsageRecorded { number, record } = event else { return event.clone() };
        let Some(so_far) = self.total(id, *number) else { return event.clone() };
        let charge = record.charge + Charge { requests: 0, ..so_far };
        let cause = format!("{}+{}", record.cause, self.events);
        let record = UsageRecord { charge, cause, source: UsageSource::Person, ..(**record).clone() };
        Event::UsageRecorded { number: *number, record: Arc::new(record) }
    }

    /// What the ledger has of an attempt.
    pub(super) fn total(&self, id: ReservationId, number: AttemptNumber) -> Option<Charge> {
        let of_attempt = |line: &&LedgerLine| line.key.reservation == id && line.key.attempt == number;
        self.lines.iter().rev().find(of_attempt).map(|line| line.total)
    }

    /// The attempt as the projection shows it.
    pub(super) fn attempt(&self, request: usize, number: AttemptNumber) -> Option<&Attempt> {
        self.stored[request].as_ref()?.state.attempt(number)
    }

    /// The book of the fold.
    pub(super) fn book(&self) -> Book {
        self.fold.book(&tenant()).cloned().unwrap_or_else(|| Book::new(OPTIONS))
    }
}

fn line_of(posting: Posting) -> Option<LedgerLine> {
    match posting {
        Posting::Posted(line) => Some(*line),
        Posting::Discrepancy { adjustment, .. } => adjustment.map(|line| *line),
        Posting::AlreadyPosted => None,
    }
}
