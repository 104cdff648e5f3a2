//! A tenant's counters and limits, with names for people beside the ids.

use std::collections::HashMap;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};

use weir_domain::calendar::{CurrentWindows, Window};
use weir_domain::ids::{ModelName, TenantId};
use weir_domain::money::{Amounts, NanoUsd};
use weir_domain::quota::{CounterReading, Limit, Measure, Scope, Subject, Unit};

use super::AdminApi;
use super::error::AdminError;
use super::extract::Asked;
use crate::catalog::LimitKind;
use crate::control::SnapshotSource as _;
use crate::ports::TenantCounters;
use crate::state::TenantState;

#[derive(Debug, Deserialize)]
pub(super) struct TenantQuery {
    tenant: Option<String>,
}

#[derive(Serialize)]
struct CountersView {
    tenant: TenantId,
    name: String,
    snapshot_version: u64,
    /// By open and pending reservations together.
    held: Amounts,
    reserved: u64,
    pending: u64,
    limits: Vec<LimitView>,
    counters: Vec<CounterView>,
}

/// Whose it is.
#[derive(Serialize)]
struct ScopeView {
    subject: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<ModelName>,
}

#[derive(Serialize)]
struct CounterView {
    #[serde(flatten)]
    scope: ScopeView,
    window: Window,
    charged: Amounts,
    held: Amounts,
    /// The part of `held` that nobody is using.
    pending: Amounts,
    /// Since the oldest of it was admitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pending_age_ms: Option<i64>,
}

#[derive(Serialize)]
struct LimitView {
    #[serde(flatten)]
    scope: ScopeView,
    kind: String,
    /// Money in dollars.
    max: String,
    /// Absent for rates and slots, which live in seconds.
    #[serde(flatten)]
    taken: Option<TakenView>,
}

/// What is taken of a limit in the window in force: `taken` is the sum of the three after it.
#[derive(Serialize)]
struct TakenView {
    taken: String,
    spent: String,
    /// Held by requests that run.
    in_use: String,
    /// Held at its worst case by requests that ended, until somebody says what they used.
    pending: String,
    /// Of the whole limit, in thousandths.
    #[serde(skip_serializing_if = "Option::is_none")]
    pending_permille: Option<i64>,
    /// Since the oldest of it was admitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pending_age_ms: Option<i64>,
}

pub(super) async fn show(
    State(api): State<AdminApi>,
    Asked(query): Asked<TenantQuery>,
) -> Result<Json<impl Serialize>, AdminError> {
    let Some(asked) = query.tenant else {
        return Err(AdminError::invalid("tenant", "say whose: `?tenant=` with a tenant's name or id"));
    };
    let no_tenant = || AdminError::not_found(format!("there is no tenant `{}`", asked.escape_debug()));
    let name_or_id = asked.clone();
    let state = api.act(move |control| control.tenant(&name_or_id)).await?.ok_or_else(no_tenant)?;
    let record = &state.tenant;
    let read = api.counters.counters(&record.id).await?;
    let snapshot = api.control.current();
    let names = names(&state);
    let tenant = snapshot.tenants.get(&record.id);
    let keys = snapshot.keys.values().filter(|key| key.tenant.id == record.id);
    let mut limits: Vec<&Limit> = keys.flat_map(|key| &key.limits).collect();
    limits.sort_by(|a, b| (&a.scope, a.measure.to_string()).cmp(&(&b.scope, b.measure.to_string())));
    let limits = tenant.into_iter().flat_map(|tenant| &tenant.limits).chain(limits);
    let now_ms = api.clock.now_ms();
    let windows = record.calendar.at(now_ms);
    Ok(Json(CountersView {
        tenant: record.id.clone(),
        name: record.name.clone(),
        snapshot_version: snapshot.version,
        held: read.held,
        reserved: read.reserved,
        pending: read.pending,
        limits: limits.map(|limit| limit_view(limit, &windows, &read, &names, now_ms)).collect(),
        counters: read
            .counters
            .iter()
            .map(|reading| CounterView {
                scope: scope_view(&reading.scope, &names),
                window: reading.window,
                charged: reading.counter.charged,
                held: reading.counter.held,
                pending: reading.counter.pending,
                pending_age_ms: age_ms(&read, &reading.scope, reading.window, now_ms),
            })
            .collect(),
    }))
}

/// Of the oldest pending reservation that holds on a counter.
fn age_ms(read: &TenantCounters, scope: &Scope, window: Window, now_ms: i64) -> Option<i64> {
    let since_ms = read.pending_since_ms.get(&(scope.clone(), window))?;
    Some(now_ms.saturating_sub(*since_ms).max(0))
}

/// Names of teams and keys by id.
fn names(state: &TenantState) -> HashMap<&str, &str> {
    let keys = state.keys.iter().map(|key| (key.id.as_str(), key.name.as_str()));
    state.names().into_iter().chain(keys).collect()
}

fn scope_view(scope: &Scope, names: &HashMap<&str, &str>) -> ScopeView {
    let (subject, id) = match &scope.subject {
        Subject::Tenant => ("tenant", None),
        Subject::Team(team) => ("team", Some(team.as_str())),
        Subject::Key(key) => ("key", Some(key.as_str())),
    };
    let name = id.and_then(|id| names.get(id)).map(|name| (*name).to_owned());
    ScopeView { subject, id: id.map(str::to_owned), name, model: scope.model.clone() }
}

fn limit_view(
    limit: &Limit,
    windows: &CurrentWindows,
    read: &TenantCounters,
    names: &HashMap<&str, &str>,
    now_ms: i64,
) -> LimitView {
    let (unit, window) = match limit.measure {
        Measure::Calendar { unit, window } => {
            (unit, windows.windows().iter().copied().find(|current| current.kind == window))
        }
        Measure::PerMinute { unit } => (unit, None),
        Measure::Concurrent => (Unit::Requests, None),
    };
    let taken = window.map(|window| {
        let is_read = |reading: &&CounterReading| reading.scope == limit.scope && reading.window == window;
        let counter = read.counters.iter().find(is_read).map(|reading| reading.counter).unwrap_or_default();
        let amount = |amounts: Amounts| printed(unit, unit.of(amounts));
        let pending = unit.of(counter.pending);
        TakenView {
            taken: amount(counter.total()),
            spent: amount(counter.charged),
            in_use: amount(counter.held - counter.pending),
            pending: printed(unit, pending),
            pending_permille: (pending > 0).then(|| permille(pending, limit.max)),
            pending_age_ms: (pending > 0).then(|| age_ms(read, &limit.scope, window, now_ms)).flatten(),
        }
    });
    LimitView {
        scope: scope_view(&limit.scope, names),
        kind: LimitKind(limit.measure).to_string(),
        max: printed(unit, limit.max),
        taken,
    }
}

/// Rounded up, so that nothing pending looks like nothing.
fn permille(part: i64, of: i64) -> i64 {
    let share = (i128::from(part) * 1_000 + i128::from(of.max(1)) - 1) / i128::from(of.max(1));
    i64::try_from(share).unwrap_or(i64::MAX)
}

fn printed(unit: Unit, amount: i64) -> String {
    match unit {
        Unit::Usd => NanoUsd::from_nanos(amount).to_string(),
        Unit::Requests | Unit::Tokens => amount.to_string(),
    }
}
