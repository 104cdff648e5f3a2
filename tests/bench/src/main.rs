//! `make bench`: what a request through Weir costs, beside a proxy that does nothing else.
//!
//! One program plays every part but Weir's and the plain load's: the bare proxy, the provider, the load of streams and
//! the report. Each part runs as a process of its own, so that its CPU time can be read from the kernel.
//!
//! **Start** with [`run`], which is the order of a run; then [`case`], what is measured. The figures decide as ratios
//! within one run: machines are shared and noisy.

#![expect(clippy::float_arithmetic, reason = "figures of a benchmark, for people; no amount of money is computed here")]

mod bare;
mod case;
mod cost;
mod error;
mod fold;
mod idle;
mod load;
mod provider;
mod report;
mod run;
mod slow;
mod stack;
mod subject;
mod table;
mod targets;

use std::net::SocketAddr;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use error::BenchError;

/// Weir beside a bare proxy.
#[derive(Debug, Parser)]
#[command(name = "weir-bench", max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure, print a table, and write the report.
    Run(run::RunArgs),
    /// The same with every role apart on real servers; adds its rows to the report.
    Stack(stack::StackArgs),
    /// The proxy that Weir is compared with.
    Bare {
        #[arg(long)]
        listen: SocketAddr,
        /// Where everything is forwarded to.
        #[arg(long)]
        upstream: SocketAddr,
    },
    /// The provider that both call, without a journal.
    Provider {
        #[arg(long)]
        listen: SocketAddr,
    },
}

fn main() -> ExitCode {
    // Thousands of streams are thousands of sockets, in each part.
    if let Err(source) = weir_runtime::listener::raise_file_limit() {
        eprintln!("weir-bench: the limit of open files cannot be raised: {source}");
    }
    let done = match Cli::parse().command {
        Command::Run(args) => run::run(&args),
        Command::Stack(args) => stack::run(&args),
        Command::Bare { listen, upstream } => one_thread(bare::serve(listen, upstream)),
        Command::Provider { listen } => one_thread(provider::serve(listen)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("weir-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn one_thread(work: impl Future<Output = Result<(), BenchError>>) -> Result<(), BenchError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(BenchError::io("a runtime"))?.block_on(work)
}
