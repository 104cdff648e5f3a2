//! Accepting HTTP/1.1: an own loop, because what a server library defaults to is wrong for long streams.
//!
//! `TCP_NODELAY` (else streamed events wait 44 ms for delayed acknowledgements), a small kernel send buffer (else one
//! unread loopback socket swallows 4 MB of an answer that nobody reads), a deadline for the head of a request, an idle
//! timeout between requests, bounds on buffers and connections, and a drain that ends.
//!
//! **Beyond `max_connections`** a connection is accepted and answered with a bare 503 and `retry-after`: waiting in the
//! kernel's queue would look like a hang, and a load balancer can only go elsewhere once it is told. Over TLS it is
//! closed, since an answer would cost the handshake that the bound is there to save.

use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::{Request, Response};
use hyper::body::{Body, Incoming};
use hyper::service::Service;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use thiserror::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::tasks::{Task, Tasks};
use crate::units::{ByteSize, HumanDuration};

mod connection;
mod deadline;
mod outlet;

pub use connection::Connection;
use outlet::{NotedSocket, Unwritten};

/// Bounds of one listener. The defaults suit a public endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ListenerOptions {
    /// Open connections at once; more get a 503.
    pub max_connections: usize,
    /// From the first byte of a request (or from connecting, TLS included) to the end of its headers.
    pub header_deadline: HumanDuration,
    /// How long a connection may stay open between two requests. Longer than usual clients keep theirs, so that it is
    /// the client that closes and no request crosses a close.
    pub idle_timeout: HumanDuration,
    /// The head of a request; a larger one gets 431. Also the bound of the read and write buffers, so at least 8 KiB.
    pub max_header: ByteSize,
    /// How many headers a request may have; more get 431.
    pub max_headers: usize,
    /// The kernel's send buffer of a connection (it takes twice this); the kernel's own choice where absent.
    pub send_buffer: Option<ByteSize>,
    /// What all connections together may hold of streams that their clients have not taken. Beyond it, streams whose
    /// clients are behind are not read on.
    pub max_unwritten: ByteSize,
    /// How long requests in flight may go on after the stop began.
    pub drain: HumanDuration,
}

impl Default for ListenerOptions {
    fn default() -> Self {
        Self {
            max_connections: 16_384,
            header_deadline: HumanDuration::from_secs(10),
            idle_timeout: HumanDuration::from_secs(90),
            max_header: ByteSize::kib(64),
            max_headers: 128,
            send_buffer: Some(ByteSize::kib(64)),
            max_unwritten: ByteSize::mib(256),
            drain: HumanDuration::from_secs(30),
        }
    }
}

/// What a body or service may fail with.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// Why a port cannot be listened on. Each says what to do.
#[derive(Debug, Error)]
pub enum ListenError {
    #[error(
        "{address} is in use by another process: stop it (`ss -ltnp 'sport = :{}'` names it) or choose another port, \
         0 for a free one",
        address.port()
    )]
    InUse { address: SocketAddr },
    #[error("listening on {address} is not permitted: choose a port above 1023, or grant CAP_NET_BIND_SERVICE")]
    NotPermitted { address: SocketAddr },
    #[error("{address} is not an address of this machine: listen on one it has, or on 0.0.0.0 for all")]
    NoSuchAddress { address: SocketAddr },
    #[error("cannot listen on {address}")]
    Other { address: SocketAddr, source: io::Error },
}

/// How many accepted connections the kernel queues while the loop is busy: a burst of clients, not a wait of seconds.
const BACKLOG: i32 = 1024;

/// Listens on `address`; port 0 takes a free one. Call it on a tokio runtime.
pub fn bind(address: SocketAddr) -> Result<TcpListener, ListenError> {
    bound_socket(address).map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => ListenError::InUse { address },
        io::ErrorKind::PermissionDenied => ListenError::NotPermitted { address },
        io::ErrorKind::AddrNotAvailable => ListenError::NoSuchAddress { address },
        _ => ListenError::Other { address, source },
    })
}

fn bound_socket(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // A restarted process takes its port back although old connections are in TIME_WAIT.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    TcpListener::from_std(socket.into())
}

/// Raises the limit of open files to what the system grants this process, and returns it. Called once in `main`: the
/// usual soft limit of 1,024 is fewer than the connections of one busy gateway.
pub fn raise_file_limit() -> io::Result<u64> {
    rlimit::increase_nofile_limit(u64::MAX)
}

/// Accepts and serves until `tasks` stop; then finishes what is in flight within `options.drain`, and drops the rest.
/// Every connection is a task of `tasks`. Each request carries its [`Connection`] as an extension.
///
/// A service that returns an error closes the connection without an answer.
pub fn serve<S, B>(
    listener: TcpListener,
    tls: Option<Arc<rustls::ServerConfig>>,
    options: ListenerOptions,
    service: S,
    tasks: &Tasks,
) -> Task<()>
where
    S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + Sync + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    let server = Server {
        tls: tls.map(TlsAcceptor::from),
        unwritten: Unwritten::new(options.max_unwritten.as_usize()),
        options: Arc::new(options),
        service,
        tasks: tasks.clone(),
        open: Arc::default(),
        refusing: Arc::default(),
    };
    tasks.spawn("listener", server.accept_until_stopped(listener))
}

struct Server<S> {
    tls: Option<TlsAcceptor>,
    options: Arc<ListenerOptions>,
    service: S,
    tasks: Tasks,
    unwritten: Arc<Unwritten>,
    open: Arc<AtomicUsize>,
    refusing: Arc<AtomicUsize>,
}

/// How many refusals may be on their way at once; beyond it connections are closed without an answer.
const MAX_REFUSALS: usize = 256;

/// A pause after an accept that failed for want of files or memory: they come back when a connection ends.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

impl<S, B> Server<S>
where
    S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + Sync + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    async fn accept_until_stopped(self, listener: TcpListener) {
        let stopping = self.tasks.stopping();
        tokio::pin!(stopping);
        loop {
            let accepted = tokio::select! {
                () = &mut stopping => return,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, peer)) => self.admit(stream, peer),
                Err(error) if is_of_the_peer(&error) => {}
                Err(error) => {
                    tracing::warn!(error = %error, "accept failed, pausing");
                    tokio::select! {
                        () = &mut stopping => return,
                        () = tokio::time::sleep(ACCEPT_PAUSE) => {}
                    }
                }
            }
        }
    }

    fn admit(&self, stream: TcpStream, peer: SocketAddr) {
        if let Some(place) = Place::take(&self.open, self.options.max_connections) {
            return self.start(stream, peer, place);
        }
        let place = Place::take(&self.refusing, MAX_REFUSALS);
        if let (None, Some(place)) = (&self.tls, place) {
            self.tasks.spawn("refusal", refuse(stream, place));
        }
    }

    fn start(&self, stream: TcpStream, peer: SocketAddr, place: Place) {
        if let Err(error) = prepare(&stream, &self.options) {
            tracing::debug!(error = %error, "connection lost before it began");
            return;
        }
        let connection = Connection::new(peer, Arc::clone(&self.unwritten));
        let stream = NotedSocket { tcp: stream, connection: connection.clone() };
        let serving = Serving {
            connection,
            options: self.options.clone(),
            service: self.service.clone(),
            stopping: self.tasks.stopping(),
            place,
        };
        // Each kind is a task of its own: one future for both would be as large as the larger, for every connection.
        match &self.tls {
            None => drop(self.tasks.spawn("connection", serving.run(stream))),
            Some(tls) => drop(self.tasks.spawn("connection", serving.secure(tls.clone(), stream))),
        }
    }
}

/// What one connection is served with.
struct Serving<S, F> {
    connection: Connection,
    options: Arc<ListenerOptions>,
    service: S,
    stopping: F,
    place: Place,
}

impl<S, F, B> Serving<S, F>
where
    S: Service<Request<Incoming>, Response = Response<B>>,
    S::Error: Into<BoxError>,
    F: Future<Output = ()> + Send,
    B: Body + 'static,
    B::Error: Into<BoxError>,
{
    /// Not `async`: that would hold everything twice, here and in the future that it awaits.
    fn run(self, stream: NotedSocket) -> impl Future<Output = ()> {
        let Self { connection, options, service, stopping, place } = self;
        connection::run(stream, connection, options, service, stopping, place)
    }

    async fn secure(self, tls: TlsAcceptor, stream: NotedSocket) {
        let Self { connection, options, service, stopping, place } = self;
        // Boxed, because handshake and service are never there together.
        let mut stopping = Box::pin(stopping);
        let handshake = Box::pin(shake_hands(tls, stream, options.header_deadline.duration()));
        let stream = tokio::select! {
            () = &mut stopping => return,
            stream = handshake => stream,
        };
        if let Some(stream) = stream {
            Box::pin(connection::run(stream, connection, options, service, stopping, place)).await;
        }
    }
}

/// What of an answer is kept encrypted before the socket takes it; the library's own bound is 64 KiB.
const TLS_BUFFER_BYTES: usize = 16 * 1024;

async fn shake_hands(tls: TlsAcceptor, stream: NotedSocket, within: Duration) -> Option<TlsStream<NotedSocket>> {
    match tokio::time::timeout(within, tls.accept(stream)).await {
        Ok(Ok(mut stream)) => {
            stream.get_mut().1.set_buffer_limit(Some(TLS_BUFFER_BYTES));
            return Some(stream);
        }
        Ok(Err(error)) => tracing::debug!(error = %error, "tls handshake failed"),
        Err(_) => tracing::debug!("tls handshake took too long"),
    }
    None
}

fn prepare(stream: &TcpStream, options: &ListenerOptions) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    #[cfg(target_os = "linux")]
    socket.set_tcp_notsent_lowat(outlet::UNSENT_BYTES)?;
    match options.send_buffer {
        Some(size) => socket.set_send_buffer_size(size.as_usize()),
        None => Ok(()),
    }
}

/// Whether the failed accept concerns one peer that left already, so that the next one may be accepted at once.
fn is_of_the_peer(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::Interrupted
    )
}

/// One of a bounded number of places, given back when dropped.
struct Place {
    taken: Arc<AtomicUsize>,
}

impl Place {
    fn take(taken: &Arc<AtomicUsize>, max: usize) -> Option<Self> {
        let before = taken.fetch_add(1, Ordering::Relaxed);
        let place = Self { taken: taken.clone() };
        (before < max).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

const REFUSAL: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";

/// A refusal reads on a little, or the unread request would turn the close into a reset that destroys the answer.
const REFUSAL_TIME: Duration = Duration::from_secs(1);
const REFUSAL_READ_BYTES: usize = 64 * 1024;

async fn refuse(mut stream: TcpStream, _place: Place) {
    let answer = async {
        stream.write_all(REFUSAL).await?;
        stream.shutdown().await?;
        let mut discarded = [0; 4096];
        let mut total = 0;
        while total < REFUSAL_READ_BYTES {
            match stream.read(&mut discarded).await? {
                0 => break,
                count => total += count,
            }
        }
        io::Result::Ok(())
    };
    // A peer that does not want the answer needs none.
    let _answered = tokio::time::timeout(REFUSAL_TIME, answer).await.is_ok_and(|done| done.is_ok());
}

#[cfg(test)]
#[path = "listener_tests.rs"]
mod tests;
