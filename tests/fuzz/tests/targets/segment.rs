//! A damaged log: whole frames as they were written, in order, and then an end or a typed error. It is never silently
//! shorter: where it ends without an error, no later frame is whole.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use tempfile::TempDir;
use weir_fuzz::{Fuzz, Mutator, Random, shape_of};
use weir_streams::segment::{Frame, SegmentLog, SegmentOptions, SegmentReader, read_folder};
use weir_streams::{Batch, EventLog, Limits, Position, Topic, Visibility};

use crate::peak_mib;

const TOPIC: Topic = Topic::Reservations;
const BATCHES: usize = 12;
/// Magic and version: by these alone a file that has lost the rest of its header is still one of ours.
const TELLS_A_SEGMENT: usize = 12;

/// A log as a process left it: the bytes of its one segment, its frames and where they stand.
struct Original {
    name: String,
    bytes: Vec<u8>,
    frames: Vec<Frame>,
    places: Vec<Range<usize>>,
}

#[test]
fn segment() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let original = runtime.block_on(original());
    let folder = tempfile::tempdir().unwrap();
    let fuzz = Fuzz {
        name: "segment",
        mutator: Mutator { words: &[&[0; 64], &[0; 4], &[0xff; 4], b"WEIR"], max_bytes: 64 * 1024 },
        seeds: vec![original.bytes.clone()],
    };
    let mut rounds = 0u64;
    fuzz.run(|mutated, random| {
        rounds += 1;
        // Mutations that keep every byte in its place say the most; they are added to those of the engine.
        let mut bytes = if random.one_in(3) { mutated.to_vec() } else { original.bytes.clone() };
        damage(&mut bytes, random);
        let path = write(folder.path(), &original.name, &bytes);
        let (read, error) = read_all(folder.path());
        check(&original, &bytes, &read, error.as_deref());
        // Opening for writing syncs and starts threads, so it is tried less often.
        if rounds.is_multiple_of(16) {
            let opened = runtime.block_on(reopened(folder.path()));
            match &opened {
                Ok(values) => assert_eq!(*values, values_of(&read), "a log opens with what can be read"),
                Err(error) => assert!(!error.is_empty()),
            }
            if error.is_some() {
                assert!(opened.is_err(), "what cannot be read is not opened for writing");
            }
        }
        fs::remove_file(path).ok();
        shape_of(&(read.len(), error.map(|error| error.chars().filter(|c| !c.is_ascii_digit()).collect::<String>())))
    });
    assert!(peak_mib() < 1_024, "{} MiB", peak_mib());
}

async fn original() -> Original {
    let folder = TempDir::new().unwrap();
    let log = SegmentLog::open(SegmentOptions::new(folder.path())).unwrap();
    for number in 0..BATCHES {
        let values =
            (0..=number % 3).map(|n| Bytes::from(format!("value {number}.{n} {}", "x".repeat(number * 7)))).collect();
        let batch = Batch::new(TOPIC, format!("key {number}"), 1_000 + i64::try_from(number).unwrap(), values);
        log.append(batch).durable().await.unwrap();
    }
    log.close().await;
    drop(log);
    let path = segment_path(folder.path());
    let reader = SegmentReader::open(&path).unwrap();
    let (mut frames, mut places) = (Vec::new(), Vec::new());
    let mut iter = reader.frames();
    loop {
        let start = usize::try_from(iter.byte()).unwrap();
        let Some(frame) = iter.next() else { break };
        frames.push(frame.unwrap());
        places.push(start..usize::try_from(iter.byte()).unwrap());
    }
    assert_eq!(frames.len(), BATCHES);
    let name = path.file_name().unwrap().to_str().unwrap().to_owned();
    Original { name, bytes: fs::read(&path).unwrap(), frames, places }
}

fn segment_path(folder: &Path) -> PathBuf {
    fs::read_dir(folder.join(TOPIC.suffix())).unwrap().next().unwrap().unwrap().path()
}

fn damage(bytes: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..random.below(3) {
        let at = random.below(bytes.len());
        let end = (at + 1 + random.below(200)).min(bytes.len());
        match random.below(5) {
            0 | 1 => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << random.below(8);
                }
            }
            2 => bytes[at..end].fill(0),
            3 => bytes[at..end].iter_mut().for_each(|byte| *byte = random.byte()),
            _ => bytes.truncate(at),
        }
    }
}

fn write(folder: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let topic = folder.join(TOPIC.suffix());
    fs::create_dir_all(&topic).unwrap();
    for left in fs::read_dir(&topic).unwrap() {
        fs::remove_file(left.unwrap().path()).unwrap();
    }
    let path = topic.join(name);
    fs::write(&path, bytes).unwrap();
    path
}

fn read_all(folder: &Path) -> (Vec<Frame>, Option<String>) {
    let mut read = Vec::new();
    let frames = match read_folder(folder, TOPIC) {
        Ok(frames) => frames,
        Err(error) => return (read, Some(error.to_string())),
    };
    for frame in frames {
        match frame {
            Ok(frame) => read.push(frame),
            Err(error) => return (read, Some(error.to_string())),
        }
    }
    (read, None)
}

fn check(original: &Original, bytes: &[u8], read: &[Frame], error: Option<&str>) {
    assert!(read.len() <= original.frames.len(), "frames that nobody wrote");
    assert_eq!(read, &original.frames[..read.len()], "frames as they were written, in order");
    // A header that ends in zeros is a creation that a power loss cut off. Frames behind it cannot be told from garbage,
    // because the salt of their checksums is gone; that they were durable only the mark beside the topics proves.
    let header = &original.bytes[..original.places[0].start];
    let found = bytes.get(..header.len()).unwrap_or_default();
    let kept = found.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    let known = kept.min(TELLS_A_SEGMENT);
    let is_unborn = kept < header.len() && found[..known] == header[..known];
    if error.is_none() && read.len() < original.frames.len() && !is_unborn {
        let is_whole = |place: &Range<usize>| bytes.get(place.clone()) == Some(&original.bytes[place.clone()]);
        let later = original.places[read.len()..].iter().position(is_whole);
        assert_eq!(later, None, "silently shorter: {} of {} frames", read.len(), original.frames.len());
    }
}

fn values_of(frames: &[Frame]) -> Vec<Bytes> {
    frames.iter().flat_map(|frame| frame.values.iter().cloned()).collect()
}

/// The log's records after a start.
async fn reopened(folder: &Path) -> Result<Vec<Bytes>, String> {
    let log = SegmentLog::open(SegmentOptions::new(folder)).map_err(|error| error.to_string())?;
    let at = Position { topic: TOPIC, partition: 0, offset: 0 };
    let records = log.read(at, Limits { records: 1_000, bytes: 1 << 20 }, Visibility::Durable).await;
    log.close().await;
    records.map(|records| records.into_iter().map(|record| record.value).collect()).map_err(|error| error.to_string())
}
