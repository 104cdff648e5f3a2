//! One state of the world: numbers of kept parts, and what is not yet used up.

use weir_domain::attempt::AttemptNumber;
use weir_domain::ids::ReservationId;
use weir_domain::reservation::{Closing, Command, Event, Reservation};

use super::pool::Id;
use super::scenario::Faults;

pub(super) const REQUESTS: usize = 2;
pub(super) const ATTEMPTS: usize = 2;

/// What became of a call, which only the provider knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Fact {
    NotCalled,
    DidNotRun,
    Ran { bill: i8, is_reported: bool },
}

/// A ledger entry that waits for a person: the request, and the first entry of it that was set aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Parked {
    pub request: u8,
    pub from: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct State {
    pub moment: u8,
    pub gateways: [Id; REQUESTS],
    pub facts: [[Fact; ATTEMPTS]; REQUESTS],
    pub store: Id,
    /// What would be left of the store if it failed over now.
    pub replica: Id,
    pub is_fenced: bool,
    /// The log, and how far the builder has read it.
    pub log: Id,
    pub built: Id,
    /// How many ledger entries the corrector has read.
    pub corrected: u8,
    pub parked: Option<Parked>,
    pub sweep: Id,
    pub reports: Id,
    pub spools: [Id; REQUESTS],
    pub is_log_away: bool,
    pub left: Faults,
    /// The store lost writes in this run; a rebuild did not wait for everybody.
    pub has_lost_writes: bool,
    pub was_rebuilt_early: bool,
}

/// How far a gateway is with its request.
#[derive(Debug, Clone)]
pub(super) enum Stage {
    Arrived,
    /// Admitted, nothing marked.
    Admitted,
    /// On record in the store: the provider may be called, or is being called.
    Marked(AttemptNumber),
    /// Ended without an answer for the client.
    Failed(AttemptNumber, Closing),
    /// The failed attempt is closed on the log; the store is to be told.
    FailedOver(AttemptNumber, Closing),
    /// The failed attempt is closed in the store; this one comes next, and may need an extension.
    Next(AttemptNumber),
    /// Covered; to be marked.
    Covered(AttemptNumber),
    /// The answer is there, or there will be none.
    Ended(Option<(AttemptNumber, Closing)>),
    /// The closing events are on the log; the store is to be told.
    Told(Vec<Command>),
    /// Only with the mutation: the store was told first.
    StoreFirst,
    /// Done, or killed.
    Gone,
}

#[derive(Debug, Clone)]
pub(super) struct Gateway {
    pub stage: Stage,
    pub state: Option<Reservation>,
    pub unwritten: Vec<Event>,
    /// A resumption is on the log, and the store does not know yet.
    pub is_resuming: bool,
}

/// One append: events of one reservation, at a time.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub id: ReservationId,
    pub events: Vec<Event>,
    pub at_ms: i64,
}

/// How far a consumer is that first looks, then appends, then tells the store.
#[derive(Debug, Clone)]
pub(super) enum Work {
    Idle,
    /// The sweep has the store's record; the ledger is asked next.
    Looked {
        request: usize,
        seen: Box<Reservation>,
    },
    Planned {
        request: usize,
        entry: Option<Id>,
        commands: Vec<Command>,
        reports: Option<AttemptNumber>,
    },
    Appended {
        request: usize,
        commands: Vec<Command>,
        reports: Option<AttemptNumber>,
    },
}

/// What a step was, for the path that leads to a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Step {
    pub what: &'static str,
    pub request: Option<usize>,
    /// Something that goes wrong: a world at rest may still have it before it.
    pub is_fault: bool,
}

impl Step {
    pub(super) const fn of(what: &'static str, request: usize) -> Self {
        Self { what, request: Some(request), is_fault: false }
    }

    pub(super) const fn any(what: &'static str) -> Self {
        Self { what, request: None, is_fault: false }
    }

    pub(super) const fn fault(what: &'static str, request: Option<usize>) -> Self {
        Self { what, request, is_fault: true }
    }
}

impl std::fmt::Display for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.request {
            Some(request) => write!(f, "{} ({})", self.what, ["first", "second"][request]),
            None => f.write_str(self.what),
        }
    }
}

/// A state that can follow, and what is wrong on the way to it.
#[derive(Debug, Clone)]
pub(super) struct Next {
    pub step: Step,
    pub state: State,
    pub wrong: Option<&'static str>,
}

impl Next {
    pub(super) const fn to(step: Step, state: State) -> Self {
        Self { step, state, wrong: None }
    }
}
