//! `weir migrate`: the tables of ledger and control store brought up to date, whichever stores are configured.

use clap::Args;
use serde_json::json;

use weir_ledger::{CqlOptions, SqliteLedger};
#[cfg(feature = "cql")]
use weir_runtime::entropy::{Entropy as _, OsEntropy};

use super::{ConfigArgs, Failure, Output};
use crate::data::DataFolder;

#[derive(Debug, Args)]
pub(super) struct MigrateArgs {
    #[command(flatten)]
    config: ConfigArgs,
}

pub(super) fn run(args: &MigrateArgs, output: &Output) -> Result<(), Failure> {
    let config = args.config.load()?;
    let (store, applied) = match (&config.ledger.cql, config.control_cql()) {
        (Some(ledger), Some(control)) => on_servers(ledger, control)?,
        (None, _) | (_, None) => {
            let data = DataFolder::prepare(&config.process.data).map_err(|error| Failure::failed(&error))?;
            let path = data.ledger();
            SqliteLedger::open(&path).map_err(|error| Failure::failed(&error))?;
            (path.display().to_string(), Vec::new())
        }
    };
    if output.is_json {
        return output.line(&json!({ "store": store, "applied": applied }).to_string());
    }
    for file in &applied {
        output.line(&format!("applied {file}"))?;
    }
    output.line(&format!("{store} is up to date"))
}

/// What was brought up to date, and by which files.
type Migrated = (String, Vec<&'static str>);

#[cfg(feature = "cql")]
fn on_servers(ledger: &CqlOptions, control: &CqlOptions) -> Result<Migrated, Failure> {
    let mut run_id = [0; 16];
    OsEntropy.fill(&mut run_id);
    let run_id = uuid::Uuid::from_bytes(run_id).to_string();
    let applied = super::beside::block_on(async {
        let ledger = weir_ledger::cql::migrate(ledger, &run_id).await.map_err(|error| Failure::failed(&error))?;
        let control = weir_control::store::cql::migrate(control, &run_id).await;
        let control = control.map_err(|error| Failure::failed(&error))?;
        Ok::<_, Failure>([ledger.applied, control.applied].concat())
    })??;
    let store = if ledger.keyspace == control.keyspace {
        format!("keyspace {}", ledger.keyspace)
    } else {
        format!("keyspaces {} and {}", ledger.keyspace, control.keyspace)
    };
    Ok((store, applied))
}

#[cfg(not(feature = "cql"))]
fn on_servers(_: &CqlOptions, _: &CqlOptions) -> Result<Migrated, Failure> {
    Err(Failure::usage(&NoClient))
}

/// A smaller build, for one machine.
#[cfg(not(feature = "cql"))]
#[derive(Debug, thiserror::Error)]
#[error("this weir was built without its CQL client: build it with the feature `cql`, or leave out [ledger.cql]")]
struct NoClient;
