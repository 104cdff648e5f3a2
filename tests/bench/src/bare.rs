//! The bare proxy: axum in front, a hyper client pool behind, one thread, bodies forwarded untouched.
//!
//! It is what a gateway on the same libraries could cost at the least, so it does nothing that HTTP does not ask for:
//! another authority, no hop-by-hop headers, frames as they come.

use std::net::SocketAddr;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::serve::ListenerExt as _;
use http::header::{CONNECTION, HOST, TRANSFER_ENCODING};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{StatusCode, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::net::TcpListener;

use crate::error::BenchError;

#[derive(Debug, Clone)]
struct Upstream {
    client: Client<HttpConnector, Body>,
    authority: Authority,
}

pub(crate) async fn serve(listen: SocketAddr, upstream: SocketAddr) -> Result<(), BenchError> {
    let authority = Authority::try_from(upstream.to_string());
    let authority = authority.map_err(|error| BenchError::unexpected("the upstream's address", error))?;
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let client = Client::builder(TokioExecutor::new()).pool_timer(TokioTimer::new()).build(connector);
    let app = Router::new().fallback(forward).with_state(Upstream { client, authority });
    let listener = TcpListener::bind(listen).await.map_err(BenchError::io("the bare proxy's port"))?;
    // Streamed events wait for delayed acknowledgements otherwise. A socket that is already gone needs no option.
    let listener = listener.tap_io(|socket| drop(socket.set_nodelay(true)));
    axum::serve(listener, app).await.map_err(BenchError::io("the bare proxy"))
}

async fn forward(State(upstream): State<Upstream>, mut request: Request) -> Response {
    let mut target = http::uri::Parts::default();
    target.scheme = Some(Scheme::HTTP);
    target.authority = Some(upstream.authority.clone());
    target.path_and_query = request.uri().path_and_query().cloned().or_else(|| Some(PathAndQuery::from_static("/")));
    let Ok(target) = Uri::from_parts(target) else { return StatusCode::BAD_REQUEST.into_response() };
    *request.uri_mut() = target;
    request.headers_mut().remove(HOST);
    request.headers_mut().remove(CONNECTION);
    match upstream.client.request(request).await {
        Ok(mut response) => {
            response.headers_mut().remove(CONNECTION);
            response.headers_mut().remove(TRANSFER_ENCODING);
            response.map(Body::new)
        }
        Err(_) => StatusCode::BAD_GATEWAY.into_response(),
    }
}
