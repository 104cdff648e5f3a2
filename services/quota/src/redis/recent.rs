//! What this process remembers of the reservations it works on, so that a command needs no read before it.
//!
//! Never trusted: a step says which version it was decided on, and the store refuses it when that is not the newest.

use std::collections::{HashMap, VecDeque};

use parking_lot::Mutex;

use weir_domain::ids::ReservationId;
use weir_domain::reservation::Command;

use super::record::Known;

#[derive(Debug)]
pub(super) struct Recent {
    most: usize,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    known: Bounded<Known>,
    unanswered: Bounded<Unanswered>,
}

/// Commands that the store may have run: the same ones again are the same operation, so that the caller gets the answer
/// that was lost instead of a `NoChange`.
#[derive(Debug, Clone)]
pub(super) struct Unanswered {
    pub(super) commands: Vec<Command>,
    pub(super) operation: String,
    /// What they were decided on.
    pub(super) known: Option<Known>,
}

/// How many unanswered operations are remembered: what is in flight when a node dies.
const UNANSWERED: usize = 4096;

impl Recent {
    pub(super) fn new(most: usize) -> Self {
        Self { most, inner: Mutex::default() }
    }

    pub(super) fn known(&self, id: ReservationId) -> Option<Known> {
        self.inner.lock().known.map.get(&id).cloned()
    }

    /// Keeps what is still open; what ended is seldom asked for again.
    pub(super) fn remember(&self, id: ReservationId, known: Known) {
        let mut inner = self.inner.lock();
        if known.entry.reservation.closed {
            inner.known.map.remove(&id);
        } else {
            inner.known.insert(id, known, self.most);
        }
    }

    pub(super) fn forget(&self, id: ReservationId) {
        self.inner.lock().known.map.remove(&id);
    }

    /// The operation that `commands` were, if they were the last ones of `id` and nobody heard of them.
    pub(super) fn take_unanswered(&self, id: ReservationId, commands: &[Command]) -> Option<Unanswered> {
        let mut inner = self.inner.lock();
        if inner.unanswered.map.is_empty() {
            return None;
        }
        inner.unanswered.map.remove(&id).filter(|unanswered| unanswered.commands == commands)
    }

    pub(super) fn note_unanswered(&self, id: ReservationId, unanswered: Unanswered) {
        self.inner.lock().unanswered.insert(id, unanswered, UNANSWERED);
    }
}

/// A map that lets go of what came first.
#[derive(Debug)]
struct Bounded<T> {
    map: HashMap<ReservationId, T>,
    order: VecDeque<ReservationId>,
}

impl<T> Default for Bounded<T> {
    fn default() -> Self {
        Self { map: HashMap::new(), order: VecDeque::new() }
    }
}

impl<T> Bounded<T> {
    fn insert(&mut self, id: ReservationId, value: T, most: usize) {
        if self.map.insert(id, value).is_none() {
            self.order.push_back(id);
        }
        while self.order.len() > most {
            if let Some(oldest) = self.order.pop_front() {
                self.map.remove(&oldest);
            }
        }
    }
}
