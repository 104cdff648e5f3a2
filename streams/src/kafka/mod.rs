//! The event log on Apache Kafka.
//!
//! ```text
//!   append ──▶ producer (idempotent, acks=all) ──▶ partition = murmur2(key) mod partitions ──▶ all in-sync replicas
//!   read   ◀── cursor: a buffer in front of one partition, at the place where its reader goes on
//!   group  ◀── who follows which partition; each one by a `Consumer` of its own
//! ```
//!
//! **Order** rests on three things: one partition for a key, decided here by the rule that Kafka's own clients use; an
//! idempotent producer, which lets the brokers refuse what comes out of order; and an enqueuing lock per topic, so that
//! the records of a step stand side by side in the library's queue.
//!
//! **Durable** is the acknowledgement of all in-sync replicas; that it means something depends on how the topic was
//! created, so a topic that cannot keep the promise is refused when the log is opened (see [`topics`]).
//!
//! **Unknown is not failed.** A produce that timed out may be in the log, and the library, which takes a new epoch
//! after it, may have left several copies. So the receipt says *unknown*, and readers count the first copy. With a
//! [`spool`](crate::spool) in front nothing times out: what is not confirmed waits there.

mod options;

mod client;
mod open;
pub mod topics;

mod log;
mod partition;
mod produce;

mod reader;

mod group;

pub use client::KafkaError;
pub use group::{Assignee, Group, GroupError, Work};
pub use log::KafkaLog;
pub use open::OpenError;
pub use options::{Compression, KafkaOptions, SpoolOptions};
