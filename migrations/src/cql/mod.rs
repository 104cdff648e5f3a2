//! One keyspace on ScyllaDB, or on Apache Cassandra: where it is, a session on it, and its tables brought up to date.
//!
//! The ledger and the control store both live in one, each with tables of its own, so what opens a session and knows
//! what its failures mean stands below both.

mod options;

#[cfg(feature = "cql")]
mod error;
#[cfg(feature = "cql")]
mod runner;
#[cfg(feature = "cql")]
mod session;
#[cfg(feature = "cql")]
mod statements;

pub use options::CqlOptions;

#[cfg(feature = "cql")]
pub use error::CqlError;
#[cfg(feature = "cql")]
pub(crate) use runner::LOCK_S;
#[cfg(feature = "cql")]
pub use runner::migrate;
#[cfg(feature = "cql")]
pub use session::{Cql, conditional_batch, upserts};
#[cfg(feature = "cql")]
pub use statements::Prepare;
