//! The frame around every record (Confluent's): a zero byte, the schema id as a big-endian `u32`, Avro binary. The same
//! in the embedded log and on Kafka.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::datum::{self, DatumError, Shape};
use crate::released::{Released, readable};

const MAGIC: u8 = 0;
const HEAD_BYTES: usize = 1 + size_of::<u32>();

/// The most that a frame may have: what a Kafka broker takes unless told otherwise. Records are far smaller; a snapshot
/// of one scope is the only one that grows, and a scope is split before it reaches this.
pub const MAX_FRAME_BYTES: usize = 1_000_000;

/// A record cannot be written. The caller's value is at fault, and trying again does not help.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum EncodeError {
    #[error("{record} has {bytes} bytes, a frame may have {MAX_FRAME_BYTES}: shorten its texts")]
    TooLong { record: &'static str, bytes: usize },
    #[error("{record} cannot be written: {reason}")]
    Unwritable { record: &'static str, reason: DatumError },
    #[error(transparent)]
    Field(#[from] FieldError),
}

/// Bytes are not the record they should be. The frame is poison: it will not read better later, so its key is parked.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DecodeError {
    #[error("a frame of {0} bytes: the shortest has {HEAD_BYTES}, a zero and a schema id")]
    NoHead(usize),
    #[error("a frame of {0} bytes: the longest may have {MAX_FRAME_BYTES}")]
    TooLong(usize),
    #[error("the frame begins with {0}, not with 0: it is no Avro frame")]
    WrongMagic(u8),
    #[error("schema id {0} is unknown: written by a newer Weir, or not by Weir")]
    UnknownSchema(u32),
    #[error("schema {0} cannot be read: {1}")]
    BrokenSchema(u32, String),
    #[error("a {found} where a {expected} should be: it is on the wrong topic")]
    OtherRecord { expected: &'static str, found: &'static str },
    #[error("{record} cannot be read: {reason}")]
    Unreadable { record: &'static str, reason: DatumError },
    #[error("{record} is followed by {bytes} bytes that are not part of it")]
    TrailingBytes { record: &'static str, bytes: usize },
    #[error(transparent)]
    Field(#[from] FieldError),
}

/// A field holds what its record may not say. Refused when written as well, so that what is written can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{record}.{field} {problem}")]
pub struct FieldError {
    pub record: &'static str,
    pub field: &'static str,
    pub problem: FieldProblem,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum FieldProblem {
    #[error("is negative")]
    Negative,
    #[error("is not the day, week, month and total of one instant, in this order")]
    NotFourWindows,
    #[error("is not the id that the header names")]
    DiffersFromHeader,
    #[error("is zero or missing where an attempt is spoken of, or present where none is")]
    AttemptNumber,
    #[error("is not the hash of the body")]
    NotTheHash,
}

/// Appends the frame of `value` under `id`. `out` is as before when it fails.
pub(crate) fn encode<T: Serialize + ?Sized>(
    record: &'static str,
    id: u32,
    value: &T,
    out: &mut Vec<u8>,
) -> Result<(), EncodeError> {
    let start = out.len();
    out.push(MAGIC);
    out.extend_from_slice(&id.to_be_bytes());
    let written = datum::write(value, out);
    let bytes = out.len() - start;
    let error = match written {
        Ok(()) if bytes <= MAX_FRAME_BYTES => return Ok(()),
        Ok(()) => EncodeError::TooLong { record, bytes },
        Err(reason) => EncodeError::Unwritable { record, reason },
    };
    out.truncate(start);
    Err(error)
}

/// A frame whose schema is known and whose content was not looked at yet.
pub(crate) struct Opened<'f> {
    pub(crate) released: &'static Released,
    pub(crate) shape: &'static Shape,
    pub(crate) datum: &'f [u8],
}

pub(crate) fn open(frame: &[u8]) -> Result<Opened<'_>, DecodeError> {
    if frame.len() > MAX_FRAME_BYTES {
        return Err(DecodeError::TooLong(frame.len()));
    }
    let Some((&[magic, a, b, c, d], datum)) = frame.split_first_chunk::<HEAD_BYTES>() else {
        return Err(DecodeError::NoHead(frame.len()));
    };
    if magic != MAGIC {
        return Err(DecodeError::WrongMagic(magic));
    }
    let id = u32::from_be_bytes([a, b, c, d]);
    let readable = readable(id).ok_or(DecodeError::UnknownSchema(id))?;
    match &readable.shape {
        Ok(shape) => Ok(Opened { released: readable.released, shape, datum }),
        Err(reason) => Err(DecodeError::BrokenSchema(id, reason.clone())),
    }
}

impl<'f> Opened<'f> {
    /// Reads the whole content as one `T`.
    pub(crate) fn read<T: Deserialize<'f>>(&self) -> Result<T, DecodeError> {
        let record = self.released.record;
        let mut rest = self.datum;
        let value = datum::read(self.shape, &mut rest).map_err(|reason| DecodeError::Unreadable { record, reason })?;
        self.end(rest)?;
        Ok(value)
    }

    pub(crate) fn end(&self, rest: &[u8]) -> Result<(), DecodeError> {
        match rest.len() {
            0 => Ok(()),
            bytes => Err(DecodeError::TrailingBytes { record: self.released.record, bytes }),
        }
    }
}
