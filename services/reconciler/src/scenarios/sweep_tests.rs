//! Every row of the plan's table: acted on once, twice, killed after every step, and with a gateway that wakes up late.

use weir_domain::calendar::{Calendar, WindowKind};
use weir_domain::ids::{ReservationId, TenantId};
use weir_domain::quota::{Limit, Measure, Scope, Subject, Unit};
use weir_domain::reconcile::CeilingPolicy;
use weir_domain::reservation::{Closing, Command, ReservationStatus};
use weir_domain::testing::{LEASE_MS, OWNER, amounts, executed, id, of_attempt, request};

use super::{Call, HOUR_MS, House, tenant};
use weir_quota::QuotaStore as _;
use weir_streams::Topic;

use ReservationStatus::{PendingReconciliation, Released, Reserved, Settled};

/// How a gateway left a reservation behind.
#[derive(Debug, Clone, Copy)]
enum Left {
    /// Admitted, nothing marked, nothing on the log.
    Unmarked,
    /// Marked in the store alone.
    Marked,
    /// Marked, and on the log.
    Running,
    /// An attempt that did not run is on the log as such; the store has not heard of it.
    RefusedOnLog,
    /// The usage is on the log; the store has not heard of it.
    UsageOnLog,
    /// The store knows the usage, and was not closed.
    NotClosed,
    /// Attempt 1 executed, closed by the mark of attempt 2; none of that is on the log.
    SecondMarked,
    /// Attempt 1 did not run, closed by the mark of attempt 2; none of that is on the log.
    SecondAfterRefusal,
    /// Tightened and correlated in the store; the events are lost.
    Bounded,
}

const EVERY_WAY: [(Left, ReservationStatus, &str); 9] = [
    (Left::Unmarked, Released, "0"),
    (Left::Marked, PendingReconciliation, "0"),
    (Left::Running, PendingReconciliation, "0"),
    (Left::RefusedOnLog, Released, "0"),
    (Left::UsageOnLog, Settled, "0.02"),
    (Left::NotClosed, Settled, "0.02"),
    (Left::SecondMarked, PendingReconciliation, "0.02"),
    (Left::SecondAfterRefusal, PendingReconciliation, "0"),
    (Left::Bounded, PendingReconciliation, "0"),
];

async fn leave(house: &House, left: Left) -> Call {
    let mut call = Call::reserve(house, &request(1)).await;
    let hold = of_attempt(1_000, "0.05");
    if !matches!(left, Left::Unmarked) {
        assert!(call.start(house, 1, "primary", hold, None).await);
    }
    match left {
        Left::Unmarked | Left::Marked => {}
        Left::Running => call.append(house).await,
        Left::RefusedOnLog => {
            call.append_closing(house, 1, Closing::NotExecuted).await;
        }
        Left::UsageOnLog => {
            call.append_closing(house, 1, executed(300, "0.02")).await;
        }
        Left::NotClosed => {
            let [close_attempt, _] = call.append_closing(house, 1, executed(300, "0.02")).await;
            call.close_store(house, &[close_attempt]).await;
        }
        Left::SecondMarked | Left::SecondAfterRefusal => {
            call.append(house).await;
            let previous =
                if matches!(left, Left::SecondMarked) { executed(300, "0.02") } else { Closing::NotExecuted };
            assert!(call.ask(house, &Command::Extend { number: 2, hold, limits: [].into() }).await);
            assert!(call.start(house, 2, "secondary", of_attempt(500, "0.01"), Some(previous)).await);
        }
        Left::Bounded => {
            assert!(call.ask(house, &Command::Tighten { number: 1, hold: of_attempt(700, "0.03") }).await);
            assert!(call.ask(house, &Command::Correlate { number: 1, provider_id: "resp-1".to_owned() }).await);
        }
    }
    call
}

async fn expect(house: &House, id: ReservationId, status: ReservationStatus, charged: &str, what: &str) {
    let found = house.find(id).await.unwrap();
    assert_eq!((found.status(), found.charged().usd.to_string().as_str()), (status, charged), "{what}");
    house.assert_agrees(what).await;
}

#[tokio::test]
async fn a_lease_that_did_not_end_is_left_alone() {
    for (left, ..) in EVERY_WAY {
        let house = House::open().await;
        let call = leave(&house, left).await;
        house.build().await;
        house.clock.advance_ms(LEASE_MS - 1);
        let round = house.sweep().round().await.unwrap();
        assert_eq!((round.acted, house.status(call.id).await), (0, Some(Reserved)), "{left:?}");
    }
}

#[tokio::test]
async fn every_way_to_be_left_behind_ends_and_twice_is_once() {
    for (left, status, charged) in EVERY_WAY {
        let house = House::open().await;
        let call = leave(&house, left).await;
        house.clock.advance_ms(LEASE_MS);
        house.build().await;
        // Two sweeps at the same time, then a third.
        let (first, second) = (house.sweep(), house.sweep());
        let (one, two) = tokio::join!(first.round(), second.round());
        assert!(one.unwrap().acted + two.unwrap().acted > 0, "{left:?}");
        house.settle().await;
        expect(&house, call.id, status, charged, &format!("{left:?}")).await;
        let told = house.told(call.id).await.len();
        house.settle().await;
        assert_eq!(house.told(call.id).await.len(), told, "{left:?}: nothing is said again");
    }
}

#[tokio::test]
async fn a_sweep_that_is_killed_anywhere_is_completed_by_the_next() {
    for (left, status, charged) in EVERY_WAY {
        for calls in 0..4 {
            let mut house = House::open().await;
            let call = leave(&house, left).await;
            house.clock.advance_ms(LEASE_MS);
            house.build().await;
            house.quota.die_after(calls);
            let _died = house.sweep().round().await;
            house.quota.revive();
            if calls % 2 == 1 {
                // Everything dies with it, and what was in memory alone is gone: nothing is then held for it.
                house.restart().await;
                house.clock.advance_ms(LEASE_MS);
            }
            house.settle().await;
            expect(&house, call.id, status, charged, &format!("{left:?}, killed after {calls} calls")).await;
        }
    }
}

#[tokio::test]
async fn a_gateway_that_wakes_up_late_finds_its_reservation_or_stops() {
    // What it does next, whatever happened meanwhile: the end is what it says.
    for (left, ..) in EVERY_WAY {
        let house = House::open().await;
        let mut call = leave(&house, left).await;
        house.clock.advance_ms(LEASE_MS);
        house.settle().await;
        let number = call.state.as_ref().unwrap().attempts.last().map(|attempt| attempt.number);
        let what = format!("{left:?}, late");
        match number {
            None => {
                let marked = call.start(&house, 1, "primary", of_attempt(1_000, "0.05"), None).await;
                assert!(!marked, "{what}: it must not call the provider any more");
                expect(&house, call.id, Released, "0", &what).await;
            }
            Some(number) => {
                call.append(&house).await;
                call.finish(&house, number, executed(100, "0.005")).await;
                house.settle().await;
                let found = house.find(call.id).await.unwrap();
                assert!(found.status().is_final(), "{what}: {found:?}");
                house.assert_agrees(&what).await;
            }
        }
    }
}

#[tokio::test]
async fn a_gateway_that_marks_between_the_plan_and_the_release_is_held() {
    let house = House::open().await;
    let mut call = leave(&house, Left::Unmarked).await;
    house.clock.advance_ms(LEASE_MS);
    house.build().await;
    // The release is on the log, and the sweep dies; then the gateway marks and goes on.
    house.quota.die_after(0);
    assert!(house.sweep().round().await.is_err());
    house.quota.revive();
    assert!(call.start(&house, 1, "primary", of_attempt(1_000, "0.05"), None).await);
    call.append(&house).await;
    house.settle().await;
    expect(&house, call.id, PendingReconciliation, "0", "marked after the release was told").await;
    call.finish(&house, 1, executed(100, "0.005")).await;
    house.settle().await;
    expect(&house, call.id, Settled, "0.005", "and finished").await;
}

#[tokio::test]
async fn a_late_gateway_takes_an_expired_reservation_back_and_ends_it() {
    let house = House::open().await;
    let mut call = leave(&house, Left::Running).await;
    house.clock.advance_ms(LEASE_MS);
    house.settle().await;
    assert_eq!(house.status(call.id).await, Some(PendingReconciliation));
    let until_ms = weir_runtime::clock::Clock::now_ms(&*house.clock) + LEASE_MS;
    assert!(call.ask(&house, &Command::Renew { until_ms, owner: OWNER.into() }).await);
    call.append(&house).await;
    house.settle().await;
    assert_eq!(house.status(call.id).await, Some(Reserved), "it is left alone while the lease lives");
    // It dies for good this time.
    house.clock.advance_ms(LEASE_MS);
    house.settle().await;
    expect(&house, call.id, PendingReconciliation, "0", "pended twice").await;
    call.finish(&house, 1, Closing::NotExecuted).await;
    house.settle().await;
    expect(&house, call.id, Released, "0", "not executed after all").await;
}

#[tokio::test]
async fn silence_of_a_lagging_builder_proves_nothing() {
    let house = House::open().await;
    let call = leave(&house, Left::UsageOnLog).await;
    house.clock.advance_ms(LEASE_MS);
    let round = house.sweep().round().await.unwrap();
    assert_eq!((round.acted, round.waiting), (0, 1));
    assert_eq!(house.status(call.id).await, Some(Reserved));
    house.build().await;
    assert_eq!(house.sweep().round().await.unwrap().acted, 1);
    expect(&house, call.id, Settled, "0.02", "once the builder has read it").await;
}

#[tokio::test]
async fn silence_about_a_parked_reservation_proves_nothing() {
    let house = House::open().await;
    let call = leave(&house, Left::Running).await;
    house.build().await;
    house.clock.advance_ms(LEASE_MS);
    let event = house.read_from(Topic::Reservations, 0).await.remove(0);
    house.store.park(&weir_ledger::subscription(0), &event, "cannot be read").await.unwrap();
    let round = house.sweep().round().await.unwrap();
    assert_eq!((round.acted, round.waiting), (0, 1), "a line may come once a person has looked at it");
    assert_eq!(house.status(call.id).await, Some(Reserved));
}

#[tokio::test]
async fn a_pending_reservation_takes_the_line_that_the_ledger_has_meanwhile() {
    let house = House::open().await;
    let mut call = leave(&house, Left::Running).await;
    house.clock.advance_ms(LEASE_MS);
    house.settle().await;
    call.append_closing(&house, 1, executed(300, "0.02")).await;
    house.build().await;
    assert_eq!(house.sweep().round().await.unwrap().acted, 1, "without a corrector");
    expect(&house, call.id, Settled, "0.02", "from the ledger").await;
}

#[tokio::test]
async fn after_the_ceiling_a_person_decides_once_and_the_worst_case_stays_held() {
    for calls in 0..2 {
        let house = House::open().await;
        let call = leave(&house, Left::Running).await;
        house.clock.advance_ms(LEASE_MS);
        house.settle().await;
        house.clock.advance_ms(24 * HOUR_MS - LEASE_MS - 1);
        house.settle().await;
        assert!(!house.find(call.id).await.unwrap().escalated, "the ceiling is not over");
        house.clock.advance_ms(1);
        house.quota.die_after(calls);
        let _died = house.sweep().round().await;
        house.quota.revive();
        house.settle().await;
        house.settle().await;
        let found = house.find(call.id).await.unwrap();
        assert_eq!((found.escalated, found.held()), (true, amounts(1, 1_000, "0.05")));
        assert_eq!(house.metrics.escalations.get(), 1);
        expect(&house, call.id, PendingReconciliation, "0", "escalated").await;
    }
}

#[tokio::test]
async fn where_the_tenant_says_so_the_worst_case_is_charged_as_a_flagged_estimate() {
    for calls in 0..2 {
        let mut house = House::open().await;
        house.policy = CeilingPolicy::Estimate;
        let call = leave(&house, Left::SecondMarked).await;
        house.clock.advance_ms(24 * HOUR_MS);
        house.build().await;
        house.settle().await;
        house.quota.die_after(calls);
        let _died = house.sweep().round().await;
        house.quota.revive();
        house.settle().await;
        expect(&house, call.id, Settled, "0.03", "0.02 known and 0.01 estimated").await;
        let lines = house.store.find(call.id).await.unwrap().unwrap().lines;
        let flags: Vec<_> = lines.iter().map(|line| (line.key.attempt, line.flagged)).collect();
        assert_eq!(flags, [(1, false), (2, true)]);
    }
}

#[tokio::test]
async fn a_log_that_refuses_leaves_the_store_as_it_was() {
    for (left, ..) in EVERY_WAY {
        let house = House::open().await;
        let call = leave(&house, left).await;
        house.clock.advance_ms(LEASE_MS);
        house.build().await;
        let before = house.find(call.id).await;
        house.log.close().await;
        assert!(house.sweep().round().await.is_err(), "{left:?}");
        assert_eq!(house.find(call.id).await, before, "{left:?}");
    }
}

#[tokio::test]
async fn after_an_outage_of_the_store_leases_get_one_life() {
    let house = House::open().await;
    let call = leave(&house, Left::Running).await;
    house.build().await;
    let sweep = house.sweep();
    house.clock.advance_ms(LEASE_MS);
    let book = house.memory.clone();
    book.fence();
    assert!(sweep.round().await.is_err());
    // It comes back with a lease that has ended, because nobody could renew.
    let books = [(tenant(), house.replay().await)].into();
    book.open(books, 0);
    assert_eq!(sweep.round().await.unwrap().acted, 0, "nobody could renew: one life of patience");
    house.clock.advance_ms(LEASE_MS - 1);
    assert_eq!(sweep.round().await.unwrap().acted, 0);
    house.clock.advance_ms(1);
    assert_eq!(sweep.round().await.unwrap().acted, 1);
    assert_eq!(house.status(call.id).await, Some(PendingReconciliation));
}

#[tokio::test]
async fn more_pending_reservations_than_a_round_takes_are_all_looked_at() {
    let house = House::open().await;
    for n in 1..=7 {
        let mut call = Call::reserve(&house, &request(n)).await;
        assert!(call.start(&house, 1, "primary", of_attempt(10, "0.001"), None).await);
        call.append(&house).await;
    }
    house.clock.advance_ms(LEASE_MS);
    house.settle().await;
    assert_eq!(house.memory.read(&tenant()).await.unwrap().pending, 7);
    assert_eq!(house.metrics.pending.get(), 7);
    assert_eq!(house.metrics.pending_held_nanousd.get(), 7_000_000);
    house.clock.advance_ms(24 * HOUR_MS);
    let options = crate::ReconcilerOptions { reservations_per_round: 3, ..crate::ReconcilerOptions::default() };
    let sweep = crate::Sweep::new(
        house.quota.clone(),
        house.projection(),
        house.journal(),
        std::sync::Arc::new(CeilingPolicy::Person),
        house.metrics.clone(),
        options,
    );
    let mut acted = Vec::new();
    for _ in 0..3 {
        house.build().await;
        acted.push(sweep.round().await.unwrap().acted);
    }
    assert_eq!(acted, [3, 3, 1]);
    assert!(house.find(id(7)).await.unwrap().escalated);
}

/// One cent a day, and much a month.
#[derive(Debug)]
struct OneCent;

impl crate::CeilingPolicies for OneCent {
    fn policy(&self, _: &TenantId) -> CeilingPolicy {
        CeilingPolicy::Person
    }

    fn limits(&self, of: &TenantId, now_ms: i64) -> Option<crate::TenantLimits> {
        let limit = |window, max| Limit {
            scope: Scope { subject: Subject::Tenant, model: None },
            measure: Measure::Calendar { unit: Unit::Usd, window },
            max,
        };
        let limits = vec![limit(WindowKind::Month, 1_000_000_000), limit(WindowKind::Day, 10_000_000)];
        let windows = Calendar::default().at(now_ms);
        (*of == tenant()).then_some(crate::TenantLimits { limits, windows })
    }
}

#[tokio::test]
async fn pending_holds_are_told_as_their_share_of_the_limits_in_force() {
    let house = House::open().await;
    for n in 1..=7 {
        let mut call = Call::reserve(&house, &request(n)).await;
        assert!(call.start(&house, 1, "primary", of_attempt(10, "0.001"), None).await);
        call.append(&house).await;
    }
    house.clock.advance_ms(LEASE_MS);
    house.settle().await;
    let (quota, policies) = (house.quota.clone(), std::sync::Arc::new(OneCent));
    let options = crate::ReconcilerOptions::default();
    let sweep = crate::Sweep::new(quota, house.projection(), house.journal(), policies, house.metrics.clone(), options);
    let share = || {
        let label = crate::metrics::ByTenant { tenant: tenant().as_str().into() };
        house.metrics.pending_share_permille_max.get_or_create(&label).get()
    };
    sweep.round().await.unwrap();
    assert_eq!(share(), 700, "seven tenths of the day's cent");
    // What is pending since yesterday takes nothing of today.
    house.clock.advance_ms(13 * HOUR_MS);
    sweep.round().await.unwrap();
    assert_eq!(share(), 7);
}
