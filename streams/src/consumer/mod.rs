//! How everything derived follows the log: effect first, then position.
//!
//! A [`Consumer`] reads durable records, hands them to its [`Effect`] in order, and only then moves its position. A
//! crash between the two delivers again, so **effects are idempotent**; one that can store the position in its own
//! transaction does so and says it. While there is a backlog a batch is large; at the tail it is what is there, at
//! once after silence and some 25 ms after the one before under load.
//!
//! An event that can never be digested must neither stop the others nor be passed over by later events of its key:
//! in money topics its key is **parked** (see [`Parking`]), elsewhere the record is skipped. Either way a dead letter
//! says what happened, before the position moves.

mod follow;
mod options;

mod dead_letter;
mod stores;

pub use dead_letter::{DeadLetter, DeadLetterError};
pub use follow::{Consumer, ConsumerError, Lag};
pub use options::ConsumerOptions;
#[cfg(any(test, feature = "conformance"))]
pub use stores::{MemoryParking, MemoryPositions};
pub use stores::{ParkedKey, Parking, Positions, Resolution, StoreError};

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use thiserror::Error;

use crate::contract::StoredRecord;
use crate::topics::Topic;

/// Who follows what: the key under which positions and parked records are stored.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Subscription {
    /// Such as `ledger`. A name never changes: under another one everything is read again from the start.
    pub consumer: Arc<str>,
    pub topic: Topic,
    pub partition: u32,
}

impl fmt::Display for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {}/{}", self.consumer, self.topic, self.partition)
    }
}

/// Records to apply, in order.
#[derive(Debug, Clone, Copy)]
pub struct Delivery<'a> {
    pub subscription: &'a Subscription,
    /// At least one. Offsets ascend; they may have holes where a key is parked.
    pub records: &'a [StoredRecord],
    /// What to store as the position in the same transaction, by an effect that can. `None` in a replay of parked
    /// records, which moves no position.
    pub position: Option<u64>,
}

/// What happened to the position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Applied {
    /// The loop stores the position now.
    Effect,
    /// The effect stored `Delivery::position` together with itself, where [`Positions::load`] finds it.
    EffectAndPosition,
}

/// What a consumer does with records.
#[async_trait]
pub trait Effect: Send + Sync {
    /// Applies all records of the delivery, in order.
    ///
    /// MUST be idempotent: the same records come again after a crash, a retry, or a poison record beside them, in
    /// deliveries cut in other places. MUST NOT return `Ok` before the effect is as durable as the position will be.
    ///
    /// # Errors
    /// [`EffectError`]. Records of the delivery may have been applied before it; they will be delivered again.
    async fn apply(&self, delivery: Delivery<'_>) -> Result<Applied, EffectError>;
}

/// Why records could not be applied.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum EffectError {
    /// Something else is in the way, such as a store that is away: the same records are tried again, for ever.
    #[error("{reason}")]
    Retry { reason: String },
    /// The record at `offset` can never be applied as it is.
    #[error("the record at offset {offset} cannot be applied: {reason}")]
    Poison { offset: u64, reason: String },
}

#[cfg(test)]
#[path = "../consumer_tests.rs"]
mod tests;
