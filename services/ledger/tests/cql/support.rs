//! The server for one test at a time, and the ledger on it.

use std::sync::Arc;

use tokio::sync::{Mutex, MutexGuard, OnceCell};

use weir_ledger::cql::{CqlLedger, migrate};
use weir_runtime::clock::SystemClock;

pub use crate::server::{Failure, Server, is_skipped};

/// The server, for one test at a time.
pub struct Turn {
    _alone: MutexGuard<'static, ()>,
    pub server: &'static Server,
}

/// Waits for its turn and empties every table.
pub async fn turn() -> Result<Turn, Failure> {
    static TURN: Mutex<()> = Mutex::const_new(());
    static MIGRATED: OnceCell<()> = OnceCell::const_new();
    let alone = TURN.lock().await;
    let server = Server::shared();
    let migrated = async || migrate(&server.options(), "tests").await.map(|_| ());
    MIGRATED.get_or_try_init(migrated).await?;
    server.empty().await?;
    Ok(Turn { _alone: alone, server })
}

impl Server {
    pub async fn ledger(&self) -> Result<Arc<CqlLedger>, Failure> {
        Ok(Arc::new(CqlLedger::open(&self.options(), SystemClock::shared()).await?))
    }
}
