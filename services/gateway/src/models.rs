//! `GET /v1/models`: what the caller's key may use, and nothing else, in the form of the caller's API.

use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Response};
use serde_json::json;

use weir_wire::Family;

use crate::arrival::Arrival;
use crate::authenticate::authenticate;
use crate::client::ClientBody;
use crate::headers::insert_request_id;
use crate::respond::Refusal;
use crate::server::Inner;

pub(crate) fn list(gateway: &Inner, headers: &HeaderMap, arrival: &Arrival) -> Response<ClientBody> {
    let snapshot = gateway.snapshot.load_full();
    let key = match authenticate(arrival.dialect, headers, &snapshot, &gateway.pepper, arrival.received_ms) {
        Ok(key) => key,
        Err(refusal) => {
            return Refusal::from(refusal).response(arrival.dialect, &arrival.request_id, HeaderMap::new());
        }
    };
    let mut names: Vec<&str> = snapshot
        .models
        .keys()
        .map(weir_domain::ids::ModelName::as_str)
        .filter(|name| snapshot.model_for(&key, name).is_some())
        .collect();
    names.sort_unstable();
    let body = listed(arrival.dialect.family(), &names).to_string();
    let mut response = Response::new(ClientBody::whole(body.into()));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    insert_request_id(response.headers_mut(), arrival.dialect, &arrival.request_id);
    response
}

/// All names in one page; nothing is known of when a model came to be.
fn listed(family: Family, names: &[&str]) -> serde_json::Value {
    match family {
        Family::OpenAi => {
            let model = |name: &&str| json!({"id": name, "object": "model", "created": 0, "owned_by": "weir"});
            json!({"object": "list", "data": names.iter().map(model).collect::<Vec<_>>()})
        }
        Family::Anthropic => {
            let model = |name: &&str| json!({"type": "model", "id": name, "display_name": name, "created_at": "1970-01-01T00:00:00Z"});
            let data: Vec<_> = names.iter().map(model).collect();
            json!({"data": data, "has_more": false, "first_id": names.first(), "last_id": names.last()})
        }
    }
}
