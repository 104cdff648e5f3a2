//! Brings one keyspace to the newest schema of its set, on ScyllaDB or Apache Cassandra.
//!
//! A CQL server has no transaction around schema changes. So one run at a time holds a lock (a row with a life, taken
//! by a conditional insert), a file is recorded only after all of its statements, and every statement can be repeated:
//! a run that died half-way through a file is mended by the next one.

use std::time::Duration;

use scylla::client::session::Session;
use scylla::statement::{Consistency, SerialConsistency, Statement};
use scylla::value::Row;
use tokio::time::{Instant, sleep};

use crate::error::MigrationError;
use crate::history::{Recorded, check_history, checksum};
use crate::runner::Migrated;
use crate::sets::{CqlSet, Migration};

use super::options::CqlOptions;
use super::session::connect;

/// The life of a lock whose holder says nothing, s. It is renewed before each statement, and a schema change is given
/// a minute to be agreed on.
pub const LOCK_S: i32 = 120;
/// How long a run waits for another one's lock.
const PATIENCE: Duration = Duration::from_secs(150);
const BETWEEN_LOOKS: Duration = Duration::from_millis(250);

/// Where to.
#[derive(Debug, Clone, Copy)]
struct Keyspace<'a> {
    name: &'a str,
    /// Where it is made when it is missing; one that is there stays as it is, so that whoever runs the servers can make
    /// it with options of their own (ScyllaDB's tablets, other data centres).
    datacenter: &'a str,
    replicas: u8,
}

/// Makes the keyspace where it is missing and applies what it has not got of `set`: what `weir migrate` does. Repeating
/// it does nothing; `run_id` names this run in the lock and is used by no other, ever.
///
/// # Errors
/// [`MigrationError`].
pub async fn migrate(options: &CqlOptions, set: CqlSet, run_id: &str) -> Result<Migrated, MigrationError> {
    let session = connect(options).await.map_err(unavailable)?;
    let CqlOptions { keyspace, datacenter, replicas, .. } = options;
    let keyspace = Keyspace { name: keyspace, datacenter, replicas: *replicas };
    run_list(&session, keyspace, set.as_str(), set.migrations(), run_id).await
}

/// Whether the keyspace has exactly what this binary knows.
///
/// # Errors
/// [`MigrationError`]; `Missing` names the first file that is not applied.
pub(super) async fn check(session: &Session, keyspace: &str, set: CqlSet) -> Result<(), MigrationError> {
    check_list(session, keyspace, set.as_str(), set.migrations()).await
}

async fn check_list(
    session: &Session,
    keyspace: &str,
    set: &str,
    migrations: &[Migration],
) -> Result<(), MigrationError> {
    check_name(keyspace)?;
    let tables = "SELECT table_name FROM system_schema.tables WHERE keyspace_name = ? AND table_name = ?";
    let found = session.query_unpaged(tables, (keyspace, "weir_migrations")).await.map_err(unavailable)?;
    let is_there = found.into_rows_result().map_err(unavailable)?.rows_num() > 0;
    let recorded = if is_there { recorded(session, keyspace, set).await? } else { Vec::new() };
    check_history(&recorded, migrations)?;
    match migrations.get(recorded.len()) {
        Some(first) => Err(MigrationError::Missing { keyspace: keyspace.to_owned(), file: first.file.to_owned() }),
        None => Ok(()),
    }
}

async fn run_list(
    session: &Session,
    keyspace: Keyspace<'_>,
    set: &str,
    migrations: &[Migration],
    holder: &str,
) -> Result<Migrated, MigrationError> {
    prepare(session, keyspace).await?;
    let lock = Lock { session, keyspace: keyspace.name, set, holder };
    lock.acquire().await?;
    let migrated = apply_missing(&lock, migrations).await;
    // The first error is the one to tell; a lock that stays ends by itself.
    let released = lock.release().await;
    let migrated = migrated?;
    released?;
    Ok(migrated)
}

/// The keyspace and the two tables of this runner, which are older than any migration and never change.
async fn prepare(session: &Session, keyspace: Keyspace<'_>) -> Result<(), MigrationError> {
    let Keyspace { name, datacenter, replicas } = keyspace;
    check_name(name)?;
    let datacenter = datacenter.replace('\'', "''");
    let statements = [
        format!(
            "CREATE KEYSPACE IF NOT EXISTS {name} WITH replication = \
             {{'class': 'NetworkTopologyStrategy', '{datacenter}': {replicas}}}"
        ),
        format!(
            "CREATE TABLE IF NOT EXISTS {name}.weir_migrations (name text, number int, file text, sha256 text, \
             applied_at timestamp, PRIMARY KEY (name, number))"
        ),
        format!("CREATE TABLE IF NOT EXISTS {name}.weir_migration_lock (name text PRIMARY KEY, holder text)"),
    ];
    for statement in statements {
        session.query_unpaged(statement, ()).await.map_err(unavailable)?;
    }
    Ok(())
}

async fn apply_missing(lock: &Lock<'_>, migrations: &[Migration]) -> Result<Migrated, MigrationError> {
    let recorded = recorded(lock.session, lock.keyspace, lock.set).await?;
    check_history(&recorded, migrations)?;
    let missing = &migrations[recorded.len()..];
    for (number, migration) in (recorded.len() + 1..).zip(missing) {
        apply(lock, number, migration).await?;
    }
    Ok(Migrated { applied: missing.iter().map(|migration| migration.file).collect(), version: migrations.len() })
}

async fn apply(lock: &Lock<'_>, number: usize, migration: &Migration) -> Result<(), MigrationError> {
    for (at, statement) in statements(migration.sql).iter().enumerate() {
        lock.renew().await?;
        let statement = qualified(statement, lock.keyspace);
        lock.session.query_unpaged(statement, ()).await.map_err(|error| MigrationError::Statement {
            file: migration.file.to_owned(),
            statement: at + 1,
            reason: error.to_string(),
        })?;
    }
    let record = format!(
        "INSERT INTO {}.weir_migrations (name, number, file, sha256, applied_at) \
         VALUES (?, ?, ?, ?, toTimestamp(now()))",
        lock.keyspace
    );
    let number = i32::try_from(number).unwrap_or(i32::MAX);
    let row = (lock.set, number, migration.file, checksum(migration));
    lock.session.query_unpaged(quorum(record), row).await.map_err(unavailable)?;
    Ok(())
}

async fn recorded(session: &Session, keyspace: &str, set: &str) -> Result<Vec<Recorded>, MigrationError> {
    let select = format!("SELECT file, sha256 FROM {keyspace}.weir_migrations WHERE name = ?");
    let found = session.query_unpaged(quorum(select), (set,)).await.map_err(unavailable)?;
    let found = found.into_rows_result().map_err(unavailable)?;
    let rows = found.rows::<(String, String)>().map_err(unavailable)?;
    rows.map(|row| row.map(|(file, sha256)| Recorded { file, sha256 }).map_err(unavailable)).collect()
}

/// The right to migrate, until it ends.
struct Lock<'a> {
    session: &'a Session,
    keyspace: &'a str,
    set: &'a str,
    holder: &'a str,
}

impl Lock<'_> {
    async fn acquire(&self) -> Result<(), MigrationError> {
        let insert = format!(
            "INSERT INTO {}.weir_migration_lock (name, holder) VALUES (?, ?) IF NOT EXISTS USING TTL {LOCK_S}",
            self.keyspace
        );
        let until = Instant::now() + PATIENCE;
        loop {
            let (is_applied, holder) = self.conditional(&insert, (self.set, self.holder)).await?;
            // A lost answer, then the repetition that finds its own row.
            if is_applied || holder.as_deref() == Some(self.holder) {
                return Ok(());
            }
            if Instant::now() > until {
                return Err(MigrationError::Locked { holder: holder.unwrap_or_default() });
            }
            sleep(BETWEEN_LOOKS).await;
        }
    }

    async fn renew(&self) -> Result<(), MigrationError> {
        let update = format!(
            "UPDATE {}.weir_migration_lock USING TTL {LOCK_S} SET holder = ? WHERE name = ? IF holder = ?",
            self.keyspace
        );
        match self.conditional(&update, (self.holder, self.set, self.holder)).await? {
            (true, _) => Ok(()),
            (false, holder) => Err(MigrationError::Locked { holder: holder.unwrap_or_default() }),
        }
    }

    async fn release(&self) -> Result<(), MigrationError> {
        let delete = format!("DELETE FROM {}.weir_migration_lock WHERE name = ? IF holder = ?", self.keyspace);
        self.conditional(&delete, (self.set, self.holder)).await.map(|_| ())
    }

    /// Whether a conditional statement was applied, and whom it found otherwise. Columns are taken by name, because
    /// servers differ in which of them they send.
    async fn conditional(
        &self,
        statement: &str,
        values: impl scylla::serialize::row::SerializeRow,
    ) -> Result<(bool, Option<String>), MigrationError> {
        let mut statement = quorum(statement.to_owned());
        statement.set_serial_consistency(Some(SerialConsistency::LocalSerial));
        let found = self.session.query_unpaged(statement, values).await.map_err(unavailable)?;
        let found = found.into_rows_result().map_err(unavailable)?;
        let at = |name: &str| found.column_specs().get_by_name(name).map(|(at, _)| at);
        let (applied, holder) = (at("[applied]"), at("holder"));
        let row: Row = found.first_row().map_err(unavailable)?;
        let column = |at: Option<usize>| at.and_then(|at| row.columns.get(at)).and_then(Option::as_ref);
        let is_applied = column(applied).and_then(|value| value.as_boolean()).unwrap_or(false);
        Ok((is_applied, column(holder).and_then(|value| value.as_text()).cloned()))
    }
}

fn quorum(text: String) -> Statement {
    let mut statement = Statement::new(text);
    statement.set_consistency(Consistency::LocalQuorum);
    statement
}

/// The statements of a file: comments go, a semicolon at the end of a line ends one.
fn statements(text: &str) -> Vec<String> {
    let code = |line: &str| line.split_once("--").map_or(line, |(code, _)| code).trim_end().to_owned();
    let code: Vec<String> = text.lines().map(code).filter(|line| !line.is_empty()).collect();
    let ended = code.join("\n");
    ended.split(";\n").map(|one| one.trim_end_matches(';').trim().to_owned()).filter(|one| !one.is_empty()).collect()
}

/// A file names its tables alone; the keyspace is the operator's.
fn qualified(statement: &str, keyspace: &str) -> String {
    for verb in ["CREATE TABLE IF NOT EXISTS ", "ALTER TABLE ", "DROP TABLE IF EXISTS "] {
        if let Some(rest) = statement.strip_prefix(verb) {
            return format!("{verb}{keyspace}.{rest}");
        }
    }
    statement.to_owned()
}

/// A name goes into statements as text, so it must be one.
fn check_name(keyspace: &str) -> Result<(), MigrationError> {
    let is_word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    let is_name = keyspace.starts_with(|first: char| first.is_ascii_lowercase())
        && keyspace.len() <= 48
        && keyspace.bytes().all(is_word);
    if is_name { Ok(()) } else { Err(MigrationError::KeyspaceName { keyspace: keyspace.to_owned() }) }
}

fn unavailable(error: impl std::fmt::Display) -> MigrationError {
    MigrationError::Unavailable { reason: error.to_string() }
}

#[cfg(test)]
#[path = "runner_tests.rs"]
mod tests;
