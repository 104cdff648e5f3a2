//! `weir ledger export`.

use std::io::{self, BufWriter, Write as _};

use clap::{Args, Subcommand, ValueEnum};

use weir_domain::price::EffectiveMs;
use weir_ledger::export::{ExportError, ExportFormat, ExportRange, export};

use super::beside::{block_on, open_ledger, tenant_id};
use super::key::instant;
use super::progress::Progress;
use super::{ConfigArgs, Failure, Output};

#[derive(Debug, Args)]
pub(super) struct LedgerArgs {
    #[command(subcommand)]
    act: Act,
}

#[derive(Debug, Subcommand)]
enum Act {
    /// Write a tenant's lines to standard output. They sum to its counters, to the last unit.
    Export(ExportArgs),
}

#[derive(Debug, Args)]
struct ExportArgs {
    /// A tenant's name or id.
    #[arg(long)]
    tenant: String,
    /// Lines posted from here on: a date (midnight UTC), or a time with its offset.
    #[arg(long, value_name = "WHEN", value_parser = instant)]
    from: Option<EffectiveMs>,
    /// Lines posted before this.
    #[arg(long, value_name = "WHEN", value_parser = instant)]
    to: Option<EffectiveMs>,
    #[arg(long, value_enum, default_value_t = Format::Csv)]
    format: Format,
    #[command(flatten)]
    config: ConfigArgs,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    Csv,
    Jsonl,
}

pub(super) fn run(args: &LedgerArgs, output: &Output) -> Result<(), Failure> {
    let Act::Export(args) = &args.act;
    let data = args.config.data_folder()?;
    let range = ExportRange {
        tenant: tenant_id(&args.config, &args.tenant)?,
        from_ms: args.from.map_or(i64::MIN, |from| from.0),
        until_ms: args.to.map_or(i64::MAX, |to| to.0),
    };
    let format = match (args.format, output.is_json) {
        (Format::Csv, false) => ExportFormat::Csv,
        (Format::Jsonl, _) | (_, true) => ExportFormat::JsonLines,
    };
    let ledger = open_ledger(&data)?;
    let mut out = BufWriter::new(io::stdout());
    let progress = Progress::beside_results("writing lines");
    let written = block_on(export(&ledger, &range, format, &mut out))?;
    let written = written.and_then(|exported| Ok(out.flush().map(|()| exported)?));
    drop(progress);
    match written {
        Ok(exported) => {
            let total = crate::story::amounts(exported.charged);
            eprintln!("{} lines, {total}", exported.lines);
            Ok(())
        }
        // Whoever read has seen enough.
        Err(ExportError::Write(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(Failure::failed(&error)),
    }
}
