//! `weir.toml`: what an operator may set of the process. What may be asked of it (tenants, models, limits) is the
//! catalog.
//!
//! Every section belongs to the crate that reads it and explains its own defaults. Nothing is required: without a file
//! the defaults are a working process on this machine. An unknown key is an error, because a misspelt limit would
//! otherwise be no limit.

mod check;
mod load;
mod places;
mod stores;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use weir_domain::quota::BookOptions;
use weir_gateway::GatewayOptions;
use weir_ledger::CqlOptions;
use weir_ledger::checkpoint::CheckpointOptions;
use weir_providers::UpstreamOptions;
#[cfg(feature = "redis")]
use weir_quota::redis::RedisOptions;
use weir_reconciler::ReconcilerOptions;
use weir_runtime::listener::ListenerOptions;
use weir_runtime::secrets::SecretRef;
use weir_runtime::telemetry;
use weir_runtime::units::{ByteSize, HumanDuration};
#[cfg(feature = "kafka")]
use weir_streams::kafka::KafkaOptions;
use weir_streams::segment::SegmentOptions;

pub use load::{ConfigError, ConfigProblem, Environment};
#[cfg(all(feature = "kafka", feature = "cql", feature = "redis"))]
pub use stores::StoresApart;

/// All of `weir.toml`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub process: ProcessOptions,
    pub listen: ListenOptions,
    /// Bounds of the gateway's listener.
    pub listener: ListenerOptions,
    pub gateway: GatewayOptions,
    pub upstream: UpstreamSection,
    pub log: LogOptions,
    pub ledger: LedgerOptions,
    pub control: ControlOptions,
    pub quota: QuotaOptions,
    pub reconciler: ReconcilerOptions,
    pub secrets: SecretOptions,
    pub telemetry: telemetry::Options,
}

/// The process itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ProcessOptions {
    /// Everything that must survive a restart: log, ledger, control store, secrets. One process at a time.
    pub data: PathBuf,
    /// What this process is called in heartbeats; absent: its role and its number on this machine.
    pub name: Option<String>,
    /// How long the control plane may be silent before a role apart says that it is not ready, because its policy may be
    /// too old; absent: for ever.
    pub policy_max_age: Option<HumanDuration>,
    /// Threads that serve HTTP; absent: one per core.
    pub worker_threads: Option<usize>,
    /// How long the consumers may take at a stop to derive what was appended. What is left is derived at the next start.
    pub settle: HumanDuration,
}

/// Where the process listens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ListenOptions {
    /// For applications. Port 0 takes a free one.
    #[schemars(with = "String")]
    pub gateway: SocketAddr,
    /// For operators; loopback only, because it speaks plain HTTP.
    #[schemars(with = "String")]
    pub admin: SocketAddr,
    /// For supervisors and scrapers, of roles that serve nobody else: `weir ledger` and `weir reconciler`.
    #[schemars(with = "String")]
    pub probes: SocketAddr,
    /// A PEM chain, leaf first: the gateway then speaks TLS.
    pub certificate_file: Option<PathBuf>,
    /// The certificate's key, PEM.
    pub key_file: Option<PathBuf>,
}

/// Connections to providers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct UpstreamSection {
    /// The only authorities to trust, PEM; absent: Mozilla's, compiled in.
    pub ca_file: Option<PathBuf>,
    pub connect_timeout: HumanDuration,
    /// How long an idle connection is kept. Shorter than providers keep theirs, so that no request crosses a close.
    pub idle_timeout: HumanDuration,
    pub max_idle_per_host: usize,
}

/// The embedded event log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LogOptions {
    /// A segment is closed once it is this large.
    pub segment: ByteSize,
    /// Memory for the newest batches of each topic, so that consumers that keep up read no file.
    pub tail: ByteSize,
    /// What may wait for the disk; beyond it new requests get 503.
    pub queue: ByteSize,
    /// The log of roles apart; absent: segments in the data folder, as said above.
    #[cfg(feature = "kafka")]
    pub kafka: Option<KafkaOptions>,
}

/// The ledger's builder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LedgerOptions {
    /// Events after which a checkpoint is due: what a start folds at most.
    pub checkpoint_events: u64,
    /// Time after which one is due if anything came.
    pub checkpoint_every: HumanDuration,
    /// How many stay; more than one, because the newest may turn out to be damaged.
    pub checkpoints_kept: usize,
    /// The ledger of several machines; absent: a file in the data folder.
    pub cql: Option<CqlOptions>,
}

/// The control plane: tenants, keys and catalogs.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ControlOptions {
    /// The control store of roles apart, where it is not to be in the keyspace of their ledger. In one process it is a
    /// file in the data folder.
    pub cql: Option<CqlOptions>,
}

/// The embedded quota store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct QuotaOptions {
    /// How long an ended reservation is remembered, so that a repeated command finds it. In one process no reply is
    /// ever lost, so minutes do; an `Idempotency-Key` is remembered for its own life in any case.
    pub retry_horizon: HumanDuration,
    /// The quota store of several gateways; absent: in the memory of the one process.
    #[cfg(feature = "redis")]
    pub redis: Option<RedisOptions>,
}

/// Where secrets are. What is absent is made once in the data folder, mode 0600.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SecretOptions {
    /// Under which virtual keys are hashed. Another one makes every key invalid.
    pub pepper: Option<SecretRef>,
    /// Around the tenants' secrets. Another one makes the control store unreadable.
    pub master_key: Option<SecretRef>,
    /// What commands present to the admin API.
    pub admin_token: Option<SecretRef>,
}

impl Default for ProcessOptions {
    fn default() -> Self {
        Self {
            data: PathBuf::from("weir-data"),
            name: None,
            policy_max_age: None,
            worker_threads: None,
            settle: HumanDuration::from_secs(10),
        }
    }
}

impl Default for ListenOptions {
    fn default() -> Self {
        Self {
            gateway: SocketAddr::from(([127, 0, 0, 1], 8080)),
            admin: SocketAddr::from(([127, 0, 0, 1], 8081)),
            probes: SocketAddr::from(([127, 0, 0, 1], 8082)),
            certificate_file: None,
            key_file: None,
        }
    }
}

impl Default for UpstreamSection {
    fn default() -> Self {
        let UpstreamOptions { connect_timeout, idle_timeout, max_idle_per_host, .. } = UpstreamOptions::default();
        Self {
            ca_file: None,
            connect_timeout: human(connect_timeout),
            idle_timeout: human(idle_timeout),
            max_idle_per_host,
        }
    }
}

impl UpstreamSection {
    #[must_use]
    pub fn options(&self) -> UpstreamOptions {
        UpstreamOptions {
            connect_timeout: self.connect_timeout.duration(),
            idle_timeout: self.idle_timeout.duration(),
            max_idle_per_host: self.max_idle_per_host,
            ..UpstreamOptions::default()
        }
    }
}

impl Default for LogOptions {
    fn default() -> Self {
        let SegmentOptions { segment_bytes, tail_bytes, queue_bytes, .. } = SegmentOptions::new("");
        let size = |bytes: usize| ByteSize::from_bytes(bytes as u64);
        Self {
            segment: ByteSize::from_bytes(segment_bytes),
            tail: size(tail_bytes),
            queue: size(queue_bytes),
            #[cfg(feature = "kafka")]
            kafka: None,
        }
    }
}

impl LogOptions {
    #[must_use]
    pub fn options(&self, folder: PathBuf) -> SegmentOptions {
        SegmentOptions {
            segment_bytes: self.segment.bytes(),
            tail_bytes: self.tail.as_usize(),
            queue_bytes: self.queue.as_usize(),
            ..SegmentOptions::new(folder)
        }
    }
}

impl Default for LedgerOptions {
    fn default() -> Self {
        let CheckpointOptions { every_events, every_ms, keep } = CheckpointOptions::default();
        Self {
            checkpoint_events: every_events,
            checkpoint_every: HumanDuration::from_ms(u64::try_from(every_ms).unwrap_or(0)),
            checkpoints_kept: keep,
            cql: None,
        }
    }
}

impl LedgerOptions {
    #[must_use]
    pub fn checkpoints(&self) -> CheckpointOptions {
        CheckpointOptions {
            every_events: self.checkpoint_events,
            every_ms: ms(self.checkpoint_every),
            keep: self.checkpoints_kept,
        }
    }
}

impl Default for QuotaOptions {
    fn default() -> Self {
        Self {
            retry_horizon: HumanDuration::from_secs(10 * 60),
            #[cfg(feature = "redis")]
            redis: None,
        }
    }
}

impl QuotaOptions {
    #[must_use]
    pub fn book(&self) -> BookOptions {
        BookOptions { retry_horizon_ms: ms(self.retry_horizon) }
    }
}

/// The JSON schema of `weir.toml`, which ships as `schemas/config/weir.schema.json`.
///
/// # Errors
/// Of the library, for a schema that is no JSON.
pub fn json_schema() -> Result<String, serde_json::Error> {
    serde_json::to_string_pretty(&schemars::schema_for!(Config)).map(|schema| schema + "\n")
}

fn human(duration: Duration) -> HumanDuration {
    HumanDuration::from_ms(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}

/// Milliseconds as the domain counts them.
pub(crate) fn ms(duration: HumanDuration) -> i64 {
    i64::try_from(duration.as_ms()).unwrap_or(i64::MAX)
}
