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
    let keep = i64::try_from(keep.max(1)).unwrap_or(i64::MAX);
    let prune = "DELETE FROM checkpoints WHERE number NOT IN
                     (SELECT number FROM checkpoints ORDER BY number DESC LIMIT ?1)";
    transaction.execute(prune, [keep]).map_err(store_error)?;
    let prune_parts = "DELETE FROM checkpoint_parts WHERE checkpoint NOT IN (SELECT number FROM checkpoints)";
    transaction.execute(prune_parts, []).map_err(store_error)?;
    transaction.commit().map_err(store_error)
}

pub(super) fn load(connection: &Connection, nth: usize) -> Result<Option<StoredCheckpoint>, LedgerError> {
    let select = "SELECT number, taken_at_ms, positions, format, sha256 FROM checkpoints ORDER BY number DESC
                  LIMIT 1 OFFSET ?1";
    let head = connection
        .query_row(select, [nth], |row| {
            let positions: String = row.get(2)?;
            Ok((row.get::<_, i64>(0)?, row.get(1)?, positions, row.get(3)?, row.get(4)?))
        })
        .optional()
        .map_err(store_error)?;
    let Some((number, taken_at_ms, positions, format, sha256)) = head else { return Ok(None) };
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
