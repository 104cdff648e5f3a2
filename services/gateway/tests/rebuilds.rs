//! The quota store loses its data between a reservation and the call of the provider (I2, I15).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::logs::Intercepted;
use crate::support::{House, PATIENCE, body, tenant};
use tokio::time::{Instant, sleep};
use weir_domain::fold::Fold;
use weir_domain::ledger::SourcePosition;
use weir_domain::quota::BookOptions;
use weir_quota::QuotaStore;
use weir_streams::segment::SegmentLog;
use weir_streams::{Batch, EventLog};
use weir_stub::script::Script;

/// Before the first append the counters are lost and rebuilt: the store has taken the attempt, and nobody else knows of
/// it. `hears`: whether the process is told, as one is that is not stopped.
async fn house_that_loses(hears: bool) -> House {
    let mut house = House::of(Script::default()).await;
    let (log, quota, trust) = (Arc::clone(&house.log), Arc::clone(&house.quota), Arc::clone(&house.trust));
    let has_lost = AtomicBool::new(false);
    let append = move |log: &SegmentLog, batch: Batch| {
        if !has_lost.swap(true, Ordering::SeqCst) {
            quota.fence();
            if hears {
                trust.doubt();
            }
            quota.open(HashMap::new(), 60_000);
        }
        log.append(batch)
    };
    house.gateway = house.replica_on("late", Arc::new(Intercepted { log, append }));
    house
}

/// Rebuilt without the hold, which nobody had on the log yet: the provider is not called.
#[tokio::test]
async fn i15_an_attempt_that_the_rebuilt_counters_do_not_know_calls_nobody() {
    let house = house_that_loses(true).await;
    let read = house.post(body(false)).await;
    assert_eq!((read.status.as_u16(), read.json()["error"]["code"].as_str()), (503, Some("quota_unavailable")));
    assert!(house.stubs[0].journal().is_empty(), "no provider is called");
    // What went to the log ends there as what it was: nothing.
    let deadline = Instant::now() + PATIENCE;
    while !house.kinds().await.contains(&"ReservationReleased") {
        assert!(Instant::now() < deadline, "{:?}", house.kinds().await);
        sleep(Duration::from_millis(5)).await;
    }
    let mut fold = Fold::new(BookOptions::default());
    for (offset, (id, event)) in (0..).zip(house.events().await) {
        fold.absorb(SourcePosition { partition: 0, offset }, id, &event, 1_000_000).unwrap();
    }
    let book = fold.book(&tenant()).unwrap();
    assert!(book.held().is_zero(), "{:?}", book.held());
    assert!(house.quota.read(&tenant()).await.unwrap().counters.is_empty());
    assert_eq!(house.post(body(false)).await.status, 200, "the next one is admitted by the new counters");
}

/// Rebuilt with the hold, because it was on the log by then: the same attempt goes on.
#[tokio::test]
async fn i15_an_attempt_that_the_rebuilt_counters_know_goes_on() {
    let house = House::of(Script::default()).await;
    house.trust.doubt();
    assert_eq!(house.post(body(false)).await.status, 200);
    house.trust.doubt();
    assert_eq!(house.post(body(true)).await.status, 200);
    assert_eq!(house.stubs[0].journal().len(), 2);
}
