//! The backend for several machines: ScyllaDB, or Apache Cassandra, whose CQL is taken by both.
//!
//! **What needs agreement, and what does not.** Only a line's key is contended in a way that matters: two builders that
//! disagree (two releases, a skip that one has not seen) must not both have their line. So a line is inserted `IF NOT
//! EXISTS`, by agreement of the replicas of one data centre. Everything else is written plainly: a change of a
//! reservation is a row of its own that nobody overwrites, rows of query tables follow from the line alone, and what is
//! open carries its log position as its write time. `.github/decisions/0007` has the argument and the figures.
//!
//! **What one `post` is.** Per reservation one write of one partition, whole or not at all; then the query tables, in
//! batches of one partition each. A crash between leaves a suffix that the repeated delivery writes again.

#[cfg(feature = "cql")]
mod checkpoints;
#[cfg(feature = "cql")]
mod consumers;
#[cfg(feature = "cql")]
mod known;
#[cfg(feature = "cql")]
mod ledger;
#[cfg(feature = "cql")]
mod lines;
#[cfg(feature = "cql")]
mod open;
#[cfg(feature = "cql")]
mod post;
#[cfg(feature = "cql")]
mod read;
#[cfg(feature = "cql")]
mod statements;
#[cfg(feature = "cql")]
mod stored;

pub use weir_migrations::cql::CqlOptions;

#[cfg(feature = "cql")]
pub use ledger::{CqlLedger, migrate};
