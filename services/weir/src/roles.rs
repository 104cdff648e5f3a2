//! The roles, each in a process of its own, on Kafka, CQL and Redis.
//!
//! ```text
//!   gateway      applications ▶ quota (Redis), log (Kafka; a spool while the brokers are away), policy from the log
//!   ledger       log ▶ ledger (CQL), weir.ledger, weir.usage; one builder a partition, shared out by a consumer group
//!   reconciler   sweep, reports, corrector, rebuild of the counters; who lives from weir.operations
//!   control      admin API, keys, catalog ▶ weir.snapshots, weir.revocations; schema reads
//! ```
//!
//! Any number of each may run. The rules are the same as in [`up`](crate::up), which is all of them on embedded stores.
//! Each starts while its stores are away: it listens at once, says by `/readyz` and in its log what it waits for, and
//! begins when that answers.

mod control;
mod gateway;
mod groups;
mod ground;
mod ledger;
mod rebuilder;
mod reconciler;
mod watch;

use std::net::SocketAddr;
use std::path::PathBuf;

use thiserror::Error;
use tokio::net::TcpListener;

use weir_control::catalog::TomlError;
use weir_domain::price::PriceBookError;
use weir_ledger::contract::LedgerError;
use weir_quota::QuotaError;
use weir_quota::redis::RedisOptionsError;
use weir_runtime::clock::SharedClock;
use weir_runtime::entropy::SharedEntropy;
use weir_runtime::listener::{ListenError, bind};
use weir_runtime::tls::TlsError;
use weir_streams::kafka::{GroupError, OpenError};
use weir_streams::spool::SpoolError;

use crate::config::{Config, ConfigError};
use crate::data::{DataError, Url};
use crate::up::PolicyError;
use crate::up::edges::reachable;
use crate::up::upkeep::conditions;

use ground::Ground;

pub use ground::Stop;

/// What a process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Gateway,
    Ledger,
    Reconciler,
    Control,
}

impl Role {
    /// As it is typed, and as heartbeats name it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gateway => "gateway",
            Self::Ledger => "ledger",
            Self::Reconciler => "reconciler",
            Self::Control => "control",
        }
    }

    /// What must hold before it says that it is ready, from its first moment on: a probe that comes between two stores
    /// must not take what is not looked at yet for what is well.
    const fn conditions(self) -> &'static [&'static str] {
        match self {
            Self::Gateway => &[conditions::LOG, conditions::QUOTA, conditions::CATALOG],
            Self::Ledger => &[conditions::LOG, conditions::LEDGER],
            Self::Reconciler => &[conditions::LOG, conditions::QUOTA, conditions::LEDGER, reconciler::CONSUMERS],
            Self::Control => &[conditions::CONTROL, conditions::LOG, conditions::QUOTA, conditions::LEDGER],
        }
    }

    /// Where it listens.
    const fn address(self, config: &Config) -> SocketAddr {
        match self {
            Self::Gateway => config.listen.gateway,
            Self::Control => config.listen.admin,
            Self::Ledger | Self::Reconciler => config.listen.probes,
        }
    }
}

/// Why a role does not run. Stores that are away are not among it: they are waited for.
#[derive(Debug, Error)]
pub enum RoleError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Data(#[from] DataError),
    #[error(transparent)]
    Listen(#[from] ListenError),
    #[error("the listener cannot be used")]
    Socket(#[from] std::io::Error),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error(transparent)]
    Policy(#[from] PolicyError),
    #[error("the log on Kafka cannot be used")]
    Kafka(#[from] OpenError),
    #[error("the spool cannot be used; each gateway needs a data folder of its own (--data)")]
    Spool(#[from] SpoolError),
    #[error("the ledger on CQL cannot be used")]
    Ledger(#[from] LedgerError),
    #[error(transparent)]
    RedisOptions(#[from] RedisOptionsError),
    #[error("the quota store on Redis cannot be used")]
    Quota(#[from] QuotaError),
    #[error("the consumer group cannot be joined")]
    Group(#[from] GroupError),
    #[error(transparent)]
    Prices(#[from] PriceBookError),
    #[error(transparent)]
    Toml(#[from] TomlError),
}

/// A role that listens and has not begun.
#[derive(Debug)]
pub struct Apart {
    role: Role,
    ground: Ground,
    listener: TcpListener,
    /// Applied before it begins; of a control plane only.
    catalog: Option<PathBuf>,
    /// Where it can be reached.
    pub url: String,
}

impl Apart {
    /// Checks what can be checked without the stores, and listens.
    ///
    /// # Errors
    /// [`RoleError`].
    pub fn prepare(
        role: Role,
        config: Config,
        catalog: Option<PathBuf>,
        clock: SharedClock,
        entropy: SharedEntropy,
    ) -> Result<Self, RoleError> {
        let stores = config.check_apart()?;
        let listener = bind(role.address(&config))?;
        let is_tls = role == Role::Gateway && config.listen.certificate_file.is_some();
        let scheme = if is_tls { "https" } else { "http" };
        let url = format!("{scheme}://{}", reachable(listener.local_addr()?));
        let ground = Ground::lay(role, config, stores, clock, entropy)?;
        Ok(Self { role, ground, listener, catalog, url })
    }

    /// Runs until `stop` is asked for, and ends in order. Says by `/readyz` what it waits for.
    ///
    /// # Errors
    /// [`RoleError`], for what no waiting mends.
    pub async fn run(self, stop: Stop) -> Result<(), RoleError> {
        let Self { role, ground, listener, catalog, url } = self;
        match role {
            Role::Gateway => ground.data.tell(Url::Gateway, &url)?,
            Role::Control => ground.data.tell(Url::Admin, &url)?,
            Role::Ledger | Role::Reconciler => {}
        }
        tracing::info!(role = role.name(), url, name = ground.identity.name, "listening");
        let ran = match role {
            Role::Gateway => gateway::run(&ground, listener, &stop).await,
            Role::Ledger => ledger::run(&ground, listener, &stop).await,
            Role::Reconciler => reconciler::run(&ground, listener, &stop).await,
            Role::Control => control::run(&ground, listener, catalog, &stop).await,
        };
        match role {
            Role::Gateway => ground.data.forget_one(Url::Gateway),
            Role::Control => ground.data.forget_one(Url::Admin),
            Role::Ledger | Role::Reconciler => {}
        }
        tracing::info!(role = role.name(), "stopped");
        ran
    }
}
