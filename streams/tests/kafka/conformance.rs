//! The suites of the event log and of consumers on a real broker.
//!
//! The two cases that only the embedded log can promise (offsets that a batch has to itself) hold here too, because one
//! process appends: what Kafka cannot promise is in `faults.rs`.

use std::error::Error;
use std::sync::Arc;

use async_trait::async_trait;
use weir_streams::conformance::Harness;
use weir_streams::conformance::consumer::ConsumerHarness;
use weir_streams::consumer::{MemoryParking, MemoryPositions, Parking, Positions};
use weir_streams::kafka::KafkaOptions;
use weir_streams::spool::{SpoolMetrics, SpooledLog};
use weir_streams::{EventLog, kafka::KafkaLog};

use crate::support::broker;

type Failure = Box<dyn Error + Send + Sync>;

/// Topics of their own for each case.
struct OnKafka {
    options: KafkaOptions,
    positions: Arc<MemoryPositions>,
    parking: Arc<MemoryParking>,
}

impl OnKafka {
    async fn with_partitions(most: u32) -> Self {
        let options = broker().installation(most).await;
        Self { options, positions: Arc::default(), parking: Arc::default() }
    }
}

#[async_trait]
impl Harness for OnKafka {
    async fn open(&self) -> Result<Arc<dyn EventLog>, Failure> {
        Ok(Arc::new(KafkaLog::open(&self.options).await?))
    }
}

#[async_trait]
impl ConsumerHarness for OnKafka {
    async fn log(&self) -> Result<Arc<dyn EventLog>, Failure> {
        self.open().await
    }

    async fn positions(&self) -> Result<Arc<dyn Positions>, Failure> {
        Ok(Arc::clone(&self.positions) as Arc<dyn Positions>)
    }

    async fn parking(&self) -> Result<Arc<dyn Parking>, Failure> {
        Ok(Arc::clone(&self.parking) as Arc<dyn Parking>)
    }
}

/// The same with the spool in front. It is patient, so that the cases see places in the log: what the spool does is in
/// `spool.rs`.
struct Spooled {
    options: KafkaOptions,
    folder: tempfile::TempDir,
}

#[async_trait]
impl Harness for Spooled {
    async fn open(&self) -> Result<Arc<dyn EventLog>, Failure> {
        Ok(Arc::new(SpooledLog::open(&self.options, self.folder.path(), SpoolMetrics::default()).await?))
    }
}

mod spooled {
    use weir_runtime::units::HumanDuration;
    use weir_streams::kafka::{KafkaOptions, SpoolOptions};

    use super::{Spooled, broker};

    async fn fresh() -> Spooled {
        let spool = SpoolOptions { after: HumanDuration::from_secs(20), ..SpoolOptions::default() };
        let options = KafkaOptions { spool, ..broker().installation(3).await };
        Spooled { options, folder: tempfile::tempdir().unwrap() }
    }

    weir_streams::event_log_conformance!(fresh, unless crate::support::is_skipped);
}

mod log {
    use super::OnKafka;

    async fn fresh() -> OnKafka {
        OnKafka::with_partitions(3).await
    }

    weir_streams::event_log_conformance!(fresh, unless crate::support::is_skipped);
}

mod consumer {
    use super::OnKafka;

    async fn fresh() -> OnKafka {
        OnKafka::with_partitions(1).await
    }

    weir_streams::consumer_conformance!(fresh, unless crate::support::is_skipped);
}
