//! A client that reads what it gets and judges nothing, and that can leave in the middle.

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Client as Pool, Error};
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};

use crate::PATIENCE;

/// Sends requests to one base URL with one bearer token.
#[derive(Debug, Clone)]
pub struct Client {
    base: String,
    bearer: String,
    pool: Pool<HttpConnector, Full<Bytes>>,
}

/// A response, read to its end.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// A response that is being read. Dropping it closes its connection.
#[derive(Debug)]
pub struct Open {
    pub status: StatusCode,
    pub headers: HeaderMap,
    body: Incoming,
}

impl Client {
    #[must_use]
    pub fn new(base: &str, bearer: &str) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let pool = Pool::builder(TokioExecutor::new()).build(connector);
        Self { base: base.to_owned(), bearer: bearer.to_owned(), pool }
    }

    /// The same connections with another token.
    #[must_use]
    pub fn with_key(&self, bearer: &str) -> Self {
        Self { bearer: bearer.to_owned(), ..self.clone() }
    }

    /// The token that it presents.
    #[must_use]
    pub fn bearer(&self) -> &str {
        &self.bearer
    }

    fn request(&self, method: Method, path: &str, content_type: &str, body: Bytes) -> Request<Full<Bytes>> {
        Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base))
            .header("authorization", format!("Bearer {}", self.bearer))
            .header("content-type", content_type)
            .body(Full::new(body))
            .expect("a request of constants is one")
    }

    /// Sends a request and returns when its head has come.
    ///
    /// # Errors
    /// When the connection could not be made, or broke before the head.
    pub async fn open(&self, method: Method, path: &str, content_type: &str, body: Bytes) -> Result<Open, Error> {
        let (head, body) = self.pool.request(self.request(method, path, content_type, body)).await?.into_parts();
        Ok(Open { status: head.status, headers: head.headers, body })
    }

    /// Sends a request and reads the whole answer.
    pub async fn send(&self, method: Method, path: &str, content_type: &str, body: Bytes) -> Answer {
        let open = tokio::time::timeout(PATIENCE, self.open(method, path, content_type, body)).await;
        open.expect("an answer comes in time").expect("an answer comes").read().await
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send(Method::GET, path, "application/json", Bytes::new()).await
    }

    /// As [`get`](Self::get), of a process that may be starting or ending: `None` when the connection is lost.
    pub async fn probe(&self, path: &str) -> Option<Answer> {
        let open = self.open(Method::GET, path, "application/json", Bytes::new());
        Some(tokio::time::timeout(PATIENCE, open).await.ok()?.ok()?.read().await)
    }

    pub async fn post(&self, path: &str, body: impl Into<Bytes>) -> Answer {
        self.send(Method::POST, path, "application/json", body.into()).await
    }

    /// `POST /v1/chat/completions`.
    pub async fn chat(&self, body: &Value) -> Answer {
        self.post("/v1/chat/completions", body.to_string()).await
    }

    /// The same, returned when the head has come; a client that drops the future before that has left.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub async fn open_chat(&self, body: &Value) -> Result<Open, Error> {
        self.open(Method::POST, "/v1/chat/completions", "application/json", Bytes::from(body.to_string())).await
    }
}

impl Open {
    /// The next piece of the body, or `None` at its end.
    pub async fn next(&mut self) -> Option<Result<Bytes, hyper::Error>> {
        loop {
            match self.body.frame().await? {
                Ok(frame) => match frame.into_data() {
                    Ok(data) => return Some(Ok(data)),
                    Err(_trailers) => {}
                },
                Err(error) => return Some(Err(error)),
            }
        }
    }

    /// The rest, to its end or its break.
    pub async fn read(mut self) -> Answer {
        let mut whole = Vec::new();
        while let Some(Ok(piece)) = self.next().await {
            whole.extend_from_slice(&piece);
        }
        Answer { status: self.status, headers: self.headers, body: Bytes::from(whole) }
    }

    #[must_use]
    pub fn reservation(&self) -> Option<String> {
        text(&self.headers, "x-weir-reservation")
    }
}

impl Answer {
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {} {}", self.status, self.text()))
    }

    #[must_use]
    pub fn header(&self, name: &str) -> Option<String> {
        text(&self.headers, name)
    }

    #[must_use]
    pub fn reservation(&self) -> Option<String> {
        self.header("x-weir-reservation")
    }

    /// Panics with the whole answer when it has another status.
    #[track_caller]
    #[must_use]
    pub fn expect(self, status: u16) -> Self {
        assert_eq!(self.status.as_u16(), status, "{}", self.text());
        self
    }

    /// The `data:` values of an event stream.
    #[must_use]
    pub fn events(&self) -> Vec<String> {
        self.text().split("\n\n").filter_map(|event| event.strip_prefix("data: ").map(str::to_owned)).collect()
    }
}

fn text(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
}

/// A chat request whose script for the stub is in its prompt.
#[must_use]
pub fn chat(model: &str, stream: bool, script: &Value) -> Value {
    let prompt = format!("please answer [[stub {script}]]");
    json!({"model": model, "stream": stream, "messages": [{"role": "user", "content": prompt}]})
}
