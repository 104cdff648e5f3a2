//! One call to a provider.
//!
//! HTTP/1.1 only (ALPN is pinned in `weir_runtime::tls`): one connection per running call keeps one slow stream from
//! blocking another, and an error on a connection concerns one attempt. Redirects are not followed, so a credential
//! never reaches a host that the catalog did not name (O41).

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode, Uri};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::ClientConfig;
use thiserror::Error;

use crate::decode::{AnswerBody, UnsupportedEncoding};

/// Bounds of the connection pool.
#[derive(Debug, Clone, Copy)]
pub struct UpstreamOptions {
    pub connect_timeout: Duration,
    /// How long an idle connection is kept. Shorter than what providers keep theirs, so that the race between their
    /// close and our next request is rare (O48).
    pub idle_timeout: Duration,
    pub max_idle_per_host: usize,
    /// The kernel's receive buffer of a provider connection; bounds what one slow client makes the kernel hold.
    pub receive_buffer_bytes: Option<usize>,
}

impl Default for UpstreamOptions {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(5),
            idle_timeout: Duration::from_secs(4),
            max_idle_per_host: 1024,
            receive_buffer_bytes: Some(256 * 1024),
        }
    }
}

/// What to send where. `headers` hold the one credential, marked sensitive.
#[derive(Debug)]
pub struct Call {
    pub uri: Uri,
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// A provider's answer: the head is here, the body still flows.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: AnswerBody,
}

/// How far a failed call got.
#[derive(Debug, Error)]
pub enum CallError {
    /// No byte of the request left: name resolution, connect or TLS failed. The provider did not run it.
    #[error("cannot connect to the provider: {0}")]
    NotSent(String),
    /// The request, or part of it, left before the failure. The provider may have run it.
    #[error("the provider's connection failed: {0}")]
    MayHaveBeenSent(String),
    /// An answer came in an encoding that nobody asked for and Weir cannot read.
    #[error(transparent)]
    Unreadable(#[from] UnsupportedEncoding),
}

/// The pool of connections to all providers.
#[derive(Clone)]
pub struct Upstream {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Upstream")
    }
}

impl Upstream {
    #[must_use]
    pub fn new(tls: &Arc<ClientConfig>, options: UpstreamOptions) -> Self {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(options.connect_timeout));
        tcp.set_recv_buffer_size(options.receive_buffer_bytes);
        // The builder pins its own ALPN list and refuses a configuration that brings one.
        let mut tls = ClientConfig::clone(tls);
        tls.alpn_protocols.clear();
        let connector =
            HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1().wrap_connector(tcp);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(options.idle_timeout)
            .pool_max_idle_per_host(options.max_idle_per_host)
            .build(connector);
        Self { client }
    }

    /// Sends `call` and waits for the head of the answer. Dropping the future closes the connection.
    ///
    /// A request that hyper hands back unsent, because an idle connection was closed before a byte of it was written, is
    /// sent on another connection: it is the same attempt.
    pub async fn call(&self, call: Call) -> Result<Answer, CallError> {
        let mut request = Request::new(Full::new(call.body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = call.uri;
        *request.headers_mut() = call.headers;
        let response = self.client.request(request).await.map_err(|error| {
            let story = chain(&error);
            if error.is_connect() { CallError::NotSent(story) } else { CallError::MayHaveBeenSent(story) }
        })?;
        let (head, body) = response.into_parts();
        let body: Incoming = body;
        let body = AnswerBody::new(&head.headers, body)?;
        Ok(Answer { status: head.status, headers: head.headers, body })
    }
}

/// The error and what caused it, in one line.
fn chain(error: &dyn Error) -> String {
    let mut story = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        story.push_str(": ");
        story.push_str(&cause.to_string());
        source = cause.source();
    }
    story
}
