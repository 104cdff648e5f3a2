//! `weir migrate`: the ledger's tables brought up to date, whichever store is configured.

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
    let (store, applied) = match &config.ledger.cql {
        Some(options) => (format!("keyspace {}", options.keyspace), on_servers(options)?),
        None => {
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

#[cfg(feature = "cql")]
fn on_servers(options: &CqlOptions) -> Result<Vec<&'static str>, Failure> {
    let mut run_id = [0; 16];
    OsEntropy.fill(&mut run_id);
    let run_id = uuid::Uuid::from_bytes(run_id).to_string();
    let migrated = super::beside::block_on(weir_ledger::cql::migrate(options, &run_id))?;
    migrated.map(|migrated| migrated.applied).map_err(|error| Failure::failed(&error))
}

#[cfg(not(feature = "cql"))]
fn on_servers(_: &CqlOptions) -> Result<Vec<&'static str>, Failure> {
    Err(Failure::usage(&NoClient))
}

/// A smaller build, for one machine.
#[cfg(not(feature = "cql"))]
#[derive(Debug, thiserror::Error)]
#[error("this weir was built without its CQL client: build it with the feature `cql`, or leave out [ledger.cql]")]
struct NoClient;
