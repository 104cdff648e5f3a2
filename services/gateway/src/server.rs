//! The gateway as a service: its parts, its paths, its background work.

use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::service::Service;
use tokio::time::{MissedTickBehavior, interval};

use weir_domain::breaker::BreakerPolicy;
use weir_domain::ids::Region;
use weir_domain::policy::Snapshot;
use weir_domain::retry::RetryBudgetPolicy;
use weir_providers::Upstream;
use weir_quota::{QuotaStore, Trust};
use weir_runtime::clock::SharedClock;
use weir_runtime::entropy::SharedEntropy;
use weir_runtime::health::{ALIVE_JSON, Health};
use weir_runtime::metrics::{CONTENT_TYPE as METRICS_CONTENT_TYPE, Metrics};
use weir_runtime::tasks::{Task, Tasks};
use weir_streams::EventLog;
use weir_wire::Dialect;
use weir_wire::anthropic::AnthropicVersion;

use crate::arrival::Arrival;
use crate::authenticate::Pepper;
use crate::body::BodyMemory;
use crate::circuits::Circuits;
use crate::client::ClientBody;
use crate::credentials::Credentials;
use crate::drain::Drains;
use crate::leases::{self, Leases};
use crate::lifecycle::Ask;
use crate::metrics::GatewayMetrics;
use crate::options::GatewayOptions;
use crate::recount::CountingPermits;
use crate::replay::Replays;
use crate::respond::{PathRefusal, Refusal};
use crate::terms::TermsCache;
use crate::{lifecycle, models};

/// What a gateway is made of. Everything that stores or speaks is behind its contract.
#[derive(Debug)]
pub struct GatewayParts {
    pub options: GatewayOptions,
    /// This process among all gateways: region, name and epoch in one word. A restarted process is another owner.
    pub owner: Arc<str>,
    pub clock: SharedClock,
    pub entropy: SharedEntropy,
    pub tasks: Tasks,
    pub health: Health,
    pub metrics: Metrics,
    /// The policy in force; whoever follows the control plane swaps it.
    pub snapshot: Arc<ArcSwap<Snapshot>>,
    pub pepper: Pepper,
    pub quota: Arc<dyn QuotaStore>,
    /// Doubted by whoever hears that the quota store's data are rebuilt.
    pub trust: Arc<Trust>,
    pub log: Arc<dyn EventLog>,
    pub upstream: Upstream,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub options: GatewayOptions,
    pub owner: Arc<str>,
    pub region: Region,
    pub clock: SharedClock,
    pub entropy: SharedEntropy,
    pub tasks: Tasks,
    pub health: Health,
    pub registry: Metrics,
    pub snapshot: Arc<ArcSwap<Snapshot>>,
    pub pepper: Pepper,
    pub quota: Arc<dyn QuotaStore>,
    pub trust: Arc<Trust>,
    pub log: Arc<dyn EventLog>,
    pub upstream: Upstream,
    pub credentials: Credentials,
    pub circuits: Circuits,
    pub leases: Leases,
    pub terms: TermsCache,
    pub counting: CountingPermits,
    pub bodies: BodyMemory,
    pub replays: Replays,
    pub drains: Drains,
    pub metrics: GatewayMetrics,
}

impl Inner {
    pub(crate) fn lease_ms(&self) -> i64 {
        i64::try_from(self.options.lease.as_ms()).unwrap_or(i64::MAX)
    }
}

/// The request path as a hyper service. Cheap to clone.
#[derive(Clone)]
pub struct Gateway(Arc<Inner>);

impl fmt::Debug for Gateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gateway").field("owner", &self.0.owner).finish_non_exhaustive()
    }
}

impl Gateway {
    #[must_use]
    pub fn new(parts: GatewayParts) -> Self {
        let inner = Inner {
            owner: parts.owner,
            region: Region::new(&parts.options.region),
            clock: parts.clock,
            entropy: parts.entropy,
            tasks: parts.tasks,
            health: parts.health,
            metrics: GatewayMetrics::declare(&parts.metrics),
            registry: parts.metrics,
            snapshot: parts.snapshot,
            pepper: parts.pepper,
            quota: parts.quota,
            trust: parts.trust,
            log: parts.log,
            upstream: parts.upstream,
            credentials: Credentials::default(),
            circuits: Circuits::new(BreakerPolicy::default(), RetryBudgetPolicy::default()),
            leases: Leases::default(),
            terms: TermsCache::default(),
            counting: CountingPermits::default(),
            bodies: BodyMemory::new(parts.options.max_bodies.as_usize()),
            replays: Replays::new(&parts.options),
            drains: Drains::new(&parts.options),
            options: parts.options,
        };
        Self(Arc::new(inner))
    }

    /// Starts the work beside the requests: renewing their leases, closing idle connections. Ends when the tasks stop.
    #[must_use]
    pub fn start(&self) -> Task<()> {
        drop(self.0.tasks.spawn("idle connections", close_idle(Arc::clone(&self.0))));
        self.0.tasks.spawn("leases", leases::keep(Arc::clone(&self.0)))
    }

    async fn serve(&self, request: Request<Incoming>) -> Response<ClientBody> {
        let gateway = &self.0;
        let path = request.uri().path();
        if let Some(ask) = ask_of(path) {
            if request.method() == Method::POST {
                return lifecycle::serve(gateway, ask, request).await;
            }
            return self.refuse(&request, PathRefusal::WrongMethod { allow: "POST" });
        }
        let allow = match (path, request.method()) {
            ("/v1/models", &Method::GET) => {
                let arrival = Arrival::of(gateway, dialect_of(&request), &request);
                return models::list(gateway, request.headers(), &arrival);
            }
            ("/healthz", &Method::GET) => return text(StatusCode::OK, "application/json", ALIVE_JSON.to_owned()),
            ("/readyz", &Method::GET) => {
                let report = gateway.health.report();
                return text(report.status(), "application/json", report.to_json());
            }
            ("/metrics", &Method::GET) => {
                gateway.metrics.running.set(i64::try_from(gateway.leases.running()).unwrap_or(i64::MAX));
                return text(StatusCode::OK, METRICS_CONTENT_TYPE, gateway.registry.encode());
            }
            ("/v1/models" | "/healthz" | "/readyz" | "/metrics", _) => Some("GET"),
            _ => None,
        };
        self.refuse(&request, allow.map_or(PathRefusal::NoSuchPath, |allow| PathRefusal::WrongMethod { allow }))
    }

    fn refuse(&self, request: &Request<Incoming>, refusal: PathRefusal) -> Response<ClientBody> {
        let arrival = Arrival::of(&self.0, dialect_of(request), request);
        Refusal::from(refusal).response(arrival.dialect, &arrival.request_id, HeaderMap::new())
    }
}

/// What a path asks for, where it asks a model.
fn ask_of(path: &str) -> Option<Ask> {
    Some(match path {
        "/v1/chat/completions" => Ask::Answer(Dialect::OpenAiChat),
        "/v1/messages" => Ask::Answer(Dialect::AnthropicMessages),
        "/v1/messages/count_tokens" => Ask::Count,
        "/v1/responses" => Ask::Answer(Dialect::OpenAiResponses),
        "/v1/embeddings" => Ask::Answer(Dialect::OpenAiEmbeddings),
        _ => return None,
    })
}

/// Whose words an answer to a request that no dialect serves is in: those of the API that it was meant for, by its path
/// or by the header that only one API has.
fn dialect_of(request: &Request<Incoming>) -> Dialect {
    let is_anthropic =
        request.uri().path().starts_with("/v1/messages") || request.headers().contains_key(AnthropicVersion::HEADER);
    if is_anthropic { Dialect::AnthropicMessages } else { Dialect::OpenAiChat }
}

impl Service<Request<Incoming>> for Gateway {
    type Response = Response<ClientBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let gateway = self.clone();
        Box::pin(async move { Ok(gateway.serve(request).await) })
    }
}

/// However short connections are kept, looking for them must cost nothing.
const SHORTEST_SWEEP: Duration = Duration::from_secs(1);

/// Closes connections to providers that nobody calls any more.
async fn close_idle(gateway: Arc<Inner>) {
    let mut ticks = interval(gateway.upstream.idle_timeout().max(SHORTEST_SWEEP));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let stopping = gateway.tasks.stopping();
    tokio::pin!(stopping);
    loop {
        tokio::select! {
            () = &mut stopping => return,
            _ = ticks.tick() => gateway.upstream.sweep(),
        }
    }
}

fn text(status: StatusCode, content_type: &'static str, body: String) -> Response<ClientBody> {
    let mut response = Response::new(ClientBody::whole(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}
