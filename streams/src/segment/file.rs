//! One segment file: writing it, reading it. Knows nothing of topics, threads or recovery, so that the log, the spool
//! and the archive share it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use thiserror::Error;

use super::disk::Disk;
use super::frame::{self, Flaw, Footer, Frame, FrameBuffer, HEADER_BYTES, Header, HeaderFlaw};

/// One index entry per this many bytes: a seek reads at most that much too much.
const INDEX_EVERY_BYTES: u64 = 64 * 1024;
/// How much is read from a file at once.
const READ_CHUNK_BYTES: usize = 256 * 1024;

/// `<folder>/<base offset, 20 digits>.seg`: names sort like offsets.
#[must_use]
pub fn segment_path(folder: &Path, base_offset: u64) -> PathBuf {
    folder.join(format!("{base_offset:020}.seg"))
}

/// The base offset that a file's name claims.
#[must_use]
pub fn base_offset_of(path: &Path) -> Option<u64> {
    let name = path.file_name()?.to_str()?.strip_suffix(".seg")?;
    (name.len() == 20 && name.bytes().all(|byte| byte.is_ascii_digit())).then(|| name.parse().ok())?
}

/// Writes one segment, from header to footer.
#[derive(Debug)]
pub struct SegmentWriter {
    file: Arc<File>,
    path: PathBuf,
    header: Header,
    len: u64,
    end_offset: u64,
    last_time_ms: i64,
    index: Vec<(u64, u64)>,
}

/// A failed write, and whether the file is as it was before.
#[derive(Debug)]
pub struct WriteFailed {
    pub source: io::Error,
    pub cut_back: bool,
}

impl SegmentWriter {
    /// Creates the file with its header. Neither file nor folder are synced.
    ///
    /// # Errors
    /// Of the system, for one when the file exists.
    pub fn create(disk: &dyn Disk, folder: &Path, topic: &str, partition: u32, base_offset: u64) -> io::Result<Self> {
        let mut salt = [0; 4];
        getrandom::fill(&mut salt).map_err(|error| io::Error::other(error.to_string()))?;
        let header = Header { topic: topic.to_owned(), partition, base_offset, salt: u32::from_le_bytes(salt) };
        let path = segment_path(folder, base_offset);
        let file = OpenOptions::new().create_new(true).read(true).append(true).open(&path)?;
        if let Err(error) = disk.write(&file, &header.encode()) {
            // Recovery takes a file with half a header for one whose creation was interrupted, but why leave it.
            let _ = std::fs::remove_file(&path);
            return Err(error);
        }
        Ok(Self {
            file: Arc::new(file),
            path,
            header,
            len: HEADER_BYTES as u64,
            end_offset: base_offset,
            last_time_ms: i64::MIN,
            index: Vec::new(),
        })
    }

    /// Goes on with a file whose whole frames were just scanned and end at `scan.end_byte`.
    pub(super) fn resume(reader: &SegmentReader, scan: Scan) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).append(true).open(&reader.path)?;
        Ok(Self {
            file: Arc::new(file),
            path: reader.path.clone(),
            header: reader.header.clone(),
            len: scan.end_byte,
            end_offset: scan.end_offset,
            last_time_ms: scan.last_time_ms,
            index: scan.index,
        })
    }

    /// Appends the frames with one `write`. On an error the file is cut back to where it was, if that succeeds.
    ///
    /// # Errors
    /// [`WriteFailed`]; after it the writer must not be used again.
    pub fn append(&mut self, disk: &dyn Disk, frames: &FrameBuffer) -> Result<(), WriteFailed> {
        self.write(disk, &frames.bytes)?;
        for (offset, byte) in &frames.places {
            note(&mut self.index, *offset, self.len + byte);
        }
        self.len += frames.bytes.len() as u64;
        self.end_offset = frames.end_offset;
        self.last_time_ms = self.last_time_ms.max(frames.last_time_ms);
        Ok(())
    }

    /// Writes the footer. Nothing may be appended afterwards.
    ///
    /// # Errors
    /// [`WriteFailed`].
    pub fn close(&mut self, disk: &dyn Disk) -> Result<Footer, WriteFailed> {
        let footer = Footer { index: self.index.clone(), end_offset: self.end_offset, last_time_ms: self.last_time_ms };
        self.write(disk, &footer.encode(self.header.salt))?;
        Ok(footer)
    }

    fn write(&self, disk: &dyn Disk, bytes: &[u8]) -> Result<(), WriteFailed> {
        disk.write(&self.file, bytes)
            .map_err(|source| WriteFailed { source, cut_back: self.file.set_len(self.len).is_ok() })
    }

    #[must_use]
    pub const fn file(&self) -> &Arc<File> {
        &self.file
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    #[must_use]
    pub const fn salt(&self) -> u32 {
        self.header.salt
    }

    #[must_use]
    pub const fn base_offset(&self) -> u64 {
        self.header.base_offset
    }

    #[must_use]
    pub const fn end_offset(&self) -> u64 {
        self.end_offset
    }

    /// Bytes in the file.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.len
    }

    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len <= HEADER_BYTES as u64
    }

    #[must_use]
    pub fn index(&self) -> &[(u64, u64)] {
        &self.index
    }
}

/// Adds an index entry if the last one is far enough away.
fn note(index: &mut Vec<(u64, u64)>, offset: u64, byte: u64) {
    if index.last().is_none_or(|(_, last)| byte >= last + INDEX_EVERY_BYTES) {
        index.push((offset, byte));
    }
}

/// The byte at which to begin reading for `offset`.
#[must_use]
pub fn seek(index: &[(u64, u64)], offset: u64) -> u64 {
    let after = index.partition_point(|(base, _)| *base <= offset);
    after.checked_sub(1).map_or(HEADER_BYTES as u64, |at| index[at].1)
}

/// A segment opened for reading; needs no lock, also beside a process that writes it.
#[derive(Debug)]
pub struct SegmentReader {
    path: PathBuf,
    file: Arc<File>,
    header: Header,
    /// Where frames end: at the footer, or for an active segment at the end of the file as it was when opened.
    frames_end: u64,
    footer: Option<Footer>,
}

/// Why a file cannot be opened as a segment.
#[derive(Debug, Error)]
pub enum SegmentError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("the header is not one")]
    Header(HeaderFlaw),
    /// The machine stopped while the file was created, before its header was synced.
    #[error("the file ends within its header")]
    Unborn,
}

impl SegmentReader {
    /// # Errors
    /// [`SegmentError`].
    pub fn open(path: &Path) -> Result<Self, SegmentError> {
        let file = Arc::new(File::open(path)?);
        let len = file.metadata()?.len();
        let mut start = vec![0; HEADER_BYTES.min(usize::try_from(len).unwrap_or(HEADER_BYTES))];
        file.read_exact_at(&mut start, 0)?;
        let header = match Header::decode(&start) {
            Ok(header) => header,
            Err(_) if start.len() < HEADER_BYTES || Header::is_torn(&start) => return Err(SegmentError::Unborn),
            Err(flaw) => return Err(SegmentError::Header(flaw)),
        };
        let footer = read_footer(&file, len, header.salt)?;
        let footer_bytes = footer.as_ref().map_or(0, Footer::encoded_len) as u64;
        Ok(Self { path: path.to_owned(), file, header, frames_end: len - footer_bytes, footer })
    }

    #[must_use]
    pub const fn header(&self) -> &Header {
        &self.header
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Present when the segment was closed.
    #[must_use]
    pub const fn footer(&self) -> Option<&Footer> {
        self.footer.as_ref()
    }

    #[must_use]
    pub const fn file(&self) -> &Arc<File> {
        &self.file
    }

    #[must_use]
    pub const fn frames_end(&self) -> u64 {
        self.frames_end
    }

    #[must_use]
    pub fn frames(&self) -> Frames {
        self.frames_from(HEADER_BYTES as u64)
    }

    /// Frames from a byte on that the index named.
    #[must_use]
    pub fn frames_from(&self, byte: u64) -> Frames {
        Frames::new(Arc::clone(&self.file), self.header.salt, byte, self.frames_end)
    }

    /// Reads all frames and checks that their offsets follow each other.
    pub(super) fn scan(&self) -> Scan {
        let mut scan = Scan {
            index: Vec::new(),
            end_offset: self.header.base_offset,
            end_byte: HEADER_BYTES as u64,
            last_time_ms: i64::MIN,
            stopped_by: None,
        };
        let mut frames = self.frames();
        loop {
            let byte = frames.byte();
            match frames.next() {
                None => return scan,
                Some(Err(error)) => return Scan { stopped_by: Some(error), ..scan },
                Some(Ok(frame)) if frame.base_offset != scan.end_offset => {
                    let flaw = Flaw::Order { expected: scan.end_offset, found: frame.base_offset };
                    return Scan { stopped_by: Some(ScanError::Bad { byte, flaw }), ..scan };
                }
                Some(Ok(frame)) => {
                    note(&mut scan.index, frame.base_offset, byte);
                    scan.end_offset = frame.end_offset();
                    scan.last_time_ms = scan.last_time_ms.max(frame.time_ms);
                    scan.end_byte = frames.byte();
                }
            }
        }
    }

    /// How far the topic was durable according to the whole frames after `byte` that hold `expected` or a later offset,
    /// or `None` if there is no such frame. Whatever lies between them is passed over.
    pub(super) fn durable_end_after(&self, byte: u64, expected: u64) -> io::Result<Option<u64>> {
        let len = usize::try_from(self.frames_end.saturating_sub(byte)).unwrap_or(usize::MAX);
        let mut rest = vec![0; len];
        self.file.read_exact_at(&mut rest, byte)?;
        let frames = frame::whole_frames(&Bytes::from(rest), self.header.salt);
        Ok(frames.filter(|frame| frame.base_offset >= expected).map(|frame| frame.durable_end).max())
    }
}

fn read_footer(file: &File, len: u64, salt: u32) -> io::Result<Option<Footer>> {
    let frames_and_footer = len - HEADER_BYTES as u64;
    let Some(trailer_at) = frames_and_footer.checked_sub(Footer::trailer_len() as u64) else { return Ok(None) };
    let mut trailer = vec![0; Footer::trailer_len()];
    file.read_exact_at(&mut trailer, HEADER_BYTES as u64 + trailer_at)?;
    let Some(footer_len) = Footer::len_from_trailer(&trailer) else { return Ok(None) };
    if footer_len as u64 > frames_and_footer {
        return Ok(None);
    }
    let mut footer = vec![0; footer_len];
    file.read_exact_at(&mut footer, len - footer_len as u64)?;
    Ok(Footer::decode(&footer, salt))
}

/// What a full read of a segment found: everything up to `end_byte` is whole and in order.
#[derive(Debug)]
pub(super) struct Scan {
    pub index: Vec<(u64, u64)>,
    pub end_offset: u64,
    pub end_byte: u64,
    pub last_time_ms: i64,
    pub stopped_by: Option<ScanError>,
}

/// Why reading frames stopped before their end.
#[derive(Debug, Error)]
pub enum ScanError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("at byte {byte}: {flaw}")]
    Bad { byte: u64, flaw: Flaw },
}

/// The frames of one segment, in order. Ends after the first error.
#[derive(Debug)]
pub struct Frames {
    file: Arc<File>,
    salt: u32,
    buffer: BytesMut,
    /// Where in the file the buffer ends.
    read_to: u64,
    end: u64,
    failed: bool,
}

impl Frames {
    pub(super) fn new(file: Arc<File>, salt: u32, byte: u64, end: u64) -> Self {
        Self { file, salt, buffer: BytesMut::new(), read_to: byte, end, failed: false }
    }

    /// Where in the file the next frame begins.
    #[must_use]
    pub fn byte(&self) -> u64 {
        self.read_to - self.buffer.len() as u64
    }

    fn advance(&mut self) -> Result<Option<Frame>, ScanError> {
        let byte = self.byte();
        let bad = |flaw| ScanError::Bad { byte, flaw };
        if byte >= self.end {
            return Ok(None);
        }
        let len = loop {
            match frame::frame_len(&self.buffer).map_err(bad)? {
                Some(len) if self.buffer.len() >= len => break len,
                Some(len) if byte + len as u64 > self.end => return Err(bad(Flaw::Incomplete)),
                Some(len) => self.fill(len)?,
                None if self.read_to >= self.end => return Err(bad(Flaw::Incomplete)),
                None => self.fill(READ_CHUNK_BYTES)?,
            }
        };
        let bytes = self.buffer.split_to(len).freeze();
        frame::decode_frame(&bytes, self.salt).map(Some).map_err(bad)
    }

    /// Reads until the buffer has `len` bytes, or a chunk if that is more, or the end is reached.
    fn fill(&mut self, len: usize) -> io::Result<()> {
        let have = self.buffer.len();
        let wanted = len.max(READ_CHUNK_BYTES) - have;
        let left = usize::try_from(self.end - self.read_to).unwrap_or(usize::MAX);
        self.buffer.resize(have + wanted.min(left), 0);
        self.file.read_exact_at(&mut self.buffer[have..], self.read_to)?;
        self.read_to += (self.buffer.len() - have) as u64;
        Ok(())
    }
}

impl Iterator for Frames {
    type Item = Result<Frame, ScanError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let next = self.advance().transpose();
        self.failed = matches!(next, Some(Err(_)));
        next
    }
}
