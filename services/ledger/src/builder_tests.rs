//! From events to lines and to the other topics; and that no crash, copy, rival or poison changes what comes of it.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::oneshot;

use weir_domain::attempt::AttemptOutcome;
use weir_domain::ledger::LedgerLine;
use weir_domain::money::{Amounts, NanoUsd};
use weir_domain::reservation::{Created, Event};
use weir_domain::testing::{Dice, runs};
use weir_domain::usage::UsageSource;
use weir_schemas::Record as _;
use weir_schemas::discrepancy::Discrepancy;
use weir_schemas::ledger_entry::LedgerEntry;
use weir_schemas::usage_row::UsageRow;
use weir_streams::consumer::{Consumer, ConsumerOptions, Resolution};
use weir_streams::{Batch, OnPoison, StoredRecord};

use super::*;
use crate::conformance::scene;
use crate::contract::{Change, LinePage};
use crate::testing::{HORIZON_MS, Place, apply, batch, piece, plain_life, random_log};

fn plain(n: u64) -> Arc<Created> {
    Arc::new(scene::created(n, "acme"))
}

async fn all_lines(place: &Place) -> Vec<LedgerLine> {
    let mut lines = Vec::new();
    for tenant in ["acme", "globex", "initech"] {
        let page =
            LinePage { tenant: tenant.into(), from_ms: i64::MIN, until_ms: i64::MAX, after: None, most: usize::MAX };
        lines.extend(place.store.lines(page).await.unwrap());
    }
    lines.sort_by_key(|line| line.key);
    lines
}

/// What a reader of `weir.ledger` has after it kept the first of each key; repetitions must be equal.
async fn entries(place: &Place) -> Vec<LedgerEntry> {
    let mut kept: BTreeMap<_, LedgerEntry> = BTreeMap::new();
    for record in place.records(Topic::Ledger).await {
        let entry = LedgerEntry::decode(&record.value).unwrap();
        let key = (entry.reservation, entry.attempt, entry.seq);
        let first = kept.entry(key).or_insert_with(|| entry.clone());
        assert_eq!(*first, entry, "a repeated entry says the same");
    }
    kept.into_values().collect()
}

async fn assert_told(place: &Place, context: &str) {
    let lines = all_lines(place).await;
    let expected: Vec<LedgerEntry> = lines.iter().map(|line| LedgerEntry::from_line(line, &"eu".into())).collect();
    assert_eq!(entries(place).await, expected, "every line has its entry, {context}");
}

/// The rows that an undisturbed builder makes of the same log.
async fn undisturbed(seed: u64) -> Vec<String> {
    let place = Place::new();
    place.append(&random_log(seed, 100)).await;
    place.build_all().await;
    place.rows()
}

#[tokio::test]
async fn a_plain_request_becomes_a_line_an_entry_and_a_row() {
    let place = Place::new();
    let created = plain(1);
    place.append(&plain_life(&created, 82_200_000)).await;
    let builder = place.build_all().await;

    let found = place.store.find(created.id).await.unwrap().unwrap();
    assert_eq!(found.status, weir_domain::reservation::ReservationStatus::Settled);
    assert_eq!(found.status_since_ms, created.admitted_at_ms + 900);
    let [line] = &found.lines[..] else { panic!("one line, not {:?}", found.lines) };
    assert_eq!(line.amount, Amounts::new(1, 100, NanoUsd::from_nanos(82_200_000)));
    assert_eq!(line.target.as_deref(), Some(&*scene::target()));
    assert_eq!((line.source.offset, found.events.len()), (3, 6));
    assert_told(&place, "the plain request").await;

    let [row] = &place.records(Topic::Usage).await[..] else { panic!("one usage row") };
    assert_eq!(&row.key[..], b"acme");
    let row = UsageRow::decode(&row.value).unwrap();
    assert_eq!((row.attempt, row.usage_known, row.charge_usd.to_string()), (1, true, "0.0822".to_owned()));
    assert_eq!((row.input_tokens, row.output_tokens, row.source), (75, 25, Some(UsageSource::Response)));

    let book = builder.book(&created.tenant).await.unwrap();
    let (scope, window) = created.counting.counters().next().unwrap();
    assert_eq!(book.counter(scope, window).charged, line.amount, "the counter is the sum of the lines");
    assert_eq!(place.records(Topic::Discrepancies).await, vec![]);
}

#[tokio::test]
async fn a_builder_killed_anywhere_loses_nothing_and_doubles_nothing() {
    for seed in 0..runs(6) {
        let expected = undisturbed(seed).await;
        let place = Place::new();
        place.append(&random_log(seed, 100)).await;
        let records = place.records(Topic::Reservations).await;
        let mut dice = Dice::new(seed);
        loop {
            // A process: starts, works for a while, and dies behind an effect whose position was not stored.
            let builder = place.builder(place.start().await.at_builder);
            let from = place.store.load(&subscription(0)).await.unwrap().unwrap_or(0);
            let mut rest = &records[usize::try_from(from).unwrap()..];
            while !rest.is_empty() && !dice.chance(10) {
                let (now, later) = rest.split_at(piece(rest.len(), &mut dice));
                place.deliver(&builder, now).await.unwrap();
                rest = later;
                if dice.chance(20) {
                    builder.checkpoint().await.unwrap();
                }
            }
            if rest.is_empty() {
                break;
            }
            let lost = piece(rest.len(), &mut dice);
            apply(&builder, &rest[..lost]).await.unwrap();
        }
        assert_eq!(place.rows(), expected, "seed {seed}");
        assert_told(&place, &format!("seed {seed}")).await;
    }
}

#[tokio::test]
async fn lines_that_were_stored_and_not_told_are_told_after_the_restart() {
    let expected = undisturbed(1).await;
    let mut place = Place::new();
    place.append(&random_log(1, 100)).await;
    let records = place.records(Topic::Reservations).await;
    let (first, second) = records.split_at(records.len() / 2);
    let builder = place.builder(place.start().await.at_builder);
    place.deliver(&builder, first).await.unwrap();
    builder.checkpoint().await.unwrap();
    place.log.close().await;
    let refused = apply(&builder, second).await;
    assert!(matches!(&refused, Err(EffectError::Retry { .. })), "{refused:?}");
    assert!(matches!(builder.checkpoint().await, Err(CheckpointError::Unsettled)), "it would be ahead of the position");
    drop(builder);
    place.reopen_log().await;
    let (stored, told) = (place.store.count().await.unwrap().lines, entries(&place).await.len());
    assert!(stored > told as u64, "{stored} lines are stored, {told} told");

    let builder = place.builder(place.start().await.at_builder);
    place.deliver_all(&builder, &mut Dice::new(1)).await;
    assert_eq!(place.rows(), expected);
    assert_told(&place, "after the restart").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_builders_at_once_make_one_ledger() {
    for seed in 0..runs(3) {
        let expected = undisturbed(seed).await;
        let place = Place::new();
        place.append(&random_log(seed, 100)).await;
        let records = place.records(Topic::Reservations).await;
        let run = async |mut dice: Dice| {
            let folded = place.start().await.at_builder;
            let from = usize::try_from(folded.positions[&0]).unwrap();
            let builder = place.builder(folded);
            let mut rest = &records[from..];
            while !rest.is_empty() {
                let (now, later) = rest.split_at(piece(rest.len(), &mut dice));
                place.deliver(&builder, now).await.unwrap();
                rest = later;
            }
        };
        tokio::join!(run(Dice::new(seed)), run(Dice::new(seed + 1_000)));
        assert_eq!(place.rows(), expected, "seed {seed}");
        assert_told(&place, &format!("seed {seed}")).await;
    }
}

#[tokio::test]
async fn what_stood_before_a_poison_record_is_not_lost_with_it() {
    let place = Place::new();
    let created = plain(1);
    let [begin, end] = plain_life(&created, 500);
    let garbage = Batch::new(Topic::Reservations, &b"another key"[..], 0, vec![Bytes::from_static(b"garbage")]);
    place.append(&[begin, end, garbage]).await;
    let records = place.records(Topic::Reservations).await;
    let builder = place.builder(place.start().await.at_builder);
    let refused = apply(&builder, &records).await;
    assert!(matches!(&refused, Err(EffectError::Poison { offset: 6, .. })), "{refused:?}");
    assert_eq!(place.store.count().await.unwrap().lines, 0);
    place.deliver(&builder, &records[..6]).await.unwrap();
    assert_eq!(place.store.count().await.unwrap().lines, 1);
    assert_told(&place, "what the failed delivery had folded").await;
}

/// Runs the real consumer until `is_done`, which is asked after every delivery.
async fn follow_until(place: &Place, builder: LedgerBuilder, is_done: impl AsyncFn() -> bool) {
    let store = Arc::clone(&place.store);
    let log: Arc<dyn EventLog> = Arc::clone(&place.log) as Arc<dyn EventLog>;
    let options = ConsumerOptions { look_every: Duration::from_millis(5), ..ConsumerOptions::new(OnPoison::ParkKey) };
    let consumer = Consumer::new(subscription(0), log, Arc::new(builder), Arc::clone(&store) as _, store as _, options);
    let (stop, stopped) = oneshot::channel::<()>();
    let wait = async {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
        while !is_done().await {
            assert!(tokio::time::Instant::now() < deadline, "the consumer did not come so far: {consumer:?}");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        stop.send(()).unwrap();
    };
    let (ran, ()) = tokio::join!(consumer.run(async { stopped.await.unwrap_or_default() }), wait);
    ran.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_poison_reservation_is_parked_and_the_others_go_on() {
    let place = Place::new();
    let (lost, fine) = (plain(1), plain(2));
    let [_, end_of_lost] = plain_life(&lost, 500);
    place.append(&[end_of_lost]).await;
    place.append(&plain_life(&fine, 70)).await;
    let end = place.records(Topic::Reservations).await.len() as u64;
    let has_read_all = async || place.store.load(&subscription(0)).await.unwrap() == Some(end);
    follow_until(&place, place.builder(place.start().await.at_builder), has_read_all).await;

    let lines = place.store.find(fine.id).await.unwrap().unwrap().lines;
    assert_eq!(lines.iter().map(|line| line.total).sum::<Amounts>(), Amounts::new(1, 100, NanoUsd::from_nanos(70)));
    assert_eq!(place.store.find(lost.id).await.unwrap(), None);
    let parked = place.store.list(&subscription(0)).await.unwrap();
    assert_eq!((parked.len(), parked[0].offset, parked[0].records), (1, 0, 4));
    assert!(parked[0].reason.contains("never created"), "{}", parked[0].reason);

    // A restart leaves out what is parked.
    let started = place.start().await;
    assert_eq!((started.replayed_events, started.at_builder.positions[&0]), (6, end));
    // An operator skips all four, one by one; each next one is poison again until none is left.
    let is_resolved = async || {
        let parked = place.store.list(&subscription(0)).await.unwrap();
        if let Some(key) = parked.first().filter(|key| key.asked.is_none()) {
            let skip = Resolution::Skip { offset: key.offset };
            place.store.ask(&subscription(0), &key.key, skip).await.unwrap();
        }
        parked.is_empty()
    };
    follow_until(&place, place.builder(started.at_builder), is_resolved).await;
    assert_eq!(place.store.find(lost.id).await.unwrap(), None);
    assert_eq!(place.start().await.replayed_events, 6, "what was skipped stays left out");
}

#[tokio::test]
async fn a_report_after_the_horizon_corrects_the_stored_line() {
    let place = Place::new();
    let created = plain(1);
    place.append(&plain_life(&created, 500)).await;
    // Time goes on by other reservations, until the first has left the fold.
    let much_later_s = 10 * HORIZON_MS.unsigned_abs() / 1000;
    for n in 0..4 {
        place.append(&plain_life(&plain(much_later_s + n), 1)).await;
    }
    let builder = place.build_all().await;
    let late_ms = created.admitted_at_ms + 20 * HORIZON_MS;
    let mut report = scene::record(100, 450, UsageSource::Person, "alice/1");
    report.charge.tokens = 90;
    let used = Event::UsageRecorded { number: 1, record: Arc::new(report) };
    let [_, copy_of_the_end] = plain_life(&created, 500);
    let [copy_of_the_beginning, _] = plain_life(&created, 500);
    let before = place.records(Topic::Reservations).await.len();
    place.append(&[copy_of_the_beginning, copy_of_the_end, batch(&created, late_ms, vec![used])]).await;
    let records = place.records(Topic::Reservations).await;
    place.deliver(&builder, &records[before..]).await.unwrap();

    let found = place.store.find(created.id).await.unwrap().unwrap();
    assert_eq!(found.held, Amounts::ZERO, "a copy of its creation holds nothing");
    let [first, adjustment] = &found.lines[..] else { panic!("two lines, not {:?}", found.lines) };
    assert_eq!(adjustment.amount, Amounts::new(0, -10, NanoUsd::from_nanos(-50)));
    assert_eq!((adjustment.key.seq, adjustment.corrects), (1, Some(0)));
    assert_eq!(adjustment.target, first.target, "where it went is not forgotten");
    assert_eq!(found.attempts[0].provider_id.as_deref(), Some("chatcmpl-1"));
    assert_told(&place, "the late report").await;
}

#[tokio::test]
async fn two_reports_of_one_rank_that_disagree_are_told() {
    let place = Place::new();
    let created = plain(1);
    place.append(&plain_life(&created, 500)).await;
    let record = Arc::new(scene::record(100, 450, UsageSource::ProviderReport, "report-1/1"));
    let used = Event::UsageRecorded { number: 1, record };
    place.append(&[batch(&created, created.admitted_at_ms + 5_000, vec![used])]).await;
    place.build_all().await;
    let [told] = &place.records(Topic::Discrepancies).await[..] else { panic!("one discrepancy") };
    let told = Discrepancy::decode(&told.value).unwrap();
    let usd = |amounts: Amounts| amounts.usd.nanos();
    assert_eq!((usd(told.recorded()), usd(told.reported()), told.adjusted), (500, 450, false));
    assert_eq!(all_lines(&place).await.len(), 1, "without the policy's word nothing is adjusted");
}

#[tokio::test]
async fn an_attempt_that_cost_nothing_or_nobody_knows_has_its_row() {
    let place = Place::new();
    let created = plain(1);
    let started = |number| Event::AttemptStarted { number, hold: created.hold, target: scene::target() };
    let closed = |number, outcome| Event::AttemptClosed { number, outcome };
    let events = vec![
        Event::ReservationCreated(Arc::clone(&created)),
        started(1),
        closed(1, AttemptOutcome::NotExecuted),
        started(2),
        closed(2, AttemptOutcome::MayHaveExecuted),
    ];
    place.append(&[batch(&created, created.admitted_at_ms, events)]).await;
    place.build_all().await;
    let rows = place.records(Topic::Usage).await;
    let rows: Vec<UsageRow> = rows.iter().map(|record| UsageRow::decode(&record.value).unwrap()).collect();
    let said: Vec<_> = rows.iter().map(|row| (row.attempt, row.outcome, row.usage_known)).collect();
    let expected = [(1, AttemptOutcome::NotExecuted, true), (2, AttemptOutcome::MayHaveExecuted, false)];
    assert_eq!(said, expected);
    assert_eq!(place.store.find(created.id).await.unwrap().unwrap().attempts.len(), 2);
    assert_eq!(entries(&place).await, vec![]);
}

#[tokio::test]
async fn a_line_that_contradicts_the_log_parks_its_reservation_alone() {
    let place = Place::new();
    let (one, other) = (plain(1), plain(2));
    let wrong = scene::charged(&one, 499, 3);
    place.store.post(Arc::<[Change]>::from([wrong])).await.unwrap();
    place.append(&plain_life(&one, 500)).await;
    place.append(&plain_life(&other, 70)).await;
    let records = place.records(Topic::Reservations).await;
    let builder = place.builder(place.start().await.at_builder);
    let refused = apply(&builder, &records).await;
    assert!(
        matches!(&refused, Err(EffectError::Poison { offset: 3, reason }) if reason.contains("amount")),
        "{refused:?}"
    );
    let rest: Vec<StoredRecord> =
        records.into_iter().filter(|record| record.offset < 3 || record.key[..] == other.id.as_bytes()[..]).collect();
    place.deliver(&builder, &rest).await.unwrap();
    let nanos = |lines: Vec<LedgerLine>| lines.iter().map(|line| line.amount.usd.nanos()).collect::<Vec<_>>();
    assert_eq!(nanos(all_lines(&place).await), vec![499, 70], "what is stored is never overwritten");
}
