//! What commands read beside the running process, or without one.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;

use tokio::runtime::Builder;

use weir_control::Control;
use weir_control::store::{ControlStore as _, SqliteControlStore};
use weir_domain::ids::TenantId;
use weir_ledger::SqliteLedger;
use weir_runtime::clock::SystemClock;
use weir_runtime::entropy::{OsEntropy, SharedEntropy};

use super::{ConfigArgs, Failure, failure};
use crate::data::DataFolder;
use crate::up;

/// The ledger, for reading.
pub(super) fn open_ledger(data: &DataFolder) -> Result<SqliteLedger, Failure> {
    SqliteLedger::open_read_only(&data.ledger()).map_err(|error| Failure::failed(&error))
}

/// The control plane, where no process runs.
pub(super) fn open_control(args: &ConfigArgs) -> Result<Arc<Control>, Failure> {
    let (config, data) = (args.load()?, args.data_folder()?);
    let entropy: SharedEntropy = Arc::new(OsEntropy);
    up::control_beside(&config, &data, &SystemClock::shared(), &entropy).map_err(|error| Failure::failed(&error))
}

/// Ids of tenants by name, also of those that the catalog has no more.
pub(super) fn tenants(args: &ConfigArgs) -> Result<BTreeMap<String, TenantId>, Failure> {
    let (config, data) = (args.load()?, args.data_folder()?);
    let secrets = up::secrets_beside(&config, &data).map_err(|error| Failure::failed(&error))?;
    let store = SqliteControlStore::open(&data.control(), &secrets).map_err(|error| Failure::failed(&error))?;
    let state = store.read().map_err(|error| Failure::failed(&error))?;
    Ok(state.tenants.into_values().map(|tenant| (tenant.name, tenant.id)).collect())
}

/// The id of a tenant that was given by name or id.
pub(super) fn tenant_id(args: &ConfigArgs, asked: &str) -> Result<TenantId, Failure> {
    let tenants = tenants(args)?;
    let found = tenants.iter().find(|(name, id)| name.as_str() == asked || id.as_str() == asked);
    found.map(|(_, id)| id.clone()).ok_or_else(|| {
        let known = tenants.keys().take(10).cloned().collect::<Vec<_>>().join(", ");
        let message = format!("there is no tenant `{asked}`; there are: {known}");
        Failure::new(failure::MISSING, message)
    })
}

/// A command waits for one thing at a time.
pub(super) fn block_on<T>(future: impl Future<Output = T>) -> Result<T, Failure> {
    let runtime = Builder::new_current_thread().enable_all().build().map_err(|error| Failure::failed(&error))?;
    Ok(runtime.block_on(future))
}
