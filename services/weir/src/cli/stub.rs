//! `weir stub`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde_json::json;

use weir_runtime::{listener, telemetry};
use weir_stub::script::Scripts;
use weir_stub::{Stub, StubOptions};

use super::up::{runtime, signalled};
use super::{Failure, Output};

#[derive(Debug, Args)]
pub(super) struct StubArgs {
    /// Where it listens; port 0 takes a free one.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9090")]
    listen: SocketAddr,
    #[command(flatten)]
    scripts: ScriptArgs,
}

#[derive(Debug, Clone, Default, Args)]
pub(super) struct ScriptArgs {
    /// What the stub answers, TOML; without it, short well-behaved answers.
    #[arg(long = "stub-script", value_name = "FILE")]
    script: Option<PathBuf>,
}

impl ScriptArgs {
    pub(super) fn options(&self, listen: SocketAddr) -> Result<StubOptions, Failure> {
        let scripts = match &self.script {
            None => Scripts::default(),
            Some(path) => Scripts::from_file(path).map_err(|error| Failure::usage(&error))?,
        };
        Ok(StubOptions { listen, scripts, ..StubOptions::default() })
    }
}

/// Open answers of a stub matter to nobody for long.
const FINISH: Duration = Duration::from_secs(2);

pub(super) fn run(args: &StubArgs, output: &Output) -> Result<(), Failure> {
    let _flush = telemetry::init(&telemetry::Options::default()).map_err(|error| Failure::failed(&error))?;
    listener::raise_file_limit().map_err(|error| Failure::failed(&error))?;
    let options = args.scripts.options(args.listen)?;
    runtime(None)?.block_on(async {
        let stub = Stub::start(options).map_err(|error| Failure::failed(&error))?;
        let url = stub.url();
        if output.is_json {
            output.line(&json!({ "url": url }).to_string())?;
        } else {
            output.line(&format!("stub provider at {url}/v1, journal at {url}/stub/journal"))?;
        }
        signalled().await.map_err(|error| Failure::failed(&error))?;
        stub.stop(FINISH).await;
        Ok(())
    })
}
