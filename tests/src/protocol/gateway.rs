//! A gateway and its request, in the steps of `gateway::lifecycle`, `execute` and `record`: between any two of them it
//! may be killed, or sleep for as long as it likes.
//!
//! ```text
//!   arrived ─▶ admitted ─▶ marked ─▶ call ─▶ failed ─▶ (append) ─▶ next ─▶ covered ─▶ marked …
//!                            │         └────▶ ended ─▶ (append) ─▶ told ─▶ gone
//!                            └ (append, beside the call)
//! ```
//!
//! What it may do next is a function of itself, the store and the time, so that each pair is looked at once.

use weir_domain::attempt::AttemptNumber;
use weir_domain::money::Amounts;
use weir_domain::quota::{Book, Counting, Denial, Limit};
use weir_domain::reservation::{Balances, Closing, Command, Decision, Event, PendCause, apply, decide};
use weir_domain::testing::{OWNER, target};

use super::scenario::{Mutation, Scenario};
use super::state::{Fact, Gateway, Stage};
use super::values::{
    BOUND_UNITS, PARTIAL_UNITS, RENEWAL_MS, answered, hold, limits, now_ms, reservation_id, reserve, units,
};

/// One thing that a gateway may do next.
#[derive(Debug)]
pub(super) struct Move {
    pub what: &'static str,
    pub gateway: Gateway,
    /// The store afterwards, when it was asked.
    pub book: Option<Book>,
    /// One append.
    pub events: Vec<Event>,
    /// What became of the call, which only the provider knows.
    pub fact: Option<(AttemptNumber, Fact)>,
    /// A limit was asked for a hold, and gave it.
    pub is_admission: bool,
}

/// What a gateway sees: `book` is `None` while the store is fenced and refuses everything.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sight<'a> {
    pub scenario: &'a Scenario,
    pub request: usize,
    pub gateway: &'a Gateway,
    pub book: Option<&'a Book>,
    pub moment: u8,
}

/// Neither closing nor renewing takes anything from a limit.
struct NoBalances;

impl Balances for NoBalances {
    fn admit(&self, _: &Counting, _: &[Limit], _: Amounts, _: i64, _: i64) -> Result<(), Denial> {
        Ok(())
    }
}

impl Gateway {
    pub(super) const fn at(stage: Stage) -> Self {
        Self { stage, state: None, unwritten: Vec::new(), is_resuming: false }
    }

    fn fold(&mut self, events: &[Event]) {
        for event in events {
            self.state = apply(self.state.take(), event);
            if event.kind().is_some() {
                self.unwritten.push(event.clone());
            }
        }
    }

    pub(super) const fn is_gone(&self) -> bool {
        matches!(self.stage, Stage::Gone)
    }

    /// The attempt that the provider may be called for at any time, whatever the store says by now.
    pub(super) const fn may_call(&self) -> Option<AttemptNumber> {
        match self.stage {
            Stage::Marked(number) => Some(number),
            Stage::Arrived
            | Stage::Admitted
            | Stage::Failed(..)
            | Stage::FailedOver(..)
            | Stage::Next(_)
            | Stage::Covered(_)
            | Stage::Ended(_)
            | Stage::Told(_)
            | Stage::StoreFirst
            | Stage::Gone => None,
        }
    }
}

impl Move {
    fn to(what: &'static str, gateway: Gateway) -> Self {
        Self { what, gateway, book: None, events: Vec::new(), fact: None, is_admission: false }
    }
}

/// The store and the gateway that asks it.
struct Asking {
    gateway: Gateway,
    book: Book,
    request: usize,
    now_ms: i64,
}

impl Asking {
    /// Runs one command in the store, and folds what it changed.
    fn ask(&mut self, command: &Command) -> Decision {
        let reply = self.book.execute(reservation_id(self.request), command, self.now_ms);
        if let Decision::Change(events) = &reply.decision {
            self.gateway.fold(events);
        }
        reply.decision
    }

    /// The same for a command whose events are on the log already.
    fn tell(&mut self, command: &Command) {
        self.book.execute(reservation_id(self.request), command, self.now_ms);
    }
}

fn is_accepted(decision: &Decision) -> bool {
    matches!(decision, Decision::Change(_) | Decision::NoChange(_))
}

impl Sight<'_> {
    pub(super) fn moves(&self) -> Vec<Move> {
        let mut moves: Vec<Move> = self.append_beside().into_iter().chain(self.renew()).collect();
        match &self.gateway.stage {
            Stage::Arrived => moves.push(self.arrive()),
            Stage::Admitted => moves.push(self.mark(1)),
            Stage::Covered(number) => moves.push(self.mark(*number)),
            Stage::Marked(number) => moves.extend(self.call(*number)),
            Stage::Failed(number, closing) => moves.extend(self.after_failure(*number, closing)),
            Stage::FailedOver(number, closing) => moves.push(self.fail_over(*number, closing)),
            Stage::Next(number) => moves.push(self.extend(*number)),
            Stage::Ended(open) => moves.push(self.finalize(open.as_ref())),
            Stage::Told(commands) => moves.push(self.close_store(commands)),
            Stage::StoreFirst => moves.push(self.appending("appends the closing late", Gateway::at(Stage::Gone))),
            Stage::Gone => {}
        }
        moves
    }

    fn now_ms(&self) -> i64 {
        now_ms(self.scenario, self.moment)
    }

    /// The gateway in another stage.
    fn become_(&self, stage: Stage) -> Gateway {
        Gateway { stage, ..self.gateway.clone() }
    }

    /// A step that asks the store; a fenced one refuses, and the gateway goes to `refused`.
    fn asking(&self, what: &'static str, refused: Stage, ask: impl FnOnce(&mut Asking)) -> Move {
        let Some(book) = self.book else { return Move::to(what, self.become_(refused)) };
        let mut asking =
            Asking { gateway: self.gateway.clone(), book: book.clone(), request: self.request, now_ms: self.now_ms() };
        ask(&mut asking);
        Move { book: Some(asking.book), ..Move::to(what, asking.gateway) }
    }

    /// A step that appends everything unwritten, and goes on as `gateway`.
    fn appending(&self, what: &'static str, gateway: Gateway) -> Move {
        Move { events: self.gateway.unwritten.clone(), ..Move::to(what, gateway) }
    }

    fn arrive(&self) -> Move {
        if self.moment > 0 {
            // Who comes later is another run, with windows and clock shifted.
            return Move::to("never comes", Gateway::at(Stage::Gone));
        }
        let mut reserves = self.asking("reserves", Stage::Gone, |asking| {
            let decision = asking.ask(&reserve(self.scenario, self.request));
            asking.gateway.stage = if is_accepted(&decision) { Stage::Admitted } else { Stage::Gone };
        });
        reserves.is_admission = !reserves.gateway.is_gone();
        reserves
    }

    /// The mark. Refused, the gateway stops before the provider.
    fn mark(&self, number: AttemptNumber) -> Move {
        self.asking("marks", Stage::Ended(None), |asking| {
            let command = Command::StartAttempt { number, hold: hold(), target: target("primary"), previous: None };
            let decision = asking.ask(&command);
            asking.gateway.stage = if is_accepted(&decision) { Stage::Marked(number) } else { Stage::Ended(None) };
        })
    }

    /// The append runs beside the call. It is one step: a killed gateway has either made it or not.
    fn append_beside(&self) -> Option<Move> {
        let is_due = self.gateway.may_call().is_some() && !self.gateway.unwritten.is_empty();
        let after = Gateway { unwritten: Vec::new(), ..self.gateway.clone() };
        is_due.then(|| self.appending("appends the mark", after))
    }

    /// Everything that can become of a call.
    fn call(&self, number: AttemptNumber) -> Vec<Move> {
        if self.scenario.durable_first && !self.gateway.unwritten.is_empty() {
            return Vec::new();
        }
        let mut moves = Vec::new();
        let mut add = |what, fact, stage| {
            moves.push(Move { fact: Some((number, fact)), ..Move::to(what, self.become_(stage)) });
        };
        for &bill in self.scenario.bills {
            let ran = ran(bill);
            add("is answered", ran, Stage::Ended(Some((number, Closing::Executed(answered(bill))))));
            if self.scenario.loses_answers {
                add("runs, answer lost", ran, Stage::Failed(number, Closing::MayHaveExecuted));
            }
        }
        if self.scenario.refuses {
            add("is refused", Fact::DidNotRun, Stage::Failed(number, Closing::NotExecuted));
        }
        if self.scenario.loses_calls {
            add("never runs, no answer", Fact::DidNotRun, Stage::Failed(number, Closing::MayHaveExecuted));
        }
        if self.scenario.breaks_streams {
            moves.push(Move { fact: Some((number, ran(BOUND_UNITS))), ..self.break_stream(number) });
        }
        moves
    }

    /// A stream that breaks after it told its input: the hold is tightened, and the bill stays open (I7).
    fn break_stream(&self, number: AttemptNumber) -> Move {
        let closing = match self.scenario.mutation {
            Some(Mutation::PartialBilled) => Closing::Executed(answered(PARTIAL_UNITS)),
            Some(_) | None => Closing::ExecutedUsageUnknown,
        };
        let ended = Stage::Ended(Some((number, closing)));
        self.asking("breaks off", ended.clone(), |asking| {
            asking.ask(&Command::FreeSlot);
            asking.ask(&Command::Tighten { number, hold: units(BOUND_UNITS) });
            asking.gateway.stage = ended;
        })
    }

    /// The next attempt, or the end with an error for the client.
    fn after_failure(&self, number: AttemptNumber, closing: &Closing) -> Vec<Move> {
        let ended = Stage::Ended(Some((number, closing.clone())));
        let mut moves = vec![Move::to("gives up", self.become_(ended))];
        if number < self.scenario.attempts {
            let mut after = self.gateway.clone();
            let command = Command::CloseAttempt { number, closing: closing.clone() };
            if let Decision::Change(events) = decide(after.state.as_ref(), &NoBalances, &command, self.now_ms()) {
                after.fold(&events);
            }
            let events = std::mem::take(&mut after.unwritten);
            after.stage = Stage::FailedOver(number, closing.clone());
            moves.push(Move { events, ..Move::to("appends the failure", after) });
        }
        moves
    }

    fn fail_over(&self, number: AttemptNumber, closing: &Closing) -> Move {
        self.asking("fails over", Stage::Ended(None), |asking| {
            let command = Command::CloseAttempt { number, closing: closing.clone() };
            let reply = asking.book.execute(reservation_id(asking.request), &command, asking.now_ms);
            let goes_on = is_accepted(&reply.decision);
            asking.gateway.stage = if goes_on { Stage::Next(number + 1) } else { Stage::Ended(None) };
        })
    }

    fn extend(&self, number: AttemptNumber) -> Move {
        let free = self.gateway.state.as_ref().map_or(Amounts::ZERO, |state| state.free);
        if hold().beyond(free).is_zero() {
            return Move::to("needs no extension", self.become_(Stage::Covered(number)));
        }
        let mut extends = self.asking("extends", Stage::Ended(None), |asking| {
            let command = Command::Extend { number, hold: hold(), limits: limits(self.scenario) };
            let decision = asking.ask(&command);
            asking.gateway.stage = if is_accepted(&decision) { Stage::Covered(number) } else { Stage::Ended(None) };
        });
        extends.is_admission = matches!(extends.gateway.stage, Stage::Covered(_));
        extends
    }

    /// The log first, then the store (I8).
    fn finalize(&self, open: Option<&(AttemptNumber, Closing)>) -> Move {
        let close = open.map(|(number, closing)| Command::CloseAttempt { number: *number, closing: closing.clone() });
        let commands: Vec<Command> = close.into_iter().chain([Command::Close]).collect();
        let mut after = self.gateway.clone();
        for command in &commands {
            if let Decision::Change(events) = decide(after.state.as_ref(), &NoBalances, command, self.now_ms()) {
                after.fold(&events);
            }
        }
        let events = std::mem::take(&mut after.unwritten);
        if self.scenario.mutation == Some(Mutation::QuotaFirst) {
            return self.asking("closes in the store first", Stage::Ended(None), |asking| {
                commands.iter().for_each(|command| asking.tell(command));
                asking.gateway = Gateway { unwritten: events, ..Gateway::at(Stage::StoreFirst) };
            });
        }
        // From here on only the commands matter.
        Move { events, ..Move::to("appends the closing", Gateway::at(Stage::Told(commands))) }
    }

    /// A fenced store does not take it: the rebuild finds it on the log.
    fn close_store(&self, commands: &[Command]) -> Move {
        self.asking("closes in the store", Stage::Gone, |asking| {
            commands.iter().for_each(|command| asking.tell(command));
            asking.gateway = Gateway::at(Stage::Gone);
        })
    }

    /// A lease that ended is taken back: in the log first, when the sweep has pended it meanwhile.
    fn renew(&self) -> Option<Move> {
        let is_last = usize::from(self.moment) + 1 == self.scenario.moments_ms.len();
        let runs =
            matches!(self.gateway.stage, Stage::Admitted | Stage::Marked(_) | Stage::Failed(..) | Stage::Covered(_));
        if !self.scenario.renews || is_last || !runs {
            return None;
        }
        let found = self.book?.reservation(reservation_id(self.request));
        let command = Command::Renew { until_ms: self.now_ms() + RENEWAL_MS, owner: OWNER.into() };
        let Decision::Change(events) = decide(found.as_deref(), &NoBalances, &command, self.now_ms()) else {
            return None;
        };
        let to_log: Vec<Event> = events.into_iter().filter(|event| event.kind().is_some()).collect();
        if to_log.is_empty() || self.gateway.is_resuming {
            return Some(self.asking("renews", self.gateway.stage.clone(), |asking| {
                asking.tell(&command);
                asking.gateway.is_resuming = false;
            }));
        }
        let mut resuming = Gateway { is_resuming: true, ..self.gateway.clone() };
        for event in &to_log {
            if let Event::ReservationResumed { ordinal, .. } = event {
                let pending = Event::ReservationPending { cause: PendCause::Expired, ordinal: ordinal - 1 };
                resuming.state = apply(apply(resuming.state.take(), &pending), event);
            }
        }
        Some(Move { events: to_log, ..Move::to("appends its resumption", resuming) })
    }
}

fn ran(bill: i64) -> Fact {
    Fact::Ran { bill: i8::try_from(bill).expect("a small bill"), is_reported: false }
}
