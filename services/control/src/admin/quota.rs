//! The counters, folded again.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Serialize;

use super::error::AdminError;
use super::extract::Asked;
use super::{ActorQuery, AdminApi};

/// Goes on to its end when the caller leaves: a store that is closed half-way would stay closed.
pub(super) async fn rebuild(
    State(api): State<AdminApi>,
    Asked(actor): Asked<ActorQuery>,
) -> Result<Json<impl Serialize>, AdminError> {
    let (actor, quota) = (actor.answerable()?, Arc::clone(&api.quota));
    match api.tasks.spawn("quota rebuild", async move { quota.rebuild(&actor).await }).await {
        Ok(rebuilt) => Ok(Json(rebuilt?)),
        Err(lost) => Err(AdminError::new(StatusCode::INTERNAL_SERVER_ERROR, "lost", lost.to_string())),
    }
}
