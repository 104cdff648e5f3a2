//! The thread of the consumers: what they derive costs the process as much as a request does, and must delay none.
//!
//! One thread, because everything on it follows one log in order; beside it are the log's and the ledger's own.

use std::io;
use std::thread;

use tokio::runtime::{Builder, EnterGuard, Handle};
use tokio::sync::oneshot;

/// A runtime on a thread of its own. It ends when this is dropped; what still runs on it is dropped then.
#[derive(Debug)]
pub(in crate::up) struct ConsumerThread {
    handle: Handle,
    /// Its drop is the signal.
    _running: oneshot::Sender<()>,
}

impl ConsumerThread {
    /// # Errors
    /// When the system gives no thread or no event queue.
    pub fn start() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (running, ended) = oneshot::channel();
        let serve = move || {
            // An error says that the other end is gone, which is what is waited for.
            let _ended: Result<(), _> = runtime.block_on(ended);
        };
        thread::Builder::new().name("weir-consumers".to_owned()).spawn(serve)?;
        Ok(Self { handle, _running: running })
    }

    /// What is spawned while the guard lives runs on this thread.
    pub fn enter(&self) -> EnterGuard<'_> {
        self.handle.enter()
    }
}
