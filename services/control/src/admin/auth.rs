//! The bearer token of the admin API.

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::header::{AUTHORIZATION, HeaderValue, WWW_AUTHENTICATE};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::error::AdminError;
use crate::secrets::AdminToken;

pub(super) async fn require_token(State(token): State<AdminToken>, request: Request, next: Next) -> Response {
    let presented = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok()).and_then(bearer);
    if presented.is_some_and(|presented| token.is(presented)) {
        return next.run(request).await;
    }
    let message = "send `Authorization: Bearer TOKEN` with the token of the data folder's `admin.token`";
    let mut response = AdminError::new(StatusCode::UNAUTHORIZED, "unauthorized", message).into_response();
    response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

fn bearer(value: &str) -> Option<&str> {
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}
