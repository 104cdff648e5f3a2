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
use socket2::SockRef;
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
    unsent: Unsent,
    /// How much the next read may bring.
    read_bytes: usize,
    /// How much a read may come to bring.
    largest_read_bytes: usize,
    /// What the kernel was last told to receive into.
    receive_buffer_bytes: Option<usize>,
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

/// A first read holds a usual answer whole, or its head and the first events of a stream. What a silent stream keeps.
const SMALLEST_READ_BYTES: usize = 4 * 1024;
/// Large answers come in reads of this size.
const LARGEST_READ_BYTES: usize = 16 * 1024;
/// Streams in smaller ones: thousands of clients that stop reading keep one each.
const LARGEST_STREAM_READ_BYTES: usize = 8 * 1024;

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("received_bytes", &self.received.len()).finish_non_exhaustive()
    }
}

impl Connection {
    /// Over a fresh `stream`, for which the kernel was told to receive into `receive_buffer_bytes`.
    pub(crate) fn new(stream: MaybeHttpsStream<TokioIo<TcpStream>>, receive_buffer_bytes: Option<usize>) -> Self {
        Self {
            stream: TokioIo::new(stream),
            received: BytesMut::new(),
            unsent: Unsent::default(),
            read_bytes: SMALLEST_READ_BYTES,
            largest_read_bytes: LARGEST_READ_BYTES,
            receive_buffer_bytes,
        }
    }

    /// For the next answer: the size of its reads, and how much the kernel may receive ahead of its reader.
    pub(crate) fn expect_answer(&mut self, is_stream: bool, buffer_bytes: Option<usize>) {
        self.largest_read_bytes = if is_stream { LARGEST_STREAM_READ_BYTES } else { LARGEST_READ_BYTES };
        let Some(bytes) = buffer_bytes.filter(|_| buffer_bytes != self.receive_buffer_bytes) else { return };
        let tcp = match self.stream.inner() {
            MaybeHttpsStream::Http(tcp) => tcp.inner(),
            MaybeHttpsStream::Https(tls) => tls.inner().get_ref().0.inner().inner(),
        };
        // A kernel that refuses it keeps a buffer that works as well.
        if SockRef::from(tcp).set_recv_buffer_size(bytes).is_ok() {
            self.receive_buffer_bytes = buffer_bytes;
        }
    }

    /// Whether an idle connection still stands and says nothing: a close, or bytes that nobody asked for, end its use.
    pub(crate) fn is_quiet(&mut self) -> bool {
        self.received.is_empty() && self.poll_read(&mut Context::from_waker(Waker::noop())).is_pending()
    }

    /// Writes a request, which comes in `pieces`, and reads until the head of its answer is there. What a provider
    /// answers before it took the whole request counts too: that is how a refusal looks.
    pub(crate) async fn exchange(&mut self, pieces: Vec<Bytes>) -> Result<Head, ExchangeError> {
        self.unsent = Unsent { pieces, first: 0 };
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

    /// The request back, of which nothing was sent.
    pub(crate) fn take_unsent(&mut self) -> Vec<Bytes> {
        std::mem::take(&mut self.unsent).pieces
    }

    /// Writes what is unsent, in one call where the kernel takes it.
    fn poll_send(&mut self, cx: &mut Context<'_>, sent_any: &mut bool) -> Poll<io::Result<()>> {
        while !self.unsent.is_empty() {
            // TLS takes bytes before it writes them: from then on nobody knows what left.
            *sent_any |= matches!(self.stream.inner(), MaybeHttpsStream::Https(_));
            let mut slices = [IoSlice::new(&[]); MOST_SLICES];
            let count = self.unsent.fill(&mut slices);
            let count = ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, &slices[..count]))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            *sent_any = true;
            self.unsent.advance(count);
        }
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    /// Reads once; the count is 0 at the end of the stream.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.received.reserve(self.read_bytes);
        let read = self.stream.read_buf(&mut self.received);
        let count = ready!(pin!(read).poll(cx))?;
        // Follows what comes: a read that filled its room has more behind it.
        if count >= self.read_bytes {
            self.read_bytes = (self.read_bytes * 2).min(self.largest_read_bytes);
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
            if !self.unsent.is_empty() {
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
        self.unsent.is_empty() && self.received.is_empty()
    }

    /// Gives back a read buffer that has grown: an idle connection keeps the smallest one, for its next answer.
    pub(crate) fn rest(&mut self) {
        if self.read_bytes > SMALLEST_READ_BYTES {
            self.let_go();
        }
    }

    /// Gives back the read buffer, but for what of it was not read yet; the next read is small again.
    pub(crate) fn let_go(&mut self) {
        self.received = BytesMut::from(&self.received[..]);
        self.read_little();
    }

    /// The next read is a small one, whatever came before.
    pub(crate) const fn read_little(&mut self) {
        self.read_bytes = SMALLEST_READ_BYTES;
    }
}

/// What of a request is not written yet: its head, and its body in pieces that share the client's memory.
#[derive(Debug, Default)]
struct Unsent {
    pieces: Vec<Bytes>,
    /// The first that is not written whole.
    first: usize,
}

/// How many pieces one write takes; a request has hardly more.
const MOST_SLICES: usize = 16;

impl Unsent {
    fn is_empty(&self) -> bool {
        self.pieces.len() == self.first
    }

    fn fill<'a>(&'a self, slices: &mut [IoSlice<'a>; MOST_SLICES]) -> usize {
        let left = &self.pieces[self.first..];
        for (slice, piece) in slices.iter_mut().zip(left) {
            *slice = IoSlice::new(piece);
        }
        left.len().min(MOST_SLICES)
    }

    fn advance(&mut self, mut count: usize) {
        while let Some(piece) = self.pieces.get_mut(self.first) {
            if count < piece.len() {
                return piece.advance(count);
            }
            count -= piece.len();
            *piece = Bytes::new();
            self.first += 1;
        }
        *self = Self::default();
    }
}

/// Why a body ended before its end.
#[derive(Debug)]
pub(crate) enum BodyEnd {
    Broken(io::Error),
    Cut,
    Framing(FramingError),
}
