//! The owner of everything that runs.
//!
//! A task is spawned here or nowhere (a lint forbids the bare call), so that at the end of a process somebody waits for
//! it, and names what did not finish. A panic ends one task, is counted and logged by name, and is never lost.
//!
//! One list under one lock, instead of tokio's `JoinSet`: handles are cloned into every connection and request, and a
//! `JoinSet` has one owner. Entering and leaving the list costs some 50 ns, far below a request's budget.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use parking_lot::Mutex;
use pin_project_lite::pin_project;
use thiserror::Error;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::task::{AbortHandle, JoinHandle};

/// How long aborted tasks get to drop what they hold: aborting takes effect at the next await, so this is long for
/// anything but a task that blocks its thread.
const ABORT_GRACE: Duration = Duration::from_millis(500);

/// The owner of tasks. Clones are handles to the same owner.
#[derive(Clone)]
pub struct Tasks {
    shared: Arc<Shared>,
}

struct Shared {
    home: Option<Handle>,
    running: Mutex<Running>,
    emptied: Notify,
    stop: watch::Sender<bool>,
    panics: AtomicU64,
}

#[derive(Default)]
struct Running {
    /// Set once the time to stop is over: whatever is spawned later is dropped, or stopping would never end.
    closed: bool,
    /// By place. A place that was left is taken by the next that enters.
    entries: Vec<Option<Entry>>,
    free: Vec<usize>,
    entered: u64,
}

struct Entry {
    /// Tells this task from others that had or will have its place.
    id: u64,
    name: &'static str,
    /// Absent for blocking work, which cannot be aborted.
    abort: Option<AbortHandle>,
}

impl Tasks {
    /// An owner whose tasks run on the runtime that spawns them, or, spawned from a plain thread, on the runtime that
    /// called this.
    #[must_use]
    pub fn new() -> Self {
        let shared = Shared {
            home: Handle::try_current().ok(),
            running: Mutex::default(),
            emptied: Notify::new(),
            stop: watch::Sender::new(false),
            panics: AtomicU64::new(0),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Runs `future` until it ends, panics, or [`stop`](Self::stop) runs out of patience. The result may be awaited
    /// or ignored: dropping it does not cancel the task.
    ///
    /// A task that must finish something on stop awaits [`stopping`](Self::stopping) itself.
    pub fn spawn<F>(&self, name: &'static str, future: F) -> Task<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let Some(runtime) = self.runtime() else { return Task::lost(name) };
        let Some(leave) = self.enter(name) else { return Task::lost(name) };
        let (place, id) = (leave.place, leave.id);
        // Not under the lock: a runtime that is shutting down drops the task at once, and the task then leaves.
        let handle = runtime.spawn(Owned { future, name, leave });
        let mut running = self.shared.running.lock();
        if let Some(Some(entry)) = running.entries.get_mut(place)
            && entry.id == id
        {
            entry.abort = Some(handle.abort_handle());
            if running.closed {
                // The others were aborted in between.
                handle.abort();
            }
        }
        drop(running);
        Task { name, handle: Some(handle) }
    }

    /// Runs `work` on a thread where blocking is allowed. It cannot be aborted: it is waited for, then named.
    pub fn spawn_blocking<F, T>(&self, name: &'static str, work: F) -> Task<T>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let Some(runtime) = self.runtime() else { return Task::lost(name) };
        let Some(leave) = self.enter(name) else { return Task::lost(name) };
        let shared = self.shared.clone();
        let handle = runtime.spawn_blocking(move || {
            let _leave = leave;
            std::panic::catch_unwind(AssertUnwindSafe(work)).map_err(|_panic| shared.count_panic(name))
        });
        Task { name, handle: Some(handle) }
    }

    fn runtime(&self) -> Option<Handle> {
        Handle::try_current().ok().or_else(|| self.shared.home.clone())
    }

    fn enter(&self, name: &'static str) -> Option<Leave> {
        let mut running = self.shared.running.lock();
        if running.closed {
            tracing::warn!(task = name, "task dropped because its owner has stopped");
            return None;
        }
        let (place, id) = running.enter(name);
        Some(Leave { place, id, shared: self.shared.clone() })
    }

    #[must_use]
    pub fn is_stopping(&self) -> bool {
        *self.shared.stop.borrow()
    }

    /// Resolves when stopping begins, or at once if it has.
    pub fn stopping(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut stop = self.shared.stop.subscribe();
        let shared = self.shared.clone();
        async move {
            // An error means that the sender is gone, which `shared` rules out; either way it is time to stop.
            let _stopped = stop.wait_for(|stopping| *stopping).await.is_ok();
            drop(shared);
        }
    }

    /// Tells every task that stopping begins, without waiting.
    pub fn begin_stop(&self) {
        self.shared.stop.send_replace(true);
    }

    /// Tells every task to stop, waits at most `within`, then aborts and names what is left.
    pub async fn stop(&self, within: Duration) -> Unfinished {
        self.begin_stop();
        let in_time = tokio::time::timeout(within, self.wait_until_empty()).await.is_ok();
        let (unfinished, aborts) = self.close(in_time);
        if !unfinished.is_empty() {
            tracing::warn!(tasks = %unfinished, "tasks did not stop in time and were aborted");
            aborts.iter().for_each(AbortHandle::abort);
            let _all_dropped = tokio::time::timeout(ABORT_GRACE, self.wait_until_empty()).await.is_ok();
        }
        unfinished
    }

    fn close(&self, in_time: bool) -> (Unfinished, Vec<AbortHandle>) {
        let mut running = self.shared.running.lock();
        running.closed = true;
        if in_time {
            return (Unfinished::default(), Vec::new());
        }
        let aborts = running.all().filter_map(|entry| entry.abort.clone()).collect();
        (Unfinished { by_name: running.by_name() }, aborts)
    }

    async fn wait_until_empty(&self) {
        loop {
            let emptied = self.shared.emptied.notified();
            if self.shared.running.lock().is_empty() {
                return;
            }
            emptied.await;
        }
    }

    /// How many tasks run, by name.
    #[must_use]
    pub fn running(&self) -> BTreeMap<&'static str, usize> {
        self.shared.running.lock().by_name()
    }

    /// How many tasks have ended in a panic since the start.
    #[must_use]
    pub fn panics(&self) -> u64 {
        self.shared.panics.load(Ordering::Relaxed)
    }
}

impl Running {
    fn enter(&mut self, name: &'static str) -> (usize, u64) {
        self.entered += 1;
        let entry = Some(Entry { id: self.entered, name, abort: None });
        if let Some(place) = self.free.pop() {
            self.entries[place] = entry;
            return (place, self.entered);
        }
        self.entries.push(entry);
        (self.entries.len() - 1, self.entered)
    }

    fn leave(&mut self, place: usize) {
        if self.entries[place].take().is_some() {
            self.free.push(place);
        }
    }

    fn all(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().flatten()
    }

    fn is_empty(&self) -> bool {
        self.free.len() == self.entries.len()
    }

    fn by_name(&self) -> BTreeMap<&'static str, usize> {
        let mut by_name = BTreeMap::new();
        for entry in self.all() {
            *by_name.entry(entry.name).or_default() += 1;
        }
        by_name
    }
}

impl Shared {
    /// The message and the place of the panic are on stderr by then, written by the process's panic hook; here they
    /// could carry a prompt into the log.
    fn count_panic(&self, name: &'static str) -> Lost {
        self.panics.fetch_add(1, Ordering::Relaxed);
        tracing::error!(task = name, "task panicked");
        Lost::Panicked
    }
}

impl Default for Tasks {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Tasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tasks").field("running", &self.running()).field("stopping", &self.is_stopping()).finish()
    }
}

pin_project! {
    /// A task's future. By hand, because an `async` block that awaits what it captured holds it twice, and these are the
    /// largest futures of the process.
    struct Owned<F> {
        // Dropped first: a task has left when nothing of it is there any more.
        #[pin]
        future: F,
        name: &'static str,
        leave: Leave,
    }
}

impl<F: Future> Future for Owned<F> {
    type Output = Result<F::Output, Lost>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let task = self.project();
        match std::panic::catch_unwind(AssertUnwindSafe(|| task.future.poll(cx))) {
            Ok(polled) => polled.map(Ok),
            Err(_panic) => Poll::Ready(Err(task.leave.shared.count_panic(task.name))),
        }
    }
}

/// Takes a task off the list when its future is dropped, however that came about.
struct Leave {
    place: usize,
    id: u64,
    shared: Arc<Shared>,
}

impl Drop for Leave {
    fn drop(&mut self) {
        let mut running = self.shared.running.lock();
        running.leave(self.place);
        if running.is_empty() {
            self.shared.emptied.notify_waiters();
        }
    }
}

/// The result of a task, to be awaited or ignored.
#[derive(Debug)]
pub struct Task<T> {
    name: &'static str,
    handle: Option<JoinHandle<Result<T, Lost>>>,
}

impl<T> Task<T> {
    fn lost(name: &'static str) -> Self {
        Self { name, handle: None }
    }

    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Cancels the task at its next await. Does nothing to blocking work that has begun.
    pub fn abort(&self) {
        if let Some(handle) = &self.handle {
            handle.abort();
        }
    }

    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.handle.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl<T> Future for Task<T> {
    type Output = Result<T, Lost>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.handle {
            None => Poll::Ready(Err(Lost::Aborted)),
            Some(handle) => Pin::new(handle).poll(cx).map(|joined| joined.unwrap_or(Err(Lost::Aborted))),
        }
    }
}

/// Why a task has no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Lost {
    /// A defect in the task. What it had done so far stands.
    #[error("the task panicked")]
    Panicked,
    /// Its owner stopped before it was done, or before it began.
    #[error("the task was aborted")]
    Aborted,
}

/// What was still running when the time to stop was over, and was aborted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Unfinished {
    by_name: BTreeMap<&'static str, usize>,
}

impl Unfinished {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// How many tasks of each name.
    #[must_use]
    pub fn by_name(&self) -> &BTreeMap<&'static str, usize> {
        &self.by_name
    }
}

/// `connection ×3, sweep`.
impl fmt::Display for Unfinished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (name, count)) in self.by_name.iter().enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            match count {
                1 => write!(f, "{comma}{name}")?,
                many => write!(f, "{comma}{name} ×{many}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "tasks_tests.rs"]
mod tests;
