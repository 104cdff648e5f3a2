//! The client's side of an answer: one place that knows whether its status line is out.
//!
//! Until content exists, not even the status is sent, so that exhaustion is a true HTTP status. Only after
//! `status_after` a silent stream gets its 200 and comments, because load balancers cut silent connections; from then
//! on an exhaustion is an error event.

use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Response};
use http_body::{Body, Frame, SizeHint};
use tokio::sync::oneshot;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use weir_domain::ids::ReservationId;
use weir_domain::quota::RateStandings;
use weir_wire::Dialect;
use weir_wire::envelope::{Break, keep_alive, stream_error_event};

use crate::continuation::Resume;
use crate::headers::{X_WEIR_RESERVATION, insert, insert_rates, insert_request_id};
use crate::relay::RelayBody;
use crate::replay::ReplayBody;
use crate::respond::Refusal;

/// What hyper sends to a client.
pub enum ClientBody {
    /// Everything there is.
    Whole(Option<Bytes>),
    Relay(Box<RelayBody>),
    /// The status is out, the content is not there yet.
    Late(Box<LateBody>),
    /// What was recorded for an `Idempotency-Key`, and still is.
    Replay(Box<ReplayBody>),
}

impl fmt::Debug for ClientBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Whole(_) => "Whole",
            Self::Relay(_) => "Relay",
            Self::Late(_) => "Late",
            Self::Replay(_) => "Replay",
        })
    }
}

impl ClientBody {
    pub(crate) fn whole(bytes: Bytes) -> Self {
        Self::Whole((!bytes.is_empty()).then_some(bytes))
    }
}

impl Body for ClientBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match &mut *self {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Relay(relay) => relay.poll_bytes(cx).map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes)))),
            Self::Late(late) => late.poll_bytes(cx).map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes)))),
            Self::Replay(replay) => replay.poll_bytes(cx).map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Self::Relay(_) | Self::Late(_) => SizeHint::default(),
            Self::Replay(replay) => replay.length().map_or_else(SizeHint::default, SizeHint::with_exact),
        }
    }
}

/// What comes after an early status line.
#[derive(Debug)]
enum Next {
    Relay(Box<RelayBody>),
    /// The event that says that nothing will come.
    Broken(Bytes),
}

/// A body that keeps a silent connection open until there is something to say.
#[derive(Debug)]
pub struct LateBody {
    next: oneshot::Receiver<Next>,
    comments: Option<Interval>,
    comment: &'static [u8],
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Waiting,
    Relaying(Box<RelayBody>),
    Over,
}

impl LateBody {
    fn poll_bytes(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        loop {
            match &mut self.stage {
                Stage::Relaying(relay) => return relay.poll_bytes(cx),
                Stage::Over => return Poll::Ready(None),
                Stage::Waiting => {}
            }
            match Pin::new(&mut self.next).poll(cx) {
                Poll::Ready(Ok(Next::Relay(relay))) => self.stage = Stage::Relaying(relay),
                Poll::Ready(Ok(Next::Broken(event))) => {
                    self.stage = Stage::Over;
                    return Poll::Ready(Some(event));
                }
                Poll::Ready(Err(_)) => self.stage = Stage::Over,
                Poll::Pending => {
                    let ticked = self.comments.as_mut().is_some_and(|comments| comments.poll_tick(cx).is_ready());
                    return if ticked { Poll::Ready(Some(Bytes::from_static(self.comment))) } else { Poll::Pending };
                }
            }
        }
    }
}

/// The way to the client, held by the task that owns the money.
#[derive(Debug)]
pub(crate) struct Client {
    dialect: Dialect,
    request_id: std::sync::Arc<str>,
    /// When the request came, by which resets are told as times of day.
    received_ms: i64,
    admitted: Option<(ReservationId, RateStandings)>,
    state: State,
}

#[derive(Debug)]
enum State {
    /// No byte is out.
    Silent(oneshot::Sender<Response<ClientBody>>),
    /// The status is out, content is not.
    StatusSent(oneshot::Sender<Next>),
    /// The answer is on its way, or nobody listens.
    Answered,
    /// The answer broke off, and its body waits for the rest.
    Broken(oneshot::Sender<Box<Resume>>),
}

impl Client {
    pub(crate) const fn new(
        dialect: Dialect,
        request_id: std::sync::Arc<str>,
        received_ms: i64,
        answer: oneshot::Sender<Response<ClientBody>>,
    ) -> Self {
        Self { dialect, request_id, received_ms, admitted: None, state: State::Silent(answer) }
    }

    /// From now on every answer names the reservation and tells how the rates stand.
    pub(crate) const fn admitted(&mut self, reservation: ReservationId, rates: RateStandings) {
        self.admitted = Some((reservation, rates));
    }

    fn insert_headers(&self, headers: &mut HeaderMap) {
        insert_request_id(headers, self.dialect, &self.request_id);
        if let Some((reservation, rates)) = &self.admitted {
            insert(headers, X_WEIR_RESERVATION, &reservation.to_string());
            insert_rates(headers, self.dialect, rates, self.received_ms);
        }
    }

    /// Waits until the client is gone. Never returns while an answer is on its way: the body knows then.
    pub(crate) async fn gone(&mut self) {
        match &mut self.state {
            State::Silent(answer) => answer.closed().await,
            State::StatusSent(next) => next.closed().await,
            State::Broken(rest) => rest.closed().await,
            State::Answered => std::future::pending().await,
        }
    }

    pub(crate) const fn is_silent(&self) -> bool {
        matches!(self.state, State::Silent(_))
    }

    /// Answers with a complete response; `false` when nobody listens any more.
    pub(crate) fn answer(&mut self, mut response: Response<ClientBody>) -> bool {
        self.insert_headers(response.headers_mut());
        match std::mem::replace(&mut self.state, State::Answered) {
            State::Silent(answer) => answer.send(response).is_ok(),
            State::StatusSent(_) | State::Answered | State::Broken(_) => false,
        }
    }

    /// Sends the status line of a stream that has no content yet; comments follow every `comment_every`.
    pub(crate) fn send_status(&mut self, headers: HeaderMap, comment_every: Duration) {
        let (next, receiver) = oneshot::channel();
        let comments = (!comment_every.is_zero()).then(|| {
            let mut ticks = interval_at(Instant::now(), comment_every);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            ticks
        });
        let late = LateBody { next: receiver, comments, comment: keep_alive(self.dialect), stage: Stage::Waiting };
        let response = stream_response(headers, ClientBody::Late(Box::new(late)));
        if self.answer(response) {
            self.state = State::StatusSent(next);
        }
    }

    /// Hands over a stream whose first content is there; `false` when nobody listens any more.
    pub(crate) fn stream(&mut self, headers: HeaderMap, relay: RelayBody) -> bool {
        let relay = Box::new(relay);
        match std::mem::replace(&mut self.state, State::Answered) {
            State::Silent(answer) => {
                let mut response = stream_response(headers, ClientBody::Relay(relay));
                self.insert_headers(response.headers_mut());
                answer.send(response).is_ok()
            }
            State::StatusSent(next) => next.send(Next::Relay(relay)).is_ok(),
            State::Answered | State::Broken(_) => false,
        }
    }

    /// Says that there will be no content: by status while none is out, otherwise by the error event.
    pub(crate) fn refuse(&mut self, refusal: &Refusal, headers: HeaderMap) {
        match std::mem::replace(&mut self.state, State::Answered) {
            State::Silent(answer) => {
                // Nobody listening is as good as told.
                let mut response = refusal.response(self.dialect, &self.request_id, headers);
                self.insert_headers(response.headers_mut());
                if let Some(rates) = refusal.rates() {
                    insert_rates(response.headers_mut(), self.dialect, rates, self.received_ms);
                }
                let _ = answer.send(response);
            }
            State::StatusSent(next) => {
                let broken = Break {
                    reason: &refusal.code(),
                    chunks_delivered: 0,
                    request_id: &self.request_id,
                    sequence_number: 0,
                };
                let event = stream_error_event(self.dialect, &refusal.client_error(), &broken);
                let _ = next.send(Next::Broken(event));
            }
            // A body that waits for the rest of an answer says itself that it broke.
            State::Answered | State::Broken(_) => {}
        }
    }

    /// The answer broke off; its body waits for what `rest` brings, or for its end.
    pub(crate) fn broke(&mut self, rest: oneshot::Sender<Box<Resume>>) {
        self.state = State::Broken(rest);
    }

    /// Goes on with an answer that broke off; `false` when nobody listens any more.
    pub(crate) fn resume(&mut self, rest: Resume) -> bool {
        match std::mem::replace(&mut self.state, State::Answered) {
            State::Broken(waiting) => waiting.send(Box::new(rest)).is_ok(),
            State::Silent(_) | State::StatusSent(_) | State::Answered => false,
        }
    }

    /// There will be no rest: the body says that the answer is incomplete.
    pub(crate) fn give_up_the_rest(&mut self) {
        self.state = State::Answered;
    }
}

fn stream_response(headers: HeaderMap, body: ClientBody) -> Response<ClientBody> {
    let mut response = Response::new(body);
    *response.headers_mut() = headers;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Proxies that buffer would undo the stream.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}
