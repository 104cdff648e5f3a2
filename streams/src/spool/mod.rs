//! The spool: a segment log beside Kafka that takes over when the brokers do not confirm.
//!
//! ```text
//!             ┌── direct ──▶ Kafka                         confirmed: durable
//!   append ───┤        └─ not confirmed after 100 ms ─┐
//!             └── spooling ───────────────────────────┴──▶ segment ──▶ forwarder ──▶ Kafka
//!                                                          synced: durable
//! ```
//!
//! Each topic is a lane (`lane.rs`) with two states. **Direct**: batches go to Kafka at once. When one is not confirmed in time,
//! it and all behind it are also written to the spool, in order, and the lane is **spooling**: everything goes through
//! the spool, and a forwarder hands it to Kafka in the spool's order. It is direct again once all of the spool was handed
//! over and the brokers answer in time.
//!
//! **No event overtakes an older one of its key.** Within a process, because whatever is handed to Kafka is handed over
//! in the order of the appends, and nothing that was handed over ever times out: the library keeps the order until it is
//! confirmed. Over a crash, because the spool has everything that was not confirmed, in order, and is forwarded from the
//! first record that may not have been. Copies come from there, behind their first occurrence.
//!
//! **Room** is bounded. The last part of it is kept for the closing events of what runs: with only that left,
//! [`EventLog::health`] says closed, so that nothing new is admitted, while appends still pass.

mod forward;
mod forwarded;
mod lane;
mod log;
mod metrics;

pub use log::{Adopted, SpoolError, SpoolStatus, SpooledLog, adopt};
pub use metrics::SpoolMetrics;

#[cfg(doc)]
use crate::contract::EventLog;
