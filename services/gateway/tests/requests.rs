//! The main paths through a gateway: what the client gets, what the provider saw, what the log and the counters say.

use crate::support::{House, body};
use weir_domain::money::NanoUsd;
use weir_domain::reservation::ReservationStatus;
use weir_stub::script::{Script, UsageScript};

fn usage(prompt: i64, completion: i64) -> UsageScript {
    UsageScript { prompt: Some(prompt), completion: Some(completion), ..UsageScript::default() }
}

#[tokio::test]
async fn a_plain_request_is_six_events_in_two_batches_and_an_exact_charge() {
    let house = House::of(Script { text: Some("hello".to_owned()), usage: usage(7, 2), ..Script::default() }).await;
    let read = house.post(body(false)).await;
    assert_eq!(read.status, 200, "{}", read.text());
    assert_eq!(read.json()["choices"][0]["message"]["content"], "hello");
    assert_eq!(read.json()["model"], crate::support::MODEL);
    let reservation = house.reservation_of(&read).await;
    assert_eq!(reservation.status(), ReservationStatus::Settled);
    let charged = reservation.charged();
    assert_eq!((charged.requests, charged.tokens, charged.usd), (1, 9, NanoUsd::from_nanos(7 * 10_000 + 2 * 30_000)));
    let expected = [
        "ReservationCreated",
        "AttemptStarted",
        "AttemptCorrelated",
        "UsageRecorded",
        "AttemptClosed",
        "ReservationSettled",
    ];
    assert_eq!(house.kinds().await, expected);
}

#[tokio::test]
async fn a_stream_is_relayed_and_charged_by_the_usage_that_the_client_did_not_ask_for() {
    let house = House::of(Script { chunks: 5, usage: usage(20, 5), ..Script::default() }).await;
    let read = house.post(body(true)).await;
    assert_eq!(read.status, 200, "{}", read.text());
    assert!(!read.content().is_empty());
    let events = read.events();
    assert_eq!(events.last().map(String::as_str), Some("[DONE]"));
    assert!(!read.text().contains(r#""choices":[]"#), "the usage chunk is hidden: {}", read.text());
    let reservation = house.reservation_of(&read).await;
    assert_eq!((reservation.status(), reservation.charged().tokens), (ReservationStatus::Settled, 25));
}
