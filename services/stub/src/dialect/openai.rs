//! What all of OpenAI's endpoints share: the envelope of an error, and how much of the request they read.

use bytes::Bytes;
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::Refusal;

#[derive(Deserialize)]
pub(super) struct Metadata {
    #[serde(default)]
    pub(super) stub: Option<Value>,
}

pub(super) fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Refusal> {
    serde_json::from_slice(body)
        .map_err(|error| Refusal::bad(None, format!("We could not parse the JSON body of your request: {error}")))
}

pub(super) fn no_model() -> Refusal {
    Refusal::bad(Some("model"), "you must provide a model parameter")
}

pub(super) fn error_body(status: StatusCode, message: &str, field: Option<&str>) -> Bytes {
    let (kind, code) = match status.as_u16() {
        401 => ("invalid_request_error", Some("invalid_api_key")),
        429 => ("requests", Some("rate_limit_exceeded")),
        400..500 => ("invalid_request_error", None),
        _ => ("server_error", None),
    };
    let error = json!({"error": {"message": message, "type": kind, "param": field, "code": code}});
    Bytes::from(error.to_string())
}
