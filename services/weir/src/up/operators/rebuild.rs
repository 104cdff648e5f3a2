//! `weir quota rebuild`: the counters, folded from the log again.
//!
//! ```text
//!   told on the log ▶ closed ▶ nobody acts on what the store said before ▶ fold to the log's end ▶ open
//! ```
//!
//! In one process that is simple: whoever called a provider by the closed counters had written it down before, so one fold
//! has everything, however busy the log is (`weir_quota::Trust`). Roles apart ask each other (`weir_reconciler::rebuild`).

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::Mutex;

use weir_control::ports::{Actor, PortError, QuotaPort, Rebuilt};
use weir_domain::quota::{Book, BookOptions};
use weir_ledger::contract::LedgerStore;
use weir_quota::{MemoryQuota, Trust};
use weir_runtime::clock::SharedClock;
use weir_runtime::story::story;
use weir_streams::EventLog;

use super::ports::{Acts, LOG, failed};
use crate::process::Running;
use crate::up::consumers::Derived;

/// Counters that can be thrown away and folded anew.
#[async_trait]
pub(crate) trait Counters: std::fmt::Debug + Send + Sync {
    /// Such as `embedded`: what is rebuilt, on the log.
    fn name(&self) -> &'static str;

    /// Closes them, folds them, opens them. On an error they stay closed.
    async fn rebuild(&self) -> Result<Rebuilt, PortError>;
}

/// Of the process that owns everything.
#[derive(Debug)]
pub(crate) struct Embedded {
    quota: Arc<MemoryQuota>,
    trust: Arc<Trust>,
    log: Arc<dyn EventLog>,
    store: Arc<dyn LedgerStore>,
    book: BookOptions,
    lease_ms: i64,
    clock: SharedClock,
}

impl Embedded {
    pub fn new(running: &Running<'_>, derived: &Derived, quota: Arc<MemoryQuota>, trust: Arc<Trust>) -> Self {
        Self {
            quota,
            trust,
            log: Arc::clone(running.log),
            store: Arc::clone(&derived.ledger),
            book: running.config.book(),
            lease_ms: crate::config::ms(running.config.gateway.lease),
            clock: Arc::clone(running.clock),
        }
    }
}

#[async_trait]
impl Counters for Embedded {
    fn name(&self) -> &'static str {
        "embedded"
    }

    async fn rebuild(&self) -> Result<Rebuilt, PortError> {
        let from_ms = self.clock.now_ms();
        self.quota.fence();
        self.trust.doubt();
        let folded = weir_ledger::start::start(&*self.log, &self.store, self.book).await.map_err(|error| {
            tracing::error!(error = story(&error), "counters not rebuilt: nothing is admitted");
            failed("the fold of the log, and the quota store stays closed", &error)
        })?;
        let books = folded.books_at_end;
        let rebuilt = Rebuilt {
            tenants: books.len(),
            reservations: books.values().map(open_in).sum(),
            events: folded.replayed_events,
            closed_ms: self.clock.now_ms().saturating_sub(from_ms),
        };
        self.quota.open(books, self.lease_ms);
        Ok(rebuilt)
    }
}

/// Reservations that have not ended.
pub(crate) fn open_in(book: &Book) -> usize {
    book.reservations().filter(|reservation| !reservation.status().is_final()).count()
}

#[derive(Debug)]
pub(super) struct Rebuild {
    pub acts: Arc<Acts>,
    pub counters: Arc<dyn Counters>,
    /// One at a time: the second would open what the first is folding.
    pub turn: Mutex<()>,
}

#[async_trait]
impl QuotaPort for Rebuild {
    async fn rebuild(&self, actor: &Actor) -> Result<Rebuilt, PortError> {
        let _turn = self.turn.lock().await;
        let noted = self.acts.note("quota.rebuild", self.counters.name().to_owned(), None, actor).await;
        noted.map_err(|error| failed(LOG, &error))?;
        tracing::warn!(who = actor.who, why = actor.why, "counters are rebuilt: nothing is admitted meanwhile");
        let rebuilt = self.counters.rebuild().await?;
        tracing::info!(events = rebuilt.events, closed_ms = rebuilt.closed_ms, "counters rebuilt");
        Ok(rebuilt)
    }
}
