//! A thread that owns one connection.
//!
//! SQLite blocks, and a connection is used by one thread at a time. So each connection has a thread and a queue, and
//! the async side awaits the answer: no pool of blocking threads that an outage of the disk could fill.

use std::fmt;
use std::thread::JoinHandle;

use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

use crate::contract::LedgerError;

type Job = Box<dyn FnOnce(&mut Connection) + Send>;

/// Callers that may wait for one connection: each is one task that awaits, so more would be a leak.
const QUEUE: usize = 256;

pub(super) struct Worker {
    jobs: Option<mpsc::Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    pub fn start(name: &'static str, mut connection: Connection) -> Result<Self, LedgerError> {
        let (jobs, mut queue) = mpsc::channel::<Job>(QUEUE);
        let serve = move || {
            while let Some(job) = queue.blocking_recv() {
                job(&mut connection);
            }
        };
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(serve)
            .map_err(|error| LedgerError::Unavailable { reason: format!("no thread for it: {error}") })?;
        Ok(Self { jobs: Some(jobs), thread: Some(thread) })
    }

    /// Runs `job` on the connection, in the order of the calls. A caller that stops waiting does not stop the job.
    pub async fn run<T, F>(&self, job: F) -> Result<T, LedgerError>
    where
        T: Send + 'static,
        F: FnOnce(&mut Connection) -> Result<T, LedgerError> + Send + 'static,
    {
        let ended = || LedgerError::Unavailable { reason: "its thread has ended".to_owned() };
        let (answer, answered) = oneshot::channel();
        let job: Job = Box::new(move |connection| {
            // A caller that has left needs no answer.
            let _left = answer.send(job(connection));
        });
        let jobs = self.jobs.as_ref().ok_or_else(ended)?;
        jobs.send(job).await.map_err(|_| ended())?;
        answered.await.map_err(|_| ended())?
    }
}

/// Finishes what is queued, then closes the connection, which also folds the write-ahead log into the file.
impl Drop for Worker {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("a thread of the ledger's store panicked");
        }
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").finish_non_exhaustive()
    }
}
