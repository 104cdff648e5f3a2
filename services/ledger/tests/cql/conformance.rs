//! The suites of the ledger's store and of its consumers, on the real server.

use std::error::Error;
use std::sync::Arc;

use async_trait::async_trait;
use tempfile::TempDir;
use tokio::sync::Mutex;

use weir_ledger::conformance::Harness;
use weir_ledger::{LedgerStore, SqliteLedger};
use weir_streams::EventLog;
use weir_streams::conformance::consumer::ConsumerHarness;
use weir_streams::consumer::{Parking, Positions};
use weir_streams::segment::{SegmentLog, SegmentOptions};

use crate::support::{Failure, Turn, is_skipped, turn};

struct OnServer {
    /// Absent where real servers are left out.
    turn: Option<Turn>,
    folder: TempDir,
    log: Mutex<Option<Arc<SegmentLog>>>,
}

async fn fresh() -> OnServer {
    let turn = if is_skipped("conformance") { None } else { Some(turn().await.unwrap()) };
    OnServer { turn, folder: tempfile::tempdir().unwrap(), log: Mutex::default() }
}

#[async_trait]
impl Harness for OnServer {
    async fn open(&self) -> Result<Arc<dyn LedgerStore>, Box<dyn Error + Send + Sync>> {
        match &self.turn {
            Some(turn) => Ok(turn.server.ledger().await?),
            None => Ok(Arc::new(SqliteLedger::open(&self.folder.path().join("ledger.db"))?)),
        }
    }
}

#[async_trait]
impl ConsumerHarness for OnServer {
    async fn log(&self) -> Result<Arc<dyn EventLog>, Failure> {
        let mut log = self.log.lock().await;
        if let Some(open) = log.take() {
            open.close().await;
        }
        let opened = Arc::new(SegmentLog::open(SegmentOptions::new(self.folder.path().join("log")))?);
        *log = Some(Arc::clone(&opened));
        Ok(opened)
    }

    async fn positions(&self) -> Result<Arc<dyn Positions>, Failure> {
        Ok(self.open().await?)
    }

    async fn parking(&self) -> Result<Arc<dyn Parking>, Failure> {
        Ok(self.open().await?)
    }
}

mod ledger {
    weir_ledger::ledger_store_conformance!(super::fresh);
}

mod consumers {
    weir_streams::consumer_conformance!(super::fresh);
}
