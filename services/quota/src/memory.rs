//! The embedded backend: the domain's books, each behind a lock of its own.
//!
//! It is rebuilt at every start from a checkpoint and the log's tail, so it keeps nothing on disk. Until
//! [`MemoryQuota::open`] gave it the books it refuses everything (I15). A tenant's lock is held for one command, and
//! never across an await.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::{Mutex, RwLock};

use weir_domain::ids::{KeyId, OwnMap, ReservationId, TenantId};
use weir_domain::quota::{Book, BookOptions, Correction, Reply};
use weir_domain::reservation::{Command, Reservation, ReservationStatus};
use weir_runtime::clock::SharedClock;

use crate::contract::{QuotaError, QuotaStore, TenantReading};

type Books = OwnMap<TenantId, Arc<Mutex<Book>>>;

#[derive(Debug)]
pub struct MemoryQuota {
    clock: SharedClock,
    options: BookOptions,
    /// `None` until the books are validated.
    books: RwLock<Option<Books>>,
}

impl MemoryQuota {
    #[must_use]
    pub fn new(clock: SharedClock, options: BookOptions) -> Self {
        Self { clock, options, books: RwLock::new(None) }
    }

    /// Opens the store with the books that a fold of the log gave. Every open lease gets `lease_ms` from now on,
    /// because nobody had the time to renew.
    pub fn open(&self, books: HashMap<TenantId, Book>, lease_ms: i64) {
        let now_ms = self.clock.now_ms();
        let books = books
            .into_iter()
            .map(|(tenant, mut book)| {
                book.grace(now_ms, lease_ms);
                (tenant, Arc::new(Mutex::new(book)))
            })
            .collect();
        *self.books.write() = Some(books);
    }

    /// Refuses everything from now on, until opened again.
    pub fn fence(&self) {
        *self.books.write() = None;
    }

    fn not_validated() -> QuotaError {
        QuotaError::NotValidated { reason: "the counters are being rebuilt from the log".to_owned() }
    }

    fn book(&self, tenant: &TenantId) -> Result<Arc<Mutex<Book>>, QuotaError> {
        if let Some(book) = self.books.read().as_ref().ok_or_else(Self::not_validated)?.get(tenant) {
            return Ok(Arc::clone(book));
        }
        let mut books = self.books.write();
        let books = books.as_mut().ok_or_else(Self::not_validated)?;
        let book = books.entry(tenant.clone()).or_insert_with(|| Arc::new(Mutex::new(Book::new(self.options))));
        Ok(Arc::clone(book))
    }

    fn all_books(&self) -> Result<Vec<Arc<Mutex<Book>>>, QuotaError> {
        let books = self.books.read();
        Ok(books.as_ref().ok_or_else(Self::not_validated)?.values().map(Arc::clone).collect())
    }
}

#[async_trait]
impl QuotaStore for MemoryQuota {
    async fn execute(&self, tenant: &TenantId, id: ReservationId, command: &Command) -> Result<Reply, QuotaError> {
        let book = self.book(tenant)?;
        let reply = book.lock().execute(id, command, self.clock.now_ms());
        Ok(reply)
    }

    async fn execute_all(
        &self,
        tenant: &TenantId,
        id: ReservationId,
        commands: &[Command],
    ) -> Result<Vec<Reply>, QuotaError> {
        let book = self.book(tenant)?;
        let mut book = book.lock();
        let now_ms = self.clock.now_ms();
        Ok(commands.iter().map(|command| book.execute(id, command, now_ms)).collect())
    }

    async fn correct(&self, tenant: &TenantId, correction: &Correction) -> Result<Reply, QuotaError> {
        let book = self.book(tenant)?;
        let reply = book.lock().correct(correction, self.clock.now_ms());
        Ok(reply)
    }

    async fn due(&self, most: usize) -> Result<Vec<Reservation>, QuotaError> {
        let now_ms = self.clock.now_ms();
        let mut due = Vec::new();
        for book in self.all_books()? {
            if due.len() >= most {
                break;
            }
            due.extend(book.lock().due(now_ms, most - due.len()));
        }
        Ok(due)
    }

    async fn pending(&self, most: usize) -> Result<Vec<Reservation>, QuotaError> {
        let mut pending = Vec::new();
        for book in self.all_books()? {
            let book = book.lock();
            let waiting = book.unfinished().filter(|r| r.status() == ReservationStatus::PendingReconciliation);
            pending.extend(waiting.take(most.saturating_sub(pending.len())).cloned());
        }
        Ok(pending)
    }

    async fn find(&self, tenant: &TenantId, id: ReservationId) -> Result<Option<Reservation>, QuotaError> {
        let book = self.book(tenant)?;
        let found = book.lock().reservation(id).map(Cow::into_owned);
        Ok(found)
    }

    async fn read(&self, tenant: &TenantId) -> Result<TenantReading, QuotaError> {
        let book = self.book(tenant)?;
        let book = book.lock();
        let count = |status| book.unfinished().filter(|r| r.status() == status).count() as u64;
        Ok(TenantReading {
            counters: book.counters(),
            held: book.held(),
            reserved: count(ReservationStatus::Reserved),
            pending: count(ReservationStatus::PendingReconciliation),
        })
    }

    async fn revoke(&self, tenant: &TenantId, key: &KeyId) -> Result<(), QuotaError> {
        self.book(tenant)?.lock().revoke(key.clone());
        Ok(())
    }

    async fn now_ms(&self) -> Result<i64, QuotaError> {
        Ok(self.clock.now_ms())
    }
}
