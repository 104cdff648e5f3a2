//! The sweep: finds reservations that did not end by themselves, and ends them (I11).
//!
//! ```text
//!   due, pending ──▶ mark the log's end, let the builder pass it ──▶ plan ──▶ append, durable ──▶ store
//! ```
//!
//! One step per reservation and round; what a step leaves open, or a crash between its two halves, the next round finds
//! again. Two sweeps at once do the same things twice: events have the ids of their facts, and the store answers a
//! repeat with what exists. Nothing is ever released because time went by (I9).

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use thiserror::Error;

use weir_domain::ids::{ReservationId, TenantId};
use weir_domain::money::Amounts;
use weir_domain::reconcile::{CeilingPolicy, LedgerView, Patience, Plan, plan};
use weir_domain::reservation::{Command, Decision, Reservation, ReservationStatus};
use weir_quota::{QuotaError, QuotaStore};
use weir_runtime::failpoint;
use weir_runtime::story::story;
use weir_runtime::tasks::Tasks;

use crate::journal::{Journal, JournalError};
use crate::metrics::ReconcilerMetrics;
use crate::moves::{Moves, moves};
use crate::options::ReconcilerOptions;
use crate::pending_share::{TenantLimits, largest_shares};
use crate::presence::Presence;
use crate::projection::{Projection, ProjectionError, Seen, taken_back, unheard, untold};
use crate::rehearsal::after;

/// What a tenant wants after the ceiling, and what it may have.
pub trait CeilingPolicies: std::fmt::Debug + Send + Sync {
    fn policy(&self, tenant: &TenantId) -> CeilingPolicy;

    /// The limits of its pending reservations, to tell how full of them they are. `None` where nobody knows.
    fn limits(&self, tenant: &TenantId, now_ms: i64) -> Option<TenantLimits>;
}

/// The same for all tenants, which have no limits.
impl CeilingPolicies for CeilingPolicy {
    fn policy(&self, _: &TenantId) -> CeilingPolicy {
        *self
    }

    fn limits(&self, _: &TenantId, _: i64) -> Option<TenantLimits> {
        None
    }
}

#[derive(Debug)]
pub struct Sweep {
    quota: Arc<dyn QuotaStore>,
    projection: Projection,
    journal: Journal,
    policies: Arc<dyn CeilingPolicies>,
    presence: Arc<Presence>,
    metrics: ReconcilerMetrics,
    options: ReconcilerOptions,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Store time until which leases are left alone, because nobody could renew them.
    quiet_until_ms: Option<i64>,
    store_was_away: bool,
    next_pending_ms: i64,
    /// Where the last page of pending reservations ended.
    pending_after: Option<ReservationId>,
}

/// What one round did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Round {
    /// Steps taken.
    pub acted: usize,
    /// Looked at and left alone.
    pub waiting: usize,
}

/// Why a round ended early. The next one finds everything as this one left it.
#[derive(Debug, Error)]
pub enum Trouble {
    #[error("the sweep waits for the quota store")]
    Quota(#[from] QuotaError),
    #[error("the sweep waits for the log")]
    Journal(#[from] JournalError),
    #[error("the sweep waits for the ledger's projection")]
    Projection(#[from] ProjectionError),
}

impl Sweep {
    #[must_use]
    pub fn new(
        quota: Arc<dyn QuotaStore>,
        projection: Projection,
        journal: Journal,
        policies: Arc<dyn CeilingPolicies>,
        metrics: ReconcilerMetrics,
        options: ReconcilerOptions,
    ) -> Self {
        Self {
            quota,
            projection,
            journal,
            policies,
            presence: Arc::default(),
            metrics,
            options,
            state: Mutex::default(),
        }
    }

    /// Leaves alone what a gateway may still have the end of in its spool.
    #[must_use]
    pub fn minding(self, presence: Arc<Presence>) -> Self {
        Self { presence, ..self }
    }

    /// Sweeps until the tasks stop. A step that began is finished.
    pub async fn run(self: Arc<Self>, tasks: Tasks) {
        let stopping = tasks.stopping();
        tokio::pin!(stopping);
        let (period, longest) = (self.options.period.duration(), self.options.longest_pause.duration());
        let mut pause = period;
        loop {
            tokio::select! {
                biased;
                () = &mut stopping => return,
                () = tokio::time::sleep(pause) => {}
            }
            pause = match self.round().await {
                Ok(_) => period,
                Err(trouble) => self.pause_after(&trouble, pause, longest),
            };
        }
    }

    fn pause_after(&self, trouble: &Trouble, last: Duration, longest: Duration) -> Duration {
        self.metrics.troubles.inc();
        let pause = last.saturating_mul(2).min(longest).max(self.options.period.duration());
        let reason = story(trouble);
        tracing::warn!(reason, pause_ms = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX), "sweep interrupted");
        pause
    }

    /// One round.
    ///
    /// # Errors
    /// [`Trouble`]: a store or the log is away. Nothing is half done that the next round does not complete.
    pub async fn round(&self) -> Result<Round, Trouble> {
        let found = match self.find_work().await {
            Ok(found) => found,
            Err(error) => {
                self.state.lock().store_was_away = true;
                return Err(error.into());
            }
        };
        let Work { now_ms, reservations } = found;
        let mut round = Round::default();
        if reservations.is_empty() {
            return Ok(round);
        }
        let mark = self.projection.mark().await?;
        let seen = self.projection.seen(&mark).await?;
        for reservation in reservations {
            let plan = match self.step(&reservation, &seen, now_ms).await {
                Ok(plan) => plan,
                // One that can never be written must not hold up the others.
                Err(Trouble::Journal(error)) if !error.is_temporary() => {
                    let (reservation_id, reason) = (reservation.created.id, story(&error));
                    tracing::error!(%reservation_id, reason, "reservation cannot be swept");
                    self.metrics.troubles.inc();
                    continue;
                }
                Err(trouble) => return Err(trouble),
            };
            match plan {
                Plan::Wait => round.waiting += 1,
                Plan::Correct(_)
                | Plan::Close
                | Plan::ReleaseInFull
                | Plan::CompleteAndPend
                | Plan::Escalate
                | Plan::Estimate(_) => round.acted += 1,
            }
        }
        Ok(round)
    }

    async fn find_work(&self) -> Result<Work, QuotaError> {
        let now_ms = self.quota.now_ms().await?;
        let most = self.options.reservations_per_round;
        // Asked even while leases are left alone: it tells whether the store is back.
        let mut reservations = self.quota.due(most).await?;
        if self.is_quiet(now_ms) {
            reservations.clear();
        }
        if now_ms >= self.state.lock().next_pending_ms {
            let pending = self.quota.pending(self.options.pending_listed).await?;
            self.measure_pending(&pending, now_ms);
            reservations.extend(self.page_of(pending, most, now_ms));
        }
        Ok(Work { now_ms, reservations })
    }

    /// Whether leases are left alone for now, because the store was away and nobody could renew one.
    fn is_quiet(&self, now_ms: i64) -> bool {
        let mut state = self.state.lock();
        if std::mem::take(&mut state.store_was_away) {
            state.quiet_until_ms = Some(now_ms.saturating_add(ms(self.options.lease.as_ms())));
        }
        state.quiet_until_ms.is_some_and(|until_ms| now_ms < until_ms)
    }

    fn measure_pending(&self, pending: &[Reservation], now_ms: i64) {
        let ages = pending.iter().map(|reservation| now_ms.saturating_sub(reservation.created.admitted_at_ms));
        let held: Amounts = pending.iter().map(Reservation::held).sum();
        self.metrics.pending.set(i64::try_from(pending.len()).unwrap_or(i64::MAX));
        self.metrics.pending_age_ms_max.set(ages.max().unwrap_or(0));
        self.metrics.pending_held_nanousd.set(held.usd.nanos());
        let shares = largest_shares(pending, |tenant| self.policies.limits(tenant, now_ms));
        self.metrics.set_pending_shares(&shares);
    }

    /// The next `most` in the order of their ids, which is that of their creation; after the last page comes the first.
    fn page_of(&self, mut pending: Vec<Reservation>, most: usize, now_ms: i64) -> Vec<Reservation> {
        pending.sort_by_key(|reservation| reservation.created.id);
        let mut state = self.state.lock();
        let after = state.pending_after;
        let mut page: Vec<Reservation> =
            pending.into_iter().filter(|reservation| Some(reservation.created.id) > after).collect();
        let is_last = page.len() <= most;
        page.truncate(most);
        state.pending_after = if is_last { None } else { page.last().map(|reservation| reservation.created.id) };
        if is_last {
            state.next_pending_ms = now_ms.saturating_add(ms(self.options.pending_period.as_ms()));
        }
        page
    }

    /// Plans and acts on one reservation.
    async fn step(&self, reservation: &Reservation, seen: &Seen, now_ms: i64) -> Result<Plan, Trouble> {
        let created = &reservation.created;
        let stored = self.projection.find(created.id).await?;
        // Its end may wait in the gateway's spool: then the ledger's silence proves nothing.
        let view = match self.presence.has_spooled(&created.owner) {
            true => LedgerView::NotYetKnown,
            false => seen.view(created.id, stored.as_ref()),
        };
        let mut commands = unheard(reservation, stored.as_ref());
        commands.extend(taken_back(reservation, stored.as_ref(), &view));
        let informed = after(reservation, &commands, now_ms);
        let patience =
            Patience { ceiling_ms: ms(self.options.ceiling.as_ms()), policy: self.policies.policy(&created.tenant) };
        let plan = plan(&informed, &view, patience, now_ms);
        let mut log = untold(&informed, stored.as_ref(), &view);
        let Moves { log: events, store } = moves(&informed, &view, &plan, now_ms);
        log.extend(events);
        commands.extend(store);
        failpoint::pass("sweep.before_append").await;
        self.journal.tell(created, log).await?;
        failpoint::pass("sweep.before_store").await;
        let status = self.settle(reservation, &commands).await?;
        self.note(reservation, &plan, status);
        Ok(plan)
    }

    /// Runs `commands` until one is refused: then somebody else has moved on, and the next round sees it.
    async fn settle(
        &self,
        reservation: &Reservation,
        commands: &[Command],
    ) -> Result<Option<ReservationStatus>, QuotaError> {
        let created = &reservation.created;
        let mut status = Some(reservation.status());
        for command in commands {
            let reply = self.quota.execute(&created.tenant, created.id, command).await?;
            status = reply.status;
            match reply.decision {
                Decision::Change(_) | Decision::NoChange(_) => {}
                Decision::Refused(_) | Decision::Denied(_) | Decision::Conflict(_) => break,
            }
        }
        Ok(status)
    }

    fn note(&self, reservation: &Reservation, plan: &Plan, status: Option<ReservationStatus>) {
        self.metrics.count_action(plan);
        let created = &reservation.created;
        let (reservation_id, tenant) = (created.id, &created.tenant);
        let status = status.map(ReservationStatus::as_str);
        match plan {
            Plan::Wait => {}
            Plan::Correct(_) | Plan::Close | Plan::ReleaseInFull | Plan::CompleteAndPend => {
                tracing::info!(%reservation_id, %tenant, ?plan, status, "reservation swept");
            }
            Plan::Escalate => {
                self.metrics.escalations.inc();
                tracing::error!(
                    %reservation_id, %tenant, held_usd = %reservation.held().usd,
                    "reservation escalated: a person must say what was used"
                );
            }
            Plan::Estimate(_) => {
                tracing::warn!(%reservation_id, %tenant, status, "reservation settled at its worst case as an estimate");
            }
        }
    }
}

struct Work {
    now_ms: i64,
    reservations: Vec<Reservation>,
}

fn ms(duration_ms: u64) -> i64 {
    i64::try_from(duration_ms).unwrap_or(i64::MAX)
}
