//! The corrector: lines that come once, twice, late, for records that are gone, and to a store that is away.

use std::sync::Arc;

use bytes::Bytes;

use weir_domain::reservation::ReservationStatus;
use weir_domain::testing::{LEASE_MS, executed, id, of_attempt, request};
use weir_quota::QuotaStore as _;
use weir_streams::consumer::{MemoryParking, Parking as _};
use weir_streams::{Batch, Consumer, ConsumerOptions, Delivery, Effect as _, EffectError, OnPoison, Topic};

use super::{Call, House, of_corrector, report, tenant};

async fn settled(house: &House, n: u64) -> Call {
    let mut call = Call::reserve(house, &request(n)).await;
    assert!(call.start(house, 1, "primary", of_attempt(1_000, "0.05"), None).await);
    call.append_closing(house, 1, executed(300, "0.02")).await;
    house.build().await;
    call
}

#[tokio::test]
async fn a_line_settles_what_the_store_had_not_heard_of_and_again_changes_nothing() {
    let house = House::open().await;
    settled(&house, 1).await;
    house.pump(&house.corrector(), &of_corrector(), false).await.unwrap();
    let found = house.find(id(1)).await.unwrap();
    assert_eq!(found.charged().usd.to_string(), "0.02");
    let once = house.memory.read(&tenant()).await.unwrap();
    // Killed before its position was stored: the same lines come again.
    house.correct().await;
    assert_eq!(house.memory.read(&tenant()).await.unwrap(), once);
    assert_eq!(house.metrics.corrections.get(), 1);
}

#[tokio::test]
async fn lines_delivered_again_from_the_first_end_where_they_ended() {
    let house = House::open().await;
    let mut call = settled(&house, 1).await;
    house.correct().await;
    call.close_store(&house, &[weir_domain::reservation::Command::Close]).await;
    let mut person = report(id(1), 1, 100, 900);
    person.source = weir_schemas::usage_report::ReportSource::Manual;
    house.give(person).await;
    house.settle().await;
    let before = house.memory.read(&tenant()).await.unwrap();
    let records = house.read_from(Topic::Ledger, 0).await;
    assert_eq!(records.len(), 2, "the response's line and the person's adjustment");
    let subscription = of_corrector();
    let again = Delivery { subscription: &subscription, records: &records, position: None };
    house.corrector().apply(again).await.unwrap();
    assert_eq!(house.memory.read(&tenant()).await.unwrap(), before);
    house.assert_agrees("both lines again").await;
}

#[tokio::test]
async fn a_record_that_is_gone_is_not_charged_twice() {
    let house = House::open().await;
    let mut call = settled(&house, 1).await;
    call.close_store(&house, &[weir_domain::reservation::Command::Close]).await;
    house.settle().await;
    // A day later the record leaves, with the next commands.
    house.clock.advance_ms(2 * 24 * super::HOUR_MS);
    for n in 2..4 {
        settled(&house, n).await;
    }
    house.settle().await;
    house.clock.advance_ms(LEASE_MS);
    house.settle().await;
    assert_eq!(house.find(id(1)).await, None);
    let before = house.memory.read(&tenant()).await.unwrap();
    let records = house.read_from(Topic::Ledger, 0).await;
    let subscription = of_corrector();
    let again = Delivery { subscription: &subscription, records: &records, position: None };
    house.corrector().apply(again).await.unwrap();
    assert_eq!(house.memory.read(&tenant()).await.unwrap(), before);
    house.assert_agrees("after the record is gone").await;
}

#[tokio::test]
async fn a_store_that_is_away_is_waited_for_and_an_unreadable_line_is_poison() {
    let house = House::open().await;
    settled(&house, 1).await;
    house.memory.fence();
    let waits = house.pump(&house.corrector(), &of_corrector(), true).await;
    assert!(matches!(waits, Err(EffectError::Retry { .. })), "{waits:?}");

    let house = House::open().await;
    let garbage = Batch::new(Topic::Ledger, Bytes::from_static(b"k"), 0, vec![Bytes::from_static(b"no frame")]);
    house.log.append(garbage).durable().await.unwrap();
    let poison = house.pump(&house.corrector(), &of_corrector(), true).await;
    assert!(matches!(poison, Err(EffectError::Poison { offset: 0, .. })), "{poison:?}");
}

#[tokio::test]
async fn poison_parks_its_key_and_the_others_go_on() {
    let house = House::open().await;
    let garbage = Batch::new(Topic::Ledger, Bytes::from_static(b"k"), 0, vec![Bytes::from_static(b"no frame")]);
    house.log.append(garbage).durable().await.unwrap();
    settled(&house, 1).await;
    let parking = Arc::new(MemoryParking::default());
    let consumer = Arc::new(Consumer::new(
        of_corrector(),
        Arc::clone(&house.log),
        Arc::new(house.corrector()),
        Arc::new(weir_streams::consumer::MemoryPositions::default()),
        Arc::clone(&parking) as _,
        ConsumerOptions::new(OnPoison::ParkKey),
    ));
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let run = consumer.run(async {
        let _told = stopped.await;
    });
    let watch = async {
        while house.status(id(1)).await != Some(ReservationStatus::Reserved)
            || house.find(id(1)).await.unwrap().charged().usd.nanos() == 0
        {
            tokio::task::yield_now().await;
        }
        stop.send(()).unwrap();
    };
    let (ran, ()) = tokio::join!(run, watch);
    ran.unwrap();
    assert_eq!(parking.list(&of_corrector()).await.unwrap().len(), 1);
}
