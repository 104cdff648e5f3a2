//! The client: sends one request and writes down what comes, when, and how it ends.

use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue};
use thiserror::Error;
use tokio::time::timeout_at;

use weir_providers::{BadAddress, Call, CallError, Upstream, UpstreamOptions};
use weir_runtime::tls::{self, TlsError};

use super::evidence::{End, Piece, Transcript};
use super::pair::{ClientApi, Pair};
use super::requests::{Ask, Key};

/// The gateway under test.
#[derive(Debug)]
pub struct Gateway {
    url: String,
    key: HeaderValue,
    bearer: HeaderValue,
    upstream: Upstream,
    patience: Duration,
}

/// Why there is no gateway to test.
#[derive(Debug, Error)]
pub enum GatewayError {
    #[error(transparent)]
    Address(#[from] BadAddress),
    #[error("the key is no header value: it has a line end, or characters beyond ASCII")]
    Key,
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("{url} does not answer: {why}")]
    Silent { url: String, why: String },
}

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");
const ANTHROPIC_VERSION: HeaderName = HeaderName::from_static("anthropic-version");
const UNKNOWN_KEY: &str = "sk-contract-nobody-was-given-this-key-000000000000";

impl Gateway {
    /// `url` without `/v1`; answers are waited for at most as long as `patience`.
    pub fn new(url: &str, key: &str, ca_file: Option<&Path>, patience: Duration) -> Result<Self, GatewayError> {
        let value = |text: &str| HeaderValue::from_str(text).map_err(|_| GatewayError::Key);
        let url = url.trim_end_matches('/').trim_end_matches("/v1").to_owned();
        // A connection for each request, so that none is blamed for what the one before it did.
        let options = UpstreamOptions { max_idle_per_host: 0, ..UpstreamOptions::default() };
        let upstream = Upstream::new(&tls::client_config(ca_file)?, options);
        upstream.endpoint(&url, ClientApi::Chat.path())?;
        Ok(Self { url, key: value(key)?, bearer: value(&format!("Bearer {key}"))?, upstream, patience })
    }

    /// Whether anybody answers there at all.
    pub async fn answers(&self) -> Result<(), GatewayError> {
        let pair = Pair::ALL[0];
        let transcript = self.ask(pair.client, &Ask { key: Key::Unknown, ..Ask::PLAIN }, "contract", None).await;
        match transcript.end {
            End::NoAnswer(why) => Err(GatewayError::Silent { url: self.url.clone(), why }),
            End::Whole | End::Broken(_) | End::TimedOut | End::Left => Ok(()),
        }
    }

    pub(super) async fn ask(&self, api: ClientApi, ask: &Ask, model: &str, idempotency: Option<&str>) -> Transcript {
        let mut transcript =
            Transcript { status: None, headers: Vec::new(), pieces: Vec::new(), end: End::Whole, ended_ms: 0 };
        let sent = Instant::now();
        let elapsed_ms = || u64::try_from(sent.elapsed().as_millis()).unwrap_or(u64::MAX);
        let recorded = self.record(api, ask, model, idempotency, &mut transcript, &elapsed_ms);
        let until = tokio::time::Instant::now() + self.patience;
        transcript.end = match timeout_at(until, recorded).await {
            Ok(end) => end,
            Err(_) => End::TimedOut,
        };
        transcript.ended_ms = elapsed_ms();
        transcript
    }

    async fn record(
        &self,
        api: ClientApi,
        ask: &Ask,
        model: &str,
        idempotency: Option<&str>,
        transcript: &mut Transcript,
        elapsed_ms: &impl Fn() -> u64,
    ) -> End {
        let endpoint = match self.upstream.endpoint(&self.url, api.path()) {
            Ok(endpoint) => endpoint,
            Err(error) => return End::NoAnswer(error.to_string()),
        };
        let body = Bytes::from(ask.body(api, model).to_string());
        let headers = self.headers(api, ask.key, idempotency);
        let call = Call { endpoint, headers, is_stream: true, body: vec![body] };
        let mut answer = match self.upstream.call(call).await {
            Ok(answer) => answer,
            Err(error @ (CallError::NotSent(_) | CallError::MayHaveBeenSent(_) | CallError::Unreadable(_))) => {
                return End::NoAnswer(error.to_string());
            }
        };
        transcript.status = Some(answer.status.as_u16());
        let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        transcript.headers = answer.headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect();
        loop {
            match answer.body.next().await {
                None => return End::Whole,
                Some(Err(error)) => return End::Broken(error.to_string()),
                Some(Ok(bytes)) => transcript.pieces.push(Piece { at_ms: elapsed_ms(), bytes: bytes.to_vec() }),
            }
            let has_seen = |text: &str| String::from_utf8_lossy(&transcript.body()).contains(text);
            if ask.leave_at.is_some_and(has_seen) {
                return End::Left;
            }
        }
    }

    fn headers(&self, api: ClientApi, key: Key, idempotency: Option<&str>) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let (plain, bearer) = match key {
            Key::Own => (self.key.clone(), self.bearer.clone()),
            Key::Unknown => {
                let bearer = HeaderValue::from_str(&format!("Bearer {UNKNOWN_KEY}"));
                (HeaderValue::from_static(UNKNOWN_KEY), bearer.unwrap_or(HeaderValue::from_static("Bearer")))
            }
        };
        match api {
            ClientApi::Chat | ClientApi::Responses => headers.insert(AUTHORIZATION, bearer),
            ClientApi::Messages => {
                headers.insert(ANTHROPIC_VERSION, HeaderValue::from_static("2023-06-01"));
                headers.insert(X_API_KEY, plain)
            }
        };
        if let Some(value) = idempotency.and_then(|value| HeaderValue::from_str(value).ok()) {
            headers.insert(IDEMPOTENCY_KEY, value);
        }
        headers
    }
}
