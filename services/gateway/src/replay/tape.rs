//! One answer as it came, piece by piece, and who reads it: a value behind one lock.
//!
//! While it fits the bounds, nothing of it goes and its call runs at the provider's pace. Beyond them the tape only
//! passes on: what all have read goes, the first reader that is alive sets the pace, and one that falls behind it by more
//! than the tape may hold is cut. So the client who made the call is held up by nobody who came later.

use std::collections::{HashMap, VecDeque};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, watch};
use tokio::time::Instant;

use weir_domain::ids::ReservationId;
use weir_runtime::listener::Connection;

/// What a piece takes beside its bytes.
const PIECE_BYTES: usize = 64;
/// How far a tape that only passes on reads ahead of who sets the pace: what a relay gathers for one write.
const AHEAD_BYTES: usize = 64 * 1024;

/// A reader that took nothing for so long sets no pace while others wait: a healthy client pauses for less.
const PACE_PATIENCE: Duration = Duration::from_secs(2);

/// Names a reader of one tape; who came first has the lowest.
pub(super) type ReaderId = u64;

#[derive(Debug)]
pub(super) struct Tape {
    /// Of the request that the answer belongs to.
    fingerprint: [u8; 32],
    state: Mutex<State>,
    /// Wakes the recorder: somebody came, read or left.
    stirred: Notify,
    /// Whether the call may have been executed; `None` until it has closed.
    executed: watch::Sender<Option<bool>>,
}

#[derive(Debug)]
struct State {
    reservation: Option<ReservationId>,
    head: Option<Head>,
    pieces: VecDeque<Bytes>,
    /// The number of the first piece that is still there.
    first: u64,
    /// What the pieces take.
    bytes: usize,
    end: Option<End>,
    /// The answer is too long to be kept: it is only passed on.
    is_passing: bool,
    readers: HashMap<ReaderId, Reading>,
    next_reader: ReaderId,
    /// Since when nobody reads.
    deserted_at: Option<Instant>,
    /// For the memory of the tape.
    permit: Option<OwnedSemaphorePermit>,
    /// What of it the pieces may take.
    granted: usize,
}

/// The head of an answer.
#[derive(Debug, Clone)]
pub(super) struct Head {
    pub status: StatusCode,
    pub headers: HeaderMap,
    /// Of the body, where it is known.
    pub length: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Whole,
    /// The call was given up, or died.
    Vanished,
}

#[derive(Debug)]
struct Reading {
    /// The number of the next piece.
    next: u64,
    waker: Option<Waker>,
    /// Whether it waits for the recorder; otherwise its client is being written to.
    waits: bool,
    polled_at: Instant,
    connection: Option<Connection>,
}

/// What somebody who comes again finds.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Join {
    Joined {
        id: ReaderId,
        /// Whether the answer was whole already.
        is_ended: bool,
    },
    TooLong,
    OtherBody,
    /// An error, and nobody knows yet whether anything was executed.
    Undecided,
    /// The call came to nothing.
    Free,
}

impl Tape {
    pub(super) fn new(fingerprint: [u8; 32], permit: OwnedSemaphorePermit) -> Self {
        let state = State {
            reservation: None,
            head: None,
            pieces: VecDeque::new(),
            first: 0,
            bytes: 0,
            end: None,
            is_passing: false,
            readers: HashMap::new(),
            next_reader: 0,
            deserted_at: None,
            permit: Some(permit),
            granted: 0,
        };
        Self { fingerprint, state: Mutex::new(state), stirred: Notify::new(), executed: watch::Sender::new(None) }
    }

    pub(super) fn admitted(&self, reservation: ReservationId) {
        self.state.lock().reservation = Some(reservation);
    }

    pub(super) fn reservation(&self) -> Option<ReservationId> {
        self.state.lock().reservation
    }

    pub(super) fn decide(&self, executed: bool) {
        self.executed.send_replace(Some(executed));
    }

    /// Waits until the call has closed; says whether it may have been executed.
    pub(super) async fn decided(&self) -> bool {
        let mut executed = self.executed.subscribe();
        // The sender lives in this tape.
        executed.wait_for(Option::is_some).await.ok().and_then(|decided| *decided).unwrap_or(false)
    }

    /// Adds the reader who made the call.
    pub(super) fn first(&self, connection: Option<Connection>) -> ReaderId {
        self.state.lock().add(connection)
    }

    /// Adds a reader who came again, where the answer can be read from its start.
    pub(super) fn join(&self, fingerprint: &[u8; 32], connection: Option<Connection>) -> Join {
        let executed = *self.executed.borrow();
        let mut state = self.state.lock();
        let is_error = state.head.as_ref().is_some_and(|head| !head.status.is_success());
        match (state.end, executed) {
            // Not executed; or given up by this gateway, and the store knows better what became of it.
            (_, Some(false)) | (Some(End::Vanished), Some(true)) => Join::Free,
            _ if self.fingerprint != *fingerprint => Join::OtherBody,
            (Some(End::Vanished), None) => Join::Undecided,
            (Some(End::Whole) | None, None) if is_error => Join::Undecided,
            (Some(End::Whole) | None, _) if state.is_passing => Join::TooLong,
            (end @ (Some(End::Whole) | None), _) => {
                let id = state.add(connection);
                self.stirred.notify_one();
                Join::Joined { id, is_ended: end.is_some() }
            }
        }
    }

    /// The head of the answer; `None` when there will be none.
    pub(super) fn poll_head(&self, id: ReaderId, cx: &mut Context<'_>) -> Poll<Option<Head>> {
        let mut state = self.state.lock();
        if let Some(head) = &state.head {
            return Poll::Ready(Some(head.clone()));
        }
        if state.end.is_some() {
            return Poll::Ready(None);
        }
        state.wait(id, cx)
    }

    /// The next piece of the body; `None` at its end. A reader that was cut waits for its connection to be reset: an end
    /// in good order would be a lie.
    pub(super) fn poll_piece(&self, id: ReaderId, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let mut state = self.state.lock();
        let state = &mut *state;
        let Some(reading) = state.readers.get_mut(&id) else { return Poll::Pending };
        reading.polled_at = Instant::now();
        let at = usize::try_from(reading.next.saturating_sub(state.first)).unwrap_or(usize::MAX);
        let Some(piece) = state.pieces.get(at).cloned() else {
            return match state.end {
                Some(End::Whole) => Poll::Ready(None),
                Some(End::Vanished) | None => state.wait(id, cx),
            };
        };
        reading.next += 1;
        reading.waits = false;
        if state.is_passing {
            state.trim();
            self.stirred.notify_one();
        }
        Poll::Ready(Some(piece))
    }

    pub(super) fn leave(&self, id: ReaderId) {
        if self.state.lock().remove(id).is_some() {
            self.stirred.notify_one();
        }
    }

    /// Waits until somebody came, read or left.
    pub(super) async fn stirred(&self) {
        self.stirred.notified().await;
    }

    pub(super) fn put_head(&self, head: Head) {
        let mut state = self.state.lock();
        state.head = Some(head);
        state.wake();
    }

    /// Whether `bytes` more could be kept, as far as this tape's own bound goes.
    pub(super) fn has_room(&self, bytes: usize, bound: usize) -> bool {
        let state = self.state.lock();
        !state.is_passing && state.bytes + bytes + PIECE_BYTES <= bound
    }

    /// What must be asked for before a piece of `bytes` can be kept.
    pub(super) fn lacks(&self, bytes: usize) -> usize {
        let state = self.state.lock();
        (state.bytes + bytes + PIECE_BYTES).saturating_sub(state.granted)
    }

    pub(super) fn grant(&self, permit: OwnedSemaphorePermit, bytes: usize) {
        let mut state = self.state.lock();
        match &mut state.permit {
            Some(held) => held.merge(permit),
            held @ None => *held = Some(permit),
        }
        state.granted += bytes;
    }

    /// From now on what all have read goes.
    pub(super) fn pass_on(&self) {
        let mut state = self.state.lock();
        state.is_passing = true;
        state.trim();
    }

    pub(super) fn put(&self, piece: Bytes) {
        let mut state = self.state.lock();
        if state.is_passing {
            state.cut_laggards(piece.len() + PIECE_BYTES);
        }
        state.bytes += piece.len() + PIECE_BYTES;
        state.pieces.push_back(piece);
        state.wake();
    }

    /// Whether the recorder may take more of the answer.
    pub(super) fn wants_more(&self) -> bool {
        let state = self.state.lock();
        !state.is_passing || state.ahead() < AHEAD_BYTES
    }

    /// Until when a call that nobody reads goes on: for `grace` if its answer can be read again, else not at all.
    pub(super) fn given_up_at(&self, grace: Duration) -> Option<Instant> {
        self.state.lock().given_up_at(grace)
    }

    /// Gives the call up if it is time to; nobody can join from then on.
    pub(super) fn give_up(&self, grace: Duration) -> bool {
        let mut state = self.state.lock();
        let is_time = state.given_up_at(grace).is_some_and(|at| at <= Instant::now());
        if is_time {
            state.end = Some(End::Vanished);
        }
        is_time
    }

    pub(super) fn end(&self) {
        self.finish(End::Whole);
    }

    pub(super) fn vanish(&self) {
        self.finish(End::Vanished);
    }

    fn finish(&self, end: End) {
        let mut state = self.state.lock();
        state.end = Some(end);
        state.wake();
    }

    /// Whether the whole answer is here from its start.
    pub(super) fn is_kept(&self) -> bool {
        let state = self.state.lock();
        state.end == Some(End::Whole) && !state.is_passing
    }

    pub(super) fn is_deserted(&self) -> bool {
        self.state.lock().deserted_at.is_some()
    }

    /// When the first reader whose client takes nothing will have taken nothing for `bound`, or sets the pace no more.
    pub(super) fn next_stall(&self, bound: Duration) -> Option<Instant> {
        let state = self.state.lock();
        let now = Instant::now();
        let stalls = state.readers.values().filter_map(|reading| reading.stalls_at(bound));
        let paces = state.readers.values().filter_map(|reading| reading.stalls_at(PACE_PATIENCE));
        stalls.chain(paces.filter(|at| state.is_passing && *at > now)).min()
    }

    /// Resets the clients that took nothing for `bound`: only the connection itself can be ended, because a blocked
    /// socket asks for nothing.
    pub(super) fn cut_stalled(&self, bound: Duration) {
        let mut state = self.state.lock();
        let now = Instant::now();
        let is_stalled = |reading: &Reading| reading.stalls_at(bound).is_some_and(|at| at <= now);
        let stalled: Vec<ReaderId> =
            state.readers.iter().filter(|(_, reading)| is_stalled(reading)).map(|(id, _)| *id).collect();
        for id in stalled {
            state.cut(id);
        }
    }

    /// Gives the memory back, unless somebody reads.
    pub(super) fn clear(&self) -> bool {
        let mut state = self.state.lock();
        if !state.readers.is_empty() {
            return false;
        }
        state.is_passing = true;
        state.pieces.clear();
        state.permit = None;
        self.stirred.notify_one();
        true
    }
}

impl Reading {
    /// Bytes wait for its client: since it last asked for some, or its socket last took some.
    fn stalls_at(&self, bound: Duration) -> Option<Instant> {
        let moved_at = self.connection.as_ref().map_or(self.polled_at, Connection::moved_at);
        (!self.waits).then(|| self.polled_at.max(moved_at) + bound)
    }
}

impl State {
    fn add(&mut self, connection: Option<Connection>) -> ReaderId {
        let id = self.next_reader;
        self.next_reader += 1;
        let reading = Reading { next: self.first, waker: None, waits: true, polled_at: Instant::now(), connection };
        self.readers.insert(id, reading);
        self.deserted_at = None;
        id
    }

    fn wait<T>(&mut self, id: ReaderId, cx: &Context<'_>) -> Poll<T> {
        if let Some(reading) = self.readers.get_mut(&id) {
            reading.waits = true;
            reading.waker = Some(cx.waker().clone());
        }
        Poll::Pending
    }

    fn wake(&mut self) {
        for reading in self.readers.values_mut() {
            if let Some(waker) = reading.waker.take() {
                waker.wake();
            }
        }
    }

    fn remove(&mut self, id: ReaderId) -> Option<Reading> {
        let reading = self.readers.remove(&id)?;
        if self.readers.is_empty() {
            self.deserted_at = Some(Instant::now());
        }
        if self.is_passing {
            self.trim();
        }
        Some(reading)
    }

    fn cut(&mut self, id: ReaderId) {
        if let Some(Reading { connection: Some(connection), .. }) = self.remove(id) {
            connection.reset();
        }
    }

    fn given_up_at(&self, grace: Duration) -> Option<Instant> {
        self.deserted_at.map(|since| if self.is_passing { since } else { since + grace })
    }

    /// Drops what all have read.
    fn trim(&mut self) {
        let slowest = self.readers.values().map(|reading| reading.next).min();
        while slowest.is_none_or(|slowest| self.first < slowest) {
            let Some(piece) = self.pieces.pop_front() else { return };
            self.first += 1;
            self.bytes = self.bytes.saturating_sub(piece.len() + PIECE_BYTES);
        }
    }

    /// Makes room for `bytes` at the cost of who is behind the pace.
    fn cut_laggards(&mut self, bytes: usize) {
        let most = self.granted.max(2 * AHEAD_BYTES);
        while self.bytes + bytes > most {
            let pace = self.pace();
            let slowest = self.readers.iter().min_by_key(|(_, reading)| reading.next);
            let Some((id, next)) = slowest.map(|(id, reading)| (*id, reading.next)) else { return };
            if next >= pace {
                return;
            }
            self.cut(id);
        }
    }

    /// The next piece of the reader that sets the pace.
    fn pace(&self) -> u64 {
        let now = Instant::now();
        let is_alive = |reading: &Reading| reading.stalls_at(PACE_PATIENCE).is_none_or(|at| at > now);
        let alive = self.readers.iter().filter(|(_, reading)| is_alive(reading)).min_by_key(|(id, _)| **id);
        let setter = alive.or_else(|| self.readers.iter().min_by_key(|(id, _)| **id));
        setter.map_or(self.first, |(_, reading)| reading.next)
    }

    /// What the reader that sets the pace has not taken.
    fn ahead(&self) -> usize {
        let taken = usize::try_from(self.pace().saturating_sub(self.first)).unwrap_or(usize::MAX);
        self.pieces.iter().skip(taken).map(|piece| piece.len() + PIECE_BYTES).sum()
    }
}
