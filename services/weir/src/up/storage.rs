//! The embedded log and the ledger derived from it.

use std::sync::Arc;

use weir_ledger::builder::LedgerBuilder;
use weir_ledger::contract::LedgerStore;
use weir_ledger::sqlite::SqliteLedger;
use weir_ledger::start::{Folded, Started};
use weir_runtime::clock::SharedClock;
use weir_streams::EventLog;
#[cfg(feature = "failpoints")]
use weir_streams::segment::SegmentOptions;
use weir_streams::segment::{OpenError, SegmentLog};

use super::StartError;
use crate::config::Config;
use crate::data::DataFolder;
use crate::events::EventSource;

#[derive(Debug)]
pub(super) struct Storage {
    pub log: Arc<dyn EventLog>,
    pub ledger: Arc<dyn LedgerStore>,
    /// The log where it is the embedded one: its old segments are let go of here.
    pub segments: Option<Arc<SegmentLog>>,
}

/// Takes the folder's lock, so it is the first to be opened: a second process stops here, before it touches anything.
pub(super) fn open_log(config: &Config, data: &DataFolder) -> Result<Arc<SegmentLog>, OpenError> {
    let options = config.log.options(data.log());
    #[cfg(feature = "failpoints")]
    let options = SegmentOptions { disk: Arc::new(super::failing_disk::FailingDisk::default()), ..options };
    let log = SegmentLog::open(options)?;
    for found in log.found().iter().filter(|found| found.end_offset > 0) {
        tracing::info!(topic = %found.topic, end_offset = found.end_offset, cut_bytes = found.cut_bytes, "log opened");
    }
    Ok(Arc::new(log))
}

/// Opens the ledger and folds the log's tail.
pub(super) async fn open(
    config: &Config,
    data: &DataFolder,
    segments: Arc<SegmentLog>,
) -> Result<(Storage, Started), StartError> {
    let path = data.ledger();
    let ledger = SqliteLedger::open(&path).map_err(|source| StartError::Ledger { path, source })?;
    let log = Arc::<SegmentLog>::clone(&segments);
    let storage = Storage { log, ledger: Arc::new(ledger), segments: Some(segments) };
    let started = weir_ledger::start::start(storage.log.as_ref(), &storage.ledger, config.quota.book()).await?;
    tracing::info!(
        events = started.replayed_events,
        checkpoint_at_ms = started.checkpoint_taken_at_ms,
        tenants = started.books_at_end.len(),
        "counters folded"
    );
    Ok((storage, started))
}

impl Storage {
    /// Where the events of one reservation are read. The files of the embedded log have an index that finds them.
    pub fn events(&self, data: &DataFolder) -> EventSource {
        match self.segments {
            Some(_) => EventSource::Files(data.log()),
            None => EventSource::Log(Arc::clone(&self.log)),
        }
    }

    /// The builder, where the fold has left it.
    pub fn builder(&self, config: &Config, folded: Folded, clock: &SharedClock) -> LedgerBuilder {
        let (log, store) = (Arc::clone(&self.log), Arc::clone(&self.ledger));
        LedgerBuilder::new(folded, log, store, Arc::clone(clock), config.ledger.checkpoints())
    }
}
