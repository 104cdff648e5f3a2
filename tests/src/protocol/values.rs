//! The amounts, requests and times of the searched world. A hold is three units of tokens and of money.

use std::sync::Arc;

use weir_domain::calendar::WindowKind;
use weir_domain::ids::{ReservationId, TenantId};
use weir_domain::money::{Amounts, Hold, NanoUsd};
use weir_domain::quota::{BookOptions, Limit, Measure, Unit};
use weir_domain::reconcile::Patience;
use weir_domain::reservation::{Command, Reserve, UsageRecord};
use weir_domain::testing::{LEASE_MS, NOON_MS, id, record, request, tenant_limit, tenant_scope};
use weir_domain::usage::UsageSource;

use super::scenario::{HOUR_MS, Scenario};

/// What an attempt may cost at most, as far as anybody knows before it ran.
pub(super) const HELD_UNITS: i64 = 3;
/// What a broken stream said of itself before it broke: less than whatever is billed then.
pub(super) const PARTIAL_UNITS: i64 = 1;
/// The worst case of a broken stream, by what it said.
pub(super) const BOUND_UNITS: i64 = 2;

pub(super) const OPTIONS: BookOptions = BookOptions { retry_horizon_ms: HOUR_MS };
pub(super) const RENEWAL_MS: i64 = LEASE_MS;

pub(super) const fn units(units: i64) -> Amounts {
    Amounts::new(0, units, NanoUsd::from_nanos(units))
}

pub(super) const fn hold() -> Hold {
    units(HELD_UNITS)
}

pub(super) fn tenant() -> TenantId {
    TenantId::new("acme")
}

pub(super) fn reservation_id(request: usize) -> ReservationId {
    id(request as u64 + 1)
}

pub(super) fn request_of(id: ReservationId) -> usize {
    usize::from(id == reservation_id(1))
}

pub(super) fn now_ms(scenario: &Scenario, moment: u8) -> i64 {
    NOON_MS + scenario.moments_ms[usize::from(moment)]
}

pub(super) fn limits(scenario: &Scenario) -> Arc<[Limit]> {
    let day = Measure::Calendar { unit: Unit::Usd, window: WindowKind::Day };
    scenario.budget.map(|units| tenant_limit(day, units)).into_iter().collect()
}

/// Admission of request 0 or 1. One scope is enough: all scopes are moved by the same differences.
pub(super) fn reserve(scenario: &Scenario, number: usize) -> Command {
    let asked = weir_domain::testing::Request {
        hold: Amounts { requests: 1, ..hold() },
        adjust_on_mismatch: scenario.adjust_on_mismatch,
        ..request(number as u64 + 1)
    };
    let mut created = asked.created();
    created.counting.scopes = Arc::from([tenant_scope()]);
    Command::Reserve(Arc::new(Reserve { created, limits: limits(scenario), lease_ms: asked.lease_ms }))
}

/// The provider's answer itself.
pub(super) fn answered(bill: i64) -> Arc<UsageRecord> {
    record(UsageSource::Response, units(bill), "")
}

/// The provider's report of one attempt.
pub(super) fn reported(bill: i64) -> Arc<UsageRecord> {
    record(UsageSource::ProviderReport, units(bill), REPORT_CAUSE)
}

pub(super) const REPORT_CAUSE: &str = "report/0";

pub(super) const fn patience(scenario: &Scenario) -> Patience {
    Patience { ceiling_ms: HOUR_MS + HOUR_MS / 2, policy: scenario.ceiling }
}
