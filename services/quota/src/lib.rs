//! The quota store: where admission is decided, atomically, for every replica that shares it.
//!
//! **Owns** the [`QuotaStore`] contract and its backends. The rules are `weir_domain::quota::Book`; a backend decides
//! only where a book lives and how it is locked. **Must not know** HTTP, providers, the log or the ledger.
//!
//! **Start** with [`QuotaStore`], then [`MemoryQuota`], then `redis` (the feature of that name).
//!
//! **Promises kept here**: I2 (never over-admit), I3 (a repeated command is a no-op), I11 (leases end), I15 (a store
//! that was not validated admits nothing).

#[cfg(feature = "conformance")]
pub mod conformance;
mod contract;
mod memory;
#[cfg(feature = "redis")]
pub mod redis;
mod trust;

pub use contract::{MOST_CLOCK_SKEW_MS, QuotaError, QuotaStore, TenantReading};
pub use memory::MemoryQuota;
pub use trust::{Asked, GOOD_FOR, Trust};
