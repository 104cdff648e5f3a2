//! Books for tenants whose counters the quota store does not have: new ones, and those that a node lost (I15).
//!
//! ```text
//!   wanted ▶ closed ▶ everybody's holds are on the log ▶ fold to its end ▶ revocations ▶ open
//! ```
//!
//! The store lists who was asked for in vain, and whom a new policy brings. Their books are closed before anybody looks
//! at the log, so that what the old counters admitted was admitted before; then every gateway says that it is on the log
//! (`weir_reconciler::rebuild`).
//! The fold ends where the log ended after that, however busy it is: ledger lines above it come by the corrector, which
//! counts from the position in each book.
//!
//! Any number of processes may rebuild; one does at a time, because two would close each other's books for ever. Should two
//! do it nevertheless (the turn is kept in the store that lost its data), the one that closed a book last opens it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use thiserror::Error;
use tokio::time::Instant;
use uuid::Uuid;

use weir_control::ports::{PortError, Rebuilt};
use weir_domain::ids::TenantId;
use weir_domain::policy::Snapshot;
use weir_domain::quota::{Book, BookOptions};
use weir_ledger::contract::LedgerStore;
use weir_ledger::start::{Books, StartError};
use weir_quota::QuotaError;
use weir_quota::redis::{Begun, RedisQuota, Unless};
use weir_reconciler::rebuild::{BarrierError, Speaker, everybody_holds, revoked_keys};
use weir_reconciler::{JournalError, Presence};
use weir_runtime::entropy::{SharedEntropy, new_reservation_id};
use weir_runtime::failpoint;
use weir_runtime::story::story;
use weir_runtime::tasks::Tasks;
use weir_schemas::operations::QuotaRebuild;
use weir_streams::{EventLog, ReadError};

use crate::process::Running;
use crate::up::consumers::{Derived, journal};
use crate::up::operators::{Counters, failed, open_in};

/// A new tenant waits for this, and so does everybody whose counters were lost.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// A rebuilder that died keeps its turn for so long.
const TURN: Duration = Duration::from_secs(10);
const KEEP_TURN_EVERY: Duration = Duration::from_secs(3);
/// How long an operator's rebuild waits for its turn: another one that waits for its gateways, and folds.
const LONGEST_FOR_TURN: Duration = Duration::from_secs(60);

/// Books that one rebuild closes: each is copied once in memory. The others are next.
const MOST_TENANTS: usize = 10_000;

#[derive(Debug)]
pub(super) struct Rebuilder {
    log: Arc<dyn EventLog>,
    ledger: Arc<dyn LedgerStore>,
    quota: Arc<RedisQuota>,
    presence: Arc<Presence>,
    snapshot: Arc<ArcSwap<Snapshot>>,
    speaker: Speaker,
    entropy: SharedEntropy,
    book: BookOptions,
    lease_ms: i64,
    patience: Duration,
}

#[derive(Debug, Error)]
enum RebuildError {
    #[error("the quota store does not answer")]
    Quota(#[from] QuotaError),
    #[error("nobody can tell whether all holds are on the log")]
    Barrier(#[from] BarrierError),
    #[error("the counters cannot be folded from the log")]
    Fold(#[from] StartError),
    #[error("the revocations cannot be read")]
    Revocations(#[from] ReadError),
    #[error("another process is rebuilding")]
    NotMyTurn,
}

impl Rebuilder {
    pub fn new(running: &Running<'_>, derived: &Derived, quota: &Arc<RedisQuota>, presence: &Arc<Presence>) -> Self {
        Self {
            log: Arc::clone(running.log),
            ledger: Arc::clone(&derived.ledger),
            quota: Arc::clone(quota),
            presence: Arc::clone(presence),
            snapshot: Arc::clone(running.snapshot),
            speaker: speaker(running),
            entropy: Arc::clone(running.entropy),
            book: running.config.book(),
            lease_ms: crate::config::ms(running.config.gateway.lease),
            patience: running.config.reconciler.rebuild_patience.duration(),
        }
    }

    /// Rebuilds what is wanted, until the tasks stop.
    pub async fn run(self, tasks: Tasks) {
        let stopping = tasks.stopping();
        tokio::pin!(stopping);
        let mut welcomed = None;
        loop {
            tokio::select! {
                biased;
                () = &mut stopping => return,
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
            let round = tokio::select! {
                biased;
                // Books that are closed stay closed, and are wanted.
                () = &mut stopping => return,
                round = self.round(&mut welcomed) => round,
            };
            if let Err(error) = round {
                tracing::warn!(error = story(&error), "counters not rebuilt");
            }
        }
    }

    async fn round(&self, welcomed: &mut Option<u64>) -> Result<(), RebuildError> {
        self.welcome(welcomed).await?;
        let wanted = self.quota.wanted().await?;
        if wanted.is_empty() || !self.quota.is_my_turn(TURN).await? {
            return Ok(());
        }
        self.in_turn(wanted, Unless::InForce).await.map(|_| ())
    }

    /// Wants a book for every tenant of a new policy that the store has not heard of, before anybody asks in its name: its
    /// first request would be refused. That a tenant is new is no proof that the log has nothing of it; the fold is.
    async fn welcome(&self, welcomed: &mut Option<u64>) -> Result<(), QuotaError> {
        let snapshot = self.snapshot.load_full();
        if *welcomed == Some(snapshot.version) {
            return Ok(());
        }
        let listed: BTreeSet<TenantId> = self.quota.tenants().await?.into_iter().collect();
        for tenant in snapshot.tenants.keys().filter(|tenant| !listed.contains(*tenant)) {
            self.quota.want_book(tenant).await?;
        }
        *welcomed = Some(snapshot.version);
        Ok(())
    }

    async fn in_turn(&self, tenants: Vec<TenantId>, unless: Unless) -> Result<Rebuilt, RebuildError> {
        let keeping = async {
            loop {
                tokio::time::sleep(KEEP_TURN_EVERY).await;
                if let Err(error) = self.quota.is_my_turn(TURN).await {
                    tracing::debug!(%error, "the turn of a rebuild was not kept");
                }
            }
        };
        tokio::select! {
            rebuilt = self.rebuild(tenants, unless) => rebuilt,
            () = keeping => Err(RebuildError::NotMyTurn),
        }
    }

    async fn rebuild(&self, tenants: Vec<TenantId>, unless: Unless) -> Result<Rebuilt, RebuildError> {
        let started = Instant::now();
        let mut closed = Vec::new();
        for tenant in tenants.into_iter().take(MOST_TENANTS) {
            if let Some(begun) = self.quota.begin_rebuild(&tenant, unless).await? {
                closed.push((tenant, begun));
            }
        }
        if closed.is_empty() {
            return Ok(Rebuilt { tenants: 0, reservations: 0, events: 0, closed_ms: 0 });
        }
        failpoint::pass("rebuild.closed").await;
        let count = u64::try_from(closed.len()).unwrap_or(u64::MAX);
        let rebuild: Uuid = *new_reservation_id(&*self.entropy, self.speaker.journal.now_ms()).uuid();
        let absent = everybody_holds(&self.speaker, &self.presence, rebuild, count, self.patience).await?;
        let waited = started.elapsed();
        if !absent.is_empty() {
            tracing::error!(%rebuild, ?absent, "gateways did not answer: what is in their spools is not counted yet");
        }
        let folded = weir_ledger::start::books(&*self.log, &self.ledger, self.book).await?;
        failpoint::pass("rebuild.folded").await;
        let events = folded.replayed_events;
        let (tenants, reservations) = self.open(closed, folded).await?;
        let took = started.elapsed();
        tracing::info!(%rebuild, tenants, reservations, events, ?waited, ?took, "counters rebuilt");
        self.told(rebuild, count, absent).await;
        let closed_ms = i64::try_from(took.as_millis()).unwrap_or(i64::MAX);
        Ok(Rebuilt { tenants, reservations, events, closed_ms })
    }

    /// Opens the closed books as the log has them. How many, with how many open reservations.
    async fn open(&self, closed: Vec<(TenantId, Begun)>, mut folded: Books) -> Result<(usize, usize), RebuildError> {
        let mut revoked = revoked_keys(&*self.log).await?;
        let (mut tenants, mut reservations, mut lost) = (0, 0, None);
        for (tenant, begun) in closed {
            let mut books = folded.by_tenant.remove(&tenant).unwrap_or_default();
            let mut revocations = Book::new(self.book);
            revoked.remove(&tenant).into_iter().flatten().for_each(|key| revocations.revoke(key));
            books.push(revocations);
            let open: usize = books.iter().map(open_in).sum();
            match self.quota.finish_rebuild(&tenant, &begun, books, self.lease_ms).await {
                Ok(_) => {
                    tenants += 1;
                    reservations += open;
                }
                // Its node failed over, or another rebuild took over: it is wanted again. The others are not.
                Err(error @ QuotaError::NotValidated { .. }) => lost = Some(error),
                Err(error) => return Err(error.into()),
            }
        }
        self.want_the_rest(&folded).await?;
        match lost {
            Some(error) if tenants == 0 => Err(error.into()),
            Some(_) | None => Ok((tenants, reservations)),
        }
    }

    /// A tenant that nobody asks for may have reservations that only the sweep will end, and it looks for them in the store.
    async fn want_the_rest(&self, folded: &Books) -> Result<(), QuotaError> {
        let listed: BTreeSet<TenantId> = self.quota.tenants().await?.into_iter().collect();
        for (tenant, books) in &folded.by_tenant {
            if !listed.contains(tenant) && books.iter().any(|book| open_in(book) > 0) {
                self.quota.want_book(tenant).await?;
            }
        }
        Ok(())
    }

    async fn told(&self, rebuild: Uuid, tenants: u64, absent: Vec<String>) {
        if let Err(error) = self.speaker.say(rebuild, QuotaRebuild::OPENED, tenants, absent).await {
            let error: JournalError = error;
            tracing::warn!(%rebuild, error = story(&error), "the end of a rebuild is not on the log");
        }
    }

    async fn take_turn(&self) -> Result<(), RebuildError> {
        let deadline = Instant::now() + LONGEST_FOR_TURN;
        while !self.quota.is_my_turn(TURN).await? {
            if Instant::now() >= deadline {
                return Err(RebuildError::NotMyTurn);
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Ok(())
    }
}

/// Under whose name this process speaks on the log.
pub(super) fn speaker(running: &Running<'_>) -> Speaker {
    let identity = running.identity;
    Speaker { journal: journal(running), process: identity.name.clone(), epoch: identity.epoch }
}

/// An operator's rebuild: every book that there is, whether it may be used or not.
#[async_trait]
impl Counters for Rebuilder {
    fn name(&self) -> &'static str {
        "redis"
    }

    async fn rebuild(&self) -> Result<Rebuilt, PortError> {
        let rebuilt = async {
            self.take_turn().await?;
            let tenants = self.quota.tenants().await?;
            self.in_turn(tenants, Unless::Never).await
        };
        rebuilt.await.map_err(|error: RebuildError| failed("the counters, which stay closed", &error))
    }
}
