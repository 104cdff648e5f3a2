//! Every statement of this backend, prepared once. All tables are named with their keyspace.

use scylla::statement::Consistency;
use scylla::statement::prepared::PreparedStatement;

use weir_migrations::cql::{Cql, CqlError, Prepare};

#[derive(Debug)]
pub(super) struct Statements {
    pub reservations: Reservations,
    pub lines: Lines,
    pub open: Open,
    pub consumers: Consumers,
    pub checkpoints: Checkpoints,
}

/// What is stored of a reservation.
#[derive(Debug)]
pub(super) struct Reservations {
    /// A row of a reservation: a line or a change. Columns that it has not are left unset.
    pub put_row: PreparedStatement,
    /// The same, if the key is free.
    pub put_line: PreparedStatement,
    pub line: PreparedStatement,
    pub rows_of_reservation: PreparedStatement,
    pub all_rows: PreparedStatement,
}

/// Query tables of lines, and the directory of them.
#[derive(Debug)]
pub(super) struct Lines {
    pub put_by_hour: PreparedStatement,
    pub put_by_key: PreparedStatement,
    pub put_by_model: PreparedStatement,
    pub put_tenant_day: PreparedStatement,
    pub put_tenant_block: PreparedStatement,
    pub tenant_days: PreparedStatement,
    pub tenant_blocks: PreparedStatement,
    pub lines_of_hour: PreparedStatement,
    pub sums_by_hour: PreparedStatement,
    pub sums_by_key: PreparedStatement,
    pub sums_by_model: PreparedStatement,
}

/// What is open, and the directory of it.
#[derive(Debug)]
pub(super) struct Open {
    pub put_open: PreparedStatement,
    pub delete_open: PreparedStatement,
    pub open_of_minute: PreparedStatement,
    pub put_open_minute: PreparedStatement,
    pub delete_open_minute: PreparedStatement,
    pub open_minutes: PreparedStatement,
    pub put_log_partition: PreparedStatement,
    pub log_partitions: PreparedStatement,
}

/// Positions and parked records.
#[derive(Debug)]
pub(super) struct Consumers {
    pub put_position: PreparedStatement,
    pub position: PreparedStatement,
    pub put_parked_key: PreparedStatement,
    pub delete_parked_key: PreparedStatement,
    pub order: PreparedStatement,
    pub forget_order: PreparedStatement,
    pub parked_keys: PreparedStatement,
    pub put_parked: PreparedStatement,
    pub delete_parked: PreparedStatement,
    pub parked_records: PreparedStatement,
    pub parked_extent: PreparedStatement,
}

/// Images of the fold.
#[derive(Debug)]
pub(super) struct Checkpoints {
    pub claim_checkpoint: PreparedStatement,
    pub finish_checkpoint: PreparedStatement,
    pub delete_checkpoint: PreparedStatement,
    pub checkpoints: PreparedStatement,
    pub put_part: PreparedStatement,
    pub delete_part: PreparedStatement,
    pub part: PreparedStatement,
}

const PUT_ROW: &str = "INSERT INTO {ks}.reservations \
     (reservation, attempt, seq, cut, created, change, line, requests, tokens, nusd) VALUES (?,?,?,?,?,?,?,?,?,?)";
const FACTS: &str = "tenant, log_partition, log_offset, reservation, attempt, seq, team, key_id, model, window_day, \
     window_week, window_month, counting, requests, tokens, nusd";
const SUMS: &str = "team, key_id, model, window_day, window_week, window_month, counting, requests, tokens, nusd";
const OF_PARKED: &str = "consumer = ? AND topic = ? AND log_partition = ?";

impl Statements {
    pub async fn prepare(cql: &Cql, keyspace: &str) -> Result<Self, CqlError> {
        let prepare = Prepare { cql, keyspace };
        Ok(Self {
            reservations: Reservations::prepare(&prepare).await?,
            lines: Lines::prepare(&prepare).await?,
            open: Open::prepare(&prepare).await?,
            consumers: Consumers::prepare(&prepare).await?,
            checkpoints: Checkpoints::prepare(&prepare).await?,
        })
    }
}

impl Reservations {
    async fn prepare(prepare: &Prepare<'_>) -> Result<Self, CqlError> {
        let mut line = prepare
            .plain(
                "SELECT created, line, requests, tokens, nusd FROM {ks}.reservations \
                 WHERE reservation = ? AND attempt = ? AND seq = ? AND cut = 0",
            )
            .await?;
        // What a conditional insert met is read as conditional writes see it: a write that nobody finished is finished.
        line.set_consistency(Consistency::LocalSerial);
        Ok(Self {
            put_row: prepare.plain(PUT_ROW).await?,
            put_line: prepare.conditional(&format!("{PUT_ROW} IF NOT EXISTS")).await?,
            line,
            rows_of_reservation: prepare
                .plain(
                    "SELECT attempt, seq, cut, created, change, line, requests, tokens, nusd FROM {ks}.reservations \
                     WHERE reservation = ?",
                )
                .await?,
            all_rows: prepare
                .plain("SELECT reservation, attempt, requests, tokens, nusd FROM {ks}.reservations")
                .await?,
        })
    }
}

impl Lines {
    async fn prepare(prepare: &Prepare<'_>) -> Result<Self, CqlError> {
        let facts_and = |more: &str| format!("{FACTS}, {more}");
        let sums = |of: &str| format!("SELECT {SUMS} FROM {{ks}}.{of}");
        Ok(Self {
            put_by_hour: prepare
                .upsert("lines_by_hour", &facts_and("hour, block, posted_at_ms, created, line"))
                .await?,
            put_by_key: prepare.upsert("lines_by_key", &facts_and("day, block")).await?,
            put_by_model: prepare.upsert("lines_by_model", &facts_and("day, block")).await?,
            put_tenant_day: prepare.upsert("tenant_days", "tenant, day").await?,
            put_tenant_block: prepare.upsert("tenant_blocks", "tenant, day, hour, log_partition, block").await?,
            tenant_days: prepare
                .plain("SELECT day FROM {ks}.tenant_days WHERE tenant = ? AND day >= ? AND day <= ?")
                .await?,
            tenant_blocks: prepare
                .plain("SELECT hour, log_partition, block FROM {ks}.tenant_blocks WHERE tenant = ? AND day = ?")
                .await?,
            lines_of_hour: prepare
                .plain(
                    "SELECT posted_at_ms, log_offset, attempt, seq, requests, tokens, nusd, created, line \
                     FROM {ks}.lines_by_hour WHERE tenant = ? AND hour = ? AND log_partition = ? AND block = ? \
                     AND (posted_at_ms, log_offset) > (?, ?) AND (posted_at_ms, log_offset) < (?, ?) LIMIT ?",
                )
                .await?,
            sums_by_hour: prepare
                .plain(&(sums("lines_by_hour") + " WHERE tenant = ? AND hour = ? AND log_partition = ? AND block = ?"))
                .await?,
            sums_by_key: prepare
                .plain(
                    &(sums("lines_by_key")
                        + " WHERE tenant = ? AND key_id = ? AND day = ? AND log_partition = ? AND block = ?"),
                )
                .await?,
            sums_by_model: prepare
                .plain(
                    &(sums("lines_by_model")
                        + " WHERE tenant = ? AND model = ? AND day = ? AND log_partition = ? AND block = ?"),
                )
                .await?,
        })
    }
}

impl Open {
    async fn prepare(prepare: &Prepare<'_>) -> Result<Self, CqlError> {
        Ok(Self {
            put_open: prepare
                .plain(
                    "INSERT INTO {ks}.open_reservations (list, minute, log_partition, first_due_ms, reservation, \
                     tenant, due_ms, admitted_at_ms, status_since_ms, held_requests, held_tokens, held_nusd, escalated) \
                     VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?) USING TIMESTAMP ?",
                )
                .await?,
            delete_open: prepare
                .plain(
                    "DELETE FROM {ks}.open_reservations USING TIMESTAMP ? WHERE list = ? AND minute = ? \
                     AND log_partition = ? AND first_due_ms = ? AND reservation = ?",
                )
                .await?,
            open_of_minute: prepare
                .plain(
                    "SELECT reservation, tenant, due_ms, admitted_at_ms, status_since_ms, held_requests, held_tokens, \
                     held_nusd, escalated FROM {ks}.open_reservations WHERE list = ? AND minute = ? AND log_partition = ?",
                )
                .await?,
            put_open_minute: prepare
                .plain("INSERT INTO {ks}.open_minutes (list, log_partition, minute) VALUES (?,?,?) USING TIMESTAMP ?")
                .await?,
            delete_open_minute: prepare
                .plain(
                    "DELETE FROM {ks}.open_minutes USING TIMESTAMP ? WHERE list = ? AND log_partition = ? AND minute = ?",
                )
                .await?,
            open_minutes: prepare
                .plain("SELECT minute FROM {ks}.open_minutes WHERE list = ? AND log_partition = ? AND minute >= ?")
                .await?,
            put_log_partition: prepare.upsert("log_partitions", "shelf, log_partition").await?,
            log_partitions: prepare.plain("SELECT log_partition FROM {ks}.log_partitions WHERE shelf = 0").await?,
        })
    }
}

impl Consumers {
    async fn prepare(prepare: &Prepare<'_>) -> Result<Self, CqlError> {
        Ok(Self {
            put_position: prepare.upsert("positions", "consumer, topic, log_partition, next_offset").await?,
            position: prepare.plain(&format!("SELECT next_offset FROM {{ks}}.positions WHERE {OF_PARKED}")).await?,
            put_parked_key: prepare
                .conditional(
                    "INSERT INTO {ks}.parked_keys (consumer, topic, log_partition, key, reason) VALUES (?,?,?,?,?) \
                     IF NOT EXISTS",
                )
                .await?,
            delete_parked_key: prepare
                .conditional(&format!("DELETE FROM {{ks}}.parked_keys WHERE {OF_PARKED} AND key = ? IF EXISTS"))
                .await?,
            order: prepare
                .conditional(&format!(
                    "UPDATE {{ks}}.parked_keys SET asked = ?, asked_offset = ? WHERE {OF_PARKED} AND key = ? IF EXISTS"
                ))
                .await?,
            forget_order: prepare
                .conditional(&format!(
                    "UPDATE {{ks}}.parked_keys SET asked = null, asked_offset = null, reason = ? \
                     WHERE {OF_PARKED} AND key = ? IF EXISTS"
                ))
                .await?,
            parked_keys: prepare
                .plain(&format!("SELECT key, reason, asked, asked_offset FROM {{ks}}.parked_keys WHERE {OF_PARKED}"))
                .await?,
            put_parked: prepare
                .conditional(
                    "INSERT INTO {ks}.parked_records (consumer, topic, log_partition, key, log_offset, value, time_ms) \
                     VALUES (?,?,?,?,?,?,?) IF NOT EXISTS",
                )
                .await?,
            delete_parked: prepare
                .conditional(&format!(
                    "DELETE FROM {{ks}}.parked_records WHERE {OF_PARKED} AND key = ? AND log_offset = ? IF EXISTS"
                ))
                .await?,
            parked_records: prepare
                .plain(&format!(
                    "SELECT log_offset, value, time_ms FROM {{ks}}.parked_records WHERE {OF_PARKED} AND key = ?"
                ))
                .await?,
            parked_extent: prepare
                .plain(&format!(
                    "SELECT min(log_offset), count(*) FROM {{ks}}.parked_records WHERE {OF_PARKED} AND key = ?"
                ))
                .await?,
        })
    }
}

impl Checkpoints {
    async fn prepare(prepare: &Prepare<'_>) -> Result<Self, CqlError> {
        Ok(Self {
            claim_checkpoint: prepare
                .conditional("INSERT INTO {ks}.checkpoints (shelf, number) VALUES (?, ?) IF NOT EXISTS")
                .await?,
            finish_checkpoint: prepare
                .conditional(
                    "UPDATE {ks}.checkpoints SET is_complete = true, taken_at_ms = ?, positions = ?, format = ?, \
                     sha256 = ?, parts = ? WHERE shelf = ? AND number = ? IF EXISTS",
                )
                .await?,
            delete_checkpoint: prepare
                .conditional("DELETE FROM {ks}.checkpoints WHERE shelf = ? AND number = ? IF EXISTS")
                .await?,
            checkpoints: prepare
                .plain(
                    "SELECT number, is_complete, taken_at_ms, positions, format, sha256, parts FROM {ks}.checkpoints \
                     WHERE shelf = ?",
                )
                .await?,
            put_part: prepare.upsert("checkpoint_parts", "number, part, bytes").await?,
            delete_part: prepare.plain("DELETE FROM {ks}.checkpoint_parts WHERE number = ? AND part = ?").await?,
            part: prepare.plain("SELECT bytes FROM {ks}.checkpoint_parts WHERE number = ? AND part = ?").await?,
        })
    }
}
