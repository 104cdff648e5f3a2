//! Why a database could not be brought to this binary's schema. None of the SQL ones changed the database; a CQL file
//! that failed half-way is repeated whole, which is why each of its statements can be.

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

    /// The roles of several machines do not migrate by themselves: whoever deploys decides when.
    #[cfg(feature = "cql")]
    #[error("keyspace {keyspace} lacks migration {file}: run `weir migrate`")]
    Missing { keyspace: String, file: String },

    #[cfg(feature = "cql")]
    #[error("`{keyspace}` is no keyspace name: use up to 48 of a-z, 0-9 and _, beginning with a letter")]
    KeyspaceName { keyspace: String },

    #[cfg(feature = "cql")]
    #[error("statement {statement} of migration {file} failed: {reason}; the file is repeated whole at the next run")]
    Statement { file: String, statement: usize, reason: String },

    /// Two runs at once would make tables twice. A lock whose holder died ends by itself.
    #[cfg(feature = "cql")]
    #[error("another `weir migrate` holds the lock ({holder}); it ends by itself within {} s", crate::cql::LOCK_S)]
    Locked { holder: String },

    #[cfg(feature = "cql")]
    #[error("the CQL server did not answer: {reason}")]
    Unavailable { reason: String },
}
