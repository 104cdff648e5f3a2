//! The last attempt's answer on its way to the client: whole, or as a stream whose timers are held here.
//!
//! From here on there is no other attempt (I4). Nothing leaves before the attempt is durable on the log (I14).

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Response};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

use weir_domain::attempt::{AttemptNumber, AttemptVerdict};
use weir_domain::breaker::{CallOutcome, FailureCause, Permit};
use weir_domain::outcome::Outcome;
use weir_domain::registry::{Deadlines, Deployment};
use weir_domain::reservation::{Closing, Command};
use weir_runtime::failpoint;
use weir_wire::envelope::ClientError;
use weir_wire::verdict::{Happening, ProviderRows, judge};
use weir_wire::{Dialect, ProviderAnswer, StreamFacts, headers};

use crate::attempt::{MOST_ID_BYTES, correlated, millis};
use crate::client::ClientBody;
use crate::continuation::Going;
use crate::course::{BreakReason, RelayOutcome};
use crate::execute::{Ended, Execution, Marked, Trail, correlation};
use crate::headers::{X_WEIR_LEFT_OUT, insert};
use crate::relay::{Cut, Opened, Reins, RelayBody, RelayEnd};
use crate::respond::{Refusal, Unavailable};
use crate::states::Names;

/// A stream that may be handed to the client.
pub(crate) struct OpenedStream {
    pub headers: HeaderMap,
    /// In which the provider was spoken to.
    pub spoken: Dialect,
    pub opened: Box<Opened>,
    pub provider_id: Option<String>,
    pub permit: Permit,
    pub started: Instant,
    pub deadline: Instant,
}

/// A stream on its way to the client.
pub(crate) struct Committed {
    pub number: AttemptNumber,
    pub deployment: Arc<Deployment>,
    pub permit: Permit,
    pub started: Instant,
    pub reins: Arc<Reins>,
    pub end: oneshot::Receiver<RelayEnd>,
    pub deadline: Instant,
}

impl Execution<'_> {
    fn answer_headers(&self, deployment: &Deployment, spoken: Dialect, provider: &HeaderMap) -> HeaderMap {
        let mut headers = self.weir_headers(Some(&deployment.id));
        let sent = crate::headers::texts(provider);
        for (name, value) in headers::response_headers(spoken, sent) {
            insert(&mut headers, http::HeaderName::from_static(name), value);
        }
        let left_out = self.estimate.of(&deployment.id).map(|estimate| estimate.left_out.as_slice());
        if let Some(left_out) = left_out.filter(|names| !names.is_empty()) {
            insert(&mut headers, X_WEIR_LEFT_OUT, &left_out.join(", "));
        }
        headers
    }

    pub(crate) async fn deliver_whole(
        &mut self,
        marked: Marked,
        deployment: &Arc<Deployment>,
        spoken: Dialect,
        provider: &HeaderMap,
        answer: &ProviderAnswer,
    ) -> Ended {
        let usage = answer.usage().and_then(|extracted| extracted.usage);
        let verdict = usage.map_or(AttemptVerdict::ExecutedUsageUnknown, AttemptVerdict::Executed);
        let closing = self.closing(deployment, verdict, answer.served_tier());
        let said = answer.response_id().filter(|id| id.len() <= MOST_ID_BYTES);
        if let Some(provider_id) = said.or_else(|| correlated(spoken, provider)) {
            self.correlate(marked.number, provider_id).await;
        }
        let open = (marked.number, closing);
        let deployment_id = Some(deployment.id.clone());
        // No client sees content before the attempt is durable (I14).
        if marked.append.durable().await.is_err() {
            return self.refuse(Trail::of_answered(deployment.id.clone(), open), Unavailable::Log.into());
        }
        failpoint::pass("relay.before_content").await;
        let correlation = correlation(self.record.id(), marked.number);
        let ids = Names::of(spoken, &self.prepared.key, deployment);
        let for_client = match answer.for_client(&self.prepared.client_side(&correlation, ids.as_ref())) {
            Ok(body) => body,
            Err(error) => {
                tracing::warn!(reservation_id = %self.record.id(), %error, "answer not translated");
                let refusal = Refusal::Relayed {
                    status: 502,
                    error: Box::new(ClientError::new("server_error", "answer_not_translated", error.message)),
                    retry_after: None,
                    may_have_cost: true,
                };
                return self.refuse(Trail::of_answered(deployment.id.clone(), open), refusal);
            }
        };
        let mut response = Response::new(ClientBody::whole(for_client));
        *response.headers_mut() = self.answer_headers(deployment, spoken, provider);
        let outcome = if self.client.answer(response) { Outcome::Complete } else { Outcome::ClientCancelled };
        Ended { open: Some(open), deployment: deployment_id, chunks_delivered: 1, ..Ended::with(outcome, 200) }
    }

    /// Records the provider's own id, by which its reports name the call. Losing it loses a convenience, no money.
    pub(crate) async fn correlate(&mut self, number: AttemptNumber, provider_id: String) {
        if let Err(error) = self.record.command(Command::Correlate { number, provider_id }).await {
            tracing::warn!(reservation_id = %self.record.id(), %error, "provider id not recorded");
        }
    }

    pub(crate) async fn deliver_stream(
        &mut self,
        marked: Marked,
        deployment: &Arc<Deployment>,
        stream: OpenedStream,
    ) -> Ended {
        let OpenedStream { headers, spoken, opened, provider_id, permit, started, deadline } = stream;
        if let Some(provider_id) = provider_id {
            self.correlate(marked.number, provider_id).await;
        }
        if marked.append.durable().await.is_err() {
            let now_ms = self.gateway.clock.now_ms();
            self.gateway.circuits.record(&deployment.id, permit, CallOutcome::NotCounted, now_ms);
            let open = (marked.number, Closing::ExecutedUsageUnknown);
            return self.refuse(Trail::of_answered(deployment.id.clone(), open), Unavailable::Log.into());
        }
        // The provider's id is worth a record of its own: after a crash it is what a report can be matched by.
        let _append = self.record.append();
        failpoint::pass("relay.before_content").await;
        let for_client = self.answer_headers(deployment, spoken, &headers);
        // The provider's headers share the buffer of its first read, which the stream may take hours to end.
        drop(headers);
        let going = Going::of(self.prepared, self.gateway.options.max_event.as_usize());
        if going.is_none() {
            self.prepared.forget_bytes();
        }
        let (body, reins, end) = RelayBody::new(*opened, going, self.prepared.arrival.connection.clone());
        self.client.stream(for_client, body);
        let deployment = Arc::clone(deployment);
        self.see_through(Committed { number: marked.number, deployment, permit, started, reins, end, deadline }).await
    }

    /// Stays with a committed stream to its end, and goes on with it where policy says so.
    pub(crate) async fn see_through(&mut self, committed: Committed) -> Ended {
        let Committed { number, deployment, permit, started, reins, end, deadline } = committed;
        let mut end = self.watch(&reins, end, deadline).await;
        failpoint::pass("relay.after_end").await;
        let broken = end.as_mut().and_then(|end| end.broken.take());
        // Boxed: a task is as large as its largest step, and a stream lasts for hours, its end for a moment.
        let ended = Box::pin(self.stream_ended(number, &deployment, (permit, started), end, broken.is_some())).await;
        match broken {
            Some(broken) => Box::pin(self.go_on(ended, broken, reins, deadline)).await,
            None => ended,
        }
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
        let waits_for_client = progress.stalled_for.is_some();
        if progress.stalled_for.is_some_and(|stalled| stalled >= millis(deadlines.write_stall_ms)) {
            // hyper polls no body on a blocked socket: only the connection itself can be ended.
            if let Some(connection) = &self.prepared.arrival.connection {
                connection.reset();
            }
        } else if !waits_for_client
            && progress.is_finished
            && progress.since_read >= millis(deadlines.usage_after_finish_ms)
        {
            reins.cut(Cut::EnoughWaited);
        } else if Instant::now() >= deadline {
            reins.cut(Cut::DeadlineExceeded);
        } else if waits_for_client {
            // The provider is not asked meanwhile, so what it owes is not late.
            reins.nudge();
        } else if progress.since_read >= millis(deadlines.idle_ms) {
            reins.cut(Cut::ReadTimeout);
        } else if !ping_every.is_zero() && progress.since_read >= ping_every {
            reins.ping();
        }
    }

    async fn stream_ended(
        &mut self,
        number: AttemptNumber,
        deployment: &Arc<Deployment>,
        (permit, started): (Permit, Instant),
        end: Option<RelayEnd>,
        may_go_on: bool,
    ) -> Ended {
        let now_ms = self.gateway.clock.now_ms();
        let base = Ended { deployment: Some(deployment.id.clone()), ..Ended::with(Outcome::ClientCancelled, 200) };
        let Some(mut end) = end else {
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
        let spoken = crate::dialects::spoken(self.prepared.arrival.dialect, deployment);
        self.abandon(number, deployment, spoken, end.rest.take()).await;
        let verdict = self.stream_verdict(deployment, &end);
        if !matches!(verdict, AttemptVerdict::Executed(_)) {
            self.free_and_tighten(number, deployment, &end.facts, may_go_on).await;
        }
        let closing = self.closing(deployment, verdict, end.facts.served_tier.clone());
        let code = match &end.outcome {
            RelayOutcome::Broke(reason) => Some(reason.as_str().to_owned()),
            RelayOutcome::Complete | RelayOutcome::ClientLeft => None,
        };
        Ended { outcome, open: Some((number, closing)), code, chunks_delivered: end.facts.chunks_delivered, ..base }
    }

    fn stream_verdict(&self, deployment: &Deployment, end: &RelayEnd) -> AttemptVerdict {
        if let RelayOutcome::Broke(BreakReason::UpstreamInBandError(error)) = &end.outcome {
            let rows =
                if deployment.provider.bills_filtered_errors { ProviderRows::AzureOpenAi } else { ProviderRows::Plain };
            let happening = Happening::InBand { error, usage: end.billed_at_error.as_ref(), content_seen: true };
            let spoken = crate::dialects::spoken(self.prepared.arrival.dialect, deployment);
            return judge(spoken, rows, &happening).verdict;
        }
        // Before the answer has ended a usage is a bound, not a bill (I7).
        let usage = end.facts.usage.as_ref().filter(|_| end.facts.usage_is_final);
        match usage.and_then(|extracted| extracted.usage.clone()) {
            Some(usage) => AttemptVerdict::Executed(usage),
            None => AttemptVerdict::ExecutedUsageUnknown,
        }
    }

    /// What waits for a report gives its slot back at once, unless its request goes on, and its hold as far as partial
    /// usage bounds it.
    async fn free_and_tighten(
        &mut self,
        number: AttemptNumber,
        deployment: &Deployment,
        facts: &StreamFacts,
        may_go_on: bool,
    ) {
        let mut commands = Vec::with_capacity(2);
        if !may_go_on {
            commands.push(Command::FreeSlot);
        }
        let partial = facts.usage.as_ref().and_then(|extracted| extracted.usage.as_ref());
        let estimate = self.estimate.of(&deployment.id);
        if let (Some(partial), Some(estimate)) = (partial, estimate)
            && let Some(hold) = estimate.tightened_by(partial)
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

pub(crate) fn elapsed_ms(started: Instant) -> i64 {
    i64::try_from(started.elapsed().as_millis()).unwrap_or(i64::MAX)
}

/// When to look at a stream again: at the earliest moment at which one of its bounds could be reached.
fn next_alarm(reins: &Reins, deadlines: &Deadlines, ping_every: Duration, deadline: Instant) -> Duration {
    let progress = reins.progress();
    let left = |bound: Duration, used: Duration| bound.saturating_sub(used);
    // The finish may come at any time: look often enough to wait no longer than promised after it.
    let mut alarm = (deadline - Instant::now()).min(millis(deadlines.usage_after_finish_ms));
    match progress.stalled_for {
        // The client may take it at any time, and the provider be silent from then on.
        Some(stalled) => {
            alarm = alarm.min(left(millis(deadlines.write_stall_ms), stalled)).min(millis(deadlines.idle_ms));
        }
        None if progress.is_finished => {
            alarm = alarm.min(left(millis(deadlines.usage_after_finish_ms), progress.since_read));
        }
        None => alarm = alarm.min(left(millis(deadlines.idle_ms), progress.since_read)),
    }
    if !ping_every.is_zero() {
        alarm = alarm.min(ping_every);
    }
    alarm.max(SHORTEST_ALARM)
}

/// A bound that was just reached is acted on at the next look, never in a busy loop.
const SHORTEST_ALARM: Duration = Duration::from_millis(5);
