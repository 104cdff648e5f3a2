//! The counters of the running process, folded from the log again.
//!
//! ```text
//!   told on the log ▶ closed ▶ fold ▶ is the log still? ─ no ─▶ fold again (bounded) ─▶ open
//! ```
//!
//! A request whose hold was taken just before the fence may still be writing it down, and a hold that is missing would
//! let others through. So the log must be still for a moment before the store opens. What is written later by streams
//! that were running has its reservation on the log, and the ledger's lines and the sweep bring it to the counters, as
//! after a restart.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Mutex;

use weir_control::ports::{Actor, PortError, QuotaPort, Rebuilt};
use weir_domain::ids::TenantId;
use weir_domain::quota::{Book, BookOptions};
use weir_ledger::contract::LedgerStore;
use weir_ledger::start::{StartError, Started};
use weir_quota::{MemoryQuota, QuotaError};
use weir_runtime::clock::SharedClock;
use weir_streams::{EventLog, ReadError, Topic};

use super::ports::{Acts, LOG, failed};

/// An append takes well below a millisecond to be written, a hundred under load.
const STILL_FOR: Duration = Duration::from_millis(100);

/// Streams that end keep writing. A fold of what came since the last look is short, and ten of them are a second.
const MOST_FOLDS: usize = 10;

/// A quota store that can be closed, and opened with other books.
#[async_trait]
pub(crate) trait Fence: std::fmt::Debug + Send + Sync {
    /// Such as `embedded`: what is rebuilt, on the log.
    fn name(&self) -> &'static str;

    /// Nothing is admitted from now on.
    async fn close(&self);

    /// Puts `books` in the place of what the store has, and opens it. Open leases get `lease_ms` from now on.
    async fn open(&self, books: HashMap<TenantId, Book>, lease_ms: i64) -> Result<(), QuotaError>;
}

#[async_trait]
impl Fence for MemoryQuota {
    fn name(&self) -> &'static str {
        "embedded"
    }

    async fn close(&self) {
        self.fence();
    }

    async fn open(&self, books: HashMap<TenantId, Book>, lease_ms: i64) -> Result<(), QuotaError> {
        Self::open(self, books, lease_ms);
        Ok(())
    }
}

#[derive(Debug)]
pub(super) struct Rebuild {
    pub acts: Arc<Acts>,
    pub fence: Arc<dyn Fence>,
    pub log: Arc<dyn EventLog>,
    pub store: Arc<dyn LedgerStore>,
    pub book: BookOptions,
    pub lease_ms: i64,
    pub clock: SharedClock,
    /// One at a time: the second would open what the first is folding.
    pub turn: Mutex<()>,
}

#[async_trait]
impl QuotaPort for Rebuild {
    async fn rebuild(&self, actor: &Actor) -> Result<Rebuilt, PortError> {
        let _turn = self.turn.lock().await;
        let noted = self.acts.note("quota.rebuild", self.fence.name().to_owned(), None, actor).await;
        noted.map_err(|error| failed(LOG, &error))?;
        let from_ms = self.clock.now_ms();
        self.fence.close().await;
        tracing::warn!(who = actor.who, why = actor.why, "counters are rebuilt: nothing is admitted meanwhile");
        let folded = fold_while_still(&*self.log, &self.store, self.book).await.map_err(|error| {
            tracing::error!(error = &error as &dyn std::error::Error, "counters not rebuilt: nothing is admitted");
            failed("the fold of the log, and the quota store stays closed", &error)
        })?;
        let rebuilt = Rebuilt {
            tenants: folded.books_at_end.len(),
            reservations: open_in(&folded.books_at_end),
            events: folded.replayed_events,
            closed_ms: self.clock.now_ms().saturating_sub(from_ms),
        };
        self.fence.open(folded.books_at_end, self.lease_ms).await.map_err(|error| failed("the quota store", &error))?;
        tracing::info!(events = rebuilt.events, closed_ms = rebuilt.closed_ms, "counters rebuilt");
        Ok(rebuilt)
    }
}

/// Folds the log until nothing came to it for a moment; gives up waiting after some rounds, with the newest fold.
pub(crate) async fn fold_while_still(
    log: &dyn EventLog,
    store: &Arc<dyn LedgerStore>,
    book: BookOptions,
) -> Result<Started, StartError> {
    let mut end = end_of(log).await?;
    let mut folded = weir_ledger::start::start(log, store, book).await?;
    for _ in 1..MOST_FOLDS {
        tokio::time::sleep(STILL_FOR).await;
        let now = end_of(log).await?;
        if now == end {
            break;
        }
        end = now;
        folded = weir_ledger::start::start(log, store, book).await?;
    }
    Ok(folded)
}

/// Where the log of reservations ends, over all partitions.
async fn end_of(log: &dyn EventLog) -> Result<u64, ReadError> {
    let mut end = 0;
    for partition in 0..log.partitions(Topic::Reservations) {
        end += log.offsets(Topic::Reservations, partition).await?.written;
    }
    Ok(end)
}

fn open_in(books: &HashMap<TenantId, Book>) -> usize {
    books.values().flat_map(Book::reservations).filter(|reservation| !reservation.status().is_final()).count()
}
