//! The comparison finds what differs, in whichever of the two; and every metric is scraped once.

use weir_domain::ids::TenantId;
use weir_domain::quota::{Book, BookOptions};
use weir_domain::reconcile::Plan;
use weir_domain::testing::{LEASE_MS, executed, of_attempt, request};
use weir_quota::QuotaStore as _;
use weir_runtime::metrics::Metrics;
use weir_runtime::tasks::Tasks;
use weir_runtime::units::HumanDuration;

use std::sync::Arc;
use std::time::Duration;

use weir_domain::calendar::Window;
use weir_domain::reservation::ReservationStatus;

use super::{Call, HOUR_MS, House, tenant};
use crate::compare::compare;
use crate::metrics::{ByAction, ByResult, ReconcilerMetrics, ReportResult};

async fn settled(house: &House, n: u64) {
    let mut call = Call::reserve(house, &request(n)).await;
    assert!(call.start(house, 1, "primary", of_attempt(1_000, "0.05"), None).await);
    call.append(house).await;
    call.finish(house, 1, executed(300, "0.02")).await;
    house.settle().await;
}

#[tokio::test]
async fn an_empty_store_and_a_lost_charge_are_both_seen() {
    let house = House::open().await;
    settled(&house, 1).await;
    house.assert_agrees("at rest").await;
    let whole = house.replay().await;

    house.memory.open([(tenant(), Book::new(BookOptions::default()))].into(), LEASE_MS);
    let empty = compare(&*house.memory, &house.store, &tenant()).await.unwrap();
    assert!(!empty.agrees());
    // Three subjects, over all models and on one, in four windows.
    assert_eq!((empty.compared, empty.differing), (24, 24));
    assert_eq!(empty.differences[0].charged_by_ledger.usd.to_string(), "0.02");

    house.memory.open([(tenant(), whole)].into(), LEASE_MS);
    house.assert_agrees("brought back").await;
    // One that the ledger does not have.
    let mut call = Call::reserve(&house, &request(2)).await;
    assert!(call.start(&house, 1, "primary", of_attempt(1_000, "0.05"), None).await);
    let extra = compare(&*house.memory, &house.store, &tenant()).await.unwrap();
    assert_eq!((extra.differing, extra.held_by_log.tokens, extra.held_in_store.tokens), (24, 0, 1_000));
    call.append(&house).await;
    house.build().await;
    house.assert_agrees("a hold that the log knows").await;
}

#[tokio::test]
async fn windows_that_the_store_has_forgotten_are_not_missed() {
    let house = House::open().await;
    for n in 1..=4 {
        settled(&house, n).await;
        house.clock.advance_ms(24 * HOUR_MS);
    }
    let compared = compare(&*house.memory, &house.store, &tenant()).await.unwrap();
    assert!(compared.agrees(), "{compared:#?}");
    let counters = house.memory.read(&tenant()).await.unwrap().counters;
    let total = counters.iter().find(|reading| reading.window == Window::TOTAL).unwrap();
    assert_eq!(total.counter.charged.requests, 4);
}

#[tokio::test]
async fn the_sweep_runs_as_a_task_and_stops_when_told() {
    let house = House::open().await;
    let call = Call::reserve(&house, &request(1)).await;
    house.build().await;
    house.clock.advance_ms(LEASE_MS);
    let options = crate::ReconcilerOptions { period: HumanDuration::from_ms(1), ..crate::ReconcilerOptions::default() };
    let sweep = Arc::new(crate::Sweep::new(
        house.quota.clone(),
        house.projection(),
        house.journal(),
        Arc::new(weir_domain::reconcile::CeilingPolicy::Person),
        house.metrics.clone(),
        options,
    ));
    let tasks = Tasks::new();
    let running = tasks.spawn("sweep", sweep.run(tasks.clone()));
    let released = async {
        while house.status(call.id).await != Some(ReservationStatus::Released) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), released).await.unwrap();
    assert!(tasks.stop(Duration::from_secs(20)).await.is_empty());
    running.await.unwrap();
}

#[test]
fn every_metric_is_scraped_under_its_name() {
    let metrics = Metrics::new();
    let own = ReconcilerMetrics::declare(&metrics);
    own.pending.set(3);
    own.pending_age_ms_max.set(61_000);
    own.pending_held_nanousd.set(31_000_000);
    own.set_pending_shares(&[(TenantId::from("gone"), 1)]);
    own.set_pending_shares(&[(TenantId::from("acme"), 805)]);
    own.actions.get_or_create(&ByAction::of(&Plan::CompleteAndPend)).inc();
    own.troubles.inc();
    own.escalations.inc();
    own.corrections.inc();
    own.reports.get_or_create(&ByResult::of(ReportResult::Settled)).inc();
    own.reports_parked.set(2);
    let scrape = metrics.encode();
    for line in [
        "weir_reconciler_pending 3",
        "weir_reconciler_pending_age_ms_max 61000",
        "weir_reconciler_pending_held_nanousd 31000000",
        "weir_reconciler_pending_share_permille_max{tenant=\"acme\"} 805",
        "weir_reconciler_sweep_actions_total{action=\"pend\"} 1",
        "weir_reconciler_sweep_troubles_total 1",
        "weir_reconciler_escalations_total 1",
        "weir_reconciler_corrections_total 1",
        "weir_reconciler_reports_total{result=\"settled\"} 1",
        "weir_reconciler_reports_parked 2",
    ] {
        assert!(scrape.contains(line), "{line} is not in\n{scrape}");
    }
    assert!(!scrape.contains("gone"), "{scrape}");
}
