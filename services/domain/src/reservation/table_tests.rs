//! The table of the design's section 3, one row per cell: what a command comes to in a state, what follows, and where
//! the money is afterwards. First occurrences, then repeats and conflicts.
//!
//! The request holds $0.10 at most; its attempt 1 is sent with a worst case of $0.08 and costs $0.05 by the provider's
//! answer, $0.06 by the ledger. The cells are in `table.txt`, for people; this file says what the words in it do.

use std::borrow::Cow;

use super::*;
use crate::attempt::AttemptNumber;
use crate::ledger::SourcePosition;
use crate::quota::{Book, Correction, DenialReason};
use crate::testing::*;

const CELLS: &str = include_str!("table.txt");

fn worst_case() -> Hold {
    of_attempt(1_600, "0.08")
}

/// The book in a state, and when.
fn book_in(state: &str) -> (Book, i64) {
    let mut book = Book::new(Default::default());
    let may_have = || close_attempt(1, Closing::MayHaveExecuted);
    let path: Vec<Command> = match state {
        "absent" => vec![],
        "opened" => vec![request(1).command()],
        "sent" => vec![request(1).command(), start(1, worst_case(), None)],
        "answered" => vec![request(1).command(), start(1, worst_case(), None), close_attempt(1, executed(900, "0.05"))],
        "pending" => vec![request(1).command(), start(1, worst_case(), None), may_have(), Command::Close],
        "expired" => {
            vec![request(1).command(), start(1, worst_case(), None), Command::Pend { cause: PendCause::Expired }]
        }
        "settled" => vec![
            request(1).command(),
            start(1, worst_case(), None),
            close_attempt(1, executed(900, "0.05")),
            Command::Close,
        ],
        "released" => vec![
            request(1).command(),
            start(1, worst_case(), None),
            close_attempt(1, Closing::NotExecuted),
            Command::Close,
        ],
        other => panic!("no state is called {other}"),
    };
    let mut now_ms = NOON_MS;
    for command in path {
        if matches!(command, Command::Pend { .. }) {
            now_ms += LEASE_MS;
        }
        let reply = book.execute(id(1), &command, now_ms);
        assert!(matches!(reply.decision, Decision::Change(_)), "{state}: {command:?} {reply:?}");
    }
    (book, now_ms)
}

/// A command by its name in the table; two for what is done again.
fn commands(name: &str) -> Vec<Command> {
    let tight = of_attempt(400, "0.03");
    let budget = |dollars| Arc::from([daily_budget(dollars)]);
    let again = |command: Command| vec![command.clone(), command];
    let renew = |owner: &str| Command::Renew { until_ms: NOON_MS + 3 * LEASE_MS, owner: owner.into() };
    let extend =
        |dollars, within| Command::Extend { number: 2, hold: of_attempt(1_600, dollars), limits: budget(within) };
    let correlate = |provider_id: &str| Command::Correlate { number: 1, provider_id: provider_id.to_owned() };
    let pend = || Command::Pend { cause: PendCause::Expired };
    let elsewhere = Command::StartAttempt { number: 1, hold: worst_case(), target: target("other"), previous: None };
    match name {
        "reserve" => vec![request(1).command()],
        "reserve beyond the budget" => vec![Request { limits: vec![daily_budget("0.09")], ..request(1) }.command()],
        "reserve another body" => vec![Request { fingerprint: [8; 32], ..request(1) }.command()],
        "start 1" => vec![start(1, worst_case(), None)],
        "start 1 elsewhere" => vec![elsewhere],
        "start 1 with another hold" => vec![start(1, tight, None)],
        "start 1 beyond the hold" => vec![start(1, of_attempt(1, "0.11"), None)],
        "start 2" => vec![start(2, worst_case(), None)],
        "start 2 after a refusal" => vec![start(2, worst_case(), Some(Closing::NotExecuted))],
        "start 2 after a timeout" => vec![start(2, worst_case(), Some(Closing::MayHaveExecuted))],
        "start 3" => vec![start(3, worst_case(), Some(Closing::NotExecuted))],
        "correlate" => vec![correlate("resp-1")],
        "correlate twice" => again(correlate("resp-1")),
        "correlate two ids" => vec![correlate("resp-1"), correlate("resp-2")],
        "extend" => vec![extend("0.08", "1")],
        "extend twice" => again(extend("0.08", "1")),
        "extend by two amounts" => vec![extend("0.08", "1"), extend("0.09", "1")],
        "extend, close, extend" => vec![extend("0.08", "1"), Command::Close, extend("0.08", "1")],
        "extend beyond the budget" => vec![extend("0.08", "0.15")],
        "tighten" => vec![Command::Tighten { number: 1, hold: tight }],
        "tighten twice" => again(Command::Tighten { number: 1, hold: tight }),
        "tighten upwards" => vec![Command::Tighten { number: 1, hold: of_attempt(9_000, "0.09") }],
        "free slot" => vec![Command::FreeSlot],
        "free slot twice" => again(Command::FreeSlot),
        "renew" => vec![renew(OWNER)],
        "renew twice" => again(renew(OWNER)),
        "renew by another process" => vec![renew("eu/gateway-2/1")],
        "close 1: not executed" => vec![close_attempt(1, Closing::NotExecuted)],
        "close 1: may have executed" => vec![close_attempt(1, Closing::MayHaveExecuted)],
        "close 1: usage unknown" => vec![close_attempt(1, Closing::ExecutedUsageUnknown)],
        "close 1: $0.05" => vec![close_attempt(1, executed(900, "0.05"))],
        "close 1: $0.05 twice" => again(close_attempt(1, executed(900, "0.05"))),
        "close 1: $0.05, then $0.07" => {
            vec![close_attempt(1, executed(900, "0.05")), close_attempt(1, executed(1_000, "0.07"))]
        }
        "close 1: -$0.01" => vec![close_attempt(1, executed(900, "-0.01"))],
        "start 2, 1 used -$0.01" => vec![start(2, Amounts::ZERO, Some(executed(900, "-0.01")))],
        "close" => vec![Command::Close],
        "close twice" => again(Command::Close),
        "pend in its lease" | "pend" => vec![pend()],
        "pend twice" => again(pend()),
        "release" => vec![Command::Release],
        "release twice" => again(Command::Release),
        "escalate" => vec![Command::Escalate],
        "escalate twice" => again(Command::Escalate),
        other => panic!("no command is called {other}"),
    }
}

fn from_ledger(number: AttemptNumber, total: Charge) -> Correction {
    let created = request(1).created();
    Correction {
        reservation: id(1),
        number,
        total,
        amount: total,
        counting: created.counting,
        admitted_at_ms: NOON_MS,
        source: SourcePosition { partition: 0, offset: 7 },
    }
}

fn decision_in_words(decision: &Decision) -> String {
    match decision {
        Decision::Change(events) => events.iter().map(event_in_words).collect::<Vec<_>>().join(" + "),
        Decision::NoChange(_) => "no change".to_owned(),
        Decision::Denied(denial) => match denial.reason {
            DenialReason::ExceedsLimit { .. } => format!("denied for ever: {}", denial.limit.measure),
            DenialReason::Exhausted { .. } => format!("denied: {}", denial.limit.measure),
            DenialReason::Revoked => "denied: revoked".to_owned(),
        },
        Decision::Refused(refusal) => format!("refused: {refusal}"),
        Decision::Conflict(conflict) => format!("conflict: {}", conflict.field()),
    }
}

fn event_in_words(event: &Event) -> String {
    let words = match event.kind() {
        Some(kind) => kind.as_str().trim_start_matches("Reservation"),
        None => match event {
            Event::SlotFreed => "(SlotFreed)",
            Event::LeaseRenewed { .. } => "(LeaseRenewed)",
            _ => "(ChargeCorrected)",
        },
    };
    words.to_owned()
}

/// Runs one row's command and writes the row that comes of it.
fn outcome(name: &str, state: &str) -> String {
    let (mut book, mut now_ms) = book_in(state);
    if name.starts_with("pend") && name != "pend in its lease" {
        now_ms += LEASE_MS;
    }
    let mut decision = Decision::Refused(Refusal::Absent);
    if let Some(number) = name.strip_prefix("ledger: ") {
        let number = number.trim_end_matches(" twice").parse().unwrap();
        for _ in 0..1 + usize::from(name.ends_with("twice")) {
            decision = corrected(&mut book, number, now_ms);
        }
    } else {
        for command in commands(name) {
            decision = executed_alike(&mut book, &command, now_ms);
        }
    }
    let tenant = book.counter(&tenant_scope(), windows(NOON_MS, Default::default())[0]);
    let after = book.reservation(id(1));
    let status = after.map_or("-".to_owned(), |r| {
        let escalated = if r.escalated { ", escalated" } else { "" };
        let flagged = if r.flagged { ", flagged" } else { "" };
        let status = r.status().as_str().trim_end_matches("_reconciliation");
        format!("{status}{escalated}{flagged}")
    });
    let (held, charged) = (tenant.held, tenant.charged);
    let of = |amounts: Amounts| format!("{} ${}", amounts.requests, amounts.usd);
    format!("{name:<28}{state:<10}{:<61}{status:<20}{:<9}{}", decision_in_words(&decision), of(held), of(charged))
}

fn corrected(book: &mut Book, number: AttemptNumber, now_ms: i64) -> Decision {
    book.correct(&from_ledger(number, amounts(i64::from(number == 1), 1_000, "0.06")), now_ms).decision
}

/// Executes `command`, and applies what was decided to the state before: both must come to the same.
fn executed_alike(book: &mut Book, command: &Command, now_ms: i64) -> Decision {
    let before = book.reservation(id(1)).map(Cow::into_owned);
    let decided = decide(before.as_ref(), book, command, now_ms);
    let reply = book.execute(id(1), command, now_ms);
    assert_eq!(reply.decision, decided, "{command:?}");
    let events = if let Decision::Change(events) = &decided { events.as_slice() } else { &[] };
    let applied = events.iter().fold(before, apply);
    assert_eq!(book.reservation(id(1)).as_deref(), applied.as_ref(), "{command:?}");
    assert_eq!(reply.status, applied.map(|r| r.status()), "{command:?}");
    decided
}

#[test]
fn every_cell_of_the_table() {
    let rows = CELLS.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut seen = 0;
    for row in rows {
        let (name, rest) = row.split_at(28);
        let state = rest.split_whitespace().next().unwrap();
        assert_eq!(outcome(name.trim(), state), row);
        seen += 1;
    }
    assert!(seen > 200, "only {seen} cells");
}
