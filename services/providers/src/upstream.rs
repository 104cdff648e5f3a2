//! One call to a provider.
//!
//! HTTP/1.1 only (ALPN is pinned in `weir_runtime::tls`): one connection per running call keeps one slow stream from
//! blocking another, and an error on a connection concerns one attempt. Redirects are not followed, so a credential
//! never reaches a host that the catalog did not name (O41).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use rustls::ClientConfig;
use thiserror::Error;
use tower_service::Service;

use weir_runtime::story::story;

use crate::body::{AnswerBody, UnsupportedEncoding};
use crate::connection::{Connection, ExchangeError, Head, request_head};
use crate::endpoint::{BadAddress, Endpoint, Endpoints};
use crate::pool::Origin;

/// Bounds of the connection pool.
#[derive(Debug, Clone, Copy)]
pub struct UpstreamOptions {
    pub connect_timeout: Duration,
    /// How long an idle connection is kept. Shorter than what providers keep theirs, so that the race between their
    /// close and our next request is rare (O48).
    pub idle_timeout: Duration,
    pub max_idle_per_host: usize,
    /// The kernel's receive buffer of a provider connection: what it may send ahead of its reader in one round trip.
    pub receive_buffer_bytes: Option<usize>,
    /// The same while the answer is a stream, which is read as fast as its client reads: bounds what one slow client makes
    /// the kernel hold, which is twice this. 64 KiB a round trip are thousands of tokens.
    pub stream_receive_buffer_bytes: Option<usize>,
}

impl Default for UpstreamOptions {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(5),
            idle_timeout: Duration::from_secs(4),
            max_idle_per_host: 1024,
            receive_buffer_bytes: Some(256 * 1024),
            stream_receive_buffer_bytes: Some(64 * 1024),
        }
    }
}

/// What to send where. `headers` hold the one credential, marked sensitive; `host` and the body's length are added.
#[derive(Debug)]
pub struct Call {
    pub endpoint: Arc<Endpoint>,
    pub headers: HeaderMap,
    /// Whether the answer is asked for as a stream.
    pub is_stream: bool,
    /// In pieces, so that a body that shares the client's memory is not copied.
    pub body: Vec<Bytes>,
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

/// The connections to all providers. Clones are handles to the same ones.
#[derive(Clone)]
pub struct Upstream {
    shared: Arc<Shared>,
}

struct Shared {
    connector: HttpsConnector<HttpConnector>,
    endpoints: Endpoints,
    bounds: Bounds,
    receive_buffer_bytes: Option<usize>,
    stream_receive_buffer_bytes: Option<usize>,
}

/// What is kept idle: how many connections of an origin, and how long.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub max_idle: usize,
    pub idle_timeout: Duration,
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upstream").field("bounds", &self.shared.bounds).finish_non_exhaustive()
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
        let bounds = Bounds { max_idle: options.max_idle_per_host, idle_timeout: options.idle_timeout };
        let UpstreamOptions { receive_buffer_bytes, stream_receive_buffer_bytes, .. } = options;
        let endpoints = Endpoints::default();
        let shared = Shared { connector, endpoints, bounds, receive_buffer_bytes, stream_receive_buffer_bytes };
        Self { shared: Arc::new(shared) }
    }

    /// Where `path` below `base_url` is, parsed once.
    ///
    /// # Errors
    /// [`BadAddress`].
    pub fn endpoint(&self, base_url: &str, path: &'static str) -> Result<Arc<Endpoint>, BadAddress> {
        self.shared.endpoints.of(base_url, path)
    }

    /// Sends `call` and waits for the head of the answer. Dropping the future closes the connection.
    ///
    /// A request of which no byte was written, because an idle connection turned out to be closed, is sent on another
    /// one: it is the same attempt.
    ///
    /// # Errors
    /// [`CallError`], which says whether the provider may have run it.
    pub async fn call(&self, call: Call) -> Result<Answer, CallError> {
        let Call { endpoint, headers, is_stream, body } = call;
        let origin = &endpoint.origin;
        let Shared { receive_buffer_bytes, stream_receive_buffer_bytes, .. } = &*self.shared;
        let receive_buffer = if is_stream { *stream_receive_buffer_bytes } else { *receive_buffer_bytes };
        let body_bytes = body.iter().map(Bytes::len).sum();
        let mut pieces = Vec::with_capacity(body.len() + 1);
        pieces.push(request_head(&origin.host, &endpoint.path, &headers, body_bytes));
        pieces.extend(body.into_iter().filter(|piece| !piece.is_empty()));
        while let Some(mut connection) = origin.take(self.shared.bounds.idle_timeout) {
            connection.expect_answer(is_stream, receive_buffer);
            match connection.exchange(pieces).await {
                Ok(answered) => return self.answer(origin, connection, answered),
                Err(ExchangeError::NothingSent(_)) => pieces = connection.take_unsent(),
                Err(error) => return Err(error.into()),
            }
        }
        let mut connection = Box::pin(self.connect(origin)).await?;
        connection.expect_answer(is_stream, receive_buffer);
        let answered = connection.exchange(pieces).await?;
        self.answer(origin, connection, answered)
    }

    fn answer(&self, origin: &Arc<Origin>, connection: Box<Connection>, head: Head) -> Result<Answer, CallError> {
        let body = AnswerBody::new(&head, connection, Arc::clone(origin), self.shared.bounds)?;
        Ok(Answer { status: head.status, headers: head.headers, body })
    }

    async fn connect(&self, origin: &Origin) -> Result<Box<Connection>, CallError> {
        let mut connector = self.shared.connector.clone();
        let stream =
            connector.call(origin.uri.clone()).await.map_err(|error| CallError::NotSent(story(error.as_ref())))?;
        Ok(Box::new(Connection::new(stream, self.shared.receive_buffer_bytes)))
    }

    /// Closes connections that nobody used for longer than the idle timeout. Calls do so too, for the origins that they
    /// use; this is for the others. To be called now and then.
    pub fn sweep(&self) {
        for origin in self.shared.endpoints.origins() {
            origin.sweep(self.shared.bounds.idle_timeout);
        }
    }

    /// How long an idle connection is kept.
    #[must_use]
    pub fn idle_timeout(&self) -> Duration {
        self.shared.bounds.idle_timeout
    }
}

impl From<ExchangeError> for CallError {
    fn from(error: ExchangeError) -> Self {
        match error {
            ExchangeError::NothingSent(_) => Self::NotSent(story(&error)),
            ExchangeError::Broken(_) | ExchangeError::Closed | ExchangeError::Head(_) => {
                Self::MayHaveBeenSent(story(&error))
            }
        }
    }
}

#[cfg(test)]
#[path = "upstream_tests.rs"]
mod tests;
