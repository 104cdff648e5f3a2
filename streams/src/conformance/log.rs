//! What every event log must do. One function per promise of the contract.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use tokio::time::timeout;

use super::{Harness, Outcome, PATIENCE};
use crate::contract::{
    AppendError, Batch, EventLog, Health, Limits, MAX_BATCH_BYTES, MAX_BATCH_RECORDS, Position, ReadError,
    StoredRecord, Visibility,
};
use crate::topics::Topic;

const TOPIC: Topic = Topic::Reservations;

fn batch(key: &str, values: &[&str]) -> Batch {
    let values = values.iter().map(|value| Bytes::copy_from_slice(value.as_bytes())).collect();
    Batch::new(TOPIC, Bytes::copy_from_slice(key.as_bytes()), 1_700_000_000_000, values)
}

async fn put(log: &Arc<dyn EventLog>, batch: Batch) -> Result<Position, AppendError> {
    log.append(batch).durable().await.map(|placed| placed.first)
}

/// Every durable record of the topic, by partition, read in small steps.
async fn everything(log: &Arc<dyn EventLog>) -> Result<Vec<Vec<StoredRecord>>, ReadError> {
    let mut partitions = Vec::new();
    for partition in 0..log.partitions(TOPIC) {
        let offsets = log.offsets(TOPIC, partition).await?;
        let (mut records, mut offset) = (Vec::new(), offsets.start);
        while offset < offsets.durable {
            let at = Position { topic: TOPIC, partition, offset };
            let read = log.read(at, Limits { records: 7, bytes: 1 << 20 }, Visibility::Durable).await?;
            assert!(!read.is_empty(), "nothing at {offset} although the log ends at {}", offsets.durable);
            offset = read.last().map_or(offset, |last| last.offset + 1);
            records.extend(read);
        }
        partitions.push(records);
    }
    Ok(partitions)
}

fn texts<'a>(records: impl IntoIterator<Item = &'a StoredRecord>) -> Vec<(String, String)> {
    let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
    records.into_iter().map(|record| (text(&record.key), text(&record.value))).collect()
}

/// Batches of one key come out in the order of the calls, though none was awaited in between.
pub async fn keeps_the_order_of_each_key(harness: &dyn Harness) -> Outcome {
    let log = harness.open().await?;
    let appends: Vec<_> = (0..200).map(|n| log.append(batch(&format!("k{}", n % 5), &[&n.to_string()]))).collect();
    for append in &appends {
        append.durable().await?;
    }
    let mut by_key: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for (key, value) in texts(everything(&log).await?.iter().flatten()) {
        by_key.entry(key).or_default().push(value.parse()?);
    }
    for (n, values) in (0..5).zip(by_key.values()) {
        assert_eq!(*values, (0..40).map(|m| m * 5 + n).collect::<Vec<_>>());
    }
    assert_eq!(by_key.len(), 5);
    Ok(())
}

/// Offsets ascend by one without holes; a batch has consecutive ones, those it was told.
pub async fn keeps_batches_contiguous(harness: &dyn Harness) -> Outcome {
    let log = harness.open().await?;
    let appends: Vec<_> =
        (0..50).map(|n| log.append(batch(&n.to_string(), &["first", "second", "third"][..n % 3 + 1]))).collect();
    let mut placed = Vec::new();
    for append in &appends {
        placed.push(append.durable().await?);
    }
    let partitions = everything(&log).await?;
    for records in &partitions {
        let start = records.first().map_or(0, |first| first.offset);
        for (offset, record) in (start..).zip(records) {
            assert_eq!(record.offset, offset);
        }
    }
    for (n, placed) in placed.iter().enumerate() {
        let of_key = |record: &&StoredRecord| record.key == n.to_string().as_bytes();
        let records: Vec<_> = partitions.iter().flatten().filter(of_key).collect();
        assert_eq!(records.len(), placed.count as usize);
        for (offset, record) in (placed.first.offset..).zip(records) {
            assert_eq!((record.partition, record.offset), (placed.first.partition, offset));
        }
    }
    Ok(())
}

/// What was acknowledged as durable is there after close and open, and the log goes on behind it.
pub async fn keeps_what_was_durable_over_a_reopen(harness: &dyn Harness) -> Outcome {
    for round in 0..3u64 {
        let log = harness.open().await?;
        let before = texts(everything(&log).await?.iter().flatten());
        let expected: Vec<_> = (0..round * 2).map(|n| ("k".to_owned(), n.to_string())).collect();
        assert_eq!(before, expected);
        put(&log, batch("k", &[&(round * 2).to_string(), &(round * 2 + 1).to_string()])).await?;
        log.close().await;
    }
    Ok(())
}

/// A read begins anywhere, also within a batch, and keeps its bounds.
pub async fn reads_from_any_position(harness: &dyn Harness) -> Outcome {
    let log = harness.open().await?;
    let first = put(&log, batch("k", &["0", "1", "2", "3"])).await?;
    put(&log, batch("k", &["4", "5"])).await?;
    for skip in 0..6u64 {
        for records in 1..4 {
            let at = Position { offset: first.offset + skip, ..first };
            let read = log.read(at, Limits { records, bytes: 1000 }, Visibility::Durable).await?;
            let expected: Vec<_> = (skip..6).take(records).map(|n| ("k".to_owned(), n.to_string())).collect();
            assert_eq!(texts(&read), expected, "from {skip}, at most {records}");
        }
    }
    let tight = log.read(first, Limits { records: 9, bytes: 5 }, Visibility::Durable).await?;
    assert_eq!(tight.len(), 2, "two records of two bytes fit into five");
    let too_tight = log.read(first, Limits { records: 9, bytes: 0 }, Visibility::Durable).await?;
    assert_eq!(too_tight.len(), 1, "a reader always gets on");
    assert_eq!(read_time(&tight), Some(1_700_000_000_000));
    Ok(())
}

fn read_time(records: &[StoredRecord]) -> Option<i64> {
    records.first().map(|record| record.time_ms)
}

/// Who waits at the end is woken by the next record and not before.
pub async fn wakes_who_waits(harness: &dyn Harness) -> Outcome {
    let log = harness.open().await?;
    let first = put(&log, batch("k", &["0"])).await?;
    timeout(PATIENCE, log.wait(first, Visibility::Durable)).await??;
    let next = Position { offset: first.offset + 1, ..first };
    let early = timeout(std::time::Duration::from_millis(20), log.wait(next, Visibility::Durable)).await;
    assert!(early.is_err(), "woken without a record");
    let append = async { put(&log, batch("k", &["1"])).await };
    let (woken, placed) = tokio::join!(timeout(PATIENCE, log.wait(next, Visibility::Durable)), append);
    woken??;
    assert_eq!(placed?, next);
    assert_eq!(log.read(next, Limits::default(), Visibility::Durable).await?.len(), 1);
    Ok(())
}

/// Many appenders at once: each one's order is kept, nothing is lost or doubled.
pub async fn keeps_the_order_of_concurrent_appenders(harness: &dyn Harness) -> Outcome {
    const EACH: u32 = 300;
    let log = harness.open().await?;
    let mut appenders = tokio::task::JoinSet::new();
    for appender in 0..8 {
        let log = Arc::clone(&log);
        appenders.spawn(async move {
            let mut last = None;
            for n in 0..EACH {
                last = Some(log.append(batch(&format!("appender {appender}"), &[&n.to_string()])));
            }
            match last {
                Some(append) => append.durable().await.map(|_| ()),
                None => Ok(()),
            }
        });
    }
    while let Some(joined) = appenders.join_next().await {
        joined??;
    }
    let mut by_key: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for (key, value) in texts(everything(&log).await?.iter().flatten()) {
        by_key.entry(key).or_default().push(value.parse()?);
    }
    assert_eq!(by_key.len(), 8);
    for (key, values) in by_key {
        assert_eq!(values, (0..EACH).collect::<Vec<_>>(), "{key}");
    }
    Ok(())
}

/// start ≤ durable ≤ written, and the ends count every record.
pub async fn knows_where_partitions_end(harness: &dyn Harness) -> Outcome {
    let log = harness.open().await?;
    let count = |log: Arc<dyn EventLog>| async move {
        let mut records = 0;
        for partition in 0..log.partitions(TOPIC) {
            let offsets = log.offsets(TOPIC, partition).await?;
            assert!(offsets.start <= offsets.durable && offsets.durable <= offsets.written, "{offsets:?}");
            records += offsets.durable - offsets.start;
        }
        Ok::<_, ReadError>(records)
    };
    assert_eq!(count(Arc::clone(&log)).await?, 0);
    put(&log, batch("a", &["0", "1"])).await?;
    put(&log, batch("b", &["2"])).await?;
    assert_eq!(count(Arc::clone(&log)).await?, 3);
    let partition = log.partitions(TOPIC);
    assert!(matches!(log.offsets(TOPIC, partition).await, Err(ReadError::NoPartition { .. })));
    let nowhere = Position { topic: TOPIC, partition, offset: 0 };
    let read = log.read(nowhere, Limits::default(), Visibility::Durable).await;
    assert!(matches!(read, Err(ReadError::NoPartition { .. })));
    Ok(())
}

/// A record of two megabytes, also over a reopen and between small ones.
pub async fn takes_a_big_record(harness: &dyn Harness) -> Outcome {
    let big: Bytes = (0..2_000_000u32).map(|n| (n % 251) as u8).collect();
    let log = harness.open().await?;
    put(&log, batch("k", &["before"])).await?;
    let at = put(&log, Batch::new(TOPIC, "k", 7, vec![big.clone()])).await?;
    put(&log, batch("k", &["after"])).await?;
    let limits = Limits { records: 2, bytes: 1000 };
    assert_eq!(log.read(at, limits, Visibility::Durable).await?[0].value, big);
    log.close().await;
    let log = harness.open().await?;
    let read = log.read(at, limits, Visibility::Durable).await?;
    assert_eq!((read.len(), read[0].value == big, read[0].time_ms), (1, true, 7));
    Ok(())
}

pub async fn takes_empty_keys_and_values(harness: &dyn Harness) -> Outcome {
    let log = harness.open().await?;
    let at = put(&log, batch("", &["", "value", ""])).await?;
    let read = log.read(at, Limits::default(), Visibility::Durable).await?;
    let pair = |value: &str| (String::new(), value.to_owned());
    assert_eq!(texts(&read), vec![pair(""), pair("value"), pair("")]);
    Ok(())
}

pub async fn reads_nothing_beyond_the_end(harness: &dyn Harness) -> Outcome {
    let log = harness.open().await?;
    let at = put(&log, batch("k", &["0"])).await?;
    for beyond in [1, 2, 1000, u64::MAX - 10] {
        let at = Position { offset: at.offset.saturating_add(beyond), ..at };
        assert!(log.read(at, Limits::default(), Visibility::Durable).await?.is_empty());
        assert!(log.read(at, Limits::default(), Visibility::Written).await?.is_empty());
    }
    Ok(())
}

/// The log does not know copies: equal batches are two batches.
pub async fn stores_copies_as_records(harness: &dyn Harness) -> Outcome {
    let log = harness.open().await?;
    let first = put(&log, batch("k", &["same"])).await?;
    let second = put(&log, batch("k", &["same"])).await?;
    assert!(first.offset < second.offset && first.partition == second.partition);
    assert_eq!(everything(&log).await?.iter().flatten().count(), 2);
    Ok(())
}

pub async fn refuses_what_is_out_of_bounds(harness: &dyn Harness) -> Outcome {
    let log = harness.open().await?;
    let of = |values| log.append(Batch::new(TOPIC, "k", 0, values));
    assert_eq!(of(vec![]).written().await, Err(AppendError::Empty));
    let records = MAX_BATCH_RECORDS + 1;
    assert_eq!(of(vec![Bytes::new(); records]).durable().await, Err(AppendError::TooManyRecords { records }));
    let bytes = MAX_BATCH_BYTES + 1;
    let too_large = of(vec![Bytes::from(vec![0; MAX_BATCH_BYTES])]).written().await;
    assert_eq!(too_large, Err(AppendError::TooLarge { bytes }));
    assert!(too_large.is_err_and(|error| !error.may_have_happened()));
    assert_eq!(everything(&log).await?.iter().flatten().count(), 0);
    put(&log, batch("k", &["still accepts"])).await?;
    Ok(())
}

/// Close finishes what was accepted, refuses what comes later, and ends who waits.
pub async fn takes_nothing_after_close(harness: &dyn Harness) -> Outcome {
    let log = harness.open().await?;
    assert_eq!(log.health(), Health::Accepting);
    let accepted: Vec<_> = (0..100).map(|n| log.append(batch("k", &[&n.to_string()]))).collect();
    let end = Position { topic: TOPIC, partition: log.partitions(TOPIC) - 1, offset: 100 };
    let (waited, ()) = tokio::join!(timeout(PATIENCE, log.wait(end, Visibility::Durable)), log.close());
    assert!(matches!(waited?, Err(ReadError::Closed(_))));
    for append in accepted {
        timeout(PATIENCE, append.durable()).await??;
    }
    let refused = log.append(batch("k", &["late"])).written().await;
    assert!(matches!(&refused, Err(error @ AppendError::Closed(_)) if !error.may_have_happened()), "{refused:?}");
    assert!(matches!(log.health(), Health::Closed(_)));
    log.close().await;
    let log = harness.open().await?;
    assert_eq!(everything(&log).await?.iter().flatten().count(), 100);
    Ok(())
}

/// Whatever the timing, a default read never shows more than the durable end of that moment or later.
pub async fn shows_only_durable_records_by_default(harness: &dyn Harness) -> Outcome {
    let log = harness.open().await?;
    let appends: Vec<_> = (0..500).map(|n| log.append(batch("k", &[&n.to_string()]))).collect();
    let placed = appends[0].written().await?;
    for _ in 0..50 {
        let read = log.read(placed.first, Limits::default(), Visibility::Durable).await?;
        let offsets = log.offsets(TOPIC, placed.first.partition).await?;
        assert!(read.last().is_none_or(|last| last.offset < offsets.durable));
    }
    for append in appends {
        append.durable().await?;
    }
    Ok(())
}
