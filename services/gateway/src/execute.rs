//! The attempts of one request, under one deadline and one reservation.
//!
//! Each turn routes, marks the attempt where a kill cannot lose it (I14), and calls. Failing over is possible only
//! while no content was delivered, because only [`AttemptEnd::Failed`] leads back to the top (I4).

use std::sync::Arc;

use http::{HeaderMap, HeaderValue};
use tokio::time::Instant;

use weir_domain::attempt::{AttemptNumber, AttemptVerdict, Target};
use weir_domain::breaker::{CallOutcome, FailureCause, Permit};
use weir_domain::ids::{DeploymentId, ReservationId};
use weir_domain::money::Amounts;
use weir_domain::outcome::Outcome;
use weir_domain::quota::Reply;
use weir_domain::registry::Deployment;
use weir_domain::reservation::{Closing, Command, Decision, Refusal as CommandRefusal, UsageRecord};
use weir_domain::usage::UsageSource;
use weir_quota::Asked;
use weir_runtime::failpoint;
use weir_streams::Append;
use weir_wire::retry_after::RetryAfter;
use weir_wire::verdict::Blame;

use crate::attempt::{Attempt, AttemptEnd, Failure, millis};
use crate::client::Client;
use crate::deliver::{OpenedStream, elapsed_ms};
use crate::dialects;
use crate::drain::Drain;
use crate::estimate::Estimate;
use crate::headers::{X_WEIR_ATTEMPTS, X_WEIR_DEPLOYMENT, insert};
use crate::lifecycle::Prepared;
use crate::record::{CloseError, Record};
use crate::respond::{LimitRefusal, Refusal, Unavailable};
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
    pub(crate) fn with(outcome: Outcome, status: u16) -> Self {
        Self { outcome, open: None, deployment: None, status, code: None, chunks_delivered: 0 }
    }
}

/// One request's execution.
pub(crate) struct Execution<'a> {
    pub gateway: &'a Arc<Inner>,
    pub prepared: &'a mut Prepared,
    pub estimate: &'a Estimate,
    pub record: &'a mut Record,
    pub client: &'a mut Client,
    /// Attempts that nobody waits for and that are read on.
    pub drains: &'a mut Vec<Drain>,
}

/// What is carried from one attempt to the next.
#[derive(Default)]
pub(crate) struct Trail {
    pub tried: Vec<DeploymentId>,
    pub open: Option<(AttemptNumber, Closing)>,
    last: Option<Box<Failure>>,
    /// The shortest wait that any provider asked for: the smallest that gives hope (O40).
    retry_after: Option<RetryAfter>,
    may_have_cost: bool,
}

impl Trail {
    /// Of attempts after which a broken answer may go on.
    pub(crate) fn of_broken(tried: Vec<DeploymentId>, open: Option<(AttemptNumber, Closing)>) -> Self {
        Self { tried, open, may_have_cost: true, ..Self::default() }
    }

    /// Of an attempt that brought an answer which must not be shown.
    pub(crate) fn of_answered(deployment: DeploymentId, open: (AttemptNumber, Closing)) -> Self {
        Self { tried: vec![deployment], open: Some(open), may_have_cost: true, ..Self::default() }
    }
}

/// A marked attempt: the provider may be called now.
pub(crate) struct Marked {
    pub number: AttemptNumber,
    pub append: Append,
}

impl Execution<'_> {
    pub(crate) async fn run(&mut self) -> Ended {
        let deadlines = self.prepared.model.deadlines;
        let is_stream = self.prepared.request.facts().stream;
        let total_ms = if is_stream { deadlines.stream_total_ms } else { deadlines.plain_total_ms };
        let deadline = self.prepared.arrival.started + millis(total_ms);
        let status_after = self.gateway.options.status_after.duration();
        let status_at = (is_stream && !status_after.is_zero()).then(|| self.prepared.arrival.started + status_after);
        self.gateway.circuits.deposit(self.gateway.clock.now_ms());

        let mut trail = Trail::default();
        loop {
            if !trail.tried.is_empty() {
                failpoint::pass("failover.before_route").await;
            }
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
            let spoken = dialects::spoken(self.prepared.arrival.dialect, &deployment);
            let attempt = Attempt {
                gateway: self.gateway,
                prepared: self.prepared,
                estimate: self.estimate,
                deployment: &deployment,
                spoken,
                correlation: correlation(self.record.id(), marked.number),
                deadline,
                status_at,
            };
            let started = Instant::now();
            match attempt.run(self.client).await {
                AttemptEnd::Whole { headers, answer } => {
                    self.succeeded(&deployment, permit, started);
                    return self.deliver_whole(marked, &deployment, spoken, &headers, &answer).await;
                }
                AttemptEnd::Opened { headers, opened, provider_id } => {
                    let stream = OpenedStream { headers, spoken, opened, provider_id, permit, started, deadline };
                    return self.deliver_stream(marked, &deployment, stream).await;
                }
                AttemptEnd::Failed(mut failure) => {
                    self.failed(&deployment, permit, &failure);
                    self.abandon(marked.number, &deployment, spoken, failure.rest.take()).await;
                    if let Some(ended) = self.note_failure(&mut trail, &marked, &deployment, failure, deadline) {
                        return ended;
                    }
                }
                AttemptEnd::Abandoned(rest) => {
                    self.abandon(marked.number, &deployment, spoken, rest).await;
                    let now_ms = self.gateway.clock.now_ms();
                    self.gateway.circuits.record(&deployment.id, permit, CallOutcome::NotCounted, now_ms);
                    let counts_only = self.prepared.request.counts_only();
                    let closing = if counts_only { Closing::NotExecuted } else { Closing::MayHaveExecuted };
                    return Ended {
                        open: Some((marked.number, closing)),
                        deployment: Some(deployment.id.clone()),
                        ..Ended::with(Outcome::ClientCancelled, CLIENT_LEFT)
                    };
                }
            }
        }
    }

    /// Puts the attempt on record: in the store, and written to the log. A further execution must be covered first.
    pub(crate) async fn mark(&mut self, deployment: &Arc<Deployment>, trail: &mut Trail) -> Result<Marked, Refusal> {
        let number = self.record.next_attempt();
        let hold = self.estimate.of(&deployment.id).ok_or(Unavailable::Internal)?.hold;
        if let Some((previous, closing)) = trail.open.take() {
            let closed = self.record.close_attempt(previous, closing).await;
            accepted(closed.map_err(|error| match error {
                CloseError::Log(_) => Unavailable::Log,
                CloseError::Store(_) => Unavailable::Quota,
            })?)?;
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
            price: deployment.price.clone(),
        });
        let start = Command::StartAttempt { number, hold, target, previous: None };
        let asked = self.gateway.trust.ask();
        self.command(start.clone()).await?;
        failpoint::pass("mark.before_append").await;
        let append = self.record.append().ok_or(Unavailable::Internal)?;
        if append.written().await.is_err() {
            trail.open = Some((number, Closing::NotExecuted));
            return Err(Unavailable::Log.into());
        }
        failpoint::pass("mark.after_append").await;
        if let Err(refusal) = self.still_stands(&start, asked).await {
            trail.open = Some((number, Closing::NotExecuted));
            return Err(refusal);
        }
        Ok(Marked { number, append })
    }

    /// Asks the store again where its word is too old to call a provider on: it may have lost everything meanwhile, and
    /// been rebuilt without what was on its way to the log (I2, I15). `weir_quota::Trust` has the reasoning.
    async fn still_stands(&self, start: &Command, mut asked: Asked) -> Result<(), Refusal> {
        let mut tries = 0;
        while !self.gateway.trust.holds(asked) {
            tries += 1;
            if tries > MOST_DOUBTS {
                return Err(Unavailable::Quota.into());
            }
            asked = self.gateway.trust.ask();
            let reply = self.record.ask(start).await.map_err(|_| Unavailable::Quota)?;
            match reply.decision {
                Decision::Change(_) | Decision::NoChange(_) => {}
                Decision::Refused(_) | Decision::Denied(_) | Decision::Conflict(_) => {
                    return Err(Unavailable::Quota.into());
                }
            }
        }
        Ok(())
    }

    async fn command(&mut self, command: Command) -> Result<(), Refusal> {
        accepted(self.record.command(command).await.map_err(|_| Unavailable::Quota)?)
    }

    fn succeeded(&self, deployment: &Deployment, permit: Permit, started: Instant) {
        let outcome = CallOutcome::Succeeded { latency_ms: elapsed_ms(started) };
        self.gateway.circuits.record(&deployment.id, permit, outcome, self.gateway.clock.now_ms());
    }

    pub(crate) fn failed(&self, deployment: &Deployment, permit: Permit, failure: &Failure) {
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
            return self.refuse(trail, Unavailable::NoEligible { reason: reason.unwrap_or("no_deployment") }.into());
        };
        let refusal = Refusal::Relayed {
            status: last.judgement.status_for(self.prepared.arrival.dialect),
            error: Box::new(last.error),
            retry_after: trail.retry_after,
            may_have_cost: trail.may_have_cost,
        };
        self.refuse(trail, refusal)
    }

    pub(crate) fn refuse(&mut self, trail: Trail, refusal: Refusal) -> Ended {
        let outcome = if matches!(refusal, Refusal::Unavailable(Unavailable::NoEligible { .. })) {
            Outcome::NoEligible
        } else if trail.tried.is_empty() {
            Outcome::NoAttempt
        } else {
            Outcome::Exhausted
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
    pub(crate) fn closing(
        &self,
        deployment: &Deployment,
        verdict: AttemptVerdict,
        served_tier: Option<String>,
    ) -> Closing {
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

    pub(crate) fn weir_headers(&self, deployment: Option<&DeploymentId>) -> HeaderMap {
        let mut headers = HeaderMap::with_capacity(4);
        headers.insert(X_WEIR_ATTEMPTS, HeaderValue::from(self.record.next_attempt().saturating_sub(1)));
        if let Some(deployment) = deployment {
            insert(&mut headers, X_WEIR_DEPLOYMENT, deployment.as_str());
        }
        headers
    }
}

/// Weir's id of one call: sent where the provider keeps it, and the answer's own where the provider gives none.
pub(crate) fn correlation(reservation: ReservationId, number: AttemptNumber) -> String {
    format!("{reservation}-{number}")
}

fn accepted(reply: Reply) -> Result<(), Refusal> {
    match reply.decision {
        Decision::Change(_) | Decision::NoChange(_) => Ok(()),
        Decision::Denied(_) | Decision::Refused(CommandRefusal::NotCovered) => Err(LimitRefusal::NotCovered.into()),
        // The reconciler was first: stop before the provider.
        Decision::Refused(_) | Decision::Conflict(_) => Err(Unavailable::Internal.into()),
    }
}

/// How often the store is asked again before one call: rebuilds are seconds apart, and a store that takes seconds to
/// answer is none to rely on.
const MOST_DOUBTS: u32 = 3;

/// The status in logs of a request whose client left before an answer.
const CLIENT_LEFT: u16 = 499;

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
