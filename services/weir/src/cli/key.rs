//! `weir key create | revoke | list`.

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use weir_domain::price::EffectiveMs;

use super::admin::{ActorArgs, AdminArgs};
use super::beside::open_control;
use super::{Failure, Output};

#[derive(Debug, Args)]
pub(super) struct KeyArgs {
    #[command(subcommand)]
    act: Act,
}

#[derive(Debug, Subcommand)]
enum Act {
    /// Make a virtual key. It is shown once.
    Create(CreateArgs),
    /// End a key, at the very next admission.
    Revoke(RevokeArgs),
    /// Show every key that ever was, by its prefix.
    List(ListArgs),
}

#[derive(Debug, Args)]
struct CreateArgs {
    /// The tenant's name.
    #[arg(long)]
    tenant: String,
    /// What the key is called; at most two active keys of a tenant share a name.
    #[arg(long)]
    name: String,
    #[arg(long)]
    team: Option<String>,
    /// A model that it may ask for; may be repeated; without it, all of the tenant's.
    #[arg(long = "model", value_name = "MODEL")]
    models: Vec<String>,
    /// A date, or a time with its offset.
    #[arg(long, value_name = "WHEN", value_parser = instant)]
    expires_at: Option<EffectiveMs>,
    /// Copied to every ledger line of the key; may be repeated.
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
    #[command(flatten)]
    admin: AdminArgs,
}

#[derive(Debug, Args)]
struct RevokeArgs {
    /// Its id, as `weir key list` shows it.
    #[arg(value_name = "KEY")]
    id: String,
    #[command(flatten)]
    actor: ActorArgs,
    #[command(flatten)]
    admin: AdminArgs,
}

#[derive(Debug, Args)]
struct ListArgs {
    /// Only this tenant's.
    #[arg(long)]
    tenant: Option<String>,
    #[command(flatten)]
    admin: AdminArgs,
}

/// A date, or a time with its offset.
pub(super) fn instant(text: &str) -> Result<EffectiveMs, String> {
    text.parse()
}

fn label(text: &str) -> Result<(String, String), String> {
    let parts = text.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
    parts.ok_or_else(|| format!("`{text}` is no label: write NAME=VALUE"))
}

pub(super) fn run(args: &KeyArgs, output: &Output) -> Result<(), Failure> {
    match &args.act {
        Act::Create(args) => create(args, output),
        Act::Revoke(args) => revoke(args, output),
        Act::List(args) => list(args, output),
    }
}

fn create(args: &CreateArgs, output: &Output) -> Result<(), Failure> {
    let mut request = json!({ "tenant": args.tenant, "name": args.name });
    if let Some(fields) = request.as_object_mut() {
        fields.extend(args.team.iter().map(|team| ("team".to_owned(), json!(team))));
        fields.extend(args.expires_at.iter().map(|at| ("expires_at".to_owned(), json!(at))));
        if !args.models.is_empty() {
            fields.insert("models".to_owned(), json!(args.models));
        }
        if !args.labels.is_empty() {
            let labels = args.labels.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
            fields.insert("labels".to_owned(), Value::Object(labels));
        }
    }
    let body = request.to_string();
    let created = args.admin.connect()?.post("keys", &[], "application/json", body.as_bytes())?;
    if output.is_json {
        return output.line(&created.to_string());
    }
    output.line(&format!("{}   (shown this once: keep it)", text(&created, "key")))?;
    output.line(&format!("id {}, tenant {}, name {}", text(&created, "id"), args.tenant, args.name))
}

fn revoke(args: &RevokeArgs, output: &Output) -> Result<(), Failure> {
    let revoked = args.admin.connect()?.delete(&format!("keys/{}", args.id), &args.actor.query())?;
    if output.is_json {
        return output.line(&revoked.to_string());
    }
    output.line(&format!("{} ({}) opens nothing any more", text(&revoked, "id"), text(&revoked, "prefix")))
}

fn list(args: &ListArgs, output: &Output) -> Result<(), Failure> {
    let keys = match args.admin.connect_if_running()? {
        Some(admin) => admin.get("keys", &[])?.get_mut("keys").map(Value::take).unwrap_or_default(),
        None => {
            let keys = open_control(&args.admin.config)?.keys().map_err(|error| Failure::failed(&error))?;
            serde_json::to_value(keys).map_err(|error| Failure::failed(&error))?
        }
    };
    let is_asked = |key: &&Value| args.tenant.as_ref().is_none_or(|tenant| text(key, "tenant") == tenant.as_str());
    let keys: Vec<&Value> = keys.as_array().into_iter().flatten().filter(is_asked).collect();
    if output.is_json {
        return output.line(&json!({ "keys": keys }).to_string());
    }
    output.line(&format!(
        "{:<24} {:<18} {:<8} {:<16} {:<16} {}",
        "ID", "PREFIX", "STATUS", "TENANT", "NAME", "CREATED"
    ))?;
    keys.into_iter().try_for_each(|key| {
        let [id, prefix, status, tenant, name, created] =
            ["id", "prefix", "status", "tenant", "name", "created_at"].map(|field| text(key, field));
        output.line(&format!("{id:<24} {prefix:<18} {status:<8} {tenant:<16} {name:<16} {created}"))
    })
}

/// A text field of an answer, or nothing.
pub(super) fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}
