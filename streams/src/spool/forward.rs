//! The forwarder: a thread that watches the lanes, and hands what is in the spool to Kafka.
//!
//! It has a runtime of its own, because what it does must go on while the process's runtime is busy or ends.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use super::forwarded;
use super::lane::{Gear, Handed, Lane, cost_of};
use crate::contract::{
    AppendError, Batch, EventLog as _, Limits, MAX_BATCH_BYTES, MAX_BATCH_RECORDS, Position, ReadError, StoredRecord,
    Visibility,
};
use crate::topics::Topic;

/// What may be on its way to the brokers from one lane: enough to keep a connection busy, little enough to be sent
/// again after a crash.
const WINDOW_BATCHES: usize = 2048;
const WINDOW_BYTES: u64 = 16 * 1024 * 1024;
/// A pause after something that only needs time.
const PAUSE: Duration = Duration::from_millis(50);
/// How often the file is written, segments are deleted and gauges are set.
const KEEP_EVERY: Duration = Duration::from_millis(250);

/// Runs until `stop`.
pub(super) fn run(
    gear: &Arc<Gear>,
    lanes: &Arc<[Lane]>,
    folder: &Path,
    stop: &watch::Receiver<bool>,
) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    runtime.block_on(async {
        let mut tasks = JoinSet::new();
        for lane in 0..lanes.len() {
            let (gear, lanes) = (Arc::clone(gear), Arc::clone(lanes));
            tasks.spawn(async move { follow(&gear, &lanes[lane]).await });
        }
        let mut stopping = stop.clone();
        let mut kept = [0; Topic::COUNT];
        loop {
            tokio::select! {
                // An error means that whoever would say so is gone.
                _ = stopping.wait_for(|told| *told) => break,
                () = sleep(KEEP_EVERY) => keep(gear, lanes, folder, &mut kept),
            }
        }
        tasks.shutdown().await;
        keep(gear, lanes, folder, &mut kept);
    });
    Ok(())
}

/// Remembers how far the spool is in Kafka, and lets go of what is.
fn keep(gear: &Gear, lanes: &[Lane], folder: &Path, kept: &mut forwarded::Offsets) {
    let (mut offsets, mut records, mut age) = ([0; Topic::COUNT], 0, Duration::ZERO);
    for lane in lanes {
        let state = lane.state.lock();
        offsets[lane.topic.index()] = state.forwarded;
        records += state.end - state.forwarded;
        age = age.max(state.since.map_or(Duration::ZERO, |since| since.elapsed()));
    }
    let gauge = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    gear.metrics.records.set(gauge(records));
    gear.metrics.bytes.set(gauge(gear.room.used_bytes()));
    gear.metrics.age_ms.set(i64::try_from(age.as_millis()).unwrap_or(i64::MAX));
    if offsets == *kept {
        return;
    }
    // Segments after the file: what it still points at must be there.
    if let Err(error) = forwarded::write(folder, &offsets) {
        tracing::warn!(%error, "the spool cannot note how far it was forwarded");
        return;
    }
    for topic in Topic::ALL {
        if let Err(error) = gear.spool.trim(topic, offsets[topic.index()]) {
            tracing::warn!(%error, %topic, "a forwarded segment of the spool cannot be deleted");
        }
    }
    *kept = offsets;
}

/// One lane, until the thread ends or nothing can be forwarded any more.
async fn follow(gear: &Gear, lane: &Lane) {
    loop {
        let look_at = lane.look(gear, Instant::now());
        match step(gear, lane).await {
            Ok(()) => {}
            Err(Halt::Later(reason)) => {
                tracing::debug!(topic = %lane.topic, reason, "spool is not forwarded yet");
                sleep(PAUSE).await;
                continue;
            }
            Err(Halt::Ended(reason)) => {
                // The next start forwards from the file.
                tracing::error!(topic = %lane.topic, reason, "spool is no longer forwarded");
                return;
            }
        }
        let (oldest, unread) = {
            let state = lane.state.lock();
            let unread = (state.next < state.end).then_some(state.next);
            (state.handed.front().map(|oldest| Arc::clone(&oldest.ticket)), unread)
        };
        let confirmed = async {
            match oldest {
                Some(ticket) => drop(ticket.delivered().await),
                None => std::future::pending().await,
            }
        };
        let due = async {
            match look_at {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        let written = async {
            match unread {
                Some(offset) => drop(gear.spool.wait(of(lane.topic, offset), Visibility::Written).await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = lane.news.notified() => {}
            () = confirmed => {}
            () = due => {}
            // With a full window only a confirmation helps.
            () = written, if has_room(lane) => {}
        }
    }
}

enum Halt {
    Later(String),
    Ended(String),
}

impl From<AppendError> for Halt {
    fn from(error: AppendError) -> Self {
        if error.is_temporary() { Self::Later(error.to_string()) } else { Self::Ended(error.to_string()) }
    }
}

impl From<ReadError> for Halt {
    fn from(error: ReadError) -> Self {
        if error.is_temporary() { Self::Later(error.to_string()) } else { Self::Ended(error.to_string()) }
    }
}

/// Notes what was confirmed, then hands over what fits into the window.
async fn step(gear: &Gear, lane: &Lane) -> Result<(), Halt> {
    lane.retire(gear)?;
    while has_room(lane) {
        let (next, end) = {
            let state = lane.state.lock();
            (state.next, state.end)
        };
        if next == end {
            break;
        }
        let records = gear.spool.read(of(lane.topic, next), Limits::default(), Visibility::Written).await?;
        if records.is_empty() {
            // Accepted by the spool a moment ago, and not written yet.
            break;
        }
        for run in runs(&records) {
            let (Some(first), Some(last)) = (run.first(), run.last()) else { continue };
            let values: Vec<Bytes> = run.iter().map(|record| record.value.clone()).collect();
            let ticket = gear.kafka.produce(&Batch::new(lane.topic, first.key.clone(), first.time_ms, values))?;
            let mut state = lane.state.lock();
            state.next = last.offset + 1;
            let handed =
                Handed { end: last.offset + 1, bytes: run.iter().map(cost_of).sum(), ticket, since: Instant::now() };
            state.handed.push_back(handed);
        }
        lane.retire(gear)?;
    }
    lane.settle(gear);
    Ok(())
}

fn has_room(lane: &Lane) -> bool {
    let state = lane.state.lock();
    let bytes: u64 = state.handed.iter().map(|handed| handed.bytes).sum();
    state.handed.len() < WINDOW_BATCHES && bytes < WINDOW_BYTES
}

const fn of(topic: Topic, offset: u64) -> Position {
    Position { topic, partition: 0, offset }
}

/// Neighbours of one key and time go together, as they came.
fn runs(records: &[StoredRecord]) -> impl Iterator<Item = &[StoredRecord]> {
    let mut rest = records;
    std::iter::from_fn(move || {
        let first = rest.first()?;
        let mut bytes = first.key.len();
        let length = rest
            .iter()
            .take(MAX_BATCH_RECORDS)
            .take_while(|record| {
                bytes += record.value.len();
                record.key == first.key && record.time_ms == first.time_ms && bytes <= MAX_BATCH_BYTES
            })
            .count();
        let (run, others) = rest.split_at(length.max(1));
        rest = others;
        Some(run)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_of_one_key_and_one_time() {
        let record = |offset: u64, key: &'static str, time_ms| StoredRecord {
            partition: 0,
            offset,
            key: key.into(),
            value: Bytes::new(),
            time_ms,
        };
        let records = [record(0, "a", 1), record(1, "a", 1), record(2, "b", 1), record(3, "a", 1), record(4, "a", 2)];
        let lengths: Vec<usize> = runs(&records).map(<[StoredRecord]>::len).collect();
        assert_eq!(lengths, [2, 1, 1, 1]);
        assert_eq!(runs(&[]).count(), 0);
    }
}
