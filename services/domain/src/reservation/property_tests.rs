//! Random runs of one tenant: several reservations at once, limits of every kind and scope, a clock that passes leases
//! and midnights. Every run is a seed; a failure names it.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::calendar::Window;
use crate::ids::ReservationId;
use crate::quota::{Book, BookOptions, Limit, Scope};
use crate::testing::*;

const RUNS: u64 = 120;
const STEPS: usize = 120;

/// A book that never forgets: what leaves is for other tests.
fn book() -> Book {
    Book::new(BookOptions { retry_horizon_ms: i64::MAX / 2 })
}

/// Calls `check` after every step of every run with the step, its decision, and the book before and after. The book
/// before has seen the time of the step, so that only the command is between the two.
fn after_every_step(mut check: impl FnMut(u64, &RandomRun, &Step, &Decision, &Book, &Book)) {
    for seed in 0..runs(RUNS) {
        let (mut run, mut book) = (RandomRun::new(seed), book());
        for _ in 0..STEPS {
            let step = run.step();
            let _ = book.execute(id(u64::MAX >> 1), &Command::FreeSlot, step.now_ms);
            let before = book.clone();
            let reply = book.execute(step.id, &step.command, step.now_ms);
            check(seed, &run, &step, &reply.decision, &before, &book);
        }
    }
}

/// Every counter = the charges and holds of the reservations that count there, in the window of their admission (I12).
fn assert_conserved(book: &Book, now_ms: i64, seed: u64) {
    let mut windows: BTreeMap<(Scope, Window), Position> = BTreeMap::new();
    let mut slots: BTreeMap<Scope, i64> = BTreeMap::new();
    let mut rates: BTreeMap<Scope, (i64, i64)> = BTreeMap::new();
    let mut newest: BTreeMap<crate::calendar::WindowKind, i32> = BTreeMap::new();
    for reservation in book.reservations() {
        let position = reservation.position();
        let created = &reservation.created;
        let in_use = position.held + position.charged;
        for scope in created.counting.scopes.iter() {
            let is_in_the_minute = created.admitted_at_ms.div_euclid(1000) >= now_ms.div_euclid(1000) - 60;
            if is_in_the_minute {
                let rate = rates.entry(scope.clone()).or_default();
                *rate = (rate.0 + in_use.requests, rate.1 + in_use.tokens);
            }
            let has_slot = reservation.slot && reservation.due_ms > now_ms;
            *slots.entry(scope.clone()).or_default() += i64::from(has_slot);
        }
        for (scope, window) in created.counting.counters() {
            let sum = windows.entry((scope.clone(), window)).or_default();
            sum.held += position.held;
            sum.charged += position.charged;
            sum.pending += position.pending;
            let newest = newest.entry(window.kind).or_insert(window.ordinal);
            *newest = window.ordinal.max(*newest);
        }
    }
    for ((scope, window), sum) in &windows {
        let counter = book.counter(scope, *window);
        assert_eq!((counter.held, counter.pending), (sum.held, sum.pending), "seed {seed}: {scope} {window}");
        assert!(!counter.held.has_negative() && !counter.pending.has_negative(), "seed {seed}: {counter:?}");
        assert_eq!(counter.pending.min(counter.held), counter.pending, "seed {seed}: pending is a part of held");
        // Windows of long ago are forgotten once nothing is held there.
        if window.ordinal >= newest[&window.kind] - 1 {
            assert_eq!(counter.charged, sum.charged, "seed {seed}: {scope} {window}");
        }
    }
    for reading in book.counters() {
        assert!(windows.contains_key(&(reading.scope.clone(), reading.window)), "seed {seed}: {reading:?}");
    }
    for (scope, taken) in slots {
        assert_eq!(book.slots(&scope), taken, "seed {seed}: slots of {scope}");
        assert_eq!(book.rate(&scope, now_ms), rates.get(&scope).copied().unwrap_or_default(), "seed {seed}: {scope}");
    }
}

#[test]
fn every_counter_is_the_sum_of_its_reservations_at_every_step() {
    after_every_step(|seed, _, step, _, _, after| assert_conserved(after, step.now_ms, seed));
}

#[test]
fn no_admission_leaves_any_limit_above_its_maximum() {
    let (mut admissions, mut denials) = (BTreeSet::new(), 0);
    after_every_step(|seed, _, step, decision, _, after| {
        let limits: &[Limit] = match &step.command {
            Command::Reserve(reserve) => &reserve.limits,
            Command::Extend { limits, .. } => limits,
            _ => return,
        };
        denials += u32::from(matches!(decision, Decision::Denied(_)));
        let Decision::Change(events) = decision else { return };
        let (extra, slots) = match &events[0] {
            Event::ReservationCreated(created) => (created.hold, 1),
            Event::ReservationExtended { by, .. } => (*by, 0),
            other => panic!("seed {seed}: {other:?}"),
        };
        let counting = &after.reservation(step.id).unwrap().created.counting;
        for limit in limits.iter().filter(|limit| limit.share_of(extra, slots) > 0) {
            let taken = taken(after, limit, counting, step.now_ms);
            assert!(taken <= limit.max, "seed {seed}: {taken} of {limit} after {:?}", step.command);
            admissions.insert(format!("{:?}", limit.measure));
        }
    });
    // Every measure was met, and there was something to refuse.
    assert!(admissions.len() >= 12 && denials > 100, "{denials} denials by {admissions:?}");
}

#[test]
fn what_does_not_change_leaves_no_trace() {
    let mut kinds = BTreeMap::new();
    after_every_step(|seed, _, step, decision, before, after| {
        let kind = match decision {
            Decision::Change(_) => return,
            Decision::NoChange(_) => "no change",
            Decision::Denied(_) => "denied",
            Decision::Refused(_) => "refused",
            Decision::Conflict(_) => "conflict",
        };
        assert_eq!(before.image(), after.image(), "seed {seed}: {kind} {:?}", step.command);
        *kinds.entry(kind).or_insert(0) += 1;
    });
    assert!(kinds.len() == 4 && kinds.values().all(|n| *n > 100), "{kinds:?}");
}

#[test]
fn a_command_that_changed_something_changes_nothing_the_second_time() {
    after_every_step(|seed, _, step, decision, _, after| {
        if matches!(decision, Decision::Change(_)) {
            let mut again = after.clone();
            let reply = again.execute(step.id, &step.command, step.now_ms);
            let status = after.reservation(step.id).unwrap().status();
            assert_eq!(reply.decision, Decision::NoChange(status), "seed {seed}: {:?}", step.command);
            assert_eq!(again.image(), after.image(), "seed {seed}: {:?}", step.command);
        }
    });
}

#[test]
fn a_bound_never_raises_what_is_held_and_nothing_but_admission_does() {
    after_every_step(|seed, _, step, decision, before, after| {
        let held = |book: &Book| book.reservation(step.id).map(|found| found.held()).unwrap_or_default();
        let admits = matches!(step.command, Command::Reserve(_) | Command::Extend { .. });
        if !admits && matches!(decision, Decision::Change(_)) {
            let (before, after) = (held(before), held(after));
            assert_eq!(after.min(before), after, "seed {seed}: {:?}", step.command);
        }
    });
}

#[test]
fn what_may_have_executed_stays_held_until_it_is_known() {
    after_every_step(|seed, _, step, decision, before, after| {
        let (Some(before), Decision::Change(_)) = (before.reservation(step.id), decision) else { return };
        let after = after.reservation(step.id).unwrap();
        for attempt in before.attempts.iter().filter(|attempt| !attempt.is_known()) {
            let now = after.attempt(attempt.number).unwrap();
            let is_bounded = matches!(step.command, Command::Tighten { .. });
            assert!(now.is_known() || is_bounded || now.held() == attempt.held(), "seed {seed}: {step:?}");
        }
    });
}

/// The log of a run: what its decisions put there, in order.
fn log_of(seed: u64) -> (Vec<(ReservationId, Event)>, Book) {
    let (mut run, mut book, mut log) = (RandomRun::new(seed), book(), Vec::new());
    for _ in 0..STEPS {
        let step = run.step();
        if let Decision::Change(events) = book.execute(step.id, &step.command, step.now_ms).decision {
            log.extend(events.into_iter().filter(|event| event.kind().is_some()).map(|event| (step.id, event)));
        }
    }
    (log, book)
}

fn fold(log: &[(ReservationId, Event)]) -> BTreeMap<ReservationId, Reservation> {
    let mut states = BTreeMap::new();
    for (id, event) in log {
        if let Some(state) = apply(states.remove(id), event) {
            states.insert(*id, state);
        }
    }
    states
}

#[test]
fn the_log_alone_gives_the_state() {
    let mut kinds = BTreeSet::new();
    for seed in 0..runs(RUNS) {
        let (log, book) = log_of(seed);
        kinds.extend(log.iter().filter_map(|(_, event)| event.kind()));
        let mut states = fold(&log);
        assert_eq!(states.len(), book.reservations().count(), "seed {seed}");
        for in_store in book.reservations() {
            let mut of_log = states.remove(&in_store.created.id).unwrap();
            // Slots and leases are the store's alone.
            (of_log.slot, of_log.due_ms) = (in_store.slot, in_store.due_ms);
            assert_eq!(of_log, *in_store, "seed {seed}");
        }
    }
    assert_eq!(kinds.into_iter().collect::<Vec<_>>(), EventKind::ALL, "every kind occurs");
}

#[test]
fn an_event_says_truly_whether_it_changed_anything() {
    let mut said = BTreeMap::new();
    for seed in 0..runs(RUNS) {
        let (mut dice, mut run, mut store) = (Dice::new(seed), RandomRun::new(seed), book());
        let mut events: Vec<(ReservationId, Event)> = Vec::new();
        for _ in 0..STEPS {
            let step = run.step();
            if let Decision::Change(news) = store.execute(step.id, &step.command, step.now_ms).decision {
                events.extend(news.into_iter().map(|event| (step.id, event)));
            }
            // Some event of the past again, now and then to another reservation.
            if let Some(at) = events.len().checked_sub(1).map(|last| dice.below(last as u64 + 1)) {
                let (of, event) = events[usize::try_from(at).unwrap()].clone();
                events.push((if dice.chance(20) { step.id } else { of }, event));
            }
        }
        let mut states: BTreeMap<ReservationId, Reservation> = BTreeMap::new();
        for (id, event) in events {
            if let Some(state) = states.get_mut(&id) {
                let before = state.clone();
                let is_news = state.absorb(&event);
                assert_eq!(is_news, *state != before, "seed {seed}: {event:?}");
                *said.entry((event.kind(), is_news)).or_insert(0) += 1;
            } else if let Some(state) = apply(None, &event) {
                states.insert(id, state);
            }
        }
    }
    // 11 kinds on the log, and what concerns the store alone as one.
    assert_eq!(said.keys().filter(|(_, is_news)| *is_news).count(), 12, "{said:?}");
}

#[test]
fn copies_of_events_change_nothing_at_any_distance() {
    for seed in 0..runs(RUNS) {
        let (log, _) = log_of(seed);
        let mut dice = Dice::new(seed);
        let mut copied: Vec<(ReservationId, Event)> = Vec::new();
        for (id, event) in &log {
            copied.push((*id, event.clone()));
            // One event again, or a whole batch from anywhere before, as a repeated produce leaves it.
            if dice.chance(30) {
                let from = usize::try_from(dice.below(copied.len() as u64)).unwrap();
                let until = (from + 1 + usize::try_from(dice.below(6)).unwrap()).min(copied.len());
                copied.extend(copied[from..until].to_vec());
            }
        }
        assert_eq!(fold(&copied), fold(&log), "seed {seed}");
        let twice = [log.clone(), log.clone()].concat();
        assert_eq!(fold(&twice), fold(&log), "seed {seed}");
    }
}

#[test]
fn two_attempts_the_unknown_one_keeps_its_own_worst_case() {
    let mut book = book();
    let mut run = |command: Command| book.execute(id(1), &command, NOON_MS).decision;
    let mut change = |command| assert!(matches!(run(command), Decision::Change(_)));
    change(request(1).command());
    change(start(1, of_attempt(1_000, "0.06"), None));
    change(close_attempt(1, Closing::MayHaveExecuted));
    change(Command::Extend { number: 2, hold: of_attempt(500, "0.04"), limits: Arc::from([]) });
    change(start(2, of_attempt(500, "0.04"), None));
    change(close_attempt(2, executed(400, "0.03")));
    change(Command::Close);
    let both = |book: &Book| {
        let reservation = book.reservation(id(1)).unwrap();
        (reservation.status(), reservation.held(), reservation.charged())
    };
    let pending = ReservationStatus::PendingReconciliation;
    assert_eq!(both(&book), (pending, of_attempt(1_000, "0.06"), amounts(1, 400, "0.03")));
    // The ledger corrects the known one; the unknown one does not move.
    let correct = |number, total| Command::Correct { number, total };
    book.execute(id(1), &correct(2, amounts(1, 400, "0.02")), NOON_MS);
    assert_eq!(both(&book), (pending, of_attempt(1_000, "0.06"), amounts(1, 400, "0.02")));
    book.execute(id(1), &correct(1, of_attempt(900, "0.05")), NOON_MS);
    assert_eq!(both(&book), (ReservationStatus::Settled, Amounts::ZERO, amounts(1, 1_300, "0.07")));
    assert_conserved(&book, NOON_MS, 0);
}

#[test]
fn a_late_gateway_takes_an_expired_reservation_back_and_ends_it() {
    let mut book = book();
    let late_ms = NOON_MS + 2 * LEASE_MS;
    let renew = Command::Renew { until_ms: late_ms + LEASE_MS, owner: OWNER.into() };
    let path = [
        (NOON_MS, request(1).command()),
        (NOON_MS, start(1, of_attempt(1_000, "0.06"), None)),
        (late_ms, Command::Pend { cause: PendCause::Expired }),
        (late_ms, renew.clone()),
        (late_ms + 1, close_attempt(1, executed(400, "0.03"))),
        (late_ms + 1, Command::Close),
    ];
    let mut log = Vec::new();
    for (now_ms, command) in path {
        let Decision::Change(events) = book.execute(id(1), &command, now_ms).decision else { panic!("{command:?}") };
        log.extend(events.into_iter().map(|event| (id(1), event)));
        assert_conserved(&book, now_ms, 0);
        // The slot goes and comes with the lease.
        let has_slot = !matches!(command, Command::Pend { .. } | Command::Close);
        assert_eq!(book.slots(&tenant_scope()), i64::from(has_slot), "{command:?}");
    }
    let reservation = book.reservation(id(1)).unwrap();
    assert_eq!((reservation.status(), reservation.resumes), (ReservationStatus::Settled, 1));
    assert_eq!((reservation.held(), reservation.charged()), (Amounts::ZERO, amounts(1, 400, "0.03")));
    // A copy of the pending that was answered does not pend it once more, wherever it turns up.
    let resumed = log.iter().position(|(_, event)| matches!(event, Event::ReservationResumed { .. })).unwrap();
    log.insert(resumed + 1, log[resumed - 1].clone());
    assert_eq!(fold(&log)[&id(1)].status(), ReservationStatus::Settled);
    let mut while_it_runs = log[..=resumed + 1].to_vec();
    while_it_runs.push(log[resumed].clone());
    assert_eq!(fold(&while_it_runs)[&id(1)].status(), ReservationStatus::Reserved);
    // Nobody else may take it back, and not after it ended.
    assert_eq!(book.execute(id(1), &renew, late_ms).decision, Decision::NoChange(ReservationStatus::Settled));
}
