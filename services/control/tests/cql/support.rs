//! The server for one test at a time, and control stores on it. Everything blocks, as the port does.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use weir_control::conformance::scene;
use weir_control::secrets::ControlSecrets;
use weir_control::store::cql::{CqlControlStore, CqlOptions, migrate};
use weir_control::store::{ControlStore, StoreError};

pub use crate::server::{Failure, Server, is_skipped};

/// The server, for one test at a time.
pub struct Turn {
    _alone: MutexGuard<'static, ()>,
    pub server: &'static Server,
}

/// Waits for its turn and empties every table.
pub fn turn() -> Result<Turn, Failure> {
    static TURN: Mutex<()> = Mutex::new(());
    static MIGRATED: OnceLock<()> = OnceLock::new();
    // A test that failed leaves nothing that the next one minds.
    let alone = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let server = Server::shared();
    if MIGRATED.get().is_none() {
        block_on(migrate(&server.options(), "tests"))?;
        MIGRATED.get_or_init(|| ());
    }
    block_on(server.empty())?;
    Ok(Turn { _alone: alone, server })
}

pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// A handle with these options, as another process would open it.
pub fn open(options: &CqlOptions, secrets: &ControlSecrets) -> Result<Arc<dyn ControlStore>, StoreError> {
    Ok(Arc::new(CqlControlStore::open(options, &secrets.pepper, &secrets.master)?))
}

impl Server {
    pub fn store(&self) -> Result<Arc<dyn ControlStore>, Failure> {
        Ok(open(&self.options(), &scene::secrets('p', 'm')?)?)
    }
}
