//! Who lives: the newest heartbeat of every process, as `weir.operations` tells.
//!
//! A process that is silent is not dead: it may be cut off, with events in its spool that nobody else can see. So what
//! counts is what it last said, and how long ago; whoever asks decides what that means. A reservation whose gateway still has
//! a spool to forward is left alone, because its end may be in there (design, section 6).

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use weir_domain::ids::Region;
use weir_schemas::operations::{Heartbeat, Operation};
use weir_streams::{EventLog, ReadError, StoredRecord, Topic};

use crate::tail;

/// How often every process says that it lives: three fit into the time after which it counts as silent.
pub const BEAT_EVERY: Duration = Duration::from_secs(5);
/// Two lost beats and a busy log are not yet silence.
pub const SILENT_AFTER: Duration = Duration::from_secs(20);

/// Heartbeats of an hour of a hundred processes, other operations between them: what a start reads, by partition.
const LOOK_BACK_RECORDS: u64 = 50_000;

/// Processes that are remembered. At the bound the one that was silent longest goes; each restart under a new name makes
/// one.
const MOST_PROCESSES: usize = 10_000;

/// Which process holds a reservation, in one word: as it is in `ReservationCreated`, and as its heartbeats name it.
#[must_use]
pub fn owner(region: &Region, name: &str, epoch: u64) -> Arc<str> {
    Arc::from(format!("{region}/{name}-{epoch}"))
}

/// The newest heartbeat of every process.
#[derive(Debug, Default)]
pub struct Presence(Mutex<BTreeMap<Arc<str>, Heartbeat>>);

/// A process and whether it was heard of lately.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Living {
    pub heartbeat: Heartbeat,
    pub is_silent: bool,
}

impl Presence {
    /// Follows one partition of the operations until `stop`.
    ///
    /// # Errors
    /// [`ReadError`], when the log cannot be followed without a person.
    pub async fn follow(
        &self,
        log: Arc<dyn EventLog>,
        partition: u32,
        stop: impl Future<Output = ()> + Send,
    ) -> Result<(), ReadError> {
        let from = (Topic::Operations, partition);
        tail::follow(&*log, from, LOOK_BACK_RECORDS, stop, |records| self.learn(records)).await
    }

    fn learn(&self, records: &[StoredRecord]) {
        for record in records {
            // What cannot be read is of a newer version; the other operations are for people.
            if let Ok(Operation::Heartbeat(heartbeat)) = Operation::decode(&record.value) {
                self.hear(heartbeat);
            }
        }
    }

    /// Takes one in. An older one than what is known changes nothing.
    pub fn hear(&self, heartbeat: Heartbeat) {
        let owner = owner(&heartbeat.region, &heartbeat.gateway, heartbeat.epoch);
        let mut known = self.0.lock();
        if known.get(&owner).is_some_and(|known| known.sent_at_ms > heartbeat.sent_at_ms) {
            return;
        }
        known.insert(owner, heartbeat);
        if known.len() > MOST_PROCESSES {
            let silent_longest =
                known.iter().min_by_key(|(_, known)| known.sent_at_ms).map(|(owner, _)| Arc::clone(owner));
            silent_longest.and_then(|owner| known.remove(&owner));
        }
    }

    /// Everybody who did not say good-bye, by region, name and epoch.
    #[must_use]
    pub fn living(&self, now_ms: i64) -> Vec<Living> {
        let silent_before_ms = now_ms.saturating_sub(i64::try_from(SILENT_AFTER.as_millis()).unwrap_or(i64::MAX));
        let known = self.0.lock();
        let stays = known.values().filter(|heartbeat| !heartbeat.leaves);
        stays.map(|beat| Living { is_silent: beat.sent_at_ms < silent_before_ms, heartbeat: beat.clone() }).collect()
    }

    /// Whether `owner` is known to have events that are not on the log.
    #[must_use]
    pub fn has_spooled(&self, owner: &str) -> bool {
        self.0.lock().get(owner).is_some_and(|beat| beat.spool_forwarded < beat.spool_head)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_MS: i64 = 1_000_000;

    fn beat(name: &str, epoch: u64, sent_at_ms: i64) -> Heartbeat {
        Heartbeat {
            gateway: name.to_owned(),
            region: Region::new("eu"),
            epoch,
            started_at_ms: 0,
            sent_at_ms,
            spool_head: 0,
            spool_forwarded: 0,
            role: "gateway".to_owned(),
            release: String::new(),
            snapshot_version: 1,
            leaves: false,
        }
    }

    #[test]
    fn the_newest_word_of_each_process_counts() {
        let presence = Presence::default();
        presence.hear(Heartbeat { spool_head: 7, ..beat("a", 1, NOW_MS) });
        presence.hear(beat("a", 1, NOW_MS - 1));
        presence.hear(beat("b", 1, NOW_MS - 60_000));
        presence.hear(Heartbeat { leaves: true, ..beat("c", 1, NOW_MS) });
        let living: Vec<_> = presence.living(NOW_MS).into_iter().map(|l| (l.heartbeat.gateway, l.is_silent)).collect();
        assert_eq!(living, [("a".to_owned(), false), ("b".to_owned(), true)]);
        let owner_of_a = owner(&Region::new("eu"), "a", 1);
        assert!(presence.has_spooled(&owner_of_a));
        assert!(!presence.has_spooled(&owner(&Region::new("eu"), "a", 2)), "a restarted process is another owner");
        presence.hear(Heartbeat { spool_head: 7, spool_forwarded: 7, ..beat("a", 1, NOW_MS + 1) });
        assert!(!presence.has_spooled(&owner_of_a));
    }

    #[test]
    fn what_is_remembered_has_a_bound() {
        let presence = Presence::default();
        for n in 0..MOST_PROCESSES as u64 + 10 {
            presence.hear(beat("a", n, NOW_MS + i64::try_from(n).unwrap()));
        }
        let living = presence.living(NOW_MS);
        assert_eq!((living.len(), living.iter().map(|l| l.heartbeat.epoch).min()), (MOST_PROCESSES, Some(10)));
    }
}
