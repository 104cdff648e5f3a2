//! The thread on which the CQL driver runs, and how a call that blocks waits for it.
//!
//! Acts of the control plane are planned on values and may compute for a second, so they run where blocking is allowed,
//! and the port blocks with them. A runtime of the store's own serves all of them alike: a role's blocking tasks, a
//! command that has no runtime, and a role's start, where entering another runtime is not allowed.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::sync::mpsc;

use weir_runtime::tasks::Tasks;

use crate::store::StoreError;

type Call = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Whoever waits for a call keeps the store, so at its end there is none; this is for what the driver itself has under
/// way.
const FINISH: Duration = Duration::from_secs(1);

pub(super) struct Driver {
    /// Not bounded: each caller waits for its call, so there are as many as threads that ask.
    calls: Option<mpsc::UnboundedSender<Call>>,
    thread: Option<JoinHandle<()>>,
}

impl Driver {
    pub fn start() -> Result<Self, StoreError> {
        let no_thread =
            |error: std::io::Error| StoreError::Unavailable { reason: format!("no thread for it: {error}") };
        let runtime = Builder::new_current_thread().enable_all().build().map_err(no_thread)?;
        let (calls, mut queue) = mpsc::unbounded_channel::<Call>();
        let serve = move || {
            runtime.block_on(async move {
                let tasks = Tasks::new();
                while let Some(call) = queue.recv().await {
                    drop(tasks.spawn("control store", call));
                }
                drop(tasks.stop(FINISH).await);
            });
        };
        let thread = std::thread::Builder::new().name("control-store".to_owned()).spawn(serve).map_err(no_thread)?;
        Ok(Self { calls: Some(calls), thread: Some(thread) })
    }

    /// Runs `call` to its end and waits for it.
    pub fn run<T: Send + 'static>(
        &self,
        call: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (answer, answered) = sync_channel(1);
        let call: Call = Box::pin(async move {
            // A caller that has left needs no answer.
            let _left = answer.send(call.await);
        });
        let ended = || StoreError::Unavailable { reason: "its thread has ended".to_owned() };
        self.calls.as_ref().ok_or_else(ended)?.send(call).map_err(|_| ended())?;
        answered.recv().map_err(|_| ended())?
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.calls = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of the control store panicked");
        }
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").finish_non_exhaustive()
    }
}
