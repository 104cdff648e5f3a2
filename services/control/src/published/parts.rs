//! A document as parts, and back.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use thiserror::Error;

use weir_domain::ids::PriceVersion;
use weir_domain::price::{PriceBook, PriceEntry};
use weir_schemas::snapshot::SnapshotPublished;

use crate::document::{SnapshotDocument, price_version};
use crate::secrets::MasterKey;
use crate::state::Publication;

/// The scope of the head.
const HEAD: &str = "head";
/// The scope of a part of a price book: `prices/<version>/<n>-of-<m>`.
const PRICES: &str = "prices";

/// Buckets of each kind, fixed for ever: another number would put entries into two parts. At a million keys a part of
/// them has 70 KB, and the bound of a record is met at some ten million.
const KINDS: [(&str, u32); 5] =
    [("providers", 16), ("deployments", 256), ("models", 256), ("tenants", 4096), ("keys", 4096)];

/// What of a price book one part has: far below a record's bound, and few records for the largest book.
const PRICES_OF_A_PART: usize = 512;

/// Price books that are kept at hand. Reports speak of the books of days, and each change of a price makes one.
const MOST_PRICE_BOOKS: usize = 64;

/// Why a document cannot be cut, or parts are none.
#[derive(Debug, Error)]
pub enum PartsError {
    #[error("the policy cannot be written down")]
    Unwritable(#[source] serde_json::Error),
    #[error("the part `{scope}` of the policy cannot be read: it was written by a newer version, or not by Weir")]
    Unreadable { scope: String, source: serde_json::Error },
    #[error("the head of version {version} is not signed with this installation's master key")]
    Signature { version: u64 },
}

/// What names a version and seals its parts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    pub version: u64,
    /// Of the whole document, in hexadecimal: what the control store calls it.
    pub content_sha256: String,
    pub price_version: PriceVersion,
    pub published_at_ms: i64,
    /// How many parts it has, price book included.
    pub parts: usize,
    /// SHA-256 over the scope and hash of each, by scope, in hexadecimal.
    pub parts_sha256: String,
    /// HMAC of everything above, in hexadecimal.
    signature: String,
}

impl Head {
    fn signed_text(&self) -> String {
        let Self { version, content_sha256, price_version, published_at_ms, parts, parts_sha256, signature: _ } = self;
        format!("{version} {content_sha256} {price_version} {published_at_ms} {parts} {parts_sha256}")
    }

    /// As the record that stands on the topic after its parts.
    ///
    /// # Errors
    /// Of the library, for what is no JSON.
    pub fn record(&self) -> Result<SnapshotPublished, PartsError> {
        let body = serde_json::to_string(self).map_err(PartsError::Unwritable)?;
        Ok(SnapshotPublished::new(HEAD.to_owned(), self.version, self.published_at_ms, body))
    }
}

/// A document, cut.
#[derive(Debug)]
pub(super) struct Cut {
    pub head: Head,
    /// JSON by scope.
    pub parts: BTreeMap<String, String>,
}

pub(super) fn cut(
    document: &SnapshotDocument,
    publication: &Publication,
    master: &MasterKey,
) -> Result<Cut, PartsError> {
    let mut parts = BTreeMap::new();
    let SnapshotDocument { providers, deployments, models, tenants, keys, prices } = document;
    bucket(&mut parts, KINDS[0], providers, |entry| entry.id.as_str())?;
    bucket(&mut parts, KINDS[1], deployments, |entry| entry.id.as_str())?;
    bucket(&mut parts, KINDS[2], models, |entry| entry.name.as_str())?;
    bucket(&mut parts, KINDS[3], tenants, |entry| entry.id.as_str())?;
    bucket(&mut parts, KINDS[4], keys, |entry| entry.id.as_str())?;
    let chunks: Vec<&[PriceEntry]> = prices.chunks(PRICES_OF_A_PART).collect();
    for (number, chunk) in chunks.iter().enumerate() {
        let scope = format!("{PRICES}/{}/{number}-of-{}", publication.price_version, chunks.len());
        parts.insert(scope, json(chunk)?);
    }
    let Publication { version, content_sha256, price_version, published_at_ms } = publication.clone();
    let parts_sha256 = sum(parts.iter().map(|(scope, body)| (scope.as_str(), sha256(body))));
    let mut head = Head {
        version,
        content_sha256,
        price_version,
        published_at_ms,
        parts: parts.len(),
        parts_sha256,
        signature: String::new(),
    };
    head.signature = hex::encode(master.seal_of(head.signed_text().as_bytes()));
    Ok(Cut { head, parts })
}

fn bucket<T: Serialize>(
    parts: &mut BTreeMap<String, String>,
    (kind, buckets): (&str, u32),
    entries: &[T],
    id: impl Fn(&T) -> &str,
) -> Result<(), PartsError> {
    let mut by_bucket: BTreeMap<u32, Vec<&T>> = BTreeMap::new();
    for entry in entries {
        by_bucket.entry(crc32fast::hash(id(entry).as_bytes()) % buckets).or_default().push(entry);
    }
    for (number, entries) in by_bucket {
        parts.insert(format!("{kind}/{number:03x}"), json(&entries)?);
    }
    Ok(())
}

fn json<T: Serialize + ?Sized>(value: &T) -> Result<String, PartsError> {
    serde_json::to_string(value).map_err(PartsError::Unwritable)
}

pub(super) fn sha256(body: &str) -> [u8; 32] {
    Sha256::digest(body).into()
}

/// One hash over all parts, given by ascending scope.
fn sum<'a>(parts: impl Iterator<Item = (&'a str, [u8; 32])>) -> String {
    let mut hash = Sha256::new();
    for (scope, content) in parts {
        hash.update(scope.as_bytes());
        hash.update([0]);
        hash.update(content);
    }
    hex::encode(hash.finalize())
}

/// The newest record of every scope, as a reader of the topic has come to know them.
#[derive(Debug, Default, Clone)]
pub struct Parts {
    parts: BTreeMap<String, Part>,
    head: Option<Head>,
    /// Versions of price books by their first appearance, so that the oldest is let go of.
    books: Vec<PriceVersion>,
}

#[derive(Debug, Clone)]
struct Part {
    hash: [u8; 32],
    /// Shared, so that a copy of all parts is cheap.
    body: Arc<str>,
}

/// A whole version.
#[derive(Debug)]
pub struct Assembled {
    pub head: Head,
    pub document: SnapshotDocument,
}

impl Parts {
    /// Takes a record in; says whether it was a head.
    ///
    /// # Errors
    /// [`PartsError`]: a head that cannot be read. It is left out.
    pub fn take(&mut self, record: SnapshotPublished, master: &MasterKey) -> Result<bool, PartsError> {
        let SnapshotPublished { scope, content_hash, body, .. } = record;
        if scope == HEAD {
            let head: Head = serde_json::from_str(&body).map_err(|source| PartsError::Unreadable { scope, source })?;
            let seal = hex::encode(master.seal_of(head.signed_text().as_bytes()));
            if !is_same(&seal, &head.signature) {
                return Err(PartsError::Signature { version: head.version });
            }
            // The book in force is the last to be let go of.
            self.books.retain(|version| *version != head.price_version);
            self.books.push(head.price_version.clone());
            self.head = Some(head);
            return Ok(true);
        }
        if let Some(version) = book_of(&scope) {
            self.remember_book(version);
        }
        if body.is_empty() {
            self.parts.remove(&scope);
        } else {
            self.parts.insert(scope, Part { hash: content_hash, body: body.into() });
        }
        Ok(false)
    }

    fn remember_book(&mut self, version: PriceVersion) {
        if self.books.contains(&version) {
            return;
        }
        self.books.push(version);
        if self.books.len() > MOST_PRICE_BOOKS {
            let oldest = self.books.remove(0);
            self.parts.retain(|scope, _| book_of(scope).as_ref() != Some(&oldest));
        }
    }

    /// The newest head, whether or not its parts are all there.
    #[must_use]
    pub const fn head(&self) -> Option<&Head> {
        self.head.as_ref()
    }

    /// Hashes of everything that stands on the topic, by scope.
    pub(super) fn hashes(&self) -> impl Iterator<Item = (&str, [u8; 32])> {
        self.parts.iter().map(|(scope, part)| (scope.as_str(), part.hash))
    }

    /// The parts of the head's version as records, for the file that outlives the process.
    pub(super) fn of_head(&self) -> impl Iterator<Item = (&str, &str)> {
        let head = self.head.as_ref();
        let parts = self.parts.iter().filter(move |(scope, _)| head.is_some_and(|head| head.has(scope)));
        parts.map(|(scope, part)| (scope.as_str(), &*part.body))
    }

    /// Whether everything that the head names is there.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        let Some(head) = &self.head else { return false };
        let of_head = || self.hashes().filter(|(scope, _)| head.has(scope));
        of_head().count() == head.parts && sum(of_head()) == head.parts_sha256
    }

    /// The head's version, or `None` while some of it is missing.
    ///
    /// # Errors
    /// [`PartsError::Unreadable`].
    pub fn assemble(&self) -> Result<Option<Assembled>, PartsError> {
        let Some(head) = self.head.clone().filter(|_| self.is_whole()) else { return Ok(None) };
        let document = SnapshotDocument {
            providers: self.entries(KINDS[0].0)?,
            deployments: self.entries(KINDS[1].0)?,
            models: self.entries(KINDS[2].0)?,
            tenants: self.entries(KINDS[3].0)?,
            keys: self.entries(KINDS[4].0)?,
            prices: self.book_entries(&head.price_version)?,
        };
        Ok(Some(Assembled { head, document }))
    }

    /// The price book that was published under `version`, if it is at hand and whole.
    #[must_use]
    pub fn price_book(&self, version: &PriceVersion) -> Option<PriceBook> {
        let book = PriceBook::new(&self.book_entries(version).ok()?, price_version).ok()?;
        // Its name is the hash of its content, so half a book is none.
        (book.version() == version).then_some(book)
    }

    fn entries<T: DeserializeOwned>(&self, kind: &str) -> Result<Vec<T>, PartsError> {
        let mut entries = Vec::new();
        for (scope, part) in self.below(&format!("{kind}/")) {
            entries.append(&mut read(scope, &part.body)?);
        }
        Ok(entries)
    }

    fn book_entries(&self, version: &PriceVersion) -> Result<Vec<PriceEntry>, PartsError> {
        let mut by_number: HashMap<usize, Vec<PriceEntry>> = HashMap::new();
        let folder = format!("{PRICES}/{version}/");
        for (scope, part) in self.below(&folder) {
            let number = scope[folder.len()..].split_once("-of-").and_then(|(number, _)| number.parse().ok());
            by_number.insert(number.unwrap_or(usize::MAX), read(scope, &part.body)?);
        }
        let mut numbered: Vec<_> = by_number.into_iter().collect();
        numbered.sort_by_key(|(number, _)| *number);
        Ok(numbered.into_iter().flat_map(|(_, entries)| entries).collect())
    }

    fn below(&self, folder: &str) -> impl Iterator<Item = (&str, &Part)> {
        let from_here = self.parts.range(folder.to_owned()..);
        let folder = folder.to_owned();
        from_here.take_while(move |(scope, _)| scope.starts_with(&folder)).map(|(scope, part)| (scope.as_str(), part))
    }
}

impl Head {
    /// Whether `scope` is of this version: everything but the books of others.
    fn has(&self, scope: &str) -> bool {
        book_of(scope).is_none_or(|version| version == self.price_version)
    }
}

fn read<T: DeserializeOwned>(scope: &str, body: &str) -> Result<T, PartsError> {
    serde_json::from_str(body).map_err(|source| PartsError::Unreadable { scope: scope.to_owned(), source })
}

/// The version of the price book that a scope is a part of.
fn book_of(scope: &str) -> Option<PriceVersion> {
    let (version, _) = scope.strip_prefix(PRICES)?.strip_prefix('/')?.split_once('/')?;
    Some(PriceVersion::new(version))
}

/// In constant time, so that a forger learns nothing.
fn is_same(a: &str, b: &str) -> bool {
    use subtle::ConstantTimeEq as _;
    a.as_bytes().ct_eq(b.as_bytes()).into()
}
