//! Prices for reports that come late: of the book that was locked at admission (I10), not of the one in force.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use weir_control::Control;
use weir_domain::ids::{DeploymentId, PriceVersion};
use weir_domain::policy::Snapshot;
use weir_domain::price::{Price, PriceBook};
use weir_reconciler::Prices;

/// Books that reports speak of at the same time: of yesterday and today, and a few corrections of the catalog.
const MOST_BOOKS: usize = 16;

#[derive(Debug)]
pub(super) struct PublishedPrices {
    control: Arc<Control>,
    /// Knows which price a deployment has; a book knows prices by name.
    snapshot: Arc<ArcSwap<Snapshot>>,
    books: Mutex<HashMap<PriceVersion, Arc<PriceBook>>>,
}

impl PublishedPrices {
    pub fn new(control: &Arc<Control>, snapshot: &Arc<ArcSwap<Snapshot>>) -> Self {
        Self { control: Arc::clone(control), snapshot: Arc::clone(snapshot), books: Mutex::default() }
    }

    fn book(&self, version: &PriceVersion) -> Option<Arc<PriceBook>> {
        if let Some(known) = self.books.lock().get(version) {
            return Some(Arc::clone(known));
        }
        let book = match self.control.price_book(version) {
            Ok(book) => Arc::new(book?),
            Err(error) => {
                tracing::error!(price_version = %version, error = &error as &dyn std::error::Error, "price book not read");
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
    fn price(&self, version: &PriceVersion, deployment: &DeploymentId, admitted_at_ms: i64) -> Option<Arc<Price>> {
        let snapshot = self.snapshot.load();
        let name = &snapshot.deployments.get(deployment)?.price;
        let book =
            if snapshot.prices.version() == version { Arc::clone(&snapshot.prices) } else { self.book(version)? };
        book.price(name, admitted_at_ms).ok().map(Arc::clone)
    }
}
