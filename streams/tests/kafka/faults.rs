//! Brokers that are killed and paused under appends, without a spool: what the producer alone promises.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use weir_runtime::units::HumanDuration;
use weir_streams::kafka::topics::{Found, apply, compare};
use weir_streams::kafka::{KafkaLog, KafkaOptions, OpenError};
use weir_streams::{EventLog, Topic, Topics};

use crate::support::{Brokers, Outcome, batch, everything, is_skipped, open, text};

const KEYS: u32 = 8;

/// What a run of appends saw.
#[derive(Debug, Default, Clone, Copy)]
struct Seen {
    appended: u32,
    unknown: u32,
    slowest: Duration,
}

/// Appends to each key in turn, one after the other, until told to stop; an unknown outcome is repeated until known.
async fn append_until(log: Arc<KafkaLog>, key: u32, stop: watch::Receiver<bool>) -> Seen {
    let mut seen = Seen::default();
    while !*stop.borrow() {
        let since = Instant::now();
        while let Err(error) = log.append(batch(&format!("k{key}"), &[&seen.appended.to_string()])).durable().await {
            assert!(error.may_have_happened() || error.is_temporary(), "{error}");
            seen.unknown += 1;
        }
        seen.appended += 1;
        seen.slowest = seen.slowest.max(since.elapsed());
        sleep(Duration::from_millis(20)).await;
    }
    seen
}

/// Runs appends while `faults` happen; then every key must have all its values, each first one in order.
async fn under(log: &Arc<KafkaLog>, faults: impl Future<Output = ()>) -> Outcome<(Seen, usize)> {
    let (stop, stopping) = watch::channel(false);
    let mut appending = JoinSet::new();
    for key in 0..KEYS {
        let (log, stopping) = (Arc::clone(log), stopping.clone());
        appending.spawn(async move { (key, append_until(log, key, stopping).await) });
    }
    faults.await;
    stop.send_replace(true);
    let (mut total, mut wanted) = (Seen::default(), BTreeMap::new());
    while let Some(joined) = appending.join_next().await {
        let (key, seen) = joined?;
        wanted.insert(format!("k{key}"), (0..seen.appended).collect::<Vec<_>>());
        total.appended += seen.appended;
        total.unknown += seen.unknown;
        total.slowest = total.slowest.max(seen.slowest);
    }
    let mut firsts: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    let records = everything(log.as_ref(), Topic::Reservations).await?;
    for record in &records {
        let values = firsts.entry(text(&record.key)).or_default();
        let value = text(&record.value).parse()?;
        if !values.contains(&value) {
            values.push(value);
        }
    }
    assert_eq!(firsts, wanted);
    Ok((total, records.len() - total.appended as usize))
}

async fn pause(seconds: u64) {
    sleep(Duration::from_secs(seconds)).await;
}

fn brokers(count: u16) -> &'static Brokers {
    Box::leak(Box::new(Brokers::start(count)))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_is_killed_and_comes_back_loses_nothing_and_every_event_counts_once() -> Outcome {
    if is_skipped("broker killed") {
        return Ok(());
    }
    let broker = brokers(1);
    let options = broker.installation(3).await;
    let log = open(&options).await?;
    let faults = async {
        pause(1).await;
        broker.act(&["kill", "1"]).await;
        pause(2).await;
        broker.act(&["restart", "1"]).await;
        pause(1).await;
        broker.act(&["pause", "1"]).await;
        pause(2).await;
        broker.act(&["resume", "1"]).await;
        pause(1).await;
    };
    let (seen, copies) = under(&log, faults).await?;
    // A killed broker may have forgotten what a producer sent last, so copies are possible; `under` saw that they are
    // copies, in order.
    assert_eq!(seen.unknown, 0, "{seen:?}");
    eprintln!("one broker killed, then paused: {seen:?}, {copies} copies");
    log.close().await;
    Ok(())
}

/// Three brokers: one that dies or stands still is not seen by callers; two that die with a short timeout leave
/// outcomes unknown and copies, and still every event counts once and in order.
#[tokio::test(flavor = "multi_thread")]
async fn of_three_brokers_one_may_die_and_two_leave_copies_that_count_once() -> Outcome {
    if is_skipped("three brokers") {
        return Ok(());
    }
    let three = brokers(3);
    let log = open(&three.installation(3).await).await?;
    let one_dies = async {
        pause(1).await;
        three.act(&["kill", "2"]).await;
        pause(6).await;
        three.act(&["restart", "2"]).await;
        pause(2).await;
        three.act(&["pause", "3"]).await;
        pause(2).await;
        three.act(&["resume", "3"]).await;
        pause(1).await;
    };
    let (seen, copies) = under(&log, one_dies).await?;
    assert_eq!(seen.unknown, 0, "{seen:?}");
    eprintln!("one of three killed, one paused: {seen:?}, {copies} copies");
    log.close().await;

    let options = KafkaOptions { message_timeout: HumanDuration::from_secs(2), ..three.installation(3).await };
    let log = open(&options).await?;
    let two_die = async {
        pause(1).await;
        three.act(&["kill", "1"]).await;
        three.act(&["kill", "2"]).await;
        pause(8).await;
        three.act(&["restart", "1"]).await;
        three.act(&["restart", "2"]).await;
        pause(3).await;
    };
    let (seen, copies) = under(&log, two_die).await?;
    assert!(seen.unknown > 0, "with a timeout of 2 s nothing can be known for 8 s: {seen:?}");
    eprintln!("two of three killed, timeout 2 s: {seen:?}, {copies} copies");
    log.close().await;
    Ok(())
}

/// What `weir topics apply` does: creates once, never changes, reports what differs; and the log refuses what can lose
/// confirmed records, naming the repair.
#[tokio::test(flavor = "multi_thread")]
async fn topics_are_created_once_compared_and_refused_where_they_cannot_keep_the_promise() -> Outcome {
    if is_skipped("topics") {
        return Ok(());
    }
    let broker = crate::support::broker();
    let options = broker.installation(2).await;
    let table = options.topics()?;
    for states in [apply(&options, &table).await?, compare(&options, &table).await?] {
        assert!(states.iter().all(|state| state.found == Found::AsWanted), "{states:?}");
    }
    // Other counts in the table: reported, and left as they are.
    let wider = Topics::bundled()?.with_prefix(&options.prefix).with_max_partitions(5);
    let states = apply(&options, &wider).await?;
    let Found::Differs(differences) = &states[Topic::Reservations.index()].found else { return Err("equal".into()) };
    assert_eq!((differences[0].setting, differences[0].found.as_str()), ("partitions", "2"));
    assert_eq!(states[Topic::Reservations.index()].partitions, 2);
    assert!(states.iter().all(|state| state.broken().next().is_none()));

    // Created for one broker, asked for three: not refused by a name, but by what is missing and how to repair it.
    let demanding = KafkaOptions { replication: 3, ..options.clone() };
    let refused = KafkaLog::open(&demanding).await;
    let Err(OpenError::Unfit(unfit)) = refused else { return Err(format!("{refused:?}").into()) };
    let told = OpenError::Unfit(unfit).to_string();
    assert!(told.contains("min.insync.replicas is 1, wanted 2: kafka-configs --alter"), "{told}");
    assert!(told.contains("replication is 1, wanted 3"), "{told}");

    let elsewhere = KafkaOptions { prefix: "nobody.".to_owned(), ..options };
    let missing = KafkaLog::open(&elsewhere).await;
    assert!(matches!(&missing, Err(error @ OpenError::Missing(_)) if error.is_temporary()), "{missing:?}");
    Ok(())
}

/// More than a cursor holds: its partition is paused and resumed while it is read, again and again.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_partition_is_read_to_its_end() -> Outcome {
    const RECORDS: u32 = 30_000;
    if is_skipped("long partition") {
        return Ok(());
    }
    let log = open(&crate::support::broker().installation(1).await).await?;
    let appends: Vec<_> = (0..RECORDS).map(|n| log.append(batch("k", &[&n.to_string()]))).collect();
    for append in appends {
        append.durable().await?;
    }
    let since = Instant::now();
    let read = everything(log.as_ref(), Topic::Reservations).await?;
    let values: Result<Vec<u32>, _> = read.iter().map(|record| text(&record.value).parse()).collect();
    assert_eq!(values?, (0..RECORDS).collect::<Vec<_>>());
    eprintln!("{RECORDS} records read in {:?}", since.elapsed());
    log.close().await;
    Ok(())
}
