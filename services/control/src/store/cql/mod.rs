//! The control store of several control planes: ScyllaDB, or Apache Cassandra.
//!
//! **A log of writes.** What one write changes is stored first, wherever nobody looks yet: large texts in parts, catalogs
//! and price books under their content's name, tenants' secrets in a table of their own. Then the next revision is
//! claimed by one conditional insert, agreed on by the replicas of one data centre, and with it everything is in force
//! at once. Two writers of one revision: one claims it, the other is told `Conflict` and has changed nothing that
//! anybody reads. The state is the fold of the log; a process keeps what it has folded and reads only what came since.
//!
//! **What is left behind.** A writer that lost removes its parts, because another one's claim is final. One that dies
//! before its claim leaves parts that nobody ever reads; they have no life after which they are gone by themselves, as
//! a claim that came late would then have lost what it claims.
//!
//! **The port blocks**, and the driver does not: it runs on a thread of its own (`driver`), whoever asks.

mod contents;
mod driver;
mod known;
mod statements;
mod stored;
mod writes;

#[cfg(test)]
mod stored_tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use weir_domain::ids::{PriceVersion, TenantId};
use weir_domain::price::PriceEntry;
use weir_migrations::cql::{self, Cql, CqlError};
use weir_migrations::{CqlSet, Migrated, MigrationError};

use super::{ControlStore, StoreError};
use crate::catalog::Catalog;
use crate::secrets::{MasterKey, Pepper};
use crate::state::{Change, Publication, State, TenantState};

use driver::Driver;
use known::Known;
use statements::Statements;

pub use weir_migrations::cql::CqlOptions;

/// Brings the tables of control planes up to date; what `weir migrate` does. `run_id` is used by no other run, ever.
///
/// # Errors
/// [`MigrationError`].
pub async fn migrate(options: &CqlOptions, run_id: &str) -> Result<Migrated, MigrationError> {
    cql::migrate(options, CqlSet::Control, run_id).await
}

/// The control store in one keyspace, which any number of processes share.
#[derive(Debug)]
pub struct CqlControlStore {
    keyspace: Arc<Keyspace>,
    driver: Driver,
}

/// What a call needs, wherever it runs.
#[derive(Debug)]
struct Keyspace {
    cql: Cql,
    statements: Statements,
    /// The fold, as far as this process has come. The lock is held while it is brought up to date, so that many readers
    /// read what is new once.
    known: tokio::sync::Mutex<Arc<Known>>,
}

impl CqlControlStore {
    /// Connects, and checks that the tables are those of this binary and the secrets those of this store. It makes no
    /// tables: see [`migrate`]. Blocks.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] while no node answers and, told by its reason, while the keyspace is not migrated;
    /// [`StoreError::WrongSecret`] where the store was made with another pepper or master key.
    pub fn open(options: &CqlOptions, pepper: &Pepper, master: &MasterKey) -> Result<Self, StoreError> {
        let driver = Driver::start()?;
        let (options, checks) = (options.clone(), (pepper.check(), master.check()));
        let keyspace = driver.run(async move {
            let cql = Cql::open(&options, CqlSet::Control).await?;
            let statements = Statements::prepare(&cql, &options.keyspace).await?;
            let keyspace = Keyspace { cql, statements, known: tokio::sync::Mutex::default() };
            keyspace.check_secrets(checks).await?;
            Ok(keyspace)
        })?;
        Ok(Self { keyspace: Arc::new(keyspace), driver })
    }
}

impl From<CqlError> for StoreError {
    fn from(error: CqlError) -> Self {
        match error {
            CqlError::Unavailable { reason } => Self::Unavailable { reason },
            CqlError::Unknown { reason } => Self::Unknown { reason },
            CqlError::Damaged { what, reason } => Self::Unreadable { what, reason },
        }
    }
}

impl ControlStore for CqlControlStore {
    fn read(&self) -> Result<State, StoreError> {
        let keyspace = Arc::clone(&self.keyspace);
        self.driver.run(async move { Ok(keyspace.newest().await?.state.clone()) })
    }

    fn tenant_ids(&self) -> Result<BTreeMap<String, TenantId>, StoreError> {
        let keyspace = Arc::clone(&self.keyspace);
        self.driver.run(async move { Ok(keyspace.newest_names().await?.state.tenant_ids()) })
    }

    fn tenant(&self, asked: &str) -> Result<Option<TenantState>, StoreError> {
        let (keyspace, asked) = (Arc::clone(&self.keyspace), asked.to_owned());
        self.driver.run(async move { keyspace.tenant(&asked).await })
    }

    fn write(&self, revision: u64, changes: &[Change]) -> Result<u64, StoreError> {
        let (keyspace, changes) = (Arc::clone(&self.keyspace), changes.to_vec());
        self.driver.run(async move { keyspace.write(revision, &changes).await })
    }

    fn prices(&self, version: &PriceVersion) -> Result<Option<Vec<PriceEntry>>, StoreError> {
        let (keyspace, version) = (Arc::clone(&self.keyspace), version.clone());
        self.driver.run(async move { keyspace.price_book(&version).await })
    }

    fn catalog(&self, content_sha256: &str) -> Result<Option<Catalog>, StoreError> {
        let (keyspace, content_sha256) = (Arc::clone(&self.keyspace), content_sha256.to_owned());
        self.driver.run(async move { keyspace.applied_catalog(&content_sha256).await })
    }

    fn publications(&self, most: usize) -> Result<Vec<Publication>, StoreError> {
        let keyspace = Arc::clone(&self.keyspace);
        self.driver.run(async move { keyspace.publications(most).await })
    }
}
