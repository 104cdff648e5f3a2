//! Checkpoints as rows: the image cut into parts, because a value has a greatest length (a billion bytes).

use rusqlite::{Connection, OptionalExtension as _, params};

use crate::contract::{LedgerError, StoredCheckpoint};

use super::rows::{damaged, json};
use super::store_error;

/// Small enough that a part is copied in a few milliseconds.
const PART_BYTES: usize = 8 * 1024 * 1024;

pub(super) fn save(connection: &mut Connection, checkpoint: &StoredCheckpoint, keep: usize) -> Result<(), LedgerError> {
    let transaction = connection.transaction().map_err(store_error)?;
    let insert = "INSERT INTO checkpoints (taken_at_ms, positions, format, sha256) VALUES (?1, ?2, ?3, ?4)";
    let positions = json("checkpoint", &checkpoint.positions)?;
    let row = params![checkpoint.taken_at_ms, positions, checkpoint.format, checkpoint.sha256];
    transaction.execute(insert, row).map_err(store_error)?;
    let number = transaction.last_insert_rowid();
    let insert_part = "INSERT INTO checkpoint_parts (checkpoint, part, bytes) VALUES (?1, ?2, ?3)";
    for (part, bytes) in checkpoint.image.chunks(PART_BYTES).enumerate() {
        transaction.execute(insert_part, params![number, part, bytes]).map_err(store_error)?;
    }
    for surplus in numbers(&transaction, &checkpoint.partitions())?.into_iter().skip(keep.max(1)) {
        transaction.execute("DELETE FROM checkpoints WHERE number = ?1", [surplus]).map_err(store_error)?;
    }
    let prune_parts = "DELETE FROM checkpoint_parts WHERE checkpoint NOT IN (SELECT number FROM checkpoints)";
    transaction.execute(prune_parts, []).map_err(store_error)?;
    transaction.commit().map_err(store_error)
}

/// Of these partitions, newest first. There are only as many as are kept, so all are looked at.
fn numbers(connection: &Connection, partitions: &[u32]) -> Result<Vec<i64>, LedgerError> {
    let select = "SELECT number, positions FROM checkpoints ORDER BY number DESC";
    let mut statement = connection.prepare_cached(select).map_err(store_error)?;
    let mut rows = statement.query([]).map_err(store_error)?;
    let mut numbers = Vec::new();
    while let Some(row) = rows.next().map_err(store_error)? {
        let (number, positions): (i64, String) = (row.get(0).map_err(store_error)?, row.get(1).map_err(store_error)?);
        let positions: Vec<(u32, u64)> =
            serde_json::from_str(&positions).map_err(|error| damaged("checkpoint", &error))?;
        if positions.iter().map(|(partition, _)| partition).eq(partitions) {
            numbers.push(number);
        }
    }
    Ok(numbers)
}

pub(super) fn load(
    connection: &Connection,
    partitions: &[u32],
    nth: usize,
) -> Result<Option<StoredCheckpoint>, LedgerError> {
    let Some(number) = numbers(connection, partitions)?.into_iter().nth(nth) else { return Ok(None) };
    let select = "SELECT taken_at_ms, positions, format, sha256 FROM checkpoints WHERE number = ?1";
    let head = connection
        .query_row(select, [number], |row| Ok((row.get(0)?, row.get::<_, String>(1)?, row.get(2)?, row.get(3)?)))
        .optional()
        .map_err(store_error)?;
    let Some((taken_at_ms, positions, format, sha256)) = head else { return Ok(None) };
    let mut statement = connection
        .prepare_cached("SELECT bytes FROM checkpoint_parts WHERE checkpoint = ?1 ORDER BY part")
        .map_err(store_error)?;
    let mut parts = statement.query([number]).map_err(store_error)?;
    let mut image = Vec::new();
    while let Some(part) = parts.next().map_err(store_error)? {
        let bytes = part.get_ref(0).map_err(store_error)?;
        image.extend_from_slice(bytes.as_blob().map_err(|error| damaged("checkpoint", &error))?);
    }
    let positions = serde_json::from_str(&positions).map_err(|error| damaged("checkpoint", &error))?;
    Ok(Some(StoredCheckpoint { taken_at_ms, positions, format, sha256, image }))
}
