//! The reconciler: ends what did not end by itself, and brings every late word back to ledger and counters.
//!
//! **Owns** the sweep, the corrector, the matching of usage reports, their import, and the comparison of counters with
//! the ledger. The rules are `weir_domain`'s (`plan`, `decide`, the ranks of the ledger); here they are acted on. **Must
//! not know** HTTP, dialects, how a store keeps its rows, or what a catalog file looks like.
//!
//! **Start** with [`sweep`], whose round is the whole idea: plan, append, then tell the store; [`moves`] turns a plan
//! into data. [`corrector`] is the way from the ledger to the counters, [`reports`] the one from providers to the log.
//!
//! **Promises kept here**: I8 (the log first, in every path), I9 (unknown stays held until somebody who knows has
//! spoken), I11 (every reservation ends or is escalated), I12 (counters follow the ledger), I15 (lost counters come back
//! only with everything that gateways hold: [`rebuild`]).

pub mod moves;
pub mod sweep;

pub mod corrector;

pub mod buckets;
pub mod claim;
pub mod import;
pub mod index;
pub mod reports;

pub mod presence;
pub mod rebuild;
mod tail;

pub mod compare;

pub mod journal;
pub mod projection;
pub mod rehearsal;

pub mod metrics;
pub mod options;
mod pending_share;

#[cfg(test)]
mod scenarios;

pub use compare::{Comparison, compare};
pub use corrector::Corrector;
pub use index::{AttemptIndex, IndexError, RecentCorrelations};
pub use journal::{Journal, JournalError};
pub use metrics::ReconcilerMetrics;
pub use options::ReconcilerOptions;
pub use pending_share::TenantLimits;
pub use presence::Presence;
pub use projection::Projection;
pub use reports::{Prices, ReportPorts, Reports};
pub use sweep::{CeilingPolicies, Sweep};
