//! One write: everything that it speaks of first, then the claim of its revision.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use weir_migrations::cql::CqlError;
use weir_runtime::entropy::{Entropy as _, OsEntropy};

use super::Keyspace;
use super::contents::sha256;
use super::known::{bucket_of, signed};
use super::stored::{StoredChange, parsed, text, unreadable};
use crate::state::{Change, Publication};
use crate::store::StoreError;

/// Changes up to this size stand in the log itself: all acts but large applies. Small, because replicas agree on the
/// row and keep the proposal beside it.
const INLINE_BYTES: usize = 16 * 1024;
/// How long an outcome that nobody knows is asked for: longer than a node needs to come back, or be found missing.
const PATIENCE: Duration = Duration::from_secs(60);
const BETWEEN_TRIES: Duration = Duration::from_millis(250);

/// A row of the log that is not claimed yet.
#[derive(Debug)]
struct Row {
    write_id: String,
    changes: Option<String>,
    parts: Option<i32>,
    sha256: Option<String>,
    publication: Option<String>,
}

impl Keyspace {
    /// Tells a store that was made with other secrets from one that is new.
    pub(super) async fn check_secrets(&self, own: ([u8; 32], [u8; 32])) -> Result<(), StoreError> {
        let stored = async || self.cql.first::<(Vec<u8>, Vec<u8>)>(&self.statements.secrets_check, ()).await;
        let mut found = stored().await?;
        if found.is_none() {
            let values = (own.0.as_slice(), own.1.as_slice());
            self.cql.conditional(&self.statements.put_secrets_check, values).await?;
            found = stored().await?;
        }
        let Some((pepper, master)) = found else {
            return Err(unreadable("check of secrets", &"it is there and is not"));
        };
        for (what, is_same) in [("pepper", pepper == own.0), ("master key", master == own.1)] {
            if !is_same {
                return Err(StoreError::WrongSecret { what });
            }
        }
        Ok(())
    }

    pub(super) async fn write(&self, revision: u64, changes: &[Change]) -> Result<u64, StoreError> {
        // Whoever read just now need not ask again; who comes with another revision may be ahead of this process.
        if self.known_revision().await != revision && self.newest_names().await?.state.revision != revision {
            return Err(StoreError::Conflict);
        }
        let row = self.prepare(changes).await?;
        let claimed = self.claim(revision + 1, &row).await;
        if let (Err(StoreError::Conflict), Some(parts)) = (&claimed, row.parts) {
            // Another one's claim is final, so nobody will ever speak of these.
            if let Err(error) = self.delete_parts(&row.write_id, parts).await {
                tracing::warn!(%error, parts, "parts of a write that was refused are left behind");
            }
        }
        claimed
    }

    /// Stores what the changes speak of, where nobody looks yet.
    async fn prepare(&self, changes: &[Change]) -> Result<Row, StoreError> {
        let mut id = [0; 16];
        OsEntropy.fill(&mut id);
        let write_id = hex::encode(id);
        self.put_secrets(changes).await?;
        let (mut stored, mut publication) = (Vec::with_capacity(changes.len()), None);
        for change in changes {
            let parts = match change {
                Change::SetCatalog { catalog, content_sha256, .. } => self.put_catalog(catalog, content_sha256).await?,
                Change::Publish { publication: published, prices_json } => {
                    self.put_price_book(&published.price_version, prices_json).await?;
                    publication = Some(text("publication", published)?);
                    0
                }
                Change::AddTenant(_)
                | Change::SetCalendar { .. }
                | Change::AddTeam(_)
                | Change::PutKey(_)
                | Change::RevokeKey { .. } => 0,
            };
            stored.push(StoredChange::of(change, parts));
        }
        let changes = text("write", &stored)?;
        if changes.len() <= INLINE_BYTES {
            return Ok(Row { write_id, changes: Some(changes), parts: None, sha256: None, publication });
        }
        let parts = Some(self.put_parts(&write_id, changes.as_bytes()).await?);
        Ok(Row { write_id, changes: None, parts, sha256: Some(sha256(changes.as_bytes())), publication })
    }

    /// Claims `revision` for `row`. An outcome that is unknown is asked for until it is known: the same claim again is
    /// refused by its own success, and the row then names its writer (O56).
    async fn claim(&self, revision: u64, row: &Row) -> Result<u64, StoreError> {
        let Row { write_id, changes, parts, sha256, publication } = row;
        let place = (bucket_of(revision), signed(revision));
        let deadline = Instant::now() + PATIENCE;
        let mut is_unknown = false;
        loop {
            let values = (place.0, place.1, write_id, changes, parts, sha256, publication);
            let reason = match self.cql.conditional(&self.statements.claim, values).await {
                Ok(true) => return Ok(revision),
                Ok(false) => match self.cql.first::<(String,)>(&self.statements.writer, place).await {
                    Ok(Some((writer,))) if writer == *write_id => return Ok(revision),
                    Ok(Some(_)) => return Err(StoreError::Conflict),
                    Ok(None) => return Err(unreadable("log of writes", &"a revision is there and is not")),
                    Err(error) => error.to_string(),
                },
                Err(CqlError::Unknown { reason }) => reason,
                // Once one outcome is unknown, an absent server does not make it known either.
                Err(CqlError::Unavailable { reason }) if is_unknown => reason,
                Err(error) => return Err(error.into()),
            };
            if Instant::now() >= deadline {
                return Err(StoreError::Unknown { reason });
            }
            tracing::warn!(revision, reason, "nobody knows whether a write was taken; asking again");
            is_unknown = true;
            sleep(BETWEEN_TRIES).await;
        }
    }

    /// The newest publications, from the newest partition of the log on.
    pub(super) async fn publications(&self, most: usize) -> Result<Vec<Publication>, StoreError> {
        let mut found = Vec::new();
        let mut bucket = bucket_of(self.newest_names().await?.state.revision);
        while bucket >= 0 && found.len() < most {
            let rows: Vec<(Option<String>,)> =
                self.cql.rows(&self.statements.publications_of_bucket, (bucket,)).await?;
            let published = rows.into_iter().filter_map(|(publication,)| publication);
            for publication in published.take(most - found.len()) {
                found.push(parsed("publication", publication.as_bytes())?);
            }
            bucket -= 1;
        }
        Ok(found)
    }
}
