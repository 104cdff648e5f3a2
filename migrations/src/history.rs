//! What was applied to a database, compared with what this binary has: the same rule for every kind of database.

use sha2::{Digest as _, Sha256};

use crate::error::MigrationError;
use crate::sets::Migration;

/// A row of `weir_migrations`: rows are only ever added, numbered from one without gaps.
#[derive(Debug)]
pub(crate) struct Recorded {
    pub file: String,
    pub sha256: String,
}

pub(crate) fn check_history(recorded: &[Recorded], migrations: &[Migration]) -> Result<(), MigrationError> {
    for (row, migration) in recorded.iter().zip(migrations) {
        let embedded = checksum(migration);
        if row.file != migration.file || row.sha256 != embedded {
            let recorded = format!("{} {}", row.file, short(&row.sha256));
            let embedded = format!("{} {}", migration.file, short(&embedded));
            return Err(MigrationError::Drift { file: migration.file.to_owned(), recorded, embedded });
        }
    }
    match recorded.get(migrations.len()..).and_then(<[Recorded]>::last) {
        Some(newest) => Err(MigrationError::Newer {
            newest_file: newest.file.clone(),
            found: recorded.len(),
            known: migrations.len(),
        }),
        None => Ok(()),
    }
}

pub(crate) fn checksum(migration: &Migration) -> String {
    hex::encode(Sha256::digest(migration.sql))
}

/// Enough of a checksum to tell two apart in a message.
fn short(sha256: &str) -> &str {
    sha256.get(..12).unwrap_or(sha256)
}
