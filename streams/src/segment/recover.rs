//! Opening what an earlier process left: which segments there are, what of the last one is whole, and whether to
//! refuse. Also reading a folder without opening it, beside a running process.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::disk::Disk;
use super::file::{Frames, ScanError, SegmentError, SegmentReader, SegmentWriter, base_offset_of};
use super::frame::{FORMAT_VERSION, Flaw, Footer, Frame, HeaderFlaw};
use crate::topics::{Topic, TopicsError};

/// Why a log cannot be opened. Every case names the file and what to do.
#[derive(Debug, Error)]
pub enum OpenError {
    #[error("cannot {action} {path}")]
    Io { action: &'static str, path: String, source: io::Error },
    #[error("{folder} is in use by process {pid}: stop it first, or give this one its own folder")]
    Locked { folder: String, pid: String },
    #[error("{file} is not a segment: move it out of the folder")]
    NotASegment { file: String },
    #[error("{file} has format version {version}, this program reads {FORMAT_VERSION}: use the newer program")]
    UnknownVersion { file: String, version: u32 },
    #[error("{file} belongs to topic `{found}`: move it back to its own folder")]
    WrongTopic { file: String, found: String },
    #[error(
        "{file} is damaged at byte {byte}: {flaw}. Whole events follow it, so nothing was cut. Restore the file from a \
         copy; if the machine lost power while it was written, `truncate -s {byte} {file}` gives up what follows"
    )]
    Damaged { file: String, byte: u64, flaw: Flaw },
    #[error("{file} begins at offset {found}, but the segment before it ends at {expected}: a file is missing")]
    Gap { file: String, expected: u64, found: u64 },
    #[error(transparent)]
    Topics(#[from] TopicsError),
}

/// A segment that is never written again.
#[derive(Debug, Clone)]
pub(super) struct ClosedSegment {
    pub path: PathBuf,
    pub base_offset: u64,
    pub footer: Footer,
}

/// One topic's folder after recovery.
#[derive(Debug)]
pub(super) struct Recovered {
    pub closed: Vec<ClosedSegment>,
    /// `None` when the last segment was closed: the next append makes a new one.
    pub active: Option<SegmentWriter>,
    pub start_offset: u64,
    pub end_offset: u64,
    pub cut_bytes: u64,
}

/// Recovers a topic's folder: checks the chain of closed segments, cuts the torn tail of the last one, and makes
/// sure that what is left is on the disk, so that everything readable is durable.
pub(super) fn recover(disk: &dyn Disk, folder: &Path, topic: Topic) -> Result<Recovered, OpenError> {
    let mut paths = segment_paths(folder)?;
    let mut cut_bytes = 0;
    if let Some(unborn_bytes) = remove_unborn(paths.last())? {
        cut_bytes += unborn_bytes;
        paths.pop();
    }
    let mut recovered = Recovered { closed: Vec::new(), active: None, start_offset: 0, end_offset: 0, cut_bytes };
    let count = paths.len();
    for (n, path) in paths.into_iter().enumerate() {
        let reader = open_segment(&path, topic)?;
        let base_offset = reader.header().base_offset;
        if n == 0 {
            recovered.start_offset = base_offset;
        } else if base_offset != recovered.end_offset {
            let (file, expected) = (path.display().to_string(), recovered.end_offset);
            return Err(OpenError::Gap { file, expected, found: base_offset });
        }
        match reader.footer() {
            Some(footer) => {
                // Closed a moment before a kill, it may not have been synced. For one that was, this costs nothing.
                disk.sync(reader.file()).map_err(|source| OpenError::Io {
                    action: "sync",
                    path: path.display().to_string(),
                    source,
                })?;
                recovered.end_offset = footer.end_offset;
                recovered.closed.push(ClosedSegment { path, base_offset, footer: footer.clone() });
            }
            None if n + 1 == count => {
                let (writer, cut) = recover_last(disk, &reader)?;
                recovered.end_offset = writer.end_offset();
                recovered.cut_bytes += cut;
                recovered.active = Some(writer);
            }
            None => {
                let byte = reader.frames_end();
                return Err(OpenError::Damaged { file: path.display().to_string(), byte, flaw: Flaw::Footer });
            }
        }
    }
    // A segment created a moment before a kill may not be in the folder on the disk yet.
    sync_folder(folder)?;
    Ok(recovered)
}

fn recover_last(disk: &dyn Disk, reader: &SegmentReader) -> Result<(SegmentWriter, u64), OpenError> {
    let file = || reader.path().display().to_string();
    let io = |action| move |source| OpenError::Io { action, path: reader.path().display().to_string(), source };
    let mut scan = reader.scan();
    match scan.stopped_by.take() {
        None => {}
        Some(ScanError::Io(source)) => return Err(io("read")(source)),
        Some(ScanError::Bad { byte, flaw }) => {
            let follows = reader.has_whole_frame_after(byte, scan.end_offset).map_err(io("read"))?;
            if follows || matches!(flaw, Flaw::Order { .. }) {
                return Err(OpenError::Damaged { file: file(), byte, flaw });
            }
        }
    }
    let (end_byte, cut) = (scan.end_byte, reader.frames_end() - scan.end_byte);
    let writer = SegmentWriter::resume(reader, scan).map_err(io("open"))?;
    if cut > 0 {
        writer.file().set_len(end_byte).map_err(io("cut"))?;
    }
    disk.sync(writer.file()).map_err(io("sync"))?;
    Ok((writer, cut))
}

/// Removes the last file if the machine stopped while it was created; says how many bytes went.
fn remove_unborn(last: Option<&PathBuf>) -> Result<Option<u64>, OpenError> {
    let Some(path) = last else { return Ok(None) };
    match SegmentReader::open(path) {
        Err(SegmentError::Unborn) => {
            let io = |source| OpenError::Io { action: "remove", path: path.display().to_string(), source };
            let len = fs::metadata(path).map_err(io)?.len();
            fs::remove_file(path).map_err(io)?;
            Ok(Some(len))
        }
        Ok(_) | Err(SegmentError::Io(_) | SegmentError::Header(_)) => Ok(None),
    }
}

fn open_segment(path: &Path, topic: Topic) -> Result<SegmentReader, OpenError> {
    let file = path.display().to_string();
    let damaged = |file, flaw| OpenError::Damaged { file, byte: 0, flaw };
    let reader = match SegmentReader::open(path) {
        Ok(reader) => reader,
        Err(SegmentError::Io(source)) => return Err(OpenError::Io { action: "open", path: file, source }),
        Err(SegmentError::Header(HeaderFlaw::NotASegment)) => return Err(OpenError::NotASegment { file }),
        Err(SegmentError::Header(HeaderFlaw::UnknownVersion(version))) => {
            return Err(OpenError::UnknownVersion { file, version });
        }
        Err(SegmentError::Header(HeaderFlaw::Damaged) | SegmentError::Unborn) => {
            return Err(damaged(file, Flaw::Header));
        }
    };
    if reader.header().topic != topic.suffix() {
        return Err(OpenError::WrongTopic { file, found: reader.header().topic.clone() });
    }
    match base_offset_of(path) {
        Some(named) if named == reader.header().base_offset => Ok(reader),
        Some(_) | None => Err(damaged(file, Flaw::Header)),
    }
}

/// All segments of a folder by base offset. A folder that is not there has none.
fn segment_paths(folder: &Path) -> Result<Vec<PathBuf>, OpenError> {
    let io = |source| OpenError::Io { action: "list", path: folder.display().to_string(), source };
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(io(error)),
    };
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry.map_err(io)?.path();
        match base_offset_of(&path) {
            Some(_) => paths.push(path),
            None => return Err(OpenError::NotASegment { file: path.display().to_string() }),
        }
    }
    paths.sort();
    Ok(paths)
}

pub(super) fn sync_folder(folder: &Path) -> Result<(), OpenError> {
    let io = |source| OpenError::Io { action: "sync", path: folder.display().to_string(), source };
    match File::open(folder) {
        Ok(file) => file.sync_all().map_err(io),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(io(error)),
    }
}

/// Reads all frames of a topic's folder in order, without the lock and without changing anything, up to the last
/// whole frame at this moment. For `weir replay --verify` beside a running process.
///
/// # Errors
/// When the folder cannot be listed or the first segment is none.
pub fn read_folder(log_folder: &Path, topic: Topic) -> Result<FolderFrames, OpenError> {
    let mut paths = segment_paths(&log_folder.join(topic.suffix()))?;
    paths.reverse();
    Ok(FolderFrames { topic, paths, current: None, expected: None })
}

/// The frames of a folder. Ends after the first error.
#[derive(Debug)]
pub struct FolderFrames {
    topic: Topic,
    /// Still to be opened, the next one last.
    paths: Vec<PathBuf>,
    current: Option<(SegmentReader, Frames)>,
    expected: Option<u64>,
}

impl FolderFrames {
    fn advance(&mut self) -> Result<Option<Frame>, OpenError> {
        loop {
            let Some((reader, frames)) = &mut self.current else {
                let Some(path) = self.paths.pop() else { return Ok(None) };
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
                    stop_at(reader, error, is_last, self.expected.unwrap_or(reader.header().base_offset))?;
                    return Ok(None);
                }
            }
        }
    }

    fn open(&mut self, path: &Path) -> Result<(), OpenError> {
        if self.paths.is_empty() && matches!(SegmentReader::open(path), Err(SegmentError::Unborn)) {
            return Ok(()); // The running process is just creating it.
        }
        let reader = open_segment(path, self.topic)?;
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

/// A bad frame at the very end of the last segment is one that is being written; anywhere else it is damage.
fn stop_at(reader: &SegmentReader, error: ScanError, is_last: bool, expected: u64) -> Result<(), OpenError> {
    let path = reader.path().display().to_string();
    match error {
        ScanError::Io(source) => Err(OpenError::Io { action: "read", path, source }),
        ScanError::Bad { byte, flaw } => {
            let follows = reader.has_whole_frame_after(byte, expected).map_err(|source| OpenError::Io {
                action: "read",
                path: path.clone(),
                source,
            })?;
            if is_last && !follows { Ok(()) } else { Err(OpenError::Damaged { file: path, byte, flaw }) }
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
        }
        next
    }
}

#[cfg(test)]
#[path = "recover_tests.rs"]
mod tests;
