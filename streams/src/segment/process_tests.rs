//! Real faults: a process that is killed, a disk that is full, a folder that cannot be written.
//!
//! A test that needs a process of its own runs this test binary again, with its own name and a variable that says what
//! the child is to do.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use bytes::Bytes;
use proptest::prelude::RngExt;
use proptest::test_runner::{RngAlgorithm, TestRng};
use tokio::time::timeout;

use super::*;
use crate::conformance::PATIENCE;

/// Set in a child: the folder of its log.
const CHILD_FOLDER: &str = "WEIR_STREAMS_CHILD_FOLDER";
const HERE: &str = "segment::log::process_tests";

fn child_folder() -> Option<PathBuf> {
    env::var_os(CHILD_FOLDER).map(PathBuf::from)
}

/// This binary again, running only the test of this name.
fn spawn_child(test: &str, folder: &Path) -> Child {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", &format!("{HERE}::{test}"), "--nocapture", "--test-threads", "1"]);
    command.env(CHILD_FOLDER, folder).stdin(Stdio::null()).stdout(Stdio::piped());
    command.spawn().unwrap()
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(future)
}

async fn all_records(log: &SegmentLog, topic: Topic) -> Vec<StoredRecord> {
    let mut records: Vec<StoredRecord> = Vec::new();
    loop {
        let at = Position { topic, partition: 0, offset: records.len() as u64 };
        let read = log.read(at, Limits::default(), Visibility::Durable).await.unwrap();
        if read.is_empty() {
            return records;
        }
        records.extend(read);
    }
}

/// The record with this number: some bytes that only it has.
fn value(number: u64) -> Bytes {
    Bytes::from(format!("{number}:{}", "x".repeat(usize::try_from(number * 37 % 900).unwrap())))
}

/// Appends without end and says after each confirmation which offset holds which number.
async fn append_and_tell(folder: &Path) {
    let options = SegmentOptions { segment_bytes: 200_000, ..SegmentOptions::new(folder) };
    let log = SegmentLog::open(options).unwrap();
    let tell = |stage: &str, topic: Topic, offset: u64, number: u64| {
        let mut out = std::io::stdout().lock();
        writeln!(out, "\nconfirmed {stage} {topic} {offset} {number}").and_then(|()| out.flush()).unwrap();
    };
    for number in 0.. {
        let topic = [Topic::Reservations, Topic::Ledger][usize::from(number % 3 == 0)];
        let append = log.append(Batch::new(topic, "key", 0, vec![value(number), value(number + 1)]));
        tell("written", topic, append.written().await.unwrap().first.offset, number);
        if number % 20 == 0 {
            tell("durable", topic, append.durable().await.unwrap().first.offset, number);
        }
    }
}

#[test]
fn a_killed_process_loses_nothing_that_was_written() {
    if let Some(folder) = child_folder() {
        return block_on(append_and_tell(&folder));
    }
    let seed = env::var("WEIR_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(4711u64);
    println!("WEIR_TEST_SEED={seed}");
    let seed: Vec<u8> = seed.to_le_bytes().repeat(4);
    let mut rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
    let folder = tempfile::tempdir().unwrap();
    let mut confirmed: BTreeMap<(Topic, u64), u64> = BTreeMap::new();
    for round in 0..20 {
        let mut child = spawn_child("a_killed_process_loses_nothing_that_was_written", folder.path());
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let enough = rng.random_range(1..400);
        let before = confirmed.len();
        let mut told = 0;
        // After the kill the pipe still holds what was said before it.
        for line in lines {
            let line = line.unwrap();
            let mut words = line.split(' ');
            if words.next() != Some("confirmed") {
                continue;
            }
            let (_stage, topic) = (words.next().unwrap(), Topic::by_suffix(words.next().unwrap()).unwrap());
            // A kill may cut the last line short.
            let (Some(offset), Some(number)) = (words.next(), words.next()) else { continue };
            let (offset, number): (u64, u64) = (offset.parse().unwrap(), number.parse().unwrap());
            let known = confirmed.insert((topic, offset), number);
            assert!(known.is_none_or(|known| known == number), "offset {offset} was given out twice");
            told += 1;
            if told == enough {
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
        assert!(confirmed.len() > before, "round {round}: the child appended nothing");
        block_on(assert_confirmed(folder.path(), &confirmed));
    }
}

async fn assert_confirmed(folder: &Path, confirmed: &BTreeMap<(Topic, u64), u64>) {
    let log = SegmentLog::open(SegmentOptions::new(folder)).unwrap();
    for topic in [Topic::Reservations, Topic::Ledger] {
        let records = all_records(&log, topic).await;
        assert!(records.len().is_multiple_of(2), "{topic}: half a batch");
        for ((_, offset), number) in confirmed.range((topic, 0)..=(topic, u64::MAX)) {
            let at = usize::try_from(*offset).unwrap();
            let found = records.get(at..at + 2).unwrap_or_else(|| panic!("{topic}: offset {offset} is gone"));
            assert_eq!([&found[0].value, &found[1].value], [&value(*number), &value(number + 1)], "{topic} {offset}");
        }
    }
}

/// A small file system of its own, unmounted on drop.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    /// `Err` with the reason where this process may not mount.
    fn mount(bytes: u64) -> Result<Self, String> {
        let folder = tempfile::tempdir().unwrap();
        let size = format!("size={bytes}");
        let args = [OsStr::new("-t"), OsStr::new("tmpfs"), OsStr::new("-o"), OsStr::new(&size), OsStr::new("tmpfs")];
        let output = Command::new("mount").args(args).arg(folder.path()).output().map_err(|error| error.to_string())?;
        if output.status.success() {
            Ok(Self(folder))
        } else {
            Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
        }
    }

    fn make_read_only(&self) {
        let status = Command::new("mount").args(["-o", "remount,ro"]).arg(self.0.path()).status().unwrap();
        assert!(status.success());
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

/// Appends until the disk takes no more; returns the records that were confirmed as written.
async fn fill(log: &SegmentLog) -> Vec<Bytes> {
    let mut confirmed = Vec::new();
    loop {
        let value = value(confirmed.len() as u64);
        let append = log.append(Batch::new(Topic::Reservations, "key", 0, vec![value.clone()]));
        match timeout(PATIENCE, append.written()).await.unwrap() {
            Ok(_) => confirmed.push(value),
            Err(error) => {
                assert!(!error.may_have_happened(), "{error}: the part that fitted was cut off again");
                break;
            }
        }
    }
    let Health::Closed(closed) = log.health() else { panic!("still accepts") };
    assert_eq!(closed.cause, CloseCause::DiskFull, "{closed}");
    assert!(closed.to_string().contains("reservations"), "names the folder: {closed}");
    assert!(log.append(Batch::new(Topic::Usage, "key", 0, vec!["v".into()])).written().await.is_err());
    confirmed
}

async fn assert_goes_on(folder: &Path, confirmed: &[Bytes]) {
    let log = SegmentLog::open(SegmentOptions::new(folder)).unwrap();
    assert_eq!(log.found()[0].cut_bytes, 0);
    let found = all_records(&log, Topic::Reservations).await;
    assert!(found.iter().map(|record| &record.value).eq(confirmed), "{} of {}", found.len(), confirmed.len());
    let next = log.append(Batch::new(Topic::Reservations, "key", 0, vec!["v".into()])).durable().await.unwrap();
    assert_eq!(next.first.offset, confirmed.len() as u64);
    log.close().await;
}

#[test]
fn a_disk_that_is_full_closes_the_log_and_room_opens_it_again() {
    let disk = match SmallDisk::mount(1 << 20) {
        Ok(disk) => disk,
        Err(reason) => {
            println!("cannot mount ({reason}): only the limit on file sizes is tested here");
            return;
        }
    };
    let folder = disk.0.path().join("log");
    let ballast = disk.0.path().join("ballast");
    std::fs::write(&ballast, vec![1; 600_000]).unwrap();
    block_on(async {
        // Small segments, so that the disk may also be full when a new one is made.
        let options = SegmentOptions { segment_bytes: 50_000, ..SegmentOptions::new(&folder) };
        let log = SegmentLog::open(options).unwrap();
        let confirmed = fill(&log).await;
        assert!(confirmed.len() > 100, "{}", confirmed.len());
        log.close().await;
        std::fs::remove_file(&ballast).unwrap();
        assert_goes_on(&folder, &confirmed).await;
    });
    disk.make_read_only();
    let error = SegmentLog::open(SegmentOptions::new(&folder)).unwrap_err();
    let OpenError::Io { path, source, .. } = &error else { panic!("{error}") };
    assert!(path.starts_with(folder.to_str().unwrap()), "names the place: {error}");
    assert_eq!(source.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
}

/// The same by a limit of the process, which needs no privileges.
#[test]
fn a_file_that_may_not_grow_closes_the_log() {
    let confirmed = |folder: &Path| folder.join("confirmed");
    if let Some(folder) = child_folder() {
        return block_on(async {
            // Without a handler the signal ends the process instead of failing the write.
            let too_large = tokio::signal::unix::SignalKind::from_raw(25);
            let _handler = tokio::signal::unix::signal(too_large).unwrap();
            rlimit::Resource::FSIZE.set(100_000, 100_000).unwrap();
            let log = SegmentLog::open(SegmentOptions::new(folder.join("log"))).unwrap();
            let count = fill(&log).await.len();
            log.close().await;
            std::fs::write(confirmed(&folder), count.to_string()).unwrap();
        });
    }
    let folder = tempfile::tempdir().unwrap();
    let child = spawn_child("a_file_that_may_not_grow_closes_the_log", folder.path());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    let count: u64 = std::fs::read_to_string(confirmed(folder.path())).unwrap().parse().unwrap();
    assert!(count > 100, "{count}");
    let confirmed: Vec<Bytes> = (0..count).map(value).collect();
    block_on(assert_goes_on(&folder.path().join("log"), &confirmed));
}
