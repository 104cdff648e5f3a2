//! The body of an answer, decompressed as it flows; at its end the connection serves another call.
//!
//! Weir asks for `identity`, and some providers compress all the same (O44). Each network read is decoded and flushed
//! at once, so that an event is relayed when it arrives and not when the stream ends.

use std::fmt;
use std::future::poll_fn;
use std::io::{self, Write};
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use flate2::write::{GzDecoder, ZlibDecoder};
use http::HeaderMap;
use http::header::CONTENT_ENCODING;
use thiserror::Error;

use crate::connection::{BodyEnd, Connection, Framing, Head};
use crate::pool::Origin;
use crate::upstream::Bounds;

/// An encoding that Weir cannot read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("the provider answered with content-encoding `{0}`, which was not asked for")]
pub struct UnsupportedEncoding(pub String);

/// Why a body broke off.
#[derive(Debug, Error)]
pub enum BodyError {
    #[error("the provider's connection broke: {0}")]
    Transport(#[from] io::Error),
    #[error("the provider closed the connection before its answer was whole")]
    Cut,
    #[error("the provider's answer is badly framed: {0}")]
    Framing(String),
    #[error("the provider's compressed answer is damaged: {0}")]
    Damaged(#[source] io::Error),
}

impl From<BodyEnd> for BodyError {
    fn from(end: BodyEnd) -> Self {
        match end {
            BodyEnd::Broken(error) => Self::Transport(error),
            BodyEnd::Cut => Self::Cut,
            BodyEnd::Framing(error) => Self::Framing(error.to_string()),
        }
    }
}

/// How many bytes one read may decompress to: a small read must not become the memory of the process.
const MOST_DECODED_BYTES: usize = 64 * 1024 * 1024;

enum Encoding {
    Identity,
    Gzip(Box<GzDecoder<Vec<u8>>>),
    Deflate(Box<ZlibDecoder<Vec<u8>>>),
}

/// A provider's answer body, in identity encoding.
pub struct AnswerBody {
    /// Until the body ended or broke.
    connection: Option<Box<Connection>>,
    framing: Framing,
    encoding: Encoding,
    origin: Arc<Origin>,
    bounds: Bounds,
    keeps_alive: bool,
}

impl fmt::Debug for AnswerBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AnswerBody")
    }
}

impl AnswerBody {
    pub(crate) fn new(
        head: &Head,
        connection: Box<Connection>,
        origin: Arc<Origin>,
        bounds: Bounds,
    ) -> Result<Self, UnsupportedEncoding> {
        let encoding = Encoding::named_in(&head.headers)?;
        let mut body = Self {
            connection: Some(connection),
            framing: head.framing,
            encoding,
            origin,
            bounds,
            keeps_alive: head.keeps_alive,
        };
        body.release_at_end();
        Ok(body)
    }

    /// The next bytes: everything that is there. `None` at the end.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        loop {
            let Some(connection) = self.connection.as_mut() else { return Poll::Ready(None) };
            let piece = match ready!(connection.poll_body(cx, &mut self.framing)) {
                Some(Ok(piece)) => piece,
                Some(Err(end)) => {
                    self.connection = None;
                    return Poll::Ready(Some(Err(end.into())));
                }
                None => {
                    self.release_at_end();
                    self.connection = None;
                    return Poll::Ready(None);
                }
            };
            self.release_at_end();
            match self.encoding.decode(piece) {
                Ok(decoded) if decoded.is_empty() => {}
                Ok(decoded) => return Poll::Ready(Some(Ok(decoded))),
                Err(error) => {
                    self.connection = None;
                    return Poll::Ready(Some(Err(BodyError::Damaged(error))));
                }
            }
        }
    }

    /// Gives back what reading needs, until it is read on: for a reader that is slower than the provider.
    pub fn let_go(&mut self) {
        if let Some(connection) = self.connection.as_mut() {
            connection.let_go();
        }
    }

    /// The next piece is a small one: for a reader that is slower than the provider.
    pub fn read_little(&mut self) {
        if let Some(connection) = self.connection.as_mut() {
            connection.read_little();
        }
    }

    /// As [`poll_next`](Self::poll_next).
    pub async fn next(&mut self) -> Option<Result<Bytes, BodyError>> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// Hands the connection to the next call as soon as nothing more belongs to this one.
    fn release_at_end(&mut self) {
        if !self.framing.is_over() {
            return;
        }
        if let Some(mut connection) = self.connection.take()
            && self.keeps_alive
            && connection.is_at_rest()
        {
            connection.rest();
            self.origin.keep(connection, self.bounds.max_idle, self.bounds.idle_timeout);
        }
    }
}

/// Whoever has seen the terminal event of a stream reads no further, though the end of its framing may be there or one
/// read away. Then the connection is worth keeping; otherwise it closes, which tells the provider to stop.
impl Drop for AnswerBody {
    fn drop(&mut self) {
        let Some(connection) = self.connection.as_mut() else { return };
        if !self.keeps_alive {
            return;
        }
        let mut cx = Context::from_waker(Waker::noop());
        if let Poll::Ready(None) = connection.poll_body(&mut cx, &mut self.framing) {
            self.release_at_end();
        }
    }
}

impl Encoding {
    fn named_in(headers: &HeaderMap) -> Result<Self, UnsupportedEncoding> {
        let Some(named) = headers.get(CONTENT_ENCODING) else { return Ok(Self::Identity) };
        let named = String::from_utf8_lossy(named.as_bytes()).to_lowercase();
        match named.trim() {
            "" | "identity" => Ok(Self::Identity),
            "gzip" | "x-gzip" => Ok(Self::Gzip(Box::new(GzDecoder::new(Vec::new())))),
            "deflate" => Ok(Self::Deflate(Box::new(ZlibDecoder::new(Vec::new())))),
            _ => Err(UnsupportedEncoding(named)),
        }
    }

    fn decode(&mut self, bytes: Bytes) -> Result<Bytes, io::Error> {
        let decoded = match self {
            Self::Identity => return Ok(bytes),
            Self::Gzip(decoder) => {
                decoder.write_all(&bytes)?;
                decoder.flush()?;
                std::mem::take(decoder.get_mut())
            }
            Self::Deflate(decoder) => {
                decoder.write_all(&bytes)?;
                decoder.flush()?;
                std::mem::take(decoder.get_mut())
            }
        };
        if decoded.len() > MOST_DECODED_BYTES {
            return Err(io::Error::other("one read decompresses to more than 64 MiB"));
        }
        Ok(decoded.into())
    }
}
