//! The catalog in force, and the next one.

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use serde::{Deserialize, Serialize};

use super::AdminApi;
use super::error::{AdminError, read_text};
use super::extract::Asked;
use crate::catalog::Catalog;
use crate::control::Applied;
use crate::state::Publication;

#[derive(Serialize)]
struct InForce {
    snapshot: Option<Publication>,
    catalog: Catalog,
}

/// What the body is called in messages.
#[derive(Debug, Deserialize)]
pub(super) struct FileQuery {
    file: Option<String>,
}

impl FileQuery {
    fn name(self) -> String {
        self.file.unwrap_or_else(|| "catalog.toml".to_owned())
    }
}

pub(super) async fn show(State(api): State<AdminApi>) -> Result<Json<impl Serialize>, AdminError> {
    let state = api.act(|control| control.state()).await?;
    Ok(Json(InForce { snapshot: state.published, catalog: state.catalog }))
}

pub(super) async fn check(
    State(api): State<AdminApi>,
    Asked(file): Asked<FileQuery>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Applied>, AdminError> {
    let text = read_text(body)?;
    api.act(move |control| control.check(&file.name(), &text)).await.map(Json)
}

pub(super) async fn apply(
    State(api): State<AdminApi>,
    Asked(file): Asked<FileQuery>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Applied>, AdminError> {
    let text = read_text(body)?;
    api.act(move |control| control.apply(&file.name(), &text)).await.map(Json)
}
