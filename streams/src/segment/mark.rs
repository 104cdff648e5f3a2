//! The durable mark: one small file beside the topics that says how far each of them is durable.
//!
//! Frames carry the same claim, but those written since the last sync cannot know of it, and at rest nobody writes any
//! more. The mark is written after each sync, before anybody is told, so a killed or stopped process leaves it exact:
//! then every byte that was ever confirmed is provably so, and a log that is shorter is refused. It is not synced each
//! time (that would cost a second sync for all): after a power loss it may be old, never wrong.
//!
//! ```text
//!   <folder>/durable    ( topic 32 | durable end 8 | crc 4 | zero 4 ) × topics
//! ```

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::topics::Topic;

const NAME_BYTES: usize = 32;
const SLOT_BYTES: usize = 48;

/// Where the mark of a log folder is.
#[must_use]
pub(super) fn mark_path(log_folder: &Path) -> PathBuf {
    log_folder.join("durable")
}

/// The durable ends as an earlier process left them. A topic without a whole slot has none, which proves nothing.
#[derive(Debug, Default)]
pub(super) struct Marks(HashMap<&'static str, u64>);

impl Marks {
    pub(super) fn read(log_folder: &Path) -> io::Result<Self> {
        let bytes = match fs::read(mark_path(log_folder)) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(error),
        };
        let (slots, _torn) = bytes.as_chunks::<SLOT_BYTES>();
        let slots: Vec<(Topic, u64)> = slots.iter().filter_map(decode).collect();
        Ok(Self(slots.into_iter().map(|(topic, end)| (topic.suffix(), end)).collect()))
    }

    /// Everything of the topic below this offset was durable.
    pub(super) fn of(&self, topic: Topic) -> u64 {
        self.0.get(topic.suffix()).copied().unwrap_or(0)
    }
}

/// The mark of a running process.
#[derive(Debug)]
pub(super) struct MarkFile(File);

impl MarkFile {
    /// Replaces the mark by one with these ends, in the order of [`Topic::ALL`], as one step; made durable by the
    /// sync of the folder that follows.
    pub(super) fn replace(log_folder: &Path, ends: impl Iterator<Item = u64>) -> io::Result<Self> {
        let new = log_folder.join("durable.new");
        let file = OpenOptions::new().create(true).truncate(true).read(true).write(true).open(&new)?;
        let slots: Vec<u8> = Topic::ALL.into_iter().zip(ends).flat_map(|(topic, end)| encode(topic, end)).collect();
        file.write_all_at(&slots, 0)?;
        file.sync_data()?;
        fs::rename(&new, mark_path(log_folder))?;
        Ok(Self(file))
    }

    /// The topic is durable up to `end`. Only the thread that syncs the topic calls it.
    pub(super) fn set(&self, topic: Topic, end: u64) -> io::Result<()> {
        self.0.write_all_at(&encode(topic, end), (topic.index() * SLOT_BYTES) as u64)
    }

    pub(super) fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }
}

fn encode(topic: Topic, end: u64) -> [u8; SLOT_BYTES] {
    let mut slot = [0; SLOT_BYTES];
    for (to, from) in slot.iter_mut().zip(topic.suffix().bytes()) {
        *to = from;
    }
    slot[NAME_BYTES..NAME_BYTES + 8].copy_from_slice(&end.to_le_bytes());
    let sum = crc32fast::hash(&slot[..NAME_BYTES + 8]);
    slot[NAME_BYTES + 8..NAME_BYTES + 12].copy_from_slice(&sum.to_le_bytes());
    slot
}

fn decode(slot: &[u8; SLOT_BYTES]) -> Option<(Topic, u64)> {
    let name = &slot[..slot[..NAME_BYTES].iter().position(|byte| *byte == 0).unwrap_or(NAME_BYTES)];
    let topic = Topic::by_suffix(std::str::from_utf8(name).ok()?)?;
    let end = slot[NAME_BYTES..].first_chunk().map(|end| u64::from_le_bytes(*end))?;
    (encode(topic, end) == *slot).then_some((topic, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_reads_as_it_was_written_and_a_damaged_slot_proves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Marks::read(folder.path()).unwrap().of(Topic::Usage), 0);
        let mark = MarkFile::replace(folder.path(), 100..).unwrap();
        mark.set(Topic::Usage, 7).unwrap();
        let path = mark_path(folder.path());
        let whole = fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            fs::write(&path, &bytes).unwrap();
            let marks = Marks::read(folder.path()).unwrap();
            for (topic, end) in Topic::ALL.into_iter().zip(100u64..) {
                let end = if topic == Topic::Usage { 7 } else { end };
                let expected = if at / SLOT_BYTES == topic.index() { 0 } else { end };
                assert_eq!(marks.of(topic), expected, "{topic}, byte {at}");
            }
        }
        fs::write(&path, &whole[..100]).unwrap();
        let marks = Marks::read(folder.path()).unwrap();
        assert_eq!((marks.of(Topic::UsageReports), marks.of(Topic::Ledger)), (101, 0), "a torn file");
    }
}
