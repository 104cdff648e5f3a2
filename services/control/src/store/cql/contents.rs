//! What a write speaks of, and is kept beside the log: texts in parts, catalogs, price books, tenants' secrets.

use std::collections::HashMap;

use futures_util::future::try_join_all;
use sha2::{Digest as _, Sha256};

use weir_domain::ids::{PriceVersion, TenantId};
use weir_domain::price::PriceEntry;

use super::Keyspace;
use super::stored::{parsed, unreadable};
use crate::catalog::Catalog;
use crate::secrets::WrappedSecret;
use crate::state::Change;
use crate::store::StoreError;

/// Far below what servers warn of (ScyllaDB at 128 KiB).
const PART_BYTES: usize = 64 * 1024;
/// Parts or secrets under way at once: some megabytes in the servers' queues.
const AT_ONCE: usize = 32;
/// Partitions of tenants' secrets, fixed for ever.
const SHARDS: u32 = 64;
/// New tenants up to which each one's secret is asked for; beyond it all shards are read.
const MOST_SINGLE_SECRETS: usize = 64;

pub(super) fn sha256(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

fn shard_of(tenant: &TenantId) -> i32 {
    i32::try_from(crc32fast::hash(tenant.as_str().as_bytes()) % SHARDS).unwrap_or(0)
}

impl Keyspace {
    /// Stores `text` in parts; how many.
    pub(super) async fn put_parts(&self, owner: &str, text: &[u8]) -> Result<i32, StoreError> {
        let parts: Vec<(i32, &[u8])> = (0..).zip(text.chunks(PART_BYTES)).collect();
        for some in parts.chunks(AT_ONCE) {
            let puts =
                some.iter().map(|(part, body)| self.cql.execute(&self.statements.put_part, (owner, *part, *body)));
            try_join_all(puts).await?;
        }
        i32::try_from(parts.len()).map_err(|error| unreadable("text in parts", &error))
    }

    /// A text in parts, compared with its SHA-256.
    pub(super) async fn parts(
        &self,
        what: &'static str,
        owner: &str,
        parts: i32,
        content_sha256: &str,
    ) -> Result<Vec<u8>, StoreError> {
        let mut text = Vec::new();
        let parts: Vec<i32> = (0..parts).collect();
        for some in parts.chunks(AT_ONCE) {
            let read = |part: &i32| self.cql.first::<(Vec<u8>,)>(&self.statements.part, (owner, *part));
            for body in try_join_all(some.iter().map(read)).await? {
                let (body,) = body.ok_or_else(|| unreadable(what, &"a part of it is missing"))?;
                text.extend(body);
            }
        }
        if sha256(&text) == content_sha256 {
            Ok(text)
        } else {
            Err(unreadable(what, &"its parts do not fit its digest"))
        }
    }

    /// For parts that nobody speaks of.
    pub(super) async fn delete_parts(&self, owner: &str, parts: i32) -> Result<(), StoreError> {
        let parts: Vec<i32> = (0..parts).collect();
        for some in parts.chunks(AT_ONCE) {
            let delete = |part: &i32| self.cql.execute(&self.statements.delete_part, (owner, *part));
            try_join_all(some.iter().map(delete)).await?;
        }
        Ok(())
    }

    /// Stores a catalog under its name; in how many parts.
    pub(super) async fn put_catalog(&self, catalog: &Catalog, content_sha256: &str) -> Result<i32, StoreError> {
        let found = self.cql.first::<(i32,)>(&self.statements.catalog, (content_sha256,)).await?;
        if let Some((parts,)) = found {
            return Ok(parts);
        }
        let text = serde_json::to_vec(catalog).map_err(|error| unreadable("catalog", &error))?;
        if sha256(&text) != content_sha256 {
            return Err(unreadable("catalog", &"its name is not the digest of its content"));
        }
        let parts = self.put_parts(content_sha256, &text).await?;
        self.cql.execute(&self.statements.put_catalog, (content_sha256, parts)).await?;
        Ok(parts)
    }

    pub(super) async fn applied_catalog(&self, content_sha256: &str) -> Result<Option<Catalog>, StoreError> {
        let found = self.cql.first::<(i32,)>(&self.statements.catalog, (content_sha256,)).await?;
        let Some((parts,)) = found else { return Ok(None) };
        self.catalog_in(content_sha256, parts).await.map(Some)
    }

    pub(super) async fn catalog_in(&self, content_sha256: &str, parts: i32) -> Result<Catalog, StoreError> {
        parsed("catalog", &self.parts("catalog", content_sha256, parts, content_sha256).await?)
    }

    /// Stores a price book under its version, where it is not there yet.
    pub(super) async fn put_price_book(&self, version: &PriceVersion, prices_json: &str) -> Result<(), StoreError> {
        let found = self.cql.first::<(String, i32)>(&self.statements.price_book, (version.as_str(),)).await?;
        if found.is_some() {
            return Ok(());
        }
        let content_sha256 = sha256(prices_json.as_bytes());
        let parts = self.put_parts(&content_sha256, prices_json.as_bytes()).await?;
        let values = (version.as_str(), content_sha256, parts);
        self.cql.execute(&self.statements.put_price_book, values).await?;
        Ok(())
    }

    pub(super) async fn price_book(&self, version: &PriceVersion) -> Result<Option<Vec<PriceEntry>>, StoreError> {
        let found = self.cql.first::<(String, i32)>(&self.statements.price_book, (version.as_str(),)).await?;
        let Some((content_sha256, parts)) = found else { return Ok(None) };
        let text = self.parts("price book", &content_sha256, parts, &content_sha256).await?;
        parsed("price book", &text).map(Some)
    }

    /// Stores the secrets of the tenants that `changes` add.
    pub(super) async fn put_secrets(&self, changes: &[Change]) -> Result<(), StoreError> {
        let secrets: Vec<(i32, &str, &[u8])> = changes
            .iter()
            .filter_map(|change| match change {
                Change::AddTenant(tenant) => Some((shard_of(&tenant.id), tenant.id.as_str(), &*tenant.secret.0)),
                Change::SetCalendar { .. }
                | Change::AddTeam(_)
                | Change::PutKey(_)
                | Change::RevokeKey { .. }
                | Change::SetCatalog { .. }
                | Change::Publish { .. } => None,
            })
            .collect();
        for some in secrets.chunks(AT_ONCE) {
            try_join_all(some.iter().map(|secret| self.cql.execute(&self.statements.put_secret, *secret))).await?;
        }
        Ok(())
    }

    /// Secrets by tenant, at least of these. One that somebody has removed is not among them.
    pub(super) async fn secrets_of(
        &self,
        tenants: &[(String, TenantId)],
    ) -> Result<HashMap<TenantId, WrappedSecret>, StoreError> {
        let mut secrets = HashMap::with_capacity(tenants.len());
        if tenants.len() <= MOST_SINGLE_SECRETS {
            let read = tenants.iter().map(|(_, tenant)| async move {
                let values = (shard_of(tenant), tenant.as_str());
                let found = self.cql.first::<(Vec<u8>,)>(&self.statements.secret, values).await?;
                Ok::<_, StoreError>(found.map(|(wrapped,)| (tenant.clone(), WrappedSecret(wrapped))))
            });
            secrets.extend(try_join_all(read).await?.into_iter().flatten());
            return Ok(secrets);
        }
        let shards: Vec<i32> = (0..SHARDS).filter_map(|shard| i32::try_from(shard).ok()).collect();
        for some in shards.chunks(AT_ONCE) {
            let read = |shard: &i32| self.cql.rows::<(String, Vec<u8>)>(&self.statements.secrets_of_shard, (*shard,));
            for (tenant, wrapped) in try_join_all(some.iter().map(read)).await?.into_iter().flatten() {
                secrets.insert(TenantId::from(tenant), WrappedSecret(wrapped));
            }
        }
        Ok(secrets)
    }
}
