//! Reading a topic's folder without opening the log: no lock, no change, also beside a running process.

use std::path::{Path, PathBuf};

use super::file::{Frames, ScanError, SegmentReader};
use super::frame::{Flaw, Frame};
use super::mark::Marks;
use super::recover::{OpenError, open_segment, segment_paths};
use crate::topics::Topic;

/// Reads all frames of a topic's folder in order, without the lock and without changing anything, up to the last
/// whole frame at this moment; at least up to what was durable when this was called. For `weir replay --verify` beside
/// a running process.
///
/// # Errors
/// When the folder cannot be listed.
pub fn read_folder(log_folder: &Path, topic: Topic) -> Result<FolderFrames, OpenError> {
    // Before the segments are looked at: the running process moves it on.
    let marks = Marks::read(log_folder).map_err(|source| OpenError::Io {
        action: "read the durable mark in",
        path: log_folder.display().to_string(),
        source,
    })?;
    let folder = log_folder.join(topic.suffix());
    let mut paths = segment_paths(&folder)?;
    paths.reverse();
    Ok(FolderFrames { topic, folder, durable: marks.of(topic), paths, current: None, expected: None })
}

/// The frames of a folder. Ends after the first error.
#[derive(Debug)]
pub struct FolderFrames {
    topic: Topic,
    folder: PathBuf,
    durable: u64,
    /// Still to be opened, the next one last.
    paths: Vec<PathBuf>,
    current: Option<(SegmentReader, Frames)>,
    expected: Option<u64>,
}

impl FolderFrames {
    fn advance(&mut self) -> Result<Option<Frame>, OpenError> {
        loop {
            let Some((reader, frames)) = &mut self.current else {
                let Some(path) = self.paths.pop() else { return self.end() };
                self.open(&path)?;
                continue;
            };
            let byte = frames.byte();
            match frames.next() {
                Some(Ok(frame)) => {
                    let expected = self.expected.unwrap_or(frame.base_offset);
                    if frame.base_offset != expected {
                        let flaw = Flaw::Order { expected, found: frame.base_offset };
                        return Err(OpenError::Damaged { file: reader.path().display().to_string(), byte, flaw });
                    }
                    self.expected = Some(frame.end_offset());
                    return Ok(Some(frame));
                }
                None => self.current = None,
                Some(Err(error)) => {
                    let is_last = self.paths.is_empty() && reader.footer().is_none();
                    stop_at(reader, error, is_last, self.expected.unwrap_or(0), self.durable)?;
                    self.current = None;
                    return self.end();
                }
            }
        }
    }

    /// There are no more frames: then none of what was durable may be missing.
    fn end(&self) -> Result<Option<Frame>, OpenError> {
        let end = self.expected.unwrap_or(0);
        if end < self.durable {
            let folder = self.folder.display().to_string();
            return Err(OpenError::Shorter { folder, end, durable: self.durable });
        }
        Ok(None)
    }

    fn open(&mut self, path: &Path) -> Result<(), OpenError> {
        let Some(reader) = open_segment(path, self.topic)? else {
            if self.paths.is_empty() {
                return Ok(()); // The running process is just creating it.
            }
            return Err(OpenError::Damaged { file: path.display().to_string(), byte: 0, flaw: Flaw::Header });
        };
        let found = reader.header().base_offset;
        match self.expected {
            Some(expected) if expected != found => {
                return Err(OpenError::Gap { file: path.display().to_string(), expected, found });
            }
            Some(_) | None => self.expected = Some(found),
        }
        let frames = reader.frames();
        self.current = Some((reader, frames));
        Ok(())
    }
}

/// A bad frame in the last segment is being written or was never synced, unless something proves that it was durable.
fn stop_at(
    reader: &SegmentReader,
    error: ScanError,
    is_last: bool,
    expected: u64,
    durable: u64,
) -> Result<(), OpenError> {
    let path = reader.path().display().to_string();
    match error {
        ScanError::Io(source) => Err(OpenError::Io { action: "read", path, source }),
        ScanError::Bad { byte, flaw } => {
            let claimed = reader.durable_end_after(byte, expected).map_err(|source| OpenError::Io {
                action: "read",
                path: path.clone(),
                source,
            })?;
            if is_last && durable.max(claimed.unwrap_or(0)) <= expected {
                Ok(())
            } else {
                Err(OpenError::Damaged { file: path, byte, flaw })
            }
        }
    }
}

impl Iterator for FolderFrames {
    type Item = Result<Frame, OpenError>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.advance().transpose();
        if matches!(next, Some(Err(_)) | None) {
            self.paths.clear();
            self.current = None;
            self.durable = 0; // Said once.
        }
        next
    }
}
