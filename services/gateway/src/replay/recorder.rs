//! The task that takes an answer in its client's place, keeps it for those who ask again, and forgets it.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::FusedFuture;
use http::Response;
use http_body::Body;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};

use crate::client::ClientBody;
use crate::server::Inner;

use super::Key;
use super::tape::{Head, Tape};

/// A piece up to this size is copied: many small pieces of a relay may share one large buffer, which the copy lets go.
const COPY_BYTES: usize = 16 * 1024;

/// Memory is asked for in steps, so that small pieces do not ask each for themselves.
const GRANT_BYTES: usize = 4 * 1024;

/// Far enough away to mean never.
const NEVER: Duration = Duration::from_secs(24 * 60 * 60);

pub(super) struct Recorder {
    pub gateway: Arc<Inner>,
    pub key: Key,
    pub tape: Arc<Tape>,
    pub write_stall: Duration,
}

/// What a wait for the answer came to.
enum Got<T> {
    Some(T),
    /// Nobody reads, and the grace is over.
    GivenUp,
}

impl Recorder {
    pub(super) async fn run(self, response: oneshot::Receiver<Response<ClientBody>>) {
        if self.record(response).await {
            self.tape.end()
        } else {
            self.tape.vanish()
        }
        self.keep().await;
    }

    /// Whether the answer came to its end. Whatever it returns early by drops the response or its body, which is how
    /// the call learns that its client is gone.
    async fn record(&self, mut response: oneshot::Receiver<Response<ClientBody>>) -> bool {
        let stopping = self.gateway.tasks.stopping().fuse();
        tokio::pin!(stopping);
        let Got::Some(Ok(response)) = self.wait(&mut response, &mut stopping).await else { return false };
        let (head, mut body) = response.into_parts();
        self.tape.put_head(Head { status: head.status, headers: head.headers, length: body.size_hint().exact() });
        loop {
            let next = poll_fn(|cx| {
                // Asked again whenever somebody read or stopped reading: see `wait`.
                if self.tape.wants_more() { Pin::new(&mut body).poll_frame(cx) } else { std::task::Poll::Pending }
            });
            match self.wait(next, &mut stopping).await {
                Got::Some(Some(Ok(frame))) => {
                    if let Ok(piece) = frame.into_data() {
                        self.put(piece);
                    }
                }
                Got::Some(None) => return true,
                Got::Some(Some(Err(never))) => match never {},
                Got::GivenUp => return false,
            }
        }
    }

    fn put(&self, piece: Bytes) {
        let replays = &self.gateway.replays;
        if self.tape.has_room(piece.len(), replays.entry_bytes) {
            let lacks = self.tape.lacks(piece.len()).next_multiple_of(GRANT_BYTES);
            match replays.more(lacks) {
                Some(permit) => self.tape.grant(permit, lacks),
                None => self.tape.pass_on(),
            }
        } else {
            self.tape.pass_on();
        }
        self.tape.put(if piece.len() <= COPY_BYTES { Bytes::copy_from_slice(&piece) } else { piece });
    }

    /// Waits for `work`, which is polled again whenever a reader came, read or left; meanwhile ends those whose clients
    /// take nothing. A process that stops waits for nobody to come back.
    async fn wait<T>(
        &self,
        work: impl Future<Output = T>,
        stopping: &mut (impl FusedFuture<Output = ()> + Unpin),
    ) -> Got<T> {
        tokio::pin!(work);
        loop {
            let grace = if stopping.is_terminated() { Duration::ZERO } else { self.gateway.replays.keep_for };
            let given_up = self.tape.given_up_at(grace);
            let stall = self.tape.next_stall(self.write_stall);
            let alarm = given_up.into_iter().chain(stall).min().unwrap_or_else(|| Instant::now() + NEVER);
            tokio::select! {
                biased;
                done = &mut work => return Got::Some(done),
                () = self.tape.stirred() => {}
                () = &mut *stopping => {}
                () = sleep_until(alarm) => {
                    if self.tape.give_up(grace) {
                        return Got::GivenUp;
                    }
                    self.tape.cut_stalled(self.write_stall);
                }
            }
        }
    }

    /// Keeps what was executed and is whole until its time is over, and stays until the last reader is done.
    async fn keep(&self) {
        let replays = &self.gateway.replays;
        let is_kept = self.tape.decided().await && self.tape.is_kept();
        let place = is_kept.then(|| replays.ended(&self.key));
        let until = Instant::now() + if is_kept { replays.keep_for } else { Duration::ZERO };
        let stopping = self.gateway.tasks.stopping();
        tokio::pin!(stopping);
        loop {
            let is_over = Instant::now() >= until || !self.tape.is_kept();
            if is_over {
                replays.forget(&self.key, &self.tape, place);
                if self.tape.is_deserted() {
                    return;
                }
            }
            let stall = self.tape.next_stall(self.write_stall).unwrap_or_else(|| Instant::now() + NEVER);
            let alarm = if is_over { stall } else { stall.min(until) };
            tokio::select! {
                biased;
                () = &mut stopping => return replays.forget(&self.key, &self.tape, place),
                () = self.tape.stirred() => {}
                () = sleep_until(alarm) => self.tape.cut_stalled(self.write_stall),
            }
        }
    }
}
