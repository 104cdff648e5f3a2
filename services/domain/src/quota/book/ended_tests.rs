//! Packed entries come back as they were, and are small.

use super::*;
use crate::money::Amounts;
use crate::quota::{Book, BookOptions};
use crate::reservation::{Command, Event};
use crate::testing::*;
use crate::usage::UsageSource;

fn entries_of(seed: u64) -> Vec<Entry> {
    let mut run = RandomRun::new(seed);
    let mut book = Book::new(BookOptions { retry_horizon_ms: i64::MAX / 2 });
    for _ in 0..80 {
        let step = run.step();
        let _ = book.execute(step.id, &step.command, step.now_ms);
    }
    for id in run.ids().collect::<Vec<_>>() {
        let _ = book.execute(id, &Command::Close, run.now_ms());
    }
    book.entries().map(|(_, entry)| entry.into_owned()).collect()
}

#[test]
fn an_entry_comes_back_as_it_was() {
    let mut all = 0;
    for seed in 0..runs(60) {
        for entry in entries_of(seed) {
            let (mut ended, id) = (Ended::default(), entry.reservation.created.id);
            assert!(ended.put(&entry));
            let was = Entry { leaving: true, ..entry };
            assert_eq!(ended.get(id), Some(was.clone()), "seed {seed}");
            let mut again = Ended::from_image(ended.image());
            assert_eq!(again.take(id), Some(was), "seed {seed}");
            assert!(again.len() == 0 && again.take(id).is_none());
            all += 1;
        }
    }
    assert!(all > 100, "only {all}");
}

/// What a plain request leaves: its admission, one attempt, the response's usage, the ledger's word.
fn plain(n: u64) -> Entry {
    let asked = Request { fingerprint: [n.to_le_bytes()[0]; 32], ..request(n) };
    let mut entry =
        Entry::new(crate::reservation::apply(None, &Event::ReservationCreated(Arc::new(asked.created()))).unwrap());
    let provider_id = format!("chatcmpl-{n:029}");
    for event in [
        Event::AttemptStarted { number: 1, hold: Amounts { requests: 0, ..asked.hold }, target: target("primary") },
        Event::AttemptCorrelated { number: 1, provider_id },
        Event::UsageRecorded { number: 1, record: record(UsageSource::Response, amounts(1, 1_224, "0.0001944"), "") },
        Event::AttemptClosed { number: 1, outcome: AttemptOutcome::Executed },
        Event::ReservationSettled { charged: amounts(1, 1_224, "0.0001944") },
    ] {
        entry.reservation.absorb(&event);
    }
    entry.confirm(1, i64::try_from(n).unwrap() * 6 + 3);
    entry
}

#[test]
fn ten_thousand_ended_reservations_take_less_than_two_hundred_and_fifty_bytes_each() {
    let mut ended = Ended::default();
    for n in 0..10_000 {
        assert!(ended.put(&plain(n)));
    }
    assert_eq!(ended.recent.len(), 1, "all of them share one");
    let each = ended.bytes() / ended.len();
    assert!(each < 250, "{each} bytes each");
    for n in 0..10_000 {
        assert!(ended.remove(id(n)));
    }
    assert_eq!(ended.rows.capacity(), 0, "and nothing when they are gone");
}
