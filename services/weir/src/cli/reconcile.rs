//! `weir reconcile import`.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use serde_json::Value;

use super::admin::{ActorArgs, AdminArgs};
use super::{Failure, Output, failure};

#[derive(Debug, Args)]
pub(super) struct ReconcileArgs {
    #[command(subcommand)]
    act: Act,
}

#[derive(Debug, Subcommand)]
enum Act {
    /// Give usage reports: each settles its pending attempt, or confirms or contradicts a known one. Importing the same
    /// again is harmless; nothing is half imported.
    Import(ImportArgs),
}

#[derive(Debug, Args)]
struct ImportArgs {
    /// JSON lines or CSV; `-` reads standard input.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// How it is written; without it, by the file's name.
    #[arg(long, value_enum)]
    format: Option<Format>,
    #[command(flatten)]
    actor: ActorArgs,
    #[command(flatten)]
    admin: AdminArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Csv,
    Jsonl,
}

impl Format {
    const fn media_type(self) -> &'static str {
        match self {
            Self::Csv => "text/csv",
            Self::Jsonl => "application/x-ndjson",
        }
    }

    fn by_name(file: &Path) -> Result<Self, Failure> {
        match file.extension().and_then(|extension| extension.to_str()) {
            Some("csv") => Ok(Self::Csv),
            Some("jsonl" | "ndjson" | "json") => Ok(Self::Jsonl),
            Some(_) | None => {
                let message =
                    format!("the name {} does not say how it is written: add --format csv or jsonl", file.display());
                Err(Failure::new(failure::USAGE, message))
            }
        }
    }
}

pub(super) fn run(args: &ReconcileArgs, output: &Output) -> Result<(), Failure> {
    let Act::Import(args) = &args.act;
    let format = args.format.map_or_else(|| Format::by_name(&args.file), Ok)?;
    let body = read(&args.file)?;
    let admin = args.admin.connect()?;
    let imported = admin.post("usage-reports", &args.actor.query(), format.media_type(), &body)?;
    if output.is_json {
        return output.line(&imported.to_string());
    }
    let count = imported.get("reports").and_then(Value::as_array).map_or(0, Vec::len);
    output.line(&format!("{count} reports are on the log; `weir show RESERVATION` tells what they settle"))
}

fn read(file: &Path) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let read = if file == Path::new("-") {
        std::io::stdin().lock().read_to_end(&mut bytes).map(|_| bytes)
    } else {
        std::fs::read(file)
    };
    read.map_err(|error| {
        Failure::new(failure::USAGE, format!("{} cannot be read: {error}; name another file", file.display()))
    })
}
