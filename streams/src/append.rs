//! What `append` gives back, and the progress that it waits for.
//!
//! The embedded log counts: *written up to*, *durable up to*. A batch is done when the count has passed it, so all
//! batches of a partition share two numbers and one list of waiting tasks, instead of one channel each. Tasks are woken
//! in bulk, after the lock is let go. Where a place is only known once a broker has answered, each batch has a
//! ticket of its own.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

use crate::contract::{AppendError, Closed, Placed};
#[cfg(feature = "kafka")]
use crate::ticket::Ticket;

/// The receipt of one batch. Dropping it changes nothing: an accepted batch is written.
#[derive(Debug)]
#[must_use = "an append is only known to have happened once `written` or `durable` is awaited"]
pub struct Append(Receipt);

#[derive(Debug)]
enum Receipt {
    Refused(AppendError),
    Counted(Counted),
    #[cfg(feature = "kafka")]
    Ticket(Arc<Ticket>),
}

/// A batch that is done once the count of its partition has passed it.
#[derive(Debug, Clone)]
pub(crate) struct Counted {
    progress: Arc<Progress>,
    placed: Placed,
    end: u64,
}

impl Counted {
    pub(crate) fn new(progress: Arc<Progress>, placed: Placed) -> Self {
        let end = placed.first.offset + u64::from(placed.count);
        Self { progress, placed, end }
    }

    /// As [`Placed::in_spool`].
    #[cfg(feature = "kafka")]
    pub(crate) fn in_spool(self) -> Self {
        Self { placed: Placed { in_spool: true, ..self.placed }, ..self }
    }

    pub(crate) async fn reached(&self, stage: Stage) -> Result<Placed, AppendError> {
        self.progress.reached(stage, self.end).await.map(|()| self.placed)
    }

    /// One past the batch's last offset.
    #[cfg(feature = "kafka")]
    pub(crate) const fn end(&self) -> u64 {
        self.end
    }
}

impl Append {
    pub(crate) const fn refused(error: AppendError) -> Self {
        Self(Receipt::Refused(error))
    }

    #[cfg(feature = "kafka")]
    pub(crate) const fn ticket(ticket: Arc<Ticket>) -> Self {
        Self(Receipt::Ticket(ticket))
    }

    pub(crate) const fn counted(counted: Counted) -> Self {
        Self(Receipt::Counted(counted))
    }

    /// Where the batch will stand once it was written, from a log that gives offsets out at once; others only know it
    /// then.
    #[must_use]
    pub fn place(&self) -> Option<Placed> {
        match &self.0 {
            Receipt::Refused(_) => None,
            Receipt::Counted(counted) => Some(counted.placed).filter(|placed| !placed.in_spool),
            #[cfg(feature = "kafka")]
            Receipt::Ticket(_) => None,
        }
    }

    /// Resolves when a killed process cannot lose the batch. Never waits for a sync.
    ///
    /// # Errors
    /// [`AppendError`], which says whether the batch may have been appended.
    pub async fn written(&self) -> Result<Placed, AppendError> {
        self.reached(Stage::Written).await
    }

    /// Resolves when a power loss (embedded) or a lost broker (Kafka) cannot lose the batch.
    ///
    /// # Errors
    /// [`AppendError`], which says whether the batch may have been appended.
    pub async fn durable(&self) -> Result<Placed, AppendError> {
        self.reached(Stage::Durable).await
    }

    async fn reached(&self, stage: Stage) -> Result<Placed, AppendError> {
        match &self.0 {
            Receipt::Refused(error) => Err(error.clone()),
            Receipt::Counted(counted) => counted.reached(stage).await,
            #[cfg(feature = "kafka")]
            Receipt::Ticket(ticket) => ticket.reached(stage).await,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    Written,
    Durable,
}

/// How far one partition has come. Counts are offsets: one past the last record that has reached the stage.
#[derive(Debug)]
pub(crate) struct Progress {
    written: AtomicU64,
    durable: AtomicU64,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    /// By (offset waited for, number of the waiter), so that those who are done are a prefix.
    written: BTreeMap<(u64, u64), Waker>,
    durable: BTreeMap<(u64, u64), Waker>,
    next_waiter: u64,
    write_failure: Option<WriteFailure>,
    sync_failure: Option<Closed>,
}

#[derive(Debug, Clone)]
struct WriteFailure {
    closed: Closed,
    /// Batches that end at or below this may be in the file although the write failed.
    doubtful_until: u64,
}

impl Progress {
    pub(crate) fn starting_at(offset: u64) -> Self {
        Self { written: offset.into(), durable: offset.into(), waiting: Mutex::default() }
    }

    pub(crate) fn written(&self) -> u64 {
        self.written.load(Ordering::Acquire)
    }

    pub(crate) fn durable(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    /// Records that everything below `offset` has reached `stage`, and wakes who waited for that.
    pub(crate) fn advance(&self, stage: Stage, offset: u64) {
        let done = {
            let mut waiting = self.waiting.lock();
            self.count(stage).store(offset, Ordering::Release);
            let list = waiting.list(stage);
            let still = list.split_off(&(offset.saturating_add(1), 0));
            std::mem::replace(list, still)
        };
        done.into_values().for_each(Waker::wake);
    }

    /// No more will be written. Batches up to `doubtful_until` may nevertheless be in the file.
    pub(crate) fn fail_writes(&self, closed: Closed, doubtful_until: u64) {
        self.fail(|waiting| {
            waiting.write_failure.get_or_insert(WriteFailure { closed, doubtful_until });
        });
    }

    /// No more will become durable.
    pub(crate) fn fail_syncs(&self, closed: Closed) {
        self.fail(|waiting| {
            waiting.sync_failure.get_or_insert(closed);
        });
    }

    fn fail(&self, record: impl FnOnce(&mut Waiting)) {
        let (written, durable) = {
            let mut waiting = self.waiting.lock();
            record(&mut waiting);
            (std::mem::take(&mut waiting.written), std::mem::take(&mut waiting.durable))
        };
        // All are woken: who is not affected by the failure looks again and waits again.
        written.into_values().chain(durable.into_values()).for_each(Waker::wake);
    }

    pub(crate) const fn reached(&self, stage: Stage, offset: u64) -> Reached<'_> {
        Reached { progress: self, stage, offset, waiter: None }
    }

    const fn count(&self, stage: Stage) -> &AtomicU64 {
        match stage {
            Stage::Written => &self.written,
            Stage::Durable => &self.durable,
        }
    }

    fn outcome(&self, waiting: &Waiting, stage: Stage, offset: u64) -> Poll<Result<(), AppendError>> {
        if self.count(stage).load(Ordering::Acquire) >= offset {
            return Poll::Ready(Ok(()));
        }
        let is_written = self.written() >= offset;
        match (&waiting.write_failure, &waiting.sync_failure, stage) {
            (Some(failure), _, Stage::Written | Stage::Durable) if !is_written => {
                Poll::Ready(Err(failure.error(offset)))
            }
            (_, Some(closed), Stage::Durable) => Poll::Ready(Err(AppendError::Unknown(closed.clone()))),
            (_, _, Stage::Written | Stage::Durable) => Poll::Pending,
        }
    }
}

impl Waiting {
    const fn list(&mut self, stage: Stage) -> &mut BTreeMap<(u64, u64), Waker> {
        match stage {
            Stage::Written => &mut self.written,
            Stage::Durable => &mut self.durable,
        }
    }
}

impl WriteFailure {
    fn error(&self, offset: u64) -> AppendError {
        if offset <= self.doubtful_until {
            AppendError::Unknown(self.closed.clone())
        } else {
            AppendError::Closed(self.closed.clone())
        }
    }
}

/// Ready once everything below `offset` has reached the stage, or never will.
#[derive(Debug)]
pub(crate) struct Reached<'a> {
    progress: &'a Progress,
    stage: Stage,
    offset: u64,
    waiter: Option<u64>,
}

impl Future for Reached<'_> {
    type Output = Result<(), AppendError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let (progress, stage, offset) = (self.progress, self.stage, self.offset);
        if progress.count(stage).load(Ordering::Acquire) >= offset {
            // Whoever counted took the waker along: nothing is left to remove, and the lock is spared.
            self.waiter = None;
            return Poll::Ready(Ok(()));
        }
        let mut waiting = progress.waiting.lock();
        if let Poll::Ready(outcome) = progress.outcome(&waiting, stage, offset) {
            return Poll::Ready(outcome);
        }
        let next_waiter = waiting.next_waiter;
        let waiter = *self.waiter.get_or_insert(next_waiter);
        waiting.next_waiter = next_waiter.max(waiter + 1);
        waiting.list(stage).insert((offset, waiter), context.waker().clone());
        Poll::Pending
    }
}

/// A task that stops waiting must not stay in the list: a consumer that waits for an event that never comes, again
/// and again with a timeout, would otherwise leave one entry each time.
impl Drop for Reached<'_> {
    fn drop(&mut self) {
        if let Some(waiter) = self.waiter {
            self.progress.waiting.lock().list(self.stage).remove(&(self.offset, waiter));
        }
    }
}

#[cfg(test)]
#[path = "append_tests.rs"]
mod tests;
