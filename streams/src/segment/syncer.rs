//! The syncing half: threads that make durable what the writer has written, for all who wait at once.
//!
//! There are two: a sync takes the disk milliseconds, and those of derived topics must not delay the ones that clients
//! wait for. Two syncs at once cost a journaling file system little more than one. Within a thread topics are synced
//! in their order, each at most as often as its `sync_gap`.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::log::{PanicGuard, Shared};
use super::writer::close_reason;
use crate::append::Stage;
use crate::topics::{Topic, TopicSpec};

/// No topic is synced more often than this. A sync costs 70 µs of CPU time on a fast disk, which is much for one request
/// and nothing for the hundred that gather meanwhile; a log at rest syncs at once.
const LEAST_GAP: Duration = Duration::from_millis(2);

/// What was written and not synced yet: one queue per thread.
#[derive(Debug, Default)]
pub(super) struct SyncQueues {
    /// Topics without a gap between syncs.
    eager: SyncQueue,
    paced: SyncQueue,
}

impl SyncQueues {
    pub(super) const fn of(&self, spec: &TopicSpec) -> &SyncQueue {
        if spec.sync_gap.is_zero() { &self.eager } else { &self.paced }
    }

    /// Nothing more will be written: sync what is left, then end.
    pub(super) fn stop(&self) {
        self.eager.stop();
        self.paced.stop();
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pace {
    Eager,
    Paced,
}

/// The part of one thread, by topic.
#[derive(Debug, Default)]
pub(super) struct SyncQueue {
    state: Mutex<SyncState>,
    filled: Condvar,
}

#[derive(Debug, Default)]
struct SyncState {
    dirty: [Option<Dirty>; Topic::COUNT],
    is_stopping: bool,
}

#[derive(Debug, Default)]
struct Dirty {
    /// More than one only when a segment was closed since the last sync.
    files: Vec<Arc<File>>,
    folders: Vec<PathBuf>,
    until: Option<u64>,
}

impl SyncQueue {
    /// Tells the thread of the first write only: from then on it knows when the topic is due.
    pub(super) fn mark_written(&self, topic: Topic, file: &Arc<File>, until: u64) {
        let mut state = self.state.lock();
        let dirty = state.dirty[topic.index()].get_or_insert_default();
        dirty.add(file);
        let is_first = dirty.until.replace(until).is_none();
        drop(state);
        if is_first {
            self.filled.notify_one();
        }
    }

    /// Goes along with the write that follows.
    pub(super) fn mark_file(&self, topic: Topic, file: &Arc<File>) {
        self.state.lock().dirty[topic.index()].get_or_insert_default().add(file);
    }

    /// Goes along with the write that follows.
    pub(super) fn mark_folder(&self, topic: Topic, folder: &Path) {
        self.state.lock().dirty[topic.index()].get_or_insert_default().folders.push(folder.to_owned());
    }

    fn stop(&self) {
        self.state.lock().is_stopping = true;
        self.filled.notify_one();
    }
}

impl Dirty {
    fn add(&mut self, file: &Arc<File>) {
        if !self.files.iter().any(|known| Arc::ptr_eq(known, file)) {
            self.files.push(Arc::clone(file));
        }
    }
}

#[derive(Debug)]
pub(super) struct Syncer {
    shared: Arc<Shared>,
    pace: Pace,
    last_sync: [Option<Instant>; Topic::COUNT],
}

impl Syncer {
    pub(super) const fn new(shared: Arc<Shared>, pace: Pace) -> Self {
        Self { shared, pace, last_sync: [None; Topic::COUNT] }
    }

    fn queue(&self) -> &SyncQueue {
        match self.pace {
            Pace::Eager => &self.shared.sync.eager,
            Pace::Paced => &self.shared.sync.paced,
        }
    }

    pub(super) fn run(mut self) {
        let _guard = PanicGuard(Arc::clone(&self.shared));
        while let Some(due) = self.wait_for_due() {
            for topic in due {
                // Taken only now: what was written while another topic was synced goes along.
                let taken = self.queue().state.lock().dirty[topic.index()].take();
                if let Some(dirty) = taken {
                    self.sync(topic, &dirty);
                }
            }
        }
        // After an orderly stop the mark is exact even if the power is lost later.
        if let Err(error) = self.shared.mark.sync() {
            tracing::warn!(%error, "the durable mark could not be synced");
        }
    }

    /// The topics to sync now, in order; `None` at the end.
    fn wait_for_due(&self) -> Option<Vec<Topic>> {
        let queue = self.queue();
        let mut state = queue.state.lock();
        loop {
            let is_dirty = |dirty: &Dirty| state.is_stopping || dirty.until.is_some();
            let dirty =
                || Topic::ALL.into_iter().filter(|topic| state.dirty[topic.index()].as_ref().is_some_and(is_dirty));
            let now = Instant::now();
            let due: Vec<Topic> =
                dirty().filter(|topic| state.is_stopping || self.due_at(*topic).is_none_or(|at| at <= now)).collect();
            if !due.is_empty() {
                return Some(due);
            }
            if state.is_stopping {
                return None;
            }
            match dirty().filter_map(|topic| self.due_at(topic)).min() {
                Some(at) => {
                    queue.filled.wait_until(&mut state, at);
                }
                None => queue.filled.wait(&mut state),
            }
        }
    }

    fn due_at(&self, topic: Topic) -> Option<Instant> {
        self.last_sync[topic.index()].map(|last| last + self.shared.table.spec(topic).sync_gap.max(LEAST_GAP))
    }

    fn sync(&mut self, topic: Topic, dirty: &Dirty) {
        let log = self.shared.topic(topic);
        let began = Instant::now();
        let result = self.sync_all(dirty);
        self.last_sync[topic.index()] = Some(Instant::now());
        self.shared.options.metrics.sync_seconds.observe(began.elapsed().as_secs_f64());
        match result {
            Ok(()) => {
                if let Some(until) = dirty.until {
                    self.mark(topic, until, !dirty.folders.is_empty());
                    log.progress.advance(Stage::Durable, until);
                }
            }
            // A second sync could succeed although the kernel has dropped the pages: never try again.
            Err(error) => {
                tracing::error!(%topic, %error, "event log closed after a failed sync");
                let closed = close_reason("sync", log.folder.display(), &error);
                self.shared.queue.fail(closed.clone());
                log.progress.fail_syncs(closed);
            }
        }
    }

    fn sync_all(&self, dirty: &Dirty) -> io::Result<()> {
        for file in &dirty.files {
            self.shared.options.disk.sync(file)?;
        }
        dirty.folders.iter().try_for_each(|folder| self.shared.options.disk.sync_folder(folder))
    }

    /// Notes how far the topic is durable, before anybody is told. The note itself is synced once per segment, which
    /// bounds how much a start after a power loss has to check.
    fn mark(&self, topic: Topic, until: u64, syncs: bool) {
        let mark = &self.shared.mark;
        let result = mark.set(topic, until).and_then(|()| if syncs { mark.sync() } else { Ok(()) });
        if let Err(error) = result {
            // The records are durable all the same. But a disk that fails here is about to fail them too.
            tracing::error!(%topic, %error, "event log closed after a failed write of the durable mark");
            self.shared.queue.fail(close_reason("mark in", self.shared.options.folder.display(), &error));
        }
    }
}
