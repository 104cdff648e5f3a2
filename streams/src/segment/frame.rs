//! Bytes of header, frame and footer. Pure: no file, no clock.

use bytes::Bytes;
use crc32fast::Hasher;
use thiserror::Error;

use crate::contract::{Batch, MAX_BATCH_BYTES, MAX_BATCH_RECORDS};

pub const FORMAT_VERSION: u32 = 1;
pub const HEADER_BYTES: usize = 64;
const TOPIC_BYTES: usize = 32;
const HEADER_MAGIC: [u8; 8] = *b"WEIRSEG\n";
const FOOTER_MAGIC: [u8; 8] = *b"\nWEIREND";
const FRAME_MARKER: [u8; 4] = *b"\xF7WFR";
/// Marker, length, crc: what must be read before the rest can be.
const PREFIX_BYTES: usize = 12;
/// Base offset, durable end, time, count, key length.
const FIXED_BYTES: usize = 32;
const MAX_BODY_BYTES: usize = FIXED_BYTES + 4 * MAX_BATCH_RECORDS + MAX_BATCH_BYTES;
const TRAILER_BYTES: usize = 32;
const INDEX_ENTRY_BYTES: usize = 16;

/// What is wrong with bytes that should be a header, frame or footer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Flaw {
    #[error("the file ends within a frame")]
    Incomplete,
    #[error("no frame begins here")]
    NoMarker,
    #[error("a length is out of range")]
    Length,
    #[error("the checksum does not fit")]
    Checksum,
    #[error("offset {found} where {expected} should follow")]
    Order { expected: u64, found: u64 },
    #[error("the header's checksum does not fit")]
    Header,
    #[error("the footer is missing or does not fit")]
    Footer,
}

/// Why the first bytes of a file are not a header that this version can read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeaderFlaw {
    NotASegment,
    UnknownVersion(u32),
    Damaged,
}

/// The first 64 bytes of a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// The topic's suffix, at most 32 bytes.
    pub topic: String,
    pub partition: u32,
    pub base_offset: u64,
    /// Start value of every crc in this file.
    pub salt: u32,
}

impl Header {
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut name = [0; TOPIC_BYTES];
        for (to, from) in name.iter_mut().zip(self.topic.bytes()) {
            *to = from;
        }
        let mut bytes = Vec::with_capacity(HEADER_BYTES);
        bytes.extend_from_slice(&HEADER_MAGIC);
        bytes.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        bytes.extend_from_slice(&name);
        bytes.extend_from_slice(&self.partition.to_le_bytes());
        bytes.extend_from_slice(&self.base_offset.to_le_bytes());
        bytes.extend_from_slice(&self.salt.to_le_bytes());
        bytes.extend_from_slice(&crc(0, &[&bytes]).to_le_bytes());
        let mut header = [0; HEADER_BYTES];
        header.copy_from_slice(&bytes);
        header
    }

    /// Whether a power loss may have left these bytes, which are no header: the beginning of one, then zeros.
    #[must_use]
    pub fn is_torn(bytes: &[u8]) -> bool {
        let written = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        let mut start = [0; 12];
        start[..8].copy_from_slice(&HEADER_MAGIC);
        start[8..].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        let known = written.min(start.len());
        written < HEADER_BYTES && bytes[..known] == start[..known]
    }

    /// # Errors
    /// [`HeaderFlaw`]. The version is looked at before the checksum, because a later one may be laid out differently.
    pub fn decode(bytes: &[u8]) -> Result<Self, HeaderFlaw> {
        if bytes.len() < HEADER_BYTES || bytes[..8] != HEADER_MAGIC {
            return Err(HeaderFlaw::NotASegment);
        }
        let version = u32_at(bytes, 8);
        if version != FORMAT_VERSION {
            return Err(HeaderFlaw::UnknownVersion(version));
        }
        if u32_at(bytes, 60) != crc(0, &[&bytes[..60]]) {
            return Err(HeaderFlaw::Damaged);
        }
        let name = &bytes[12..12 + TOPIC_BYTES];
        let name = &name[..name.iter().position(|byte| *byte == 0).unwrap_or(TOPIC_BYTES)];
        Ok(Self {
            topic: String::from_utf8(name.to_vec()).map_err(|_| HeaderFlaw::Damaged)?,
            partition: u32_at(bytes, 44),
            base_offset: u64_at(bytes, 48),
            salt: u32_at(bytes, 56),
        })
    }
}

/// One batch as it is read back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    pub base_offset: u64,
    /// Everything below this offset was durable when the frame was written: what recovery tells damage by.
    pub durable_end: u64,
    pub time_ms: i64,
    pub key: Bytes,
    pub values: Vec<Bytes>,
}

impl Frame {
    #[must_use]
    pub fn end_offset(&self) -> u64 {
        self.base_offset + self.values.len() as u64
    }
}

/// Frames encoded one after another, ready for one `write`.
#[derive(Debug, Default)]
pub struct FrameBuffer {
    pub(crate) bytes: Vec<u8>,
    /// (base offset, byte within the buffer) of each frame, for the segment's index.
    pub(crate) places: Vec<(u64, u64)>,
    pub(crate) end_offset: u64,
    pub(crate) last_time_ms: i64,
}

impl FrameBuffer {
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.places.clear();
        self.last_time_ms = 0;
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Encodes `batch` at `base_offset` for the segment with this salt. `durable_end` is how far the topic is durable
    /// now, or less. The caller has checked the batch's bounds.
    pub fn push(&mut self, salt: u32, base_offset: u64, durable_end: u64, batch: &Batch) {
        let bytes = &mut self.bytes;
        let start = bytes.len();
        self.places.push((base_offset, start as u64));
        bytes.extend_from_slice(&FRAME_MARKER);
        bytes.extend_from_slice(&[0; 8]);
        bytes.extend_from_slice(&base_offset.to_le_bytes());
        bytes.extend_from_slice(&durable_end.to_le_bytes());
        bytes.extend_from_slice(&batch.time_ms.to_le_bytes());
        bytes.extend_from_slice(&len_u32(batch.values.len()));
        bytes.extend_from_slice(&len_u32(batch.key.len()));
        for value in &batch.values {
            bytes.extend_from_slice(&len_u32(value.len()));
        }
        bytes.extend_from_slice(&batch.key);
        for value in &batch.values {
            bytes.extend_from_slice(value);
        }
        let length = len_u32(bytes.len() - start - PREFIX_BYTES);
        bytes[start + 4..start + 8].copy_from_slice(&length);
        let sum = crc(salt, &[&length, &bytes[start + PREFIX_BYTES..]]);
        bytes[start + 8..start + 12].copy_from_slice(&sum.to_le_bytes());
        self.end_offset = base_offset + batch.values.len() as u64;
        self.last_time_ms = self.last_time_ms.max(batch.time_ms);
    }
}

/// How long the frame at the start of `bytes` is, or that more bytes are needed to know.
///
/// # Errors
/// When no frame can begin here.
pub fn frame_len(bytes: &[u8]) -> Result<Option<usize>, Flaw> {
    let seen = bytes.len().min(FRAME_MARKER.len());
    if bytes[..seen] != FRAME_MARKER[..seen] {
        return Err(Flaw::NoMarker);
    }
    if bytes.len() < PREFIX_BYTES {
        return Ok(None);
    }
    let length = u32_at(bytes, 4) as usize;
    if !(FIXED_BYTES..=MAX_BODY_BYTES).contains(&length) {
        return Err(Flaw::Length);
    }
    Ok(Some(PREFIX_BYTES + length))
}

/// Reads the frame that is exactly `bytes`; keys and values share them.
///
/// # Errors
/// When checksum or lengths do not fit.
pub fn decode_frame(bytes: &Bytes, salt: u32) -> Result<Frame, Flaw> {
    match frame_len(bytes)? {
        Some(len) if len == bytes.len() => {}
        Some(_) | None => return Err(Flaw::Length),
    }
    if u32_at(bytes, 8) != crc(salt, &[&bytes[4..8], &bytes[PREFIX_BYTES..]]) {
        return Err(Flaw::Checksum);
    }
    let count = u32_at(bytes, PREFIX_BYTES + 24) as usize;
    let key_len = u32_at(bytes, PREFIX_BYTES + 28) as usize;
    let lengths_at = PREFIX_BYTES + FIXED_BYTES;
    let key_at = lengths_at + 4 * count;
    if count == 0 || count > MAX_BATCH_RECORDS || key_at + key_len > bytes.len() {
        return Err(Flaw::Length);
    }
    let mut next = key_at + key_len;
    let mut values = Vec::with_capacity(count);
    for n in 0..count {
        let end = next + u32_at(bytes, lengths_at + 4 * n) as usize;
        if end > bytes.len() {
            return Err(Flaw::Length);
        }
        values.push(bytes.slice(next..end));
        next = end;
    }
    if next != bytes.len() {
        return Err(Flaw::Length);
    }
    Ok(Frame {
        base_offset: u64_at(bytes, PREFIX_BYTES),
        durable_end: u64_at(bytes, PREFIX_BYTES + 8),
        time_ms: u64_at(bytes, PREFIX_BYTES + 16).cast_signed(),
        key: bytes.slice(key_at..key_at + key_len),
        values,
    })
}

/// All whole frames anywhere in `bytes`, in order, whatever lies between them.
pub fn whole_frames(bytes: &Bytes, salt: u32) -> impl Iterator<Item = Frame> + use<> {
    let (bytes, mut at) = (bytes.clone(), 0);
    std::iter::from_fn(move || {
        loop {
            let rest = &bytes[at..];
            at += rest.windows(FRAME_MARKER.len()).position(|window| window == FRAME_MARKER)?;
            if let Ok(Some(len)) = frame_len(&bytes[at..])
                && at + len <= bytes.len()
                && let Ok(frame) = decode_frame(&bytes.slice(at..at + len), salt)
            {
                at += len;
                return Some(frame);
            }
            at += 1;
        }
    })
}

/// The end of a closed segment: what a reader needs to seek in it without reading it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Footer {
    /// (base offset, byte) of some frames, in order.
    pub index: Vec<(u64, u64)>,
    pub end_offset: u64,
    /// The latest time of any batch: retention goes by it.
    pub last_time_ms: i64,
}

impl Footer {
    #[must_use]
    pub fn encode(&self, salt: u32) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.encoded_len());
        for (offset, byte) in &self.index {
            bytes.extend_from_slice(&offset.to_le_bytes());
            bytes.extend_from_slice(&byte.to_le_bytes());
        }
        bytes.extend_from_slice(&self.end_offset.to_le_bytes());
        bytes.extend_from_slice(&self.last_time_ms.to_le_bytes());
        bytes.extend_from_slice(&len_u32(self.index.len()));
        bytes.extend_from_slice(&crc(salt, &[&bytes]).to_le_bytes());
        bytes.extend_from_slice(&FOOTER_MAGIC);
        bytes
    }

    #[must_use]
    pub const fn encoded_len(&self) -> usize {
        self.index.len() * INDEX_ENTRY_BYTES + TRAILER_BYTES
    }

    /// The footer at the end of `bytes`, which may begin anywhere before it; `None` if there is no whole one.
    #[must_use]
    pub fn decode(bytes: &[u8], salt: u32) -> Option<Self> {
        let len = Self::len_from_trailer(bytes)?;
        let footer = &bytes[bytes.len().checked_sub(len)?..];
        let summed = footer.len() - 12;
        if u32_at(footer, summed) != crc(salt, &[&footer[..summed]]) {
            return None;
        }
        let entries = footer[..len - TRAILER_BYTES].chunks_exact(INDEX_ENTRY_BYTES);
        let index = entries.map(|entry| (u64_at(entry, 0), u64_at(entry, 8))).collect();
        let trailer = &footer[len - TRAILER_BYTES..];
        Some(Self { index, end_offset: u64_at(trailer, 0), last_time_ms: u64_at(trailer, 8).cast_signed() })
    }

    /// How many bytes at the end of a file the footer takes, if `bytes` end like one. The last 32 are enough.
    #[must_use]
    pub fn len_from_trailer(bytes: &[u8]) -> Option<usize> {
        let trailer = &bytes[bytes.len().checked_sub(TRAILER_BYTES)?..];
        (trailer[24..] == FOOTER_MAGIC).then(|| u32_at(trailer, 16) as usize * INDEX_ENTRY_BYTES + TRAILER_BYTES)
    }

    pub(crate) const fn trailer_len() -> usize {
        TRAILER_BYTES
    }
}

fn crc(salt: u32, parts: &[&[u8]]) -> u32 {
    let mut hasher = Hasher::new_with_initial(salt);
    parts.iter().for_each(|part| hasher.update(part));
    hasher.finalize()
}

fn len_u32(len: usize) -> [u8; 4] {
    // Lengths are bounded by MAX_BODY_BYTES; a larger one would fail its own check when read.
    u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes()
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut four = [0; 4];
    four.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(four)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut eight = [0; 8];
    eight.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(eight)
}

#[cfg(test)]
#[path = "frame_tests.rs"]
mod tests;
