//! What an earlier process may have left: torn, damaged, missing, foreign.

use std::fs;

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::contract::{Batch, EventLog, Limits, Position, ReadError, StoredRecord, Visibility};
use crate::segment::file::segment_path;
use crate::segment::folder::read_folder;
use crate::segment::frame::Frame;
use crate::segment::mark::mark_path;
use crate::segment::{SegmentLog, SegmentOptions};

const TOPIC: Topic = Topic::Reservations;

/// A folder with `batches` batches of one to three records, in segments of about `segment_bytes`.
async fn written(batches: u64, segment_bytes: u64) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let log = SegmentLog::open(options(folder.path(), segment_bytes)).unwrap();
    for n in 0..batches {
        let values = (0..n % 3 + 1).map(|m| Bytes::from(format!("value {n}.{m}"))).collect();
        log.append(Batch::new(TOPIC, format!("key {n}"), 1000, values)).durable().await.unwrap();
    }
    log.close().await;
    folder
}

/// As if the power had been lost while the log was written: the mark on the disk is older than what was synced.
fn forget_mark(folder: &Path) {
    fs::remove_file(mark_path(folder)).unwrap();
}

fn options(folder: &Path, segment_bytes: u64) -> SegmentOptions {
    SegmentOptions { segment_bytes, ..SegmentOptions::new(folder) }
}

fn segments(folder: &Path) -> Vec<PathBuf> {
    segment_paths(&folder.join(TOPIC.suffix())).unwrap()
}

async fn read_all(log: &SegmentLog) -> Result<Vec<StoredRecord>, ReadError> {
    let mut records: Vec<StoredRecord> = Vec::new();
    loop {
        let at = Position { topic: TOPIC, partition: 0, offset: records.len() as u64 };
        let read = log.read(at, Limits::default(), Visibility::Durable).await?;
        if read.is_empty() {
            return Ok(records);
        }
        records.extend(read);
    }
}

fn frame_starts(segment: &Path) -> Vec<u64> {
    let mut frames = SegmentReader::open(segment).unwrap().frames();
    let mut starts = Vec::new();
    loop {
        starts.push(frames.byte());
        if frames.next().is_none() {
            return starts;
        }
    }
}

#[tokio::test]
async fn a_tail_torn_at_any_byte_is_cut_to_the_last_whole_frame() {
    let folder = written(6, 1 << 20).await;
    let segment = segments(folder.path()).pop().unwrap();
    let whole = fs::read(&segment).unwrap();
    let starts = frame_starts(&segment);
    let (last_start, len) = (starts[5], starts[6]);
    assert_eq!(len, whole.len() as u64);
    for cut in last_start..len {
        fs::write(&segment, &whole[..usize::try_from(cut).unwrap()]).unwrap();
        let error = SegmentLog::open(options(folder.path(), 1 << 20)).unwrap_err();
        let names_the_place = match &error {
            OpenError::Damaged { byte, .. } => *byte == last_start && cut > last_start,
            OpenError::Shorter { end, durable, .. } => (*end, *durable, cut) == (9, 12, last_start),
            _ => false,
        };
        assert!(names_the_place, "it was durable, cut at {cut}: {error}");
    }
    for cut in last_start..=len {
        fs::write(&segment, &whole[..usize::try_from(cut).unwrap()]).unwrap();
        forget_mark(folder.path());
        let log = SegmentLog::open(options(folder.path(), 1 << 20)).unwrap();
        let found = log.found()[0];
        let (expected_end, expected_cut) = if cut == len { (12, 0) } else { (9, cut - last_start) };
        assert_eq!((found.end_offset, found.cut_bytes), (expected_end, expected_cut), "cut at {cut}");
        assert_eq!(read_all(&log).await.unwrap().len() as u64, expected_end);
        let placed = log.append(Batch::new(TOPIC, "next", 0, vec!["v".into()])).durable().await.unwrap();
        assert_eq!(placed.first.offset, expected_end);
        drop(log);
        let log = SegmentLog::open(options(folder.path(), 1 << 20)).unwrap();
        assert_eq!(read_all(&log).await.unwrap().last().unwrap().key, "next");
    }
}

#[tokio::test]
async fn zeros_after_the_last_frame_are_cut() {
    let folder = written(3, 1 << 20).await;
    let segment = segments(folder.path()).pop().unwrap();
    let len = fs::metadata(&segment).unwrap().len();
    fs::OpenOptions::new().write(true).open(&segment).unwrap().set_len(len + 5000).unwrap();
    let log = SegmentLog::open(options(folder.path(), 1 << 20)).unwrap();
    assert_eq!((log.found()[0].end_offset, log.found()[0].cut_bytes), (6, 5000));
}

#[tokio::test]
async fn damage_before_whole_frames_is_refused_by_file_and_byte() {
    let folder = written(6, 1 << 20).await;
    let segment = segments(folder.path()).pop().unwrap();
    let whole = fs::read(&segment).unwrap();
    let starts = frame_starts(&segment);
    for (n, start) in starts[..5].iter().enumerate() {
        for within in [0, 4, 8, 12, 40] {
            let mut bytes = whole.clone();
            bytes[usize::try_from(start + within).unwrap()] ^= 1;
            fs::write(&segment, &bytes).unwrap();
            match SegmentLog::open(options(folder.path(), 1 << 20)) {
                Err(OpenError::Damaged { file, byte, .. }) => {
                    assert_eq!((file, byte), (segment.display().to_string(), *start), "frame {n}, byte {within}");
                }
                other => panic!("frame {n}, byte {within}: {other:?}"),
            }
            assert_eq!(fs::read(&segment).unwrap(), bytes, "a refusal changes nothing");
        }
    }
}

#[tokio::test]
async fn a_segment_whose_creation_was_interrupted_is_made_again() {
    for content in [vec![], vec![0; 10], vec![0; 64], vec![0; 4096]] {
        let folder = written(9, 200).await;
        let last = segments(folder.path()).pop().unwrap();
        let base = base_offset_of(&last).unwrap();
        fs::write(&last, &content).unwrap();
        let error = SegmentLog::open(options(folder.path(), 200)).unwrap_err();
        assert!(matches!(error, OpenError::Damaged { byte: 0, flaw: Flaw::Header, .. }), "it was durable: {error}");
        forget_mark(folder.path());
        let log = SegmentLog::open(options(folder.path(), 200)).unwrap();
        assert_eq!((log.found()[0].end_offset, log.found()[0].cut_bytes), (base, content.len() as u64));
        assert_eq!(read_all(&log).await.unwrap().len() as u64, base);
        let placed = log.append(Batch::new(TOPIC, "next", 0, vec!["v".into()])).durable().await.unwrap();
        assert_eq!(placed.first.offset, base);
    }
}

#[tokio::test]
async fn a_folder_that_is_not_whole_or_not_ours_is_refused() {
    let refused = |folder: &Path| SegmentLog::open(options(folder, 200)).map(|_| ()).unwrap_err();
    let change = |path: &Path, at: usize, byte: u8| {
        let mut bytes = fs::read(path).unwrap();
        bytes[at] = byte;
        fs::write(path, bytes).unwrap();
    };

    let folder = written(12, 200).await;
    let paths = segments(folder.path());
    assert!(paths.len() > 3);
    fs::remove_file(&paths[1]).unwrap();
    assert!(matches!(refused(folder.path()), OpenError::Gap { .. }));

    let folder = written(12, 200).await;
    let first = &segments(folder.path())[0];
    let len = usize::try_from(fs::metadata(first).unwrap().len()).unwrap();
    change(first, len - 1, b'X');
    assert!(matches!(refused(folder.path()), OpenError::Damaged { byte, .. } if byte < len as u64));

    let folder = written(2, 200).await;
    let first = &segments(folder.path())[0];
    change(first, 8, 2);
    let error = refused(folder.path());
    assert!(matches!(error, OpenError::UnknownVersion { version: 2, .. }), "{error}");
    change(first, 8, 1);
    change(first, 0, b'X');
    assert!(matches!(refused(folder.path()), OpenError::NotASegment { .. }));
    change(first, 0, b'W');
    change(first, 13, b'X');
    assert!(matches!(refused(folder.path()), OpenError::Damaged { byte: 0, flaw: Flaw::Header, .. }));

    let folder = written(2, 200).await;
    fs::write(folder.path().join(TOPIC.suffix()).join("notes.txt"), "hello").unwrap();
    assert!(matches!(refused(folder.path()), OpenError::NotASegment { .. }));

    let folder = written(2, 200).await;
    fs::rename(folder.path().join(TOPIC.suffix()), folder.path().join("usage")).unwrap();
    assert!(matches!(refused(folder.path()), OpenError::Shorter { end: 0, .. }));
    forget_mark(folder.path());
    assert!(matches!(refused(folder.path()), OpenError::WrongTopic { found, .. } if found == "reservations"));

    let folder = written(2, 200).await;
    let first = &segments(folder.path())[0];
    fs::rename(first, segment_path(first.parent().unwrap(), 1)).unwrap();
    assert!(matches!(refused(folder.path()), OpenError::Damaged { flaw: Flaw::Header, .. }));
}

#[tokio::test]
async fn a_second_process_is_refused_by_folder_and_pid() {
    let folder = written(1, 200).await;
    let log = SegmentLog::open(options(folder.path(), 200)).unwrap();
    let error = SegmentLog::open(options(folder.path(), 200)).unwrap_err();
    let expected = format!("{} is in use by process {}", folder.path().display(), std::process::id());
    assert!(error.to_string().starts_with(&expected), "{error}");
    log.close().await;
    SegmentLog::open(options(folder.path(), 200)).unwrap();
}

#[tokio::test]
async fn a_folder_is_read_beside_the_process_that_writes_it() {
    let folder = tempfile::tempdir().unwrap();
    let log = SegmentLog::open(options(folder.path(), 300)).unwrap();
    assert_eq!(read_folder(folder.path(), TOPIC).unwrap().count(), 0);
    for n in 0..20u64 {
        log.append(Batch::new(TOPIC, "k", 0, vec![Bytes::from(n.to_string())])).written().await.unwrap();
        let frames: Vec<Frame> = read_folder(folder.path(), TOPIC).unwrap().map(Result::unwrap).collect();
        assert_eq!(frames.len() as u64, n + 1);
        assert_eq!(frames.last().unwrap().base_offset, n);
    }
    assert!(segments(folder.path()).len() > 3);
    let last = segments(folder.path()).pop().unwrap();
    let torn = fs::OpenOptions::new().append(true).open(&last).unwrap();
    io::Write::write_all(&mut &torn, b"\xF7WF").unwrap();
    assert_eq!(read_folder(folder.path(), TOPIC).unwrap().filter(Result::is_ok).count(), 20, "being written");

    let middle = &segments(folder.path())[1];
    let mut bytes = fs::read(middle).unwrap();
    bytes[100] ^= 1;
    fs::write(middle, bytes).unwrap();
    let outcome: Vec<_> = read_folder(folder.path(), TOPIC).unwrap().collect();
    assert!(
        matches!(outcome.last(), Some(Err(OpenError::Damaged { file, .. })) if *file == middle.display().to_string())
    );
}

/// What was read is right, whatever bytes changed on the disk: a prefix, or an error, never another record.
fn check_flips(flips: &[(prop::sample::Index, prop::sample::Index, u8)], segment_bytes: u64) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let folder = written(12, segment_bytes).await;
        let log = SegmentLog::open(options(folder.path(), segment_bytes)).unwrap();
        let originals = read_all(&log).await.unwrap();
        drop(log);
        let paths = segments(folder.path());
        for (file, at, flip) in flips {
            let path = &paths[file.index(paths.len())];
            let mut bytes = fs::read(path).unwrap();
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
            fs::write(path, bytes).unwrap();
        }
        let by_folder: Vec<Frame> = read_folder(folder.path(), TOPIC).unwrap().map_while(Result::ok).collect();
        let values = by_folder.iter().flat_map(|frame| &frame.values);
        assert!(values.zip(&originals).all(|(value, original)| *value == original.value));
        let Ok(log) = SegmentLog::open(options(folder.path(), segment_bytes)) else { return };
        let end = log.found()[0].end_offset;
        for offset in 0..end {
            let at = Position { topic: TOPIC, partition: 0, offset };
            if let Ok(read) = log.read(at, Limits::default(), Visibility::Durable).await {
                let from = usize::try_from(offset).unwrap();
                assert!(!read.is_empty());
                assert_eq!(read, originals[from..from + read.len()], "from {offset}");
            }
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn changed_bytes_never_yield_other_records(
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), 1u8..), 1..4),
        segment_bytes in prop::sample::select(vec![200u64, 1 << 20]),
    ) {
        check_flips(&flips, segment_bytes);
    }
}
