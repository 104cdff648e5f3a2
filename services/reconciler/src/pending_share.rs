//! How much of a tenant's limits is held by reservations whose usage nobody knows.
//!
//! What is pending must not starve anyone unseen: a limit that is half full of worst cases looks like one that is half
//! spent, until the two are told apart. Only the windows in force count: what is pending from yesterday takes nothing of
//! today's budget.

use std::collections::HashMap;

use weir_domain::calendar::{CurrentWindows, Window};
use weir_domain::ids::TenantId;
use weir_domain::money::Amounts;
use weir_domain::quota::{Limit, Measure, Scope};
use weir_domain::reservation::Reservation;

/// A tenant's limits, and the windows in force for it.
#[derive(Debug, Clone)]
pub struct TenantLimits {
    pub limits: Vec<Limit>,
    pub windows: CurrentWindows,
}

/// Of each tenant with something pending that `limits_of` knows: the largest share of one of its limits that is held so,
/// in thousandths, rounded up.
pub(crate) fn largest_shares(
    pending: &[Reservation],
    limits_of: impl Fn(&TenantId) -> Option<TenantLimits>,
) -> Vec<(TenantId, i64)> {
    let mut held: HashMap<&TenantId, HashMap<(&Scope, Window), Amounts>> = HashMap::new();
    for reservation in pending {
        let of_tenant = held.entry(&reservation.created.tenant).or_default();
        for counter in reservation.created.counting.counters() {
            let sum = of_tenant.entry(counter).or_default();
            *sum += reservation.held();
        }
    }
    held.into_iter().filter_map(|(tenant, held)| Some((tenant.clone(), largest(&limits_of(tenant)?, &held)))).collect()
}

fn largest(of: &TenantLimits, held: &HashMap<(&Scope, Window), Amounts>) -> i64 {
    let share = |limit: &Limit| match limit.measure {
        Measure::Calendar { unit, window } => {
            let window = of.windows.windows().iter().copied().find(|current| current.kind == window)?;
            let pending = i128::from(unit.of(*held.get(&(&limit.scope, window))?));
            let most = i128::from(limit.max.max(1));
            i64::try_from((pending * 1_000 + most - 1) / most).ok()
        }
        // A slot is given back when a reservation goes pending, and a rate has forgotten it within a minute.
        Measure::PerMinute { .. } | Measure::Concurrent => None,
    };
    of.limits.iter().filter_map(share).max().unwrap_or(0)
}
