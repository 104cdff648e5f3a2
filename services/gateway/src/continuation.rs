//! Going on with a stream that broke after its first content, where the model's policy says so (`stream_failure`).
//!
//! The body that hyper polls keeps what the client has, and at a break waits instead of ending. The task that owns the
//! money closes the broken attempt, chooses another deployment by all the rules of a first one, has it admitted (its own
//! hold), and hands its stream over; the body makes it the rest of the first, with a mark at the seam. Whatever fails on
//! the way, the client is told of the first break (O12). A client that leaves meanwhile ends it all.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::BytesMut;
use tokio::sync::oneshot;
use tokio::time::Instant;

use weir_domain::attempt::AttemptNumber;
use weir_domain::breaker::{CallOutcome, Permit};
use weir_domain::ids::DeploymentId;
use weir_domain::outcome::Outcome;
use weir_domain::registry::{BreakTrigger, Deployment, OnBreak};
use weir_domain::reservation::Closing;
use weir_wire::continuation::{Delivered, Form, Seam, Stitch};
use weir_wire::envelope::{Break, stream_error_event};
use weir_wire::request::{Limits, ResponseFormat};
use weir_wire::verdict::{Happening, ProviderRows, judge};
use weir_wire::{ClientRequest, Dialect};

use crate::attempt::{Attempt, AttemptEnd};
use crate::course::{BreakReason, stream_error};
use crate::deliver::Committed;
use crate::dialects::spoken;
use crate::estimate::{Estimate, estimate};
use crate::execute::{Ended, Execution, Marked, Trail, correlation};
use crate::lifecycle::Prepared;
use crate::relay::{Opened, Reins, RelayEnd};
use crate::route::route;

/// The most text that is sent along for a continuation: what fits any model's context by far.
const MOST_TEXT_BYTES: usize = 1 << 20;

/// What a body keeps of a stream that may be gone on with.
#[derive(Debug)]
pub(crate) struct Going {
    dialect: Dialect,
    triggers: Vec<BreakTrigger>,
    /// Attempts that may still be made.
    left: u16,
    max_event_bytes: usize,
    delivered: Delivered,
    stitch: Option<Stitch>,
    /// Events with content, of the streams that broke.
    chunks: u64,
    first_break: Option<BreakReason>,
    rest: Option<oneshot::Receiver<Box<Resume>>>,
}

/// A stream that broke and may be gone on with.
#[derive(Debug)]
pub(crate) struct Broken {
    reason: BreakReason,
    /// What the client has.
    text: String,
    left: u16,
    /// The body waits for it; dropping it ends the stream with the error.
    resume: oneshot::Sender<Box<Resume>>,
}

/// The stream of another deployment, to become the rest.
pub(crate) struct Resume {
    opened: Box<Opened>,
    end: oneshot::Sender<RelayEnd>,
    attempt: AttemptNumber,
    deployment: DeploymentId,
    left: u16,
}

impl std::fmt::Debug for Resume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resume").field("attempt", &self.attempt).finish_non_exhaustive()
    }
}

impl Going {
    /// `None` where policy, or what was asked for, leaves nothing to go on with.
    pub(crate) fn of(prepared: &Prepared, max_event_bytes: usize) -> Option<Box<Self>> {
        let OnBreak::Continue { on, most } = &prepared.model.on_break else { return None };
        let facts = prepared.request.facts();
        if facts.choices > 1 || facts.response_format != ResponseFormat::Text {
            return None;
        }
        let dialect = prepared.arrival.dialect;
        Some(Box::new(Self {
            dialect,
            triggers: on.clone(),
            left: *most,
            max_event_bytes,
            delivered: Delivered::new(dialect, MOST_TEXT_BYTES, max_event_bytes)?,
            stitch: None,
            chunks: 0,
            first_break: None,
            rest: None,
        }))
    }

    /// Events of the first stream that were written already.
    pub(crate) fn delivered(&mut self, written: &[u8]) {
        self.delivered.observe(written);
    }

    /// Appends events to what the client gets.
    pub(crate) fn take(&mut self, piece: &[u8], out: &mut BytesMut) {
        let start = out.len();
        match &mut self.stitch {
            Some(stitch) => stitch.write(piece, out),
            None => out.extend_from_slice(piece),
        }
        self.delivered.observe(&out[start..]);
    }

    /// Whether somebody may go on after `reason`; the body waits then.
    pub(crate) fn broke(&mut self, reason: &BreakReason, chunks: u64) -> Option<Broken> {
        self.chunks += chunks;
        // What the client is told in the end; whether to try again depends on the last.
        self.first_break.get_or_insert_with(|| reason.clone());
        let text = self.delivered.continuable()?.to_owned();
        let is_triggered = trigger(reason).is_some_and(|trigger| self.triggers.contains(&trigger));
        if !is_triggered || self.left == 0 || self.chunks == 0 {
            return None;
        }
        let (resume, rest) = oneshot::channel();
        self.rest = Some(rest);
        Some(Broken { reason: reason.clone(), text, left: self.left, resume })
    }

    pub(crate) const fn waits(&self) -> bool {
        self.rest.is_some()
    }

    /// What came of the wait: another stream, or nothing.
    pub(crate) fn poll_rest(&mut self, cx: &mut Context<'_>) -> Poll<Option<(Box<Opened>, oneshot::Sender<RelayEnd>)>> {
        let Some(rest) = &mut self.rest else { return Poll::Pending };
        let Poll::Ready(resume) = Pin::new(rest).poll(cx) else { return Poll::Pending };
        self.rest = None;
        let Ok(resume) = resume else { return Poll::Ready(None) };
        let Resume { opened, end, attempt, deployment, left } = *resume;
        let reason = self.first_break.as_ref().map_or("", BreakReason::as_str);
        let seam = Seam { reason, attempt, deployment: deployment.as_str() };
        self.stitch = Some(Stitch::new(&self.delivered, seam, self.max_event_bytes));
        self.left = left;
        Poll::Ready(Some((opened, end)))
    }

    /// Appends the error event that tells of the first break.
    pub(crate) fn fail(&self, request_id: &str, out: &mut BytesMut) {
        let Some(reason) = &self.first_break else { return };
        let broken = Break { reason: reason.as_str(), chunks_delivered: self.chunks, request_id, sequence_number: 0 };
        out.extend_from_slice(&stream_error_event(self.dialect, &stream_error(reason), &broken));
    }
}

/// What of the policy's words a break is; running out of time is none.
const fn trigger(reason: &BreakReason) -> Option<BreakTrigger> {
    match reason {
        BreakReason::TransportError | BreakReason::StreamIncomplete => Some(BreakTrigger::TransportError),
        BreakReason::ReadTimeout => Some(BreakTrigger::ReadTimeout),
        BreakReason::UpstreamDecodeError => Some(BreakTrigger::UpstreamDecodeError),
        BreakReason::UpstreamInBandError(_) => Some(BreakTrigger::UpstreamInBandError),
        BreakReason::DeadlineExceeded => None,
    }
}

/// A deployment that may go on, with what it is sent and what that may cost.
struct Next {
    deployment: Arc<Deployment>,
    request: ClientRequest,
    estimate: Estimate,
    permit: Permit,
}

/// What stays the same from one attempt to go on to the next, and how many may follow.
struct Way {
    left: u16,
    reins: Arc<Reins>,
    deadline: Instant,
}

/// A call that was made.
struct Call {
    deployment: Arc<Deployment>,
    permit: Permit,
    started: Instant,
}

impl Execution<'_> {
    /// Goes on with a stream that broke; `ended` is how it ends if nobody can.
    pub(crate) async fn go_on(
        &mut self,
        mut ended: Ended,
        broken: Broken,
        reins: Arc<Reins>,
        deadline: Instant,
    ) -> Ended {
        let Broken { reason, text, mut left, resume } = broken;
        self.client.broke(resume);
        let attempts = self.record.state().map(|state| state.attempts.as_slice()).unwrap_or_default();
        let tried = attempts.iter().filter_map(|attempt| Some(attempt.target.as_ref()?.deployment.clone())).collect();
        let mut trail = Trail::of_broken(tried, ended.open.take());
        let original = self.prepared.request.clone();
        while left > 0 && self.is_worth_it(&reason, ended.deployment.as_ref()) && Instant::now() < deadline {
            left -= 1;
            let Some(next) = self.next(&original, &text, &trail) else { break };
            trail.tried.push(next.deployment.id.clone());
            let way = Way { left, reins: Arc::clone(&reins), deadline };
            if let Some(ended) = self.try_on(next, &mut trail, way).await {
                return ended;
            }
        }
        self.gateway.metrics.continued("failed");
        self.client.give_up_the_rest();
        Ended { open: trail.open, ..ended }
    }

    /// Whether another target might do better. What the provider says is the client's own fault is so everywhere.
    fn is_worth_it(&self, reason: &BreakReason, deployment: Option<&DeploymentId>) -> bool {
        let BreakReason::UpstreamInBandError(error) = reason else { return true };
        let Some(deployment) = deployment.and_then(|id| self.prepared.snapshot.deployments.get(id)) else {
            return false;
        };
        let happening = Happening::InBand { error, usage: None, content_seen: false };
        let spoken = spoken(self.prepared.arrival.dialect, deployment);
        judge(spoken, ProviderRows::Plain, &happening).may_fail_over
    }

    /// The best deployment that is left, filtered as for a first attempt (I5), with the form of the request that it takes.
    fn next(&mut self, original: &ClientRequest, text: &str, trail: &Trail) -> Option<Next> {
        let limits = Limits::default();
        self.prepared.request = original.going_on(text, Form::Instruction, &limits)?;
        let told = self.estimate_anew()?;
        let deployment = route(self.gateway, self.prepared, &told, &trail.tried).ok()?;
        let estimate = if deployment.accepts_prefill {
            self.prepared.request = original.going_on(text, Form::Prefill, &limits)?;
            self.estimate_anew()?
        } else {
            told
        };
        let now_ms = self.gateway.clock.now_ms();
        let permit =
            self.gateway.circuits.withdraw(now_ms).then(|| self.gateway.circuits.admit(&deployment.id, now_ms))??;
        Some(Next { deployment, request: self.prepared.request.clone(), estimate, permit })
    }

    fn estimate_anew(&self) -> Option<Estimate> {
        let Prepared { snapshot, key, model, request, arrival, .. } = &*self.prepared;
        let ratio = self.gateway.options.tokens_per_kilobyte;
        estimate(snapshot, key, model, request, None, ratio, arrival.received_ms).ok()
    }

    /// One attempt to go on. `None`: it failed before its content, and is open on the trail.
    async fn try_on(&mut self, next: Next, trail: &mut Trail, way: Way) -> Option<Ended> {
        let Next { deployment, request, estimate, permit } = next;
        self.prepared.request = request;
        let gateway = self.gateway;
        let not_counted = |permit| {
            gateway.circuits.record(&deployment.id, permit, CallOutcome::NotCounted, gateway.clock.now_ms());
        };
        let mut execution = Execution {
            gateway,
            prepared: &mut *self.prepared,
            estimate: &estimate,
            record: &mut *self.record,
            client: &mut *self.client,
            drains: &mut *self.drains,
        };
        // A hold of its own, or no continuation.
        let Ok(marked) = execution.mark(&deployment, trail).await else {
            not_counted(permit);
            return None;
        };
        let number = marked.number;
        let spoken = spoken(execution.prepared.arrival.dialect, &deployment);
        let attempt = Attempt {
            gateway,
            prepared: &*execution.prepared,
            estimate: &estimate,
            deployment: &deployment,
            spoken,
            correlation: correlation(execution.record.id(), number),
            deadline: way.deadline,
            status_at: None,
        };
        let started = Instant::now();
        match attempt.run(execution.client).await {
            AttemptEnd::Opened { opened, provider_id, .. } => {
                let call = Call { deployment: Arc::clone(&deployment), permit, started };
                match execution.hand_over(marked, call, *opened, provider_id, way).await {
                    Ok(ended) => Some(ended),
                    Err(closing) => {
                        trail.open = Some((number, closing));
                        None
                    }
                }
            }
            AttemptEnd::Failed(mut failure) => {
                execution.failed(&deployment, permit, &failure);
                execution.abandon(number, &deployment, spoken, failure.rest.take()).await;
                let verdict = failure.judgement.verdict.clone();
                trail.open = Some((number, execution.closing(&deployment, verdict, None)));
                None
            }
            AttemptEnd::Abandoned(rest) => {
                execution.abandon(number, &deployment, spoken, rest).await;
                not_counted(permit);
                Some(cancelled(&deployment, (number, Closing::MayHaveExecuted)))
            }
            // A stream was asked for, and `Attempt` takes nothing else for one.
            AttemptEnd::Whole { .. } => {
                not_counted(permit);
                trail.open = Some((number, Closing::ExecutedUsageUnknown));
                None
            }
        }
    }

    /// Gives the stream of another deployment to the body that waits, durable before it is seen (I14), and stays with it.
    /// `Err`: how the attempt closes whose stream could not be shown.
    async fn hand_over(
        &mut self,
        marked: Marked,
        call: Call,
        opened: Opened,
        provider_id: Option<String>,
        way: Way,
    ) -> Result<Ended, Closing> {
        let Call { deployment, permit, started } = call;
        let Way { left, reins, deadline } = way;
        let number = marked.number;
        if let Some(provider_id) = provider_id {
            self.correlate(number, provider_id).await;
        }
        let is_durable = marked.append.durable().await.is_ok();
        let _append = self.record.append();
        let (sender, end) = oneshot::channel();
        let resume =
            Resume { opened: Box::new(opened), end: sender, attempt: number, deployment: deployment.id.clone(), left };
        if is_durable && self.client.resume(resume) {
            self.gateway.metrics.continued("recovered");
            let committed = Committed { number, deployment, permit, started, reins, end, deadline };
            return Ok(self.see_through(committed).await);
        }
        let now_ms = self.gateway.clock.now_ms();
        self.gateway.circuits.record(&deployment.id, permit, CallOutcome::NotCounted, now_ms);
        if is_durable {
            Ok(cancelled(&deployment, (number, Closing::ExecutedUsageUnknown)))
        } else {
            Err(Closing::ExecutedUsageUnknown)
        }
    }
}

/// The client left while the stream was between two deployments.
fn cancelled(deployment: &Deployment, open: (AttemptNumber, Closing)) -> Ended {
    Ended { open: Some(open), deployment: Some(deployment.id.clone()), ..Ended::with(Outcome::ClientCancelled, 200) }
}
