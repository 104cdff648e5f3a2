//! The body of an answer, decompressed as it flows.
//!
//! Weir asks for `identity`, and some providers compress all the same (O44). Each network read is decoded and flushed
//! at once, so that an event is relayed when it arrives and not when the stream ends.

use std::fmt;
use std::io::Write;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use flate2::write::{GzDecoder, ZlibDecoder};
use http::HeaderMap;
use http::header::CONTENT_ENCODING;
use http_body::{Body, Frame};
use hyper::body::Incoming;
use thiserror::Error;

/// An encoding that Weir cannot read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("the provider answered with content-encoding `{0}`, which was not asked for")]
pub struct UnsupportedEncoding(pub String);

/// Why a body broke off.
#[derive(Debug, Error)]
pub enum BodyError {
    #[error("the provider's connection broke: {0}")]
    Transport(#[from] hyper::Error),
    #[error("the provider's compressed answer is damaged: {0}")]
    Damaged(#[from] std::io::Error),
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
    inner: Incoming,
    encoding: Encoding,
}

impl fmt::Debug for AnswerBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AnswerBody")
    }
}

impl AnswerBody {
    pub(crate) fn new(headers: &HeaderMap, inner: Incoming) -> Result<Self, UnsupportedEncoding> {
        let named = headers.get(CONTENT_ENCODING).map(|value| String::from_utf8_lossy(value.as_bytes()).to_lowercase());
        let encoding = match named.as_deref().map(str::trim) {
            None | Some("" | "identity") => Encoding::Identity,
            Some("gzip" | "x-gzip") => Encoding::Gzip(Box::new(GzDecoder::new(Vec::new()))),
            Some("deflate") => Encoding::Deflate(Box::new(ZlibDecoder::new(Vec::new()))),
            Some(other) => return Err(UnsupportedEncoding(other.to_owned())),
        };
        Ok(Self { inner, encoding })
    }
}

impl Encoding {
    fn decode(&mut self, bytes: Bytes) -> Result<Bytes, std::io::Error> {
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
            return Err(std::io::Error::other("one read decompresses to more than 64 MiB"));
        }
        Ok(decoded.into())
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        loop {
            let Some(frame) = ready!(Pin::new(&mut self.inner).poll_frame(cx)) else { return Poll::Ready(None) };
            let Ok(data) = frame?.into_data() else { continue };
            let decoded = self.encoding.decode(data)?;
            if !decoded.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(decoded))));
            }
        }
    }
}
