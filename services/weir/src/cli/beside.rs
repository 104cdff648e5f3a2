//! What commands read beside the running process, or without one.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;

use tokio::runtime::Builder;

use weir_control::Control;
use weir_domain::ids::TenantId;
use weir_ledger::SqliteLedger;
use weir_ledger::contract::LedgerStore;
use weir_runtime::clock::SystemClock;
use weir_runtime::entropy::{OsEntropy, SharedEntropy};
use weir_streams::EventLog;

use super::{ConfigArgs, Failure, failure};
use crate::data::DataFolder;
use crate::events::EventSource;
use crate::up;

/// The configured ledger, for reading.
pub(super) async fn open_ledger(args: &ConfigArgs) -> Result<Arc<dyn LedgerStore>, Failure> {
    #[cfg(feature = "cql")]
    if let Some(options) = &args.load()?.ledger.cql {
        let opened = weir_ledger::CqlLedger::open(options, SystemClock::shared()).await;
        return Ok(Arc::new(opened.map_err(|error| Failure::missing(&error))?));
    }
    let opened = SqliteLedger::open_read_only(&args.data_folder()?.ledger());
    Ok(Arc::new(opened.map_err(|error| Failure::failed(&error))?))
}

/// The log on the brokers; `None` where it is files in the data folder.
pub(super) async fn open_log(args: &ConfigArgs) -> Result<Option<Arc<dyn EventLog>>, Failure> {
    #[cfg(feature = "kafka")]
    if let Some(options) = &args.load()?.log.kafka {
        let opened = weir_streams::kafka::KafkaLog::open(options).await;
        return Ok(Some(Arc::new(opened.map_err(|error| Failure::missing(&error))?)));
    }
    #[cfg(not(feature = "kafka"))]
    args.load()?;
    Ok(None)
}

/// Where the events of single reservations are read.
pub(super) async fn open_events(args: &ConfigArgs) -> Result<EventSource, Failure> {
    match open_log(args).await? {
        Some(log) => Ok(EventSource::Log(log)),
        None => Ok(EventSource::Files(args.data_folder()?.log())),
    }
}

/// The control plane, where no process runs.
pub(super) fn open_control(args: &ConfigArgs) -> Result<Arc<Control>, Failure> {
    let (config, data) = (args.load()?, args.data_folder()?);
    let entropy: SharedEntropy = Arc::new(OsEntropy);
    up::control_beside(&config, &data, &SystemClock::shared(), &entropy).map_err(|error| Failure::failed(&error))
}

/// Ids of tenants by name, also of those that the catalog has no more.
pub(super) fn tenants(args: &ConfigArgs) -> Result<BTreeMap<String, TenantId>, Failure> {
    let config = args.load()?;
    let store = up::store_beside(&config, || DataFolder::existing(&config.process.data));
    let store = store.map_err(|error| Failure::missing(&error))?;
    store.tenant_ids().map_err(|error| Failure::failed(&error))
}

/// The id of a tenant that was given by name or id.
pub(super) fn tenant_id(args: &ConfigArgs, asked: &str) -> Result<TenantId, Failure> {
    let tenants = tenants(args)?;
    // As the control plane does: a name goes before an id that somebody chose as a name.
    let found = tenants.get(asked).or_else(|| tenants.values().find(|id| id.as_str() == asked));
    found.cloned().ok_or_else(|| {
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
