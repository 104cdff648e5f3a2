//! The life of a request, top to bottom.
//!
//! ```text
//! authenticate   virtual key → tenant, key (snapshot lookup, no I/O)        401
//! body           read within bounds, parsed once for facts                  400 408 413 415
//! authorize      model and tools by policy                                  403 404
//! estimate       worst case; price version locked
//! reserve        one atomic step in the quota store                         429
//! execute        route → attempt → …failover only while no content is out   502 503 504
//! relay          bounded, back-pressured, one commitment point
//! finalize       on every path: log, then store
//! ```
//!
//! The first three run in the future that hyper drops when the client leaves: nothing is owed yet. From `reserve` on
//! the request lives in a task of its own, which ends only after `finalize`.

use std::sync::Arc;

use http::{HeaderMap, Request, Response};
use hyper::body::Incoming;
use tokio::sync::oneshot;
use tracing::Instrument;

use weir_domain::outcome::Outcome;
use weir_domain::policy::{Key, Snapshot};
use weir_domain::registry::LogicalModel;
use weir_domain::reservation::ReservationStatus;
use weir_runtime::failpoint;
use weir_streams::Health;
use weir_wire::anthropic::{AnthropicVersion, upstream_query};
use weir_wire::openai::responses::AnswerIds;
use weir_wire::request::Limits;
use weir_wire::{ClientRequest, ClientSide, Dialect, Family};

use crate::arrival::Arrival;
use crate::attempt::millis;
use crate::authenticate::authenticate;
use crate::authorize::authorize;
use crate::body::{self, BodyPermit};
use crate::client::{Client, ClientBody};
use crate::estimate::{Estimate, estimate};
use crate::execute::Execution;
use crate::finalize::finalize;
use crate::leases::Leases;
use crate::replay::{Claim, First, Keyed, Turn, turn};
use crate::reserve::{Admitted, reserve};
use crate::respond::{BodyRefusal, Refusal, Unavailable};
use crate::server::Inner;
use crate::states::pinned;

/// A request that may be executed: who, what, under which policy.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub arrival: Arrival,
    pub snapshot: Arc<Snapshot>,
    pub key: Arc<Key>,
    pub model: Arc<LogicalModel>,
    pub request: ClientRequest,
    /// Whether the client asked for the beta form of the endpoint, as official SDKs do by `?beta=true`.
    pub is_beta: bool,
    /// The client's headers, for those few that a provider may see.
    pub headers: HeaderMap,
    /// The client's `Idempotency-Key`, if it sent one.
    pub keyed: Option<Keyed>,
    /// Memory that the body takes, counted while it lives.
    _memory: BodyPermit,
}

impl Prepared {
    /// Gives back the memory of what only another attempt would need. A stream may last for hours, and the client's
    /// headers share the buffer that they were read into.
    pub(crate) fn forget_bytes(&mut self) {
        self.request.forget_body();
        self.headers = HeaderMap::new();
        self._memory = BodyPermit::default();
    }
}

impl Prepared {
    /// What turns a provider's answer into the client's. `fallback_id` is the answer's id where the provider gives none,
    /// and `ids` name stored answers to the client.
    pub(crate) fn client_side<'a>(
        &'a self,
        fallback_id: &'a str,
        ids: Option<&'a Arc<dyn AnswerIds>>,
    ) -> ClientSide<'a> {
        let facts = self.request.facts();
        ClientSide {
            dialect: self.arrival.dialect,
            alias: &facts.model,
            fallback_id,
            wants_usage: facts.wants_stream_usage(),
            created_s: self.arrival.received_ms / 1_000,
            ids,
        }
    }
}

/// What a client asks of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ask {
    Answer(Dialect),
    /// `POST /v1/messages/count_tokens`: no model runs.
    Count,
}

impl Ask {
    const fn dialect(self) -> Dialect {
        match self {
            Self::Answer(dialect) => dialect,
            Self::Count => Dialect::AnthropicMessages,
        }
    }
}

/// Serves one request.
pub(crate) async fn serve(gateway: &Arc<Inner>, ask: Ask, request: Request<Incoming>) -> Response<ClientBody> {
    let dialect = ask.dialect();
    let arrival = Arrival::of(gateway, dialect, &request);
    let (request_id, received_ms) = (Arc::clone(&arrival.request_id), arrival.received_ms);
    let refuse = |refusal: &Refusal| {
        gateway.metrics.refused(refusal.status(), &refusal.code());
        refusal.response(dialect, &request_id, HeaderMap::new())
    };
    let (mut prepared, estimate) = match prepare(gateway, ask, arrival, request).await {
        Ok(ready) => ready,
        Err(refusal) => return refuse(&refusal),
    };
    let first = match turn(gateway, &mut prepared).await {
        Ok(Turn::Call(first)) => first,
        Ok(Turn::Read(reader)) => {
            return reader.response(dialect, &request_id).await.unwrap_or_else(|| refuse(&stopping()));
        }
        Err(refusal) => return refuse(&refusal),
    };
    let (answer, response) = oneshot::channel();
    let client = Client::new(dialect, Arc::clone(&request_id), received_ms, answer);
    let write_stall = millis(prepared.model.deadlines.write_stall_ms);
    let owing = |claim| Box::new(Owing { gateway: Arc::clone(gateway), prepared, estimate, client, claim });
    let answered = match first {
        None => {
            gateway.tasks.spawn("request", live(owing(None)));
            response.await.ok()
        }
        Some(First { claim, reader, recording }) => {
            gateway.tasks.spawn("request", live(owing(Some(claim))));
            recording.start(gateway, response, write_stall);
            reader.response(dialect, &request_id).await
        }
    };
    answered.unwrap_or_else(|| refuse(&stopping()))
}

fn stopping() -> Refusal {
    Unavailable::Stopping.into()
}

/// Everything that is decided before anything is owed.
async fn prepare(
    gateway: &Arc<Inner>,
    ask: Ask,
    arrival: Arrival,
    request: Request<Incoming>,
) -> Result<(Prepared, Estimate), Refusal> {
    if gateway.tasks.is_stopping() {
        return Err(Unavailable::Stopping.into());
    }
    let snapshot = gateway.snapshot.load_full();
    let (head, incoming) = request.into_parts();
    let key = authenticate(arrival.dialect, &head.headers, &snapshot, &gateway.pepper, arrival.received_ms)?;
    let version = version(arrival.dialect, &head.headers)?;
    let options = &gateway.options;
    let read = body::read(
        &head.headers,
        incoming,
        &gateway.bodies,
        options.max_body.as_usize(),
        options.body_deadline.duration(),
    );
    let body = read.await?;
    let parsed = match ask {
        Ask::Answer(dialect) => ClientRequest::parse(dialect, body.bytes, &Limits::default(), version),
        Ask::Count => ClientRequest::parse_count(body.bytes, &Limits::default(), version),
    };
    let mut request = parsed.map_err(BodyRefusal::Invalid)?;
    let model = authorize(&snapshot, &key, request.facts())?;
    let pinned = pinned(&mut request, &key, &model).map_err(BodyRefusal::Invalid)?;
    let estimate =
        estimate(&snapshot, &key, &model, &request, pinned.as_ref(), options.tokens_per_kilobyte, arrival.received_ms)?;
    let keyed = Keyed::of(&head.headers, &key.tenant.secret, arrival.dialect, request.body())?;
    let prepared = Prepared {
        arrival,
        snapshot,
        key,
        model,
        request,
        is_beta: upstream_query(head.uri.query()).is_some(),
        headers: head.headers,
        keyed,
        _memory: body.permit,
    };
    Ok((prepared, estimate))
}

/// What a request takes into its own task; boxed, so that the task stays small and nothing is moved twice.
struct Owing {
    gateway: Arc<Inner>,
    prepared: Prepared,
    estimate: Estimate,
    client: Client,
    /// Where the answer is recorded for those who come with the same key.
    claim: Option<Claim>,
}

/// The part of a request's life in which money is owed. Never dropped: its task is owned by the process.
async fn live(mut owing: Box<Owing>) {
    let Owing { gateway, prepared, estimate, client, claim } = &mut *owing;
    let span = tracing::debug_span!(
        "request",
        request_id = %prepared.arrival.request_id,
        tenant = %prepared.key.tenant.id,
        model = %prepared.model.name,
        snapshot_version = prepared.snapshot.version,
    );
    async {
        if let Health::Closed(closed) = gateway.log.health() {
            tracing::error!(%closed, "log refuses events");
            return refuse_unheld(gateway, prepared, client, &Unavailable::Log.into());
        }
        let reserved = reserve(gateway, prepared, estimate).instrument(tracing::debug_span!("reserve")).await;
        let Admitted { mut record, rates } = match reserved {
            Ok(admitted) => admitted,
            Err(refusal) => return refuse_unheld(gateway, prepared, client, &refusal),
        };
        client.admitted(record.id(), rates);
        if let Some(claim) = claim {
            claim.admitted(record.id());
        }
        failpoint::pass("reserve.after").await;
        let lease = Leases::hold(gateway, record.identity());
        let mut drains = Vec::new();
        let mut execution = Execution { gateway, prepared, estimate, record: &mut record, client, drains: &mut drains };
        let ended = execution.run().instrument(tracing::debug_span!("execute")).await;
        let status = finalize(gateway, execution.prepared, execution.record, ended)
            .instrument(tracing::debug_span!("finalize"))
            .await;
        if status != Some(ReservationStatus::Released)
            && let Some(claim) = claim.take()
        {
            claim.executed();
        }
        drop(lease);
        execution.prepared.forget_bytes();
        execution.learn().instrument(tracing::debug_span!("learn")).await;
    }
    .instrument(span)
    .await;
}

/// Answers a request that was not admitted: no reservation, no event.
fn refuse_unheld(gateway: &Inner, prepared: &Prepared, client: &mut Client, refusal: &Refusal) {
    gateway.metrics.refused(refusal.status(), &refusal.code());
    gateway.metrics.request_ended(Outcome::NoAttempt, refusal.status(), prepared.arrival.started.elapsed());
    tracing::info!(
        request_id = %prepared.arrival.request_id,
        tenant = %prepared.key.tenant.id,
        key = %prepared.key.id,
        model = %prepared.model.name,
        snapshot_version = prepared.snapshot.version,
        outcome = Outcome::NoAttempt.as_str(),
        status = refusal.status(),
        code = refusal.code(),
        "request refused"
    );
    client.refuse(refusal, HeaderMap::new());
}

/// The version that a request of the Anthropic API must name; of no meaning in others.
fn version(dialect: Dialect, headers: &HeaderMap) -> Result<AnthropicVersion, BodyRefusal> {
    match dialect.family() {
        Family::OpenAi => Ok(AnthropicVersion::V2023_06_01),
        Family::Anthropic => {
            let sent = headers.get(AnthropicVersion::HEADER).and_then(|value| value.to_str().ok());
            AnthropicVersion::of_header(sent).map_err(BodyRefusal::Version)
        }
    }
}
