//! Books for tenants whose counters the quota store does not have: new ones, and those that a node lost (I15).
//!
//! The store lists who was asked for in vain. Their books are folded from the log while it is still, and put in. Two
//! rebuilders at a time end with one of the two, and both with the same book.

use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use weir_domain::quota::{Book, BookOptions};
use weir_ledger::contract::LedgerStore;
use weir_ledger::start::StartError;
use weir_quota::QuotaError;
use weir_quota::redis::RedisQuota;
use weir_runtime::tasks::Tasks;
use weir_streams::EventLog;

use crate::process::Running;
use crate::up::consumers::Derived;
use crate::up::operators::fold_while_still;

/// A tenant's first request waits for this.
const LOOK_EVERY: Duration = Duration::from_millis(250);

pub(super) struct Rebuilder {
    log: Arc<dyn EventLog>,
    ledger: Arc<dyn LedgerStore>,
    quota: Arc<RedisQuota>,
    book: BookOptions,
    lease_ms: i64,
}

#[derive(Debug, Error)]
enum RebuildError {
    #[error("the quota store does not answer")]
    Quota(#[from] QuotaError),
    #[error("the counters cannot be folded from the log")]
    Fold(#[from] StartError),
}

impl Rebuilder {
    pub fn new(running: &Running<'_>, derived: &Derived, quota: &Arc<RedisQuota>) -> Self {
        Self {
            log: Arc::clone(running.log),
            ledger: Arc::clone(&derived.ledger),
            quota: Arc::clone(quota),
            book: running.config.book(),
            lease_ms: crate::config::ms(running.config.gateway.lease),
        }
    }

    pub async fn run(self, tasks: Tasks) {
        let stopping = tasks.stopping();
        tokio::pin!(stopping);
        loop {
            tokio::select! {
                biased;
                () = &mut stopping => return,
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
            if let Err(error) = self.round().await {
                tracing::warn!(error = &error as &dyn std::error::Error, "counters not rebuilt");
            }
        }
    }

    async fn round(&self) -> Result<(), RebuildError> {
        let wanted = self.quota.wanted().await?;
        if wanted.is_empty() {
            return Ok(());
        }
        let mut folded = fold_while_still(&*self.log, &self.ledger, self.book).await?;
        for tenant in wanted {
            let book = folded.books_at_end.remove(&tenant).unwrap_or_else(|| Book::new(self.book));
            let rebuilt = self.quota.rebuild(&tenant, &book, self.lease_ms).await?;
            let (reservations, counters) = (rebuilt.reservations, rebuilt.counters);
            tracing::info!(%tenant, reservations, counters, took = ?rebuilt.took, "counters rebuilt");
        }
        Ok(())
    }
}
