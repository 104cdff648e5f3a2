//! `weir dead-letters list | replay | skip`.
//!
//! An order is carried out by the consumer's own loop, within a second or two. The command waits for that, so that its
//! exit code says whether the key goes on.

use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use weir_control::ports::Parked;

use super::admin::{Admin, AdminArgs, AnswerableArgs};
use super::beside::{block_on, open_ledger, open_log};
use super::key::text;
use super::progress::Progress;
use super::{ConfigArgs, Failure, Output, failure};
use crate::parked::{self, Found};

#[derive(Debug, Args)]
pub(super) struct DeadLettersArgs {
    #[command(subcommand)]
    act: Act,
}

#[derive(Debug, Subcommand)]
enum Act {
    /// Show every key that waits, of any consumer, and why.
    List(ListArgs),
    /// Apply the records of a key again, in order, after its cause was repaired.
    Replay(ReplayArgs),
    /// Leave out the record that cannot be applied, for good, then apply those behind it.
    Skip(SkipArgs),
}

#[derive(Debug, Args)]
struct ListArgs {
    #[command(flatten)]
    config: ConfigArgs,
}

#[derive(Debug, Args)]
struct ReplayArgs {
    #[command(flatten)]
    of: KeyArgs,
}

#[derive(Debug, Args)]
struct SkipArgs {
    #[command(flatten)]
    of: KeyArgs,
    /// Of the record to leave out, as the list shows it: the same order again then skips nothing else.
    #[arg(long)]
    offset: u64,
}

#[derive(Debug, Args)]
struct KeyArgs {
    /// As the list shows it.
    #[arg(value_name = "KEY")]
    key: String,
    /// Whose key it is.
    #[arg(long)]
    consumer: String,
    #[command(flatten)]
    actor: AnswerableArgs,
    #[command(flatten)]
    admin: AdminArgs,
}

/// A consumer looks for orders every second, unless it is in a pause of at most five.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(100);

pub(super) fn run(args: &DeadLettersArgs, output: &Output) -> Result<(), Failure> {
    match &args.act {
        Act::List(args) => list(args, output),
        Act::Replay(args) => order(&args.of, json!({ "act": "replay" }), output),
        Act::Skip(args) => order(&args.of, json!({ "act": "skip", "offset": args.offset }), output),
    }
}

async fn find(args: &ConfigArgs) -> Result<Vec<Found>, Failure> {
    let (ledger, log) = (open_ledger(args).await?, open_log(args).await?);
    // The embedded log has one partition.
    let partitions = |topic| log.as_ref().map_or(1, |log| log.partitions(topic));
    parked::find_all(&*ledger, partitions).await.map_err(|error| Failure::failed(&error))
}

fn list(args: &ListArgs, output: &Output) -> Result<(), Failure> {
    let found = block_on(find(&args.config))??;
    let parked: Vec<Parked> = found.iter().map(Found::shown).collect();
    if output.is_json {
        return output.line(&json!({ "parked": parked }).to_string());
    }
    for Parked { consumer, topic, key, offset, reason, records, asked } in &parked {
        let asked = if asked.is_some() { ", an order is being carried out" } else { "" };
        output.line(&format!("{key}  {consumer} on {topic}, {records} records from offset {offset}{asked}"))?;
        output.line(&format!("  {}", reason.escape_debug()))?;
    }
    output.line(&format!("{} keys wait", parked.len()))
}

fn order(args: &KeyArgs, mut order: Value, output: &Output) -> Result<(), Failure> {
    let KeyArgs { key, consumer, actor, admin } = args;
    let admin = admin.connect()?;
    order["consumer"] = json!(consumer);
    order["key"] = json!(key);
    let before = waiting(&admin, consumer, key)?;
    admin.post("dead-letters", &actor.query(), "application/json", order.to_string().as_bytes())?;
    let progress = Progress::begin("waiting for the consumer");
    let came_of_it = outcome(&admin, consumer, key);
    drop(progress);
    match came_of_it? {
        None if output.is_json => {
            output.line(&json!({ "key": key, "consumer": consumer, "parked": false }).to_string())
        }
        None => {
            let records = before.as_ref().and_then(|before| before.get("records")).and_then(Value::as_u64).unwrap_or(0);
            output.line(&format!("{key} goes on: {records} records of {consumer} are dealt with"))
        }
        Some(still) if still.get("asked").is_some_and(|asked| !asked.is_null()) => {
            let message =
                format!("the order about {key} is given, and {consumer} has not come to it: look again later");
            Err(Failure::new(failure::FAILED, message))
        }
        Some(still) => {
            let (offset, reason) = (still.get("offset").cloned().unwrap_or_default(), text(&still, "reason"));
            let message = format!("{key} still waits: the record at {offset} cannot be applied: {reason}");
            Err(Failure::new(failure::FAILED, message))
        }
    }
}

/// The key as it waits once the order was carried out, or when the patience is over; `None` when it waits no more.
fn outcome(admin: &Admin, consumer: &str, key: &str) -> Result<Option<Value>, Failure> {
    let began = Instant::now();
    loop {
        let found = waiting(admin, consumer, key)?;
        let is_asked = found.as_ref().and_then(|found| found.get("asked")).is_some_and(|asked| !asked.is_null());
        if !is_asked || began.elapsed() > PATIENCE {
            return Ok(found);
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

fn waiting(admin: &Admin, consumer: &str, key: &str) -> Result<Option<Value>, Failure> {
    let listed = admin.get("dead-letters", &[])?;
    let listed = listed.get("parked").and_then(Value::as_array).cloned().unwrap_or_default();
    let is_it = |one: &Value| text(one, "consumer") == consumer && text(one, "key") == key;
    Ok(listed.into_iter().find(is_it))
}
