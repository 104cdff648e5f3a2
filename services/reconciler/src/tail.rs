//! Following one partition of a topic from some way before its end, for views that live in memory only.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use weir_runtime::story::story;
use weir_streams::{EventLog, Limits, Position, ReadError, StoredRecord, Topic, Visibility};

/// Pause after the log could not be read.
const PAUSE: Duration = Duration::from_secs(1);

/// Hands `learn` everything durable of a partition, from `look_back` records before its end on, until `stop`; each time
/// with the offset that comes next, first of all with nothing and the one that it begins at.
///
/// # Errors
/// [`ReadError`], when the log cannot be followed without a person.
pub(crate) async fn follow(
    log: &dyn EventLog,
    (topic, partition): (Topic, u32),
    look_back: u64,
    stop: impl Future<Output = ()> + Send,
    mut learn: impl FnMut(&[StoredRecord], u64) + Send,
) -> Result<(), ReadError> {
    let mut stop = pin!(stop);
    let mut next = None;
    loop {
        let read = async {
            let Some(offset) = next else { return begin(log, (topic, partition), look_back).await };
            read(log, Position { topic, partition, offset }).await
        };
        let read = tokio::select! {
            biased;
            () = stop.as_mut() => return Ok(()),
            read = read => read,
        };
        match read {
            Ok((records, then)) => {
                next = Some(then);
                learn(&records, then);
            }
            // Retention took it meanwhile: a view of the newest misses nothing.
            Err(ReadError::Gone { start, .. }) => next = Some(start),
            Err(error) if error.is_temporary() => {
                tracing::warn!(%topic, partition, error = story(&error), "topic not followed");
                tokio::select! {
                    () = stop.as_mut() => return Ok(()),
                    () = tokio::time::sleep(PAUSE) => {}
                }
            }
            Err(error) => return Err(error),
        }
    }
}

async fn begin(
    log: &dyn EventLog,
    (topic, partition): (Topic, u32),
    look_back: u64,
) -> Result<(Vec<StoredRecord>, u64), ReadError> {
    let offsets = log.offsets(topic, partition).await?;
    Ok((Vec::new(), offsets.start.max(offsets.durable.saturating_sub(look_back))))
}

async fn read(log: &dyn EventLog, at: Position) -> Result<(Vec<StoredRecord>, u64), ReadError> {
    log.wait(at, Visibility::Durable).await?;
    let records = log.read(at, Limits::default(), Visibility::Durable).await?;
    let next = records.last().map_or(at.offset, |record| record.offset + 1);
    Ok((records, next))
}
