//! One attempt: call a deployment, and wait for what decides (the whole answer of a plain request, the first content of
//! a stream).
//!
//! Headers are not the commitment: a provider that answers 200 and falls silent can still be replaced. Role, metadata
//! and comments are held back, bounded, until content comes. Everything that ends an attempt before that is judged by
//! `weir_wire::verdict` and leaves as a [`Failure`].

use std::sync::Arc;

use http::HeaderMap;
use http::header::CONTENT_TYPE;
use tokio::time::{Instant, sleep_until};

use weir_domain::attempt::AttemptVerdict;
use weir_domain::registry::{Deployment, OnAbandon};
use weir_providers::{Answer, AnswerBody, Call, CallError};
use weir_runtime::failpoint;
use weir_wire::envelope::{ClientError, Redaction, relayed_error, relayed_in_band};
use weir_wire::openai::chat::InBandError;
use weir_wire::retry_after::RetryAfter;
use weir_wire::usage::Extracted;
use weir_wire::verdict::{Happening, Judgement, ProviderRows, judge};
use weir_wire::{Dialect, ProviderAnswer, ProviderSide, Translator, headers};

use crate::call::{self, Unsent};
use crate::client::Client;
use crate::drain::{Calling, Gathering, Rest};
use crate::estimate::Estimate;
use crate::lifecycle::Prepared;
use crate::peek::{Fault, Peek, Seen};
use crate::relay::Opened;
use crate::server::Inner;
use crate::states::Names;

/// How much of a provider's error answer is read.
pub(crate) const MOST_ERROR_BYTES: usize = 256 * 1024;

/// What an attempt came to, before anything of it reached the client.
pub(crate) enum AttemptEnd {
    /// A plain answer, whole.
    Whole {
        headers: HeaderMap,
        answer: Box<ProviderAnswer>,
    },
    /// A stream with content, or one that finished without any.
    Opened {
        headers: HeaderMap,
        opened: Box<Opened>,
        provider_id: Option<String>,
    },
    Failed(Box<Failure>),
    /// The client left. The provider may be running it.
    Abandoned(Option<Rest>),
}

/// A judged end, with the error to show if it is the last.
pub(crate) struct Failure {
    pub judgement: Judgement,
    pub error: ClientError,
    /// A word for logs.
    pub what: &'static str,
    /// What its provider may still be sending, when its time was up.
    pub rest: Option<Rest>,
}

/// One attempt's surroundings.
pub(crate) struct Attempt<'a> {
    pub gateway: &'a Arc<Inner>,
    pub prepared: &'a Prepared,
    pub estimate: &'a Estimate,
    pub deployment: &'a Arc<Deployment>,
    /// In which the deployment is spoken to.
    pub spoken: Dialect,
    /// Our id for this call, sent where the provider keeps it.
    pub correlation: String,
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
        let answer = match self.ask(client, until, call).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => return AttemptEnd::Failed(self.call_failed(&error)),
            Err((interruption, rest)) => return self.interrupted(&interruption, rest),
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

    /// Makes the call. Only one that may be waited for in vain must be able to outlive this attempt.
    async fn ask(
        &self,
        client: &mut Client,
        until: Instant,
        call: Call,
    ) -> Result<Result<Answer, CallError>, (Interruption, Option<Rest>)> {
        if self.deployment.provider.on_abandon == OnAbandon::Close {
            let answered = self.guard(client, until, self.gateway.upstream.call(call)).await;
            return answered.map_err(|interruption| (interruption, None));
        }
        let gateway = Arc::clone(self.gateway);
        let mut calling: Calling = Box::pin(async move { gateway.upstream.call(call).await });
        let answered = self.guard(client, until, &mut calling).await;
        answered.map_err(|interruption| (interruption, Some(Rest::Calling(calling))))
    }

    fn interrupted(&self, interruption: &Interruption, rest: Option<Rest>) -> AttemptEnd {
        match interruption {
            Interruption::ClientLeft => AttemptEnd::Abandoned(rest),
            Interruption::TimeIsUp => {
                let mut failure = self.fail(
                    &Happening::TimedOut { content_seen: false },
                    "provider_timeout",
                    "The provider did not answer in time.",
                );
                failure.rest = rest;
                AttemptEnd::Failed(failure)
            }
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
        let unsent = |Unsent { what, message }| {
            let error = ClientError::new("server_error", "provider_misconfigured", message);
            Box::new(Failure { judgement: self.judge(&Happening::RequestUnsent), error, what, rest: None })
        };
        let upstream =
            self.estimate.upstream_request(&self.prepared.request, self.deployment, &self.correlation).map_err(
                // What a deployment cannot carry was found out before anything was owed.
                |_| unsent(Unsent { what: "not translated", message: "The request could not be translated." }),
            )?;
        call::call(self.gateway, self.prepared, self.deployment, self.spoken, &self.correlation, upstream)
            .map_err(unsent)
    }

    fn judge(&self, happening: &Happening<'_>) -> Judgement {
        let rows = if self.deployment.provider.bills_filtered_errors {
            ProviderRows::AzureOpenAi
        } else {
            ProviderRows::Plain
        };
        let judgement = judge(self.spoken, rows, happening);
        if self.prepared.request.counts_only() {
            // No model runs, whatever went wrong.
            return Judgement { verdict: AttemptVerdict::NotExecuted, ..judgement };
        }
        judgement
    }

    fn fail(&self, happening: &Happening<'_>, what: &'static str, message: &str) -> Box<Failure> {
        let judgement = self.judge(happening);
        let error = ClientError::new("server_error", what, message);
        Box::new(Failure { judgement, error, what, rest: None })
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

    /// An error status: its body tells what the provider bills, and what the client is told.
    async fn refused(&self, client: &mut Client, until: Instant, answer: Answer) -> AttemptEnd {
        let status = answer.status.as_u16();
        let retry_after = retry_after(&answer.headers, self.gateway.clock.now_ms());
        let mut body = Gathering::new(answer.body);
        let body = match self.guard(client, until, body.whole(MOST_ERROR_BYTES)).await {
            Ok(Some(body)) => body,
            Ok(None) | Err(Interruption::TimeIsUp) => {
                return AttemptEnd::Failed(self.fail(
                    &Happening::Broken { content_seen: false },
                    "provider_error",
                    "The provider's error answer broke off.",
                ));
            }
            Err(Interruption::ClientLeft) => return AttemptEnd::Abandoned(None),
        };
        let judgement = self.judge(&Happening::Status { status, body: &body, retry_after });
        let error = relayed_error(status, &body, &self.redaction());
        AttemptEnd::Failed(Box::new(Failure { judgement, error, what: "error status", rest: None }))
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
        AttemptEnd::Failed(Box::new(Failure { judgement, error, what: "error in the answer", rest: None }))
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
        let mut body = Gathering::new(answer.body);
        let whole = self.guard(client, until, body.whole(most)).await;
        let body = match whole {
            Ok(Some(body)) => body,
            Ok(None) => {
                return AttemptEnd::Failed(self.fail(
                    &Happening::Broken { content_seen: false },
                    "provider_connection_lost",
                    "The provider's answer broke off or is too large.",
                ));
            }
            Err(interruption) => return self.interrupted(&interruption, Some(Rest::Whole(body))),
        };
        let parsed = if self.prepared.request.counts_only() {
            ProviderAnswer::parse_count(body)
        } else {
            ProviderAnswer::parse(self.spoken, body)
        };
        let Ok(parsed) = parsed else { return self.garbage() };
        match parsed.error() {
            Some(error) => self.in_band(&error, parsed.usage().as_ref()),
            // A stream was asked for and something else came, or an object that answers nothing.
            None if self.prepared.request.facts().stream || !parsed.is_answer() => self.garbage(),
            None => AttemptEnd::Whole { headers: answer.headers, answer: Box::new(parsed) },
        }
    }

    /// Reads a stream up to its first content.
    async fn peek(&self, client: &mut Client, until: Instant, answer: Answer) -> AttemptEnd {
        let provider = ProviderSide {
            dialect: self.spoken,
            choices: self.prepared.request.facts().choices,
            max_event_bytes: self.gateway.options.max_event.as_usize(),
        };
        let ids = Names::of(self.spoken, &self.prepared.key, self.deployment);
        let client_side = self.prepared.client_side(&self.correlation, ids.as_ref());
        let Ok(stream) = Translator::new(&provider, &client_side) else {
            return self.garbage();
        };
        let (headers, mut upstream, mut peek) = (answer.headers, answer.body, Peek::new(stream));
        let idle = millis(self.prepared.model.deadlines.idle_ms);
        loop {
            match peek.read_events(self.gateway.options.max_preamble.as_usize()) {
                Seen::Nothing => {}
                Seen::Commit => return self.commit(headers, upstream, peek),
                Seen::Broken(fault) => return self.broken(&fault, &peek),
            }
            let until = until.min(Instant::now() + idle);
            match self.guard(client, until, upstream.next()).await {
                Ok(Some(Ok(bytes))) => peek.stream.push(bytes),
                Ok(Some(Err(_))) => {
                    return AttemptEnd::Failed(self.fail(
                        &Happening::Broken { content_seen: false },
                        "provider_connection_lost",
                        "The provider's connection was lost before any content came.",
                    ));
                }
                Ok(None) => match peek.close() {
                    Seen::Nothing | Seen::Commit => return self.commit(headers, upstream, peek),
                    Seen::Broken(fault) => return self.broken(&fault, &peek),
                },
                Err(interruption) => {
                    let provider_id = correlated(self.spoken, &headers);
                    let rest = Rest::Stream { upstream, stream: Box::new(peek.stream), provider_id };
                    return self.interrupted(&interruption, Some(rest));
                }
            }
        }
    }

    fn broken(&self, fault: &Fault, peek: &Peek) -> AttemptEnd {
        match fault {
            Fault::Error(error) => self.in_band(error, peek.stream.billed_usage().as_ref()),
            Fault::Garbage => self.garbage(),
            Fault::EndedEarly => AttemptEnd::Failed(self.fail(
                &Happening::EndedEarly { content_seen: false },
                "stream_incomplete",
                "The provider ended its stream before any content came.",
            )),
        }
    }

    fn commit(&self, headers: HeaderMap, upstream: AnswerBody, peek: Peek) -> AttemptEnd {
        let said = peek.stream.response_id().filter(|id| id.len() <= MOST_ID_BYTES);
        let provider_id = said.or_else(|| correlated(self.spoken, &headers));
        let opened = Opened {
            upstream,
            stream: peek.stream,
            held: peek.held,
            has_ended: peek.has_ended,
            dialect: self.prepared.arrival.dialect,
            request_id: Arc::clone(&self.prepared.arrival.request_id),
        };
        AttemptEnd::Opened { headers, opened: Box::new(opened), provider_id }
    }
}

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

pub(crate) fn is_event_stream(headers: &HeaderMap) -> bool {
    headers
        .get(CONTENT_TYPE)
        .is_none_or(|value| value.as_bytes().to_ascii_lowercase().starts_with(b"text/event-stream"))
}

pub(crate) fn millis(ms: i64) -> std::time::Duration {
    std::time::Duration::from_millis(u64::try_from(ms).unwrap_or(0))
}
