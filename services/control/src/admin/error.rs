//! Every error of the admin API, and its one form.

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;

use weir_runtime::story::story;

use crate::control::ControlError;
use crate::ports::{DeadLettersError, PortError, ReportsError};
use crate::store::StoreError;

/// A refusal with its status.
#[derive(Debug)]
pub(super) struct AdminError {
    status: StatusCode,
    body: Body,
}

#[derive(Debug, Serialize)]
struct Body {
    /// Stable: for programs.
    code: &'static str,
    /// For people: what is wrong and what to do.
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<String>,
    /// Where several things are wrong, each by its place.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    problems: Vec<serde_json::Value>,
}

impl AdminError {
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, body: Body { code, message: message.into(), field: None, problems: Vec::new() } }
    }

    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    pub fn method_not_allowed() -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "this path does not take this method")
    }

    pub fn invalid(field: &str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid", message).at(field)
    }

    fn at(mut self, field: impl Into<String>) -> Self {
        self.body.field = Some(field.into());
        self
    }

    fn with_problems(mut self, problems: &[impl Serialize]) -> Self {
        self.body.problems = problems.iter().filter_map(|problem| serde_json::to_value(problem).ok()).collect();
        self
    }
}

impl IntoResponse for AdminError {
    fn into_response(self) -> Response {
        (self.status, Json(serde_json::json!({ "error": self.body }))).into_response()
    }
}

impl From<ControlError> for AdminError {
    fn from(error: ControlError) -> Self {
        let message = story(&error);
        match error {
            ControlError::Catalog(problems) => {
                Self::new(StatusCode::BAD_REQUEST, "catalog_invalid", message).with_problems(&problems.0)
            }
            ControlError::Collisions(_) => Self::new(StatusCode::CONFLICT, "catalog_collides", message),
            ControlError::Invalid { field, .. } => Self::invalid(field, message),
            ControlError::NoKey { .. } => Self::not_found(message),
            ControlError::Store(StoreError::Conflict) => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "busy", format!("{message}; try again"))
            }
            ControlError::Store(StoreError::Unavailable { .. } | StoreError::Unknown { .. }) => {
                tracing::warn!(error = message, "the control store did not answer");
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", message)
            }
            ControlError::Store(
                StoreError::WrongSecret { .. }
                | StoreError::Unreadable { .. }
                | StoreError::Migration(_)
                | StoreError::Backend(_),
            )
            | ControlError::Snapshot(_)
            | ControlError::Document(_)
            | ControlError::Shipped(_) => {
                tracing::error!(error = message, "the control store failed");
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "control_store", message)
            }
        }
    }
}

impl From<PortError> for AdminError {
    fn from(error: PortError) -> Self {
        tracing::warn!(error = %error, "an admin call could not be answered");
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", format!("{error}; the same again is harmless"))
    }
}

impl From<ReportsError> for AdminError {
    fn from(error: ReportsError) -> Self {
        let message = error.to_string();
        match error {
            ReportsError::Invalid(problems) => {
                let field = problems.first().map(|first| first.field.clone()).unwrap_or_default();
                Self::invalid(&field, message).with_problems(&problems)
            }
            ReportsError::TooMany { .. } => Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too_many", message),
            ReportsError::Unavailable(error) => error.into(),
        }
    }
}

impl From<DeadLettersError> for AdminError {
    fn from(error: DeadLettersError) -> Self {
        let message = error.to_string();
        match error {
            DeadLettersError::NotParked { .. } => Self::not_found(message),
            DeadLettersError::OtherOffset { .. } => Self::new(StatusCode::CONFLICT, "other_offset", message),
            DeadLettersError::Unavailable(error) => error.into(),
        }
    }
}

impl From<BytesRejection> for AdminError {
    fn from(rejection: BytesRejection) -> Self {
        let code = if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE { "too_large" } else { "unreadable" };
        Self::new(rejection.status(), code, rejection.body_text())
    }
}

/// A JSON body, with the place of what is wrong in it.
pub(super) fn read_json<T: DeserializeOwned>(body: Result<Bytes, BytesRejection>) -> Result<T, AdminError> {
    let bytes = body?;
    let mut reader = serde_json::Deserializer::from_slice(&bytes);
    let value = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let path = error.path().to_string();
        let field = if path == "." || path == "?" { "body".to_owned() } else { path };
        AdminError::invalid(&field, error.into_inner().to_string())
    })?;
    reader.end().map_err(|error| AdminError::invalid("body", error.to_string()))?;
    Ok(value)
}

pub(super) fn read_text(body: Result<Bytes, BytesRejection>) -> Result<String, AdminError> {
    String::from_utf8(body?.into()).map_err(|_| AdminError::invalid("body", "it is not UTF-8 text"))
}
