//! Reading a request body within bounds: each body, all bodies together, and time.
//!
//! Memory is reserved before it is used: by `content-length` when there is one, otherwise as the body grows. The
//! permit lives as long as the bytes do.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::respond::BodyRefusal;

/// The unit in which body memory is counted.
const PERMIT_BYTES: usize = 1024;

/// The memory that all request bodies share.
#[derive(Debug, Clone)]
pub(crate) struct BodyMemory(Arc<Semaphore>);

/// A body, and the permit for its memory.
#[derive(Debug)]
pub(crate) struct RequestBody {
    pub bytes: Bytes,
    pub permit: BodyPermit,
}

/// Held until the bytes are gone.
#[derive(Debug, Default)]
pub(crate) struct BodyPermit {
    _permit: Option<OwnedSemaphorePermit>,
}

impl BodyMemory {
    pub(crate) fn new(bytes: usize) -> Self {
        Self(Arc::new(Semaphore::new((bytes / PERMIT_BYTES).min(Semaphore::MAX_PERMITS))))
    }

    fn take(&self, bytes: usize) -> Result<Option<OwnedSemaphorePermit>, BodyRefusal> {
        let permits = u32::try_from(bytes.div_ceil(PERMIT_BYTES)).map_err(|_| BodyRefusal::MemoryFull)?;
        if permits == 0 {
            return Ok(None);
        }
        Arc::clone(&self.0).try_acquire_many_owned(permits).map(Some).map_err(|_| BodyRefusal::MemoryFull)
    }
}

/// Reads the JSON body that `headers` announce.
pub(crate) async fn read(
    headers: &HeaderMap,
    body: Incoming,
    memory: &BodyMemory,
    max_bytes: usize,
    deadline: Duration,
) -> Result<RequestBody, BodyRefusal> {
    check_media_type(headers)?;
    let announced = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    if announced.is_some_and(|length| length > max_bytes) {
        return Err(BodyRefusal::TooLarge { limit_bytes: max_bytes });
    }
    timeout(deadline, collect(body, memory, max_bytes, announced)).await.map_err(|_| BodyRefusal::TooSlow)?
}

fn check_media_type(headers: &HeaderMap) -> Result<(), BodyRefusal> {
    let media_type = headers.get(CONTENT_TYPE).map(|value| value.as_bytes());
    let is_json = media_type.is_none_or(|value| {
        let essence = value.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
        essence.eq_ignore_ascii_case(b"application/json")
    });
    let encoding = headers.get(CONTENT_ENCODING).map(|value| value.as_bytes());
    if !is_json || encoding.is_some_and(|value| !value.eq_ignore_ascii_case(b"identity")) {
        return Err(BodyRefusal::UnsupportedMediaType);
    }
    Ok(())
}

async fn collect(
    mut body: Incoming,
    memory: &BodyMemory,
    max_bytes: usize,
    announced: Option<usize>,
) -> Result<RequestBody, BodyRefusal> {
    let mut permit = memory.take(announced.unwrap_or(0))?;
    let mut first: Option<Bytes> = None;
    let mut rest = BytesMut::new();
    let mut length = 0usize;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| BodyRefusal::Broken)?;
        let Ok(data) = frame.into_data() else { continue };
        length += data.len();
        if length > max_bytes {
            return Err(BodyRefusal::TooLarge { limit_bytes: max_bytes });
        }
        if announced.is_none() {
            let more = memory.take(data.len())?;
            match (&mut permit, more) {
                (Some(held), Some(more)) => held.merge(more),
                (held @ None, more) => *held = more,
                (Some(_), None) => {}
            }
        }
        // Most bodies arrive in one piece, which is then used as it is.
        if first.is_none() && rest.is_empty() {
            first = Some(data);
            continue;
        }
        if let Some(start) = first.take() {
            rest.reserve(announced.unwrap_or(0).max(start.len() + data.len()));
            rest.extend_from_slice(&start);
        }
        rest.extend_from_slice(&data);
    }
    let bytes = first.unwrap_or_else(|| rest.freeze());
    Ok(RequestBody { bytes, permit: BodyPermit { _permit: permit } })
}
