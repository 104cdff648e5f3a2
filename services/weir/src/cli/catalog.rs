//! `weir catalog check | apply | import`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, Subcommand};
use secrecy::SecretString;
use serde_json::{Value, json};

use weir_control::Control;
use weir_control::secrets::{AdminToken, ControlSecrets, MasterKey, Pepper};
use weir_control::store::SqliteControlStore;
use weir_runtime::clock::SystemClock;
use weir_runtime::entropy::OsEntropy;

use super::admin::AdminArgs;
use super::{Failure, Output, failure, import};

#[derive(Debug, Args)]
pub(super) struct CatalogArgs {
    #[command(subcommand)]
    act: Act,
}

#[derive(Debug, Subcommand)]
enum Act {
    /// Say everything that is wrong with a catalog; change nothing.
    Check(FileArgs),
    /// Put a catalog in force: it replaces what files brought before.
    Apply(FileArgs),
    /// Turn a price list of others into `[[price]]` tables on standard output.
    Import(import::ImportArgs),
}

#[derive(Debug, Args)]
struct FileArgs {
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    admin: AdminArgs,
}

const TOML: &str = "application/toml";

pub(super) fn run(args: &CatalogArgs, output: &Output) -> Result<(), Failure> {
    match &args.act {
        Act::Import(args) => import::run(args, output),
        Act::Apply(args) => {
            let (name, text) = read(&args.file)?;
            let applied = args.admin.connect()?.post("catalog/apply", &[("file", &name)], TOML, text.as_bytes())?;
            told(&applied, output, "applied")
        }
        Act::Check(args) => {
            let (name, text) = read(&args.file)?;
            // A running process also knows which keys and tenants exist.
            let checked = match args.admin.connect_if_running()? {
                Some(admin) => admin.post("catalog/check", &[("file", &name)], TOML, text.as_bytes())?,
                None => check_alone(&name, &text)?,
            };
            told(&checked, output, "is in order")
        }
    }
}

pub(super) fn read(file: &Path) -> Result<(String, String), Failure> {
    let name = file.display().to_string();
    match std::fs::read_to_string(file) {
        Ok(text) => Ok((name, text)),
        Err(error) => Err(Failure::new(failure::USAGE, format!("{name} cannot be read: {error}; name another file"))),
    }
}

/// Against an empty installation.
fn check_alone(name: &str, text: &str) -> Result<Value, Failure> {
    let control = empty_control().map_err(|error| Failure::failed(error.as_ref()))?;
    let applied = control.check(name, text).map_err(|error| Failure::failed(&error))?;
    serde_json::to_value(applied).map_err(|error| Failure::failed(&error))
}

fn empty_control() -> Result<Control, Box<dyn std::error::Error>> {
    // Nothing is kept, so nothing needs a secret that anybody has to keep.
    let nobodys = SecretString::from("0".repeat(64));
    let secrets = ControlSecrets {
        pepper: Pepper::new(&nobodys)?,
        master: MasterKey::new(&nobodys)?,
        admin_token: AdminToken::new(&nobodys)?,
    };
    let store = Arc::new(SqliteControlStore::in_memory(&secrets)?);
    Ok(Control::open(store, secrets, SystemClock::shared(), Arc::new(OsEntropy))?)
}

fn told(applied: &Value, output: &Output, done: &str) -> Result<(), Failure> {
    if output.is_json {
        return output.line(&applied.to_string());
    }
    let counts = applied.get("counts").and_then(Value::as_object);
    let counts: Vec<String> = counts
        .into_iter()
        .flatten()
        .filter(|(_, count)| **count != json!(0))
        .map(|(kind, count)| format!("{count} {kind}"))
        .collect();
    let changed = if applied.get("changed") == Some(&json!(true)) { "" } else { "; it changes nothing" };
    output.line(&format!("catalog {done}: {}{changed}", counts.join(", ")))
}
