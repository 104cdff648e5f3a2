//! `weir contract`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use tokio::runtime::Runtime;

use weir_runtime::entropy::{Entropy as _, OsEntropy};
use weir_runtime::listener;
use weir_stub::Stub;

use super::progress::Progress;
use super::stub::ScriptArgs;
use super::up::runtime;
use super::{Failure, Output, failure};
use crate::contract::report::{self, Transcripts};
use crate::contract::{ALL, Clause, Gateway, GatewayError, Pair, Plan, Provider, Verdict, find, run as play, setup};

#[derive(Debug, Args)]
#[command(after_long_help = setup::WHAT_TO_CONFIGURE)]
pub(super) struct ContractArgs {
    /// The gateway under test, without `/v1`.
    #[arg(required_unless_present_any = ["setup", "list"])]
    url: Option<String>,
    /// A key of it that may use the contract's models.
    #[arg(long, value_name = "KEY", env = "WEIR_CONTRACT_KEY", hide_env_values = true, default_value = "")]
    key: String,
    /// A stub that runs already, as the gateway reaches it; without it, one is started here.
    #[arg(long, value_name = "URL")]
    stub: Option<String>,
    /// Where the stub listens that is started here.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9090", conflicts_with = "stub")]
    stub_listen: SocketAddr,
    /// Only these pairs of APIs, such as `chat-openai`; may be repeated.
    #[arg(long = "pair", value_name = "PAIR")]
    pairs: Vec<Pair>,
    /// Only these clauses; may be repeated.
    #[arg(long = "clause", value_name = "ID", value_parser = known_clause)]
    clauses: Vec<&'static Clause>,
    /// How long an answer is waited for, seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    patience: u64,
    /// How many clauses are played at once.
    #[arg(long, value_name = "N", default_value_t = 8)]
    at_once: usize,
    /// Whose certificates are believed, instead of the well-known ones.
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,
    /// Fail also where the gateway differs honestly.
    #[arg(long)]
    strict: bool,
    /// Write the results as JUnit XML.
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Write every byte that came, with its time, a file for each clause.
    #[arg(long, value_name = "DIR")]
    transcripts: Option<PathBuf>,
    /// Print what the gateway under test must have in its configuration, and end.
    #[arg(long, value_name = "FORMAT")]
    setup: Option<setup::Format>,
    /// List the clauses, and end.
    #[arg(long)]
    list: bool,
}

fn known_clause(id: &str) -> Result<&'static Clause, String> {
    find(id).ok_or_else(|| format!("there is no clause `{id}`; `weir contract --list` lists them"))
}

pub(super) fn run(args: &ContractArgs, output: &Output) -> Result<(), Failure> {
    let pairs = if args.pairs.is_empty() { Pair::ALL.to_vec() } else { args.pairs.clone() };
    if args.list {
        return list(output);
    }
    if let Some(format) = args.setup {
        let stub = args.stub.clone().unwrap_or_else(|| format!("http://{}", args.stub_listen));
        return output.line(setup::configuration(format, &pairs, &stub).trim_end());
    }
    let Some(url) = &args.url else { return Err(Failure::new(failure::USAGE, "no URL".to_owned())) };
    let runtime = runtime(None)?;
    let (stub, stub_url) = stub(args, &runtime)?;
    let patience = Duration::from_secs(args.patience);
    let gateway = Gateway::new(url, &args.key, args.ca_file.as_deref(), patience);
    let gateway = gateway.map_err(|error| Failure::usage(&error))?;
    runtime.block_on(gateway.answers()).map_err(|error| match error {
        GatewayError::Silent { .. } => Failure::missing(&error),
        GatewayError::Address(_) | GatewayError::Key | GatewayError::Tls(_) => Failure::usage(&error),
    })?;
    let provider = Provider::connect(&stub_url).map_err(|error| Failure::missing(&error))?;
    let transcripts = Transcripts::below(args.transcripts.clone(), &pairs).map_err(|error| Failure::failed(&error))?;
    let clauses = if args.clauses.is_empty() { ALL.iter().collect() } else { args.clauses.clone() };
    let mut run = [0; 8];
    OsEntropy.fill(&mut run);
    let run = format!("{:016x}", u64::from_be_bytes(run));
    let plan = Plan { clauses, pairs, at_once: args.at_once, run };
    let progress = Progress::begin("playing the clauses");
    let played = play(&plan, &gateway, &provider, &transcripts, runtime.handle());
    drop(progress);
    let played = played.map_err(|error| Failure::missing(&error))?;
    if let Some(file) = &args.junit {
        std::fs::write(file, report::junit(&played)).map_err(|error| Failure::failed(&error))?;
    }
    if output.is_json {
        output.line(&report::json(url, &played).to_string())?;
    } else {
        output.line(report::table(&played).trim_end())?;
    }
    drop(stub);
    let broken = report::count(&played, Verdict::Fail);
    let differing = if args.strict { report::count(&played, Verdict::Differs) } else { 0 };
    if broken + differing == 0 {
        return Ok(());
    }
    let message = format!("{} of {} clauses are not kept", broken + differing, played.len());
    Err(Failure::new(failure::FAILED, message))
}

/// The stub that was named, or one of its own.
fn stub(args: &ContractArgs, runtime: &Runtime) -> Result<(Option<Stub>, String), Failure> {
    if let Some(url) = &args.stub {
        return Ok((None, url.clone()));
    }
    listener::raise_file_limit().map_err(|error| Failure::failed(&error))?;
    let options = ScriptArgs::default().options(args.stub_listen)?;
    let stub = runtime.block_on(async { Stub::start(options) }).map_err(|error| Failure::failed(&error))?;
    let url = stub.url();
    Ok((Some(stub), url))
}

fn list(output: &Output) -> Result<(), Failure> {
    for clause in ALL {
        let Clause { id, title, injected, source, .. } = clause;
        if output.is_json {
            let line = serde_json::json!({"id": id, "title": title, "injected": injected, "source": source});
            output.line(&line.to_string())?;
        } else {
            output.line(&format!("{id:<18}{title}\n{:<18}{injected} ({source})", ""))?;
        }
    }
    Ok(())
}
