//! One attempt: call a deployment, and wait for what decides (the whole answer of a plain request, the first content of
//! a stream).
//!
//! Headers are not the commitment: a provider that answers 200 and falls silent can still be replaced. Role, metadata
//! and comments are held back, bounded, until content comes. Everything that ends an attempt before that is judged by
//! `weir_wire::verdict` and leaves as a [`Failure`].

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_TYPE, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue};
use tokio::time::{Instant, sleep_until};

use weir_domain::registry::{CapField as RegistryCapField, Deployment};
use weir_providers::{Answer, AnswerBody, Call, CallError};
use weir_runtime::failpoint;
use weir_wire::envelope::{ClientError, Redaction, relayed_error, relayed_in_band};
use weir_wire::openai::chat::stream::StreamStep;
use weir_wire::openai::chat::{
    CapField, DeveloperRole, InBandError, PlainAnswer, StreamEditor, StreamReader, StreamState, UpstreamEdits,
};
use weir_wire::retry_after::RetryAfter;
use weir_wire::sse::{Decoder, Event};
use weir_wire::usage::Extracted;
use weir_wire::verdict::{Happening, Judgement, ProviderRows, judge};
use weir_wire::{Dialect, headers};

use crate::client::Client;
use crate::lifecycle::Prepared;
use crate::relay::Opened;
use crate::server::Inner;

/// How much of a provider's error answer is read.
const MOST_ERROR_BYTES: usize = 256 * 1024;
/// How many events are held back until the first content.
const MOST_HELD_EVENTS: usize = 256;

/// What an attempt came to, before anything of it reached the client.
pub(crate) enum AttemptEnd {
    /// A plain answer, whole.
    Whole {
        headers: HeaderMap,
        answer: Box<PlainAnswer>,
    },
    /// A stream with content, or one that finished without any.
    Opened {
        headers: HeaderMap,
        opened: Box<Opened>,
        provider_id: Option<String>,
    },
    Failed(Box<Failure>),
    /// The client left. The provider may be running it.
    Abandoned,
}

/// A judged end, with the error to show if it is the last.
#[derive(Debug)]
pub(crate) struct Failure {
    pub judgement: Judgement,
    pub error: ClientError,
    /// A word for logs.
    pub what: &'static str,
}

/// One attempt's surroundings.
pub(crate) struct Attempt<'a> {
    pub gateway: &'a Arc<Inner>,
    pub prepared: &'a Prepared,
    pub deployment: &'a Arc<Deployment>,
    /// Our id for this call, sent where the provider keeps it.
    pub correlation: String,
    pub written_cap: Option<u64>,
    /// Of the whole request.
    pub deadline: Instant,
    /// When a silent stream gets its status line.
    pub status_at: Option<Instant>,
}

/// What interrupted a wait.
enum Interruption {
    ClientLeft,
    TimeIsUp,
}

impl Attempt<'_> {
    pub(crate) async fn run(&self, client: &mut Client) -> AttemptEnd {
        let call = match self.call() {
            Ok(call) => call,
            Err(failure) => return AttemptEnd::Failed(failure),
        };
        let started = Instant::now();
        let is_stream = self.prepared.request.facts().stream;
        let first_content = started + millis(self.prepared.model.deadlines.first_content_ms);
        let until = if is_stream { self.deadline.min(first_content) } else { self.deadline };
        failpoint::pass("attempt.before_call").await;
        let answer = match self.guard(client, until, self.gateway.upstream.call(call)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => return AttemptEnd::Failed(self.call_failed(&error)),
            Err(Interruption::ClientLeft) => return AttemptEnd::Abandoned,
            Err(Interruption::TimeIsUp) => return self.timed_out(),
        };
        failpoint::pass("attempt.after_head").await;
        if !answer.status.is_success() {
            return self.refused(client, until, answer).await;
        }
        if is_stream && is_event_stream(&answer.headers) {
            self.peek(client, until, answer).await
        } else {
            self.whole(client, until, answer).await
        }
    }

    /// Waits for `work`, unless the client leaves or `until` comes. A silent stream gets its status line on the way.
    async fn guard<T>(
        &self,
        client: &mut Client,
        until: Instant,
        work: impl Future<Output = T>,
    ) -> Result<T, Interruption> {
        tokio::pin!(work);
        loop {
            let status_at = self.status_at.filter(|at| client.is_silent() && *at < until);
            tokio::select! {
                biased;
                done = &mut work => return Ok(done),
                () = client.gone() => return Err(Interruption::ClientLeft),
                () = sleep_until(status_at.unwrap_or(until)) => {
                    if status_at.is_none() {
                        return Err(Interruption::TimeIsUp);
                    }
                    client.send_status(HeaderMap::new(), self.gateway.options.keep_alive_every.duration());
                }
            }
        }
    }

    fn call(&self) -> Result<Call, Box<Failure>> {
        let provider = &self.deployment.provider;
        let unsent = |what, message: String| {
            let error = ClientError::new("server_error", "provider_misconfigured", message);
            Box::new(Failure { judgement: self.judge(&Happening::RequestUnsent), error, what })
        };
        let endpoint = self
            .gateway
            .upstream
            .endpoint(&provider.base_url, CHAT_PATH)
            .map_err(|_| unsent("bad provider address", "The provider's address is not usable.".to_owned()))?;
        let (name, prefix) = headers::credential_header(self.prepared.arrival.dialect);
        let credential =
            self.gateway.credentials.header(provider, prefix, self.gateway.clock.now_ms()).map_err(|error| {
                tracing::error!(provider = %provider.id, %error, "credential not readable");
                unsent("credential not readable", "The gateway cannot read this provider's credential.".to_owned())
            })?;
        let mut headers = self.request_headers();
        if let Some(credential) = credential {
            headers.insert(HeaderName::from_static(name), credential);
        }
        Ok(Call { endpoint, headers, body: self.body() })
    }

    fn request_headers(&self) -> HeaderMap {
        let mut out = HeaderMap::with_capacity(8);
        let sent = crate::respond::texts(&self.prepared.headers);
        for (name, value) in headers::request_headers(self.prepared.arrival.dialect, sent) {
            crate::respond::insert(&mut out, HeaderName::from_static(name), value);
        }
        out.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        out.insert(USER_AGENT, HeaderValue::from_static(concat!("weir/", env!("CARGO_PKG_VERSION"))));
        out.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        let accept = if self.prepared.request.facts().stream { "text/event-stream" } else { "application/json" };
        out.insert(ACCEPT, HeaderValue::from_static(accept));
        crate::respond::insert(&mut out, HeaderName::from_static("x-client-request-id"), &self.correlation);
        let provider = &self.deployment.provider;
        for (name, value) in [("openai-organization", &provider.organization), ("openai-project", &provider.project)] {
            if let Some(value) = value {
                crate::respond::insert(&mut out, HeaderName::from_static(name), value);
            }
        }
        out
    }

    fn body(&self) -> Vec<Bytes> {
        let facts = self.prepared.request.facts();
        let field = match self.deployment.cap_field {
            RegistryCapField::MaxTokens => CapField::MaxTokens,
            RegistryCapField::MaxCompletionTokens => CapField::MaxCompletionTokens,
        };
        let developer_role =
            if self.deployment.accepts_developer_role { DeveloperRole::Keep } else { DeveloperRole::System };
        self.prepared.request.rewrite_parts(&UpstreamEdits {
            model: &self.deployment.upstream_model,
            cap: facts.cap_tokens.or(self.written_cap).map(|tokens| (field, tokens)),
            supports_stream_options: self.deployment.accepts_stream_options,
            // Only answers that the provider stores can be found by metadata, and others may refuse it.
            correlation: facts.store.then_some(("gw_attempt", self.correlation.as_str())),
            developer_role,
        })
    }

    fn judge(&self, happening: &Happening<'_>) -> Judgement {
        let rows = if self.deployment.provider.bills_filtered_errors {
            ProviderRows::AzureOpenAi
        } else {
            ProviderRows::Plain
        };
        judge(self.prepared.arrival.dialect, rows, happening)
    }

    fn fail(&self, happening: &Happening<'_>, what: &'static str, message: &str) -> Box<Failure> {
        let judgement = self.judge(happening);
        let error = ClientError::new("server_error", what, message);
        Box::new(Failure { judgement, error, what })
    }

    fn call_failed(&self, error: &CallError) -> Box<Failure> {
        tracing::warn!(deployment = %self.deployment.id, %error, "provider call failed");
        match error {
            CallError::NotSent(_) => {
                self.fail(&Happening::ConnectRefused, "provider_unreachable", "The provider cannot be reached.")
            }
            CallError::MayHaveBeenSent(_) => self.fail(
                &Happening::Broken { content_seen: false },
                "provider_connection_lost",
                "The provider's connection was lost before an answer came.",
            ),
            CallError::Unreadable(_) => self.fail(
                &Happening::Garbage { content_seen: false },
                "provider_protocol_error",
                "The provider's answer cannot be read.",
            ),
        }
    }

    fn timed_out(&self) -> AttemptEnd {
        AttemptEnd::Failed(self.fail(
            &Happening::TimedOut { content_seen: false },
            "provider_timeout",
            "The provider did not answer in time.",
        ))
    }

    /// An error status: its body tells what the provider bills, and what the client is told.
    async fn refused(&self, client: &mut Client, until: Instant, answer: Answer) -> AttemptEnd {
        let status = answer.status.as_u16();
        let retry_after = retry_after(&answer.headers, self.gateway.clock.now_ms());
        let body = match self.guard(client, until, collect(answer.body, MOST_ERROR_BYTES)).await {
            Ok(Some(body)) => body,
            Ok(None) | Err(Interruption::TimeIsUp) => {
                return AttemptEnd::Failed(self.fail(
                    &Happening::Broken { content_seen: false },
                    "provider_error",
                    "The provider's error answer broke off.",
                ));
            }
            Err(Interruption::ClientLeft) => return AttemptEnd::Abandoned,
        };
        let judgement = self.judge(&Happening::Status { status, body: &body, retry_after });
        let error = relayed_error(status, &body, &self.redaction());
        AttemptEnd::Failed(Box::new(Failure { judgement, error, what: "error status" }))
    }

    fn redaction(&self) -> Redaction<'_> {
        Redaction {
            upstream_model: &self.deployment.upstream_model,
            alias: &self.prepared.request.facts().model,
            hidden: &[],
        }
    }

    fn in_band(&self, error: &InBandError, usage: Option<&Extracted>) -> AttemptEnd {
        let judgement = self.judge(&Happening::InBand { error, usage, content_seen: false });
        let error = relayed_in_band(judgement.client_status, error, &self.redaction());
        AttemptEnd::Failed(Box::new(Failure { judgement, error, what: "error in the answer" }))
    }

    fn garbage(&self) -> AttemptEnd {
        AttemptEnd::Failed(self.fail(
            &Happening::Garbage { content_seen: false },
            "provider_protocol_error",
            "The provider's answer cannot be read.",
        ))
    }

    async fn whole(&self, client: &mut Client, until: Instant, answer: Answer) -> AttemptEnd {
        let most = self.gateway.options.max_answer.as_usize();
        let body = match self.guard(client, until, collect(answer.body, most)).await {
            Ok(Some(body)) => body,
            Ok(None) => {
                return AttemptEnd::Failed(self.fail(
                    &Happening::Broken { content_seen: false },
                    "provider_connection_lost",
                    "The provider's answer broke off or is too large.",
                ));
            }
            Err(Interruption::ClientLeft) => return AttemptEnd::Abandoned,
            Err(Interruption::TimeIsUp) => return self.timed_out(),
        };
        let Ok(parsed) = PlainAnswer::parse(body) else { return self.garbage() };
        match parsed.error() {
            Some(error) => self.in_band(&error, parsed.usage().as_ref()),
            // A stream was asked for and something else came, or an object that answers nothing.
            None if self.prepared.request.facts().stream || parsed.facts().choices.is_empty() => self.garbage(),
            None => AttemptEnd::Whole { headers: answer.headers, answer: Box::new(parsed) },
        }
    }

    /// Reads a stream up to its first content.
    async fn peek(&self, client: &mut Client, until: Instant, answer: Answer) -> AttemptEnd {
        let mut peek = Peek {
            upstream: answer.body,
            decoder: Decoder::new(self.gateway.options.max_event.as_usize()),
            reader: StreamReader::new(self.prepared.request.facts().choices),
            held: Vec::new(),
            held_bytes: 0,
        };
        let idle = millis(self.prepared.model.deadlines.idle_ms);
        loop {
            match peek.read_events(self.gateway.options.max_preamble.as_usize()) {
                Seen::Nothing => {}
                Seen::Commit => return self.commit(answer.headers, peek),
                Seen::Error(error) => return self.in_band(&error, peek.reader.usage().as_ref()),
                Seen::EndedEarly => return self.ended_early(),
                Seen::Garbage => return self.garbage(),
            }
            let until = until.min(Instant::now() + idle);
            match self.guard(client, until, peek.upstream.next()).await {
                Ok(Some(Ok(bytes))) => peek.decoder.push(bytes),
                Ok(Some(Err(_))) => {
                    return AttemptEnd::Failed(self.fail(
                        &Happening::Broken { content_seen: false },
                        "provider_connection_lost",
                        "The provider's connection was lost before any content came.",
                    ));
                }
                Ok(None) => return self.closed_before_content(answer.headers, peek),
                Err(Interruption::ClientLeft) => return AttemptEnd::Abandoned,
                Err(Interruption::TimeIsUp) => return self.timed_out(),
            }
        }
    }

    fn ended_early(&self) -> AttemptEnd {
        AttemptEnd::Failed(self.fail(
            &Happening::EndedEarly { content_seen: false },
            "stream_incomplete",
            "The provider ended its stream before any content came.",
        ))
    }

    /// The stream closed in good order: whatever the decoder still holds is its last event.
    fn closed_before_content(&self, headers: HeaderMap, mut peek: Peek) -> AttemptEnd {
        let last = std::mem::replace(&mut peek.decoder, Decoder::new(0)).finish();
        if let Some(event) = last {
            let step = peek.reader.feed(&event);
            match step {
                StreamStep::Error(error) => return self.in_band(&error, peek.reader.usage().as_ref()),
                StreamStep::Chunk(_) => peek.held.push((event, step)),
                StreamStep::Quiet | StreamStep::Done | StreamStep::Garbage(_) => {}
            }
        }
        match peek.reader.state() {
            StreamState::Content | StreamState::Finished => self.commit(headers, peek),
            StreamState::Preamble => self.ended_early(),
        }
    }

    fn commit(&self, headers: HeaderMap, peek: Peek) -> AttemptEnd {
        let facts = self.prepared.request.facts();
        let provider_id = peek
            .reader
            .response_id()
            .filter(|id| id.len() <= MOST_ID_BYTES)
            .or_else(|| correlated(self.prepared.arrival.dialect, &headers));
        let editor = StreamEditor::new(&facts.model, &self.correlation, facts.wants_stream_usage());
        let opened = Opened {
            upstream: peek.upstream,
            decoder: peek.decoder,
            reader: peek.reader,
            held: peek.held,
            editor,
            dialect: self.prepared.arrival.dialect,
            request_id: Arc::clone(&self.prepared.arrival.request_id),
        };
        AttemptEnd::Opened { headers, opened: Box::new(opened), provider_id }
    }
}

/// A stream before its commitment.
struct Peek {
    upstream: AnswerBody,
    decoder: Decoder,
    reader: StreamReader,
    held: Vec<(Event, StreamStep)>,
    held_bytes: usize,
}

/// What the events so far come to.
enum Seen {
    Nothing,
    Commit,
    Error(InBandError),
    EndedEarly,
    Garbage,
}

impl Peek {
    /// Takes events until one decides. The decision depends on the bytes, never on how reads fell (O10).
    fn read_events(&mut self, max_preamble_bytes: usize) -> Seen {
        loop {
            let event = match self.decoder.next_event() {
                Ok(Some(event)) => event,
                Ok(None) => return Seen::Nothing,
                Err(_) => return Seen::Garbage,
            };
            let step = self.reader.feed(&event);
            match &step {
                StreamStep::Quiet => continue,
                StreamStep::Error(error) => return Seen::Error(error.clone()),
                StreamStep::Garbage(_) => return Seen::Garbage,
                StreamStep::Done if !self.reader.is_complete() => return Seen::EndedEarly,
                StreamStep::Done | StreamStep::Chunk(_) => {}
            }
            self.held_bytes += event.raw.len();
            self.held.push((event, step));
            let is_full = self.held_bytes > max_preamble_bytes || self.held.len() >= MOST_HELD_EVENTS;
            match self.reader.state() {
                StreamState::Content | StreamState::Finished => return Seen::Commit,
                StreamState::Preamble if is_full => return Seen::Commit,
                StreamState::Preamble => {}
            }
        }
    }
}

/// The path of the dialect below a provider's base URL.
const CHAT_PATH: &str = "/chat/completions";

/// The provider's id of a call, from its headers.
pub(crate) fn correlated(dialect: Dialect, headers: &HeaderMap) -> Option<String> {
    headers::correlation_headers(dialect)
        .iter()
        .find_map(|name| headers.get(*name)?.to_str().ok())
        .filter(|id| !id.is_empty() && id.len() <= MOST_ID_BYTES)
        .map(str::to_owned)
}

/// The longest provider id that is recorded.
pub(crate) const MOST_ID_BYTES: usize = 256;

fn retry_after(headers: &HeaderMap, now_ms: i64) -> Option<RetryAfter> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    RetryAfter::from_headers(text("retry-after-ms"), text("retry-after"), u64::try_from(now_ms).unwrap_or(0))
}

fn is_event_stream(headers: &HeaderMap) -> bool {
    headers
        .get(CONTENT_TYPE)
        .is_none_or(|value| value.as_bytes().to_ascii_lowercase().starts_with(b"text/event-stream"))
}

/// A whole body, or `None` when it breaks off or is larger than `most` bytes.
async fn collect(mut body: AnswerBody, most: usize) -> Option<Bytes> {
    let mut first: Option<Bytes> = None;
    let mut rest = BytesMut::new();
    while let Some(data) = body.next().await {
        let data = data.ok()?;
        if first.is_none() && rest.is_empty() {
            first = Some(data);
        } else {
            if let Some(start) = first.take() {
                rest.extend_from_slice(&start);
            }
            rest.extend_from_slice(&data);
        }
        if first.as_ref().map_or(rest.len(), Bytes::len) > most {
            return None;
        }
    }
    Some(first.unwrap_or_else(|| rest.freeze()))
}

pub(crate) fn millis(ms: i64) -> std::time::Duration {
    std::time::Duration::from_millis(u64::try_from(ms).unwrap_or(0))
}
