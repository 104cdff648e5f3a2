//! The event log: topics, the [`EventLog`] contract, its two backends, and the loop by which consumers follow it.
//!
//! **Owns** `topics.toml`, the order and durability of records, positions, parking and dead letters. **Must not know**
//! what a payload means: keys and values are bytes here, the schemas give them a meaning.
//!
//! **Start** with [`contract`], whose trait is the promise that every backend keeps and `conformance` checks; then
//! [`segment`], the file format that is embedded log, spool and archive at once; then [`consumer`]. The backend for
//! several machines is `kafka` (feature `kafka`), with the `spool` that stands in while its brokers are away.
//!
//! **Promises kept here**: I8 (log first: *durable* is what a settle waits for), I13 (offsets without holes, copies
//! harmless, damage never skipped), I14 (*written* survives a killed process and never waits for a sync).

pub mod topics;

pub mod append;
pub mod contract;

pub mod segment;

#[cfg(feature = "kafka")]
pub mod kafka;
#[cfg(feature = "kafka")]
pub mod spool;
#[cfg(feature = "kafka")]
mod ticket;

mod metrics;

pub mod consumer;

#[cfg(any(test, feature = "conformance"))]
pub mod conformance;

pub use append::Append;
pub use consumer::{Applied, Consumer, ConsumerOptions, Delivery, Effect, EffectError, Subscription};
pub use contract::{
    AppendError, Batch, CloseCause, Closed, EventLog, Health, Limits, Offsets, Placed, Position, ReadError,
    StoredRecord, Visibility,
};
pub use metrics::LogMetrics;
pub use topics::{OnPoison, Retention, Topic, TopicSpec, Topics};
