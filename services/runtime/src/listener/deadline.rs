//! The time a peer has to send the head of a request, without a timer per request.
//!
//! hyper can limit the time from the end of one request to the end of the next head, but not the idle time and the
//! head apart, and it arms a timer each time. So hyper is given a timer that only notes *when* it began to wait; the
//! connection's task looks at the notes once per deadline.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::rt::{Sleep, Timer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::{Connection, outlet};

/// Not waiting for a head, or no byte of it seen.
const NEVER: u64 = u64::MAX;

/// What a connection waits for, in milliseconds since it began. All parties run in the connection's own task.
#[derive(Debug)]
pub(super) struct Progress {
    began: Instant,
    waiting_since_ms: AtomicU64,
    first_byte_ms: AtomicU64,
    served_before: AtomicBool,
}

/// What the connection's task does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    /// Look again after this time.
    In(Duration),
    Idle,
    SlowHead,
}

impl Progress {
    pub(super) fn new() -> Self {
        Self {
            began: Instant::now(),
            waiting_since_ms: AtomicU64::new(NEVER),
            first_byte_ms: AtomicU64::new(NEVER),
            served_before: AtomicBool::new(false),
        }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(NEVER - 1)
    }

    fn wait_for_head(&self) {
        self.first_byte_ms.store(NEVER, Ordering::Relaxed);
        self.waiting_since_ms.store(self.now_ms(), Ordering::Relaxed);
    }

    fn head_is_complete(&self) {
        self.waiting_since_ms.store(NEVER, Ordering::Relaxed);
        self.served_before.store(true, Ordering::Relaxed);
    }

    fn bytes_arrived(&self) {
        let waiting = self.waiting_since_ms.load(Ordering::Relaxed) != NEVER;
        if waiting && self.first_byte_ms.load(Ordering::Relaxed) == NEVER {
            self.first_byte_ms.store(self.now_ms(), Ordering::Relaxed);
        }
    }

    /// Never asks to look again later than `head` from now, so that a head which begins meanwhile is not missed.
    pub(super) fn due(&self, head: Duration, idle: Duration) -> Due {
        let waiting_since = self.waiting_since_ms.load(Ordering::Relaxed);
        if waiting_since == NEVER {
            return Due::In(head);
        }
        let first_byte = self.first_byte_ms.load(Ordering::Relaxed);
        let served_before = self.served_before.load(Ordering::Relaxed);
        let (since, allowed, late) = match first_byte {
            NEVER if served_before => (waiting_since, idle, Due::Idle),
            NEVER => (waiting_since, head, Due::Idle),
            _ => (first_byte, head, Due::SlowHead),
        };
        let waited = Duration::from_millis(self.now_ms().saturating_sub(since));
        match allowed.checked_sub(waited) {
            None | Some(Duration::ZERO) => late,
            Some(left) => Due::In(left.min(head)),
        }
    }
}

/// The timer that hyper gets: it notes, and never fires.
#[derive(Debug)]
pub(super) struct NotingTimer(pub(super) Arc<Progress>);

impl Timer for NotingTimer {
    fn sleep(&self, _: Duration) -> Pin<Box<dyn Sleep>> {
        self.0.wait_for_head();
        Box::pin(Note(self.0.clone()))
    }

    fn sleep_until(&self, _: std::time::Instant) -> Pin<Box<dyn Sleep>> {
        self.sleep(Duration::ZERO)
    }

    fn now(&self) -> std::time::Instant {
        self.0.began.into_std()
    }

    fn reset(&self, _: &mut Pin<Box<dyn Sleep>>, _: std::time::Instant) {
        self.0.wait_for_head();
    }
}

/// Lives from when hyper begins to wait for a head until it has one.
struct Note(Arc<Progress>);

impl Future for Note {
    type Output = ();
    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }
}

impl Sleep for Note {}

impl Drop for Note {
    fn drop(&mut self) {
        self.0.head_is_complete();
    }
}

/// A stream that notes the first byte of each head, and when everything is written.
#[derive(Debug)]
pub(super) struct Watched<I> {
    pub(super) io: I,
    pub(super) progress: Arc<Progress>,
    pub(super) connection: Connection,
}

impl<I: AsyncRead + Unpin> AsyncRead for Watched<I> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.io).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.progress.bytes_arrived();
        }
        read
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Watched<I> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        outlet::poll_flush(&mut this.io, cx, &this.connection)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
