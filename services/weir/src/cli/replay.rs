//! `weir replay --verify`.

use std::collections::HashMap;
use std::time::Duration;

use clap::Args;
use serde::Deserialize;
use serde_json::{Value, json};

use weir_domain::calendar::Window;
use weir_domain::ids::{KeyId, ModelName, TeamId, TenantId};
use weir_domain::quota::{Counter, CounterReading, Scope, Subject};
use weir_ledger::verify::{Counters, VerifyOptions, VerifyReport, verify_folder, verify_log};

use super::admin::{Admin, AdminArgs};
use super::beside::{block_on, open_ledger, open_log, tenants};
use super::key::text;
use super::progress::Progress;
use super::{Failure, Output, failure};

#[derive(Debug, Args)]
pub(super) struct ReplayArgs {
    /// Fold the log from its first record and compare every line, row and counter with what is stored.
    #[arg(long, required = true)]
    verify: bool,
    /// Do not ask the running process for its counters; while it admits, they are ahead of what is compared.
    #[arg(long)]
    without_counters: bool,
    /// Print at most this many differences; all are counted.
    #[arg(long, default_value_t = 20)]
    most: usize,
    #[command(flatten)]
    admin: AdminArgs,
}

/// Requests that end between two looks make a difference that is none; it is gone at the next look.
const LOOKS: usize = 3;
const BETWEEN_LOOKS: Duration = Duration::from_millis(500);

pub(super) fn run(args: &ReplayArgs, output: &Output) -> Result<(), Failure> {
    let config = args.admin.config.load()?;
    let admin = if args.without_counters { None } else { args.admin.connect_if_running()? };
    let look = || -> Result<VerifyReport, Failure> {
        let counters = admin.as_ref().map(|admin| counters(admin, args)).transpose()?;
        let options = VerifyOptions { book: config.book(), counters: counters.as_ref(), most_differences: args.most };
        block_on(verify(args, options))?
    };
    let progress = Progress::begin("folding the log");
    let mut report = look()?;
    for _ in 1..LOOKS {
        if admin.is_none() || report.differences.is_empty() {
            break;
        }
        std::thread::sleep(BETWEEN_LOOKS);
        report = look()?;
    }
    drop(progress);
    told(&report, admin.is_some(), output)
}

async fn verify(args: &ReplayArgs, options: VerifyOptions<'_>) -> Result<VerifyReport, Failure> {
    let ledger = open_ledger(&args.admin.config).await?;
    let verified = match open_log(&args.admin.config).await? {
        Some(log) => verify_log(&*log, &*ledger, options).await,
        None => verify_folder(&args.admin.config.data_folder()?.log(), &*ledger, options).await,
    };
    verified.map_err(|error| Failure::failed(&error))
}

fn told(report: &VerifyReport, has_counters: bool, output: &Output) -> Result<(), Failure> {
    let differing = u64::try_from(report.differences.len()).unwrap_or(u64::MAX) + report.more_differences;
    if output.is_json {
        let differences: Vec<String> = report.differences.iter().map(ToString::to_string).collect();
        let told = json!({
            "agrees": differing == 0,
            "events": report.events,
            "reservations": report.reservations,
            "lines": report.lines,
            "charged": report.charged,
            "counters": report.counters,
            "counters_of_process": has_counters,
            "left_out": report.left_out,
            "not_built_yet": report.not_built_yet,
            "differing": differing,
            "differences": differences,
        });
        output.line(&told.to_string())?;
    } else {
        let VerifyReport { events, reservations, lines, charged, counters, left_out, not_built_yet, .. } = report;
        let charged = crate::story::amounts(*charged);
        output.line(&format!("folded {events} events of {reservations} reservations: {lines} lines, {charged}"))?;
        let of_process = if has_counters { ", also with the running process" } else { "" };
        output.line(&format!("compared {counters} counters{of_process}"))?;
        if left_out + not_built_yet > 0 {
            output
                .line(&format!("{left_out} records are parked or unreadable, {not_built_yet} not in the ledger yet"))?;
        }
        report.differences.iter().try_for_each(|difference| output.line(&format!("  {difference}")))?;
    }
    if differing == 0 {
        return if output.is_json { Ok(()) } else { output.line("log, ledger and counters agree") };
    }
    Err(Failure::new(failure::FAILED, format!("log and ledger disagree in {differing} places")))
}

/// What the running process counts, by tenant.
fn counters(admin: &Admin, args: &ReplayArgs) -> Result<Counters, Failure> {
    let mut counters = HashMap::new();
    for id in tenants(&args.admin.config)?.into_values() {
        let shown = admin.get("counters", &[("tenant", id.as_str())])?;
        counters.insert(TenantId::new(text(&shown, "tenant")), readings(&shown)?);
    }
    Ok(counters)
}

/// A counter as the admin API shows it.
#[derive(Debug, Deserialize)]
struct Shown {
    subject: String,
    id: Option<String>,
    model: Option<ModelName>,
    window: Window,
    #[serde(flatten)]
    counter: Counter,
}

fn readings(shown: &Value) -> Result<Vec<CounterReading>, Failure> {
    let shown = shown.get("counters").cloned().unwrap_or_default();
    let shown: Vec<Shown> = serde_json::from_value(shown).map_err(|error| Failure::failed(&error))?;
    Ok(shown.into_iter().filter_map(Shown::reading).collect())
}

impl Shown {
    /// `None` for a subject that this program does not know.
    fn reading(self) -> Option<CounterReading> {
        let subject = match (self.subject.as_str(), self.id) {
            ("tenant", _) => Subject::Tenant,
            ("team", Some(id)) => Subject::Team(TeamId::from(id)),
            ("key", Some(id)) => Subject::Key(KeyId::from(id)),
            _ => return None,
        };
        Some(CounterReading { scope: Scope { subject, model: self.model }, window: self.window, counter: self.counter })
    }
}
