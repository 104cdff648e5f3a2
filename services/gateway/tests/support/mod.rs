//! A gateway in this process, before a scripted provider, over real sockets: real log, real quota store, no catalog.

pub mod canned;
pub mod logs;
pub mod pairs;
pub mod provider;
pub mod raw;

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tempfile::TempDir;

use weir_domain::calendar::Calendar;
use weir_domain::ids::{DeploymentId, KeyId, ModelName, PriceVersion, ProviderId, ReservationId, TeamId, TenantId};
use weir_domain::policy::{Allowed, Key, Snapshot, Tenant, TenantSecret};
use weir_domain::price::{PriceBook, PriceEntry};
use weir_domain::quota::{BookOptions, Limit};
use weir_domain::reconcile::CeilingPolicy;
use weir_domain::registry::{
    AnthropicVersion, CapField, Capabilities, Deadlines, Deployment, LogicalModel, OnAbandon, OnBreak, Provider,
    ProviderDialect,
};
use weir_domain::reservation::{Event, Reservation};
use weir_gateway::{Gateway, GatewayOptions, GatewayParts, Pepper};
use weir_providers::{Upstream, UpstreamOptions};
use weir_quota::{MemoryQuota, QuotaStore, Trust};
use weir_runtime::clock::{SharedClock, SystemClock};
use weir_runtime::entropy::OsEntropy;
use weir_runtime::health::Health;
use weir_runtime::listener::{ListenerOptions, bind, serve};
use weir_runtime::metrics::Metrics;
use weir_runtime::tasks::Tasks;
use weir_runtime::tls;
use weir_schemas::reservation_event::ReservationEvent;
use weir_streams::segment::{SegmentLog, SegmentOptions};
use weir_streams::{EventLog, Limits, Position, Topic, Visibility};
use weir_stub::journal::JournalOptions;
use weir_stub::script::{Script, Scripts};
use weir_stub::{Stub, StubOptions};

pub const KEY: &str = "weir_live_test-key";
pub const PEPPER: &[u8] = b"pepper of the tests";
/// How long a test waits for something that must happen.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// What a test wants to be different.
pub struct Setup {
    pub limits: Vec<Limit>,
    /// Scripts of the deployments in order of their tiers; each gets a provider of its own.
    pub tiers: Vec<Script>,
    pub deadlines: Deadlines,
    pub options: GatewayOptions,
    pub adapt: fn(&mut Deployment),
    pub denied_tools: Vec<String>,
    pub default_output_tokens: Option<i64>,
    pub listener: ListenerOptions,
    pub upstream: UpstreamOptions,
    pub journal: JournalOptions,
    pub team: Option<TeamId>,
    /// Addresses of providers that the test runs itself; their deployments come after those of `tiers`.
    pub providers: Vec<String>,
    /// Whose API each deployment's provider speaks, in order; OpenAI's where the list ends.
    pub speak: Vec<ProviderDialect>,
    /// What becomes of streams that break.
    pub on_break: OnBreak,
    /// Of the gateway and the quota store.
    pub clock: SharedClock,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            limits: Vec::new(),
            tiers: vec![Script::default()],
            deadlines: Deadlines { connect_ms: 2_000, ..Deadlines::default() },
            options: GatewayOptions::default(),
            adapt: |_| {},
            denied_tools: Vec::new(),
            default_output_tokens: Some(100),
            listener: ListenerOptions::default(),
            upstream: UpstreamOptions::default(),
            journal: JournalOptions::default(),
            team: None,
            providers: Vec::new(),
            speak: Vec::new(),
            on_break: OnBreak::Terminate,
            clock: SystemClock::shared(),
        }
    }
}

pub struct House {
    pub stubs: Vec<Stub>,
    pub gateway: SocketAddr,
    pub quota: Arc<MemoryQuota>,
    pub trust: Arc<Trust>,
    pub log: Arc<SegmentLog>,
    pub tasks: Tasks,
    pub health: Health,
    pub snapshot: Arc<ArcSwap<Snapshot>>,
    pub pepper: Pepper,
    options: GatewayOptions,
    listener: ListenerOptions,
    clock: SharedClock,
    upstream: Upstream,
    client: Client<HttpConnector, Full<Bytes>>,
    _folder: TempDir,
}

/// A response, read to its end.
#[derive(Debug)]
pub struct Read {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Read {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    /// The `data:` values of an event stream.
    pub fn events(&self) -> Vec<String> {
        self.text().split("\n\n").filter_map(|event| event.strip_prefix("data: ").map(str::to_owned)).collect()
    }

    /// The text that a client would show.
    pub fn content(&self) -> String {
        let delta = |event: &String| {
            let value: serde_json::Value = serde_json::from_str(event).ok()?;
            value["choices"][0]["delta"]["content"].as_str().map(str::to_owned)
        };
        self.events().iter().filter_map(delta).collect()
    }
}

pub fn tenant() -> TenantId {
    TenantId::from("tn_test")
}

pub fn key_id() -> KeyId {
    KeyId::from("key_test")
}

pub const MODEL: &str = "fast";

/// Input 10, output 30 dollars per million; nothing else.
fn prices() -> Arc<PriceBook> {
    let toml = r#"
        name = "test"
        [[terms]]
        rates = { "in.uncached" = "10", "out.visible" = "30" }
    "#;
    let entry: PriceEntry = toml::from_str(toml).unwrap();
    Arc::new(PriceBook::new(&[entry], |_| PriceVersion::from("pv_test")).unwrap())
}

fn deployment(number: usize, url: &str, setup: &Setup) -> Arc<Deployment> {
    let provider = Arc::new(Provider {
        id: ProviderId::from(format!("provider-{number}").as_str()),
        dialect: setup.speak.get(number).copied().unwrap_or(ProviderDialect::Openai),
        base_url: format!("{url}/v1"),
        credential: None,
        organization: None,
        project: None,
        on_abandon: OnAbandon::Close,
        bills_filtered_errors: false,
    });
    let mut deployment = Deployment {
        id: DeploymentId::from(format!("deployment-{number}").as_str()),
        provider,
        upstream_model: format!("vendor/model-{number}"),
        region: "eu".to_owned(),
        capabilities: Capabilities::of_conversations(),
        max_output_tokens: 1_000,
        price: "test".to_owned(),
        cap_field: CapField::MaxCompletionTokens,
        accepts_stream_options: true,
        accepts_developer_role: true,
        accepts_prefill: false,
        anthropic_version: AnthropicVersion::default(),
        tokens_per_kilobyte: 1_000,
        tokens_per_image: 1_000,
        tokenizer: None,
    };
    (setup.adapt)(&mut deployment);
    Arc::new(deployment)
}

fn snapshot(setup: &Setup, deployments: Vec<Arc<Deployment>>, pepper: &Pepper) -> Snapshot {
    let tenant = Arc::new(Tenant {
        id: tenant(),
        name: "test".to_owned(),
        calendar: Calendar::default(),
        limits: setup.limits.clone(),
        models: Allowed::Everything,
        regions: Allowed::Everything,
        providers: Allowed::Everything,
        denied_tools: setup.denied_tools.iter().cloned().collect::<HashSet<_>>(),
        adjust_on_mismatch: false,
        on_ceiling: CeilingPolicy::Person,
        secret: TenantSecret([7; 32]),
    });
    let hash = pepper.hash(KEY);
    let key = Arc::new(Key {
        id: key_id(),
        hash,
        prefix: "weir_live_te".to_owned(),
        tenant: Arc::clone(&tenant),
        team: setup.team.clone(),
        models: Allowed::Everything,
        limits: Vec::new(),
        expires_at_ms: None,
        labels: vec![("cost_center".to_owned(), "42".to_owned())],
    });
    let model = Arc::new(LogicalModel {
        name: ModelName::from(MODEL),
        tiers: deployments.iter().map(|deployment| vec![Arc::clone(deployment)]).collect(),
        default_output_tokens: setup.default_output_tokens,
        max_attempts: 3,
        on_break: setup.on_break.clone(),
        deadlines: setup.deadlines,
    });
    Snapshot {
        version: 1,
        tenants: HashMap::from([(tenant.id.clone(), tenant)]),
        keys: HashMap::from([(hash, key)]),
        models: HashMap::from([(model.name.clone(), model)]),
        providers: deployments.iter().map(|d| (d.provider.id.clone(), Arc::clone(&d.provider))).collect(),
        deployments: deployments.into_iter().map(|d| (d.id.clone(), d)).collect(),
        prices: prices(),
    }
}

impl House {
    pub async fn of(script: Script) -> Self {
        Self::build(Setup { tiers: vec![script], ..Setup::default() }).await
    }

    pub async fn build(setup: Setup) -> Self {
        tls::install_provider();
        let stubs: Vec<Stub> = setup
            .tiers
            .iter()
            .enumerate()
            .map(|(number, script)| {
                let scripts = Scripts { default: script.clone(), scripts: HashMap::new() };
                let id_prefix = format!("stub{number}-");
                Stub::start(StubOptions { scripts, id_prefix, journal: setup.journal, ..StubOptions::default() })
                    .unwrap()
            })
            .collect();
        let urls = stubs.iter().map(Stub::url).chain(setup.providers.iter().cloned());
        let deployments = urls.enumerate().map(|(n, url)| deployment(n, &url, &setup)).collect();
        let pepper = Pepper::new(PEPPER).unwrap();
        let snapshot = Arc::new(ArcSwap::from_pointee(snapshot(&setup, deployments, &pepper)));
        let folder = tempfile::tempdir().unwrap();
        let log = Arc::new(SegmentLog::open(SegmentOptions::new(folder.path())).unwrap());
        let quota = Arc::new(MemoryQuota::new(Arc::clone(&setup.clock), BookOptions::default()));
        quota.open(HashMap::new(), 60_000);
        let mut house = Self {
            stubs,
            gateway: SocketAddr::from(([127, 0, 0, 1], 0)),
            quota,
            trust: Arc::default(),
            log,
            tasks: Tasks::new(),
            health: Health::new(),
            snapshot,
            pepper,
            options: setup.options,
            listener: setup.listener,
            clock: setup.clock,
            upstream: Upstream::new(&tls::client_config(None).unwrap(), setup.upstream),
            client: Client::builder(TokioExecutor::new()).build(HttpConnector::new()),
            _folder: folder,
        };
        house.gateway = house.replica("test-gateway");
        house
    }

    /// Starts another gateway on the same stores, and returns its address.
    pub fn replica(&self, owner: &str) -> SocketAddr {
        self.replica_on(owner, Arc::clone(&self.log) as Arc<dyn EventLog>)
    }

    /// The same, with another way to the log.
    pub fn replica_on(&self, owner: &str, log: Arc<dyn EventLog>) -> SocketAddr {
        self.replica_with(owner, log, Arc::clone(&self.quota) as Arc<dyn QuotaStore>)
    }

    /// The same, with other ways to both.
    pub fn replica_with(&self, owner: &str, log: Arc<dyn EventLog>, quota: Arc<dyn QuotaStore>) -> SocketAddr {
        let gateway = Gateway::new(GatewayParts {
            options: self.options.clone(),
            owner: Arc::from(owner),
            clock: Arc::clone(&self.clock),
            entropy: OsEntropy::shared(),
            tasks: self.tasks.clone(),
            health: self.health.clone(),
            metrics: Metrics::new(),
            snapshot: Arc::clone(&self.snapshot),
            pepper: self.pepper.clone(),
            quota,
            trust: Arc::clone(&self.trust),
            log,
            upstream: self.upstream.clone(),
        });
        let listener = bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let address = listener.local_addr().unwrap();
        let _leases = gateway.start();
        let _listener = serve(listener, None, self.listener.clone(), gateway, &self.tasks);
        address
    }

    /// Publishes a changed policy, as the control plane would.
    pub fn publish(&self, change: impl FnOnce(&mut Snapshot)) {
        let mut snapshot = Snapshot::clone(&self.snapshot.load());
        snapshot.version += 1;
        change(&mut snapshot);
        self.snapshot.store(Arc::new(snapshot));
    }

    /// Publishes other limits for the tenant and all its scopes.
    pub fn publish_limits(&self, limits: Vec<Limit>) {
        self.publish(|snapshot| {
            let tenant = Arc::new(Tenant { limits, ..Tenant::clone(&snapshot.tenants[&tenant()]) });
            for key in snapshot.keys.values_mut() {
                *key = Arc::new(Key { tenant: Arc::clone(&tenant), ..Key::clone(key) });
            }
            snapshot.tenants.insert(tenant.id.clone(), tenant);
        });
    }

    pub fn request(&self, body: impl Into<Bytes>) -> Request<Full<Bytes>> {
        self.request_with(KEY, body)
    }

    pub fn request_with(&self, key: &str, body: impl Into<Bytes>) -> Request<Full<Bytes>> {
        self.request_to(self.gateway, key, body)
    }

    pub fn request_to(&self, gateway: SocketAddr, key: &str, body: impl Into<Bytes>) -> Request<Full<Bytes>> {
        Request::post(format!("http://{gateway}/v1/chat/completions"))
            .header("authorization", format!("Bearer {key}"))
            .header("content-type", "application/json")
            .body(Full::new(body.into()))
            .unwrap()
    }

    /// A request with these headers and no others but its length.
    pub fn request_at(&self, path: &str, headers: &[(&str, &str)], body: impl Into<Bytes>) -> Request<Full<Bytes>> {
        let request = Request::post(format!("http://{}{path}", self.gateway));
        let with = |request: http::request::Builder, (name, value): &(&str, &str)| request.header(*name, *value);
        headers.iter().fold(request, with).body(Full::new(body.into())).unwrap()
    }

    pub async fn open(&self, request: Request<Full<Bytes>>) -> http::Response<Incoming> {
        self.client.request(request).await.unwrap()
    }

    pub async fn send(&self, request: Request<Full<Bytes>>) -> Read {
        let (head, body) = self.open(request).await.into_parts();
        Read { status: head.status, headers: head.headers, body: body.collect().await.unwrap().to_bytes() }
    }

    pub async fn post(&self, body: impl Into<Bytes>) -> Read {
        self.send(self.request(body)).await
    }

    /// Every event of the log, in order.
    pub async fn events(&self) -> Vec<(ReservationId, Event)> {
        let at = Position { topic: Topic::Reservations, partition: 0, offset: 0 };
        let limits = Limits { records: 100_000, bytes: 64 << 20 };
        let records = self.log.read(at, limits, Visibility::Durable).await.unwrap();
        let decode = |value: &Bytes| ReservationEvent::decode(value).unwrap().into_parts();
        records.iter().map(|record| decode(&record.value)).map(|(header, event)| (header.reservation, event)).collect()
    }

    /// The kinds of the events of the log, in order.
    pub async fn kinds(&self) -> Vec<&'static str> {
        self.events()
            .await
            .iter()
            .filter_map(|(_, event)| event.kind())
            .map(weir_domain::reservation::EventKind::as_str)
            .collect()
    }

    /// Waits until no reservation is open, and returns the one of `id`.
    pub async fn settled(&self, id: ReservationId) -> Reservation {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let found = self.quota.find(&tenant(), id).await.unwrap();
            if let Some(reservation) = found.filter(|reservation| reservation.closed) {
                return reservation;
            }
            assert!(tokio::time::Instant::now() < deadline, "reservation {id} was not closed in time");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until no reservation is open, and asserts that nothing is held and no task has panicked.
    pub async fn assert_at_rest(&self) {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let reading = self.quota.read(&tenant()).await.unwrap();
            if reading.reserved == 0 {
                break;
            }
            assert!(tokio::time::Instant::now() < deadline, "{} reservations are left open", reading.reserved);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(self.tasks.panics(), 0, "a task panicked");
    }

    /// The reservation that a response names.
    pub async fn reservation_of(&self, read: &Read) -> Reservation {
        let id = read.headers.get("x-weir-reservation").unwrap().to_str().unwrap();
        self.settled(id.parse().unwrap()).await
    }
}

/// Resident memory of this process, in bytes.
pub fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = status.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// A minimal request body.
pub fn body(stream: bool) -> String {
    format!(r#"{{"model":"{MODEL}","messages":[{{"role":"user","content":"hi"}}],"stream":{stream}}}"#)
}
