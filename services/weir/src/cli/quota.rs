//! `weir quota rebuild`.

use clap::{Args, Subcommand};
use serde_json::Value;

use super::admin::{AdminArgs, AnswerableArgs};
use super::progress::Progress;
use super::{Failure, Output};

#[derive(Debug, Args)]
pub(super) struct QuotaArgs {
    #[command(subcommand)]
    act: Act,
}

#[derive(Debug, Subcommand)]
enum Act {
    /// Close the running process's counters, fold them from the log again, and open them. Requests meanwhile are
    /// answered with 503 and may be sent again.
    Rebuild(RebuildArgs),
}

#[derive(Debug, Args)]
struct RebuildArgs {
    #[command(flatten)]
    actor: AnswerableArgs,
    #[command(flatten)]
    admin: AdminArgs,
}

pub(super) fn run(args: &QuotaArgs, output: &Output) -> Result<(), Failure> {
    let Act::Rebuild(args) = &args.act;
    let admin = args.admin.connect()?;
    let progress = Progress::begin("folding the counters; nothing is admitted meanwhile");
    let rebuilt = admin.post_and_wait("quota/rebuild", &args.actor.query());
    drop(progress);
    let rebuilt = rebuilt?;
    if output.is_json {
        return output.line(&rebuilt.to_string());
    }
    let figure = |name| rebuilt.get(name).and_then(Value::as_i64).unwrap_or(0);
    let (tenants, reservations, events) = (figure("tenants"), figure("reservations"), figure("events"));
    output.line(&format!(
        "the counters of {tenants} tenants and {reservations} open reservations are folded from the log, {events} events \
         since the checkpoint; nothing was admitted for {} ms",
        figure("closed_ms")
    ))
}
