//! Counters against the ledger: the promise I12, looked at on demand and every night.
//!
//! One pass over the tenant's lines instead of a sum per counter. Meaningful at rest: while requests run, a counter is
//! ahead of the ledger by what is on its way.

use std::collections::BTreeMap;
use std::sync::Arc;

use thiserror::Error;

use weir_domain::calendar::{Window, WindowKind};
use weir_domain::ids::TenantId;
use weir_domain::money::Amounts;
use weir_domain::quota::{Counter, Counting, Scope};
use weir_ledger::contract::{LedgerError, LedgerStore, LineCursor, LinePage, OpenPage, OpenStatus};
use weir_quota::{QuotaError, QuotaStore};

/// Lines and reservations that are read at once.
const PAGE: usize = 4096;
/// The most differences that are listed: a person reads them, and the count says how many there are.
const MOST_DIFFERENCES: usize = 100;

/// What a comparison found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Comparison {
    pub tenant: TenantId,
    /// Counters of the store and of the ledger, each compared.
    pub compared: usize,
    /// Sorted by scope and window; at most a hundred.
    pub differences: Vec<Difference>,
    /// How many counters differ.
    pub differing: usize,
    /// What the open reservations hold by the log.
    pub held_by_log: Amounts,
    /// What they hold in the store.
    pub held_in_store: Amounts,
}

/// One counter that does not equal its lines and holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    pub scope: Scope,
    pub window: Window,
    /// As the store counts.
    pub counted: Counter,
    /// As the ledger's lines sum up.
    pub charged_by_ledger: Amounts,
    /// As the log's open reservations hold.
    pub held_by_log: Amounts,
}

/// Why nothing was compared.
#[derive(Debug, Error)]
pub enum CompareError {
    #[error("the counters cannot be read")]
    Quota(#[from] QuotaError),
    #[error("the ledger cannot be read")]
    Ledger(#[from] LedgerError),
}

impl Comparison {
    /// Whether every counter equals its ledger lines plus open holds, to the last unit.
    #[must_use]
    pub const fn agrees(&self) -> bool {
        self.differing == 0
    }
}

#[derive(Debug, Default)]
struct Sums(BTreeMap<(Scope, Window), (Amounts, Amounts)>);

impl Sums {
    fn add(&mut self, counting: &Counting, charged: Amounts, held: Amounts) {
        for (scope, window) in counting.counters() {
            let sum = self.0.entry((scope.clone(), window)).or_default();
            sum.0 += charged;
            sum.1 += held;
        }
    }
}

/// Compares every counter of `tenant` with the sum of its lines and open holds.
///
/// # Errors
/// [`CompareError`], when one of the two cannot be read.
pub async fn compare(
    quota: &dyn QuotaStore,
    ledger: &Arc<dyn LedgerStore>,
    tenant: &TenantId,
) -> Result<Comparison, CompareError> {
    let mut sums = Sums::default();
    add_lines(&**ledger, tenant, &mut sums).await?;
    let held_by_log = add_holds(&**ledger, tenant, &mut sums).await?;
    let reading = quota.read(tenant).await?;
    let mut counters: BTreeMap<(Scope, Window), Counter> =
        reading.counters.into_iter().map(|reading| ((reading.scope, reading.window), reading.counter)).collect();
    let mut comparison = Comparison {
        tenant: tenant.clone(),
        compared: 0,
        differences: Vec::new(),
        differing: 0,
        held_by_log,
        held_in_store: reading.held,
    };
    let newest = newest_windows(counters.keys());
    let is_kept = |scope: &Scope, window: Window| {
        let newest = newest.get(&(scope.clone(), window.kind)).copied();
        newest.is_none_or(|newest| window.ordinal >= newest - 1)
    };
    for ((scope, window), (charged, held)) in sums.0 {
        let counted = counters.remove(&(scope.clone(), window)).unwrap_or_default();
        if is_kept(&scope, window) {
            comparison.take(scope, window, counted, charged, held);
        }
    }
    for ((scope, window), counted) in counters {
        comparison.take(scope, window, counted, Amounts::ZERO, Amounts::ZERO);
    }
    Ok(comparison)
}

/// The newest window of each scope and kind. A store forgets the windows before the one that precedes it, because no
/// limit looks at them any more; the ledger never does.
fn newest_windows<'a>(counters: impl Iterator<Item = &'a (Scope, Window)>) -> BTreeMap<(Scope, WindowKind), i32> {
    let mut newest = BTreeMap::new();
    for (scope, window) in counters {
        let known = newest.entry((scope.clone(), window.kind)).or_insert(window.ordinal);
        *known = window.ordinal.max(*known);
    }
    newest
}

impl Comparison {
    fn take(&mut self, scope: Scope, window: Window, counted: Counter, charged: Amounts, held: Amounts) {
        self.compared += 1;
        if counted.charged == charged && counted.held == held {
            return;
        }
        self.differing += 1;
        if self.differences.len() < MOST_DIFFERENCES {
            let difference = Difference { scope, window, counted, charged_by_ledger: charged, held_by_log: held };
            self.differences.push(difference);
        }
    }
}

async fn add_lines(ledger: &dyn LedgerStore, tenant: &TenantId, sums: &mut Sums) -> Result<(), LedgerError> {
    let mut after = None;
    loop {
        let page = LinePage { tenant: tenant.clone(), from_ms: i64::MIN, until_ms: i64::MAX, after, most: PAGE };
        let lines = ledger.lines(page).await?;
        for line in &lines {
            sums.add(&line.created.counting, line.amount, Amounts::ZERO);
        }
        match lines.last() {
            Some(last) if lines.len() >= PAGE => after = Some(LineCursor::of(last)),
            Some(_) | None => return Ok(()),
        }
    }
}

/// Adds what open reservations hold, and gives the sum.
async fn add_holds(ledger: &dyn LedgerStore, tenant: &TenantId, sums: &mut Sums) -> Result<Amounts, LedgerError> {
    let mut held = Amounts::ZERO;
    for status in [OpenStatus::Reserved, OpenStatus::PendingReconciliation] {
        let mut after = None;
        loop {
            let page = OpenPage { status, tenant: Some(tenant.clone()), after, most: PAGE };
            let open = ledger.open(page).await?;
            for reservation in &open {
                held += reservation.held;
                if let Some(stored) = ledger.find(reservation.id).await? {
                    sums.add(&stored.created.counting, Amounts::ZERO, reservation.held);
                }
            }
            match open.last() {
                Some(last) if open.len() >= PAGE => after = Some((last.due_ms, last.id)),
                Some(_) | None => break,
            }
        }
    }
    Ok(held)
}
