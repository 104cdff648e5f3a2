//! `GET /v1/models`: what the caller's key may use, and nothing else.

use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Response};
use serde_json::json;

use weir_wire::Dialect;

use crate::arrival::Arrival;
use crate::authenticate::authenticate;
use crate::client::ClientBody;
use crate::respond::{Refusal, X_REQUEST_ID, insert};
use crate::server::Inner;

pub(crate) fn list(gateway: &Inner, headers: &HeaderMap, arrival: &Arrival) -> Response<ClientBody> {
    let snapshot = gateway.snapshot.load_full();
    let key = match authenticate(headers, &snapshot, &gateway.pepper, arrival.received_ms) {
        Ok(key) => key,
        Err(refusal) => {
            return Refusal::from(refusal).response(Dialect::OpenAiChat, &arrival.request_id, HeaderMap::new());
        }
    };
    let mut names: Vec<&str> = snapshot
        .models
        .keys()
        .map(weir_domain::ids::ModelName::as_str)
        .filter(|name| snapshot.model_for(&key, name).is_some())
        .collect();
    names.sort_unstable();
    let models: Vec<_> =
        names.iter().map(|name| json!({"id": name, "object": "model", "created": 0, "owned_by": "weir"})).collect();
    let body = json!({"object": "list", "data": models}).to_string();
    let mut response = Response::new(ClientBody::whole(body.into()));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    insert(response.headers_mut(), X_REQUEST_ID, &arrival.request_id);
    response
}
