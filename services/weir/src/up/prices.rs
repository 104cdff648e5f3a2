//! Prices for reports that come late: of the book that was locked at admission (I10), not of the one in force.
//!
//! The attempt knows the name of its price, so the catalog that is in force is not asked: its deployment may be gone.

#[cfg(test)]
#[path = "prices_tests.rs"]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use weir_control::{Control, ControlError, SnapshotFollower};
use weir_domain::ids::PriceVersion;
use weir_domain::price::{Price, PriceBook};
use weir_reconciler::Prices;
use weir_runtime::story::story;

/// Books that reports speak of at the same time: of yesterday and today, and a few corrections of the catalog.
const MOST_BOOKS: usize = 16;

/// Who keeps every price book that was ever published.
pub(crate) trait PriceBooks: std::fmt::Debug + Send + Sync {
    fn published_book(&self, version: &PriceVersion) -> Result<Option<PriceBook>, ControlError>;
}

impl PriceBooks for Control {
    fn published_book(&self, version: &PriceVersion) -> Result<Option<PriceBook>, ControlError> {
        self.price_book(version)
    }
}

/// On the topic of snapshots they stay for good.
impl PriceBooks for SnapshotFollower {
    fn published_book(&self, version: &PriceVersion) -> Result<Option<PriceBook>, ControlError> {
        Ok(self.price_book(version))
    }
}

#[derive(Debug)]
pub(crate) struct PublishedPrices {
    published: Arc<dyn PriceBooks>,
    books: Mutex<HashMap<PriceVersion, Arc<PriceBook>>>,
}

impl PublishedPrices {
    pub fn new(published: Arc<dyn PriceBooks>) -> Self {
        Self { published, books: Mutex::default() }
    }

    fn book(&self, version: &PriceVersion) -> Option<Arc<PriceBook>> {
        if let Some(known) = self.books.lock().get(version) {
            return Some(Arc::clone(known));
        }
        let book = match self.published.published_book(version) {
            Ok(book) => Arc::new(book?),
            Err(error) => {
                tracing::error!(price_version = %version, error = story(&error), "price book not read");
                return None;
            }
        };
        let mut books = self.books.lock();
        if books.len() >= MOST_BOOKS {
            books.clear();
        }
        books.insert(version.clone(), Arc::clone(&book));
        Some(book)
    }
}

impl Prices for PublishedPrices {
    fn price(&self, version: &PriceVersion, name: &str, admitted_at_ms: i64) -> Option<Arc<Price>> {
        self.book(version)?.price(name, admitted_at_ms).ok().map(Arc::clone)
    }
}
