//! The commands.
//!
//! What changes something asks the running process, through its admin API: one process owns the stores, and its answer
//! means that the change is in force. What only reads works beside it, from the data folder, also when nothing runs.
//!
//! | code | meaning |
//! |---|---|
//! | 0 | done |
//! | 1 | refused or failed; nothing changed unless the message says so |
//! | 2 | wrong usage or configuration |
//! | 3 | not found, or the process that is asked does not run |

mod role;
mod up;

mod catalog;
mod check_config;
mod import;
mod key;

mod budget;
mod ledger;
mod migrate;
mod pending;
mod reconcile;
mod dead_letters;
mod quota;
mod replay;
mod show;
#[cfg(feature = "kafka")]
mod spool;
mod topics;

mod completions;
mod contract;
mod stub;

mod admin;
mod beside;
mod failure;
mod progress;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::config::{Config, Environment};
use crate::data::DataFolder;

pub use failure::Failure;

/// For scripts; the same for every command.
const EXIT_CODES: &str = "Exit codes:
  0  done
  1  refused or failed; nothing changed unless the message says so
  2  wrong usage or configuration
  3  not found, or the process that is asked does not run

With --json, results are JSON on standard output, and errors are {\"error\", \"code\"} on standard error.";

/// An AI gateway whose accounting is a log.
#[derive(Debug, Parser)]
#[command(
    name = "weir",
    version,
    max_term_width = 110,
    arg_required_else_help = true,
    after_help = "`weir help` tells the exit codes as well.",
    after_long_help = EXIT_CODES
)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Print JSON, for programs.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run all roles in this process.
    Up(up::UpArgs),
    /// Serve applications, on the configured servers.
    Gateway(role::RoleArgs),
    /// Build the ledger from the log, on the configured servers; or, with an act: what was charged.
    Ledger(ledger::LedgerArgs),
    /// End what did not end by itself, match reports, correct and rebuild counters, on the configured servers.
    Reconciler(role::RoleArgs),
    /// Serve operators and publish the policy, on the configured servers.
    Control(role::ControlArgs),
    /// Read weir.toml and the environment, and print what would be in force.
    CheckConfig(check_config::CheckConfigArgs),
    /// Tenants, models, limits and prices.
    Catalog(catalog::CatalogArgs),
    /// Virtual keys.
    Key(key::KeyArgs),
    /// Limits and counters.
    Budget(budget::BudgetArgs),
    /// Tell the story of one request: every event, hold, attempt, charge and ledger line.
    Show(show::ShowArgs),
    /// List the reservations that wait for somebody who knows what was used.
    Pending(pending::PendingArgs),
    /// Usage reports.
    Reconcile(reconcile::ReconcileArgs),
    /// Prove ledger and counters from the log.
    Replay(replay::ReplayArgs),
    /// Keys whose records cannot be applied and wait for a person.
    DeadLetters(dead_letters::DeadLettersArgs),
    /// The store of the counters.
    Quota(quota::QuotaArgs),
    /// What a gateway kept while the brokers did not answer.
    #[cfg(feature = "kafka")]
    Spool(spool::SpoolArgs),
    /// Bring the ledger's tables up to date.
    Migrate(migrate::MigrateArgs),
    /// List the topics: what each is for, how long it is kept, and how far it is written.
    Topics(topics::TopicsArgs),
    /// Print a script that completes commands and options in a shell.
    Completions(completions::CompletionsArgs),
    /// Run a scripted provider, for demos and tests.
    Stub(stub::StubArgs),
    /// Test what any gateway does to a stream when its provider misbehaves.
    Contract(Box<contract::ContractArgs>),
}

/// Which configuration.
#[derive(Debug, Clone, Default, Args)]
pub struct ConfigArgs {
    /// The configuration; without it, ./weir.toml where there is one, else the defaults.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The data folder, instead of the configured one.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
}

const USUAL_FILE: &str = "weir.toml";

impl ConfigArgs {
    fn load(&self) -> Result<Config, Failure> {
        let usual = PathBuf::from(USUAL_FILE);
        let file = self.config.clone().or_else(|| usual.is_file().then_some(usual));
        let mut config =
            Config::load(file.as_deref(), &Environment::of_process()).map_err(|error| Failure::usage(&error))?;
        if let Some(data) = &self.data {
            config.process.data.clone_from(data);
        }
        Ok(config)
    }

    /// Whether the stores are servers, rather than files of a data folder.
    fn has_servers(&self) -> Result<bool, Failure> {
        Ok(self.load()?.check_embedded().is_err())
    }

    /// The folder of the process that runs, or ran.
    fn data_folder(&self) -> Result<DataFolder, Failure> {
        DataFolder::existing(&self.load()?.process.data).map_err(|error| Failure::missing(&error))
    }
}

/// Where results go. A reader that leaves early, such as `head`, is no error.
#[derive(Debug)]
pub struct Output {
    is_json: bool,
}

impl Output {
    fn line(&self, text: &str) -> Result<(), Failure> {
        let written = writeln!(io::stdout().lock(), "{text}").and_then(|()| io::stdout().flush());
        match written {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::failed(&error)),
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

/// The whole program.
#[must_use]
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(usage) => {
            // Help and version are asked for; everything else is a wrong usage.
            let code = if usage.use_stderr() { failure::USAGE } else { 0 };
            return if usage.print().is_ok() { ExitCode::from(code) } else { ExitCode::from(failure::FAILED) };
        }
    };
    let output = Output { is_json: cli.json };
    match run(cli.command, &output) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(cli.json),
    }
}

fn run(command: Command, output: &Output) -> Result<(), Failure> {
    match command {
        Command::Up(args) => up::run(&args, output),
        Command::Gateway(args) => role::gateway(&args, output),
        Command::Reconciler(args) => role::reconciler(&args, output),
        Command::Control(args) => role::control(&args, output),
        Command::CheckConfig(args) => check_config::run(&args, output),
        Command::Catalog(args) => catalog::run(&args, output),
        Command::Key(args) => key::run(&args, output),
        Command::Budget(args) => budget::run(&args, output),
        Command::Ledger(args) => ledger::run(&args, output),
        Command::Pending(args) => pending::run(&args, output),
        Command::Reconcile(args) => reconcile::run(&args, output),
        Command::Replay(args) => replay::run(&args, output),
        Command::DeadLetters(args) => dead_letters::run(&args, output),
        Command::Quota(args) => quota::run(&args, output),
        #[cfg(feature = "kafka")]
        Command::Spool(args) => spool::run(&args, output),
        Command::Migrate(args) => migrate::run(&args, output),
        Command::Topics(args) => topics::run(&args, output),
        Command::Completions(args) => completions::run(&args, output),
        Command::Show(args) => show::run(&args, output),
        Command::Stub(args) => stub::run(&args, output),
        Command::Contract(args) => contract::run(&args, output),
    }
}
