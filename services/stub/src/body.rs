//! The body of an answer: performs the player's acts as hyper asks for frames.
//!
//! Its drop is the sign that the client has left: hyper watches the connection while a body waits in a gap or stalls.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame};
use tokio::time::{Instant, Sleep};
use weir_runtime::listener::{BoxError, Connection};

use crate::exchange::Exchange;
use crate::journal::State;
use crate::player::{Act, Player};

pub(crate) enum AnswerBody {
    /// Bytes without a script: of the stub's own pages.
    Page(Option<Bytes>),
    Played(Box<Played>),
}

pub(crate) struct Played {
    player: Player,
    exchange: Exchange,
    connection: Connection,
    sleep: Option<Pin<Box<Sleep>>>,
    /// An act that was asked for ahead of time.
    ahead: Option<Act>,
    done: bool,
}

impl AnswerBody {
    pub(crate) fn played(player: Player, exchange: Exchange, connection: Connection) -> Self {
        let played = Played { player, exchange, connection, sleep: None, ahead: None, done: false };
        Self::Played(Box::new(played))
    }
}

impl fmt::Debug for AnswerBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Page(bytes) => f.debug_tuple("Page").field(&bytes.as_ref().map(Bytes::len)).finish(),
            Self::Played(played) => f.debug_tuple("Played").field(&played.player).finish(),
        }
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut *self {
            Self::Page(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Played(played) => played.poll(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Page(bytes) => bytes.is_none(),
            Self::Played(played) => played.done,
        }
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        match self {
            Self::Page(bytes) => hyper::body::SizeHint::with_exact(
                bytes.as_ref().map_or(0, |bytes| u64::try_from(bytes.len()).unwrap_or(0)),
            ),
            Self::Played(_) => hyper::body::SizeHint::default(),
        }
    }
}

impl Played {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.done {
            return Poll::Ready(None);
        }
        loop {
            if let Some(sleep) = &mut self.sleep {
                if sleep.as_mut().poll(cx).is_pending() {
                    return Poll::Pending;
                }
                self.sleep = None;
            }
            match self.ahead.take().unwrap_or_else(|| self.player.next()) {
                Act::Write { bytes, chunks } => {
                    self.exchange.wrote(chunks, bytes.len());
                    if !bytes.is_empty() {
                        self.end_with_the_last_byte();
                        return Poll::Ready(Some(Ok(Frame::data(bytes))));
                    }
                }
                // hyper writes out what it holds whenever a body has nothing ready.
                Act::Flush => {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Act::WaitMs(ms) => {
                    self.sleep = Some(Box::pin(tokio::time::sleep_until(Instant::now() + Duration::from_millis(ms))));
                }
                Act::End { early } => {
                    self.end(early);
                    return Poll::Ready(None);
                }
                Act::Cut => {
                    self.exchange.end(State::Broken);
                    return Poll::Ready(Some(Err("cut by the script".into())));
                }
                Act::Reset => {
                    self.exchange.end(State::Broken);
                    self.connection.reset();
                    self.ahead = Some(Act::Stall);
                }
                // Nothing comes after it, however often hyper asks.
                Act::Stall => {
                    self.ahead = Some(Act::Stall);
                    return Poll::Pending;
                }
            }
        }
    }

    /// hyper does not ask again after the last byte that the head promised, so the end is noted with that byte.
    fn end_with_the_last_byte(&mut self) {
        match self.player.next() {
            Act::End { early } => self.end(early),
            act => self.ahead = Some(act),
        }
    }

    fn end(&mut self, early: bool) {
        self.done = true;
        self.exchange.end(if early { State::Broken } else { State::Complete });
    }
}
