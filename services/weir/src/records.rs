//! Single records of the embedded log, read from its files without the lock.
//!
//! The contract's reads belong to the process that has the log open; a command beside it opens only the segments that
//! it needs, at the byte that their index names.

use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use thiserror::Error;

use weir_streams::segment::file::{Frames, ScanError, SegmentError, SegmentReader, base_offset_of, seek};
use weir_streams::segment::{Flaw, Frame};
use weir_streams::{StoredRecord, Topic};

/// Why records cannot be read.
#[derive(Debug, Error)]
pub enum RecordsError {
    #[error("{} cannot be read", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("{} is no segment", path.display())]
    NotASegment { path: PathBuf, source: SegmentError },
    #[error("{} is damaged at byte {byte}: {flaw}", path.display())]
    Damaged { path: PathBuf, byte: u64, flaw: Flaw },
}

/// The embedded log has one partition.
const PARTITION: u32 = 0;

/// The segments of one topic as they are now.
#[derive(Debug)]
pub struct TopicFiles {
    /// By first offset, ascending.
    segments: Vec<(u64, PathBuf)>,
}

impl TopicFiles {
    /// # Errors
    /// When the folder is there and cannot be listed.
    pub fn list(log_folder: &Path, topic: Topic) -> Result<Self, RecordsError> {
        let folder = log_folder.join(topic.suffix());
        let unreadable = |source| RecordsError::Unreadable { path: folder.clone(), source };
        let mut segments = Vec::new();
        let entries = match std::fs::read_dir(&folder) {
            // Made with the first record.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self { segments }),
            entries => entries.map_err(unreadable)?,
        };
        for entry in entries {
            let path = entry.map_err(unreadable)?.path();
            segments.extend(base_offset_of(&path).map(|base| (base, path)));
        }
        segments.sort();
        Ok(Self { segments })
    }

    /// The first offset that is kept, and the one after the last that is written; zeros without a record.
    ///
    /// # Errors
    /// [`RecordsError`].
    pub fn bounds(&self) -> Result<(u64, u64), RecordsError> {
        let (Some((start, _)), Some((base, last))) = (self.segments.first(), self.segments.last()) else {
            return Ok((0, 0));
        };
        let (mut segment, mut end) = (OpenSegment::seek(last, u64::MAX)?, *base);
        while let Some(frame) = segment.next_frame()? {
            end = frame.end_offset();
        }
        Ok((*start, end))
    }

    /// The records of `key` in the batches that hold `offsets`, in order.
    ///
    /// # Errors
    /// [`RecordsError`].
    pub fn at(&self, offsets: &[u64], key: &[u8]) -> Result<Vec<StoredRecord>, RecordsError> {
        let mut found: Vec<StoredRecord> = Vec::new();
        for offset in offsets {
            if found.iter().any(|record| record.offset == *offset) {
                continue;
            }
            let before = self.segments.partition_point(|(base, _)| base <= offset);
            let Some((_, path)) = before.checked_sub(1).and_then(|at| self.segments.get(at)) else { continue };
            let mut segment = OpenSegment::seek(path, *offset)?;
            while let Some(frame) = segment.next_frame()? {
                if frame.end_offset() > *offset {
                    found.extend(records_of(frame, key));
                    break;
                }
            }
        }
        found.sort_by_key(|record| record.offset);
        Ok(found)
    }

    /// All records of `key` from `offset` to the end: only for an end that is near.
    ///
    /// # Errors
    /// [`RecordsError`].
    pub fn since(&self, offset: u64, key: &[u8]) -> Result<Vec<StoredRecord>, RecordsError> {
        let mut found = Vec::new();
        let first = self.segments.partition_point(|(base, _)| *base <= offset).saturating_sub(1);
        for (_, path) in &self.segments[first.min(self.segments.len())..] {
            let mut segment = OpenSegment::seek(path, offset)?;
            while let Some(frame) = segment.next_frame()? {
                if frame.end_offset() > offset {
                    found.extend(records_of(frame, key).filter(|record| record.offset >= offset));
                }
            }
        }
        Ok(found)
    }
}

/// A segment being read.
struct OpenSegment<'a> {
    path: &'a Path,
    /// Absent while the running process is just creating the file.
    frames: Option<Frames>,
    is_closed: bool,
}

impl<'a> OpenSegment<'a> {
    fn seek(path: &'a Path, offset: u64) -> Result<Self, RecordsError> {
        match SegmentReader::open(path) {
            Ok(reader) => {
                let index = reader.footer().map(|footer| footer.index.as_slice()).unwrap_or_default();
                let frames = Some(reader.frames_from(seek(index, offset)));
                Ok(Self { path, frames, is_closed: reader.footer().is_some() })
            }
            Err(SegmentError::Unborn) => Ok(Self { path, frames: None, is_closed: false }),
            Err(source) => Err(RecordsError::NotASegment { path: path.to_owned(), source }),
        }
    }

    fn next_frame(&mut self) -> Result<Option<Frame>, RecordsError> {
        match self.frames.as_mut().and_then(Iterator::next) {
            None => Ok(None),
            Some(Ok(frame)) => Ok(Some(frame)),
            Some(Err(ScanError::Io(source))) => Err(RecordsError::Unreadable { path: self.path.to_owned(), source }),
            // A bad frame in an open segment is one that is being written: there the records end.
            Some(Err(ScanError::Bad { .. })) if !self.is_closed => Ok(None),
            Some(Err(ScanError::Bad { byte, flaw })) => {
                Err(RecordsError::Damaged { path: self.path.to_owned(), byte, flaw })
            }
        }
    }
}

fn records_of(frame: Frame, key: &[u8]) -> impl Iterator<Item = StoredRecord> + use<> {
    let values: Vec<Bytes> = if frame.key == key { frame.values } else { Vec::new() };
    let (key, time_ms) = (frame.key, frame.time_ms);
    (frame.base_offset..).zip(values).map(move |(offset, value)| StoredRecord {
        partition: PARTITION,
        offset,
        key: key.clone(),
        value,
        time_ms,
    })
}
