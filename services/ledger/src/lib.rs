//! The ledger: what every reservation was charged, as lines that are only ever added.
//!
//! **Owns** the [`LedgerStore`] contract with its backends, the builder that fills it from the log, checkpoints, exports
//! and the replay that proves it. What a line says is decided in `weir_domain::ledger`; here it is stored, told and
//! compared. **Must not know** HTTP, providers, policies, or how a reservation is admitted and ended.
//!
//! **Start** with [`contract`], the promise of a store; then [`builder`], whose one delivery is the whole way from event
//! to line; then [`mod@start`], which is the same way after a restart.
//!
//! **Promises kept here**: I8 (lines are append-only and unique on reservation, attempt and sequence), I12 (they sum to
//! the counters), I13 (the same log gives the same lines, from its first segment or from a verified checkpoint).

#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
pub mod contract;
pub mod cql;
pub mod sqlite;
mod hours;

pub mod builder;
pub mod handover;
mod outgoing;
pub mod projection;

pub mod checkpoint;
pub mod start;

pub mod export;
pub mod verify;

#[cfg(test)]
mod testing;

pub use builder::{Beside, CONSUMER, LedgerBuilder, Witness, subscription};
pub use checkpoint::CheckpointOptions;
pub use contract::{LedgerError, LedgerStore};
#[cfg(feature = "cql")]
pub use cql::CqlLedger;
pub use cql::CqlOptions;
pub use handover::Handover;
pub use sqlite::SqliteLedger;
pub use start::{Folded, Started, start};
