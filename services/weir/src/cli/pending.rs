//! `weir pending`.

use clap::Args;
use serde_json::json;

use weir_domain::ids::TenantId;
use weir_domain::money::Amounts;
use weir_domain::price::EffectiveMs;
use weir_ledger::contract::{OpenPage, OpenReservation, OpenStatus};
use weir_runtime::clock::{Clock as _, SystemClock};

use super::beside::{block_on, open_ledger, tenant_id};
use super::{ConfigArgs, Failure, Output};

#[derive(Debug, Args)]
pub(super) struct PendingArgs {
    /// Only this tenant's, by name or id.
    #[arg(long)]
    tenant: Option<String>,
    /// At most this many are listed; all are counted.
    #[arg(long, default_value_t = 100)]
    most: usize,
    #[command(flatten)]
    config: ConfigArgs,
}

/// Read at once: a megabyte.
const PAGE: usize = 4096;

pub(super) fn run(args: &PendingArgs, output: &Output) -> Result<(), Failure> {
    let tenant = args.tenant.as_ref().map(|tenant| tenant_id(&args.config, tenant)).transpose()?;
    let (listed, count, held) = block_on(list(args, tenant))??;
    if output.is_json {
        let listed: Vec<_> = listed.iter().map(shown).collect();
        return output.line(&json!({ "count": count, "held": held, "pending": listed }).to_string());
    }
    for one in &listed {
        let OpenReservation { id, tenant, status_since_ms, held, escalated, .. } = one;
        let age = lasting(SystemClock.now_ms().saturating_sub(*status_since_ms));
        let held = crate::story::amounts(*held);
        let flag = if *escalated { ", escalated" } else { "" };
        output.line(&format!("{id}  {tenant}  pending for {age}, holds {held}{flag}"))?;
    }
    output.line(&format!("{count} pending, holding {}", crate::story::amounts(held)))
}

/// The first of them, how many there are, and what all hold.
async fn list(args: &PendingArgs, tenant: Option<TenantId>) -> Result<(Vec<OpenReservation>, usize, Amounts), Failure> {
    let ledger = open_ledger(&args.config).await?;
    let mut page = OpenPage { status: OpenStatus::PendingReconciliation, tenant, after: None, most: PAGE };
    let (mut listed, mut count, mut held) = (Vec::new(), 0_usize, Amounts::ZERO);
    loop {
        let found = ledger.open(page.clone()).await.map_err(|error| Failure::failed(&error))?;
        count += found.len();
        held = found.iter().fold(held, |sum, one| sum + one.held);
        page.after = found.last().map(|last| (last.due_ms, last.id));
        let is_last = found.len() < PAGE;
        listed.extend(found.into_iter().take(args.most.saturating_sub(listed.len())));
        if is_last {
            return Ok((listed, count, held));
        }
    }
}

fn shown(one: &OpenReservation) -> serde_json::Value {
    json!({
        "reservation": one.id,
        "tenant": one.tenant,
        "since": EffectiveMs(one.status_since_ms),
        "held": one.held,
        "escalated": one.escalated,
    })
}

/// A time that passed, as people say it: `40 s`, `7 min`, `2 h 3 min`.
pub(super) fn lasting(ms: i64) -> String {
    let seconds = ms.max(0) / 1000;
    match (seconds / 3600, seconds / 60 % 60) {
        (0, 0) => format!("{seconds} s"),
        (0, minutes) => format!("{minutes} min"),
        (hours, minutes) => format!("{hours} h {minutes} min"),
    }
}
