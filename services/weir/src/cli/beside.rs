//! What commands read beside the running process, or without one.

use std::future::Future;

use tokio::runtime::Builder;

use weir_ledger::SqliteLedger;

use super::Failure;
use crate::data::DataFolder;

/// The ledger, for reading.
pub(super) fn open_ledger(data: &DataFolder) -> Result<SqliteLedger, Failure> {
    SqliteLedger::open_read_only(&data.ledger()).map_err(|error| Failure::failed(&error))
}

/// A command waits for one thing at a time.
pub(super) fn block_on<T>(future: impl Future<Output = T>) -> Result<T, Failure> {
    let runtime = Builder::new_current_thread().enable_all().build().map_err(|error| Failure::failed(&error))?;
    Ok(runtime.block_on(future))
}
