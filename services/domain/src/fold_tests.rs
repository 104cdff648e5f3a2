//! The fold against the store it mirrors, against copies, and against its own forgetting.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::ledger::LineKey;
use crate::money::Amounts;
use crate::quota::CounterReading;
use crate::reservation::{Command, Decision};
use crate::testing::*;
use crate::usage::UsageSource;

/// An event as it stands on the log.
#[derive(Debug, Clone)]
struct Entry {
    id: ReservationId,
    event: Event,
    recorded_at_ms: i64,
}

const FOR_EVER: BookOptions = BookOptions { retry_horizon_ms: i64::MAX / 2 };

/// Reads `log`, and returns the fold and its lines.
fn read(log: &[Entry], options: BookOptions) -> (Fold, BTreeMap<LineKey, LedgerLine>) {
    let (fold, lines, _) = read_with(log, options, &Fold::default());
    (fold, lines)
}

/// As [`read`], taking back whatever left: from the lines written so far, and from attempts that `stored` knows, which
/// may be newer. The number is how many came back. A creation can be a copy too, once its horizon is over.
fn read_with(log: &[Entry], options: BookOptions, stored: &Fold) -> (Fold, BTreeMap<LineKey, LedgerLine>, usize) {
    let mut fold = Fold::new(options);
    let (mut lines, mut restored): (BTreeMap<LineKey, LedgerLine>, usize) = (BTreeMap::new(), 0);
    let mut seen = BTreeSet::new();
    for (offset, Entry { id, event, recorded_at_ms }) in (0..).zip(log) {
        let source = SourcePosition { partition: 0, offset };
        if !seen.insert(*id) && fold.reservation(*id).is_none() {
            let of_it: Vec<_> = lines.values().filter(|line| line.key.reservation == *id).cloned().collect();
            let known = stored.reservation(*id).unwrap();
            fold.restore_ended(&known.created, &known.attempts, &of_it, *recorded_at_ms);
            restored += 1;
        }
        let absorbed = fold.absorb(source, *id, event, *recorded_at_ms).unwrap();
        if let Some(line) = absorbed.posting.as_ref().and_then(line_of) {
            assert!(lines.insert(line.key, line.clone()).is_none(), "a line is written once: {line:?}");
        }
    }
    (fold, lines, restored)
}

/// A line without its position: copies between events move that.
fn content(lines: &BTreeMap<LineKey, LedgerLine>) -> Vec<LedgerLine> {
    let unplaced =
        |line: &LedgerLine| LedgerLine { source: SourcePosition { partition: 0, offset: 0 }, ..line.clone() };
    lines.values().map(unplaced).collect()
}

fn counters(fold: &Fold) -> Vec<CounterReading> {
    fold.books().flat_map(|(_, book)| book.counters()).collect()
}

/// The log of a random run on a store that gets the ledger's corrections late and out of step, while reports come in
/// by themselves; at the end everything is closed and every line was delivered.
fn log_and_store(seed: u64) -> (Vec<Entry>, Book) {
    let (mut run, mut book, mut log) = (RandomRun::new(seed), Book::new(FOR_EVER), Vec::new());
    let (mut ledger, mut due) = (Fold::new(FOR_EVER), Vec::<LedgerLine>::new());
    let mut append = |id, event: Event, now_ms, due: &mut Vec<LedgerLine>| {
        let source = SourcePosition { partition: 0, offset: i64::try_from(log.len()).unwrap() };
        let absorbed = ledger.absorb(source, id, &event, now_ms).unwrap();
        due.extend(absorbed.posting.as_ref().and_then(line_of).cloned());
        log.push(Entry { id, event, recorded_at_ms: now_ms });
    };
    for n in 0..80 {
        let step = run.step();
        if let Decision::Change(events) = book.execute(step.id, &step.command, step.now_ms).decision {
            for event in events.into_iter().filter(|event| event.kind().is_some()) {
                append(step.id, event, step.now_ms, &mut due);
            }
        }
        let marked = book.reservation(step.id).is_some_and(|r| r.attempt(1).is_some());
        if marked && run.dice.chance(8) {
            let source =
                *run.dice.pick(&[UsageSource::ProviderReport, UsageSource::Person, UsageSource::BucketResidual]);
            let record = record(source, run.random_amounts(), &format!("report-{n}"));
            append(step.id, Event::UsageRecorded { number: 1, record }, step.now_ms, &mut due);
        }
        while !due.is_empty() && run.dice.chance(30) {
            book.correct(&correction(&due.remove(0)), step.now_ms);
        }
    }
    for id in run.ids().collect::<Vec<_>>() {
        if let Decision::Change(events) = book.execute(id, &Command::Close, run.now_ms()).decision {
            events.into_iter().for_each(|event| append(id, event, run.now_ms(), &mut due));
        }
    }
    for line in due {
        book.correct(&correction(&line), run.now_ms());
    }
    (log, book)
}

const RUNS: u64 = 150;

/// I12 and I13 at once: at rest, store and fold agree on every counter and every reservation, and both are the lines.
#[test]
fn at_rest_the_store_the_fold_and_the_lines_agree() {
    for seed in 0..runs(RUNS) {
        let (log, store) = log_and_store(seed);
        let (fold, lines) = read(&log, FOR_EVER);
        if lines.is_empty() {
            continue;
        }
        assert_eq!(counters(&fold), store.counters(), "seed {seed}");
        for reservation in store.reservations() {
            let mut folded = fold.reservation(reservation.created.id).unwrap().into_owned();
            // Leases are the store's alone, and so is the order in which a release and a report were seen.
            (folded.due_ms, folded.flagged) = (reservation.due_ms, reservation.flagged);
            assert_eq!(folded, *reservation, "seed {seed}");
            let of_lines: Amounts = lines
                .values()
                .filter(|line| line.key.reservation == reservation.created.id)
                .map(|line| line.amount)
                .sum();
            assert_eq!(reservation.charged(), of_lines, "seed {seed}");
        }
    }
}

#[test]
fn a_log_folded_twice_is_a_log_folded_once() {
    for seed in 0..runs(RUNS) {
        let (log, _) = log_and_store(seed);
        let (once, lines) = read(&log, FOR_EVER);
        let each_doubled: Vec<_> = log.iter().flat_map(|entry| [entry.clone(), entry.clone()]).collect();
        let all_again = [log.clone(), log.clone()].concat();
        for copied in [each_doubled, all_again] {
            let (twice, same_lines) = read(&copied, FOR_EVER);
            assert_eq!(content(&same_lines), content(&lines), "seed {seed}");
            assert_eq!(counters(&twice), counters(&once), "seed {seed}");
        }
    }
}

/// A fold that forgets everything as soon as it may, and takes it back from its lines, writes the same lines and counts
/// the same as one that never forgets.
#[test]
fn forgetting_and_restoring_equals_never_having_forgotten() {
    let mut all_restored = 0;
    for seed in 0..runs(RUNS) {
        let (log, _) = log_and_store(seed);
        let (whole, lines) = read(&log, FOR_EVER);
        let (forgetful, same_lines, restored) = read_with(&log, BookOptions { retry_horizon_ms: 0 }, &whole);
        assert_eq!(same_lines.keys().collect::<Vec<_>>(), lines.keys().collect::<Vec<_>>(), "seed {seed}");
        for (key, line) in &lines {
            assert_eq!(&same_lines[key], line, "seed {seed}");
        }
        assert_eq!(counters(&forgetful), counters(&whole), "seed {seed}");
        all_restored += restored;
    }
    assert!(all_restored > 50, "only {all_restored} came back");
}

/// The same, when the whole log comes once more long after everything left (an orphaned spool that is forwarded late).
/// Only where reports of equal rank adjust each other a late copy of one that made no line cannot be told from a new
/// one: lines do not remember it.
#[test]
fn a_log_that_comes_again_after_everything_left_changes_nothing() {
    for seed in 0..runs(RUNS) {
        let (mut log, _) = log_and_store(seed);
        for entry in &mut log {
            if let Event::ReservationCreated(created) = &entry.event {
                let created = Created { adjust_on_mismatch: false, ..Created::clone(created) };
                entry.event = Event::ReservationCreated(Arc::new(created));
            }
        }
        let (whole, lines) = read(&log, FOR_EVER);
        let again = [log.clone(), log].concat();
        let (forgetful, same_lines, _) = read_with(&again, BookOptions { retry_horizon_ms: 0 }, &whole);
        assert_eq!(content(&same_lines), content(&lines), "seed {seed}");
        assert_eq!(counters(&forgetful), counters(&whole), "seed {seed}");
    }
}

#[test]
fn what_changed_is_told_and_a_copy_is_not_news() {
    let mut fold = Fold::new(BookOptions::default());
    let at = |offset| SourcePosition { partition: 0, offset };
    let created = Event::ReservationCreated(Arc::new(request(1).created()));
    let started = Event::AttemptStarted { number: 1, hold: of_attempt(2_000, "0.10"), target: target("primary") };
    let used = Event::UsageRecorded { number: 1, record: record(UsageSource::Response, of_attempt(9, "0.01"), "") };
    for (offset, event, is_news, lines) in [
        (0, &created, true, 0),
        (1, &created, false, 0),
        (2, &started, true, 0),
        (3, &used, true, 1),
        (4, &used, false, 0),
    ] {
        let absorbed = fold.absorb(at(offset), id(1), event, NOON_MS).unwrap();
        let posted = absorbed.posting.iter().filter_map(line_of).count();
        assert_eq!((absorbed.is_news, posted), (is_news, lines), "{offset}");
    }
    // Its line carries where it was sent and which counters it moves.
    assert_eq!(fold.absorb(at(5), id(2), &started, NOON_MS), Err(Unknown(id(2))));
    assert_eq!(fold.reservation(id(1)).unwrap().charged(), amounts(1, 9, "0.01"));
}

#[test]
fn an_image_of_a_fold_goes_on_as_the_fold_does() {
    for seed in 0..runs(20) {
        let (log, _) = log_and_store(seed);
        let (first, rest) = log.split_at(log.len() / 2);
        let (half, _) = read(first, BookOptions::default());
        let mut stored = Fold::from_image(half.image());
        let mut live = half;
        for (offset, entry) in (10_000..).zip(rest) {
            let source = SourcePosition { partition: 0, offset };
            let one = live.absorb(source, entry.id, &entry.event, entry.recorded_at_ms);
            assert_eq!(stored.absorb(source, entry.id, &entry.event, entry.recorded_at_ms), one, "seed {seed}");
        }
        assert_eq!(stored.image(), live.image(), "seed {seed}");
    }
}
