//! `weir spool forward`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::json;

use weir_streams::spool;

use super::beside::block_on;
use super::progress::Progress;
use super::{ConfigArgs, Failure, Output, failure};

#[derive(Debug, Args)]
pub(super) struct SpoolArgs {
    #[command(subcommand)]
    act: Act,
}

#[derive(Debug, Subcommand)]
enum Act {
    /// Hand the spool of a process that will not come back to Kafka, in order, and wait until the brokers have confirmed
    /// all of it. Doing it again does nothing; a spool that is in use is refused.
    Forward(ForwardArgs),
}

#[derive(Debug, Args)]
struct ForwardArgs {
    /// The folder of the spool.
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    #[command(flatten)]
    config: ConfigArgs,
}

pub(super) fn run(args: &SpoolArgs, output: &Output) -> Result<(), Failure> {
    let Act::Forward(args) = &args.act;
    let Some(kafka) = args.config.load()?.log.kafka else {
        let message = "there is no Kafka to forward to: configure [log.kafka]";
        return Err(Failure::new(failure::USAGE, message.to_owned()));
    };
    let progress = Progress::begin("forwarding the spool");
    let adopted = block_on(spool::adopt(&kafka, &args.folder))?;
    drop(progress);
    let adopted = adopted.map_err(|error| match &error {
        spool::SpoolError::Absent { .. } => Failure::missing(&error),
        spool::SpoolError::Segment { .. }
        | spool::SpoolError::Read { .. }
        | spool::SpoolError::Io { .. }
        | spool::SpoolError::Kafka(_) => Failure::failed(&error),
    })?;
    if output.is_json {
        return output.line(&json!({ "records": adopted.records }).to_string());
    }
    output.line(&match adopted.records {
        0 => "nothing was left to forward".to_owned(),
        records => format!("{records} records are in Kafka; some may have been there before, which is harmless"),
    })
}
