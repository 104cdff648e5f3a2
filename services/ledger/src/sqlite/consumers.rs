//! What consumers keep beside the ledger: positions and parked records, in the file whose effects they order.

use async_trait::async_trait;
use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension as _, params};

use weir_streams::StoredRecord;
use weir_streams::consumer::{ParkedKey, Parking, Positions, Resolution, StoreError, Subscription};

use crate::contract::LedgerError;

use super::{SqliteLedger, store_error};

fn trouble(error: LedgerError) -> StoreError {
    StoreError(error.to_string())
}

/// SQLite has signed integers; an offset beyond them is 292 million years of a million records a second.
fn signed(offset: u64) -> i64 {
    i64::try_from(offset).unwrap_or(i64::MAX)
}

#[async_trait]
impl Positions for SqliteLedger {
    async fn load(&self, subscription: &Subscription) -> Result<Option<u64>, StoreError> {
        let of = subscription.clone();
        let sql = "SELECT next_offset FROM positions WHERE consumer = ?1 AND topic = ?2 AND log_partition = ?3";
        let load = move |connection: &mut Connection| {
            let mut statement = connection.prepare_cached(sql).map_err(store_error)?;
            let key = params![&*of.consumer, of.topic.suffix(), of.partition];
            statement.query_row(key, |row| row.get(0)).optional().map_err(store_error)
        };
        self.lookups.run(load).await.map_err(trouble)
    }

    async fn store(&self, subscription: &Subscription, next: u64) -> Result<(), StoreError> {
        let of = subscription.clone();
        let sql = "INSERT INTO positions (consumer, topic, log_partition, next_offset) VALUES (?1, ?2, ?3, ?4)
                   ON CONFLICT DO UPDATE SET next_offset = excluded.next_offset";
        let store = move |connection: &mut Connection| {
            let mut statement = connection.prepare_cached(sql).map_err(store_error)?;
            let row = params![&*of.consumer, of.topic.suffix(), of.partition, signed(next)];
            statement.execute(row).map(|_| ()).map_err(store_error)
        };
        self.writer().map_err(trouble)?.run(store).await.map_err(trouble)
    }
}

#[async_trait]
impl Parking for SqliteLedger {
    async fn park(&self, of: &Subscription, record: &StoredRecord, reason: &str) -> Result<(), StoreError> {
        let (of, record, reason) = (of.clone(), record.clone(), reason.to_owned());
        let park = move |connection: &mut Connection| {
            let transaction = connection.transaction().map_err(store_error)?;
            let (consumer, topic, key) = (&*of.consumer, of.topic.suffix(), &record.key[..]);
            transaction
                .execute(
                    "INSERT INTO parked_keys (consumer, topic, log_partition, key, reason) VALUES (?1, ?2, ?3, ?4, ?5)
                     ON CONFLICT DO NOTHING",
                    params![consumer, topic, of.partition, key, reason],
                )
                .map_err(store_error)?;
            transaction
                .execute(
                    "INSERT INTO parked (consumer, topic, log_partition, key, log_offset, value, time_ms)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT DO NOTHING",
                    params![
                        consumer,
                        topic,
                        of.partition,
                        key,
                        signed(record.offset),
                        &record.value[..],
                        record.time_ms
                    ],
                )
                .map_err(store_error)?;
            transaction.commit().map_err(store_error)
        };
        self.writer().map_err(trouble)?.run(park).await.map_err(trouble)
    }

    async fn list(&self, of: &Subscription) -> Result<Vec<ParkedKey>, StoreError> {
        let of = of.clone();
        let sql = "SELECT k.key, min(p.log_offset), k.reason, count(*), k.asked, k.asked_offset
                   FROM parked_keys k JOIN parked p USING (consumer, topic, log_partition, key)
                   WHERE consumer = ?1 AND topic = ?2 AND log_partition = ?3 GROUP BY k.key ORDER BY 2";
        let list = move |connection: &mut Connection| {
            let mut statement = connection.prepare_cached(sql).map_err(store_error)?;
            let of = params![&*of.consumer, of.topic.suffix(), of.partition];
            let keys = statement.query_map(of, |row| {
                let asked: Option<String> = row.get(4)?;
                let asked_offset: Option<u64> = row.get(5)?;
                Ok(ParkedKey {
                    key: Bytes::from(row.get::<_, Vec<u8>>(0)?),
                    offset: row.get(1)?,
                    reason: row.get(2)?,
                    records: row.get(3)?,
                    asked: match (asked.as_deref(), asked_offset) {
                        (Some(SKIP), Some(offset)) => Some(Resolution::Skip { offset }),
                        (Some(_), _) => Some(Resolution::Replay),
                        (None, _) => None,
                    },
                })
            });
            keys.and_then(Iterator::collect).map_err(store_error)
        };
        self.lookups.run(list).await.map_err(trouble)
    }

    async fn records(&self, of: &Subscription, key: &Bytes) -> Result<Vec<StoredRecord>, StoreError> {
        let (of, key) = (of.clone(), key.clone());
        let sql = "SELECT log_offset, value, time_ms FROM parked
                   WHERE consumer = ?1 AND topic = ?2 AND log_partition = ?3 AND key = ?4 ORDER BY log_offset";
        let records = move |connection: &mut Connection| {
            let mut statement = connection.prepare_cached(sql).map_err(store_error)?;
            let of_key = params![&*of.consumer, of.topic.suffix(), of.partition, &key[..]];
            let records = statement.query_map(of_key, |row| {
                Ok(StoredRecord {
                    partition: of.partition,
                    offset: row.get(0)?,
                    key: key.clone(),
                    value: Bytes::from(row.get::<_, Vec<u8>>(1)?),
                    time_ms: row.get(2)?,
                })
            });
            records.and_then(Iterator::collect).map_err(store_error)
        };
        self.lookups.run(records).await.map_err(trouble)
    }

    async fn ask(&self, of: &Subscription, key: &Bytes, resolution: Resolution) -> Result<bool, StoreError> {
        let (asked, offset) = match resolution {
            Resolution::Replay => ("replay", None),
            Resolution::Skip { offset } => (SKIP, Some(signed(offset))),
        };
        let sql = "UPDATE parked_keys SET asked = ?5, asked_offset = ?6
                   WHERE consumer = ?1 AND topic = ?2 AND log_partition = ?3 AND key = ?4";
        let (of, key) = (of.clone(), key.clone());
        let ask = move |connection: &mut Connection| {
            let row = params![&*of.consumer, of.topic.suffix(), of.partition, &key[..], asked, offset];
            connection.execute(sql, row).map(|changed| changed > 0).map_err(store_error)
        };
        self.writer().map_err(trouble)?.run(ask).await.map_err(trouble)
    }

    async fn resolve(&self, of: &Subscription, key: &Bytes, offset: u64) -> Result<(), StoreError> {
        let (of, key) = (of.clone(), key.clone());
        let resolve = move |connection: &mut Connection| {
            let transaction = connection.transaction().map_err(store_error)?;
            let (consumer, topic) = (&*of.consumer, of.topic.suffix());
            transaction
                .execute(
                    "DELETE FROM parked WHERE consumer = ?1 AND topic = ?2 AND log_partition = ?3 AND key = ?4
                     AND log_offset <= ?5",
                    params![consumer, topic, of.partition, &key[..], signed(offset)],
                )
                .map_err(store_error)?;
            transaction
                .execute(
                    "DELETE FROM parked_keys WHERE consumer = ?1 AND topic = ?2 AND log_partition = ?3 AND key = ?4
                     AND NOT EXISTS (SELECT 1 FROM parked WHERE consumer = ?1 AND topic = ?2 AND log_partition = ?3
                         AND key = ?4)",
                    params![consumer, topic, of.partition, &key[..]],
                )
                .map_err(store_error)?;
            transaction.commit().map_err(store_error)
        };
        self.writer().map_err(trouble)?.run(resolve).await.map_err(trouble)
    }

    async fn keep_parked(&self, of: &Subscription, key: &Bytes, reason: &str) -> Result<(), StoreError> {
        let (of, key, reason) = (of.clone(), key.clone(), reason.to_owned());
        let sql = "UPDATE parked_keys SET asked = NULL, asked_offset = NULL, reason = ?5
                   WHERE consumer = ?1 AND topic = ?2 AND log_partition = ?3 AND key = ?4";
        let keep = move |connection: &mut Connection| {
            let row = params![&*of.consumer, of.topic.suffix(), of.partition, &key[..], reason];
            connection.execute(sql, row).map(|_| ()).map_err(store_error)
        };
        self.writer().map_err(trouble)?.run(keep).await.map_err(trouble)
    }
}

const SKIP: &str = "skip";
