//! The book by name: races for the last unit, denials without a trace, windows, slots, keys, and corrections that come
//! twice, late or in the wrong order. The random runs over all commands are beside the reservation.

use std::collections::BTreeMap;

use super::*;
use crate::calendar::{Calendar, WindowKind};
use crate::ledger::SourcePosition;
use crate::money::{Amounts, Charge, NanoUsd};
use crate::reservation::{Closing, Command, Conflict, Decision, Event, IdempotencyRecord, ReservationStatus};
use crate::testing::*;
use crate::usage::UsageSource;

fn run(book: &mut Book, n: u64, command: &Command, now_ms: i64) -> Decision {
    book.execute(id(n), command, now_ms).decision
}

#[track_caller]
fn change(book: &mut Book, n: u64, command: &Command, now_ms: i64) {
    let decision = run(book, n, command, now_ms);
    assert!(matches!(decision, Decision::Change(_)), "{command:?}: {decision:?}");
}

/// Reserves, sends and ends request `n` at the charge that its provider says.
fn settle(book: &mut Book, request: &Request, n: u64, closing: Closing, now_ms: i64) {
    change(book, n, &request.command(), now_ms);
    change(book, n, &start(1, request.hold, None), now_ms);
    change(book, n, &close_attempt(1, closing), now_ms);
    change(book, n, &Command::Close, now_ms);
}

fn day(book: &Book, at_ms: i64) -> Counter {
    book.counter(&tenant_scope(), windows(at_ms, Default::default())[0])
}

/// How many of `count` requests with `hold` are admitted within `limit`, and what the last denial was.
fn admitted(count: u64, hold: Amounts, limit: &Limit) -> (usize, Option<Denial>) {
    let (mut book, mut admitted, mut last) = (Book::new(BookOptions::default()), 0, None);
    for n in 1..=count {
        let request = Request { hold, limits: vec![limit.clone()], ..request(n) };
        match run(&mut book, n, &request.command(), NOON_MS) {
            Decision::Change(_) => admitted += 1,
            Decision::Denied(denial) => last = Some(*denial),
            other => panic!("{other:?}"),
        }
    }
    (admitted, last)
}

#[test]
fn o49_the_last_unit_goes_to_exactly_the_right_number() {
    let key = |measure, max| Limit { scope: Scope { subject: Subject::Key("vk-1".into()), model: None }, measure, max };
    let (tokens, requests) = (Measure::PerMinute { unit: Unit::Tokens }, Measure::PerMinute { unit: Unit::Requests });
    let cases = [
        ("100 tokens a minute, 5 x 60", 5, amounts(1, 60, "0"), key(tokens, 100), 1, Some(61_000)),
        ("1 request a minute, 50 at once", 50, amounts(1, 60, "0"), key(requests, 1), 1, Some(61_000)),
        ("$0.10, 20 x $0.03", 20, amounts(1, 60, "0.03"), daily_budget("0.10"), 3, None),
        ("2 at the same time, 9 come", 9, amounts(1, 60, "0.03"), key(Measure::Concurrent, 2), 2, Some(1_000)),
    ];
    for (name, count, hold, limit, expected, retry_after_ms) in cases {
        let (admitted, denial) = admitted(count, hold, &limit);
        let denial = denial.unwrap();
        assert_eq!((admitted, &denial.limit), (expected, &limit), "{name}");
        assert_eq!(denial.reason, DenialReason::Exhausted { retry_after_ms }, "{name}");
    }
}

#[test]
fn a_hold_that_no_window_could_ever_admit_is_told_apart() {
    let (admitted, denial) = admitted(1, amounts(1, 60, "0.11"), &daily_budget("0.10"));
    let reason = denial.unwrap().reason;
    assert_eq!((admitted, reason), (0, DenialReason::ExceedsLimit { needed: usd("0.11").nanos() }));
}

#[test]
fn o50_fifty_denials_leave_nothing_behind() {
    let mut book = Book::new(BookOptions::default());
    let limit = |subject, measure, max| Limit { scope: Scope { subject, model: None }, measure, max };
    let spent = Request { limits: vec![daily_budget("1")], hold: amounts(1, 100, "1"), ..request(1) };
    settle(&mut book, &spent, 1, executed(100, "1"), NOON_MS);
    let with_budget = |n, dollars| Request {
        limits: vec![
            limit(Subject::Key("vk-1".into()), Measure::PerMinute { unit: Unit::Requests }, 100),
            limit(Subject::Team("search".into()), Measure::PerMinute { unit: Unit::Tokens }, 1_000),
            limit(Subject::Tenant, Measure::Concurrent, 1),
            daily_budget(dollars),
        ],
        hold: amounts(1, 100, "0.50"),
        ..request(n)
    };
    let before = book.image();
    for n in 2..52 {
        let Decision::Denied(denial) = run(&mut book, n, &with_budget(n, "1").command(), NOON_MS) else {
            panic!("{n}")
        };
        assert_eq!(denial.limit, daily_budget("1"));
        assert_eq!(denial.limit.to_string(), "usd per day of tenant ($1)");
    }
    assert_eq!(book.image(), before);
    change(&mut book, 52, &with_budget(52, "2").command(), NOON_MS);
}

#[test]
fn o51_the_budget_resets_at_local_midnight() {
    let tokyo = "Asia/Tokyo".parse().unwrap();
    let at_14_30 = NOON_MS + 9_000_000;
    let (last_second, midnight) = (NOON_MS + 3 * 3_600_000 - 1_000, NOON_MS + 3 * 3_600_000);
    let of = |n, dollars, at_ms| Request {
        zone: tokyo,
        at_ms,
        hold: amounts(1, 10, dollars),
        limits: vec![daily_budget("100")],
        ..request(n)
    };
    let mut book = Book::new(BookOptions::default());
    settle(&mut book, &of(1, "99", at_14_30), 1, executed(10, "99"), at_14_30);
    // The window is over in a second; the caller reads that from its calendar.
    let denied = run(&mut book, 2, &of(2, "2", last_second).command(), last_second);
    let Decision::Denied(denial) = denied else { panic!("{denied:?}") };
    assert_eq!(denial.reason, DenialReason::Exhausted { retry_after_ms: None });
    assert_eq!(Calendar::new(tokyo).at(last_second).resets_in_ms(WindowKind::Day, last_second), Some(1_000));

    change(&mut book, 3, &of(3, "2", midnight).command(), midnight);
    let today = book.counter(&tenant_scope(), windows(midnight, tokyo)[0]);
    assert_eq!(today.total().usd, usd("2"), "$98 left of $100");
}

#[test]
fn a_charge_and_a_refund_belong_to_the_window_of_admission() {
    let before_midnight = NOON_MS + DAY_MS / 2 - 1_000;
    let after_midnight = before_midnight + 2_000;
    let mut book = Book::new(BookOptions::default());
    let late = Request { at_ms: before_midnight, ..request(1) };
    change(&mut book, 1, &late.command(), before_midnight);
    change(&mut book, 1, &start(1, late.hold, None), before_midnight);
    change(&mut book, 1, &close_attempt(1, executed(500, "0.02")), after_midnight);
    change(&mut book, 1, &Command::Close, after_midnight);
    change(&mut book, 1, &Command::Correct { number: 1, total: amounts(1, 400, "0.01") }, after_midnight);
    let yesterday = Counter { charged: amounts(1, 400, "0.01"), ..Counter::default() };
    assert_eq!((day(&book, before_midnight), day(&book, after_midnight)), (yesterday, Counter::default()));
}

#[test]
fn the_worked_example_returns_the_190_tokens_that_were_not_used() {
    let mut book = Book::new(BookOptions::default());
    let request = Request { hold: amounts(1, 2_000, "0.105"), ..request(1) };
    let held_and_charged = |book: &Book| (day(book, NOON_MS).held.usd, day(book, NOON_MS).charged.usd);
    change(&mut book, 1, &request.command(), NOON_MS);
    assert_eq!(held_and_charged(&book), (usd("0.105"), NanoUsd::ZERO));
    change(&mut book, 1, &start(1, request.hold, None), NOON_MS);
    change(&mut book, 1, &close_attempt(1, executed(1_810, "0.0822")), NOON_MS);
    change(&mut book, 1, &Command::Close, NOON_MS);
    assert_eq!(held_and_charged(&book), (NanoUsd::ZERO, usd("0.0822")));
    assert_eq!(usd("0.105") - usd("0.0822"), usd("0.0228"));
    assert_eq!(book.reservation(id(1)).unwrap().status(), ReservationStatus::Settled);
}

#[test]
fn o20_a_cheaper_tier_returns_the_difference_and_an_unknown_one_stays_held() {
    // Held at `priority` (2/8 per million), served at `default` (1/4): 1,000 in, 100 out.
    let request = |n| Request { hold: amounts(1, 1_100, "0.0028"), ..request(n) };
    let mut book = Book::new(BookOptions::default());
    settle(&mut book, &request(1), 1, executed(1_100, "0.0014"), NOON_MS);
    settle(&mut book, &request(2), 2, Closing::ExecutedUsageUnknown, NOON_MS);
    let held = amounts(1, 1_100, "0.0028");
    assert_eq!(day(&book, NOON_MS), Counter { charged: amounts(1, 1_100, "0.0014"), held, pending: held });
}

#[test]
fn o22_money_is_exact_over_many_settlements() {
    let mut book = Book::new(BookOptions { retry_horizon_ms: 0 });
    for n in 1..=10_000 {
        let request = Request { hold: amounts(1, 7, "0.00000105"), ..request(n) };
        settle(&mut book, &request, n, executed(7, "0.000000335"), NOON_MS);
    }
    let charged = day(&book, NOON_MS).charged;
    assert_eq!((charged, charged.usd.to_string().as_str()), (amounts(10_000, 70_000, "0.00335"), "0.00335"));
}

#[test]
fn o23_a_charge_above_the_hold_and_the_budget_is_recorded_in_full() {
    let mut book = Book::new(BookOptions::default());
    let of = |n, dollars| Request { limits: vec![daily_budget("1")], hold: amounts(1, 10, dollars), ..request(n) };
    settle(&mut book, &of(1, "0.95"), 1, executed(10, "0.95"), NOON_MS);
    settle(&mut book, &of(2, "0.05"), 2, executed(10, "0.08"), NOON_MS);
    assert_eq!(book.reservation(id(2)).unwrap().status(), ReservationStatus::Settled);
    assert_eq!(day(&book, NOON_MS), Counter { charged: amounts(2, 20, "1.03"), ..Counter::default() });
    assert!(matches!(run(&mut book, 3, &of(3, "0.000000001").command(), NOON_MS), Decision::Denied(_)));
}

#[test]
fn o57_a_timed_out_call_that_the_provider_bills() {
    let mut book = Book::new(BookOptions::default());
    // A costs 10/30 per million, B 1/2; the worst case of each is 100 in and 1,000 out.
    let (of_a, of_b) = (of_attempt(1_100, "0.031"), of_attempt(1_100, "0.0021"));
    let request = |limits| Request { hold: of_a + amounts(1, 0, "0"), limits, ..request(1) };
    let extend =
        |within| Command::Extend { number: 2, hold: of_b, limits: std::sync::Arc::from([daily_budget(within)]) };
    change(&mut book, 1, &request(vec![]).command(), NOON_MS);
    change(&mut book, 1, &start(1, of_a, None), NOON_MS);
    change(&mut book, 1, &close_attempt(1, Closing::MayHaveExecuted), NOON_MS);
    // Attempt 2 only starts if the reservation can cover both.
    assert!(matches!(run(&mut book, 1, &extend("0.033"), NOON_MS), Decision::Denied(_)));
    assert!(matches!(run(&mut book, 1, &start(2, of_b, None), NOON_MS), Decision::Refused(_)));
    change(&mut book, 1, &extend("0.0331"), NOON_MS);
    change(&mut book, 1, &start(2, of_b, None), NOON_MS);
    change(&mut book, 1, &close_attempt(2, executed(120, "0.00014")), NOON_MS);
    change(&mut book, 1, &Command::Close, NOON_MS);
    let counter = Counter { charged: amounts(1, 120, "0.00014"), held: of_a, pending: of_a };
    assert_eq!(day(&book, NOON_MS), counter);
    // A's report: 100 in, 900 out.
    change(&mut book, 1, &close_attempt(1, executed(1_000, "0.028")), NOON_MS);
    assert_eq!(day(&book, NOON_MS), Counter { charged: amounts(1, 1_120, "0.02814"), ..Counter::default() });
    assert_eq!(book.reservation(id(1)).unwrap().status(), ReservationStatus::Settled);
}

#[test]
fn o58_the_end_follows_from_what_was_sent() {
    let cases = [
        ("name resolution failed", Closing::NotExecuted, ReservationStatus::Released),
        ("reset while the body was written", Closing::MayHaveExecuted, ReservationStatus::PendingReconciliation),
        ("500 with an error body", Closing::NotExecuted, ReservationStatus::Released),
        ("400 before any token", Closing::NotExecuted, ReservationStatus::Released),
        ("500 whose body carries usage", executed(10, "0.01"), ReservationStatus::Settled),
    ];
    for (name, closing, status) in cases {
        let mut book = Book::new(BookOptions::default());
        settle(&mut book, &request(1), 1, closing, NOON_MS);
        assert_eq!(book.reservation(id(1)).unwrap().status(), status, "{name}");
    }
}

#[test]
fn a_slot_lapses_with_its_lease_and_comes_back_with_a_renewal() {
    let one_at_a_time =
        |n, at_ms| Request { at_ms, limits: vec![tenant_limit(Measure::Concurrent, 1)], ..request(n) }.command();
    let renew = |until_ms| Command::Renew { until_ms, owner: OWNER.into() };
    let mut book = Book::new(BookOptions::default());
    change(&mut book, 1, &one_at_a_time(1, NOON_MS), NOON_MS);
    let end = NOON_MS + LEASE_MS;
    assert!(matches!(run(&mut book, 2, &one_at_a_time(2, end - 1), end - 1), Decision::Denied(_)));
    change(&mut book, 2, &one_at_a_time(2, end), end);
    // The money of the first stays held; its gateway was only late, and takes its slot again.
    assert_eq!(day(&book, NOON_MS).held.requests, 2);
    change(&mut book, 1, &renew(end + LEASE_MS), end + 10);
    assert_eq!(book.slots(&tenant_scope()), 2);
    // A renewal that is itself over by the time it arrives takes none.
    let later = end + 2 * LEASE_MS;
    assert!(matches!(run(&mut book, 1, &Command::FreeSlot, later), Decision::Change(_)));
    change(&mut book, 2, &renew(later - 1), later);
    assert_eq!(book.slots(&tenant_scope()), 0);
    assert_eq!(book.due(later, 9).len(), 2);
}

fn with_key(n: u64, key: u8, body: u8) -> Request {
    let expires_at_ms = NOON_MS + DAY_MS;
    let idempotency = Some(IdempotencyRecord { key_hash: [key; 32], expires_at_ms });
    Request { idempotency, fingerprint: [body; 32], ..request(n) }
}

#[test]
fn an_idempotency_key_names_the_first_reservation_for_a_day() {
    // A horizon shorter than the key's life does not shorten it.
    let mut book = Book::new(BookOptions { retry_horizon_ms: 1_000 });
    settle(&mut book, &with_key(1, 1, 7), 1, executed(10, "0.01"), NOON_MS);
    let line =
        Correction { source: SourcePosition { partition: 0, offset: 1 }, ..correction_of(1, amounts(1, 10, "0.01")) };
    book.correct(&line, NOON_MS);
    let last_ms = NOON_MS + DAY_MS - 1;
    for at_ms in [NOON_MS, NOON_MS + 2_000, last_ms] {
        let same = book.execute(id(2), &with_key(2, 1, 7).command(), at_ms);
        assert_eq!((same.reservation, same.decision), (id(1), Decision::NoChange(ReservationStatus::Settled)));
        let other = book.execute(id(2), &with_key(2, 1, 8).command(), at_ms);
        assert_eq!((other.reservation, other.decision), (id(1), Decision::Conflict(Conflict::Fingerprint)));
    }
    change(&mut book, 3, &with_key(3, 2, 8).command(), last_ms);
    change(&mut book, 2, &with_key(2, 1, 8).command(), last_ms + 1);
}

#[test]
fn a_release_frees_the_key_and_a_copy_of_the_creation_does_not_take_it_back() {
    let mut book = Book::new(BookOptions::default());
    let Decision::Change(created) = run(&mut book, 1, &with_key(1, 1, 7).command(), NOON_MS) else { panic!() };
    change(&mut book, 1, &Command::Release, NOON_MS);
    change(&mut book, 2, &with_key(2, 1, 7).command(), NOON_MS);
    book.record(id(1), &created[0], NOON_MS);
    let third = book.execute(id(3), &with_key(3, 1, 7).command(), NOON_MS);
    assert_eq!((third.reservation, third.decision), (id(2), Decision::NoChange(ReservationStatus::Reserved)));
}

#[test]
fn a_revoked_key_is_refused_at_the_very_next_admission() {
    let mut book = Book::new(BookOptions::default());
    change(&mut book, 1, &request(1).command(), NOON_MS);
    book.revoke("vk-1".into());
    let Decision::Denied(denial) = run(&mut book, 2, &request(2).command(), NOON_MS) else { panic!() };
    assert_eq!(denial.reason, DenialReason::Revoked);
    // What runs may finish, and its own repeat finds it.
    assert_eq!(run(&mut book, 1, &request(1).command(), NOON_MS), Decision::NoChange(ReservationStatus::Reserved));
    change(&mut book, 1, &start(1, request(1).hold, None), NOON_MS);
}

fn correction_of(n: u64, total: Charge) -> Correction {
    let created = request(n).created();
    Correction {
        reservation: id(n),
        number: 1,
        total,
        amount: total,
        counting: created.counting,
        admitted_at_ms: NOON_MS,
        source: SourcePosition { partition: 0, offset: 0 },
    }
}

#[test]
fn a_line_that_is_older_than_the_newest_one_is_a_copy() {
    let mut book = Book::new(BookOptions::default());
    settle(&mut book, &request(1), 1, executed(10, "0.01"), NOON_MS);
    let at = |offset, dollars| Correction {
        source: SourcePosition { partition: 0, offset },
        ..correction_of(1, amounts(1, 10, dollars))
    };
    book.correct(&at(1, "0.01"), NOON_MS);
    book.correct(&at(2, "0.03"), NOON_MS);
    let copy = book.correct(&at(1, "0.01"), NOON_MS);
    assert_eq!(copy.decision, Decision::NoChange(ReservationStatus::Settled));
    assert_eq!(day(&book, NOON_MS).charged.usd, usd("0.03"));
}

/// The sweep reads a total from the ledger and tells it later: by then the corrector may have brought a newer one.
#[test]
fn i12_a_total_that_was_read_before_the_corrector_came_changes_nothing() {
    let mut book = Book::default();
    let hold = of_attempt(1_000, "0.05");
    change(&mut book, 1, &request(1).command(), NOON_MS);
    change(&mut book, 1, &start(1, hold, None), NOON_MS);
    let (read, newer) = (of_attempt(10, "0.01"), of_attempt(11, "0.02"));
    change(&mut book, 1, &Command::Correct { number: 1, total: read }, NOON_MS);
    book.correct(&correction_of(1, newer), NOON_MS);
    let stale = run(&mut book, 1, &Command::Correct { number: 1, total: read }, NOON_MS);
    assert!(matches!(stale, Decision::NoChange(_)), "{stale:?}");
    assert_eq!(book.reservation(id(1)).unwrap().charged(), newer);
}

#[test]
fn an_adjustment_in_the_moment_its_record_leaves_is_not_lost() {
    let mut book = Book::new(BookOptions { retry_horizon_ms: 1_000 });
    settle(&mut book, &request(1), 1, executed(10, "0.01"), NOON_MS);
    book.correct(&correction_of(1, amounts(1, 10, "0.01")), NOON_MS);
    let adjustment = Correction {
        total: amounts(1, 10, "0.03"),
        amount: of_attempt(0, "0.02"),
        source: SourcePosition { partition: 0, offset: 5 },
        ..correction_of(1, Amounts::ZERO)
    };
    let reply = book.correct(&adjustment, NOON_MS + 1_000);
    assert!(matches!(reply.decision, Decision::Change(_)), "{reply:?}");
    assert_eq!((reply.status, day(&book, NOON_MS).charged), (None, amounts(1, 10, "0.03")));
}

/// The lines of a few reservations as a ledger writes them: `(offset, reservation, total, amount)`.
fn random_lines(dice: &mut Dice) -> Vec<Correction> {
    let mut totals: BTreeMap<u64, Charge> = BTreeMap::new();
    let count = dice.between(2, 6);
    let lines = (0..count).map(|n| {
        let of = dice.below(3) + 1;
        let before = totals.get(&of).copied();
        let total = amounts(1, dice.between(0, 9), "0");
        totals.insert(of, total);
        let amount = total - before.unwrap_or_default();
        let source = SourcePosition { partition: 0, offset: n * 3 };
        Correction { amount, source, ..correction_of(of, total) }
    });
    lines.collect()
}

/// A store that knows some of the reservations, forgets what ended, and gets every line at least once, in the order of
/// the log from wherever the corrector starts again.
#[test]
fn twenty_thousand_random_redeliveries_charge_nothing_twice() {
    for seed in 0..runs(20_000) {
        let mut dice = Dice::new(seed);
        let lines = random_lines(&mut dice);
        let mut book = Book::new(BookOptions { retry_horizon_ms: 1_000 });
        let mut now_ms = NOON_MS;
        for n in 1..=3 {
            if dice.chance(70) {
                change(&mut book, n, &request(n).command(), now_ms);
                change(&mut book, n, &start(1, request(n).hold, None), now_ms);
                if dice.chance(50) {
                    change(&mut book, n, &Command::Close, now_ms);
                }
            }
        }
        let (mut next, mut rewinds) = (0, dice.below(6));
        while next < lines.len() {
            book.correct(&lines[next], now_ms);
            next += 1;
            now_ms += dice.between(0, 700);
            if rewinds > 0 && dice.chance(50) {
                rewinds -= 1;
                next = usize::try_from(dice.below(next as u64 + 1)).unwrap();
            }
        }
        let last: BTreeMap<_, _> = lines.iter().map(|line| (line.reservation, line.total)).collect();
        let expected: Charge = last.values().copied().sum();
        assert_eq!(day(&book, NOON_MS).charged, expected, "seed {seed}: {lines:#?}");
    }
}

#[test]
fn records_leave_once_they_are_confirmed_and_their_horizon_is_over() {
    let mut book = Book::new(BookOptions { retry_horizon_ms: 1_000 });
    settle(&mut book, &request(1), 1, executed(10, "0.01"), NOON_MS);
    settle(&mut book, &request(2), 2, Closing::NotExecuted, NOON_MS);
    settle(&mut book, &request(3), 3, Closing::MayHaveExecuted, NOON_MS);
    let known = |book: &mut Book, now_ms| {
        let _ = book.execute(id(99), &Command::FreeSlot, now_ms);
        [1, 2, 3].map(|n| book.reservation(id(n)).is_some())
    };
    assert_eq!(known(&mut book, NOON_MS + 999), [true, true, true]);
    // The one without execution needs no line; the settled one waits for its line, and then for its horizon.
    assert_eq!(known(&mut book, NOON_MS + 1_000), [true, false, true]);
    book.correct(&correction_of(1, amounts(1, 10, "0.01")), NOON_MS + 5_000);
    assert_eq!(known(&mut book, NOON_MS + 5_999), [true, false, true]);
    assert_eq!(known(&mut book, NOON_MS + DAY_MS), [false, false, true]);
    assert_eq!(day(&book, NOON_MS).charged, amounts(1, 10, "0.01"));
}

#[test]
fn a_line_on_what_was_released_is_charged_and_flagged() {
    let mut book = Book::new(BookOptions::default());
    settle(&mut book, &request(1), 1, Closing::NotExecuted, NOON_MS);
    let reply = book.correct(&correction_of(1, amounts(1, 10, "0.01")), NOON_MS);
    assert!(
        matches!(reply.decision, Decision::Change(ref events) if matches!(events[..], [Event::ChargeCorrected { .. }]))
    );
    assert!(book.reservation(id(1)).unwrap().flagged);
    assert_eq!(day(&book, NOON_MS).charged, amounts(1, 10, "0.01"));
}

#[test]
fn a_record_that_learns_something_late_stays_until_its_line_is_there() {
    let mut book = Book::new(BookOptions { retry_horizon_ms: 1_000 });
    settle(&mut book, &request(1), 1, Closing::NotExecuted, NOON_MS);
    let report = record(UsageSource::ProviderReport, amounts(1, 10, "0.01"), "report-1");
    book.record(id(1), &Event::UsageRecorded { number: 1, record: report }, NOON_MS + 500);
    let is_known = |book: &mut Book, now_ms| {
        let _ = book.execute(id(99), &Command::FreeSlot, now_ms);
        book.reservation(id(1)).is_some()
    };
    assert!(is_known(&mut book, NOON_MS + 60_000));
    book.correct(&correction_of(1, amounts(1, 10, "0.01")), NOON_MS + 60_000);
    assert!(is_known(&mut book, NOON_MS + 60_999) && !is_known(&mut book, NOON_MS + 61_000));
}

#[test]
fn after_a_restart_every_open_lease_gets_a_life() {
    let mut book = Book::new(BookOptions::default());
    for n in 1..=3 {
        change(&mut book, n, &request(n).command(), NOON_MS + i64::try_from(n).unwrap());
    }
    change(&mut book, 2, &Command::Release, NOON_MS + 3);
    let back_ms = NOON_MS + 10 * LEASE_MS;
    let due = |book: &Book, at_ms| book.due(at_ms, 9).iter().map(|r| r.created.id).collect::<Vec<_>>();
    assert_eq!((due(&book, back_ms), book.due(back_ms, 1).len()), (vec![id(1), id(3)], 1));
    book.grace(back_ms, LEASE_MS);
    assert_eq!(due(&book, back_ms + LEASE_MS - 1), []);
    assert_eq!(due(&book, back_ms + LEASE_MS), [id(1), id(3)]);
}
