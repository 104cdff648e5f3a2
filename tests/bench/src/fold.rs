//! How fast the log folds: the events that the run itself left, decoded and absorbed on one thread.

use std::path::Path;
use std::time::Instant;

use weir_domain::fold::Fold;
use weir_domain::ledger::SourcePosition;
use weir_domain::quota::BookOptions;
use weir_schemas::reservation_event::ReservationEvent;
use weir_streams::segment::{SegmentLog, SegmentOptions};
use weir_streams::{EventLog as _, Limits, Position, StoredRecord, Topic, Visibility};

use crate::error::BenchError;
use crate::load::as_f64;

/// Enough for a steady figure, and half a gigabyte at most.
const MOST_EVENTS: usize = 1_000_000;
const CHUNK: Limits = Limits { records: 8192, bytes: 8 << 20 };

/// Events per second, and how many were folded. The log must not be open elsewhere.
pub(crate) async fn events_per_s(log_folder: &Path) -> Result<(f64, u64), BenchError> {
    let records = records(log_folder).await?;
    let mut fold = Fold::new(BookOptions::default());
    let started = Instant::now();
    for record in &records {
        let event = ReservationEvent::decode(&record.value);
        let (header, event) = event.map_err(|error| BenchError::unexpected("an event", error))?.into_parts();
        let source = SourcePosition {
            partition: i32::try_from(record.partition).unwrap_or(i32::MAX),
            offset: i64::try_from(record.offset).unwrap_or(i64::MAX),
        };
        fold.absorb(source, header.reservation, &event, header.recorded_at_us / 1000)
            .map_err(|error| BenchError::unexpected("the fold", error))?;
    }
    let events = u64::try_from(records.len()).unwrap_or(u64::MAX);
    Ok((as_f64(events) / started.elapsed().as_secs_f64(), events))
}

async fn records(log_folder: &Path) -> Result<Vec<StoredRecord>, BenchError> {
    let log = SegmentLog::open(SegmentOptions::new(log_folder))
        .map_err(|error| BenchError::unexpected("opening the log", error))?;
    let mut records: Vec<StoredRecord> = Vec::new();
    while records.len() < MOST_EVENTS {
        let offset = records.last().map_or(0, |last| last.offset + 1);
        let at = Position { topic: Topic::Reservations, partition: 0, offset };
        let mut next = log
            .read(at, CHUNK, Visibility::Written)
            .await
            .map_err(|error| BenchError::unexpected("reading the log", error))?;
        if next.is_empty() {
            break;
        }
        records.append(&mut next);
    }
    log.close().await;
    Ok(records)
}
