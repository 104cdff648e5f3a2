//! Usage reports given from outside.

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use serde::Serialize;

use super::error::{AdminError, read_json};
use super::extract::Asked;
use super::{ActorQuery, AdminApi};
use crate::ports::{ReportFormat, ReportReceipt};

#[derive(Serialize)]
struct Imported {
    reports: Vec<ReportReceipt>,
}

pub(super) async fn import(
    State(api): State<AdminApi>,
    Asked(actor): Asked<ActorQuery>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<impl Serialize>, AdminError> {
    let media_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let media_type = media_type.split(';').next().unwrap_or_default().trim();
    let (format, body) = match media_type {
        "application/json" => (ReportFormat::JsonLines, lines(read_json(body)?)),
        "application/x-ndjson" | "application/jsonl" => (ReportFormat::JsonLines, body?),
        "text/csv" => (ReportFormat::Csv, body?),
        _ => {
            let message = "send `application/json`, `application/x-ndjson` or `text/csv`";
            return Err(AdminError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "media_type", message));
        }
    };
    Ok(Json(Imported { reports: api.reports.import(format, &body, &actor.actor()).await? }))
}

/// One report a line: what a list and a single one come to.
fn lines(reports: serde_json::Value) -> Bytes {
    let reports = match reports {
        serde_json::Value::Array(reports) => reports,
        single => vec![single],
    };
    let mut text = String::new();
    for report in reports {
        text.push_str(&report.to_string());
        text.push('\n');
    }
    Bytes::from(text)
}
