//! The admin API: what the CLI, operators and scripts call. Loopback, one bearer token, JSON.
//!
//! | call | does |
//! |---|---|
//! | `POST /admin/v1/keys` | makes a key; the only answer that holds it |
//! | `GET /admin/v1/keys` | every key that ever was, by its prefix |
//! | `DELETE /admin/v1/keys/{id}` | ends a key, at the very next admission |
//! | `GET /admin/v1/catalog` | what is in force |
//! | `POST /admin/v1/catalog/check`, `…/apply` | a `catalog.toml` as the body; `?file=` names it in messages |
//! | `GET /admin/v1/counters?tenant=` | counters and limits of a tenant, by name or id |
//! | `GET /admin/v1/reservations/{id}` | the story of one request |
//! | `GET /admin/v1/pending` | what waits for usage |
//! | `POST /admin/v1/usage-reports` | one report, a JSON list, JSON lines (`application/x-ndjson`) or `text/csv` |
//! | `GET /admin/v1/dead-letters` | keys whose records wait for a person |
//! | `POST /admin/v1/dead-letters` | `{consumer, key, act: "replay" \| "skip", offset?}`: an order about one of them |
//! | `POST /admin/v1/quota/rebuild` | closes the quota store, folds the counters from the log, opens it |
//! | `GET /admin/v1/health` | readiness with reasons |
//! | `GET /healthz`, `/readyz`, `/metrics` | for supervisors and scrapers; no token |
//! | `GET /subjects…`, `/schemas/ids/{id}` | the schemas of all topics, as a schema registry answers; no token |
//!
//! Acts take `?who=` and `?why=`, which go on the log; orders about dead letters and a rebuild are not taken without. Every error is `{"error":{"code","message","field"?,"problems"?}}`.
//! Authentication stands before everything else, so that a stranger cannot even tell which paths exist.

mod auth;
mod catalog;
mod counters;
mod dead_letters;
mod error;
mod extract;
mod keys;
mod probes;
mod quota;
mod registry;
mod reports;
mod reservations;

use std::sync::Arc;

use axum::extract::DefaultBodyLimit;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use axum::{Json, Router, middleware};
use serde::Deserialize;

use weir_runtime::clock::SharedClock;
use weir_runtime::health::Health;
use weir_runtime::metrics::Metrics;
use weir_runtime::tasks::Tasks;

use crate::Control;
use crate::catalog::LARGEST_CATALOG_BYTES;
use crate::control::ControlError;
use crate::ports::{Actor, CountersPort, DeadLettersPort, QuotaPort, ReportsPort, ReservationsPort, Revocations};

use error::AdminError;

pub use probes::probes;

/// What the admin API works on.
#[derive(Debug, Clone)]
pub struct AdminApi {
    pub control: Arc<Control>,
    pub revocations: Arc<dyn Revocations>,
    pub counters: Arc<dyn CountersPort>,
    pub reservations: Arc<dyn ReservationsPort>,
    pub reports: Arc<dyn ReportsPort>,
    pub dead_letters: Arc<dyn DeadLettersPort>,
    pub quota: Arc<dyn QuotaPort>,
    pub health: Health,
    pub metrics: Metrics,
    /// Before the names of topics, in the subjects of their schemas.
    pub topic_prefix: String,
    pub clock: SharedClock,
    /// The owner of the blocking work: an act goes on to its end when the caller leaves.
    pub tasks: Tasks,
}

/// Far above a key with all its labels.
const LARGEST_KEY_REQUEST_BYTES: usize = 64 << 10;

/// The routes of `api`, to be served on loopback.
pub fn router(api: AdminApi) -> Router {
    let small = DefaultBodyLimit::max(LARGEST_KEY_REQUEST_BYTES);
    let large = DefaultBodyLimit::max(LARGEST_CATALOG_BYTES);
    let open = probes(api.health.clone(), api.metrics.clone()).merge(registry::router(api.topic_prefix.clone()));
    let closed = Router::new()
        .route("/admin/v1/keys", get(keys::list).post(keys::create).layer(small))
        .route("/admin/v1/keys/{id}", delete(keys::revoke))
        .route("/admin/v1/catalog", get(catalog::show))
        .route("/admin/v1/catalog/check", post(catalog::check).layer(large))
        .route("/admin/v1/catalog/apply", post(catalog::apply).layer(large))
        .route("/admin/v1/counters", get(counters::show))
        .route("/admin/v1/reservations/{id}", get(reservations::show))
        .route("/admin/v1/pending", get(reservations::pending))
        .route("/admin/v1/usage-reports", post(reports::import).layer(large))
        .route("/admin/v1/dead-letters", get(dead_letters::list).post(dead_letters::order).layer(small))
        .route("/admin/v1/quota/rebuild", post(quota::rebuild))
        .route("/admin/v1/health", get(health))
        .fallback(|| async { AdminError::not_found("there is no such path") })
        .method_not_allowed_fallback(|| async { AdminError::method_not_allowed() })
        .layer(middleware::from_fn_with_state(api.control.secrets().admin_token.clone(), auth::require_token))
        .with_state(api);
    open.merge(closed)
}

async fn health(axum::extract::State(api): axum::extract::State<AdminApi>) -> Response {
    let report = api.health.report();
    (report.status(), Json(report)).into_response()
}

/// Who calls and why, in the query of an act.
#[derive(Debug, Deserialize)]
struct ActorQuery {
    who: Option<String>,
    why: Option<String>,
}

/// A name or a reason is on the log for ever; longer ones are cut at a character.
const LONGEST_ACTOR_TEXT: usize = 256;

impl ActorQuery {
    fn actor(self) -> Actor {
        let cut = |text: String| text.chars().take(LONGEST_ACTOR_TEXT).collect::<String>();
        Actor { who: self.who.map_or_else(|| "admin-api".to_owned(), cut), why: self.why.map_or_else(String::new, cut) }
    }
}

impl ActorQuery {
    /// For acts that nobody may do without a name and a reason.
    fn answerable(self) -> Result<Actor, AdminError> {
        let is_blank = |text: &Option<String>| text.as_ref().is_none_or(|text| text.trim().is_empty());
        let blank = [("who", &self.who), ("why", &self.why)].into_iter().find(|(_, text)| is_blank(text));
        match blank {
            Some((field, _)) => {
                Err(AdminError::invalid(field, format!("say `{field}`: it goes on the log with the act")))
            }
            None => Ok(self.actor()),
        }
    }
}

impl AdminApi {
    /// Runs an act of the control plane where it may block on the disk.
    async fn act<T: Send + 'static>(
        &self,
        act: impl FnOnce(&Control) -> Result<T, ControlError> + Send + 'static,
    ) -> Result<T, AdminError> {
        let control = Arc::clone(&self.control);
        match self.tasks.spawn_blocking("control act", move || act(&control)).await {
            Ok(done) => done.map_err(AdminError::from),
            Err(lost) => Err(AdminError::new(StatusCode::INTERNAL_SERVER_ERROR, "lost", lost.to_string())),
        }
    }
}

#[cfg(test)]
#[path = "admin_tests.rs"]
mod tests;
