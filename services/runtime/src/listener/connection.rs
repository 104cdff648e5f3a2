//! One connection, from its first byte to its end.

use std::fmt;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use http::{Request, Response};
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::TokioIo;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio_rustls::server::TlsStream;

use super::deadline::{Due, NotingTimer, Progress, Watched};
use super::outlet::{NotedSocket, Outlet, Unwritten};
use super::{BoxError, ListenerOptions, Place};

/// The connection that a request came over: an extension of each request. A body that flows for long asks it for room
/// before each piece, and tells it what it gives.
#[derive(Clone)]
pub struct Connection {
    pub(super) shared: Arc<Shared>,
}

pub(super) struct Shared {
    peer: SocketAddr,
    reset: Notify,
    pub(super) outlet: Outlet,
}

impl Connection {
    pub(super) fn new(peer: SocketAddr, all: Arc<Unwritten>) -> Self {
        Self { shared: Arc::new(Shared { peer, reset: Notify::new(), outlet: Outlet::new(all) }) }
    }

    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.shared.peer
    }

    /// Ends the connection with a TCP reset, whatever it is doing: what a crashed peer or a middlebox does. Bytes that
    /// were not yet sent are lost.
    pub fn reset(&self) {
        self.shared.reset.notify_one();
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("peer", &self.shared.peer).finish_non_exhaustive()
    }
}

/// hyper refuses less.
const SMALLEST_BUFFER_BYTES: usize = 8192;

/// Serves until the connection ends, its peer is too slow, or the drain is over; `_place` is given back then.
pub(super) async fn run<I, S, B>(
    io: I,
    connection: Connection,
    options: Arc<ListenerOptions>,
    service: S,
    stopping: impl Future<Output = ()> + Send,
    _place: Place,
) where
    I: AsyncRead + AsyncWrite + Unpin + OverTcp,
    S: Service<Request<Incoming>, Response = Response<B>>,
    S::Error: Into<BoxError>,
    B: Body + 'static,
    B::Error: Into<BoxError>,
{
    let progress = Arc::new(Progress::new());
    let extension = connection.clone();
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(extension.clone());
        service.call(request)
    });
    let watched = TokioIo::new(Watched { io, progress: progress.clone(), connection: connection.clone() });
    let mut http = builder(&options, &progress).serve_connection(watched, service);

    // What happens once in a connection's life. `select!` would ask each of these for every byte that moves; a set asks
    // only who was woken.
    let mut rare: FuturesUnordered<Pin<Box<dyn Future<Output = Rare> + Send + '_>>> = FuturesUnordered::new();
    rare.push(Box::pin(async {
        connection.shared.reset.notified().await;
        Rare::Reset
    }));
    rare.push(Box::pin(async move {
        stopping.await;
        Rare::Stopping
    }));
    rare.push(Box::pin(slow(&progress, options.header_deadline.duration(), options.idle_timeout.duration())));
    let mut draining = false;
    loop {
        tokio::select! {
            biased;
            ended = poll_fn(|cx| poll_served(Pin::new(&mut http), cx, &connection.shared.outlet)) => {
                let answered = ended.as_ref().map_or_else(hyper::Error::is_parse, |()| true);
                if let Err(error) = ended {
                    tracing::debug!(error = %error, "connection ended early");
                }
                // A stop does not wait for clients that keep an idle connection open.
                if answered && !draining {
                    Box::pin(linger(http.into_parts().io.into_inner().io)).await;
                }
                return;
            }
            Some(happened) = rare.next() => match happened {
                Rare::Reset => {
                    let io = http.into_parts().io.into_inner().io;
                    // The switch is thrown by dropping the socket; without the option it closes in order, which is no
                    // worse.
                    let _set = SockRef::from(io.tcp()).set_linger(Some(Duration::ZERO)).is_ok();
                    return;
                }
                Rare::Stopping => {
                    draining = true;
                    Pin::new(&mut http).graceful_shutdown();
                    let drain = options.drain.duration();
                    rare.push(Box::pin(async move { tokio::time::sleep(drain).await; Rare::Drained }));
                }
                Rare::Drained => {
                    tracing::debug!("connection dropped because the drain was over");
                    return;
                }
                Rare::TooSlow => return,
            },
        }
    }
}

/// Polls the server until it waits for something outside: a body that waited for its own bytes to be written is asked
/// again.
fn poll_served<F: Future>(mut http: Pin<&mut F>, cx: &mut Context<'_>, outlet: &Outlet) -> Poll<F::Output> {
    loop {
        let polled = http.as_mut().poll(cx);
        if polled.is_ready() || !outlet.has_news() {
            return polled;
        }
    }
}

/// What ends a connection, or begins to, apart from its peer.
enum Rare {
    Reset,
    Stopping,
    Drained,
    TooSlow,
}

/// Resolves when the peer took too long for the head of a request, or between two.
async fn slow(progress: &Progress, head: Duration, idle: Duration) -> Rare {
    let mut wait = head;
    loop {
        tokio::time::sleep(wait).await;
        match progress.due(head, idle) {
            Due::In(left) => wait = left,
            Due::Idle => return Rare::TooSlow,
            Due::SlowHead => {
                tracing::debug!("connection closed because the head of a request took too long");
                return Rare::TooSlow;
            }
        }
    }
}

/// A request that is refused before it was read whole, such as a body over the limit, leaves bytes unread; closing then
/// is a reset, which destroys the answer on its way. So what still comes is read and dropped, for a while.
async fn linger(mut io: impl AsyncRead + Unpin) {
    let discard = async {
        let mut discarded = vec![0; LINGER_READ_BYTES];
        let mut left = LINGER_BYTES;
        while left > 0 {
            match io.read(&mut discarded).await {
                Ok(0) | Err(_) => return,
                Ok(count) => left = left.saturating_sub(count),
            }
        }
    };
    // Whoever sends on after that does not read the answer.
    let _ended = tokio::time::timeout(LINGER_TIME, discard).await.is_ok();
}

/// A client needs a round trip to see the answer and stop sending; two seconds are ten slow ones.
const LINGER_TIME: Duration = Duration::from_secs(2);
/// What a client may have on its way by then: larger than any body that is sent in good faith.
const LINGER_BYTES: usize = 64 << 20;
const LINGER_READ_BYTES: usize = 16 << 10;

fn builder(options: &ListenerOptions, progress: &Arc<Progress>) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .timer(NotingTimer(progress.clone()))
        // Only a switch here: the deadlines are kept by the loop above.
        .header_read_timeout(Duration::from_secs(1))
        .max_headers(options.max_headers)
        .max_header_size(options.max_header.as_usize())
        .max_buf_size(options.max_header.as_usize().max(SMALLEST_BUFFER_BYTES));
    builder
}

/// A stream that ends in a TCP socket.
pub(super) trait OverTcp {
    fn tcp(&self) -> &TcpStream;
}

impl OverTcp for NotedSocket {
    fn tcp(&self) -> &TcpStream {
        &self.tcp
    }
}

impl OverTcp for TlsStream<NotedSocket> {
    fn tcp(&self) -> &TcpStream {
        &self.get_ref().0.tcp
    }
}
