//! Reports: early, late, twice, contradicting, unmatched, unusable, and killed in the middle.

use weir_domain::attempt::Target;
use weir_domain::reservation::{Closing, Command, ReservationStatus};
use weir_domain::testing::{LEASE_MS, amounts, executed, id, of_attempt, request, target};
use weir_domain::usage::{Usage, UsageSource};
use weir_schemas::Record as _;
use weir_schemas::discrepancy::Discrepancy;
use weir_schemas::usage_report::{Correlation, CorrelationKind, ReportOutcome, ReportSource, UsageReport};
use weir_streams::{EffectError, Topic};

use super::{Call, HOUR_MS, House, of_reports, report};
use crate::metrics::{ByResult, ReportResult};

use ReservationStatus::{PendingReconciliation, Released, Reserved, Settled};

/// A call that timed out: its gateway has closed it as perhaps executed.
async fn timed_out(house: &House, n: u64) -> Call {
    let mut call = Call::reserve(house, &request(n)).await;
    assert!(call.start(house, 1, "primary", of_attempt(1_100, "0.031"), None).await);
    call.append(house).await;
    call.finish(house, 1, Closing::MayHaveExecuted).await;
    house.build().await;
    call
}

async fn charged(house: &House, n: u64) -> (ReservationStatus, String) {
    let found = house.find(id(n)).await.unwrap();
    (found.status(), found.charged().usd.to_string())
}

fn counted(house: &House, result: ReportResult) -> u64 {
    house.metrics.reports.get_or_create(&ByResult::of(result)).get()
}

fn by_provider_id(mut report: UsageReport, value: &str) -> UsageReport {
    let (kind, value) = (CorrelationKind::ProviderResponse, value.to_owned());
    report.correlation = Some(Correlation { kind, value, reservation: None, attempt: None });
    report
}

async fn discrepancies(house: &House) -> Vec<Discrepancy> {
    let records = house.read_from(Topic::Discrepancies, 0).await;
    records.iter().map(|record| Discrepancy::decode(&record.value).unwrap()).collect()
}

/// O57: A timed out and B answered; A's report comes, and only the difference to its worst case goes back.
#[tokio::test]
async fn o57_a_timed_out_attempt_is_settled_by_its_report_while_the_other_stands() {
    let house = House::open().await;
    let mut call = Call::reserve(&house, &request(1)).await;
    assert!(call.start(&house, 1, "primary", of_attempt(1_100, "0.031"), None).await);
    call.append(&house).await;
    let second = of_attempt(1_100, "0.0021");
    assert!(call.ask(&house, &Command::CloseAttempt { number: 1, closing: Closing::MayHaveExecuted }).await);
    assert!(call.ask(&house, &Command::Extend { number: 2, hold: second, limits: [].into() }).await);
    assert!(call.start(&house, 2, "secondary", second, None).await);
    call.append(&house).await;
    call.finish(&house, 2, executed(120, "0.00014")).await;
    house.settle().await;

    let found = house.find(id(1)).await.unwrap();
    assert_eq!((found.status(), found.held()), (PendingReconciliation, amounts(0, 1_100, "0.031")));
    assert_eq!(found.charged().usd.to_string(), "0.00014");
    house.assert_agrees("A unknown, B known").await;

    house.give(report(id(1), 1, 100, 900)).await;
    house.settle().await;
    let found = house.find(id(1)).await.unwrap();
    assert_eq!((found.status(), found.held()), (Settled, amounts(0, 0, "0")));
    assert_eq!(found.attempt(1).unwrap().charged(), amounts(0, 1_000, "0.028"));
    assert_eq!(found.charged().usd.to_string(), "0.02814");
    house.assert_agrees("A reported").await;
}

/// O46: the client left a stream; the attempt waits at what is known of it, and the provider's report is exact.
#[tokio::test]
async fn o46_a_cancelled_stream_is_settled_exactly_by_its_report() {
    let house = House::open().await;
    let mut call = Call::reserve(&house, &request(1)).await;
    assert!(call.start(&house, 1, "primary", of_attempt(1_100, "0.031"), None).await);
    assert!(call.ask(&house, &Command::Correlate { number: 1, provider_id: "chatcmpl-9".to_owned() }).await);
    assert!(call.ask(&house, &Command::Tighten { number: 1, hold: of_attempt(1_000, "0.03") }).await);
    call.append(&house).await;
    call.finish(&house, 1, Closing::MayHaveExecuted).await;
    house.build().await;
    assert_eq!(charged(&house, 1).await, (PendingReconciliation, "0".to_owned()));
    house.give(by_provider_id(report(id(1), 1, 100, 40), "chatcmpl-9")).await;
    house.settle().await;
    assert_eq!(charged(&house, 1).await, (Settled, "0.0022".to_owned()));
    house.assert_agrees("settled by the provider's id").await;
    let told = house.told(id(1)).await;
    assert_eq!(&told[told.len() - 3..], ["UsageRecorded 1", "AttemptClosed 1", "ReservationSettled 0"]);
}

#[tokio::test]
async fn a_report_that_comes_twice_or_in_an_old_revision_counts_once() {
    let house = House::open().await;
    timed_out(&house, 1).await;
    let first = report(id(1), 1, 100, 900);
    house.give(first.clone()).await;
    house.give(first.clone()).await;
    house.settle().await;
    house.give(first).await;
    house.settle().await;
    assert_eq!(charged(&house, 1).await, (Settled, "0.028".to_owned()));
    assert_eq!(house.store.find(id(1)).await.unwrap().unwrap().lines.len(), 1);
    assert_eq!(counted(&house, ReportResult::Settled), 1);
    assert!(counted(&house, ReportResult::Duplicate) >= 1);
    assert!(discrepancies(&house).await.is_empty());
    house.assert_agrees("three times the same").await;
}

#[tokio::test]
async fn a_report_before_its_gateway_is_through_and_one_before_any_event() {
    let house = House::open().await;
    // Nothing of it is on the log: the report waits.
    house.give(report(id(1), 1, 100, 900)).await;
    let reports = house.reports();
    house.take_reports(&reports).await;
    assert_eq!((counted(&house, ReportResult::Parked), house.metrics.reports_parked.get()), (1, 1));
    assert_eq!(reports.retry_parked().await.unwrap(), 0);
    let mut call = Call::reserve(&house, &request(1)).await;
    assert!(call.start(&house, 1, "primary", of_attempt(1_100, "0.031"), None).await);
    call.append(&house).await;
    house.build().await;
    // Also after a restart of the matcher.
    assert_eq!(house.reports().retry_parked().await.unwrap(), 1);
    assert_eq!(house.metrics.reports_parked.get(), 0);
    assert_eq!(charged(&house, 1).await, (Reserved, "0.028".to_owned()), "the gateway still runs");
    // The gateway's own figures come second, and agree.
    call.finish(&house, 1, executed(1_000, "0.028")).await;
    house.settle().await;
    assert_eq!(charged(&house, 1).await, (Settled, "0.028".to_owned()));
    assert!(discrepancies(&house).await.is_empty());
    house.assert_agrees("report first").await;
}

#[tokio::test]
async fn a_report_for_what_expired_without_a_gateway() {
    for calls in [0, 1, i64::MAX] {
        let house = House::open().await;
        let mut call = Call::reserve(&house, &request(1)).await;
        assert!(call.start(&house, 1, "primary", of_attempt(1_100, "0.031"), None).await);
        call.append(&house).await;
        house.build().await;
        house.clock.advance_ms(LEASE_MS);
        house.give(report(id(1), 1, 100, 900)).await;
        house.quota.die_after(calls);
        let _died = house.pump(&house.reports(), &of_reports(), true).await;
        house.quota.revive();
        house.settle().await;
        assert_eq!(charged(&house, 1).await, (Settled, "0.028".to_owned()));
        house.assert_agrees("reported before it was pended").await;
    }
}

#[tokio::test]
async fn a_report_killed_between_log_and_store_is_completed() {
    for keeps_store in [true, false] {
        let mut house = House::open().await;
        timed_out(&house, 1).await;
        house.give(report(id(1), 1, 100, 900)).await;
        house.quota.die_after(0);
        let died = house.pump(&house.reports(), &of_reports(), true).await;
        assert!(matches!(died, Err(EffectError::Retry { .. })), "{died:?}");
        house.quota.revive();
        if !keeps_store {
            house.restart().await;
        }
        house.settle().await;
        assert_eq!(charged(&house, 1).await, (Settled, "0.028".to_owned()));
        house.assert_agrees("after the kill").await;
    }
}

#[tokio::test]
async fn a_contradicting_report_is_a_discrepancy_and_adjusts_where_the_tenant_says_so() {
    for (adjusts, expected) in [(false, "0.02"), (true, "0.028")] {
        let house = House::open().await;
        let asked = weir_domain::testing::Request { adjust_on_mismatch: adjusts, ..request(1) };
        let mut call = Call::reserve(&house, &asked).await;
        assert!(call.start(&house, 1, "primary", of_attempt(1_100, "0.031"), None).await);
        call.append(&house).await;
        call.finish(&house, 1, executed(700, "0.02")).await;
        house.build().await;
        house.give(report(id(1), 1, 100, 900)).await;
        house.settle().await;
        assert_eq!(charged(&house, 1).await, (Settled, expected.to_owned()));
        let found = discrepancies(&house).await;
        assert_eq!(
            (found.len(), found[0].adjusted, found[0].reported_usd.to_string()),
            (1, adjusts, "0.028".to_owned())
        );
        assert_eq!(counted(&house, ReportResult::Recorded), 1);
        house.assert_agrees("contradicted").await;
    }
}

#[tokio::test]
async fn a_person_outranks_the_provider_also_by_saying_that_nothing_ran() {
    let house = House::open().await;
    timed_out(&house, 1).await;
    house.give(report(id(1), 1, 100, 900)).await;
    house.settle().await;
    let nothing = UsageReport {
        report_id: "ticket-7".to_owned(),
        source: ReportSource::Manual,
        meters: Usage::default(),
        request_count: Some(0),
        ..report(id(1), 1, 0, 0)
    };
    house.give(nothing).await;
    house.settle().await;
    assert_eq!(charged(&house, 1).await, (Settled, "0".to_owned()));
    let stored = house.store.find(id(1)).await.unwrap().unwrap();
    let sources: Vec<_> = stored.lines.iter().map(|line| line.record.source).collect();
    assert_eq!(sources, [UsageSource::ProviderReport, UsageSource::Person]);
    house.assert_agrees("a person's word").await;
}

#[tokio::test]
async fn a_provider_that_says_nothing_ran_gives_all_of_it_back() {
    for (count, outcome) in [(Some(0), ReportOutcome::Unreported), (None, ReportOutcome::Failed)] {
        let house = House::open().await;
        timed_out(&house, 1).await;
        let said = UsageReport { meters: Usage::default(), request_count: count, outcome, ..report(id(1), 1, 0, 0) };
        house.give(said.clone()).await;
        house.settle().await;
        assert_eq!(charged(&house, 1).await, (Released, "0".to_owned()));
        house.give(said).await;
        house.settle().await;
        assert_eq!(counted(&house, ReportResult::Duplicate), 1);
        assert!(house.store.find(id(1)).await.unwrap().unwrap().lines.is_empty());
        house.assert_agrees("not executed").await;
    }
}

#[tokio::test]
async fn usage_of_an_attempt_that_was_taken_for_not_executed_is_charged() {
    let house = House::open().await;
    let mut call = Call::reserve(&house, &request(1)).await;
    assert!(call.start(&house, 1, "primary", of_attempt(1_100, "0.031"), None).await);
    call.append(&house).await;
    call.finish(&house, 1, Closing::NotExecuted).await;
    house.build().await;
    assert_eq!(charged(&house, 1).await, (Released, "0".to_owned()));
    house.give(report(id(1), 1, 100, 900)).await;
    house.settle().await;
    assert_eq!(charged(&house, 1).await, (Settled, "0.028".to_owned()));
    assert!(house.find(id(1)).await.unwrap().flagged);
    house.assert_agrees("charged after all").await;
}

#[tokio::test]
async fn a_report_outranks_the_estimate_that_came_before() {
    let mut house = House::open().await;
    house.policy = weir_domain::reconcile::CeilingPolicy::Estimate;
    timed_out(&house, 1).await;
    house.clock.advance_ms(25 * HOUR_MS);
    house.settle().await;
    assert_eq!(charged(&house, 1).await, (Settled, "0.031".to_owned()));
    house.give(report(id(1), 1, 100, 900)).await;
    house.settle().await;
    assert_eq!(charged(&house, 1).await, (Settled, "0.028".to_owned()));
    house.assert_agrees("estimate, then the truth").await;
}

#[tokio::test]
async fn a_report_after_the_record_has_left_the_store_still_counts() {
    let house = House::open().await;
    let asked = weir_domain::testing::Request { adjust_on_mismatch: true, ..request(1) };
    let mut call = Call::reserve(&house, &asked).await;
    assert!(call.start(&house, 1, "primary", of_attempt(1_100, "0.031"), None).await);
    call.append(&house).await;
    call.finish(&house, 1, executed(700, "0.02")).await;
    house.settle().await;
    house.clock.advance_ms(30 * HOUR_MS);
    timed_out(&house, 2).await;
    house.settle().await;
    assert_eq!(house.find(id(1)).await, None);
    house.give(report(id(1), 1, 100, 900)).await;
    house.settle().await;
    let total = house.store.find(id(1)).await.unwrap().unwrap().lines.last().unwrap().total;
    assert_eq!(total.usd.to_string(), "0.028");
    house.assert_agrees("long after").await;
}

#[tokio::test]
async fn what_fits_no_attempt_becomes_a_discrepancy_at_the_ceiling() {
    let house = House::open().await;
    timed_out(&house, 1).await;
    let strangers = [
        by_provider_id(UsageReport { report_id: "a".to_owned(), ..report(id(1), 1, 1, 1) }, "chatcmpl-unknown"),
        UsageReport { report_id: "b".to_owned(), ..report(id(9), 1, 1, 1) },
        UsageReport { report_id: "c".to_owned(), ..report(id(1), 2, 1, 1) },
        UsageReport { report_id: "d".to_owned(), provider: "elsewhere".into(), ..report(id(1), 1, 1, 1) },
    ];
    for stranger in strangers {
        house.give(stranger).await;
    }
    house.settle().await;
    assert_eq!(house.metrics.reports_parked.get(), 4);
    house.clock.advance_ms(24 * HOUR_MS);
    let reports = house.reports();
    assert_eq!(reports.retry_parked().await.unwrap(), 4);
    assert_eq!(reports.retry_parked().await.unwrap(), 0);
    let found = discrepancies(&house).await;
    assert_eq!(found.iter().map(|found| found.cause.as_str()).collect::<Vec<_>>(), ["a/1", "b/1", "c/1", "d/1"]);
    assert_eq!(found[0].reported_tokens, 2);
    assert_eq!((counted(&house, ReportResult::Unmatched), house.metrics.reports_parked.get()), (4, 0));
    assert_eq!(charged(&house, 1).await, (PendingReconciliation, "0".to_owned()), "nobody else's usage settles it");
}

#[tokio::test]
async fn what_cannot_be_used_is_poison_and_names_the_remedy() {
    let house = House::open().await;
    let mut call = Call::reserve(&house, &request(1)).await;
    assert!(call.start(&house, 1, "unpriced", of_attempt(1_100, "0.031"), None).await);
    call.append(&house).await;
    call.finish(&house, 1, Closing::MayHaveExecuted).await;
    house.build().await;
    house.give(report(id(1), 1, 100, 900)).await;
    let poison = house.pump(&house.reports(), &of_reports(), true).await.unwrap_err();
    assert!(poison.to_string().contains("no price book of version `prices-1` with a price `unpriced`"), "{poison}");

    let house = House::open().await;
    timed_out(&house, 1).await;
    let silent = UsageReport { meters: Usage::default(), ..report(id(1), 1, 0, 0) };
    house.give(silent).await;
    let poison = house.pump(&house.reports(), &of_reports(), true).await.unwrap_err();
    assert!(poison.to_string().contains("unknown is not zero"), "{poison}");
    assert_eq!(charged(&house, 1).await, (PendingReconciliation, "0".to_owned()));
}

#[tokio::test]
async fn the_index_learns_the_newest_correlations_of_the_log() {
    let house = House::open().await;
    let mut call = Call::reserve(&house, &request(1)).await;
    assert!(call.start(&house, 1, "primary", of_attempt(1_100, "0.031"), None).await);
    assert!(call.ask(&house, &Command::Correlate { number: 1, provider_id: "resp-1".to_owned() }).await);
    call.append(&house).await;
    call.finish(&house, 1, executed(1_000, "0.028")).await;
    house.settle().await;
    let confirms = by_provider_id(report(id(1), 1, 100, 900), "resp-1");
    house.give(confirms).await;
    house.settle().await;
    assert_eq!(counted(&house, ReportResult::Parked), 1, "it is not pending, and the index knows nothing yet");
    house.index.learn(&house.read_from(Topic::Reservations, 0).await);
    let told = house.told(id(1)).await.len();
    assert_eq!(house.reports().retry_parked().await.unwrap(), 1);
    assert_eq!(counted(&house, ReportResult::Duplicate), 1);
    house.settle().await;
    assert!(discrepancies(&house).await.is_empty());
    assert_eq!(house.told(id(1)).await.len(), told, "what only confirms is no event");
    house.assert_agrees("confirmed").await;
}

#[tokio::test]
async fn the_index_follows_the_log_until_it_is_told_to_stop() {
    let house = House::open().await;
    let index = house.index.clone();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let follow = index.follow(std::sync::Arc::clone(&house.log), 0, async {
        let _told = stopped.await;
    });
    let work = async {
        let mut call = Call::reserve(&house, &request(1)).await;
        assert!(call.start(&house, 1, "primary", of_attempt(1_100, "0.031"), None).await);
        assert!(call.ask(&house, &Command::Correlate { number: 1, provider_id: "resp-1".to_owned() }).await);
        call.append(&house).await;
        while crate::AttemptIndex::find(&*house.index, "resp-1").await.unwrap() != Some((id(1), 1)) {
            tokio::task::yield_now().await;
        }
        stop.send(()).unwrap();
    };
    let (followed, ()) = tokio::join!(follow, work);
    followed.unwrap();
}

#[tokio::test]
async fn an_older_revision_that_comes_late_changes_nothing() {
    let house = House::open().await;
    let asked = weir_domain::testing::Request { adjust_on_mismatch: true, ..request(1) };
    let mut call = Call::reserve(&house, &asked).await;
    assert!(call.start(&house, 1, "primary", of_attempt(1_100, "0.031"), None).await);
    call.append(&house).await;
    call.finish(&house, 1, Closing::MayHaveExecuted).await;
    house.build().await;
    house.give(UsageReport { revision: 2, ..report(id(1), 1, 100, 900) }).await;
    house.settle().await;
    house.give(report(id(1), 1, 100, 100)).await;
    house.settle().await;
    assert_eq!(charged(&house, 1).await, (Settled, "0.028".to_owned()));
    house.give(UsageReport { revision: 3, ..report(id(1), 1, 100, 800) }).await;
    house.settle().await;
    assert_eq!(charged(&house, 1).await, (Settled, "0.025".to_owned()), "where the tenant adjusts, the newest counts");
    house.assert_agrees("revisions").await;
}

/// I13: the attempt names its price itself. No catalog here knows its deployment, as after one that removed it.
#[tokio::test]
async fn a_report_for_a_deployment_that_left_the_catalog_settles_exactly() {
    let house = House::open().await;
    let mut call = Call::reserve(&house, &request(1)).await;
    let target = Target { deployment: "removed".into(), ..Target::clone(&target("primary")) };
    let hold = of_attempt(1_100, "0.031");
    let start = Command::StartAttempt { number: 1, hold, target: target.into(), previous: None };
    assert!(call.ask(&house, &start).await);
    call.append(&house).await;
    call.finish(&house, 1, Closing::MayHaveExecuted).await;
    house.build().await;
    house.give(report(id(1), 1, 701, 13)).await;
    house.settle().await;
    assert_eq!(charged(&house, 1).await, (Settled, "0.0074".to_owned()));
    house.assert_agrees("a deployment that left").await;
}

#[tokio::test]
async fn a_feed_of_strangers_is_held_up_at_the_bound() {
    let house = House::open().await;
    let ports = crate::ReportPorts {
        quota: house.quota.clone(),
        projection: house.projection(),
        journal: house.journal(),
        prices: std::sync::Arc::new(super::TestPrices::new()),
        index: house.index.clone(),
    };
    let options = crate::ReconcilerOptions { max_parked_reports: 2, ..crate::ReconcilerOptions::default() };
    let reports = crate::Reports::new(ports, house.metrics.clone(), options);
    for n in 1..=3 {
        house.give(report(id(n), 1, 1, 1)).await;
    }
    let held_up = house.pump(&reports, &of_reports(), true).await;
    assert!(matches!(held_up, Err(EffectError::Retry { .. })), "{held_up:?}");
    assert_eq!(house.metrics.reports_parked.get(), 2);
}
