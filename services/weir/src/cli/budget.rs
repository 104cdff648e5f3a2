//! `weir budget show`.

use clap::{Args, Subcommand};
use serde_json::Value;

use weir_domain::money::Amounts;

use super::admin::AdminArgs;
use super::key::text;
use super::pending::lasting;
use super::{Failure, Output};
use crate::story::amounts;

#[derive(Debug, Args)]
pub(super) struct BudgetArgs {
    #[command(subcommand)]
    act: Act,
}

#[derive(Debug, Subcommand)]
enum Act {
    /// Show a tenant's limits and counters: what is charged, held, and pending.
    Show(ShowArgs),
}

#[derive(Debug, Args)]
struct ShowArgs {
    /// A tenant's name or id.
    #[arg(long)]
    tenant: String,
    #[command(flatten)]
    admin: AdminArgs,
}

pub(super) fn run(args: &BudgetArgs, output: &Output) -> Result<(), Failure> {
    let Act::Show(args) = &args.act;
    let counters = args.admin.connect()?.get("counters", &[("tenant", &args.tenant)])?;
    if output.is_json {
        return output.line(&counters.to_string());
    }
    let held = amounts(read(&counters, "held"));
    output.line(&format!("tenant {} ({}): holds {held}", text(&counters, "name"), text(&counters, "tenant")))?;
    for limit in list(&counters, "limits") {
        let (scope, kind, max) = (scope(limit), text(limit, "kind"), text(limit, "max"));
        let taken = limit.get("taken").and_then(Value::as_str).map(|taken| format!("{taken} of ")).unwrap_or_default();
        output.line(&format!("  limit    {scope:<36} {kind}: {taken}{max}{}", parts(limit)))?;
    }
    for counter in list(&counters, "counters") {
        let [charged, held, pending] = ["charged", "held", "pending"].map(|field| read(counter, field));
        let mut line =
            format!("  counter  {:<36} {:<11} {}", scope(counter), text(counter, "window"), amounts(charged));
        if !held.is_zero() {
            line.push_str(&format!("; holds {}", amounts(held)));
        }
        if !pending.is_zero() {
            line.push_str(&format!(", of that pending {}", amounts(pending)));
            if let Some(age) = oldest(counter) {
                line.push_str(&format!(", {age}"));
            }
        }
        output.line(&line)?;
    }
    Ok(())
}

/// What of a limit is spent, in use and pending, where anything is pending: ` (0.0822 spent, 0.01 in use, 0.0228 pending,
/// 0.3 % of it, the oldest for 2 min)`.
fn parts(limit: &Value) -> String {
    let Some(permille) = limit.get("pending_permille").and_then(Value::as_i64) else { return String::new() };
    let [spent, in_use, pending] = ["spent", "in_use", "pending"].map(|part| text(limit, part));
    let oldest = oldest(limit).map(|age| format!(", {age}")).unwrap_or_default();
    let share = format!("{}.{} % of it", permille / 10, permille % 10);
    format!(" ({spent} spent, {in_use} in use, {pending} pending, {share}{oldest})")
}

fn oldest(of: &Value) -> Option<String> {
    let age_ms = of.get("pending_age_ms").and_then(Value::as_i64)?;
    Some(format!("the oldest for {}", lasting(age_ms)))
}

fn list<'a>(counters: &'a Value, field: &str) -> &'a [Value] {
    counters.get(field).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn read(value: &Value, field: &str) -> Amounts {
    value.get(field).and_then(|amounts| serde_json::from_value(amounts.clone()).ok()).unwrap_or_default()
}

/// `key first, model fast`
fn scope(of: &Value) -> String {
    let name = [text(of, "name"), text(of, "id")].into_iter().find(|name| !name.is_empty());
    let subject = name.map_or_else(|| text(of, "subject").to_owned(), |name| format!("{} {name}", text(of, "subject")));
    match of.get("model").and_then(Value::as_str) {
        Some(model) => format!("{subject}, model {model}"),
        None => subject,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_pending_stands_apart_with_its_share_and_age() {
        let limit = json!({
            "taken": "0.115", "spent": "0.0822", "in_use": "0.01", "pending": "0.0228",
            "pending_permille": 3, "pending_age_ms": 7_380_000,
        });
        let told = " (0.0822 spent, 0.01 in use, 0.0228 pending, 0.3 % of it, the oldest for 2 h 3 min)";
        assert_eq!(parts(&limit), told);
        let settled = json!({ "taken": "0.0822", "spent": "0.0822", "in_use": "0", "pending": "0" });
        assert_eq!(parts(&settled), "");
    }
}
