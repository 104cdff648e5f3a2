//! The reconciler's table (design, section 6), a row each, and what acting on a plan leads to.

use super::*;
use crate::ledger::SourcePosition;
use crate::money::Amounts;
use crate::quota::{Book, Correction};
use crate::reservation::{Closing, Command, Decision, PendCause};
use crate::testing::*;

const CEILING_MS: i64 = DAY_MS;

fn patience(policy: CeilingPolicy) -> Patience {
    Patience { ceiling_ms: CEILING_MS, policy }
}

fn after(path: &[Command]) -> Book {
    let mut book = Book::default();
    let mut now_ms = NOON_MS;
    for command in [request(1).command()].iter().chain(path) {
        if matches!(command, Command::Pend { .. }) {
            now_ms += LEASE_MS;
        }
        let reply = book.execute(id(1), command, now_ms);
        assert!(matches!(reply.decision, Decision::Change(_)), "{command:?}: {reply:?}");
    }
    book
}

fn found(number: AttemptNumber) -> LedgerView {
    LedgerView::Found(vec![(number, amounts(1, 1_810, "0.0822"))])
}

#[test]
fn every_row_of_the_table() {
    let (expired, aged, thrice) = (LEASE_MS, CEILING_MS, 3 * CEILING_MS);
    let sent = || start(1, of_attempt(2_000, "0.10"), None);
    let refused = || close_attempt(1, Closing::NotExecuted);
    let timed_out = || close_attempt(1, Closing::MayHaveExecuted);
    let pended = || vec![sent(), Command::Pend { cause: PendCause::Expired }];
    let correct = || Plan::Correct(vec![(1, amounts(1, 1_810, "0.0822"))]);
    let (absent, lags) = (|| LedgerView::Absent, || LedgerView::NotYetKnown);
    let by_person = CeilingPolicy::Person;
    // what is found, its history, its age, the ledger's view, the tenant's policy, and the step
    let rows = [
        ("within its lease", vec![sent()], expired - 1, absent(), by_person, Plan::Wait),
        ("expired, the ledger has the line", vec![sent()], expired, found(1), by_person, correct()),
        ("expired, nothing was sent", vec![], expired, absent(), by_person, Plan::ReleaseInFull),
        ("expired, its mark was lost, the ledger has the line", vec![], expired, found(1), by_person, correct()),
        ("expired, the provider refused", vec![sent(), refused()], expired, absent(), by_person, Plan::Close),
        (
            "expired, answered",
            vec![sent(), close_attempt(1, executed(9, "0.01"))],
            expired,
            absent(),
            by_person,
            Plan::Close,
        ),
        ("expired, may have executed", vec![sent()], expired, absent(), by_person, Plan::CompleteAndPend),
        ("expired, timed out", vec![sent(), timed_out()], expired, absent(), by_person, Plan::CompleteAndPend),
        ("expired, nothing sent, the projection lags", vec![], expired, lags(), by_person, Plan::Wait),
        ("expired, may have executed, it lags", vec![sent()], expired, lags(), by_person, Plan::Wait),
        ("the same for three ceilings", vec![sent()], thrice, lags(), by_person, Plan::CompleteAndPend),
        ("nothing sent, it lags for three ceilings", vec![], thrice, lags(), by_person, Plan::Wait),
        ("pending, the ledger has the line", pended(), expired, found(1), by_person, correct()),
        ("pending, of age, the ledger has the line", pended(), aged, found(1), by_person, correct()),
        ("pending, nobody knows", pended(), aged - 1, absent(), by_person, Plan::Wait),
        ("pending, older than the ceiling", pended(), aged, absent(), by_person, Plan::Escalate),
        ("the same, by estimate", pended(), aged, absent(), CeilingPolicy::Estimate, Plan::Estimate(vec![1])),
        ("pending, of age, the projection lags", pended(), aged, lags(), by_person, Plan::Wait),
        ("the same, by estimate", pended(), aged, lags(), CeilingPolicy::Estimate, Plan::Wait),
        ("pending, it lags for three ceilings", pended(), thrice, lags(), by_person, Plan::Escalate),
        ("the same, by estimate", pended(), thrice, lags(), CeilingPolicy::Estimate, Plan::Escalate),
        ("escalated already", [pended(), vec![Command::Escalate]].concat(), thrice, absent(), by_person, Plan::Wait),
        ("escalated, it lags", [pended(), vec![Command::Escalate]].concat(), thrice, lags(), by_person, Plan::Wait),
        (
            "settled",
            vec![sent(), close_attempt(1, executed(9, "0.01")), Command::Close],
            thrice,
            absent(),
            by_person,
            Plan::Wait,
        ),
        ("released", vec![Command::Release], thrice, absent(), by_person, Plan::Wait),
    ];
    for (name, history, age_ms, view, policy, expected) in rows {
        let book = after(&history);
        let plan = plan(&book.reservation(id(1)).unwrap(), &view, patience(policy), NOON_MS + age_ms);
        assert_eq!(plan, expected, "{name}");
    }
}

#[test]
fn a_line_that_is_counted_already_is_no_news() {
    let path = [start(1, of_attempt(2_000, "0.10"), None), close_attempt(1, executed(1_810, "0.0822"))];
    let book = after(&path);
    let plan = plan(&book.reservation(id(1)).unwrap(), &found(1), patience(CeilingPolicy::Person), NOON_MS + LEASE_MS);
    assert_eq!(plan, Plan::Close);
}

/// One attempt of two is known: it is corrected first, and then the other one decides.
#[test]
fn a_known_attempt_does_not_close_an_unknown_one() {
    let path = [
        start(1, of_attempt(1_000, "0.05"), None),
        close_attempt(1, Closing::MayHaveExecuted),
        Command::Extend { number: 2, hold: of_attempt(1_000, "0.05"), limits: [].into() },
        start(2, of_attempt(1_000, "0.05"), None),
    ];
    let mut book = after(&path);
    let step = |book: &Book| {
        plan(&book.reservation(id(1)).unwrap(), &found(2), patience(CeilingPolicy::Person), NOON_MS + LEASE_MS)
    };
    let Plan::Correct(totals) = step(&book) else { panic!("{:?}", step(&book)) };
    let (number, total) = totals[0];
    book.execute(id(1), &Command::Correct { number, total }, NOON_MS + LEASE_MS);
    assert_eq!(step(&book), Plan::CompleteAndPend);
    assert_eq!(unknown_attempts(&book.reservation(id(1)).unwrap()), [1]);
}

/// R-7731 of the failure scenarios: the ledger has $0.0822, the gateway died before it told the quota store, which
/// still holds $0.105. Whatever is repeated, the tenant is charged $0.0822 and gets $0.0228 back, once.
#[test]
fn scenario_15_a_crash_between_ledger_and_quota_store() {
    let request = Request { hold: amounts(1, 2_000, "0.105"), ..request(1) };
    let mut book = Book::default();
    book.execute(id(1), &request.command(), NOON_MS);
    book.execute(id(1), &start(1, request.hold, None), NOON_MS);
    let now_ms = NOON_MS + LEASE_MS;
    let total = amounts(1, 1_810, "0.0822");
    let step =
        |book: &Book| plan(&book.reservation(id(1)).unwrap(), &found(1), patience(CeilingPolicy::Person), now_ms);
    let day = |book: &Book| book.counter(&tenant_scope(), windows(NOON_MS, Default::default())[0]);

    assert_eq!(day(&book).held.usd, usd("0.105"));
    assert_eq!(step(&book), Plan::Correct(vec![(1, total)]));
    let created = request.created();
    let correction = Correction {
        reservation: id(1),
        number: 1,
        total,
        amount: total,
        counting: created.counting,
        admitted_at_ms: NOON_MS,
        source: SourcePosition { partition: 0, offset: 3 },
    };
    book.correct(&correction, now_ms);
    assert_eq!(step(&book), Plan::Close);
    book.execute(id(1), &Command::Close, now_ms);
    assert_eq!(step(&book), Plan::Wait);
    // The zombie gateway wakes up and settles too; the sweeper comes again; the corrector comes again.
    for command in [close_attempt(1, executed(1_810, "0.0822")), Command::Close, Command::Release] {
        let _ = book.execute(id(1), &command, now_ms);
    }
    book.correct(&correction, now_ms);
    assert_eq!((day(&book).held, day(&book).charged), (Amounts::ZERO, total));
    assert_eq!(book.reservation(id(1)).unwrap().status(), ReservationStatus::Settled);
}
