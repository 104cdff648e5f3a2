//! A log that has grown: what a start costs, and retention beside readers.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use bytes::Bytes;
use tokio::task::JoinSet;

use super::*;

/// Records of the large log; `make test-long` sets ten million, which are two gigabytes.
fn records_of_a_large_log() -> u64 {
    std::env::var("WEIR_TEST_LOG_RECORDS").ok().and_then(|records| records.parse().ok()).unwrap_or(200_000)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_reads_one_segment_however_many_there_are() {
    let records = records_of_a_large_log();
    let folder = tempfile::tempdir().unwrap();
    let options = || SegmentOptions { segment_bytes: 4 * 1024 * 1024, ..SegmentOptions::new(folder.path()) };
    let log = SegmentLog::open(options()).unwrap();
    let value = Bytes::from(vec![7; 180]);
    let began = Instant::now();
    for first in (0..records).step_by(4000) {
        let mut last = None;
        for _ in (first..records.min(first + 4000)).step_by(4) {
            last = Some(log.append(Batch::new(Topic::Ledger, "key", 0, vec![value.clone(); 4])));
        }
        last.unwrap().durable().await.unwrap();
    }
    let written = began.elapsed();
    log.close().await;

    let paths: Vec<_> = std::fs::read_dir(folder.path().join("ledger")).unwrap().map(|e| e.unwrap().path()).collect();
    let bytes: u64 = paths.iter().map(|path| std::fs::metadata(path).unwrap().len()).sum();
    let read_before = bytes_read();
    let began = Instant::now();
    let log = SegmentLog::open(options()).unwrap();
    let opened = began.elapsed();
    let read = bytes_read() - read_before;
    println!(
        "{records} records, {} MiB in {} segments: written in {written:?}, opened in {opened:?}, {} KiB read",
        bytes >> 20,
        paths.len(),
        read >> 10
    );
    assert_eq!(log.found()[Topic::Ledger.index()].end_offset, records.next_multiple_of(4));
    // Other tests of this process read at the same time: the bound is generous, and still far from all.
    let one_segment = 6 * 1024 * 1024 + 64 * 1024 * paths.len() as u64;
    assert!(opened.as_secs() < 10, "{opened:?}");
    if std::env::var_os("WEIR_TEST_LOG_RECORDS").is_some() {
        assert!(read < one_segment, "{read} bytes read of {bytes}");
    }
    let last = Position { topic: Topic::Ledger, partition: 0, offset: records - 1 };
    assert_eq!(log.read(last, Limits::default(), Visibility::Durable).await.unwrap()[0].value, value);
    let first = Position { offset: 0, ..last };
    assert_eq!(log.read(first, Limits::default(), Visibility::Durable).await.unwrap()[0].value, value);
}

/// What this process has read by system calls so far.
fn bytes_read() -> u64 {
    let io = std::fs::read_to_string("/proc/self/io").unwrap();
    io.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap().parse().unwrap()
}

/// Readers behind, readers that were overtaken, an appender and retention, all at once: a reader that says what it
/// has consumed reads every record once, in order; one that does not is told where the topic begins now.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retention_beside_readers_takes_only_what_was_consumed() {
    const RECORDS: u64 = 3_000;
    let folder = tempfile::tempdir().unwrap();
    let options = SegmentOptions { segment_bytes: 2_000, tail_bytes: 4_000, ..SegmentOptions::new(folder.path()) };
    let log = Arc::new(SegmentLog::open(options).unwrap());
    let (consumed, is_done) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let at = |offset| Position { topic: Topic::Usage, partition: 0, offset };
    let limits = Limits { records: 7, bytes: 1 << 20 };
    let mut tasks = JoinSet::new();
    let appender = Arc::clone(&log);
    tasks.spawn(async move {
        for n in 0..RECORDS {
            let value = Bytes::from(format!("{n:>60}"));
            let append = appender.append(Batch::new(Topic::Usage, "tenant", 0, vec![value]));
            if n % 50 == 0 {
                append.durable().await.unwrap();
            }
        }
    });
    let (reader, position, done) = (Arc::clone(&log), Arc::clone(&consumed), Arc::clone(&is_done));
    tasks.spawn(async move {
        let mut next = 0;
        while next < RECORDS {
            reader.wait(at(next), Visibility::Durable).await.unwrap();
            for record in reader.read(at(next), limits, Visibility::Durable).await.unwrap() {
                assert_eq!((record.offset, record.value), (next, Bytes::from(format!("{next:>60}"))));
                next += 1;
            }
            position.store(next, Ordering::SeqCst);
        }
        done.store(true, Ordering::SeqCst);
    });
    let (overtaken, done) = (Arc::clone(&log), Arc::clone(&is_done));
    tasks.spawn(async move {
        let mut next = 0;
        while !done.load(Ordering::SeqCst) {
            match overtaken.read(at(next), limits, Visibility::Durable).await {
                Ok(records) => assert!(records.iter().zip(next..).all(|(record, offset)| record.offset == offset)),
                Err(ReadError::Gone { start, .. }) => {
                    assert!(start > next, "{start} {next}");
                    next = start;
                }
                Err(error) => panic!("{error}"),
            }
            tokio::task::yield_now().await;
        }
    });
    let (log, removed) = (Arc::clone(&log), Arc::new(AtomicU64::new(0)));
    let (expiring, count) = (Arc::clone(&log), Arc::clone(&removed));
    tasks.spawn(async move {
        while !is_done.load(Ordering::SeqCst) {
            let least = consumed.load(Ordering::SeqCst);
            let files = expiring.expire(Topic::Usage, i64::MAX, least).unwrap();
            count.fetch_add(files as u64, Ordering::SeqCst);
            let start = expiring.offsets(Topic::Usage, 0).await.unwrap().start;
            assert!(start <= least, "begins at {start}, a consumer stands at {least}");
            tokio::task::yield_now().await;
        }
    });
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    assert!(removed.load(Ordering::SeqCst) > 10, "{removed:?}");
    log.close().await;
    let log = SegmentLog::open(SegmentOptions::new(folder.path())).unwrap();
    assert_eq!(log.found()[Topic::Usage.index()].end_offset, RECORDS);
}
