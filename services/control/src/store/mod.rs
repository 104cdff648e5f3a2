//! Where the state of the control plane lives.
//!
//! The port is a read of everything and a conditional write: whatever plans a change does so on a value, and a backend
//! only has to compare a revision. Both are what one SQLite file and a log of writes in a wide-column store can do alike.
//! Whoever only looks (a page of an export, the counters of one tenant) asks for what he needs, so that the answer does
//! not wait for a hundred thousand other tenants.
//!
//! Calls block, because acts do: planning one and compiling its snapshot is up to a second of computing, so callers are
//! where blocking is allowed anyway.

#[cfg(feature = "cql")]
pub mod cql;
mod sqlite;

use std::collections::BTreeMap;
use std::fmt::Debug;

use thiserror::Error;

use weir_domain::ids::{PriceVersion, TenantId};
use weir_domain::price::PriceEntry;
use weir_migrations::MigrationError;

use crate::catalog::Catalog;
use crate::state::{Change, Publication, State, TenantState};

pub use sqlite::SqliteControlStore;

/// Why the store did not do it. Nothing is ever half written.
#[derive(Debug, Error)]
pub enum StoreError {
    /// Somebody else wrote since the state was read: read again and plan again.
    #[error("the control store was changed meanwhile")]
    Conflict,
    #[error("the control store was made with another {what}; restore the secret that it was made with")]
    WrongSecret { what: &'static str },
    /// A row that this version cannot read: the file was edited by hand, or is damaged.
    #[error("the control store has a {what} that cannot be read: {reason}")]
    Unreadable { what: &'static str, reason: String },
    #[error("the schema of the control store could not be brought up to date")]
    Migration(#[from] MigrationError),
    #[error("the control store failed")]
    Backend(#[from] rusqlite::Error),
    /// The servers are away, or not migrated. Nothing was written: the same again later is right.
    #[error("the control store is not available: {reason}")]
    Unavailable { reason: String },
    /// The write may have happened (O56): whoever reads later finds it, or not.
    #[error(
        "nobody knows yet whether the control store took the write ({reason}); look at what is there before it is repeated"
    )]
    Unknown { reason: String },
}

impl StoreError {
    /// Whether it is over by itself, or as soon as somebody has started or migrated the servers.
    #[must_use]
    pub const fn is_temporary(&self) -> bool {
        match self {
            Self::Conflict | Self::Unavailable { .. } | Self::Unknown { .. } => true,
            Self::WrongSecret { .. } | Self::Unreadable { .. } | Self::Migration(_) | Self::Backend(_) => false,
        }
    }
}

/// A control store.
///
/// A backend MUST
/// - return from [`read`](Self::read) one consistent state;
/// - apply the changes of one [`write`](Self::write) all or none, durably, and only if nothing was written since
///   `revision`, whoever writes; answer [`StoreError::Unknown`] where it cannot find out whether it did;
/// - keep every published price book and applied catalog for good, under its content's name.
///
/// A catalog or a price book of a write that was refused MAY be there as well: it is what its name says, and no state and
/// no publication speaks of it.
///
/// It MUST NOT hold a secret in plain text, or change anything that the changes do not name.
pub trait ControlStore: Debug + Send + Sync {
    fn read(&self) -> Result<State, StoreError>;

    /// Ids of all tenants by name, also of those that the catalog has no more.
    fn tenant_ids(&self) -> Result<BTreeMap<String, TenantId>, StoreError>;

    /// One tenant, by name or id, with all that belongs to it. MUST be what [`read`](Self::read) would say.
    fn tenant(&self, asked: &str) -> Result<Option<TenantState>, StoreError>;

    /// Returns the new revision.
    fn write(&self, revision: u64, changes: &[Change]) -> Result<u64, StoreError>;

    /// The prices that were published under `version`, at whatever time.
    fn prices(&self, version: &PriceVersion) -> Result<Option<Vec<PriceEntry>>, StoreError>;

    /// The catalog that was applied under this name, at whatever time.
    fn catalog(&self, content_sha256: &str) -> Result<Option<Catalog>, StoreError>;

    /// The newest publications, newest first, at most `most`.
    fn publications(&self, most: usize) -> Result<Vec<Publication>, StoreError>;
}
