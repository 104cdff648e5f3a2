//! Brings one database to the newest schema of its set.
//!
//! Everything happens in one immediate transaction: two processes that start together wait for each other, and a file
//! that fails leaves the database as it was. The text of each applied file is remembered by its SHA-256, because a file
//! that was edited after its release describes a database that does not exist.

use rusqlite::{Connection, Transaction, TransactionBehavior, params};

use crate::error::MigrationError;
use crate::history::{Recorded, check_history, checksum};
use crate::sets::{Migration, Set};

/// What [`run`] found and did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Migrated {
    /// The files applied now; empty for a database that was up to date.
    pub applied: Vec<&'static str>,
    /// The number of the newest file, zero for an empty set.
    pub version: usize,
}

/// Applies what `connection`'s database has not got of `set`. Repeating it does nothing.
///
/// # Errors
/// [`MigrationError`]; the database is as it was before the call.
pub fn run(connection: &mut Connection, set: Set) -> Result<Migrated, MigrationError> {
    run_list(connection, set.migrations())
}

fn run_list(connection: &mut Connection, migrations: &[Migration]) -> Result<Migrated, MigrationError> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let recorded = recorded(&transaction)?;
    check_history(&recorded, migrations)?;
    let pending = &migrations[recorded.len()..];
    for (number, migration) in pending.iter().enumerate().map(|(at, one)| (recorded.len() + at + 1, one)) {
        apply(&transaction, number, migration)?;
    }
    transaction.commit()?;
    Ok(Migrated { applied: pending.iter().map(|migration| migration.file).collect(), version: migrations.len() })
}

fn recorded(transaction: &Transaction<'_>) -> Result<Vec<Recorded>, rusqlite::Error> {
    transaction.execute_batch(
        "CREATE TABLE IF NOT EXISTS weir_migrations (
            number     INTEGER PRIMARY KEY,
            file       TEXT NOT NULL,
            sha256     TEXT NOT NULL,
            applied_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP
        ) STRICT",
    )?;
    let mut statement = transaction.prepare("SELECT file, sha256 FROM weir_migrations ORDER BY number")?;
    statement.query_map([], |row| Ok(Recorded { file: row.get(0)?, sha256: row.get(1)? }))?.collect()
}

fn apply(transaction: &Transaction<'_>, number: usize, migration: &Migration) -> Result<(), MigrationError> {
    transaction
        .execute_batch(migration.sql)
        .map_err(|source| MigrationError::Failed { file: migration.file.to_owned(), source })?;
    let insert = "INSERT INTO weir_migrations (number, file, sha256) VALUES (?1, ?2, ?3)";
    transaction.execute(insert, params![number, migration.file, checksum(migration)])?;
    Ok(())
}

#[cfg(test)]
#[path = "runner_tests.rs"]
mod tests;
