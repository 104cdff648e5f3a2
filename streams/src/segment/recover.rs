//! Opening what an earlier process left: which segments there are, where the first thing is that is not whole, and
//! whether to cut there or to refuse. The rule is in the module above: cut only what nothing proves to have been durable.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::disk::Disk;
use super::file::{Scan, ScanError, SegmentError, SegmentReader, SegmentWriter, base_offset_of};
use super::frame::{FORMAT_VERSION, Flaw, Footer, HEADER_BYTES, HeaderFlaw};
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
        "{file} is damaged at byte {byte}: {flaw}. What was there had been confirmed as durable, so nothing was cut. \
         Restore the file from a copy. To give up that and all later events of the topic: `truncate -s {byte} {file}`, \
         then remove the segments after it and the file `durable` beside the topics"
    )]
    Damaged { file: String, byte: u64, flaw: Flaw },
    #[error("{file} begins at offset {found}, but the segment before it ends at {expected}: a file is missing")]
    Gap { file: String, expected: u64, found: u64 },
    #[error(
        "{folder} ends at offset {end}, but everything below {durable} had been confirmed as durable: the end of the \
         log is missing. Restore the folder from a copy. To give up what is missing, remove the file `durable` beside it"
    )]
    Shorter { folder: String, end: u64, durable: u64 },
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

/// Recovers a topic's folder: follows the chain of segments up to the first thing that is not whole, cuts there if it
/// never was durable and refuses otherwise, and makes sure that what is left is on the disk, so that everything
/// readable is durable. Everything below `marked` is known to have been durable.
pub(super) fn recover(disk: &dyn Disk, folder: &Path, topic: Topic, marked: u64) -> Result<Recovered, OpenError> {
    let paths = segment_paths(folder)?;
    let proven = marked.max(newest_claim(&paths));
    let mut recovered = Recovered { closed: Vec::new(), active: None, start_offset: 0, end_offset: 0, cut_bytes: 0 };
    for (n, path) in paths.iter().enumerate() {
        let later = &paths[n + 1..];
        if n == 0 {
            // What retention removed had been durable. If that cannot be, the first segment never reached the disk.
            let start = base_offset_of(path).filter(|named| *named <= proven).unwrap_or(0);
            (recovered.start_offset, recovered.end_offset) = (start, start);
        }
        match Link::of(path, topic, recovered.end_offset, proven, later.is_empty())? {
            Link::Closed { segment, reader } => {
                // Closed a moment before a kill, it may not have been synced.
                if segment.footer.end_offset > proven {
                    disk.sync(reader.file()).map_err(io_at("sync", path))?;
                }
                recovered.end_offset = segment.footer.end_offset;
                recovered.closed.push(segment);
            }
            Link::Active { reader, scan } => recovered.go_on_with(disk, &reader, scan)?,
            Link::Broken(broken) => {
                // The first segment carries the offsets that were given out before it.
                let loses_offsets = n == 0 && recovered.start_offset > 0 && broken.whole.is_none();
                if loses_offsets || broken.durable_end(later, topic, proven)? > broken.offset {
                    return Err(broken.refusal);
                }
                recovered.cut(disk, folder, *broken, later)?;
                break;
            }
        }
    }
    if recovered.end_offset < proven {
        let folder = folder.display().to_string();
        return Err(OpenError::Shorter { folder, end: recovered.end_offset, durable: proven });
    }
    // A segment created a moment before a kill may not be in the folder on the disk yet.
    sync_folder(disk, folder)?;
    Ok(recovered)
}

impl Recovered {
    fn go_on_with(&mut self, disk: &dyn Disk, reader: &SegmentReader, scan: Scan) -> Result<(), OpenError> {
        let end_byte = scan.end_byte;
        let writer = SegmentWriter::resume(reader, scan).map_err(io_at("open", reader.path()))?;
        let len = writer.file().metadata().map_err(io_at("open", reader.path()))?.len();
        if len > end_byte {
            writer.file().set_len(end_byte).map_err(io_at("cut", reader.path()))?;
            self.cut_bytes += len - end_byte;
        }
        disk.sync(writer.file()).map_err(io_at("sync", reader.path()))?;
        self.end_offset = writer.end_offset();
        self.active = Some(writer);
        Ok(())
    }

    /// Removes what is broken and everything after it, the newest first: if this is interrupted, the next start finds
    /// the same place broken.
    fn cut(&mut self, disk: &dyn Disk, folder: &Path, broken: Broken, later: &[PathBuf]) -> Result<(), OpenError> {
        let unborn = broken.whole.is_none().then_some(&broken.path);
        for path in later.iter().rev().chain(unborn) {
            self.cut_bytes += fs::metadata(path).map_err(io_at("remove", path))?.len();
            fs::remove_file(path).map_err(io_at("remove", path))?;
        }
        sync_folder(disk, folder)?;
        match broken.whole {
            Some((reader, scan)) => self.go_on_with(disk, &reader, scan),
            None => Ok(()),
        }
    }
}

/// One segment, looked at as the next of the chain.
enum Link {
    Closed { segment: ClosedSegment, reader: SegmentReader },
    Active { reader: SegmentReader, scan: Scan },
    Broken(Box<Broken>),
}

/// The first thing in the chain that is not whole.
struct Broken {
    path: PathBuf,
    /// Everything below it is whole.
    offset: u64,
    byte: u64,
    /// What of the file is whole; `None` if the file has no beginning.
    whole: Option<(SegmentReader, Scan)>,
    /// What to say if it had been durable.
    refusal: OpenError,
}

impl Link {
    fn of(path: &Path, topic: Topic, expected: u64, proven: u64, is_last: bool) -> Result<Self, OpenError> {
        let file = || path.display().to_string();
        let broken = |offset, byte, whole, refusal| {
            Ok(Self::Broken(Box::new(Broken { path: path.to_owned(), offset, byte, whole, refusal })))
        };
        let Some(reader) = open_segment(path, topic)? else {
            return broken(expected, 0, None, OpenError::Damaged { file: file(), byte: 0, flaw: Flaw::Header });
        };
        let base_offset = reader.header().base_offset;
        if base_offset != expected {
            let gap = OpenError::Gap { file: file(), expected, found: base_offset };
            return if base_offset < expected { Err(gap) } else { broken(expected, 0, None, gap) };
        }
        let footer = reader.footer().cloned();
        if let Some(footer) = footer.clone().filter(|footer| footer.end_offset <= proven) {
            return Ok(Self::Closed { segment: ClosedSegment { path: path.to_owned(), base_offset, footer }, reader });
        }
        let mut scan = reader.scan();
        let damaged = |byte, flaw| OpenError::Damaged { file: file(), byte, flaw };
        match (scan.stopped_by.take(), footer) {
            (Some(ScanError::Io(source)), _) => Err(io_at("read", path)(source)),
            // Both frames are whole, so neither was torn.
            (Some(ScanError::Bad { byte, flaw: flaw @ Flaw::Order { .. } }), _) => Err(damaged(byte, flaw)),
            (Some(ScanError::Bad { byte, flaw }), _) => {
                broken(scan.end_offset, byte, Some((reader, scan)), damaged(byte, flaw))
            }
            (None, Some(footer)) if footer.end_offset == scan.end_offset => {
                Ok(Self::Closed { segment: ClosedSegment { path: path.to_owned(), base_offset, footer }, reader })
            }
            (None, Some(_)) => Err(damaged(reader.frames_end(), Flaw::Footer)),
            (None, None) if is_last => Ok(Self::Active { reader, scan }),
            (None, None) => {
                let byte = reader.frames_end();
                broken(scan.end_offset, byte, Some((reader, scan)), damaged(byte, Flaw::Footer))
            }
        }
    }
}

impl Broken {
    /// How far the topic was durable, as far as anything that is left can prove. Refuses what is not ours to remove.
    fn durable_end(&self, later: &[PathBuf], topic: Topic, proven: u64) -> Result<u64, OpenError> {
        let mut durable_end = proven;
        let own = self.whole.as_ref().map(|(reader, _)| (reader, self.byte));
        if let Some((reader, byte)) = own {
            let claimed = reader.durable_end_after(byte, self.offset).map_err(io_at("read", reader.path()))?;
            durable_end = durable_end.max(claimed.unwrap_or(0));
        }
        // A file beyond a gap is looked at like the ones after it.
        let beyond = self.whole.is_none().then_some(&self.path);
        for path in beyond.into_iter().chain(later) {
            let Some(reader) = open_segment(path, topic)? else { continue };
            let claimed = reader.durable_end_after(HEADER_BYTES as u64, self.offset).map_err(io_at("read", path))?;
            durable_end = durable_end.max(claimed.unwrap_or(0));
        }
        Ok(durable_end)
    }
}

/// What the first frame of the newest segment that has one says about what was durable before it.
fn newest_claim(paths: &[PathBuf]) -> u64 {
    let first_frame = |path: &PathBuf| SegmentReader::open(path).ok()?.frames().next()?.ok();
    paths.iter().rev().find_map(first_frame).map_or(0, |frame| frame.durable_end)
}

/// `None` if the machine stopped while the file was created.
pub(super) fn open_segment(path: &Path, topic: Topic) -> Result<Option<SegmentReader>, OpenError> {
    let file = path.display().to_string();
    let damaged = |file, flaw| OpenError::Damaged { file, byte: 0, flaw };
    let reader = match SegmentReader::open(path) {
        Ok(reader) => reader,
        Err(SegmentError::Unborn) => return Ok(None),
        Err(SegmentError::Io(source)) => return Err(OpenError::Io { action: "open", path: file, source }),
        Err(SegmentError::Header(HeaderFlaw::NotASegment)) => return Err(OpenError::NotASegment { file }),
        Err(SegmentError::Header(HeaderFlaw::UnknownVersion(version))) => {
            return Err(OpenError::UnknownVersion { file, version });
        }
        Err(SegmentError::Header(HeaderFlaw::Damaged)) => return Err(damaged(file, Flaw::Header)),
    };
    if reader.header().topic != topic.suffix() {
        return Err(OpenError::WrongTopic { file, found: reader.header().topic.clone() });
    }
    match base_offset_of(path) {
        Some(named) if named == reader.header().base_offset => Ok(Some(reader)),
        Some(_) | None => Err(damaged(file, Flaw::Header)),
    }
}

fn io_at(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> OpenError {
    let path = path.display().to_string();
    move |source| OpenError::Io { action, path, source }
}

/// All segments of a folder by base offset. A folder that is not there has none.
pub(super) fn segment_paths(folder: &Path) -> Result<Vec<PathBuf>, OpenError> {
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

/// A folder that is not there has nothing to sync.
pub(super) fn sync_folder(disk: &dyn Disk, folder: &Path) -> Result<(), OpenError> {
    match disk.sync_folder(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(io_at("sync", folder)(error)),
        Ok(()) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
#[path = "recover_tests.rs"]
mod tests;
