//! Opening, and the contract as a table of contents.

use std::sync::Arc;

use async_trait::async_trait;

use weir_domain::calendar::Window;
use weir_domain::ids::{ReservationId, TenantId};
use weir_domain::ledger::LedgerLine;
use weir_domain::money::Charge;
use weir_domain::quota::Scope;
use weir_migrations::cql::{self, Cql, CqlError, CqlOptions};
use weir_migrations::{CqlSet, Migrated, MigrationError};
use weir_runtime::clock::SharedClock;

use crate::contract::{
    Change, Count, LedgerError, LedgerStore, LinePage, OpenPage, OpenReservation, Posted, StoredCheckpoint,
    StoredReservation,
};

use super::known::Known;
use super::statements::Statements;

/// The ledger in one keyspace, which any number of processes share.
#[derive(Debug)]
pub struct CqlLedger {
    pub(super) cql: Cql,
    pub(super) statements: Statements,
    pub(super) clock: SharedClock,
    pub(super) known: Known,
}

/// Makes the keyspace where it is missing and brings its tables up to date; what `weir migrate` does. `run_id` is used
/// by no other run, ever.
///
/// # Errors
/// [`MigrationError`].
pub async fn migrate(options: &CqlOptions, run_id: &str) -> Result<Migrated, MigrationError> {
    cql::migrate(options, CqlSet::Ledger, run_id).await
}

impl CqlLedger {
    /// Connects and checks that the tables are those of this binary. It makes none: see [`migrate`].
    ///
    /// # Errors
    /// `Unavailable` while no node answers (try again: a role starts before its stores) and, told by its reason, while
    /// the keyspace is not migrated. The clock is for the directory of minutes alone, whose entries nobody misses.
    pub async fn open(options: &CqlOptions, clock: SharedClock) -> Result<Self, LedgerError> {
        let cql = Cql::open(options, CqlSet::Ledger).await?;
        let statements = Statements::prepare(&cql, &options.keyspace).await?;
        Ok(Self { cql, statements, clock, known: Known::default() })
    }
}

/// A builder posts again whatever it did not hear of, so what is unknown is to it what did not happen.
impl From<CqlError> for LedgerError {
    fn from(error: CqlError) -> Self {
        match error {
            CqlError::Unavailable { reason } | CqlError::Unknown { reason } => Self::Unavailable { reason },
            CqlError::Damaged { what, reason } => Self::Damaged { what, reason },
        }
    }
}

#[async_trait]
impl LedgerStore for CqlLedger {
    async fn post(&self, changes: Arc<[Change]>) -> Result<Posted, LedgerError> {
        self.post_changes(&changes).await
    }

    async fn find(&self, id: ReservationId) -> Result<Option<StoredReservation>, LedgerError> {
        self.find_reservation(id).await
    }

    async fn totals(
        &self,
        tenant: &TenantId,
        scope: Option<&Scope>,
        window: Option<Window>,
    ) -> Result<Charge, LedgerError> {
        self.sum(tenant, scope, window).await
    }

    async fn lines(&self, page: LinePage) -> Result<Vec<LedgerLine>, LedgerError> {
        self.page_of_lines(&page).await
    }

    async fn open(&self, page: OpenPage) -> Result<Vec<OpenReservation>, LedgerError> {
        self.page_of_open(&page).await
    }

    async fn count(&self) -> Result<Count, LedgerError> {
        self.count_rows().await
    }

    async fn save_checkpoint(&self, checkpoint: StoredCheckpoint, keep: usize) -> Result<(), LedgerError> {
        self.write_checkpoint(&checkpoint, keep).await
    }

    async fn checkpoint(&self, partitions: &[u32], nth: usize) -> Result<Option<StoredCheckpoint>, LedgerError> {
        self.read_checkpoint(partitions, nth).await
    }
}
