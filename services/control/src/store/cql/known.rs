//! The fold of the log of writes, and what of it came since the last look.

use std::ops::ControlFlow;
use std::sync::Arc;

use scylla::DeserializeRow;

use super::Keyspace;
use super::stored::{StoredChange, Wanting, parsed, unreadable};
use crate::secrets::WrappedSecret;
use crate::state::{State, TenantState};
use crate::store::StoreError;

/// Of a tenant whose secret somebody has removed: it opens nothing.
const NO_SECRET: WrappedSecret = WrappedSecret(Vec::new());

/// Bits of a revision that one partition of the log spans.
const BUCKET_BITS: u32 = 8;

/// Revisions as the tables count: signed, of which they use up half.
pub(super) fn signed(revision: u64) -> i64 {
    i64::try_from(revision).unwrap_or(i64::MAX)
}

pub(super) fn bucket_of(revision: u64) -> i64 {
    signed(revision >> BUCKET_BITS)
}

/// What the log says up to a revision.
#[derive(Debug, Clone, Default)]
pub(super) struct Known {
    pub state: State,
    /// Of the write with the state's revision; empty before the first.
    write_id: String,
    /// What the state has not got, because nobody has asked for all of it since.
    wanting: Wanting,
}

#[derive(Debug, DeserializeRow)]
struct Written {
    revision: i64,
    write_id: String,
    changes: Option<String>,
    parts: Option<i32>,
    sha256: Option<String>,
}

impl Keyspace {
    /// What is known of the log without asking for what is new.
    pub(super) async fn known_revision(&self) -> u64 {
        self.known.lock().await.state.revision
    }

    /// The fold of everything that was claimed before this began.
    pub(super) async fn newest(&self) -> Result<Arc<Known>, StoreError> {
        let mut known = self.known.lock().await;
        self.bring_up(&mut known).await?;
        if !known.wanting.is_empty() {
            let mut next = (**known).clone();
            self.complete(&mut next).await?;
            *known = Arc::new(next);
        }
        Ok(Arc::clone(&known))
    }

    /// The same as far as the log says it: without the secrets of tenants and the catalog, for whoever looks at names.
    pub(super) async fn newest_names(&self) -> Result<Arc<Known>, StoreError> {
        let mut known = self.known.lock().await;
        self.bring_up(&mut known).await?;
        Ok(Arc::clone(&known))
    }

    pub(super) async fn tenant(&self, asked: &str) -> Result<Option<TenantState>, StoreError> {
        let known = self.newest_names().await?;
        let Some(mut found) = known.state.tenant(asked) else { return Ok(None) };
        let wanted = (found.tenant.name.clone(), found.tenant.id.clone());
        if known.wanting.secrets.contains(&wanted) {
            let secret = self.secrets_of(&[wanted]).await?.remove(&found.tenant.id);
            found.tenant.secret = secret.unwrap_or(NO_SECRET);
        }
        Ok(Some(found))
    }

    async fn bring_up(&self, known: &mut Arc<Known>) -> Result<(), StoreError> {
        let mut tail = self.tail(known).await?;
        if !tail.first().is_none_or(|first| first.is(known)) || (tail.is_empty() && known.state.revision > 0) {
            // Only a store that was restored from a backup, or made anew, has forgotten a write.
            tracing::warn!(revision = known.state.revision, "the control store has another history than it had");
            *known = Arc::default();
            tail = self.tail(known).await?;
        }
        let new = tail.into_iter().filter(|written| written.revision > signed(known.state.revision));
        let new: Vec<Written> = new.collect();
        if !new.is_empty() {
            // On a copy: a fold that fails half-way leaves what was known.
            let mut next = (**known).clone();
            self.fold(&mut next, new).await?;
            *known = Arc::new(next);
        }
        Ok(())
    }

    /// The writes from the one that is known on.
    async fn tail(&self, known: &Known) -> Result<Vec<Written>, StoreError> {
        let mut writes: Vec<Written> = Vec::new();
        let mut from = known.state.revision;
        loop {
            let bucket = bucket_of(from);
            let take = |written| {
                writes.push(written);
                Ok::<_, StoreError>(ControlFlow::Continue(()))
            };
            self.cql.pages(&self.statements.writes_from, (bucket, signed(from)), take).await?;
            // The next partition begins once this one is full.
            let next = writes.last().map_or(from, |last| last.revision.unsigned_abs()) + 1;
            if bucket_of(next) == bucket {
                return Ok(writes);
            }
            from = next;
        }
    }

    async fn fold(&self, known: &mut Known, writes: Vec<Written>) -> Result<(), StoreError> {
        for written in writes {
            let revision = known.state.revision + 1;
            if written.revision != signed(revision) {
                let reason = format!("revision {revision} is missing before {}", written.revision);
                return Err(unreadable("log of writes", &reason));
            }
            for change in self.changes(&written).await? {
                change.apply(&mut known.state, &mut known.wanting);
            }
            (known.state.revision, known.write_id) = (revision, written.write_id);
        }
        Ok(())
    }

    async fn complete(&self, known: &mut Known) -> Result<(), StoreError> {
        let wanting = std::mem::take(&mut known.wanting);
        let secrets = self.secrets_of(&wanting.secrets).await?;
        for (name, id) in &wanting.secrets {
            if let Some(tenant) = known.state.tenants.get_mut(name) {
                tenant.secret = secrets.get(id).cloned().unwrap_or(NO_SECRET);
            }
        }
        if let Some((content_sha256, parts)) = wanting.catalog {
            known.state.catalog = self.catalog_in(&content_sha256, parts).await?;
        }
        Ok(())
    }

    async fn changes(&self, written: &Written) -> Result<Vec<StoredChange>, StoreError> {
        match (&written.changes, written.parts, &written.sha256) {
            (Some(changes), _, _) => parsed("write", changes.as_bytes()),
            (None, Some(parts), Some(sha256)) => {
                parsed("write", &self.parts("write", &written.write_id, parts, sha256).await?)
            }
            (None, None, _) | (None, _, None) => Err(unreadable("write", &"it has neither changes nor parts")),
        }
    }
}

impl Written {
    /// Whether the log still begins where `known` ends.
    fn is(&self, known: &Known) -> bool {
        known.state.revision == 0 || (self.revision == signed(known.state.revision) && self.write_id == known.write_id)
    }
}
