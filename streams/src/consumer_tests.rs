//! The consumer loop over the embedded log, with stores in memory.

use std::error::Error;

use bytes::Bytes;

use super::*;
use crate::conformance::consumer::ConsumerHarness;
use crate::consumer_conformance;
use crate::contract::EventLog;
use crate::segment::{SegmentLog, SegmentOptions};

struct InMemory {
    _folder: tempfile::TempDir,
    log: Arc<SegmentLog>,
    positions: Arc<MemoryPositions>,
    parking: Arc<MemoryParking>,
}

#[async_trait]
impl ConsumerHarness for InMemory {
    async fn log(&self) -> Result<Arc<dyn EventLog>, Box<dyn Error + Send + Sync>> {
        Ok(Arc::clone(&self.log) as Arc<dyn EventLog>)
    }

    async fn positions(&self) -> Result<Arc<dyn Positions>, Box<dyn Error + Send + Sync>> {
        Ok(Arc::clone(&self.positions) as Arc<dyn Positions>)
    }

    async fn parking(&self) -> Result<Arc<dyn Parking>, Box<dyn Error + Send + Sync>> {
        Ok(Arc::clone(&self.parking) as Arc<dyn Parking>)
    }
}

async fn fresh() -> InMemory {
    let folder = tempfile::tempdir().unwrap();
    let log = Arc::new(SegmentLog::open(SegmentOptions::new(folder.path())).unwrap());
    InMemory { _folder: folder, log, positions: Arc::default(), parking: Arc::default() }
}

consumer_conformance!(fresh);

#[test]
fn a_dead_letter_reads_as_it_was_written() {
    let value = Bytes::from_static(b"\x00\nbinary\n");
    let record = StoredRecord { partition: 3, offset: 17, key: "k".into(), value, time_ms: 5 };
    let letter = DeadLetter::of("ledger", Topic::Ledger, &record, "of two\nlines");
    let batch = letter.clone().into_batch().unwrap();
    assert_eq!((batch.topic, &batch.key, batch.time_ms), (Topic::LedgerDeadLetters, &record.key, 5));
    let stored = StoredRecord { partition: 0, offset: 0, value: batch.values[0].clone(), ..record };
    assert_eq!(DeadLetter::parse(&stored), Ok(letter));
    let of = |text: &'static str| DeadLetter::parse(&StoredRecord { value: text.into(), ..stored.clone() });
    assert!(matches!(of("no end"), Err(DeadLetterError::Head(_))));
    assert!(matches!(of("{}\n"), Err(DeadLetterError::Head(_))));
    let later = r#"{"v":2,"consumer":"c","topic":"usage","partition":0,"offset":0,"time_ms":0,"reason":""}"#;
    let later: &'static str = Box::leak(format!("{later}\n").into_boxed_str());
    assert_eq!(of(later), Err(DeadLetterError::Version(2)));
}
