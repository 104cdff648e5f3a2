//! What the provider keeps of its answers: the state of stored responses.
//!
//! A response that was asked for with `store` can be fetched by its id and be built on by `previous_response_id`, at this
//! provider only. Like at the real one it counts once it is complete: of an answer whose client left nothing is told but
//! that it was cancelled, without usage.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::Value;

use crate::journal::State;

/// Far more than a test stores; the oldest goes first.
const MAX_KEPT: usize = 10_000;

#[derive(Debug, Default)]
pub(crate) struct Shelf {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    by_id: HashMap<String, Arc<Stored>>,
    /// By age.
    ids: VecDeque<String>,
}

/// One response.
#[derive(Debug)]
pub(crate) struct Stored {
    /// As the client gets it when all is well.
    pub(crate) whole: Value,
    /// What the model has to read again when it is built on.
    pub(crate) tokens: i64,
    state: Mutex<State>,
}

/// Tells the shelf how the answer ended.
#[derive(Debug)]
pub(crate) struct Kept(Arc<Stored>);

impl Kept {
    pub(crate) fn end(&self, state: State) {
        *self.0.state.lock() = state;
    }
}

impl Shelf {
    pub(crate) fn keep(&self, id: &str, whole: Value, tokens: i64) -> Kept {
        let stored = Arc::new(Stored { whole, tokens, state: Mutex::new(State::Running) });
        let mut inner = self.inner.lock();
        if inner.by_id.insert(id.to_owned(), stored.clone()).is_none() {
            inner.ids.push_back(id.to_owned());
        }
        if inner.ids.len() > MAX_KEPT
            && let Some(oldest) = inner.ids.pop_front()
        {
            inner.by_id.remove(&oldest);
        }
        Kept(stored)
    }

    pub(crate) fn get(&self, id: &str) -> Option<Arc<Stored>> {
        self.inner.lock().by_id.get(id).cloned()
    }

    pub(crate) fn remove(&self, id: &str) -> bool {
        self.inner.lock().by_id.remove(id).is_some()
    }
}

impl Stored {
    pub(crate) fn is_complete(&self) -> bool {
        *self.state.lock() == State::Complete
    }

    /// What a look-up tells.
    pub(crate) fn told(&self) -> Value {
        let mut told = self.whole.clone();
        let status = match *self.state.lock() {
            State::Complete => return told,
            State::Running => "in_progress",
            State::Cancelled => "cancelled",
            State::Broken => "failed",
        };
        told["status"] = status.into();
        told["output"] = Value::Array(Vec::new());
        told["usage"] = Value::Null;
        told
    }
}
