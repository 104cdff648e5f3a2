//! Every statement of this backend, prepared once. All tables are named with their keyspace.

use scylla::statement::Consistency;
use scylla::statement::prepared::PreparedStatement;

use weir_migrations::cql::{Cql, CqlError, Prepare};

/// Rows of the log that one answer brings: at most a megabyte.
const WRITES_PER_PAGE: i32 = 64;

#[derive(Debug)]
pub(super) struct Statements {
    pub secrets_check: PreparedStatement,
    pub put_secrets_check: PreparedStatement,
    pub claim: PreparedStatement,
    pub writer: PreparedStatement,
    pub writes_from: PreparedStatement,
    pub publications_of_bucket: PreparedStatement,
    pub put_part: PreparedStatement,
    pub part: PreparedStatement,
    pub delete_part: PreparedStatement,
    pub put_catalog: PreparedStatement,
    pub catalog: PreparedStatement,
    pub put_price_book: PreparedStatement,
    pub price_book: PreparedStatement,
    pub put_secret: PreparedStatement,
    pub secret: PreparedStatement,
    pub secrets_of_shard: PreparedStatement,
}

impl Statements {
    pub async fn prepare(cql: &Cql, keyspace: &str) -> Result<Self, CqlError> {
        let prepare = Prepare { cql, keyspace };
        // Read as conditional writes see it: what a writer has begun to claim and not finished is finished first.
        let serial = async |text: &str| {
            let mut statement = prepare.plain(text).await?;
            statement.set_consistency(Consistency::LocalSerial);
            Ok::<_, CqlError>(statement)
        };
        let mut writes_from = serial(
            "SELECT revision, write_id, changes, parts, sha256 FROM {ks}.control_writes \
             WHERE bucket = ? AND revision >= ?",
        )
        .await?;
        writes_from.set_page_size(WRITES_PER_PAGE);
        Ok(Self {
            secrets_check: serial("SELECT pepper_check, master_check FROM {ks}.control_secrets_check WHERE id = 0")
                .await?,
            put_secrets_check: prepare
                .conditional(
                    "INSERT INTO {ks}.control_secrets_check (id, pepper_check, master_check) VALUES (0, ?, ?) \
                     IF NOT EXISTS",
                )
                .await?,
            claim: prepare
                .conditional(
                    "INSERT INTO {ks}.control_writes (bucket, revision, write_id, changes, parts, sha256, publication) \
                     VALUES (?, ?, ?, ?, ?, ?, ?) IF NOT EXISTS",
                )
                .await?,
            writer: serial("SELECT write_id FROM {ks}.control_writes WHERE bucket = ? AND revision = ?").await?,
            writes_from,
            publications_of_bucket: prepare
                .plain("SELECT publication FROM {ks}.control_writes WHERE bucket = ? ORDER BY revision DESC")
                .await?,
            put_part: prepare.upsert("control_parts", "owner, part, body").await?,
            part: prepare.plain("SELECT body FROM {ks}.control_parts WHERE owner = ? AND part = ?").await?,
            delete_part: prepare.plain("DELETE FROM {ks}.control_parts WHERE owner = ? AND part = ?").await?,
            put_catalog: prepare.upsert("control_catalogs", "content_sha256, parts").await?,
            catalog: prepare.plain("SELECT parts FROM {ks}.control_catalogs WHERE content_sha256 = ?").await?,
            put_price_book: prepare.upsert("control_price_books", "version, content_sha256, parts").await?,
            price_book: prepare
                .plain("SELECT content_sha256, parts FROM {ks}.control_price_books WHERE version = ?")
                .await?,
            put_secret: prepare.upsert("control_tenant_secrets", "shard, tenant, wrapped_secret").await?,
            secret: prepare
                .plain("SELECT wrapped_secret FROM {ks}.control_tenant_secrets WHERE shard = ? AND tenant = ?")
                .await?,
            secrets_of_shard: prepare
                .plain("SELECT tenant, wrapped_secret FROM {ks}.control_tenant_secrets WHERE shard = ?")
                .await?,
        })
    }
}
