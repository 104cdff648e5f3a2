//! Preparing the statements of one keyspace, whose tables are named with it.

use scylla::statement::prepared::PreparedStatement;

use super::error::CqlError;
use super::session::Cql;

/// Prepares statements in which `{ks}` stands for the keyspace.
#[derive(Debug)]
pub struct Prepare<'a> {
    pub cql: &'a Cql,
    pub keyspace: &'a str,
}

impl Prepare<'_> {
    fn placed(&self, text: &str) -> String {
        text.replace("{ks}", self.keyspace)
    }

    /// A read, or a write that may come twice.
    ///
    /// # Errors
    /// [`CqlError::Unavailable`].
    pub async fn plain(&self, text: &str) -> Result<PreparedStatement, CqlError> {
        self.cql.prepare(&self.placed(text)).await
    }

    /// A statement with a condition.
    ///
    /// # Errors
    /// [`CqlError::Unavailable`].
    pub async fn conditional(&self, text: &str) -> Result<PreparedStatement, CqlError> {
        self.cql.prepare_conditional(&self.placed(text)).await
    }

    /// A plain insert of these columns.
    ///
    /// # Errors
    /// [`CqlError::Unavailable`].
    pub async fn upsert(&self, table: &str, columns: &str) -> Result<PreparedStatement, CqlError> {
        let marks = vec!["?"; columns.split(',').count()].join(",");
        self.plain(&format!("INSERT INTO {{ks}}.{table} ({columns}) VALUES ({marks})")).await
    }
}
