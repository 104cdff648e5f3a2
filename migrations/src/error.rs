//! Why a database could not be brought to this binary's schema. None of these changed the database.

use thiserror::Error;

#[derive(Debug, Error)]
pub enum MigrationError {
    /// A released file was edited, or the database is another one. Never repaired by itself: what the tables really
    /// look like is unknown.
    #[error(
        "migration {file} is not what this database was made with (recorded {recorded}, this binary has {embedded}); \
         released files never change: restore the file and put the change into a new one"
    )]
    Drift { file: String, recorded: String, embedded: String },

    /// Going on with tables that this binary does not know could write rows that the newer one cannot read.
    #[error(
        "this database has migration {newest_file} (number {found}), this binary knows only {known}; run a newer weir"
    )]
    Newer { newest_file: String, found: usize, known: usize },

    #[error("migration {file} failed; nothing of it was kept")]
    Failed { file: String, source: rusqlite::Error },

    #[error("the list of applied migrations could not be read or written")]
    Store(#[from] rusqlite::Error),
}
