//! The story of one reservation, and what waits for usage.

use std::collections::HashMap;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};

use weir_domain::ids::{ReservationId, TenantId};
use weir_domain::money::Amounts;
use weir_domain::price::EffectiveMs;

use super::AdminApi;
use super::error::AdminError;
use super::extract::{Asked, Id};

/// What one answer lists at most: a screen of a person, and megabytes at the very most.
const MOST_PENDING: usize = 1_000;

#[derive(Debug, Deserialize)]
pub(super) struct PendingQuery {
    most: Option<usize>,
}

#[derive(Serialize)]
struct PendingList {
    pending: Vec<PendingView>,
}

#[derive(Serialize)]
struct PendingView {
    reservation: ReservationId,
    tenant: TenantId,
    tenant_name: Option<String>,
    admitted_at: EffectiveMs,
    age_ms: i64,
    held: Amounts,
    unknown_attempts: Vec<u16>,
    escalated: bool,
}

pub(super) async fn show(State(api): State<AdminApi>, Id(id): Id) -> Result<Json<serde_json::Value>, AdminError> {
    let reservation: ReservationId = id.parse().map_err(|_| {
        AdminError::invalid("id", format!("`{}` is no reservation id: it is a UUID", id.escape_debug()))
    })?;
    match api.reservations.story(reservation).await? {
        Some(story) => Ok(Json(story)),
        None => Err(AdminError::not_found(format!("there is no reservation {reservation}"))),
    }
}

pub(super) async fn pending(
    State(api): State<AdminApi>,
    Asked(query): Asked<PendingQuery>,
) -> Result<Json<impl Serialize>, AdminError> {
    let most = query.most.unwrap_or(MOST_PENDING).min(MOST_PENDING);
    let pending = api.reservations.pending(most).await?;
    let ids = api.act(|control| control.tenant_ids()).await?;
    let names: HashMap<TenantId, String> = ids.into_iter().map(|(name, id)| (id, name)).collect();
    let now_ms = api.clock.now_ms();
    let view = |one: crate::ports::PendingReservation| PendingView {
        tenant_name: names.get(&one.tenant).cloned(),
        reservation: one.reservation,
        tenant: one.tenant,
        admitted_at: EffectiveMs(one.admitted_at_ms),
        age_ms: now_ms.saturating_sub(one.admitted_at_ms),
        held: one.held,
        unknown_attempts: one.unknown_attempts,
        escalated: one.escalated,
    };
    Ok(Json(PendingList { pending: pending.into_iter().map(view).collect() }))
}
