//! What a supervisor and a scraper ask: `/healthz`, `/readyz`, `/metrics`. The same for every role that has no other
//! socket; no token, as everywhere.

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use weir_runtime::health::{ALIVE_JSON, Health};
use weir_runtime::metrics::{CONTENT_TYPE as METRICS_CONTENT_TYPE, Metrics};

/// The routes of one process.
pub fn probes(health: Health, metrics: Metrics) -> Router {
    Router::new()
        .route("/healthz", get(async || json(ALIVE_JSON.to_owned())))
        .route("/readyz", get(async move || (health.report().status(), json(health.report().to_json()))))
        .route("/metrics", get(async move || ([(CONTENT_TYPE, METRICS_CONTENT_TYPE)], metrics.encode())))
}

fn json(text: String) -> Response {
    ([(CONTENT_TYPE, "application/json")], text).into_response()
}
