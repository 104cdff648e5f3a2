//! Virtual keys: make, list, revoke.

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::StatusCode;
use axum::http::header::CACHE_CONTROL;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::error::{AdminError, read_json};
use super::extract::{Asked, Id};
use super::{ActorQuery, AdminApi};
use crate::control::{KeyRequest, KeyView};
use crate::ports::Revocation;

#[derive(Serialize)]
struct Created {
    /// Shown once: nobody can read it again.
    key: String,
    #[serde(flatten)]
    view: KeyView,
}

#[derive(Serialize)]
struct Listed {
    keys: Vec<KeyView>,
}

pub(super) async fn create(
    State(api): State<AdminApi>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, AdminError> {
    let request: KeyRequest = read_json(body)?;
    let created = api.act(move |control| control.create_key(&request)).await?;
    let answer = Created { key: created.key.expose().to_owned(), view: created.view };
    Ok((StatusCode::CREATED, [(CACHE_CONTROL, "no-store")], Json(answer)).into_response())
}

pub(super) async fn list(State(api): State<AdminApi>) -> Result<Json<impl Serialize>, AdminError> {
    Ok(Json(Listed { keys: api.act(|control| control.keys()).await? }))
}

/// The quota store first, because its word is heard at once and by every replica; the control store afterwards even if
/// the first did not answer, because the next snapshot ends the key as well.
pub(super) async fn revoke(
    State(api): State<AdminApi>,
    Id(id): Id,
    Asked(actor): Asked<ActorQuery>,
) -> Result<Json<KeyView>, AdminError> {
    let known = id.clone();
    let record = api.act(move |control| control.key_record(&known)).await?;
    let revocation = Revocation { tenant: record.tenant, key: record.id, actor: actor.actor() };
    let heard = api.revocations.revoke(&revocation).await;
    let view = api
        .act(move |control| {
            control.revoke_key(&id)?;
            control.key_view(&id)
        })
        .await?;
    heard?;
    Ok(Json(view))
}
