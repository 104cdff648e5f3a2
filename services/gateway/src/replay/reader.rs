//! Somebody who reads a tape: first its head, as the response, then its pieces, as the response's body.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Response};

use weir_domain::ids::ReservationId;
use weir_wire::Dialect;

use crate::client::ClientBody;
use crate::headers::insert_request_id;

use super::tape::{ReaderId, Tape};

const X_WEIR_REPLAYED: HeaderName = HeaderName::from_static("x-weir-replayed");

/// How a reader came to the tape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Came {
    First,
    /// While the call ran.
    During,
    After,
}

/// A place at a tape, given up when dropped.
#[derive(Debug)]
pub(crate) struct Reader {
    tape: Arc<Tape>,
    id: ReaderId,
    came: Came,
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.tape.leave(self.id);
    }
}

impl Reader {
    pub(super) const fn first(tape: Arc<Tape>, id: ReaderId) -> Self {
        Self { tape, id, came: Came::First }
    }

    pub(super) const fn again(tape: Arc<Tape>, id: ReaderId, is_ended: bool) -> Self {
        Self { tape, id, came: if is_ended { Came::After } else { Came::During } }
    }

    pub(super) fn reservation(&self) -> Option<ReservationId> {
        self.tape.reservation()
    }

    /// A word for metrics and logs.
    pub(crate) const fn how(&self) -> &'static str {
        match self.came {
            Came::First => "first",
            Came::During => "attached",
            Came::After => "replayed",
        }
    }

    /// Waits for the head of the answer; `None` when the call died without one. Who came again gets the first answer's
    /// status, reservation and bytes, under an id of their own; how the rates stood then is nothing to them.
    pub(crate) async fn response(self, dialect: Dialect, request_id: &str) -> Option<Response<ClientBody>> {
        let head = poll_fn(|cx| self.tape.poll_head(self.id, cx)).await?;
        let is_first = self.came == Came::First;
        let body = ReplayBody { reader: self, left: head.length };
        let mut response = Response::new(ClientBody::Replay(Box::new(body)));
        *response.status_mut() = head.status;
        let headers = response.headers_mut();
        *headers = head.headers;
        if !is_first {
            let rates: Vec<HeaderName> = headers.keys().filter(|name| tells_rates(name)).cloned().collect();
            for name in rates {
                headers.remove(name);
            }
            insert_request_id(headers, dialect, request_id);
            headers.insert(X_WEIR_REPLAYED, HeaderValue::from_static("true"));
        }
        Some(response)
    }
}

fn tells_rates(name: &HeaderName) -> bool {
    let name = name.as_str();
    name.starts_with("x-ratelimit-") || name.starts_with("anthropic-ratelimit-")
}

/// The body of an answer, from a tape.
#[derive(Debug)]
pub struct ReplayBody {
    reader: Reader,
    /// Bytes that are left, where the length is known.
    left: Option<u64>,
}

impl ReplayBody {
    pub(crate) fn poll_bytes(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let polled = self.reader.tape.poll_piece(self.reader.id, cx);
        if let (Poll::Ready(Some(piece)), Some(left)) = (&polled, &mut self.left) {
            *left = left.saturating_sub(piece.len() as u64);
        }
        polled
    }

    /// Of what is left, where it is known.
    pub(crate) const fn length(&self) -> Option<u64> {
        self.left
    }
}
