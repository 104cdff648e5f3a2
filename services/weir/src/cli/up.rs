//! `weir up`.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use serde_json::json;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};

use weir_runtime::{listener, telemetry, tls};

use super::stub::ScriptArgs;
use super::{ConfigArgs, Failure, Output, failure};
use crate::config::Config;
use crate::up::{CatalogSource, Start, Stopped, Weir};

#[derive(Debug, Args)]
pub(super) struct UpArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Where applications connect, instead of the configured address; port 0 takes a free one.
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Where operators connect, instead of the configured address.
    #[arg(long, value_name = "ADDRESS")]
    admin_listen: Option<SocketAddr>,
    /// A catalog to apply at the start; without it, what was applied last is in force.
    #[arg(long, value_name = "FILE", conflicts_with = "quickstart")]
    catalog: Option<PathBuf>,
    /// No files: OPENAI_API_KEY from the environment, well-known models, one tenant, a first key printed once.
    #[arg(long)]
    quickstart: bool,
    /// Run a scripted provider as well; without --catalog the quickstart's models are served by it.
    #[arg(long, conflicts_with = "quickstart")]
    with_stub: bool,
    /// Where the stub listens; port 0 takes a free one.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    stub_listen: SocketAddr,
    #[command(flatten)]
    scripts: ScriptArgs,
}

impl UpArgs {
    fn start(&self) -> Result<Start, Failure> {
        let mut config = self.config.load()?;
        config.listen.gateway = self.listen.unwrap_or(config.listen.gateway);
        config.listen.admin = self.admin_listen.unwrap_or(config.listen.admin);
        config.check().map_err(|error| Failure::usage(&error))?;
        let catalog = match (&self.catalog, self.quickstart, self.with_stub) {
            (Some(file), _, _) => CatalogSource::File(file.clone()),
            (None, true, _) => CatalogSource::Quickstart,
            (None, false, true) => CatalogSource::Stub,
            (None, false, false) => CatalogSource::Stored,
        };
        let stub = if self.with_stub { Some(self.scripts.options(self.stub_listen)?) } else { None };
        Ok(Start { catalog, stub, ..Start::new(config) })
    }
}

pub(super) fn run(args: &UpArgs, output: &Output) -> Result<(), Failure> {
    let start = args.start()?;
    let _flush = telemetry::init(&start.config.telemetry).map_err(|error| Failure::usage(&error))?;
    tls::install_provider();
    listener::raise_file_limit().map_err(|error| Failure::failed(&error))?;
    let runtime = runtime(start.config.process.worker_threads)?;
    let ended = runtime.block_on(serve(start, output));
    // What still runs was given up on: a second signal, or a task that blocks its thread.
    runtime.shutdown_background();
    ended
}

async fn serve(start: Start, output: &Output) -> Result<(), Failure> {
    let mut signals = Signals::new().map_err(|error| Failure::failed(&error))?;
    let config = start.config.clone();
    let weir = Weir::start(start).await.map_err(|error| Failure::failed(&error))?;
    greet(&weir, &config, output)?;
    signals.next().await;
    tokio::select! {
        stopped = weir.stop() => told(&stopped),
        () = signals.next() => {
            Err(Failure::new(failure::FAILED, "stopped at once by a second signal; the next start goes on from the log".to_owned()))
        }
    }
}

fn told(stopped: &Stopped) -> Result<(), Failure> {
    if stopped.is_settled {
        return Ok(());
    }
    let message = "stopped before everything was derived from the log; the next start does the rest".to_owned();
    Err(Failure::new(failure::FAILED, message))
}

fn greet(weir: &Weir, config: &Config, output: &Output) -> Result<(), Failure> {
    let (addresses, data) = (&weir.addresses, config.process.data.display());
    let first_key = weir.first_key.as_ref().map(weir_control::VirtualKey::expose);
    if output.is_json {
        let greeting = json!({
            "gateway_url": addresses.gateway_url,
            "admin_url": addresses.admin_url,
            "stub_url": addresses.stub_url,
            "first_key": first_key,
        });
        return output.line(&greeting.to_string());
    }
    output.line(&format!("weir is up. Base URL for OpenAI clients: {}/v1", addresses.gateway_url))?;
    output.line(&format!("  admin API  {}, token in {data}/secrets/admin.token", addresses.admin_url))?;
    if let Some(url) = &addresses.stub_url {
        output.line(&format!("  stub       {url}/v1"))?;
    }
    if let Some(key) = first_key {
        output.line(&format!("  first key  {key}   (shown this once: keep it)"))?;
    }
    Ok(())
}

/// Threads for HTTP: `workers`, or one per core.
pub(super) fn runtime(workers: Option<usize>) -> Result<Runtime, Failure> {
    let mut builder = Builder::new_multi_thread();
    if let Some(workers) = workers {
        builder.worker_threads(workers);
    }
    builder.enable_all().thread_name("weir-http").build().map_err(|error| Failure::failed(&error))
}

/// SIGTERM and SIGINT.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    pub(super) async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Resolves at the first SIGTERM or SIGINT.
pub(super) async fn signalled() -> io::Result<()> {
    Signals::new()?.next().await;
    Ok(())
}
