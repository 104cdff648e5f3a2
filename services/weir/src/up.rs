//! `weir up`: all roles in one process.
//!
//! ```text
//!   start   folder ▶ log (lock) ▶ ports ▶ secrets ▶ control, catalog ▶ fold ▶ quota open ▶ consumers ▶ serve
//!   stop    no new requests ▶ streams end ▶ consumers derive the rest ▶ checkpoint ▶ log closed, lock free
//! ```
//!
//! The order is the point. Nothing is admitted before the counters were folded from the log (I15), and the log closes
//! last, because everything before it may still append. Tasks have three owners, so that each part can be waited for
//! alone: requests, the work beside them, and the operators' side. Consumers run on a thread of their own.

pub(crate) mod admission;
pub(crate) mod consumers;
pub(crate) mod edges;
#[cfg(feature = "failpoints")]
mod failing_disk;
pub(crate) mod heart;
pub(crate) mod operators;
pub(crate) mod policy;
pub(crate) mod prices;
mod storage;
pub(crate) mod upkeep;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use arc_swap::ArcSwap;
use thiserror::Error;

use weir_control::{Control, ControlError, SnapshotSource, VirtualKey};
use weir_gateway::Pepper;
use weir_ledger::contract::LedgerError;
use weir_ledger::start::{StartError as FoldError, Started};
use weir_providers::Upstream;
use weir_quota::{MemoryQuota, QuotaStore, Trust};
use weir_runtime::clock::{SharedClock, SystemClock};
use weir_runtime::entropy::{OsEntropy, SharedEntropy};
use weir_runtime::health::Health;
use weir_runtime::listener::ListenError;
use weir_runtime::metrics::Metrics;
use weir_runtime::tasks::Unfinished;
use weir_runtime::tls::TlsError;
use weir_streams::segment::OpenError;
use weir_streams::topics::DEFAULT_PREFIX;
use weir_stub::{Stub, StubError, StubOptions};

use crate::config::{Config, ConfigError};
use crate::data::{DataError, DataFolder, Url};
use crate::process::{FINISH, Identity, OPERATORS_FINISH, Owners, Running};

use consumers::{Consumers, Derived};
use edges::Edges;
use operators::{Desk, Embedded};
use prices::PriceBooks;
use storage::Storage;

pub use policy::{CatalogSource, PolicyError};
pub(crate) use policy::{control_beside, store_beside};
pub use upkeep::conditions;

/// What a process is started with.
#[derive(Debug)]
pub struct Start {
    pub config: Config,
    pub catalog: CatalogSource,
    /// A scripted provider beside the gateway, in the same process.
    pub stub: Option<StubOptions>,
    pub clock: SharedClock,
    pub entropy: SharedEntropy,
}

impl Start {
    /// With the system's clock and randomness, and the catalog that is stored.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            config,
            catalog: CatalogSource::Stored,
            stub: None,
            clock: SystemClock::shared(),
            entropy: Arc::new(OsEntropy),
        }
    }
}

/// Why a process did not start. What had started by then was stopped.
#[derive(Debug, Error)]
pub enum StartError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Data(#[from] DataError),
    #[error(transparent)]
    Log(#[from] OpenError),
    #[error(transparent)]
    Listen(#[from] ListenError),
    #[error("the address of a listener cannot be read")]
    Address(#[source] std::io::Error),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error(transparent)]
    Policy(#[from] PolicyError),
    #[error(transparent)]
    Control(#[from] ControlError),
    #[error("the ledger {} cannot be opened", path.display())]
    Ledger { path: PathBuf, source: LedgerError },
    #[error("the counters cannot be folded from the log")]
    Fold(#[from] FoldError),
    #[error("there is no thread for the consumers")]
    Thread(#[source] std::io::Error),
    #[error("the stub provider cannot be started")]
    Stub(#[from] StubError),
}

/// Where a process can be reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Addresses {
    pub gateway: SocketAddr,
    /// Without `/v1`.
    pub gateway_url: String,
    pub admin: SocketAddr,
    pub admin_url: String,
    pub stub_url: Option<String>,
}

/// A running process.
#[derive(Debug)]
pub struct Weir {
    pub addresses: Addresses,
    /// Made at the first start of a quickstart: the only time that it can be read.
    pub first_key: Option<VirtualKey>,
    pub control: Arc<Control>,
    pub health: Health,
    pub metrics: Metrics,
    config: Config,
    data: DataFolder,
    storage: Storage,
    consumers: Consumers,
    owners: Owners,
    stub: Option<Stub>,
}

/// What must stand before anything runs, in the order in which it can fail.
struct Ground {
    data: DataFolder,
    edges: Edges,
    addresses: Addresses,
    pepper: Pepper,
    upstream: Upstream,
    stub: Option<Stub>,
    control: Arc<Control>,
    first_key: Option<VirtualKey>,
    storage: Storage,
    folded: Started,
}

impl Ground {
    async fn lay(
        config: &Config,
        catalog: &CatalogSource,
        stub: Option<StubOptions>,
        clock: &SharedClock,
        entropy: &SharedEntropy,
    ) -> Result<Self, StartError> {
        config.check_embedded()?;
        let data = DataFolder::prepare(&config.process.data)?;
        let log = storage::open_log(config, &data)?;
        let edges = Edges::bind(config)?;
        let tls = weir_runtime::tls::client_config(config.upstream.ca_file.as_deref())?;
        let upstream = Upstream::new(&tls, config.upstream.options());
        let secrets = policy::secrets(&config.secrets, &data, entropy.as_ref())?;
        let pepper = secrets.gateway_pepper()?;
        let stub = stub.map(Stub::start).transpose()?;
        let store = policy::embedded_store(&data, &secrets.control)?;
        let control = policy::open_control(store, &secrets.control, clock, entropy)?;
        let first_key = policy::bring_catalog(&control, catalog, stub.as_ref(), &data, entropy.as_ref())?;
        let (storage, folded) = storage::open(config, &data, log).await?;
        let addresses = edges.addresses(stub.as_ref())?;
        tell(&data, &addresses)?;
        Ok(Self { data, edges, addresses, pepper, upstream, stub, control, first_key, storage, folded })
    }
}

/// How a process ended.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Stopped {
    /// Requests that were cut; their reservations are found at the next start.
    pub cut: Unfinished,
    /// Whether everything on the log was derived, so that the next start has nothing to fold.
    pub is_settled: bool,
}

/// What this process calls itself on the log.
const ROLE: &str = "up";

impl Weir {
    /// Starts everything. Returns when requests are served.
    ///
    /// # Errors
    /// [`StartError`].
    pub async fn start(start: Start) -> Result<Self, StartError> {
        let Start { config, catalog, stub, clock, entropy } = start;
        let ground = Ground::lay(&config, &catalog, stub, &clock, &entropy).await?;
        let Ground { data, edges, addresses, pepper, upstream, stub, control, first_key, storage, folded } = ground;
        let (health, metrics, owners) = (Health::new(), Metrics::new(), Owners::default());
        health.expect(conditions::ALL);
        let memory = Arc::new(MemoryQuota::new(Arc::clone(&clock), config.quota.book()));
        memory.open(folded.books_at_end, crate::config::ms(config.gateway.lease));
        let quota: Arc<dyn QuotaStore> = Arc::<MemoryQuota>::clone(&memory);
        let identity = Identity::new(ROLE, config.process.name.as_deref(), clock.now_ms());
        let snapshot = Arc::new(ArcSwap::new(control.current()));
        let running = Running {
            config: &config,
            log: &storage.log,
            spool: None,
            identity: &identity,
            snapshot: &snapshot,
            health: &health,
            metrics: &metrics,
            clock: &clock,
            entropy: &entropy,
            owners: &owners,
        };
        let books = Arc::clone(&control) as Arc<dyn PriceBooks>;
        let derived = Derived { ledger: Arc::clone(&storage.ledger), quota: Arc::clone(&quota), books };
        let consumers =
            Consumers::start(&running, &storage, &derived, folded.at_builder).map_err(StartError::Thread)?;
        upkeep::start(&running, &storage, &quota, &control, &consumers).await;
        let trust = Arc::new(Trust::default());
        let gateway = admission::gateway(&running, &quota, &trust, pepper, upstream);
        let desk = Desk {
            control: &control,
            derived: &derived,
            events: storage.events(&data),
            rebuild: Arc::new(Embedded::new(&running, &derived, memory, trust)),
            topic_prefix: DEFAULT_PREFIX,
        };
        edges.serve(gateway, &running, desk);
        tracing::info!(gateway = addresses.gateway_url, admin = addresses.admin_url, "weir is up");
        Ok(Self { addresses, first_key, control, health, metrics, config, data, storage, consumers, owners, stub })
    }

    /// Ends everything in order. Takes as long as the streams in flight, at most the configured bounds.
    pub async fn stop(self) -> Stopped {
        let Self { config, data, storage, consumers, owners, stub, .. } = self;
        tracing::info!("stopping: no new requests");
        let cut = tokio::join!(
            owners.requests.stop(config.listener.drain.duration().saturating_add(FINISH)),
            consumers.stop_periodic(FINISH),
            owners.operators.stop(OPERATORS_FINISH),
        )
        .0;
        let is_settled = consumers.settle(config.process.settle.duration()).await;
        owners.beside.stop(FINISH).await;
        storage.log.close().await;
        if let Some(stub) = stub {
            stub.stop(FINISH).await;
        }
        data.forget();
        tracing::info!(is_settled, cut = %cut, "stopped");
        Stopped { cut, is_settled }
    }
}

fn tell(data: &DataFolder, addresses: &Addresses) -> Result<(), DataError> {
    data.tell(Url::Gateway, &addresses.gateway_url)?;
    data.tell(Url::Admin, &addresses.admin_url)?;
    addresses.stub_url.iter().try_for_each(|url| data.tell(Url::Stub, url))
}
