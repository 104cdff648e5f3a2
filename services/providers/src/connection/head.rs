//! The heads of requests and answers, as bytes.

use std::mem::MaybeUninit;
use std::ops::Range;

use bytes::{BufMut, Bytes, BytesMut};
use http::header::{CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use thiserror::Error;

use super::framing::Framing;

/// The head of an answer, and what it says of the body and the connection.
#[derive(Debug)]
pub(crate) struct Head {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub framing: Framing,
    /// Whether the connection stays open after the body.
    pub keeps_alive: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(crate) enum HeadError {
    #[error("its head cannot be read: {0}")]
    Malformed(#[from] httparse::Error),
    #[error("its head is larger than {MOST_HEAD_BYTES} bytes")]
    TooLarge,
    #[error("it has a header that is none")]
    BadHeader,
    #[error("it states its length in different or unreadable ways")]
    BadLength,
    #[error("its transfer encoding is not `chunked` alone")]
    UnknownTransferEncoding,
    #[error("it switches to another protocol, which nobody asked for")]
    Switching,
    #[error("its status is none")]
    BadStatus,
}

/// Far above what providers send; a peer must not fill the memory of the process before the body's own bound counts.
const MOST_HEAD_BYTES: usize = 128 * 1024;
/// Some send 60 with all their limits and traces.
const MOST_HEADERS: usize = 128;

/// The head of a `POST` with a body of known length.
pub(crate) fn request_head(host: &str, path: &str, headers: &HeaderMap, body_bytes: usize) -> Bytes {
    let of_headers: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    let mut head = Vec::with_capacity(path.len() + host.len() + of_headers + FIXED_BYTES);
    head.extend_from_slice(b"POST ");
    head.extend_from_slice(path.as_bytes());
    head.extend_from_slice(b" HTTP/1.1\r\nhost: ");
    head.extend_from_slice(host.as_bytes());
    head.extend_from_slice(b"\r\ncontent-length: ");
    put_decimal(&mut head, body_bytes);
    head.extend_from_slice(b"\r\n");
    for (name, value) in headers {
        head.extend_from_slice(name.as_str().as_bytes());
        head.extend_from_slice(b": ");
        head.extend_from_slice(value.as_bytes());
        head.extend_from_slice(b"\r\n");
    }
    head.extend_from_slice(b"\r\n");
    head.into()
}

/// What the lines above take besides the texts: 46 bytes of words and at most 20 digits.
const FIXED_BYTES: usize = 72;

fn put_decimal(out: &mut Vec<u8>, number: usize) {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    let mut rest = number;
    loop {
        at -= 1;
        digits[at] = b"0123456789"[rest % 10];
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    out.put_slice(&digits[at..]);
}

/// Takes the head of the final answer from the start of `received`, once it is there whole. Interim ones are skipped.
pub(crate) fn take(received: &mut BytesMut) -> Result<Option<Head>, HeadError> {
    loop {
        let Some(parsed) = parse(received)? else {
            return if received.len() > MOST_HEAD_BYTES { Err(HeadError::TooLarge) } else { Ok(None) };
        };
        let bytes = received.split_to(parsed.length).freeze();
        match parsed.status {
            101 => return Err(HeadError::Switching),
            100..200 => {}
            status => return parsed.head(&bytes, status).map(Some),
        }
    }
}

/// Where the parts of a head stand.
struct Parsed {
    status: u16,
    is_http_11: bool,
    length: usize,
    headers: Vec<(Range<usize>, Range<usize>)>,
}

fn parse(received: &[u8]) -> Result<Option<Parsed>, HeadError> {
    let mut room = [const { MaybeUninit::<httparse::Header<'_>>::uninit() }; MOST_HEADERS];
    let mut response = httparse::Response::new(&mut []);
    let config = httparse::ParserConfig::default();
    let status = config.parse_response_with_uninit_headers(&mut response, received, &mut room)?;
    let httparse::Status::Complete(length) = status else { return Ok(None) };
    let within = |part: &[u8]| {
        let start = part.as_ptr().addr() - received.as_ptr().addr();
        start..start + part.len()
    };
    let headers =
        response.headers.iter().map(|header| (within(header.name.as_bytes()), within(header.value))).collect();
    Ok(Some(Parsed { status: response.code.unwrap_or(0), is_http_11: response.version == Some(1), length, headers }))
}

impl Parsed {
    fn head(self, bytes: &Bytes, status: u16) -> Result<Head, HeadError> {
        let mut headers = HeaderMap::with_capacity(self.headers.len());
        for (name, value) in self.headers {
            let name = HeaderName::from_bytes(&bytes[name]).map_err(|_| HeadError::BadHeader)?;
            let value = HeaderValue::from_maybe_shared(bytes.slice(value)).map_err(|_| HeadError::BadHeader)?;
            headers.append(name, value);
        }
        let status = StatusCode::from_u16(status).map_err(|_| HeadError::BadStatus)?;
        let framing = framing(status, &headers)?;
        let keeps_alive = if self.is_http_11 { !names(&headers, "close") } else { names(&headers, "keep-alive") };
        // An answer that is framed in both ways came through something that may disagree about where it ends.
        let is_ambiguous = headers.contains_key(TRANSFER_ENCODING) && headers.contains_key(CONTENT_LENGTH);
        Ok(Head { status, headers, framing, keeps_alive: keeps_alive && !is_ambiguous })
    }
}

/// RFC 9112, 6.3, for an answer to `POST`.
fn framing(status: StatusCode, headers: &HeaderMap) -> Result<Framing, HeadError> {
    if status == StatusCode::NO_CONTENT || status == StatusCode::NOT_MODIFIED {
        return Ok(Framing::length(0));
    }
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    if let Some(coding) = codings.next() {
        let is_chunked_alone =
            coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked") && codings.next().is_none();
        return if is_chunked_alone { Ok(Framing::chunked()) } else { Err(HeadError::UnknownTransferEncoding) };
    }
    let mut length = None;
    for stated in headers.get_all(CONTENT_LENGTH).iter().flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
    {
        let digits = str::from_utf8(stated.trim_ascii()).map_err(|_| HeadError::BadLength)?;
        let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
        let stated: u64 = digits.parse().ok().filter(|_| is_number).ok_or(HeadError::BadLength)?;
        if length.replace(stated).is_some_and(|before| before != stated) {
            return Err(HeadError::BadLength);
        }
    }
    Ok(length.map_or_else(Framing::until_close, Framing::length))
}

/// Whether a `connection` header names `option`.
fn names(headers: &HeaderMap, option: &str) -> bool {
    headers
        .get_all(CONNECTION)
        .iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .any(|named| named.trim_ascii().eq_ignore_ascii_case(option.as_bytes()))
}

#[cfg(test)]
#[path = "head_tests.rs"]
mod tests;
