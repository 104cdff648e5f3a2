//! `weir ledger export`, and `weir ledger`, the role.

use std::io::{self, BufWriter, Write as _};

use clap::{Args, Subcommand, ValueEnum};

use weir_domain::price::EffectiveMs;
use weir_ledger::export::{ExportError, ExportFormat, ExportRange, export};

use super::beside::{block_on, open_ledger, tenant_id};
use super::key::instant;
use super::progress::Progress;
use super::role::{self, RoleArgs};
use super::{ConfigArgs, Failure, Output};

/// With an act it reads the ledger, without one it is the role that builds it.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct LedgerArgs {
    #[command(subcommand)]
    act: Option<Act>,
    #[command(flatten)]
    role: RoleArgs,
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
    let Some(Act::Export(args)) = &args.act else { return role::ledger(&args.role, output) };
    let range = ExportRange {
        tenant: tenant_id(&args.config, &args.tenant)?,
        from_ms: args.from.map_or(i64::MIN, |from| from.0),
        until_ms: args.to.map_or(i64::MAX, |to| to.0),
    };
    let format = match (args.format, output.is_json) {
        (Format::Csv, false) => ExportFormat::Csv,
        (Format::Jsonl, _) | (_, true) => ExportFormat::JsonLines,
    };
    let mut out = BufWriter::new(io::stdout());
    let progress = Progress::beside_results("writing lines");
    let written = block_on(async {
        let ledger = open_ledger(&args.config).await?;
        Ok::<_, Failure>(export(&*ledger, &range, format, &mut out).await)
    })??;
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
