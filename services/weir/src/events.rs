//! Where the events of one reservation are read: the files of the embedded log, or any log by its contract.
//!
//! The files have an index that finds single records beside the process that writes them, without its lock. Everywhere else
//! the ledger knows the place of each event, and what the builder has not read yet is near the end.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use thiserror::Error;

use weir_domain::ids::ReservationId;
use weir_ledger::contract::{LedgerStore, StoredReservation};
use weir_ledger::subscription;
use weir_streams::consumer::StoreError;
use weir_streams::{EventLog, Limits, Position, ReadError, StoredRecord, Topic, Visibility};

use crate::records::{RecordsError, TopicFiles};

/// Why events cannot be read.
#[derive(Debug, Error)]
pub enum EventsError {
    #[error(transparent)]
    Files(#[from] RecordsError),
    #[error(transparent)]
    Log(#[from] ReadError),
    #[error("the builder's position cannot be read")]
    Position(#[from] StoreError),
    #[error("the thread that read the log was lost")]
    Lost,
}

/// The events of single reservations.
#[derive(Debug, Clone)]
pub enum EventSource {
    /// The folder of the embedded log.
    Files(PathBuf),
    Log(Arc<dyn EventLog>),
}

/// The events of one reservation, in order, each once.
#[derive(Debug, Default)]
pub struct Found {
    pub records: Vec<StoredRecord>,
    /// Whether the builder has read all of them.
    pub derived: bool,
}

/// The embedded log has one partition.
const PARTITION: u32 = 0;

impl EventSource {
    /// How far the builder has come, by partition. To be asked before the ledger is: what comes between the two looks is
    /// then read twice rather than missed.
    ///
    /// # Errors
    /// [`EventsError::Position`].
    pub async fn built_until(&self, ledger: &dyn LedgerStore) -> Result<Vec<u64>, EventsError> {
        let partitions = match self {
            Self::Files(_) => 1,
            Self::Log(log) => log.partitions(Topic::Reservations),
        };
        let mut built = Vec::new();
        for partition in 0..partitions {
            built.push(ledger.load(&subscription(partition)).await?.unwrap_or(0));
        }
        Ok(built)
    }

    /// What the ledger has `stored` of `id`, read at its places, and what stands behind `built_until`.
    ///
    /// # Errors
    /// [`EventsError`].
    pub async fn of(
        &self,
        id: ReservationId,
        stored: Option<&StoredReservation>,
        built_until: &[u64],
    ) -> Result<Found, EventsError> {
        let marks = stored.iter().flat_map(|stored| &stored.events).map(|mark| mark.source);
        let place = |source: weir_domain::ledger::SourcePosition| {
            Some((u32::try_from(source.partition).ok()?, u64::try_from(source.offset).ok()?))
        };
        let marks: Vec<(u32, u64)> = marks.filter_map(place).collect();
        let (mut records, tail) = match self {
            Self::Files(folder) => {
                let (folder, marks) = (folder.clone(), marks.clone());
                let built_until = built_until.first().copied().unwrap_or(0);
                let reading = move || of_files(&folder, id, &marks, built_until);
                tokio::task::spawn_blocking(reading).await.map_err(|_| EventsError::Lost)??
            }
            Self::Log(log) => of_log(&**log, id, &marks, built_until).await?,
        };
        let known: HashSet<(u32, u64)> = marks.into_iter().collect();
        let derived = tail.iter().all(|record| known.contains(&(record.partition, record.offset)));
        records.extend(tail);
        records.sort_by_key(|record| (record.partition, record.offset));
        records.dedup_by_key(|record| (record.partition, record.offset));
        Ok(Found { records, derived })
    }
}

/// Those at the marks, and those behind the builder.
type Read = (Vec<StoredRecord>, Vec<StoredRecord>);

fn of_files(folder: &Path, id: ReservationId, marks: &[(u32, u64)], built_until: u64) -> Result<Read, RecordsError> {
    let files = TopicFiles::list(folder, Topic::Reservations)?;
    let offsets: Vec<u64> = marks.iter().filter(|(at, _)| *at == PARTITION).map(|(_, offset)| *offset).collect();
    Ok((files.at(&offsets, id.as_bytes())?, files.since(built_until, id.as_bytes())?))
}

async fn of_log(
    log: &dyn EventLog,
    id: ReservationId,
    marks: &[(u32, u64)],
    built_until: &[u64],
) -> Result<Read, ReadError> {
    let is_of_it = |record: &StoredRecord| record.key[..] == id.as_bytes()[..];
    let mut records: Vec<StoredRecord> = Vec::new();
    for (partition, offset) in marks {
        if records.iter().any(|known| (known.partition, known.offset) == (*partition, *offset)) {
            continue;
        }
        let at = Position { topic: Topic::Reservations, partition: *partition, offset: *offset };
        records.extend(log.read(at, Limits::default(), Visibility::Durable).await?.into_iter().filter(is_of_it));
    }
    let mut tail = Vec::new();
    for (partition, built_until) in (0..).zip(built_until) {
        let offsets = log.offsets(Topic::Reservations, partition).await?;
        let mut offset = (*built_until).max(offsets.start);
        while offset < offsets.durable {
            let at = Position { topic: Topic::Reservations, partition, offset };
            let read = log.read(at, Limits::default(), Visibility::Durable).await?;
            let Some(last) = read.last() else { break };
            offset = last.offset + 1;
            tail.extend(read.into_iter().filter(is_of_it));
        }
    }
    Ok((records, tail))
}
