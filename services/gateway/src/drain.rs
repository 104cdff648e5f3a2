//! Attempts that nobody waits for any more: the client left, or their time was up.
//!
//! By default their connection is closed at once and their usage stays unknown until a report (`on_abandon = "close"`).
//! Where the operator finds the usage worth what the provider bills meanwhile, a task of its own reads on, bounded in
//! time and bytes, and in number over all: what it learns settles the attempt. The reservation is closed as pending
//! before that, so the slot is free at once, and a process that dies meanwhile leaves nothing open.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::sleep;

use weir_domain::attempt::{AttemptNumber, AttemptVerdict};
use weir_domain::registry::{Deployment, OnAbandon};
use weir_domain::reservation::Command;
use weir_domain::usage::Usage;
use weir_providers::{Answer, AnswerBody, CallError};
use weir_runtime::story::story;
use weir_runtime::tasks::Task;
use weir_wire::verdict::{Happening, ProviderRows, judge};
use weir_wire::{ClientSide, Dialect, ProviderAnswer, ProviderSide, Step, Translator};

use crate::attempt::{MOST_ERROR_BYTES, MOST_ID_BYTES, correlated, is_event_stream};
use crate::execute::Execution;
use crate::options::GatewayOptions;
use crate::server::Inner;

/// A call whose answer has no head yet.
pub(crate) type Calling = Pin<Box<dyn Future<Output = Result<Answer, CallError>> + Send>>;

/// What is left of an abandoned attempt. Dropping it closes the connection.
pub(crate) enum Rest {
    Calling(Calling),
    Whole(Gathering),
    Stream { upstream: AnswerBody, stream: Box<Translator>, provider_id: Option<String> },
}

/// A body on its way to being whole; reading it may be interrupted and taken up again.
pub(crate) struct Gathering {
    body: AnswerBody,
    first: Option<Bytes>,
    rest: BytesMut,
}

impl Gathering {
    pub(crate) fn new(body: AnswerBody) -> Self {
        Self { body, first: None, rest: BytesMut::new() }
    }

    /// The whole body, or `None` when it breaks off or is larger than `most` bytes.
    pub(crate) async fn whole(&mut self, most: usize) -> Option<Bytes> {
        while let Some(data) = self.body.next().await {
            let data = data.ok()?;
            if self.first.is_none() && self.rest.is_empty() {
                self.first = Some(data);
            } else {
                if let Some(start) = self.first.take() {
                    self.rest.extend_from_slice(&start);
                }
                self.rest.extend_from_slice(&data);
            }
            if self.first.as_ref().map_or(self.rest.len(), Bytes::len) > most {
                return None;
            }
        }
        Some(self.first.take().unwrap_or_else(|| std::mem::take(&mut self.rest).freeze()))
    }
}

/// The places for drains, over all requests.
#[derive(Debug)]
pub(crate) struct Drains(Arc<Semaphore>);

impl Drains {
    pub(crate) fn new(options: &GatewayOptions) -> Self {
        Self(Arc::new(Semaphore::new(usize::try_from(options.max_drains).unwrap_or(0).min(Semaphore::MAX_PERMITS))))
    }

    fn place(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.0).try_acquire_owned().ok()
    }
}

/// A drain that runs, until its reservation asks what was learnt.
pub(crate) struct Drain {
    number: AttemptNumber,
    deployment: Arc<Deployment>,
    task: Task<Learnt>,
}

/// What a drain came to.
#[derive(Debug, Default)]
struct Learnt {
    /// `None` when nothing final came.
    verdict: Option<AttemptVerdict>,
    served_tier: Option<String>,
    provider_id: Option<String>,
    /// A bound, no bill (I7).
    partial: Option<Usage>,
}

impl Execution<'_> {
    /// Does what the provider's policy says with an attempt that nobody waits for any more. By the provider's id, if it
    /// said one, a report is matched.
    pub(crate) async fn abandon(
        &mut self,
        number: AttemptNumber,
        deployment: &Arc<Deployment>,
        spoken: Dialect,
        rest: Option<Rest>,
    ) {
        if let Some(Rest::Stream { stream, provider_id, .. }) = &rest
            && let Some(provider_id) = bounded(stream.response_id()).or_else(|| provider_id.clone())
            && !self.record.is_correlated(number)
        {
            self.correlate(number, provider_id).await;
        }
        let options = &self.gateway.options;
        let within = match deployment.provider.on_abandon {
            OnAbandon::Close => return,
            OnAbandon::Drain => options.drain_for.duration(),
            OnAbandon::DrainWithin => options.drain_within.duration(),
        };
        let (Some(rest), Some(place)) = (rest, self.gateway.drains.place()) else { return };
        let facts = self.prepared.request.facts();
        let reading = Reading {
            gateway: Arc::clone(self.gateway),
            deployment: Arc::clone(deployment),
            spoken,
            choices: facts.choices,
            is_stream: facts.stream,
        };
        let task = self.gateway.tasks.spawn("drain", reading.run(rest, within, place));
        self.drains.push(Drain { number, deployment: Arc::clone(deployment), task });
    }

    /// Waits for the drains of a request that has closed, and puts what they learnt on record.
    pub(crate) async fn learn(mut self) {
        for drain in std::mem::take(self.drains) {
            let Ok(learnt) = drain.task.await else { continue };
            self.gateway.metrics.drained(match learnt.verdict {
                Some(AttemptVerdict::Executed(_) | AttemptVerdict::NotExecuted) => "known",
                Some(AttemptVerdict::MayHaveExecuted | AttemptVerdict::ExecutedUsageUnknown) | None => "unknown",
            });
            self.record_learnt(drain.number, &drain.deployment, learnt).await;
        }
    }

    async fn record_learnt(&mut self, number: AttemptNumber, deployment: &Deployment, learnt: Learnt) {
        let Learnt { verdict, served_tier, provider_id, partial } = learnt;
        let mut commands = Vec::with_capacity(2);
        if let Some(provider_id) = provider_id.filter(|_| !self.record.is_correlated(number)) {
            commands.push(Command::Correlate { number, provider_id });
        }
        match verdict {
            Some(verdict @ (AttemptVerdict::Executed(_) | AttemptVerdict::NotExecuted)) => {
                let closing = self.closing(deployment, verdict, served_tier);
                commands.push(Command::CloseAttempt { number, closing });
            }
            Some(AttemptVerdict::MayHaveExecuted | AttemptVerdict::ExecutedUsageUnknown) | None => {
                let estimate = self.estimate.of(&deployment.id);
                let bound = partial.and_then(|partial| estimate?.tightened_by(&partial));
                commands.extend(bound.map(|hold| Command::Tighten { number, hold }));
            }
        }
        if let Err(error) = self.record.conclude(&commands).await {
            let error = story(&error);
            tracing::error!(reservation_id = %self.record.id(), error, "what a drain learnt is not recorded");
        }
    }
}

/// What a drain must know of its attempt.
struct Reading {
    gateway: Arc<Inner>,
    deployment: Arc<Deployment>,
    spoken: Dialect,
    choices: u32,
    is_stream: bool,
}

/// What a drain has seen so far.
#[derive(Default)]
struct Seen {
    learnt: Learnt,
    stream: Option<Box<Translator>>,
}

impl Reading {
    /// Reads until the answer ends, or a bound is met, or the process stops: then the connection closes.
    async fn run(self, rest: Rest, within: Duration, _place: OwnedSemaphorePermit) -> Learnt {
        let mut seen = Seen::default();
        let stopping = self.gateway.tasks.stopping();
        tokio::select! {
            biased;
            () = stopping => {}
            () = self.rest(rest, &mut seen) => {}
            () = sleep(within) => {}
        }
        seen.learnt()
    }

    async fn rest(&self, rest: Rest, seen: &mut Seen) {
        match rest {
            Rest::Calling(calling) => match calling.await {
                Ok(answer) => self.answer(answer, seen).await,
                Err(CallError::NotSent(_)) => seen.learnt.verdict = Some(AttemptVerdict::NotExecuted),
                Err(CallError::MayHaveBeenSent(_) | CallError::Unreadable(_)) => {}
            },
            Rest::Whole(gathering) => self.whole(gathering, seen).await,
            Rest::Stream { upstream, stream, provider_id: _ } => self.stream(upstream, stream, seen).await,
        }
    }

    async fn answer(&self, answer: Answer, seen: &mut Seen) {
        seen.learnt.provider_id = correlated(self.spoken, &answer.headers);
        if !answer.status.is_success() {
            let Some(body) = Gathering::new(answer.body).whole(MOST_ERROR_BYTES).await else { return };
            let status = answer.status.as_u16();
            seen.learnt.verdict = Some(self.judged(&Happening::Status { status, body: &body, retry_after: None }));
        } else if self.is_stream && is_event_stream(&answer.headers) {
            let side = ProviderSide {
                dialect: self.spoken,
                choices: self.choices,
                max_event_bytes: self.gateway.options.max_event.as_usize(),
            };
            // Nobody reads it: it is only observed.
            let nobody = ClientSide {
                dialect: self.spoken,
                alias: "",
                fallback_id: "",
                wants_usage: false,
                created_s: 0,
                ids: None,
            };
            if let Ok(stream) = Translator::new(&side, &nobody) {
                self.stream(answer.body, Box::new(stream), seen).await;
            }
        } else {
            self.whole(Gathering::new(answer.body), seen).await;
        }
    }

    async fn whole(&self, mut gathering: Gathering, seen: &mut Seen) {
        let options = &self.gateway.options;
        let most = options.max_answer.as_usize().min(options.drain_bytes.as_usize());
        let Some(body) = gathering.whole(most).await else { return };
        let Ok(answer) = ProviderAnswer::parse(self.spoken, body) else { return };
        let learnt = &mut seen.learnt;
        let usage = answer.usage();
        learnt.verdict = match answer.error() {
            Some(error) => {
                Some(self.judged(&Happening::InBand { error: &error, usage: usage.as_ref(), content_seen: false }))
            }
            None => usage.and_then(|extracted| extracted.usage).map(AttemptVerdict::Executed),
        };
        learnt.served_tier = answer.served_tier();
        learnt.provider_id = bounded(answer.response_id()).or_else(|| learnt.provider_id.take());
    }

    async fn stream(&self, mut upstream: AnswerBody, stream: Box<Translator>, seen: &mut Seen) {
        let Seen { learnt, stream: kept } = seen;
        let stream = kept.insert(stream);
        let (mut read_bytes, mut unread) = (0, BytesMut::new());
        loop {
            while let Some(step) = stream.next_step(&mut unread) {
                unread.clear();
                match step {
                    Step::Quiet | Step::Event { .. } => {}
                    Step::End | Step::Garbage(_) => return,
                    Step::Error(error) => {
                        let usage = stream.billed_usage();
                        let content_seen = stream.facts().has_content;
                        let happening = Happening::InBand { error: &error, usage: usage.as_ref(), content_seen };
                        learnt.verdict = Some(self.judged(&happening));
                        return;
                    }
                }
            }
            match poll_fn(|cx| upstream.poll_next(cx)).await {
                Some(Ok(bytes)) => {
                    read_bytes += bytes.len();
                    if read_bytes > self.gateway.options.drain_bytes.as_usize() {
                        return;
                    }
                    stream.push(bytes);
                }
                Some(Err(_)) => return,
                None => {
                    let _last = stream.close(&mut unread);
                    return;
                }
            }
        }
    }

    fn judged(&self, happening: &Happening<'_>) -> AttemptVerdict {
        let rows = if self.deployment.provider.bills_filtered_errors {
            ProviderRows::AzureOpenAi
        } else {
            ProviderRows::Plain
        };
        judge(self.spoken, rows, happening).verdict
    }
}

impl Seen {
    fn learnt(self) -> Learnt {
        let Self { mut learnt, stream } = self;
        let Some(facts) = stream.map(|stream| stream.facts()) else { return learnt };
        learnt.served_tier = facts.served_tier;
        learnt.provider_id = bounded(facts.response_id).or(learnt.provider_id);
        let usage = facts.usage.and_then(|extracted| extracted.usage);
        if facts.usage_is_final && learnt.verdict.is_none() {
            learnt.verdict = usage.map(AttemptVerdict::Executed);
        } else {
            learnt.partial = usage;
        }
        learnt
    }
}

fn bounded(id: Option<String>) -> Option<String> {
    id.filter(|id| id.len() <= MOST_ID_BYTES)
}
