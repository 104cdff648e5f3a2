//! Parked keys: what waits, and an operator's orders about it.

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use serde::{Deserialize, Serialize};

use super::error::{AdminError, read_json};
use super::extract::Asked;
use super::{ActorQuery, AdminApi};
use crate::ports::{Parked, ParkedOrder};

#[derive(Serialize)]
struct Listed {
    parked: Vec<Parked>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Order {
    consumer: String,
    key: String,
    #[serde(flatten)]
    order: ParkedOrder,
}

pub(super) async fn list(State(api): State<AdminApi>) -> Result<Json<impl Serialize>, AdminError> {
    Ok(Json(Listed { parked: api.dead_letters.parked().await? }))
}

pub(super) async fn order(
    State(api): State<AdminApi>,
    Asked(actor): Asked<ActorQuery>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<impl Serialize>, AdminError> {
    let order: Order = read_json(body)?;
    let actor = actor.answerable()?;
    api.dead_letters.order(&order.consumer, &order.key, order.order, &actor).await?;
    Ok(Json(order))
}
