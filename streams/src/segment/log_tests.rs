//! The embedded log: the suite of its contract, and what only it promises.

use std::error::Error;

use super::*;
use crate::conformance::Harness;
use crate::event_log_conformance;

struct Folder(tempfile::TempDir);

#[async_trait]
impl Harness for Folder {
    async fn open(&self) -> Result<Arc<dyn EventLog>, Box<dyn Error + Send + Sync>> {
        Ok(Arc::new(SegmentLog::open(SegmentOptions::new(self.0.path()))?))
    }
}

async fn fresh() -> Folder {
    Folder(tempfile::tempdir().unwrap())
}

event_log_conformance!(fresh);
