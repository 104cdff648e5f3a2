//! What a consumer keeps: its position, and the records of parked keys. The stores live beside the effect's own
//! tables (the SQLite ones in the ledger's crate), so that an effect can move its position in its own transaction.

use async_trait::async_trait;
use bytes::Bytes;
use thiserror::Error;

use super::Subscription;
use crate::contract::StoredRecord;

/// A store that did not answer as it should. The loop tries again.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct StoreError(pub String);

/// Where consumers stand.
#[async_trait]
pub trait Positions: Send + Sync {
    /// The offset of the next record to apply; `None` for a consumer that never stored one.
    ///
    /// # Errors
    /// When the store cannot be asked.
    async fn load(&self, subscription: &Subscription) -> Result<Option<u64>, StoreError>;

    /// MUST be durable when it returns, at least as durable as the effects before it.
    ///
    /// # Errors
    /// When it may not have been stored.
    async fn store(&self, subscription: &Subscription, next: u64) -> Result<(), StoreError>;
}

/// What an operator decided about a parked key. Asking is not doing: the consumer's loop acts on it, so that nobody
/// else applies records of that key at the same time. Whoever asks also appends who and why to `weir.operations`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resolution {
    /// Apply the parked records again, in order: the cause was repaired.
    Replay,
    /// Leave out the poison record at this offset, then apply the others. The offset makes a repeated order harmless.
    Skip { offset: u64 },
}

/// One parked key, as an operator sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParkedKey {
    pub key: Bytes,
    /// Of the poison record.
    pub offset: u64,
    pub reason: String,
    /// How many records wait, the poison one included.
    pub records: u64,
    pub asked: Option<Resolution>,
}

/// The parked store: per subscription and key, records in order.
///
/// ```text
///   log      a1  b1  a2✗  b2  a3  a4        a2 is poison
///   effect   a1  b1       b2                b is not held up
///   parked           a2 → a3 → a4           in order, until the key is resolved
/// ```
#[async_trait]
pub trait Parking: Send + Sync {
    /// Adds a record to its key's queue. MUST be durable when it returns, and a no-op when the record (by subscription
    /// and offset) is there. `reason` is that of the poison record;
    /// the one of a key's first parked record is kept.
    ///
    /// # Errors
    /// When it may not have been stored.
    async fn park(&self, of: &Subscription, record: &StoredRecord, reason: &str) -> Result<(), StoreError>;

    /// All keys with a record parked.
    ///
    /// # Errors
    /// When the store cannot be asked.
    async fn list(&self, of: &Subscription) -> Result<Vec<ParkedKey>, StoreError>;

    /// The parked records of a key by offset.
    ///
    /// # Errors
    /// When the store cannot be asked.
    async fn records(&self, of: &Subscription, key: &Bytes) -> Result<Vec<StoredRecord>, StoreError>;

    /// An operator's order; false if the key is not parked. A later one replaces it until the loop has acted.
    ///
    /// # Errors
    /// When it may not have been stored.
    async fn ask(&self, of: &Subscription, key: &Bytes, resolution: Resolution) -> Result<bool, StoreError>;

    /// The key's records up to and including `offset` are done. Without a record left the key is no longer parked.
    ///
    /// # Errors
    /// When it may not have been stored.
    async fn resolve(&self, of: &Subscription, key: &Bytes, offset: u64) -> Result<(), StoreError>;

    /// The order was carried out and the first record left is still poison, for this reason: forget the order.
    ///
    /// # Errors
    /// When it may not have been stored.
    async fn keep_parked(&self, of: &Subscription, key: &Bytes, reason: &str) -> Result<(), StoreError>;
}

#[cfg(any(test, feature = "conformance"))]
pub use memory::{MemoryParking, MemoryPositions};

#[cfg(any(test, feature = "conformance"))]
mod memory {
    //! Stores for tests: they outlive a consumer, as a database would, but not the process.

    use std::collections::{BTreeMap, HashMap};

    use parking_lot::Mutex;

    use super::{
        Bytes, ParkedKey, Parking, Positions, Resolution, StoreError, StoredRecord, Subscription, async_trait,
    };

    #[derive(Debug, Default)]
    pub struct MemoryPositions(Mutex<HashMap<Subscription, u64>>);

    #[async_trait]
    impl Positions for MemoryPositions {
        async fn load(&self, subscription: &Subscription) -> Result<Option<u64>, StoreError> {
            Ok(self.0.lock().get(subscription).copied())
        }

        async fn store(&self, subscription: &Subscription, next: u64) -> Result<(), StoreError> {
            self.0.lock().insert(subscription.clone(), next);
            Ok(())
        }
    }

    #[derive(Debug, Default)]
    pub struct MemoryParking(Mutex<BTreeMap<(Subscription, Bytes), Entry>>);

    #[derive(Debug, Default)]
    struct Entry {
        records: BTreeMap<u64, StoredRecord>,
        reason: String,
        asked: Option<Resolution>,
    }

    #[async_trait]
    impl Parking for MemoryParking {
        async fn park(&self, of: &Subscription, record: &StoredRecord, reason: &str) -> Result<(), StoreError> {
            let mut entries = self.0.lock();
            let entry = entries.entry((of.clone(), record.key.clone())).or_default();
            if entry.records.is_empty() {
                entry.reason = reason.to_owned();
            }
            entry.records.entry(record.offset).or_insert_with(|| record.clone());
            Ok(())
        }

        async fn list(&self, of: &Subscription) -> Result<Vec<ParkedKey>, StoreError> {
            let entries = self.0.lock();
            let mine = entries.iter().filter(|((subscription, _), _)| subscription == of);
            Ok(mine
                .filter_map(|((_, key), entry)| {
                    let (offset, _) = entry.records.first_key_value()?;
                    Some(ParkedKey {
                        key: key.clone(),
                        offset: *offset,
                        reason: entry.reason.clone(),
                        records: entry.records.len() as u64,
                        asked: entry.asked,
                    })
                })
                .collect())
        }

        async fn records(&self, of: &Subscription, key: &Bytes) -> Result<Vec<StoredRecord>, StoreError> {
            let entries = self.0.lock();
            let entry = entries.get(&(of.clone(), key.clone()));
            Ok(entry.map(|entry| entry.records.values().cloned().collect()).unwrap_or_default())
        }

        async fn ask(&self, of: &Subscription, key: &Bytes, resolution: Resolution) -> Result<bool, StoreError> {
            let mut entries = self.0.lock();
            match entries.get_mut(&(of.clone(), key.clone())).filter(|entry| !entry.records.is_empty()) {
                Some(entry) => {
                    entry.asked = Some(resolution);
                    Ok(true)
                }
                None => Ok(false),
            }
        }

        async fn resolve(&self, of: &Subscription, key: &Bytes, offset: u64) -> Result<(), StoreError> {
            if let Some(entry) = self.0.lock().get_mut(&(of.clone(), key.clone())) {
                entry.records = entry.records.split_off(&(offset + 1));
                if entry.records.is_empty() {
                    entry.asked = None;
                }
            }
            Ok(())
        }

        async fn keep_parked(&self, of: &Subscription, key: &Bytes, reason: &str) -> Result<(), StoreError> {
            if let Some(entry) = self.0.lock().get_mut(&(of.clone(), key.clone())) {
                entry.asked = None;
                entry.reason = reason.to_owned();
            }
            Ok(())
        }
    }
}
