//! The attempts of one request, under one deadline and one reservation.
//!
//! Each turn routes, marks the attempt where a kill cannot lose it (I14), and calls. Failing over is possible only
//! while no content was delivered, because only [`AttemptEnd::Failed`] leads back to the top (I4).

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderValue, Response};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

use weir_domain::attempt::{AttemptNumber, AttemptVerdict, Target};
use weir_domain::breaker::{CallOutcome, FailureCause, Permit};
use weir_domain::ids::DeploymentId;
use weir_domain::money::Amounts;
use weir_domain::outcome::Outcome;
use weir_domain::registry::{Deadlines, Deployment};
use weir_domain::reservation::{Closing, Command, Decision, Refusal as CommandRefusal, UsageRecord};
use weir_domain::usage::UsageSource;
use weir_runtime::failpoint;
use weir_streams::Append;
use weir_wire::headers;
use weir_wire::openai::chat::{PlainAnswer, StreamReader};
use weir_wire::retry_after::RetryAfter;
use weir_wire::verdict::{Blame, Happening, ProviderRows, judge};

use crate::attempt::{Attempt, AttemptEnd, Failure, correlated, millis};
use crate::client::{Client, ClientBody};
use crate::estimate::Estimate;
use crate::lifecycle::Prepared;
use crate::record::Record;
use crate::relay::{BreakReason, Cut, Opened, Reins, RelayBody, RelayEnd, RelayOutcome};
use crate::respond::{Refusal, X_WEIR_ATTEMPTS, X_WEIR_DEPLOYMENT, X_WEIR_RESERVATION, insert};
use crate::route::route;
use crate::server::Inner;

/// How the execution ended: what `finalize` needs.
#[derive(Debug)]
pub(crate) struct Ended {
    pub outcome: Outcome,
    /// The attempt that is still open on the record, and how it closes.
    pub open: Option<(AttemptNumber, Closing)>,
    pub deployment: Option<DeploymentId>,
    /// What the client saw.
    pub status: u16,
    pub code: Option<String>,
    pub chunks_delivered: u64,
}

impl Ended {
    fn with(outcome: Outcome, status: u16) -> Self {
        Self { outcome, open: None, deployment: None, status, code: None, chunks_delivered: 0 }
    }
}

/// One request's execution.
pub(crate) struct Execution<'a> {
    pub gateway: &'a Arc<Inner>,
    pub prepared: &'a Prepared,
    pub estimate: &'a Estimate,
    pub record: &'a mut Record,
    pub client: &'a mut Client,
}

/// What is carried from one attempt to the next.
#[derive(Default)]
struct Trail {
    tried: Vec<DeploymentId>,
    open: Option<(AttemptNumber, Closing)>,
    last: Option<Box<Failure>>,
    /// The shortest wait that any provider asked for: the smallest that gives hope (O40).
    retry_after: Option<RetryAfter>,
    may_have_cost: bool,
}

/// A marked attempt: the provider may be called now.
struct Marked {
    number: AttemptNumber,
    append: Append,
}

impl Execution<'_> {
    pub(crate) async fn run(mut self) -> Ended {
        let deadlines = self.prepared.model.deadlines;
        let is_stream = self.prepared.request.facts().stream;
        let total_ms = if is_stream { deadlines.stream_total_ms } else { deadlines.plain_total_ms };
        let deadline = self.prepared.arrival.started + millis(total_ms);
        let status_after = self.gateway.options.status_after.duration();
        let status_at = (is_stream && !status_after.is_zero()).then(|| self.prepared.arrival.started + status_after);
        self.gateway.circuits.deposit(self.gateway.clock.now_ms());

        let mut trail = Trail::default();
        loop {
            let deployment = match route(self.gateway, self.prepared, self.estimate, &trail.tried) {
                Ok(deployment) => deployment,
                Err(reason) => return self.give_up(trail, reason.map(weir_domain::routing::Ineligible::as_str)),
            };
            let now_ms = self.gateway.clock.now_ms();
            if !trail.tried.is_empty() && !self.gateway.circuits.withdraw(now_ms) {
                return self.give_up(trail, Some("retry_budget"));
            }
            trail.tried.push(deployment.id.clone());
            let Some(permit) = self.gateway.circuits.admit(&deployment.id, now_ms) else { continue };
            let marked = match self.mark(&deployment, &mut trail).await {
                Ok(marked) => marked,
                Err(refusal) => {
                    self.gateway.circuits.record(&deployment.id, permit, CallOutcome::NotCounted, now_ms);
                    return self.refuse(trail, refusal);
                }
            };
            let attempt = Attempt {
                gateway: self.gateway,
                prepared: self.prepared,
                deployment: &deployment,
                correlation: format!("{}-{}", self.record.id(), marked.number),
                written_cap: self.estimate.written_cap,
                deadline,
                status_at,
            };
            let started = Instant::now();
            match attempt.run(self.client).await {
                AttemptEnd::Whole { headers, answer } => {
                    self.succeeded(&deployment, permit, started);
                    return self.deliver_whole(marked, &deployment, &headers, &answer).await;
                }
                AttemptEnd::Opened { headers, opened, provider_id } => {
                    let stream = OpenedStream { headers, opened, provider_id, permit, started, deadline };
                    return self.deliver_stream(marked, &deployment, stream).await;
                }
                AttemptEnd::Failed(failure) => {
                    self.failed(&deployment, permit, &failure);
                    if let Some(ended) = self.note_failure(&mut trail, &marked, &deployment, failure, deadline) {
                        return ended;
                    }
                }
                AttemptEnd::Abandoned => {
                    let now_ms = self.gateway.clock.now_ms();
                    self.gateway.circuits.record(&deployment.id, permit, CallOutcome::NotCounted, now_ms);
                    return Ended {
                        open: Some((marked.number, Closing::MayHaveExecuted)),
                        deployment: Some(deployment.id.clone()),
                        ..Ended::with(Outcome::ClientCancelled, CLIENT_LEFT)
                    };
                }
            }
        }
    }

    /// Puts the attempt on record: in the store, and written to the log. A further execution must be covered first.
    async fn mark(&mut self, deployment: &Arc<Deployment>, trail: &mut Trail) -> Result<Marked, Refusal> {
        let number = self.record.next_attempt();
        let hold = self.estimate.of(&deployment.id).ok_or(Refusal::Internal)?.hold;
        if let Some((previous, closing)) = trail.open.take() {
            self.command(Command::CloseAttempt { number: previous, closing }).await?;
        }
        let free = self.record.state().map_or(Amounts::ZERO, |state| state.free);
        if !hold.beyond(free).is_zero() {
            let limits = Arc::clone(&self.record.limits);
            self.command(Command::Extend { number, hold, limits }).await?;
        }
        let target = Arc::new(Target {
            deployment: deployment.id.clone(),
            provider: deployment.provider.id.clone(),
            upstream_model: deployment.upstream_model.clone(),
            provider_region: deployment.region.clone(),
        });
        self.command(Command::StartAttempt { number, hold, target, previous: None }).await?;
        failpoint::pass("mark.before_append").await;
        let append = self.record.append().ok_or(Refusal::Internal)?;
        if append.written().await.is_err() {
            trail.open = Some((number, Closing::NotExecuted));
            return Err(Refusal::LogUnavailable);
        }
        failpoint::pass("mark.after_append").await;
        Ok(Marked { number, append })
    }

    async fn command(&mut self, command: Command) -> Result<(), Refusal> {
        let reply = self.record.command(command).await.map_err(|_| Refusal::QuotaUnavailable)?;
        match reply.decision {
            Decision::Change(_) | Decision::NoChange(_) => Ok(()),
            Decision::Denied(_) | Decision::Refused(CommandRefusal::NotCovered) => Err(Refusal::NotCovered),
            // The reconciler was first: stop before the provider.
            Decision::Refused(_) | Decision::Conflict(_) => Err(Refusal::Internal),
        }
    }

    fn succeeded(&self, deployment: &Deployment, permit: Permit, started: Instant) {
        let latency_ms = i64::try_from(started.elapsed().as_millis()).unwrap_or(i64::MAX);
        let outcome = CallOutcome::Succeeded { latency_ms };
        self.gateway.circuits.record(&deployment.id, permit, outcome, self.gateway.clock.now_ms());
    }

    fn failed(&self, deployment: &Deployment, permit: Permit, failure: &Failure) {
        let outcome = call_outcome(failure);
        self.gateway.circuits.record(&deployment.id, permit, outcome, self.gateway.clock.now_ms());
        self.gateway.metrics.attempt_failed(&deployment.id, failure.what);
    }

    /// Decides whether another deployment may be asked; `Some` ends the request.
    fn note_failure(
        &mut self,
        trail: &mut Trail,
        marked: &Marked,
        deployment: &Deployment,
        failure: Box<Failure>,
        deadline: Instant,
    ) -> Option<Ended> {
        let verdict = &failure.judgement.verdict;
        trail.may_have_cost |= *verdict != AttemptVerdict::NotExecuted;
        trail.open = Some((marked.number, self.closing(deployment, verdict.clone(), None)));
        trail.retry_after = match (trail.retry_after, failure.judgement.retry_after) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        let may_go_on = failure.judgement.may_fail_over
            && marked.number < self.prepared.model.max_attempts
            && Instant::now() < deadline;
        trail.last = Some(failure);
        if may_go_on { None } else { Some(self.give_up(std::mem::take(trail), None)) }
    }

    /// Nothing more to try: the last failure is the answer, or the reason why nothing was eligible at all.
    fn give_up(&mut self, mut trail: Trail, reason: Option<&'static str>) -> Ended {
        let Some(last) = trail.last.take() else {
            return self.refuse(trail, Refusal::NoEligible { reason: reason.unwrap_or("no_deployment") });
        };
        let refusal = Refusal::Relayed {
            status: last.judgement.client_status,
            error: Box::new(last.error),
            retry_after: trail.retry_after,
            may_have_cost: trail.may_have_cost,
        };
        self.refuse(trail, refusal)
    }

    fn refuse(&mut self, trail: Trail, refusal: Refusal) -> Ended {
        let outcome = match &refusal {
            Refusal::NoEligible { .. } => Outcome::NoEligible,
            _ if trail.tried.is_empty() => Outcome::NoAttempt,
            _ => Outcome::Exhausted,
        };
        let headers = self.weir_headers(trail.tried.last());
        let ended = Ended {
            open: trail.open,
            deployment: trail.tried.last().cloned(),
            code: Some(refusal.code()),
            ..Ended::with(outcome, refusal.status())
        };
        self.client.refuse(&refusal, headers);
        ended
    }

    /// How an attempt closes, priced at the version that was locked (I10). Usage that has no price is not zero: it stays
    /// held until a person looks (O20).
    fn closing(&self, deployment: &Deployment, verdict: AttemptVerdict, served_tier: Option<String>) -> Closing {
        let usage = match verdict {
            AttemptVerdict::NotExecuted => return Closing::NotExecuted,
            AttemptVerdict::MayHaveExecuted => return Closing::MayHaveExecuted,
            AttemptVerdict::ExecutedUsageUnknown => return Closing::ExecutedUsageUnknown,
            AttemptVerdict::Executed(usage) => usage,
        };
        let Some(estimate) = self.estimate.of(&deployment.id) else { return Closing::ExecutedUsageUnknown };
        match estimate.price.charge(&usage, served_tier.as_deref()) {
            Ok(usd) => Closing::Executed(Arc::new(UsageRecord {
                charge: Amounts { requests: 0, tokens: usage.tokens(), usd },
                usage,
                source: UsageSource::Response,
                price_version: self.prepared.snapshot.prices.version().clone(),
                served_tier,
                cause: String::new(),
            })),
            Err(error) => {
                tracing::error!(reservation_id = %self.record.id(), deployment = %deployment.id, %error, "usage has no price");
                Closing::ExecutedUsageUnknown
            }
        }
    }

    fn weir_headers(&self, deployment: Option<&DeploymentId>) -> HeaderMap {
        let mut headers = HeaderMap::with_capacity(4);
        insert(&mut headers, X_WEIR_RESERVATION, &self.record.id().to_string());
        headers.insert(X_WEIR_ATTEMPTS, HeaderValue::from(self.record.next_attempt().saturating_sub(1)));
        if let Some(deployment) = deployment {
            insert(&mut headers, X_WEIR_DEPLOYMENT, deployment.as_str());
        }
        headers
    }

    fn answer_headers(&self, deployment: &Deployment, provider: &HeaderMap) -> HeaderMap {
        let mut headers = self.weir_headers(Some(&deployment.id));
        let sent = crate::respond::texts(provider);
        for (name, value) in headers::response_headers(self.prepared.arrival.dialect, sent) {
            insert(&mut headers, http::HeaderName::from_static(name), value);
        }
        headers
    }

    async fn deliver_whole(
        &mut self,
        marked: Marked,
        deployment: &Arc<Deployment>,
        provider: &HeaderMap,
        answer: &PlainAnswer,
    ) -> Ended {
        let dialect = self.prepared.arrival.dialect;
        let usage = answer.usage().and_then(|extracted| extracted.usage);
        let verdict = usage.map_or(AttemptVerdict::ExecutedUsageUnknown, AttemptVerdict::Executed);
        let closing = self.closing(deployment, verdict, answer.served_tier());
        if let Some(provider_id) = answer.response_id().or_else(|| correlated(dialect, provider)) {
            self.correlate(marked.number, provider_id).await;
        }
        let open = Some((marked.number, closing));
        let deployment_id = Some(deployment.id.clone());
        // No client sees content before the attempt is durable (I14).
        if marked.append.durable().await.is_err() {
            let trail = Trail { tried: vec![deployment.id.clone()], open, may_have_cost: true, ..Trail::default() };
            return self.refuse(trail, Refusal::LogUnavailable);
        }
        failpoint::pass("relay.before_content").await;
        let mut response = Response::new(ClientBody::whole(answer.for_client(&self.prepared.request.facts().model)));
        *response.headers_mut() = self.answer_headers(deployment, provider);
        let outcome = if self.client.answer(response) { Outcome::Complete } else { Outcome::ClientCancelled };
        Ended { open, deployment: deployment_id, chunks_delivered: 1, ..Ended::with(outcome, 200) }
    }

    /// Records the provider's own id, by which its reports name the call. Losing it loses a convenience, no money.
    async fn correlate(&mut self, number: AttemptNumber, provider_id: String) {
        if let Err(error) = self.record.command(Command::Correlate { number, provider_id }).await {
            tracing::warn!(reservation_id = %self.record.id(), %error, "provider id not recorded");
        }
    }

    async fn deliver_stream(&mut self, marked: Marked, deployment: &Arc<Deployment>, stream: OpenedStream) -> Ended {
        if let Some(provider_id) = stream.provider_id.clone() {
            self.correlate(marked.number, provider_id).await;
        }
        if marked.append.durable().await.is_err() {
            let now_ms = self.gateway.clock.now_ms();
            self.gateway.circuits.record(&deployment.id, stream.permit, CallOutcome::NotCounted, now_ms);
            let open = Some((marked.number, Closing::ExecutedUsageUnknown));
            let trail = Trail { tried: vec![deployment.id.clone()], open, may_have_cost: true, ..Trail::default() };
            return self.refuse(trail, Refusal::LogUnavailable);
        }
        // The provider's id is worth a record of its own: after a crash it is what a report can be matched by.
        let _append = self.record.append();
        failpoint::pass("relay.before_content").await;
        let headers = self.answer_headers(deployment, &stream.headers);
        let (body, reins, end) = RelayBody::new(*stream.opened);
        self.client.stream(headers, body);
        let end = self.watch(&reins, end, stream.deadline).await;
        failpoint::pass("relay.after_end").await;
        self.stream_ended(marked.number, deployment, stream.permit, stream.started, end).await
    }

    /// Holds the timers of a committed stream until it ends.
    async fn watch(&self, reins: &Reins, mut end: oneshot::Receiver<RelayEnd>, deadline: Instant) -> Option<RelayEnd> {
        let deadlines = self.prepared.model.deadlines;
        let ping_every = self.gateway.options.keep_alive_every.duration();
        loop {
            let alarm = next_alarm(reins, &deadlines, ping_every, deadline);
            tokio::select! {
                biased;
                end = &mut end => return end.ok(),
                () = sleep(alarm) => self.tend(reins, &deadlines, ping_every, deadline),
            }
        }
    }

    fn tend(&self, reins: &Reins, deadlines: &Deadlines, ping_every: Duration, deadline: Instant) {
        let progress = reins.progress();
        if progress.stalled_for.is_some_and(|stalled| stalled >= millis(deadlines.write_stall_ms)) {
            // hyper polls no body on a blocked socket: only the connection itself can be ended.
            if let Some(connection) = &self.prepared.arrival.connection {
                connection.reset();
            }
        } else if progress.is_finished && progress.since_read >= millis(deadlines.usage_after_finish_ms) {
            reins.cut(Cut::EnoughWaited);
        } else if Instant::now() >= deadline {
            reins.cut(Cut::DeadlineExceeded);
        } else if progress.since_read >= millis(deadlines.idle_ms) && progress.stalled_for.is_none() {
            reins.cut(Cut::ReadTimeout);
        } else if !ping_every.is_zero() && progress.since_read >= ping_every {
            reins.ping();
        }
    }

    async fn stream_ended(
        &mut self,
        number: AttemptNumber,
        deployment: &Arc<Deployment>,
        permit: Permit,
        started: Instant,
        end: Option<RelayEnd>,
    ) -> Ended {
        let now_ms = self.gateway.clock.now_ms();
        let base = Ended { deployment: Some(deployment.id.clone()), ..Ended::with(Outcome::ClientCancelled, 200) };
        let Some(end) = end else {
            // The body vanished without a word, which its Drop forbids; what may have executed stays held all the same.
            self.gateway.circuits.record(&deployment.id, permit, CallOutcome::NotCounted, now_ms);
            return Ended { open: Some((number, Closing::ExecutedUsageUnknown)), ..base };
        };
        let (outcome, call) = match &end.outcome {
            RelayOutcome::Complete => (Outcome::Complete, CallOutcome::Succeeded { latency_ms: elapsed_ms(started) }),
            RelayOutcome::Broke(_) => (
                Outcome::FailedMidstream,
                CallOutcome::Failed { cause: FailureCause::ServerError, retry_after_ms: None },
            ),
            RelayOutcome::ClientLeft => (Outcome::ClientCancelled, CallOutcome::NotCounted),
        };
        self.gateway.circuits.record(&deployment.id, permit, call, now_ms);
        let verdict = self.stream_verdict(deployment, &end);
        if !matches!(verdict, AttemptVerdict::Executed(_)) {
            self.free_and_tighten(number, deployment, &end.reader).await;
        }
        let closing = self.closing(deployment, verdict, end.reader.served_tier());
        let code = match &end.outcome {
            RelayOutcome::Broke(reason) => Some(reason.as_str().to_owned()),
            RelayOutcome::Complete | RelayOutcome::ClientLeft => None,
        };
        Ended { outcome, open: Some((number, closing)), code, chunks_delivered: end.chunks_delivered, ..base }
    }

    fn stream_verdict(&self, deployment: &Deployment, end: &RelayEnd) -> AttemptVerdict {
        let usage = end.reader.usage();
        if let RelayOutcome::Broke(BreakReason::UpstreamInBandError(error)) = &end.outcome {
            let rows =
                if deployment.provider.bills_filtered_errors { ProviderRows::AzureOpenAi } else { ProviderRows::Plain };
            let happening = Happening::InBand { error, usage: usage.as_ref(), content_seen: true };
            return judge(self.prepared.arrival.dialect, rows, &happening).verdict;
        }
        // Before every choice has finished a usage is a bound, not a bill (I7).
        let is_final = end.reader.is_complete();
        match usage.and_then(|extracted| extracted.usage) {
            Some(usage) if is_final => AttemptVerdict::Executed(usage),
            Some(_) | None => AttemptVerdict::ExecutedUsageUnknown,
        }
    }

    /// What waits for a report gives its slot back at once, and its hold as far as partial usage bounds it.
    async fn free_and_tighten(&mut self, number: AttemptNumber, deployment: &Deployment, reader: &StreamReader) {
        let mut commands = vec![Command::FreeSlot];
        let partial = reader.usage().and_then(|extracted| extracted.usage);
        let estimate = self.estimate.of(&deployment.id);
        if let (Some(partial), Some(estimate)) = (partial, estimate)
            && let Some(hold) = estimate.tightened_by(&partial)
        {
            commands.push(Command::Tighten { number, hold });
        }
        for command in commands {
            if let Err(error) = self.record.command(command).await {
                tracing::warn!(reservation_id = %self.record.id(), %error, "slot or bound not recorded");
            }
        }
    }
}

/// A stream that may be handed to the client.
struct OpenedStream {
    headers: HeaderMap,
    opened: Box<Opened>,
    provider_id: Option<String>,
    permit: Permit,
    started: Instant,
    deadline: Instant,
}

/// The status in logs of a request whose client left before an answer.
const CLIENT_LEFT: u16 = 499;

fn elapsed_ms(started: Instant) -> i64 {
    i64::try_from(started.elapsed().as_millis()).unwrap_or(i64::MAX)
}

/// When to look at a stream again: at the earliest moment at which one of its bounds could be reached.
fn next_alarm(reins: &Reins, deadlines: &Deadlines, ping_every: Duration, deadline: Instant) -> Duration {
    let progress = reins.progress();
    let left = |bound: Duration, used: Duration| bound.saturating_sub(used);
    let mut alarm = left(millis(deadlines.idle_ms), progress.since_read).min(deadline - Instant::now());
    if progress.is_finished {
        alarm = alarm.min(left(millis(deadlines.usage_after_finish_ms), progress.since_read));
    } else {
        // The finish may come at any time: look often enough to wait no longer than promised after it.
        alarm = alarm.min(millis(deadlines.usage_after_finish_ms));
    }
    if let Some(stalled) = progress.stalled_for {
        alarm = alarm.min(left(millis(deadlines.write_stall_ms), stalled));
    }
    if !ping_every.is_zero() {
        alarm = alarm.min(ping_every);
    }
    alarm.max(SHORTEST_ALARM)
}

/// A bound that was just reached is acted on at the next look, never in a busy loop.
const SHORTEST_ALARM: Duration = Duration::from_millis(5);

fn call_outcome(failure: &Failure) -> CallOutcome {
    let retry_after_ms = failure.judgement.retry_after.map(|wait| i64::try_from(wait.as_ms()).unwrap_or(i64::MAX));
    let cause = match failure.judgement.blame {
        Blame::Client => return CallOutcome::NotCounted,
        Blame::RateLimited | Blame::QuotaExhausted => FailureCause::RateLimited,
        Blame::Overloaded => FailureCause::Overloaded,
        Blame::Configuration => FailureCause::ServerError,
        Blame::Provider if failure.judgement.client_status == 504 => FailureCause::TimedOut,
        Blame::Provider => FailureCause::ServerError,
    };
    CallOutcome::Failed { cause, retry_after_ms }
}
