//! A ledger that follows from its log agrees; one altered unit anywhere is named.

use rusqlite::Connection;

use weir_domain::money::NanoUsd;
use weir_domain::testing::{Dice, runs};

use super::*;
use crate::testing::{OPTIONS, Place, piece, random_log};

async fn verified(place: &Place, counters: Option<&Counters>) -> VerifyReport {
    let options = VerifyOptions { book: OPTIONS, counters, most_differences: 5 };
    verify_folder(&place.folder.path().join("log"), &*place.store, options).await.unwrap()
}

async fn counters(place: &Place) -> Counters {
    let books = place.start().await.books_at_end;
    books.into_iter().map(|(tenant, book)| (tenant, book.counters())).collect()
}

#[tokio::test]
async fn a_ledger_that_follows_from_its_log_agrees_with_it_and_with_the_counters() {
    for seed in 0..runs(5) {
        let place = Place::new();
        place.append(&random_log(seed, 100)).await;
        let builder = place.builder(place.start().await.at_builder);
        place.deliver_all(&builder, &mut Dice::new(seed)).await;
        let report = verified(&place, Some(&counters(&place).await)).await;
        assert!(report.agrees(), "seed {seed}: {report}");
        assert!(report.lines > 50 && report.counters > 50, "seed {seed}: {report}");
        let count = place.store.count().await.unwrap();
        assert_eq!((count.lines, count.charged), (report.lines, report.charged), "seed {seed}");
    }
}

#[tokio::test]
async fn a_builder_on_its_way_is_no_difference() {
    for seed in 0..runs(5) {
        let place = Place::new();
        place.append(&random_log(seed, 60)).await;
        let mut dice = Dice::new(seed);
        let records = place.records(Topic::Reservations).await;
        let builder = place.builder(place.start().await.at_builder);
        let built = piece(records.len(), &mut dice).max(records.len() / 3);
        place.deliver(&builder, &records[..built]).await.unwrap();
        // Its last delivery is stored, the position is not.
        crate::testing::apply(&builder, &records[built..(built + 20).min(records.len())]).await.unwrap();
        let report = verified(&place, Some(&counters(&place).await)).await;
        assert!(report.agrees(), "seed {seed}: {report}");
        assert_eq!(report.not_built_yet, (records.len() - built) as u64, "seed {seed}");
    }
}

/// Changes the ledger's file with `sql` behind the store's back.
async fn altered(sql: &str) -> VerifyReport {
    let place = Place::new();
    place.append(&random_log(7, 40)).await;
    place.build_all().await;
    let shell = Connection::open(place.folder.path().join("ledger.db")).unwrap();
    shell.execute_batch("DROP TRIGGER lines_are_not_changed; DROP TRIGGER lines_are_not_deleted").unwrap();
    assert!(shell.execute(sql, []).unwrap() > 0, "{sql} changed something");
    verified(&place, None).await
}

#[tokio::test]
async fn one_altered_unit_is_named() {
    let report = altered("UPDATE lines SET amount_nusd = amount_nusd + 1 WHERE number = 9").await;
    assert!(matches!(report.differences[..], [Difference::Line { field: "amount", .. }, Difference::Count { .. }]));
    let report = altered("UPDATE lines SET cause = 'x' WHERE number = 9").await;
    assert!(matches!(report.differences[..], [Difference::Line { field: "record", .. }]), "{report}");
    let report = altered("DELETE FROM lines WHERE number = (SELECT max(number) FROM lines)").await;
    assert!(report.differences.iter().any(|found| matches!(found, Difference::LineMissing(_))), "{report}");
    assert!(report.differences.iter().any(|found| matches!(found, Difference::Count { .. })), "{report}");
    let report = altered("UPDATE reservations SET attempts = '[]' WHERE status = 2 AND number = 5").await;
    assert!(matches!(report.differences[..], [Difference::Reservation { field: "attempts", .. }]), "{report}");
    let report = altered("UPDATE reservations SET held_nusd = 1 WHERE number = 5").await;
    assert!(matches!(report.differences[..], [Difference::Reservation { field: "held", .. }]), "{report}");
    let report = altered("UPDATE reservations SET events = events || '[1,0,0,0],' WHERE number = 12").await;
    assert!(!report.agrees(), "an event of another reservation");
    let twice = "INSERT INTO lines SELECT (SELECT max(number) + 1 FROM lines), reservation, attempt, seq + 50, tenant,
        posted_hour, posted_at_ms, deployment, provider, upstream_model, provider_region, price, usage,
        source, record_requests, record_tokens, record_nusd, price_version, served_tier, cause, amount_requests,
        amount_tokens, amount_nusd, total_requests, total_tokens, total_nusd, corrects, flagged, log_partition,
        log_offset
        FROM lines WHERE number = 3";
    let report = altered(twice).await;
    assert!(matches!(report.differences[..], [Difference::LineNotInLog(_), Difference::Count { .. }]), "{report}");
}

#[tokio::test]
async fn a_counter_that_is_off_by_one_is_named_and_only_so_many_are_told() {
    let place = Place::new();
    place.append(&random_log(7, 40)).await;
    place.build_all().await;
    let mut given = counters(&place).await;
    let one = given.values_mut().next().unwrap().first_mut().unwrap();
    one.counter.charged.usd += NanoUsd::from_nanos(1);
    let report = verified(&place, Some(&given)).await;
    let [Difference::Counter { folded, given, .. }] = &report.differences[..] else { panic!("{report}") };
    assert_eq!((given.charged.usd - folded.charged.usd).nanos(), 1);
    let report = verified(&place, Some(&Counters::new())).await;
    assert_eq!(report.differences.len(), 5);
    assert_eq!(report.more_differences + 5, report.counters);
    let text = report.to_string();
    assert!(text.contains("… and ") && !text.contains("agree"), "{text}");
}
