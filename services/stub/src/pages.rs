//! What the stub answers besides answers: the list of models, and its own journal, totals and queue of scripts.

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderValue, Method, Response, StatusCode};
use hyper::body::Incoming;
use serde::{Deserialize, Serialize};
use serde_json::json;
use weir_runtime::listener::BoxError;

use crate::StubState;
use crate::body::AnswerBody;
use crate::dialect::plain_error;
use crate::script::Script;
use crate::server::read_body;

/// `POST /stub/script`: the next requests for `model` get these scripts, in order, one each.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Queue {
    model: String,
    scripts: Vec<Script>,
    /// Instead of what waits, not after it.
    #[serde(default)]
    replace: bool,
}

pub(crate) async fn answer(state: &StubState, head: &Parts, body: Incoming) -> Result<Response<AnswerBody>, BoxError> {
    let path = head.uri.path();
    Ok(match (&head.method, path) {
        (&Method::GET, "/stub/journal") => journal(state, head.uri.query().unwrap_or("")),
        (&Method::DELETE, "/stub/journal") => {
            state.journal.clear();
            no_content()
        }
        (&Method::GET, "/stub/totals") => page(&state.journal.totals()),
        (&Method::POST, "/stub/script") => {
            let Some(body) = read_body(body, 0).await? else {
                return Ok(error(StatusCode::PAYLOAD_TOO_LARGE, "the body is too large"));
            };
            match serde_json::from_slice::<Queue>(&body) {
                Ok(queue) => match state.queue(&queue.model, queue.scripts, queue.replace) {
                    Ok(()) => no_content(),
                    Err(wrong) => error(StatusCode::BAD_REQUEST, &wrong.to_string()),
                },
                Err(wrong) => error(StatusCode::BAD_REQUEST, &format!("not {{model, scripts}}: {wrong}")),
            }
        }
        (&Method::DELETE, "/stub/script") => {
            state.clear_queue();
            no_content()
        }
        (&Method::GET, path) if path.ends_with("/models") => page(&models(state)),
        (method, path) if let Some((_, id)) = path.split_once("/responses/") => response(state, method, id),
        _ => error(StatusCode::NOT_FOUND, &format!("the stub has nothing at {} {path}", head.method)),
    })
}

fn journal(state: &StubState, query: &str) -> Response<AnswerBody> {
    let since = match query.strip_prefix("since=").map(str::parse) {
        None if query.is_empty() => 0,
        Some(Ok(since)) => since,
        None | Some(Err(_)) => {
            return error(StatusCode::BAD_REQUEST, "the only parameter is since=N: entries with a larger id");
        }
    };
    page(&state.journal.entries(since))
}

/// A stored response, as it is known so far.
fn response(state: &StubState, method: &Method, id: &str) -> Response<AnswerBody> {
    let missing = || error(StatusCode::NOT_FOUND, &format!("Response with id '{id}' not found."));
    match *method {
        Method::GET => state.shelf.get(id).map_or_else(missing, |stored| page(&stored.told())),
        Method::DELETE if state.shelf.remove(id) => page(&json!({"id": id, "object": "response", "deleted": true})),
        Method::DELETE => missing(),
        _ => error(StatusCode::METHOD_NOT_ALLOWED, "a stored response can be fetched or deleted"),
    }
}

fn models(state: &StubState) -> serde_json::Value {
    let model = |id: &str| json!({"id": id, "object": "model", "created": 1_790_000_000, "owned_by": "weir-stub"});
    json!({"object": "list", "data": state.model_names().iter().map(|name| model(name)).collect::<Vec<_>>()})
}

fn page(content: &impl Serialize) -> Response<AnswerBody> {
    match serde_json::to_vec(content) {
        Ok(text) => json(StatusCode::OK, Bytes::from(text)),
        Err(wrong) => error(StatusCode::INTERNAL_SERVER_ERROR, &wrong.to_string()),
    }
}

fn error(status: StatusCode, message: &str) -> Response<AnswerBody> {
    json(status, plain_error(status, message))
}

pub(crate) fn json(status: StatusCode, text: Bytes) -> Response<AnswerBody> {
    let mut response = Response::new(AnswerBody::Page(Some(text)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn no_content() -> Response<AnswerBody> {
    let mut response = Response::new(AnswerBody::Page(None));
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}
