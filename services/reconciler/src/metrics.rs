//! What the reconciler counts. Alerts watch `pending_age_ms_max`,
//! `pending_share_permille_max`, `escalations` and `reports_parked` (I11).

use std::sync::Arc;

use weir_domain::ids::TenantId;
use weir_domain::reconcile::Plan;
use weir_runtime::metrics::{BoundedLabels, Counter, EncodeLabelSet, Family, Gauge, Metrics};

/// One set of counters; clones share them.
#[derive(Debug, Clone)]
pub struct ReconcilerMetrics {
    pub pending: Gauge,
    pub pending_age_ms_max: Gauge,
    pub pending_held_nanousd: Gauge,
    pub pending_share_permille_max: Family<ByTenant, Gauge>,
    tenants: Arc<BoundedLabels>,
    pub actions: Family<ByAction, Counter>,
    pub troubles: Counter,
    pub escalations: Counter,
    pub corrections: Counter,
    pub reports: Family<ByResult, Counter>,
    pub reports_parked: Gauge,
}

/// How many tenants get a label of their own.
const MOST_TENANTS: usize = 512;

impl Default for ReconcilerMetrics {
    fn default() -> Self {
        Self {
            pending: Gauge::default(),
            pending_age_ms_max: Gauge::default(),
            pending_held_nanousd: Gauge::default(),
            pending_share_permille_max: Family::default(),
            tenants: Arc::new(BoundedLabels::new(MOST_TENANTS)),
            actions: Family::default(),
            troubles: Counter::default(),
            escalations: Counter::default(),
            corrections: Counter::default(),
            reports: Family::default(),
            reports_parked: Gauge::default(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ByTenant {
    pub tenant: Arc<str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ByAction {
    pub action: &'static str,
}

impl ByAction {
    /// What the sweep did with a reservation.
    #[must_use]
    pub const fn of(plan: &Plan) -> Self {
        let action = match plan {
            Plan::Correct(_) => "correct",
            Plan::Close => "close",
            Plan::ReleaseInFull => "release",
            Plan::CompleteAndPend => "pend",
            Plan::Escalate => "escalate",
            Plan::Estimate(_) => "estimate",
            Plan::Wait => "wait",
        };
        Self { action }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ByResult {
    pub result: &'static str,
}

/// What became of a usage report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReportResult {
    /// It closed an attempt whose usage was unknown.
    Settled,
    /// The attempt was known; the ledger's ranks decide.
    Recorded,
    /// It said nothing new.
    Duplicate,
    /// It speaks of everything in a window: for comparison.
    Bucket,
    /// No attempt fits yet.
    Parked,
    /// No attempt fitted until the ceiling: a discrepancy.
    Unmatched,
}

impl ByResult {
    #[must_use]
    pub const fn of(result: ReportResult) -> Self {
        let result = match result {
            ReportResult::Settled => "settled",
            ReportResult::Recorded => "recorded",
            ReportResult::Duplicate => "duplicate",
            ReportResult::Bucket => "bucket",
            ReportResult::Parked => "parked",
            ReportResult::Unmatched => "unmatched",
        };
        Self { result }
    }
}

impl ReconcilerMetrics {
    /// Registers everything under `weir_reconciler_…`; once per process.
    #[must_use]
    pub fn declare(metrics: &Metrics) -> Self {
        let own = Self::default();
        metrics.declare("reconciler", |registry| {
            registry.register("pending", "Reservations that wait for a usage", own.pending.clone());
            registry.register(
                "pending_age_ms_max",
                "Age of the oldest pending reservation since its admission, in milliseconds",
                own.pending_age_ms_max.clone(),
            );
            registry.register(
                "pending_held_nanousd",
                "What pending reservations hold at their worst case, in nano-USD",
                own.pending_held_nanousd.clone(),
            );
            registry.register(
                "pending_share_permille_max",
                "Largest share of one of a tenant's limits that its pending reservations hold, in thousandths",
                own.pending_share_permille_max.clone(),
            );
            registry.register("sweep_actions", "Steps of the sweep, by kind", own.actions.clone());
            registry.register("sweep_troubles", "Rounds ended early by a store or the log", own.troubles.clone());
            registry.register("escalations", "Reservations handed to a person", own.escalations.clone());
            registry.register("corrections", "Ledger lines that moved a counter", own.corrections.clone());
            registry.register("reports", "Usage reports, by what became of them", own.reports.clone());
            registry.register("reports_parked", "Usage reports that fit no attempt yet", own.reports_parked.clone());
        });
        own
    }

    /// Tenants that are not named have nothing pending any more.
    pub(crate) fn set_pending_shares(&self, shares: &[(TenantId, i64)]) {
        self.pending_share_permille_max.clear();
        for (tenant, permille) in shares {
            let gauge = self
                .pending_share_permille_max
                .get_or_create(&ByTenant { tenant: self.tenants.label(tenant.as_str()) });
            gauge.set(gauge.get().max(*permille));
        }
    }

    pub(crate) fn count_action(&self, plan: &Plan) {
        self.actions.get_or_create(&ByAction::of(plan)).inc();
    }

    pub(crate) fn count_report(&self, result: ReportResult) {
        self.reports.get_or_create(&ByResult::of(result)).inc();
    }
}
