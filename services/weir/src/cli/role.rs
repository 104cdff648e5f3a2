//! `weir gateway`, `weir ledger`, `weir reconciler`, `weir control`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

use super::{ConfigArgs, Failure, Output};

#[derive(Debug, Clone, Args)]
pub(super) struct RoleArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Where it listens, instead of the configured address; port 0 takes a free one.
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// What it is called in heartbeats, instead of the configured name.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
}

#[derive(Debug, Clone, Args)]
pub(super) struct ControlArgs {
    #[command(flatten)]
    role: RoleArgs,
    /// A catalog to apply at the start; without it, what was applied last is in force.
    #[arg(long, value_name = "FILE")]
    catalog: Option<PathBuf>,
}

pub(super) fn gateway(args: &RoleArgs, output: &Output) -> Result<(), Failure> {
    apart::run(apart::Role::Gateway, args, None, output)
}

pub(super) fn ledger(args: &RoleArgs, output: &Output) -> Result<(), Failure> {
    apart::run(apart::Role::Ledger, args, None, output)
}

pub(super) fn reconciler(args: &RoleArgs, output: &Output) -> Result<(), Failure> {
    apart::run(apart::Role::Reconciler, args, None, output)
}

pub(super) fn control(args: &ControlArgs, output: &Output) -> Result<(), Failure> {
    apart::run(apart::Role::Control, &args.role, args.catalog.as_ref(), output)
}

#[cfg(all(feature = "kafka", feature = "cql", feature = "redis"))]
mod apart {
    use std::path::PathBuf;
    use std::sync::Arc;

    use serde_json::json;

    use weir_runtime::clock::SystemClock;
    use weir_runtime::entropy::OsEntropy;
    use weir_runtime::{listener, telemetry, tls};

    use super::super::up::{Signals, runtime};
    use super::super::{Failure, Output, failure};
    use super::RoleArgs;
    use crate::roles::{Apart, Stop};

    pub(super) use crate::roles::Role;

    pub(super) fn run(role: Role, args: &RoleArgs, catalog: Option<&PathBuf>, output: &Output) -> Result<(), Failure> {
        let mut config = args.config.load()?;
        if let Some(address) = args.listen {
            match role {
                Role::Gateway => config.listen.gateway = address,
                Role::Control => config.listen.admin = address,
                Role::Ledger | Role::Reconciler => config.listen.probes = address,
            }
        }
        config.process.name = args.name.clone().or(config.process.name);
        config.check().map_err(|error| Failure::usage(&error))?;
        config.check_apart().map_err(|error| Failure::usage(&error))?;
        let _flush = telemetry::init(&config.telemetry).map_err(|error| Failure::usage(&error))?;
        tls::install_provider();
        listener::raise_file_limit().map_err(|error| Failure::failed(&error))?;
        let runtime = runtime(config.process.worker_threads)?;
        let ended = runtime.block_on(async {
            let clock = SystemClock::shared();
            let prepared = Apart::prepare(role, config, catalog.cloned(), clock, Arc::new(OsEntropy));
            serve(prepared.map_err(|error| Failure::failed(&error))?, role, output).await
        });
        runtime.shutdown_background();
        ended
    }

    async fn serve(apart: Apart, role: Role, output: &Output) -> Result<(), Failure> {
        let mut signals = Signals::new().map_err(|error| Failure::failed(&error))?;
        let (name, url) = (role.name(), &apart.url);
        if output.is_json {
            output.line(&json!({ "role": name, "url": url }).to_string())?;
        } else {
            output.line(&format!("weir {name} listens on {url}; {url}/readyz says what it waits for"))?;
        }
        let (ask, stop) = Stop::new();
        let running = apart.run(stop);
        tokio::pin!(running);
        tokio::select! {
            ended = &mut running => return ended.map_err(|error| Failure::failed(&error)),
            () = signals.next() => ask.send_replace(true),
        };
        tokio::select! {
            ended = &mut running => ended.map_err(|error| Failure::failed(&error)),
            () = signals.next() => {
                Err(Failure::new(failure::FAILED, "stopped at once by a second signal".to_owned()))
            }
        }
    }
}

/// A smaller build, for one machine.
#[cfg(not(all(feature = "kafka", feature = "cql", feature = "redis")))]
mod apart {
    use std::path::PathBuf;

    use super::super::{Failure, Output, failure};
    use super::RoleArgs;

    #[derive(Debug, Clone, Copy)]
    pub(super) enum Role {
        Gateway,
        Ledger,
        Reconciler,
        Control,
    }

    pub(super) fn run(role: Role, _: &RoleArgs, _: Option<&PathBuf>, _: &Output) -> Result<(), Failure> {
        let message = format!(
            "this weir was built without the clients of Kafka, CQL and Redis, so there is no {role:?} apart: build it \
             with its default features, or run `weir up`"
        );
        Err(Failure::new(failure::USAGE, message))
    }
}
