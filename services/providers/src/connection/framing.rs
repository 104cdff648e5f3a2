//! Where the body of an answer ends, and its bytes without their framing.
//!
//! Everything of the body that a buffer holds becomes one piece, without a copy to other memory: chunks are moved
//! together in place. Bytes that came before damaged framing are given out before the damage is told (O10).

use bytes::{Buf, Bytes, BytesMut};
use memchr::memchr;
use thiserror::Error;

/// How a body is framed, and what of it is still to come.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Framing(Kind);

#[derive(Debug, Clone, Copy)]
enum Kind {
    Length(u64),
    Chunked(Part),
    UntilClose,
    /// Damage that was found after bytes that were still good.
    Damaged(FramingError),
}

/// What of a chunked body comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// The line that tells a chunk's size.
    Size,
    /// So many bytes of the present chunk.
    Data(u64),
    /// The line end after a chunk's data.
    DataEnd,
    /// A trailer, or the empty line that ends the body; with the bytes that trailers took so far.
    Trailer(usize),
    Over,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(crate) enum FramingError {
    #[error("a chunk's size is not a hexadecimal number")]
    Size,
    #[error("a chunk does not end where its size says")]
    DataEnd,
    #[error("a line of the chunk framing is longer than {MOST_LINE_BYTES} bytes")]
    LongLine,
    #[error("a line of the chunk framing does not end in CR LF")]
    LineEnd,
    #[error("the trailers are larger than {MOST_TRAILER_BYTES} bytes")]
    LongTrailers,
}

/// A chunk's size and its extensions, which nobody uses.
const MOST_LINE_BYTES: usize = 4 * 1024;
const MOST_TRAILER_BYTES: usize = 16 * 1024;
/// A size of more digits is none that could ever be read to its end.
const MOST_SIZE_DIGITS: usize = 15;

impl Framing {
    pub(crate) const fn length(bytes: u64) -> Self {
        Self(Kind::Length(bytes))
    }

    pub(crate) const fn chunked() -> Self {
        Self(Kind::Chunked(Part::Size))
    }

    pub(crate) const fn until_close() -> Self {
        Self(Kind::UntilClose)
    }

    /// Whether nothing more belongs to the body.
    pub(crate) const fn is_over(&self) -> bool {
        matches!(self.0, Kind::Length(0) | Kind::Chunked(Part::Over))
    }

    pub(crate) const fn ends_with_the_connection(&self) -> bool {
        matches!(self.0, Kind::UntilClose)
    }

    /// Takes from the start of `received` what belongs to the body, as one piece; `None` when there is nothing of it.
    pub(crate) fn take(&mut self, received: &mut BytesMut) -> Result<Option<Bytes>, FramingError> {
        match &mut self.0 {
            Kind::Damaged(error) => Err(*error),
            Kind::UntilClose => Ok(some(received.split())),
            Kind::Length(left) => {
                let length = at_most(received.len(), *left);
                *left -= length as u64;
                Ok(some(received.split_to(length)))
            }
            Kind::Chunked(part) => match gather(part, received) {
                (piece, None) => Ok(some(piece)),
                (piece, Some(error)) => {
                    self.0 = Kind::Damaged(error);
                    some(piece).map(Some).ok_or(error)
                }
            },
        }
    }
}

fn some(piece: BytesMut) -> Option<Bytes> {
    (!piece.is_empty()).then(|| piece.freeze())
}

/// Takes the data of all chunks in `received`, moved together at its start, and the framing around it; with the damage
/// that follows the data, if any.
fn gather(part: &mut Part, received: &mut BytesMut) -> (BytesMut, Option<FramingError>) {
    // Up to `good` there is data; from `at` on, what was not looked at.
    let (mut good, mut at) = (0, 0);
    let damage = loop {
        match step(*part, &received[at..]) {
            Ok(Step::NeedsMore) => break None,
            Ok(Step::Skip(bytes, next)) => {
                at += bytes;
                *part = next;
            }
            Ok(Step::Data(bytes, next)) => {
                if good == 0 {
                    // The first data stays where it is.
                    received.advance(std::mem::take(&mut at));
                } else {
                    received.copy_within(at..at + bytes, good);
                }
                at += bytes;
                good += bytes;
                *part = next;
            }
            Err(error) => break Some(error),
        }
    };
    let piece = received.split_to(good);
    received.advance(at - good);
    (piece, damage)
}

enum Step {
    NeedsMore,
    Skip(usize, Part),
    Data(usize, Part),
}

fn step(part: Part, bytes: &[u8]) -> Result<Step, FramingError> {
    match part {
        Part::Size => Ok(match line(bytes)? {
            None => Step::NeedsMore,
            Some(text) => match chunk_size(text)? {
                0 => Step::Skip(text.len() + 2, Part::Trailer(0)),
                size => Step::Skip(text.len() + 2, Part::Data(size)),
            },
        }),
        Part::Data(left) => Ok(match at_most(bytes.len(), left) {
            0 => Step::NeedsMore,
            taken if taken as u64 == left => Step::Data(taken, Part::DataEnd),
            taken => Step::Data(taken, Part::Data(left - taken as u64)),
        }),
        Part::DataEnd => match bytes {
            [] | [b'\r'] => Ok(Step::NeedsMore),
            [b'\r', b'\n', ..] => Ok(Step::Skip(2, Part::Size)),
            _ => Err(FramingError::DataEnd),
        },
        Part::Trailer(before) => Ok(match line(bytes)? {
            None => Step::NeedsMore,
            Some([]) => Step::Skip(2, Part::Over),
            Some(text) => {
                let total = before + text.len() + 2;
                if total > MOST_TRAILER_BYTES {
                    return Err(FramingError::LongTrailers);
                }
                Step::Skip(text.len() + 2, Part::Trailer(total))
            }
        }),
        Part::Over => Ok(Step::NeedsMore),
    }
}

/// The line at the start of `bytes`, without its CR LF, once it is there whole.
fn line(bytes: &[u8]) -> Result<Option<&[u8]>, FramingError> {
    match memchr(b'\n', &bytes[..bytes.len().min(MOST_LINE_BYTES)]) {
        Some(end) => bytes[..end].strip_suffix(b"\r").map(Some).ok_or(FramingError::LineEnd),
        None if bytes.len() >= MOST_LINE_BYTES => Err(FramingError::LongLine),
        None => Ok(None),
    }
}

fn chunk_size(line: &[u8]) -> Result<u64, FramingError> {
    let digits = line.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii_end();
    if digits.is_empty() || digits.len() > MOST_SIZE_DIGITS {
        return Err(FramingError::Size);
    }
    digits.iter().try_fold(0, |size, digit| {
        let value = char::from(*digit).to_digit(16).ok_or(FramingError::Size)?;
        Ok(size * 16 + u64::from(value))
    })
}

/// How much of `left` a buffer of `available` bytes can hold.
fn at_most(available: usize, left: u64) -> usize {
    usize::try_from(left).unwrap_or(usize::MAX).min(available)
}

#[cfg(test)]
#[path = "framing_tests.rs"]
mod tests;
