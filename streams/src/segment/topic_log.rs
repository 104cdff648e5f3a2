//! What writer, syncer and readers of one topic share.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::file::{self, ScanError, SegmentError, SegmentReader, SegmentWriter};
use super::frame::{Flaw, Footer};
use super::recover::{ClosedSegment, Recovered};
use super::tail::{Tail, Wanted};
use crate::append::Progress;
use crate::contract::{Batch, ReadError};
use crate::topics::Topic;

#[derive(Debug)]
pub(super) struct TopicLog {
    pub topic: Topic,
    pub folder: PathBuf,
    pub progress: Arc<Progress>,
    shelf: Mutex<Shelf>,
}

/// The segments by offset, and the newest batches.
#[derive(Debug)]
struct Shelf {
    closed: Vec<ClosedSegment>,
    active: Option<Active>,
    start_offset: u64,
    tail: Tail,
}

#[derive(Debug)]
struct Active {
    path: PathBuf,
    base_offset: u64,
    index: Vec<(u64, u64)>,
}

impl Active {
    fn of(writer: &SegmentWriter) -> Self {
        let (path, index) = (writer.path().to_owned(), writer.index().to_vec());
        Self { path, base_offset: writer.base_offset(), index }
    }
}

impl TopicLog {
    pub(super) fn new(topic: Topic, folder: PathBuf, recovered: &Recovered, tail_bytes: usize) -> Self {
        let shelf = Shelf {
            closed: recovered.closed.clone(),
            active: recovered.active.as_ref().map(Active::of),
            start_offset: recovered.start_offset,
            tail: Tail::new(tail_bytes),
        };
        let progress = Arc::new(Progress::starting_at(recovered.end_offset));
        Self { topic, folder, progress, shelf: Mutex::new(shelf) }
    }

    pub(super) fn start_offset(&self) -> u64 {
        self.shelf.lock().start_offset
    }

    /// A new segment became the active one.
    pub(super) fn opened(&self, writer: &SegmentWriter) {
        self.shelf.lock().active = Some(Active::of(writer));
    }

    /// The active segment got its footer.
    pub(super) fn closed(&self, writer: &SegmentWriter, footer: Footer) {
        let mut shelf = self.shelf.lock();
        shelf.active = None;
        let (path, base_offset) = (writer.path().to_owned(), writer.base_offset());
        shelf.closed.push(ClosedSegment { path, base_offset, footer });
    }

    /// The batches are in the active segment's file.
    pub(super) fn published(&self, writer: &SegmentWriter, batches: impl Iterator<Item = (u64, Batch)>) {
        // Declared before the lock is taken, so that it is dropped after the lock was let go.
        let mut evicted = Vec::new();
        let mut shelf = self.shelf.lock();
        if let Some(active) = &mut shelf.active {
            let known = active.index.len();
            active.index.extend_from_slice(&writer.index()[known..]);
        }
        for (base_offset, batch) in batches {
            shelf.tail.push(base_offset, batch, &mut evicted);
        }
    }

    /// Reads from memory, or says which file to read.
    pub(super) fn read_tail(&self, wanted: &mut Wanted) -> Result<Option<FileRead>, ReadError> {
        let shelf = self.shelf.lock();
        if wanted.next < shelf.start_offset {
            return Err(ReadError::Gone { topic: self.topic, offset: wanted.next, start: shelf.start_offset });
        }
        if shelf.tail.read(wanted) {
            return Ok(None);
        }
        let is_active = shelf.active.as_ref().filter(|active| active.base_offset <= wanted.next);
        if let Some(active) = is_active {
            return Ok(Some(FileRead { path: active.path.clone(), byte: file::seek(&active.index, wanted.next) }));
        }
        let after = shelf.closed.partition_point(|segment| segment.base_offset <= wanted.next);
        let segment = after.checked_sub(1).map(|at| &shelf.closed[at]);
        Ok(segment.map(|segment| FileRead {
            path: segment.path.clone(),
            byte: file::seek(&segment.footer.index, wanted.next),
        }))
    }

    /// Deletes closed segments whose records are all older than `before_ms` and below `consumed`. The newest closed
    /// one stays: it carries the next offset, should a power loss take an active one that was just created.
    pub(super) fn expire(&self, before_ms: i64, consumed: u64) -> io::Result<usize> {
        let removed: Vec<ClosedSegment> = {
            let mut shelf = self.shelf.lock();
            let may_go = shelf.closed.len().saturating_sub(1);
            let count = shelf.closed[..may_go]
                .iter()
                .take_while(|segment| segment.footer.last_time_ms < before_ms && segment.footer.end_offset <= consumed)
                .count();
            let removed: Vec<ClosedSegment> = shelf.closed.drain(..count).collect();
            if let Some(last) = removed.last() {
                shelf.start_offset = last.footer.end_offset;
            }
            removed
        };
        // Oldest first: if this is interrupted, what is left has no hole.
        removed.iter().try_for_each(|segment| fs::remove_file(&segment.path))?;
        Ok(removed.len())
    }
}

/// A read that memory cannot answer: one file from one byte on.
#[derive(Debug)]
pub(super) struct FileRead {
    path: PathBuf,
    byte: u64,
}

impl FileRead {
    /// Blocks on the disk. May return less than wanted, never nothing.
    pub(super) fn run(&self, topic: Topic, wanted: &mut Wanted) -> Result<(), ReadError> {
        let file = || self.path.display().to_string();
        let io = |source| ReadError::Io { file: file(), source };
        let damaged = |byte, flaw: Flaw| ReadError::Damaged { file: file(), byte, flaw: flaw.to_string() };
        let reader = SegmentReader::open(&self.path).map_err(|error| match error {
            SegmentError::Io(source) if source.kind() == io::ErrorKind::NotFound => {
                ReadError::Gone { topic, offset: wanted.next, start: wanted.next + 1 }
            }
            SegmentError::Io(source) => io(source),
            SegmentError::Header(_) | SegmentError::Unborn => damaged(0, Flaw::Header),
        })?;
        let mut frames = reader.frames_from(self.byte);
        let mut expected = None;
        loop {
            let byte = frames.byte();
            let frame = match frames.next() {
                Some(Ok(frame)) => frame,
                Some(Err(ScanError::Io(source))) => return Err(io(source)),
                Some(Err(ScanError::Bad { byte, flaw })) => return Err(damaged(byte, flaw)),
                None if wanted.records.is_empty() => return Err(damaged(byte, Flaw::Incomplete)),
                None => return Ok(()),
            };
            let follows = expected.map_or(frame.base_offset <= wanted.next, |offset| offset == frame.base_offset);
            if !follows {
                let expected = expected.unwrap_or(wanted.next);
                return Err(damaged(byte, Flaw::Order { expected, found: frame.base_offset }));
            }
            expected = Some(frame.end_offset());
            if !wanted.take(frame.base_offset, frame.time_ms, &frame.key, &frame.values) {
                return Ok(());
            }
            if wanted.is_satisfied() {
                return Ok(());
            }
        }
    }
}

/// Creates the topic's folder if it is not there; says whether it was created.
pub(super) fn ensure_folder(folder: &Path) -> io::Result<bool> {
    match fs::create_dir(folder) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}
