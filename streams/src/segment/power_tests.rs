//! Power loss: the folder as of the last syncs, plus whatever a disk may have made of what was written since.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use proptest::prelude::*;
use proptest::test_runner::TestRng;
use tokio::time::timeout;

use super::*;
use crate::conformance::PATIENCE;
use crate::segment::folder::read_folder;

const PAGE_BYTES: u64 = 4096;
/// The file's header and the first frame's, with room.
const HEADERS_BYTES: usize = 96;
/// One that clients wait for and a paced one.
const TOPICS: [Topic; 2] = [Topic::Reservations, Topic::Usage];

/// A disk that remembers what was synced, and stops syncing after a number of syncs, as before a power loss.
#[derive(Debug, Default)]
struct PowerDisk {
    state: Mutex<Synced>,
}

#[derive(Debug, Default)]
struct Synced {
    /// By inode: how many bytes a power loss cannot take.
    files: HashMap<u64, u64>,
    /// Inodes whose name was in a synced folder.
    names: HashSet<u64>,
    /// What is still synced; then syncs end without an effect and fail, which also closes the log.
    left: Option<u32>,
}

impl Synced {
    fn take(&mut self) -> io::Result<()> {
        match &mut self.left {
            None => Ok(()),
            Some(0) => Err(io::Error::other("the power is about to go")),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
        }
    }
}

impl Disk for PowerDisk {
    fn write(&self, file: &File, bytes: &[u8]) -> io::Result<()> {
        SystemDisk.write(file, bytes)
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        let metadata = file.metadata()?;
        let mut state = self.state.lock();
        state.take()?;
        state.files.insert(metadata.ino(), metadata.len());
        Ok(())
    }

    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        let inodes: io::Result<Vec<u64>> = fs::read_dir(folder)?.map(|entry| Ok(entry?.metadata()?.ino())).collect();
        let mut state = self.state.lock();
        state.take()?;
        state.names.extend(inodes?);
        Ok(())
    }
}

/// What was appended to a topic: the values in order, where batches end, and how far it was confirmed.
#[derive(Debug, Default)]
struct Appended {
    values: Vec<Bytes>,
    ends: Vec<u64>,
    durable: u64,
}

/// A log that was written to and has just lost its power.
struct Lost {
    folder: tempfile::TempDir,
    appended: HashMap<Topic, Appended>,
    disk: Arc<PowerDisk>,
    mark_at_open: Vec<u8>,
}

async fn write_until_power_loss(rng: &mut TestRng) -> Lost {
    let (folder, disk) = (tempfile::tempdir().unwrap(), Arc::new(PowerDisk::default()));
    let segment_bytes = [2_000, 20_000, 60_000][below(rng, 3)];
    let options = SegmentOptions {
        segment_bytes: segment_bytes as u64,
        disk: Arc::clone(&disk) as Arc<dyn Disk>,
        ..SegmentOptions::new(folder.path())
    };
    let log = SegmentLog::open(options).unwrap();
    let mark_at_open = fs::read(folder.path().join("durable")).unwrap();
    let mut appended: HashMap<Topic, Appended> = TOPICS.map(|topic| (topic, Appended::default())).into();
    let (steady, doomed) = (below(rng, 25), below(rng, 25));
    for n in 0..steady + doomed {
        if n == steady {
            // From here on only some of the syncs happen; the others fail as the power goes.
            disk.state.lock().left = Some(u32::try_from(below(rng, 8)).unwrap());
        }
        let mut last = None;
        for _ in 0..1 + below(rng, 6) {
            let topic = TOPICS[below(rng, 2)];
            let values: Vec<Bytes> = (0..1 + below(rng, 3)).map(|_| any_value(rng)).collect();
            let append = log.append(Batch::new(topic, "key", 5, values.clone()));
            let known = appended.get_mut(&topic).unwrap();
            known.values.extend(values);
            known.ends.push(known.values.len() as u64);
            last = Some(append);
        }
        let Some(last) = last else { continue };
        let written = timeout(PATIENCE, last.written()).await.unwrap();
        if written.is_ok() && below(rng, 3) == 0 {
            // Fails once the power is going.
            let _ = timeout(PATIENCE, last.durable()).await.unwrap();
        }
    }
    for topic in TOPICS {
        appended.get_mut(&topic).unwrap().durable = log.offsets(topic, 0).await.unwrap().durable;
    }
    disk.state.lock().left = Some(0);
    log.close().await;
    Lost { folder, appended, disk, mark_at_open }
}

/// Incompressible and recognisable; sometimes larger than a page.
fn any_value(rng: &mut TestRng) -> Bytes {
    let len = if below(rng, 5) == 0 { below(rng, 12_000) } else { below(rng, 300) };
    let mut value = vec![0; len];
    rng.fill_bytes(&mut value);
    Bytes::from(value)
}

fn below(rng: &mut TestRng, end: usize) -> usize {
    rng.random_range(0..end)
}

impl Lost {
    /// What the disk kept: every synced byte, and of the others any pages, whole, torn or zeroed, up to any length.
    fn as_found_later(&self, rng: &mut TestRng) -> tempfile::TempDir {
        let found = tempfile::tempdir().unwrap();
        let state = self.disk.state.lock();
        for topic in TOPICS {
            let from = self.folder.path().join(topic.suffix());
            let Ok(entries) = fs::read_dir(&from) else { continue };
            let to = found.path().join(topic.suffix());
            fs::create_dir(&to).unwrap();
            for path in entries.map(|entry| entry.unwrap().path()) {
                let inode = fs::metadata(&path).unwrap().ino();
                if !state.names.contains(&inode) && below(rng, 4) == 0 {
                    continue;
                }
                let synced = state.files.get(&inode).copied().unwrap_or(0);
                let kept = kept_bytes(&fs::read(&path).unwrap(), synced, rng);
                fs::write(to.join(path.file_name().unwrap()), kept).unwrap();
            }
        }
        let mark = fs::read(self.folder.path().join("durable")).unwrap();
        match below(rng, 4) {
            0 => fs::write(found.path().join("durable"), &self.mark_at_open).unwrap(),
            1 => fs::write(found.path().join("durable"), &mark).unwrap(),
            2 => fs::write(found.path().join("durable"), [&mark[..40], &self.mark_at_open[40..]].concat()).unwrap(),
            _ => {}
        }
        found
    }
}

fn kept_bytes(written: &[u8], synced: u64, rng: &mut TestRng) -> Vec<u8> {
    let len = kept_len(written.len() as u64, synced, rng);
    let mut kept = written[..usize::try_from(len).unwrap()].to_vec();
    let mut at = synced;
    while at < len {
        let page_end = ((at / PAGE_BYTES + 1) * PAGE_BYTES).min(len);
        let page = &mut kept[usize::try_from(at).unwrap()..usize::try_from(page_end).unwrap()];
        match below(rng, 4) {
            0 => {}
            1 => page.fill(0),
            2 => {
                let torn = below(rng, page.len());
                page[torn..].fill(0);
            }
            // In the middle of a header: of the file's, or of a frame's.
            _ => {
                let torn = below(rng, page.len().min(HEADERS_BYTES));
                page[torn..].fill(0);
            }
        }
        at = page_end;
    }
    kept
}

/// Any length is possible. Those that cut a header, or nothing, are one in thousands among them, so they are drawn apart.
fn kept_len(written: u64, synced: u64, rng: &mut TestRng) -> u64 {
    let unsynced = usize::try_from(written - synced).unwrap();
    match below(rng, 4) {
        0 => written,
        1 => synced + below(rng, unsynced.min(HEADERS_BYTES) + 1) as u64,
        2 => synced + below(rng, unsynced + 1) as u64,
        _ => (synced + below(rng, unsynced + 1) as u64).next_multiple_of(PAGE_BYTES).min(written),
    }
}

async fn all_records(log: &SegmentLog, topic: Topic) -> Result<Vec<StoredRecord>, ReadError> {
    let mut records: Vec<StoredRecord> = Vec::new();
    loop {
        let at = Position { topic, partition: 0, offset: records.len() as u64 };
        let read = log.read(at, Limits::default(), Visibility::Durable).await?;
        if read.is_empty() {
            return Ok(records);
        }
        records.extend(read);
    }
}

/// The records of a topic are the first ones that were appended, and whole batches.
fn assert_prefix(topic: Topic, records: &[StoredRecord], appended: &Appended) {
    let end = records.len() as u64;
    assert!(end >= appended.durable, "{topic}: {end} of {} durable records are left", appended.durable);
    assert!(end == 0 || appended.ends.contains(&end), "{topic}: half a batch at the end, {end}");
    for (record, (offset, value)) in records.iter().zip((0..).zip(&appended.values)) {
        assert_eq!((record.offset, &record.value), (offset, value), "{topic}");
    }
}

async fn power_loss(rng: &mut TestRng) {
    let lost = write_until_power_loss(rng).await;
    for _ in 0..4 {
        let found = lost.as_found_later(rng);
        let options = || SegmentOptions { segment_bytes: 20_000, ..SegmentOptions::new(found.path()) };
        let log = SegmentLog::open(options()).unwrap_or_else(|error| panic!("{error} in {}", keep(&found)));
        for topic in TOPICS {
            let records = all_records(&log, topic).await.unwrap();
            assert_eq!(records.len() as u64, log.found()[topic.index()].end_offset);
            assert_prefix(topic, &records, &lost.appended[&topic]);
            let next = log.append(Batch::new(topic, "next", 0, vec!["v".into()])).durable().await.unwrap();
            assert_eq!(next.first.offset, records.len() as u64);
        }
        log.close().await;
        let log = SegmentLog::open(options()).unwrap();
        assert!(log.found().iter().all(|topic| topic.cut_bytes == 0), "{:?}", log.found());
        for topic in TOPICS {
            let frames: Result<Vec<_>, _> = read_folder(found.path(), topic).unwrap().collect();
            let end = frames.unwrap().last().unwrap().end_offset();
            assert_eq!(end, log.found()[topic.index()].end_offset);
        }
    }
}

/// For whoever looks into a failure.
fn keep(folder: &tempfile::TempDir) -> String {
    let copy = folder.path().with_extension("kept");
    fs::rename(folder.path(), &copy).unwrap();
    copy.display().to_string()
}

/// A changed byte below the durable point of a log that was killed: refused at the start, or noticed when it is read;
/// never records that are other or fewer.
async fn flip_below_durable(rng: &mut TestRng) {
    let lost = write_until_power_loss(rng).await;
    for topic in TOPICS {
        let folder = lost.folder.path().join(topic.suffix());
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        let files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        let path = &files[below(rng, files.len())];
        let inode = fs::metadata(path).unwrap().ino();
        let synced = lost.disk.state.lock().files.get(&inode).copied().unwrap_or(0);
        if synced == 0 {
            continue;
        }
        let whole = fs::read(path).unwrap();
        let mut bytes = whole.clone();
        bytes[below(rng, usize::try_from(synced).unwrap())] ^= 1 << below(rng, 8);
        fs::write(path, &bytes).unwrap();
        let by_folder: Vec<_> = read_folder(lost.folder.path(), topic).into_iter().flatten().collect();
        if by_folder.iter().all(Result::is_ok) {
            let end = by_folder.last().map_or(0, |frame| frame.as_ref().unwrap().end_offset());
            assert!(end >= lost.appended[&topic].durable, "{topic}: read_folder is silent");
        }
        if let Ok(log) = SegmentLog::open(SegmentOptions::new(lost.folder.path()))
            && let Ok(records) = all_records(&log, topic).await
        {
            assert_prefix(topic, &records, &lost.appended[&topic]);
        }
        fs::write(path, &whole).unwrap();
    }
}

fn run(test: impl AsyncFnOnce(&mut TestRng), mut rng: TestRng) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(test(&mut rng));
}

/// Each case is a log with a disk: fewer than for pure rules, unless somebody asks for more.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(96)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    #[test]
    fn a_power_loss_takes_nothing_that_was_durable(rng in Just(()).prop_perturb(|(), rng| rng)) {
        run(power_loss, rng);
    }

    #[test]
    fn a_changed_byte_below_the_durable_point_is_never_silent(rng in Just(()).prop_perturb(|(), rng| rng)) {
        run(flip_below_durable, rng);
    }
}
