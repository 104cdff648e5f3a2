//! The embedded backend: one SQLite file in WAL mode.
//!
//! **Durability.** `synchronous = NORMAL`: a killed process loses nothing, a power loss may take back the newest
//! transactions, in order and whole. That is enough, because everything here is derived: lines and the position that
//! follows them go back together, and the builder posts the same lines again from the log, whose own syncs are the
//! ones that clients wait for. FULL would add a 3 ms sync to every batch and protect nothing that is not in the log.
//!
//! **Threads.** One connection writes, on a thread of its own; two read, one for look-ups and one for pages and sums,
//! so that an export delays no reconciler. Commands open the file for reading beside the running process.

mod attempts;
mod checkpoints;
mod consumers;
mod read;
mod rows;
mod worker;
mod write;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::{Connection, OpenFlags};

use weir_domain::calendar::Window;
use weir_domain::ids::{ReservationId, TenantId};
use weir_domain::ledger::LedgerLine;
use weir_domain::money::Charge;
use weir_domain::quota::Scope;

use crate::contract::{
    Change, Count, LedgerError, LedgerStore, LinePage, OpenPage, OpenReservation, Posted, StoredCheckpoint,
    StoredReservation,
};
use worker::Worker;

/// How long a connection waits for another process, such as a shell that holds a lock.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// All statements of this crate, with room.
const STATEMENTS: usize = 64;

/// The ledger in one file.
#[derive(Debug)]
pub struct SqliteLedger {
    path: PathBuf,
    /// Absent when opened for reading.
    writer: Option<Worker>,
    lookups: Worker,
    pages: Worker,
}

impl SqliteLedger {
    /// Opens the file, makes it if it is missing, and brings its schema up to date. For the process that owns it.
    ///
    /// # Errors
    /// When the file cannot be opened, or belongs to a newer version.
    pub fn open(path: &Path) -> Result<Self, LedgerError> {
        let mut connection = connect(path, OpenFlags::default())?;
        connection
            .execute_batch(
                "PRAGMA journal_mode = WAL;
                 PRAGMA synchronous = NORMAL;
                 PRAGMA wal_autocheckpoint = 4000;
                 PRAGMA journal_size_limit = 67108864;
                 PRAGMA cache_size = -32768;",
            )
            .map_err(store_error)?;
        weir_migrations::run(&mut connection, weir_migrations::Set::Ledger)
            .map_err(|error| LedgerError::Unavailable { reason: format!("its schema cannot be applied: {error}") })?;
        let writer = Worker::start("ledger-writer", connection)?;
        Self::with_readers(path, Some(writer))
    }

    /// Opens an existing file for reading, beside the process that owns it or without one.
    ///
    /// # Errors
    /// When there is no such file or it cannot be read.
    pub fn open_read_only(path: &Path) -> Result<Self, LedgerError> {
        Self::with_readers(path, None)
    }

    fn with_readers(path: &Path, writer: Option<Worker>) -> Result<Self, LedgerError> {
        let reader = || {
            let connection = connect(path, OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
            connection.execute_batch("PRAGMA query_only = ON; PRAGMA cache_size = -8192;").map_err(store_error)?;
            Ok::<_, LedgerError>(connection)
        };
        Ok(Self {
            path: path.to_owned(),
            writer,
            lookups: Worker::start("ledger-lookups", reader()?)?,
            pages: Worker::start("ledger-pages", reader()?)?,
        })
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn writer(&self) -> Result<&Worker, LedgerError> {
        self.writer.as_ref().ok_or(LedgerError::ReadOnly)
    }
}

fn connect(path: &Path, flags: OpenFlags) -> Result<Connection, LedgerError> {
    let connection = Connection::open_with_flags(path, flags)
        .map_err(|error| LedgerError::Unavailable { reason: format!("{}: {error}", path.display()) })?;
    connection.busy_timeout(BUSY_TIMEOUT).map_err(store_error)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    Ok(connection)
}

#[expect(clippy::needless_pass_by_value, reason = "the form that map_err takes")]
fn store_error(error: rusqlite::Error) -> LedgerError {
    match error.sqlite_error_code() {
        Some(rusqlite::ErrorCode::DatabaseCorrupt | rusqlite::ErrorCode::NotADatabase) => {
            LedgerError::Damaged { what: "page", reason: error.to_string() }
        }
        Some(_) | None => LedgerError::Unavailable { reason: error.to_string() },
    }
}

#[async_trait]
impl LedgerStore for SqliteLedger {
    async fn post(&self, changes: Arc<[Change]>) -> Result<Posted, LedgerError> {
        self.writer()?.run(move |connection| write::post(connection, &changes)).await
    }

    async fn find(&self, id: ReservationId) -> Result<Option<StoredReservation>, LedgerError> {
        self.lookups.run(move |connection| read::find(connection, id)).await
    }

    async fn totals(
        &self,
        tenant: &TenantId,
        scope: Option<&Scope>,
        window: Option<Window>,
    ) -> Result<Charge, LedgerError> {
        let (tenant, scope) = (tenant.clone(), scope.cloned());
        self.pages.run(move |connection| read::totals(connection, &tenant, scope.as_ref(), window)).await
    }

    async fn lines(&self, page: LinePage) -> Result<Vec<LedgerLine>, LedgerError> {
        self.pages.run(move |connection| read::lines(connection, &page)).await
    }

    async fn open(&self, page: OpenPage) -> Result<Vec<OpenReservation>, LedgerError> {
        self.lookups.run(move |connection| read::open(connection, &page)).await
    }

    async fn count(&self) -> Result<Count, LedgerError> {
        self.pages.run(|connection| read::count(connection)).await
    }

    async fn save_checkpoint(&self, checkpoint: StoredCheckpoint, keep: usize) -> Result<(), LedgerError> {
        self.writer()?.run(move |connection| checkpoints::save(connection, &checkpoint, keep)).await
    }

    async fn checkpoint(&self, partitions: &[u32], nth: usize) -> Result<Option<StoredCheckpoint>, LedgerError> {
        let partitions = partitions.to_vec();
        self.pages.run(move |connection| checkpoints::load(connection, &partitions, nth)).await
    }
}

#[cfg(test)]
mod tests;
