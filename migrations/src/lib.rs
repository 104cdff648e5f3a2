//! # weir-migrations
//!
//! Owns the schemas of Weir's databases, as numbered SQL and CQL files that only go forward, and the runner that brings a
//! database to the newest of them; and the one way in which a keyspace of several machines is opened and asked.
//!
//! It must not know what the tables mean: the crates that read them own the content of their folder (`control/` belongs
//! to weir-control, `ledger/` to weir-ledger), and the file of an SQLite database, and its pragmas, are theirs as well.
//!
//! Start at [`run`], and at [`cql`] for what several machines share; `migrations/README.md` says how a change of schema
//! is spread over releases.

mod error;
mod history;
mod runner;
mod sets;

pub mod cql;

pub use error::MigrationError;
pub use runner::{Migrated, run};
#[cfg(feature = "cql")]
pub use sets::CqlSet;
pub use sets::Set;
