//! What consumers keep beside the ledger: positions and parked records.
//!
//! A position is a plain upsert: an older one that comes late only repeats deliveries. Parked keys and records come and
//! go and come back, so each of those writes is a conditional one: the order of two of them is then agreed on by the
//! replicas and not left to clocks. They are as rare as poison is.

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::try_join_all;

use weir_streams::StoredRecord;
use weir_streams::consumer::{ParkedKey, Parking, Positions, Resolution, StoreError, Subscription};

use crate::contract::LedgerError;

use super::ledger::CqlLedger;
use super::stored::damaged;

const SKIP: &str = "skip";
const REPLAY: &str = "replay";

fn trouble(error: impl Into<LedgerError>) -> StoreError {
    StoreError(error.into().to_string())
}

/// Signed numbers, of which an offset uses up half.
fn signed(offset: u64) -> i64 {
    i64::try_from(offset).unwrap_or(i64::MAX)
}

fn unsigned(offset: i64) -> Result<u64, LedgerError> {
    u64::try_from(offset).map_err(|error| damaged("offset", &error))
}

/// A subscription as the tables name it.
fn named(of: &Subscription) -> (&str, &'static str, i32) {
    (&of.consumer, of.topic.suffix(), i32::try_from(of.partition).unwrap_or(i32::MAX))
}

#[async_trait]
impl Positions for CqlLedger {
    async fn load(&self, subscription: &Subscription) -> Result<Option<u64>, StoreError> {
        let found = self.cql.first::<(i64,)>(&self.statements.consumers.position, named(subscription)).await;
        found.map_err(trouble)?.map(|(next,)| unsigned(next)).transpose().map_err(trouble)
    }

    async fn store(&self, subscription: &Subscription, next: u64) -> Result<(), StoreError> {
        let (consumer, topic, partition) = named(subscription);
        let values = (consumer, topic, partition, signed(next));
        self.cql.execute(&self.statements.consumers.put_position, values).await.map(|_| ()).map_err(trouble)
    }
}

#[async_trait]
impl Parking for CqlLedger {
    async fn park(&self, of: &Subscription, record: &StoredRecord, reason: &str) -> Result<(), StoreError> {
        let (consumer, topic, partition) = named(of);
        let key = &record.key[..];
        // The key first: a record without one would never be listed, while a key without a record is passed over.
        let values = (consumer, topic, partition, key, reason);
        self.cql.conditional(&self.statements.consumers.put_parked_key, values).await.map_err(trouble)?;
        let values = (consumer, topic, partition, key, signed(record.offset), &record.value[..], record.time_ms);
        self.cql.conditional(&self.statements.consumers.put_parked, values).await.map(|_| ()).map_err(trouble)
    }

    async fn list(&self, of: &Subscription) -> Result<Vec<ParkedKey>, StoreError> {
        type Found = (Vec<u8>, Option<String>, Option<String>, Option<i64>);
        let keys: Vec<Found> =
            self.cql.rows(&self.statements.consumers.parked_keys, named(of)).await.map_err(trouble)?;
        let keys = keys.into_iter().map(|(key, reason, asked, asked_offset)| async move {
            let Some((offset, records)) = self.extent(of, &key).await? else {
                return Ok::<_, LedgerError>(None);
            };
            let asked = match (asked.as_deref(), asked_offset) {
                (Some(SKIP), Some(offset)) => Some(Resolution::Skip { offset: unsigned(offset)? }),
                (Some(_), _) => Some(Resolution::Replay),
                (None, _) => None,
            };
            let (key, reason) = (Bytes::from(key), reason.unwrap_or_default());
            Ok(Some(ParkedKey { key, offset, reason, records, asked }))
        });
        let mut keys: Vec<ParkedKey> = try_join_all(keys).await.map_err(trouble)?.into_iter().flatten().collect();
        keys.sort_by_key(|key| key.offset);
        Ok(keys)
    }

    async fn records(&self, of: &Subscription, key: &Bytes) -> Result<Vec<StoredRecord>, StoreError> {
        let (consumer, topic, partition) = named(of);
        let values = (consumer, topic, partition, &key[..]);
        let found: Vec<(i64, Vec<u8>, i64)> =
            self.cql.rows(&self.statements.consumers.parked_records, values).await.map_err(trouble)?;
        let records = found.into_iter().map(|(offset, value, time_ms)| {
            let (offset, value) = (unsigned(offset)?, Bytes::from(value));
            Ok(StoredRecord { partition: of.partition, offset, key: key.clone(), value, time_ms })
        });
        records.collect::<Result<_, LedgerError>>().map_err(trouble)
    }

    async fn ask(&self, of: &Subscription, key: &Bytes, resolution: Resolution) -> Result<bool, StoreError> {
        let (asked, offset) = match resolution {
            Resolution::Replay => (REPLAY, None),
            Resolution::Skip { offset } => (SKIP, Some(signed(offset))),
        };
        let (consumer, topic, partition) = named(of);
        let values = (asked, offset, consumer, topic, partition, &key[..]);
        self.cql.conditional(&self.statements.consumers.order, values).await.map_err(trouble)
    }

    async fn resolve(&self, of: &Subscription, key: &Bytes, offset: u64) -> Result<(), StoreError> {
        let (consumer, topic, partition) = named(of);
        let records = self.records(of, key).await?;
        for record in records.iter().filter(|record| record.offset <= offset) {
            let values = (consumer, topic, partition, &key[..], signed(record.offset));
            self.cql.conditional(&self.statements.consumers.delete_parked, values).await.map_err(trouble)?;
        }
        if records.iter().all(|record| record.offset <= offset) {
            let values = (consumer, topic, partition, &key[..]);
            self.cql.conditional(&self.statements.consumers.delete_parked_key, values).await.map_err(trouble)?;
        }
        Ok(())
    }

    async fn keep_parked(&self, of: &Subscription, key: &Bytes, reason: &str) -> Result<(), StoreError> {
        let (consumer, topic, partition) = named(of);
        let values = (reason, consumer, topic, partition, &key[..]);
        self.cql.conditional(&self.statements.consumers.forget_order, values).await.map(|_| ()).map_err(trouble)
    }
}

impl CqlLedger {
    /// The first parked offset of a key and how many there are.
    async fn extent(&self, of: &Subscription, key: &[u8]) -> Result<Option<(u64, u64)>, LedgerError> {
        let (consumer, topic, partition) = named(of);
        let values = (consumer, topic, partition, key);
        let found = self.cql.first::<(Option<i64>, i64)>(&self.statements.consumers.parked_extent, values).await?;
        match found {
            Some((Some(first), count)) => Ok(Some((unsigned(first)?, unsigned(count)?))),
            Some((None, _)) | None => Ok(None),
        }
    }
}
