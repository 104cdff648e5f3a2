//! Records in the topic of reservations that no gateway of this moment wrote: copies of what is there, at any distance and
//! out of order, one that is no event, one of two megabytes.
//!
//! Copies change nothing, anywhere. What cannot be read waits with its key, of every consumer that met it, until a person
//! skips it; meanwhile other keys go on, and the books are exact before and after.
#![cfg(test)]

use std::collections::BTreeSet;
use std::error::Error;

use bytes::Bytes;
use serde_json::{Value, json};

use weir_domain::ids::ReservationId;
use weir_streams::kafka::{KafkaLog, KafkaOptions};
use weir_streams::{Batch, EventLog as _, Limits, Position, StoredRecord, Topic, Visibility};
use weir_tests::client::chat;
use weir_tests::eventually;
use weir_tests::stack::{LONG, Stack, StackSetup, is_skipped};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

const REQUESTS: usize = 20;
/// Keys of nothing that any gateway admitted.
const POISON: &str = "01a20000-0000-7000-8000-000000000001";
const LARGE: &str = "01a20000-0000-7000-8000-000000000002";
const LARGE_BYTES: usize = 2 * 1024 * 1024;

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn copies_change_nothing_and_poison_waits_alone() -> Outcome {
    if is_skipped("copied, reordered, poisoned and large records") {
        return Ok(());
    }
    let stack = Stack::start(StackSetup::default()).await;
    let options = KafkaOptions {
        brokers: stack.brokers().split(',').map(str::to_owned).collect(),
        prefix: stack.prefix.clone(),
        replication: 1,
        ..KafkaOptions::default()
    };
    let log = KafkaLog::open(&options).await?;
    let mut seen = ask(&stack).await;
    let before = stack.assert_exact(&seen).await;

    let original = everything(&log).await?;
    // As a producer repeats itself, and as nobody should: the last first.
    append(&log, original.iter()).await?;
    append(&log, original.iter().rev()).await?;
    let poison = [(POISON, b"no event at all".to_vec()), (LARGE, vec![b'x'; LARGE_BYTES])];
    for (key, value) in &poison {
        let record = Batch::new(Topic::Reservations, (*key).to_owned(), 0, vec![Bytes::from(value.clone())]);
        log.append(record).durable().await?;
    }
    // Everything is behind that, on each partition.
    seen.extend(ask(&stack).await);
    let parked = eventually("both keys wait", LONG, async || {
        let parked = parked(&stack);
        let keys: BTreeSet<&str> = parked.iter().filter_map(|one| one["key"].as_str()).collect();
        (keys == BTreeSet::from([POISON, LARGE])).then_some(parked)
    })
    .await;
    println!("{} copies; waiting: {}", 2 * original.len(), json!(parked));
    for one in &parked {
        let (key, consumer) = (one["key"].as_str().expect("a key"), one["consumer"].as_str().expect("a consumer"));
        let of = [key, "--consumer", consumer, "--who", "a test", "--why", "it is no event"];
        let again = stack.run(&[&["dead-letters", "replay"][..], &of].concat());
        let told = String::from_utf8_lossy(&again.stderr);
        assert!(!again.status.success() && told.contains("still waits"), "nothing was repaired: {told}");
        let offset = one["offset"].to_string();
        stack.command(&[&["dead-letters", "skip"][..], &of, &["--offset", &offset]].concat());
    }
    eventually("nothing waits", LONG, async || parked_by_nobody(&stack)).await;
    let after = stack.assert_exact_without(poison.len(), &seen).await;
    let kept = before.attempts.iter().all(|(key, sum)| after.attempts.get(key) == Some(sum));
    assert!(kept && after.attempts.len() == 2 * REQUESTS, "{before:?}\n{after:?}");
    log.close().await;
    Ok(())
}

async fn ask(stack: &Stack) -> BTreeSet<ReservationId> {
    let mut seen = BTreeSet::new();
    for number in 0..REQUESTS {
        let answer = stack.client(number % 2).chat(&chat("fast", number % 4 < 2, &json!({}))).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let id = answer.reservation().expect("an answer names its reservation");
        seen.insert(id.parse().expect("an id"));
    }
    seen
}

async fn everything(log: &KafkaLog) -> Outcome<Vec<StoredRecord>> {
    let mut all = Vec::new();
    for partition in 0..log.partitions(Topic::Reservations) {
        let offsets = log.offsets(Topic::Reservations, partition).await?;
        let mut offset = offsets.start;
        while offset < offsets.durable {
            let at = Position { topic: Topic::Reservations, partition, offset };
            let read = log.read(at, Limits::default(), Visibility::Durable).await?;
            offset = read.last().map_or(offsets.durable, |last| last.offset + 1);
            all.extend(read);
        }
    }
    Ok(all)
}

async fn append(log: &KafkaLog, records: impl Iterator<Item = &StoredRecord>) -> Outcome {
    for record in records {
        let copy = Batch::new(Topic::Reservations, record.key.clone(), record.time_ms, vec![record.value.clone()]);
        log.append(copy).durable().await?;
    }
    Ok(())
}

fn parked(stack: &Stack) -> Vec<Value> {
    let listed: Value = serde_json::from_str(&stack.command(&["dead-letters", "list", "--json"])).expect("JSON");
    listed["parked"].as_array().expect("they are listed").clone()
}

fn parked_by_nobody(stack: &Stack) -> Option<()> {
    parked(stack).is_empty().then_some(())
}
