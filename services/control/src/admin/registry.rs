//! The schemas of all topics, in the words of a schema registry: what a reader in another language needs, read only.
//!
//! The paths and answers are Confluent's, so that its clients work unchanged. The ids are Weir's own for ever
//! (`schemas/ids.toml`), so nothing is ever registered here; whoever runs a registry of its own gives it these ids.
//! No token is asked for: it is the public documentation of the topics.

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};

use weir_schemas::released::{RELEASED, Released, released};

const MEDIA_TYPE: &str = "application/vnd.schemaregistry.v1+json";

/// The routes, for topics that begin with `prefix`.
pub(super) fn router(prefix: String) -> Router {
    Router::new()
        .route("/subjects", get(subjects))
        .route("/subjects/{subject}/versions", get(versions))
        .route("/subjects/{subject}/versions/{version}", get(version))
        .route("/schemas/ids/{id}", get(by_id))
        .route("/schemas/ids/{id}/versions", get(uses))
        .route("/schemas/types", get(async || answer(json!(["AVRO"]))))
        .with_state(prefix)
}

async fn subjects(State(prefix): State<String>) -> Response {
    let mut subjects: Vec<String> = RELEASED.iter().map(|released| released.subject(&prefix)).collect();
    subjects.sort();
    subjects.dedup();
    answer(json!(subjects))
}

async fn versions(State(prefix): State<String>, Path(subject): Path<String>) -> Response {
    let versions: Vec<u16> = of(&prefix, &subject).map(|released| released.version).collect();
    if versions.is_empty() { no_subject(&subject) } else { answer(json!(versions)) }
}

async fn version(State(prefix): State<String>, Path((subject, version)): Path<(String, String)>) -> Response {
    let newest = of(&prefix, &subject).map(|released| released.version).max();
    let Some(newest) = newest else { return no_subject(&subject) };
    let wanted = if version == "latest" { Some(newest) } else { version.parse().ok() };
    match of(&prefix, &subject).find(|released| Some(released.version) == wanted) {
        None => refused(StatusCode::NOT_FOUND, 40402, "Version not found."),
        Some(Released { id, version, avsc, .. }) => {
            answer(json!({ "subject": subject, "id": id, "version": version, "schema": avsc }))
        }
    }
}

async fn by_id(Path(id): Path<String>) -> Response {
    match id.parse().ok().and_then(released) {
        None => no_schema(),
        Some(released) => answer(json!({ "schema": released.avsc })),
    }
}

async fn uses(State(prefix): State<String>, Path(id): Path<String>) -> Response {
    match id.parse().ok().and_then(released) {
        None => no_schema(),
        Some(released) => answer(json!([{ "subject": released.subject(&prefix), "version": released.version }])),
    }
}

fn of<'a>(prefix: &'a str, subject: &'a str) -> impl Iterator<Item = &'static Released> + 'a {
    RELEASED.iter().filter(move |released| released.subject(prefix) == subject)
}

fn no_subject(subject: &str) -> Response {
    refused(StatusCode::NOT_FOUND, 40401, &format!("Subject '{subject}' not found."))
}

fn no_schema() -> Response {
    refused(StatusCode::NOT_FOUND, 40403, "Schema not found")
}

fn refused(status: StatusCode, code: u32, message: &str) -> Response {
    (status, answer(json!({ "error_code": code, "message": message }))).into_response()
}

fn answer(value: Value) -> Response {
    ([(CONTENT_TYPE, MEDIA_TYPE)], Json(value).into_response().into_body()).into_response()
}
