//! A committed stream on its way to the client.
//!
//! [`RelayBody`] is polled by hyper, and gives another piece only when the client's socket has taken the one before: that
//! is the back-pressure, and there is no queue. While a client is behind, pieces are small and the buffers between them
//! are given back, so that thousands who hardly read cost little more than as many silent ones. However it ends (whole,
//! broken, cut, or dropped because the client left), exactly one [`RelayEnd`] reaches the task that owns the money. Timers
//! live in that task; it cuts a stream by [`Reins`]. What is already there is written together; nothing is delayed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::task::AtomicWaker;
use tokio::sync::oneshot;
use tokio::time::Instant;

use weir_providers::AnswerBody;
use weir_runtime::failpoint;
use weir_runtime::listener::Connection;
use weir_wire::envelope::keep_alive;
use weir_wire::usage::Extracted;
use weir_wire::{Dialect, StreamFacts, Translator};

use crate::continuation::{Broken, Going};
use crate::course::{BreakReason, Course, RelayOutcome};
use crate::drain::Rest;

/// Everything the owner of the money must know of a stream.
pub(crate) struct RelayEnd {
    pub outcome: RelayOutcome,
    pub facts: StreamFacts,
    /// The usage that is a bill if an error was the last word.
    pub billed_at_error: Option<Extracted>,
    /// What the provider may still send, when the client left.
    pub rest: Option<Rest>,
    /// The body waits for another deployment to go on, where policy says so.
    pub broken: Option<Broken>,
}

/// What the owner's timers tell the body to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Cut {
    ReadTimeout = 1,
    DeadlineExceeded = 2,
    /// The usage did not come in time after the finish: end well.
    EnoughWaited = 3,
}

/// The owner's hold on a body that hyper polls: what it last did, and the means to end it.
#[derive(Debug)]
pub(crate) struct Reins {
    started: Instant,
    /// What the client's socket takes; absent where a tape is read and not a socket written.
    outlet: Option<Connection>,
    waker: AtomicWaker,
    cut: AtomicU8,
    ping: AtomicBool,
    /// Ms since `started`, of the last byte from the provider, or of when it was asked again after a pause.
    last_read_ms: AtomicU64,
    /// Ms since `started`, of the last time that somebody took bytes or asked for some.
    last_polled_ms: AtomicU64,
    /// Whether the body waits for the provider; otherwise it waits for the client.
    awaits_provider: AtomicBool,
    is_finished: AtomicBool,
}

/// A reading of the reins.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Progress {
    pub since_read: Duration,
    /// How long the client has taken nothing, when bytes wait for it.
    pub stalled_for: Option<Duration>,
    /// Whether every choice finished and only the usage is awaited.
    pub is_finished: bool,
}

impl Reins {
    pub(crate) fn new(outlet: Option<Connection>) -> Arc<Self> {
        Arc::new(Self {
            started: Instant::now(),
            outlet,
            waker: AtomicWaker::new(),
            cut: AtomicU8::new(0),
            ping: AtomicBool::new(false),
            last_read_ms: AtomicU64::new(0),
            last_polled_ms: AtomicU64::new(0),
            awaits_provider: AtomicBool::new(false),
            is_finished: AtomicBool::new(false),
        })
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    pub(crate) fn progress(&self) -> Progress {
        let now_ms = self.now_ms();
        let since = |at: &AtomicU64| Duration::from_millis(now_ms.saturating_sub(at.load(Ordering::Acquire)));
        let waits_for_client = !self.awaits_provider.load(Ordering::Acquire);
        // What stands in the socket counts, whoever is waited for.
        let stands_for = self.outlet.as_ref().and_then(Connection::stands_for);
        let stalled_for = stands_for.or_else(|| waits_for_client.then(|| since(&self.last_polled_ms)));
        Progress {
            since_read: since(&self.last_read_ms),
            stalled_for,
            is_finished: self.is_finished.load(Ordering::Acquire),
        }
    }

    pub(crate) fn cut(&self, cut: Cut) {
        self.cut.store(cut as u8, Ordering::Release);
        self.waker.wake();
    }

    /// Lets a body look again that waits for its client: where all clients together hold too much, nobody else tells it
    /// when they do no more.
    pub(crate) fn nudge(&self) {
        self.waker.wake();
    }

    /// Lets the body write one comment.
    pub(crate) fn ping(&self) {
        self.ping.store(true, Ordering::Release);
        self.waker.wake();
    }

    fn taken_cut(&self) -> Option<Cut> {
        match self.cut.load(Ordering::Acquire) {
            1 => Some(Cut::ReadTimeout),
            2 => Some(Cut::DeadlineExceeded),
            3 => Some(Cut::EnoughWaited),
            _ => None,
        }
    }
}

/// How many bytes are gathered into one write when they are already there: a burst of chunks. The last read comes on top.
const GATHER_BYTES: usize = 8 * 1024;

/// The same for a client that is behind: what it leaves unwritten is kept. Less than one read.
const GATHER_BEHIND_BYTES: usize = 2 * 1024;

/// What the events of one read grow by when ids and names of models are replaced: of each a share, and of one the rest.
const EDITS_SHARE: usize = 8;
const EDITS_BYTES: usize = 128;

/// The provider's stream and what turns it into the client's, in one.
pub struct RelayBody {
    upstream: Option<AnswerBody>,
    /// Present until the end was reported.
    reading: Option<Reading>,
    out: BytesMut,
    reins: Arc<Reins>,
    is_over: bool,
    /// Whether the client takes less than it is given, so that nothing was read since.
    is_held_up: bool,
    dialect: Dialect,
    request_id: Arc<str>,
    /// Where policy says to go on with a broken stream.
    going: Option<Box<Going>>,
}

struct Reading {
    course: Course,
    end: oneshot::Sender<RelayEnd>,
}

impl std::fmt::Debug for RelayBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RelayBody").field("is_over", &self.is_over).finish_non_exhaustive()
    }
}

/// A stream at the moment of commitment.
pub(crate) struct Opened {
    pub upstream: AnswerBody,
    pub stream: Translator,
    /// The client's form of the events up to now.
    pub held: BytesMut,
    /// Whether the provider's own end was among them.
    pub has_ended: bool,
    /// The client's.
    pub dialect: Dialect,
    pub request_id: Arc<str>,
}

impl RelayBody {
    /// Takes over an opened stream, on its way to `outlet`. The receiver gets its end, on whatever path.
    pub(crate) fn new(
        opened: Opened,
        mut going: Option<Box<Going>>,
        outlet: Option<Connection>,
    ) -> (Self, Arc<Reins>, oneshot::Receiver<RelayEnd>) {
        let (end, receiver) = oneshot::channel();
        let reins = Reins::new(outlet);
        reins.is_finished.store(opened.stream.is_complete(), Ordering::Release);
        if let Some(going) = &mut going {
            going.delivered(&opened.held);
        }
        let mut body = Self {
            upstream: Some(opened.upstream),
            reading: Some(Reading { course: Course::new(opened.stream, Arc::clone(&opened.request_id)), end }),
            out: opened.held,
            reins: Arc::clone(&reins),
            is_over: false,
            is_held_up: false,
            dialect: opened.dialect,
            request_id: opened.request_id,
            going,
        };
        if opened.has_ended {
            body.finish(RelayOutcome::Complete);
        }
        (body, reins, receiver)
    }

    pub(crate) fn poll_bytes(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let now_ms = self.reins.now_ms();
        self.reins.last_polled_ms.store(now_ms, Ordering::Release);
        if self.is_over && self.out.is_empty() && !self.waits_for_rest() {
            // The end of the body goes out together with its last piece.
            return Poll::Ready(None);
        }
        if self.reins.outlet.as_ref().is_some_and(|outlet| !outlet.has_room()) {
            self.hold_up(cx);
            return Poll::Pending;
        }
        if std::mem::take(&mut self.is_held_up) {
            // The time in which nobody asked is none of the provider's.
            self.reins.last_read_ms.store(now_ms, Ordering::Release);
        }
        loop {
            self.await_rest(cx, now_ms);
            if self.is_over {
                break;
            }
            self.fill(cx, now_ms);
            // A stream that broke just now waits for its rest, which must know whom to wake.
            if !self.is_over || !self.waits_for_rest() {
                break;
            }
        }
        if !self.out.is_empty() {
            // A test kills the process here after some pieces went out.
            let _nothing_to_fail = failpoint::hit("relay.piece");
            self.reins.awaits_provider.store(false, Ordering::Release);
            if let Some(outlet) = &self.reins.outlet {
                outlet.give(self.out.len());
            }
            // With all of its memory: a buffer that goes on would be as large as the largest piece, for every later one.
            return Poll::Ready(Some(std::mem::take(&mut self.out).freeze()));
        }
        if self.is_over && !self.waits_for_rest() {
            return Poll::Ready(None);
        }
        self.reins.awaits_provider.store(true, Ordering::Release);
        Poll::Pending
    }

    /// Waits for the client, with as little memory as can be. What the owner's timers say is heeded all the same.
    fn hold_up(&mut self, cx: &Context<'_>) {
        self.reins.awaits_provider.store(false, Ordering::Release);
        if !self.is_over {
            self.heed(cx);
        }
        if self.is_behind() && !std::mem::replace(&mut self.is_held_up, true) {
            if self.out.is_empty() {
                self.out = BytesMut::new();
            }
            if let Some(upstream) = &mut self.upstream {
                upstream.let_go();
            }
        }
    }

    fn is_behind(&self) -> bool {
        self.reins.outlet.as_ref().is_some_and(Connection::is_behind)
    }

    /// Ends the stream where its owner's timers say so.
    fn heed(&mut self, cx: &Context<'_>) {
        self.reins.waker.register(cx.waker());
        match self.reins.taken_cut() {
            None => {}
            Some(Cut::ReadTimeout) => self.finish(RelayOutcome::Broke(BreakReason::ReadTimeout)),
            Some(Cut::DeadlineExceeded) => self.finish(RelayOutcome::Broke(BreakReason::DeadlineExceeded)),
            Some(Cut::EnoughWaited) => self.finish(RelayOutcome::Complete),
        }
    }

    /// Reads what is there, up to the bound, into `out`.
    fn fill(&mut self, cx: &mut Context<'_>, now_ms: u64) {
        self.heed(cx);
        if self.is_over {
            return;
        }
        self.take_events();
        let is_behind = self.is_behind();
        let most = if is_behind { GATHER_BEHIND_BYTES } else { GATHER_BYTES };
        while !self.is_over && self.out.len() < most {
            let (Some(upstream), Some(reading)) = (self.upstream.as_mut(), self.reading.as_mut()) else { return };
            if is_behind {
                upstream.read_little();
            }
            match upstream.poll_next(cx) {
                Poll::Pending => {
                    if self.reins.ping.swap(false, Ordering::AcqRel) && self.out.is_empty() {
                        self.out.extend_from_slice(keep_alive(self.dialect));
                    }
                    return;
                }
                Poll::Ready(Some(Ok(bytes))) => {
                    self.reins.last_read_ms.store(now_ms, Ordering::Release);
                    reading.course.push(bytes);
                    // Growing event by event would end at twice of what came.
                    let held_bytes = reading.course.stream.held_bytes();
                    self.out.reserve(held_bytes + held_bytes / EDITS_SHARE + EDITS_BYTES);
                    self.take_events();
                }
                Poll::Ready(Some(Err(_))) => self.end_of_upstream(BreakReason::TransportError),
                Poll::Ready(None) => self.end_of_upstream(BreakReason::StreamIncomplete),
            }
        }
    }

    /// Relays every whole event that is there, up to the end.
    fn take_events(&mut self) {
        let Some(reading) = self.reading.as_mut() else { return };
        let course = &mut reading.course;
        match written(&mut self.going, &mut self.out, |out| course.take_events(out)) {
            Some(outcome) => self.finish(outcome),
            None => self.reins.is_finished.store(course.stream.is_complete(), Ordering::Release),
        }
    }

    fn end_of_upstream(&mut self, otherwise: BreakReason) {
        let Some(reading) = self.reading.as_mut() else { return };
        let course = &mut reading.course;
        let outcome = written(&mut self.going, &mut self.out, |out| course.close(otherwise, out));
        self.finish(outcome);
    }

    /// Writes the one terminal that the outcome has and reports the end. The provider's connection closes here, unless the
    /// client left: then its owner decides.
    fn finish(&mut self, outcome: RelayOutcome) {
        let Some(Reading { mut course, end }) = self.reading.take() else { return };
        self.is_over = true;
        let upstream = self.upstream.take();
        let mut broken = None;
        match (&outcome, &mut self.going) {
            (RelayOutcome::Broke(reason), Some(going)) => {
                broken = going.broke(reason, course.stream.chunks_delivered());
                if broken.is_none() {
                    going.fail(&self.request_id, &mut self.out);
                }
            }
            (RelayOutcome::Complete | RelayOutcome::Broke(_) | RelayOutcome::ClientLeft, going) => {
                written(going, &mut self.out, |out| course.finish(&outcome, out));
            }
        }
        let stream = course.stream;
        let (facts, billed_at_error) = (stream.facts(), stream.billed_usage());
        let rest = match (&outcome, upstream) {
            (RelayOutcome::ClientLeft, Some(upstream)) => {
                Some(Rest::Stream { upstream, stream: Box::new(stream), provider_id: None })
            }
            (RelayOutcome::ClientLeft, None) | (RelayOutcome::Complete | RelayOutcome::Broke(_), _) => None,
        };
        // The owner waits for it, unless the process is stopping.
        let _ = end.send(RelayEnd { outcome, facts, billed_at_error, rest, broken });
    }

    fn waits_for_rest(&self) -> bool {
        self.going.as_ref().is_some_and(|going| going.waits())
    }

    /// Looks whether somebody goes on with the stream that broke, or nobody does.
    fn await_rest(&mut self, cx: &mut Context<'_>, now_ms: u64) {
        let Some(going) = &mut self.going else { return };
        match going.poll_rest(cx) {
            Poll::Pending => {}
            Poll::Ready(None) => going.fail(&self.request_id, &mut self.out),
            Poll::Ready(Some((opened, end))) => {
                self.reins.last_read_ms.store(now_ms, Ordering::Release);
                self.reins.cut.store(0, Ordering::Release);
                self.reins.is_finished.store(opened.stream.is_complete(), Ordering::Release);
                going.take(&opened.held, &mut self.out);
                self.upstream = Some(opened.upstream);
                let course = Course::new(opened.stream, Arc::clone(&self.request_id));
                self.reading = Some(Reading { course, end });
                self.is_over = false;
                if opened.has_ended {
                    self.finish(RelayOutcome::Complete);
                }
            }
        }
    }
}

impl Drop for RelayBody {
    fn drop(&mut self) {
        self.finish(RelayOutcome::ClientLeft);
    }
}

/// What `write` appends to the client's stream; where policy may go on with it, it is also remembered, and made the rest
/// of a stream that broke.
fn written<T>(going: &mut Option<Box<Going>>, out: &mut BytesMut, write: impl FnOnce(&mut BytesMut) -> T) -> T {
    match going {
        None => write(out),
        Some(going) => {
            let mut piece = BytesMut::new();
            let result = write(&mut piece);
            going.take(&piece, out);
            result
        }
    }
}
