//! One HTTP/1.1 connection to a provider, polled by whoever waits for its answer.
//!
//! A client library gives each connection a task of its own and hands the body over piece by piece through a channel:
//! two wakings and one write to the client for each chunk of a stream. Here the request's own task reads the socket, and
//! what one read brought becomes one piece, so that chunks which came together leave together and none is delayed. Only
//! what Weir needs is spoken: `POST` with a body of known length; answers of any framing.

use std::fmt;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf, Bytes, BytesMut};
use hyper_rustls::MaybeHttpsStream;
use hyper_util::rt::TokioIo;
use thiserror::Error;
use tokio::io::{AsyncReadExt, AsyncWrite};
use tokio::net::TcpStream;

mod framing;
mod head;

pub(crate) use framing::{Framing, FramingError};
pub(crate) use head::{Head, HeadError, request_head};

type Stream = TokioIo<MaybeHttpsStream<TokioIo<TcpStream>>>;

pub(crate) struct Connection {
    stream: Stream,
    received: BytesMut,
    /// What of the request is not written yet.
    unsent: [Bytes; 2],
    /// How much the next read may bring.
    read_bytes: usize,
}

/// Why an exchange gave no answer.
#[derive(Debug, Error)]
pub(crate) enum ExchangeError {
    /// The connection took no byte of the request.
    #[error("the connection was closed before the request was written")]
    NothingSent(#[source] io::Error),
    #[error("the connection broke")]
    Broken(#[source] io::Error),
    #[error("the connection was closed before an answer came")]
    Closed,
    #[error("the answer is not HTTP/1.1")]
    Head(#[from] HeadError),
}

/// A first read holds any usual answer's head and the first events of a stream, or most plain answers whole.
const SMALLEST_READ_BYTES: usize = 8 * 1024;
/// Large answers come in reads of this size.
const LARGEST_READ_BYTES: usize = 64 * 1024;

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("received_bytes", &self.received.len()).finish_non_exhaustive()
    }
}

impl Connection {
    pub(crate) fn new(stream: MaybeHttpsStream<TokioIo<TcpStream>>) -> Self {
        Self {
            stream: TokioIo::new(stream),
            received: BytesMut::new(),
            unsent: [Bytes::new(), Bytes::new()],
            read_bytes: SMALLEST_READ_BYTES,
        }
    }

    /// Whether an idle connection still stands and says nothing: a close, or bytes that nobody asked for, end its use.
    pub(crate) fn is_quiet(&mut self) -> bool {
        self.received.is_empty() && self.poll_read(&mut Context::from_waker(Waker::noop())).is_pending()
    }

    /// Writes a request and reads until the head of its answer is there. What a provider answers before it took the
    /// whole request counts too: that is how a refusal looks.
    pub(crate) async fn exchange(&mut self, head: Bytes, body: Bytes) -> Result<Head, ExchangeError> {
        self.unsent = [head, body];
        let mut sent_any = false;
        std::future::poll_fn(|cx| self.poll_exchange(cx, &mut sent_any)).await
    }

    fn poll_exchange(&mut self, cx: &mut Context<'_>, sent_any: &mut bool) -> Poll<Result<Head, ExchangeError>> {
        let refused = match self.poll_send(cx, sent_any) {
            Poll::Ready(Err(error)) if !*sent_any => return Poll::Ready(Err(ExchangeError::NothingSent(error))),
            Poll::Ready(Err(error)) => Some(error),
            Poll::Ready(Ok(())) | Poll::Pending => None,
        };
        loop {
            match self.poll_read(cx) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(ExchangeError::Closed)),
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(ExchangeError::Broken(error))),
                // A peer that takes no more and has said nothing will say nothing.
                Poll::Pending => {
                    return refused.map_or(Poll::Pending, |error| Poll::Ready(Err(ExchangeError::Broken(error))));
                }
            }
            if let Some(head) = head::take(&mut self.received)? {
                return Poll::Ready(Ok(head));
            }
        }
    }

    /// Writes what is unsent, head and body in one call where they fit.
    fn poll_send(&mut self, cx: &mut Context<'_>, sent_any: &mut bool) -> Poll<io::Result<()>> {
        while !self.has_sent_all() {
            // TLS takes bytes before it writes them: from then on nobody knows what left.
            *sent_any |= matches!(self.stream.inner(), MaybeHttpsStream::Https(_));
            let [head, body] = &self.unsent;
            let slices = [IoSlice::new(head), IoSlice::new(body)];
            let slices = if head.is_empty() { &slices[1..] } else { &slices[..] };
            let count = ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, slices))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            *sent_any = true;
            let of_head = count.min(self.unsent[0].len());
            self.unsent[0].advance(of_head);
            self.unsent[1].advance(count - of_head);
        }
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    pub(crate) fn has_sent_all(&self) -> bool {
        self.unsent.iter().all(Bytes::is_empty)
    }

    /// Reads once; the count is 0 at the end of the stream.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.received.reserve(self.read_bytes);
        let read = self.stream.read_buf(&mut self.received);
        let count = ready!(pin!(read).poll(cx))?;
        // Follows what comes: a read that filled its room has more behind it.
        if count >= self.read_bytes {
            self.read_bytes = (self.read_bytes * 2).min(LARGEST_READ_BYTES);
        } else if count < self.read_bytes / 4 {
            self.read_bytes = SMALLEST_READ_BYTES;
        }
        Poll::Ready(Ok(count))
    }

    /// The next piece of the body that `framing` describes: everything that is there of it. `None` at its end.
    pub(crate) fn poll_body(
        &mut self,
        cx: &mut Context<'_>,
        framing: &mut Framing,
    ) -> Poll<Option<Result<Bytes, BodyEnd>>> {
        loop {
            match framing.take(&mut self.received) {
                Ok(Some(piece)) => return Poll::Ready(Some(Ok(piece))),
                Ok(None) if framing.is_over() => return Poll::Ready(None),
                Ok(None) => {}
                Err(error) => return Poll::Ready(Some(Err(BodyEnd::Framing(error)))),
            }
            if !self.has_sent_all() {
                // The answer began early. What the provider does not take of the request does not concern the answer.
                let _unsent = self.poll_send(cx, &mut true);
            }
            match ready!(self.poll_read(cx)) {
                Ok(0) if framing.ends_with_the_connection() => return Poll::Ready(None),
                Ok(0) => return Poll::Ready(Some(Err(BodyEnd::Cut))),
                Ok(_) => {}
                Err(error) => return Poll::Ready(Some(Err(BodyEnd::Broken(error)))),
            }
        }
    }

    /// Whether the connection can take another request: everything was sent, and nothing is left of the answer.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.has_sent_all() && self.received.is_empty()
    }

    /// Gives back the read buffer, which an idle connection does not need.
    pub(crate) fn rest(&mut self) {
        self.received = BytesMut::new();
    }
}

/// Why a body ended before its end.
#[derive(Debug)]
pub(crate) enum BodyEnd {
    Broken(io::Error),
    Cut,
    Framing(FramingError),
}
