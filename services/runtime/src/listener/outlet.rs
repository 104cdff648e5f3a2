//! What a connection was given to write and its socket has not taken.
//!
//! hyper asks a body for more until it holds 64 KiB (the bound of a request's head is that of its write buffer too),
//! whether or not anybody reads, and asks for nothing while the socket is blocked. So a body that flows for long asks
//! here first: it may give one piece, and another when that is written. And because the socket itself tells what it
//! took, a stall counts from its last byte, not from when hyper last asked.
//!
//! The kernel is told to take little beyond what the client's window lets it send ([`UNSENT_BYTES`]): else "written" would
//! mean "in a buffer of this machine", and whoever reads slowly would seem to take nothing for minutes.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::Connection;

/// What the kernel keeps of a connection that the client's window does not let it send. At 16 KiB, and pieces of four,
/// whoever takes 200 bytes a second is seen to take some within a minute.
#[cfg(target_os = "linux")]
pub(super) const UNSENT_BYTES: u32 = 16 * 1024;

/// So much goes out without a stop until a client that was behind counts as quick again: some times what the kernel takes
/// for one that reads nothing.
const CATCHING_UP_BYTES: usize = 64 * 1024;

/// While less than this is unwritten, more may be given: small pieces go out together.
const ROOM_BYTES: usize = 4 * 1024;

/// What all connections of a listener hold unwritten, and may.
#[derive(Debug)]
pub(super) struct Unwritten {
    bytes: AtomicUsize,
    most_bytes: usize,
}

impl Unwritten {
    pub(super) fn new(most_bytes: usize) -> Arc<Self> {
        Arc::new(Self { bytes: AtomicUsize::new(0), most_bytes })
    }

    fn is_over(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) > self.most_bytes
    }
}

/// The way out of one connection. Bodies are polled, and bytes written, in the connection's own task; who looks at how
/// long it stands still is another.
pub(super) struct Outlet {
    began: Instant,
    /// Bytes that were given since everything was last written.
    given: AtomicUsize,
    /// Ms since `began`: when the socket last took a byte, or was given one while it had none to take.
    moved_ms: AtomicU64,
    /// Whether the socket takes nothing now.
    is_blocked: AtomicBool,
    /// What must yet go out without a stop until the client is behind no more.
    behind_bytes: AtomicUsize,
    /// Whether a body waits for room.
    is_awaited: AtomicBool,
    /// Whether a body that waits was asked again since the socket was blocked.
    is_told: AtomicBool,
    all: Arc<Unwritten>,
}

impl Outlet {
    pub(super) fn new(all: Arc<Unwritten>) -> Self {
        Self {
            began: Instant::now(),
            given: AtomicUsize::new(0),
            moved_ms: AtomicU64::new(0),
            is_blocked: AtomicBool::new(false),
            behind_bytes: AtomicUsize::new(0),
            is_awaited: AtomicBool::new(false),
            is_told: AtomicBool::new(false),
            all,
        }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn took_some(&self) {
        self.moved_ms.store(self.now_ms(), Ordering::Release);
    }

    fn took_nothing(&self) {
        if self.given.load(Ordering::Relaxed) > 0 && !self.is_blocked.swap(true, Ordering::Relaxed) {
            self.behind_bytes.store(CATCHING_UP_BYTES, Ordering::Release);
        }
    }

    /// Everything that was given is written.
    fn flushed(&self) {
        let given = self.given.swap(0, Ordering::AcqRel);
        if given > 0 {
            self.all.bytes.fetch_sub(given, Ordering::Relaxed);
            if !self.is_blocked.swap(false, Ordering::Relaxed) {
                let behind = self.behind_bytes.load(Ordering::Relaxed);
                self.behind_bytes.store(behind.saturating_sub(given), Ordering::Release);
            }
            self.is_told.store(false, Ordering::Relaxed);
        }
    }

    fn has_room(&self) -> bool {
        self.given.load(Ordering::Relaxed) < ROOM_BYTES
    }

    /// Whether a body waits that should be asked again: there is room now, or it does not know yet that it must wait for
    /// long and may let go of memory. hyper mostly asks again by itself when it has written something, but not always.
    pub(super) fn has_news(&self) -> bool {
        if !self.is_awaited.load(Ordering::Relaxed) {
            return false;
        }
        if self.has_room() {
            self.is_awaited.store(false, Ordering::Relaxed);
            return true;
        }
        self.is_blocked.load(Ordering::Relaxed) && !self.is_told.swap(true, Ordering::Relaxed)
    }
}

impl Drop for Outlet {
    fn drop(&mut self) {
        self.all.bytes.fetch_sub(*self.given.get_mut(), Ordering::Relaxed);
    }
}

impl Connection {
    /// Whether another piece may be given: less than 4 KiB are unwritten. Otherwise the body is polled again when it may.
    /// Only where all connections together hold more than they may, and this client is behind, nobody tells when they do
    /// no more: look again after a while.
    #[must_use]
    pub fn has_room(&self) -> bool {
        let outlet = &self.shared.outlet;
        let has_room = outlet.has_room();
        outlet.is_awaited.store(!has_room, Ordering::Relaxed);
        has_room && !(self.is_behind() && outlet.all.is_over())
    }

    /// So many bytes of a body go to the connection now.
    pub fn give(&self, bytes: usize) {
        let outlet = &self.shared.outlet;
        if outlet.given.fetch_add(bytes, Ordering::AcqRel) == 0 {
            outlet.took_some();
        }
        outlet.all.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Whether the client takes less than it is given: its socket was blocked, and took too little since.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        self.shared.outlet.behind_bytes.load(Ordering::Acquire) > 0
    }

    /// How long the socket has taken nothing of what was given; `None` when all of it is written.
    #[must_use]
    pub fn stands_for(&self) -> Option<Duration> {
        let outlet = &self.shared.outlet;
        let is_written = outlet.given.load(Ordering::Acquire) == 0;
        (!is_written).then(|| Instant::now().saturating_duration_since(self.moved_at()))
    }

    /// When the socket last took a byte.
    #[must_use]
    pub fn moved_at(&self) -> Instant {
        let outlet = &self.shared.outlet;
        outlet.began + Duration::from_millis(outlet.moved_ms.load(Ordering::Acquire))
    }
}

/// An accepted socket that tells its connection what it took.
pub(super) struct NotedSocket {
    pub(super) tcp: TcpStream,
    pub(super) connection: Connection,
}

impl fmt::Debug for NotedSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NotedSocket").field("tcp", &self.tcp).finish_non_exhaustive()
    }
}

impl NotedSocket {
    fn note(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        let outlet = &self.connection.shared.outlet;
        match &written {
            Poll::Ready(Ok(_)) => outlet.took_some(),
            Poll::Ready(Err(_)) => {}
            Poll::Pending => outlet.took_nothing(),
        }
        written
    }
}

impl AsyncRead for NotedSocket {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_read(cx, buf)
    }
}

impl AsyncWrite for NotedSocket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.tcp).poll_write(cx, bytes);
        self.note(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.tcp).poll_write_vectored(cx, slices);
        self.note(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.tcp.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_shutdown(cx)
    }
}

/// Flushes `io` for a server that does so only when it has written everything that it holds.
pub(super) fn poll_flush<I: AsyncWrite + Unpin>(
    io: &mut I,
    cx: &mut Context<'_>,
    connection: &Connection,
) -> Poll<io::Result<()>> {
    ready!(Pin::new(io).poll_flush(cx))?;
    connection.shared.outlet.flushed();
    Poll::Ready(Ok(()))
}

#[cfg(test)]
#[path = "outlet_tests.rs"]
mod tests;
