//! What every role stands on before it begins, and how it waits for its stores.

use std::fmt::Display;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use axum::Router;
use axum::http::header::CONNECTION;
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::map_response;
use axum::response::Response;
use tokio::net::TcpListener;
use tokio::sync::watch;

use weir_control::admin::probes;
use weir_control::{Control, FollowOptions, SnapshotFollower, SnapshotSource as _};
use weir_ledger::contract::LedgerStore;
use weir_ledger::{CqlLedger, LedgerError};
use weir_quota::QuotaError;
use weir_quota::redis::RedisQuota;
use weir_runtime::clock::SharedClock;
use weir_runtime::entropy::SharedEntropy;
use weir_runtime::health::Health;
use weir_runtime::metrics::Metrics;
use weir_runtime::story::story;
use weir_runtime::tasks::Tasks;
use weir_streams::EventLog;
use weir_streams::kafka::{KafkaLog, OpenError};
use weir_streams::spool::{SpoolError, SpoolMetrics, SpooledLog};

use crate::config::{Config, StoresApart};
use crate::data::DataFolder;
use crate::process::{FINISH, Identity, OPERATORS_FINISH, Owners, Running, Spool};
use crate::up::operators::serve_routes;
use crate::up::policy::{self, CatalogSource, PolicyError, Secrets};
use crate::up::upkeep::{conditions, follow_snapshots};

use super::{Role, RoleError};

/// Pauses between tries to reach a store: soon at first, because stores often start together with the roles.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The wish that a process ends. Clones hear the same.
#[derive(Debug, Clone)]
pub struct Stop(watch::Receiver<bool>);

impl Stop {
    /// A wish that is not there yet, and who may have it.
    #[must_use]
    pub fn new() -> (watch::Sender<bool>, Self) {
        let (ask, stop) = watch::channel(false);
        (ask, Self(stop))
    }

    /// Resolves once it is asked for, or nobody is left who could.
    pub async fn asked(&self) {
        let mut stop = self.0.clone();
        // An error means that whoever would ask is gone.
        let _asked = stop.wait_for(|asked| *asked).await.is_ok();
    }
}

/// What a role has without its stores.
#[derive(Debug)]
pub(super) struct Ground {
    pub role: Role,
    pub config: Config,
    pub stores: StoresApart,
    pub data: DataFolder,
    pub secrets: Secrets,
    pub identity: Identity,
    pub health: Health,
    pub metrics: Metrics,
    pub clock: SharedClock,
    pub entropy: SharedEntropy,
    pub owners: Owners,
}

impl Ground {
    pub fn lay(
        role: Role,
        config: Config,
        stores: StoresApart,
        clock: SharedClock,
        entropy: SharedEntropy,
    ) -> Result<Self, RoleError> {
        let data = DataFolder::prepare(&config.process.data)?;
        let secrets = policy::secrets(&config.secrets, &data, entropy.as_ref())?;
        let identity = Identity::new(role.name(), config.process.name.as_deref(), clock.now_ms());
        let (health, metrics, owners) = (Health::new(), Metrics::new(), Owners::default());
        health.expect(role.conditions());
        Ok(Self { role, config, stores, data, secrets, identity, health, metrics, clock, entropy, owners })
    }

    /// Opens something, however often it takes; `None` when the process is to end before that.
    async fn open<T, E: std::error::Error + 'static>(
        &self,
        condition: &'static str,
        stop: &Stop,
        is_temporary: impl Fn(&E) -> bool,
        open: impl AsyncFn() -> Result<T, E>,
    ) -> Result<Option<T>, E> {
        let mut pause = FIRST_PAUSE;
        loop {
            let opened = tokio::select! {
                () = stop.asked() => return Ok(None),
                opened = open() => opened,
            };
            let error = match opened {
                Ok(opened) => {
                    self.health.ready(condition);
                    return Ok(Some(opened));
                }
                Err(error) if is_temporary(&error) => error,
                Err(error) => return Err(error),
            };
            let reason = story(&error);
            tracing::warn!(condition, reason, "waiting");
            self.health.not_ready(condition, reason);
            tokio::select! {
                () = stop.asked() => return Ok(None),
                () = tokio::time::sleep(pause) => {}
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// The control plane, with the catalog that it was started with.
    pub async fn control(&self, catalog: &CatalogSource, stop: &Stop) -> Result<Option<Arc<Control>>, PolicyError> {
        let open = async || {
            let (options, secrets) = (self.stores.control.clone(), self.secrets.control.clone());
            let (clock, entropy) = (Arc::clone(&self.clock), Arc::clone(&self.entropy));
            let (catalog, data) = (catalog.clone(), self.data.clone());
            // It compiles what it finds, and blocks until the store answers.
            let opening = move || -> Result<Arc<Control>, PolicyError> {
                let store = policy::shared_store(&options, &secrets.pepper, &secrets.master)?;
                let control = policy::open_control(store, &secrets, &clock, &entropy)?;
                policy::bring_catalog(&control, &catalog, None, &data, entropy.as_ref())?;
                Ok(control)
            };
            let opened = self.owners.beside.spawn_blocking("open control store", opening).await;
            opened.map_err(|_| PolicyError::Lost)?
        };
        self.open(conditions::CONTROL, stop, PolicyError::is_temporary, open).await
    }

    /// The log without a spool: who is no gateway can wait.
    pub async fn log(&self, stop: &Stop) -> Result<Option<Arc<dyn EventLog>>, OpenError> {
        let opened = self.open(conditions::LOG, stop, OpenError::is_temporary, || KafkaLog::open(&self.stores.kafka));
        Ok(opened.await?.map(|log| Arc::new(log) as Arc<dyn EventLog>))
    }

    /// The log with the spool in front.
    pub async fn spooled_log(&self, stop: &Stop) -> Result<Option<Arc<SpooledLog>>, SpoolError> {
        let folder: PathBuf = self.stores.kafka.spool.folder.clone().unwrap_or_else(|| self.data.path().join("spool"));
        let metrics = SpoolMetrics::declare(&self.metrics);
        let open = async || SpooledLog::open(&self.stores.kafka, &folder, metrics.clone()).await;
        Ok(self.open(conditions::LOG, stop, SpoolError::is_temporary, open).await?.map(Arc::new))
    }

    pub async fn ledger(&self, stop: &Stop) -> Result<Option<Arc<dyn LedgerStore>>, LedgerError> {
        let open = async || CqlLedger::open(&self.stores.cql, Arc::clone(&self.clock)).await;
        let opened = self.open(conditions::LEDGER, stop, LedgerError::is_temporary, open).await?;
        Ok(opened.map(|ledger| Arc::new(ledger) as Arc<dyn LedgerStore>))
    }

    /// The quota store, once every node keeps the promises that the counters rest on.
    pub async fn quota(&self, stop: &Stop) -> Result<Option<Arc<RedisQuota>>, RoleError> {
        let quota = Arc::new(RedisQuota::new(&self.stores.redis, self.entropy.as_ref())?);
        let look = async || {
            let lacks: Vec<String> = quota.check().await?.into_iter().flat_map(|node| node.lacks).collect();
            let reason = lacks.join("; ");
            if lacks.is_empty() { Ok(()) } else { Err(QuotaError::Unavailable { reason }) }
        };
        Ok(self.open(conditions::QUOTA, stop, |_| true, look).await?.map(|()| quota))
    }

    /// What the parts of the role share.
    pub fn running<'a>(
        &'a self,
        log: &'a Arc<dyn EventLog>,
        spool: Option<&'a Arc<dyn Spool>>,
        snapshot: &'a Arc<ArcSwap<weir_domain::policy::Snapshot>>,
    ) -> Running<'a> {
        Running {
            config: &self.config,
            log,
            spool,
            identity: &self.identity,
            snapshot,
            health: &self.health,
            metrics: &self.metrics,
            clock: &self.clock,
            entropy: &self.entropy,
            owners: &self.owners,
        }
    }

    /// Follows the policy on the log; what is in force is in the second value.
    pub fn policy(&self, log: &Arc<dyn EventLog>) -> Result<Policy, RoleError> {
        let file = self.data.path().join(format!("policy-{}", self.role.name()));
        let options = FollowOptions { file, max_age: self.config.process.policy_max_age.map(|age| age.duration()) };
        let master = self.secrets.control.master.clone();
        let follower = SnapshotFollower::open(Arc::clone(log), master, Arc::clone(&self.clock), options)?;
        let follower = Arc::new(follower);
        let snapshot = Arc::new(ArcSwap::new(follower.current()));
        let tasks = &self.owners.beside;
        follow_snapshots(&*follower, &snapshot, tasks);
        drop(tasks.spawn("policy", Arc::clone(&follower).run(tasks.clone())));
        Ok(Policy { follower, snapshot })
    }

    /// `/healthz`, `/readyz`, `/metrics` on the role's own socket, and 503 for everything else, until `tasks` stop.
    pub fn serve_probes(&self, listener: TcpListener, tasks: &Tasks) {
        serve_routes(listener, self.waiting(), tasks);
    }

    fn waiting(&self) -> Router {
        self.probes().fallback(async || (StatusCode::SERVICE_UNAVAILABLE, WAITING))
    }

    pub fn probes(&self) -> Router {
        probes(self.health.clone(), self.metrics.clone())
    }

    /// Ends what runs beside the requests, then the log.
    pub async fn end(&self, log: Option<&Arc<dyn EventLog>>) {
        self.owners.beside.stop(FINISH).await;
        self.owners.operators.stop(OPERATORS_FINISH).await;
        if let Some(log) = log {
            log.close().await;
        }
    }
}

const WAITING: &str = "this process waits for its stores; /readyz says for which\n";

/// The policy in force in a role apart.
pub(super) struct Policy {
    pub follower: Arc<SnapshotFollower>,
    pub snapshot: Arc<ArcSwap<weir_domain::policy::Snapshot>>,
}

impl Policy {
    /// Returns once a version is in force, from disk or from the control plane; `false` when the process is to end
    /// before that.
    pub async fn came(&self, stop: &Stop) -> bool {
        let is_there = async {
            while self.snapshot.load().version == 0 {
                tokio::time::sleep(LOOK_FOR_POLICY_EVERY).await;
            }
        };
        tokio::select! {
            () = stop.asked() => false,
            () = is_there => true,
        }
    }
}

/// A start waits so much longer than it must.
const LOOK_FOR_POLICY_EVERY: Duration = Duration::from_millis(20);

/// A socket that answers probes while a role waits, and is then handed to what it was opened for.
pub(super) struct Door {
    socket: std::net::TcpListener,
    waiting: Tasks,
}

impl Door {
    pub fn open(ground: &Ground, listener: TcpListener) -> std::io::Result<Self> {
        let (socket, waiting) = (listener.into_std()?, Tasks::new());
        let routes = ground.waiting().layer(map_response(closing));
        serve_routes(TcpListener::from_std(socket.try_clone()?)?, routes, &waiting);
        Ok(Self { socket, waiting })
    }

    /// The socket without anybody on it. Who connects meanwhile waits in the kernel's queue.
    pub async fn hand_over(self) -> std::io::Result<TcpListener> {
        self.waiting.stop(OPERATORS_FINISH).await;
        TcpListener::from_std(self.socket)
    }
}

/// A prober that kept its connection would lose the probe that it sends while the socket is handed over.
async fn closing(mut answer: Response) -> Response {
    answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    answer
}

/// For a condition that is looked at again and again.
pub(super) fn report(health: &Health, condition: &'static str, trouble: Option<impl Display>) {
    match trouble {
        None => health.ready(condition),
        Some(reason) => health.not_ready(condition, reason.to_string()),
    }
}
