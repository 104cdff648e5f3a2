//! Who lives: the newest heartbeat of every process, as `weir.operations` tells.
//!
//! A process that is silent is not dead: it may be cut off, with events in its spool that nobody else can see. So what
//! counts is what it last said, and how long ago; whoever asks decides what that means. A reservation whose gateway still has
//! a spool to forward is left alone, because its end may be in there (design, section 6).

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;
use uuid::Uuid;

use weir_domain::ids::Region;
use weir_schemas::operations::{Heartbeat, Operation, QuotaRebuild};
use weir_streams::{EventLog, ReadError, StoredRecord, Topic};

use crate::tail;

/// How often every process says that it lives: three fit into the time after which it counts as silent.
pub const BEAT_EVERY: Duration = Duration::from_secs(5);
/// Two lost beats and a busy log are not yet silence.
pub const SILENT_AFTER: Duration = Duration::from_secs(20);
/// Who was silent for so long is not waited for by a rebuild: it was replaced long ago.
const GONE_AFTER_MS: i64 = 60 * 60 * 1000;

/// Heartbeats of an hour of a hundred processes, other operations between them: what a start reads, by partition.
const LOOK_BACK_RECORDS: u64 = 50_000;

/// Processes that are remembered. At the bound the one that was silent longest goes; each restart under a new name makes
/// one.
const MOST_PROCESSES: usize = 10_000;

/// What a process that takes requests calls itself.
const GATEWAY: &str = "gateway";

/// Which process holds a reservation, in one word: as it is in `ReservationCreated`, and as its heartbeats name it.
#[must_use]
pub fn owner(region: &Region, name: &str, epoch: u64) -> Arc<str> {
    Arc::from(format!("{region}/{name}-{epoch}"))
}

/// The newest heartbeat of every process, and who answered which rebuild.
#[derive(Debug, Default)]
pub struct Presence {
    known: Mutex<Known>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Known {
    processes: BTreeMap<Arc<str>, Process>,
    /// By partition, the offset up to which everything was heard.
    heard: BTreeMap<u32, u64>,
    /// Of rebuilds that somebody in this process waits for: which epoch of which gateway has answered.
    answers: BTreeMap<Uuid, BTreeSet<(Region, String, u64)>>,
}

#[derive(Debug)]
struct Process {
    heartbeat: Heartbeat,
    heard_at: Instant,
    /// A rebuild waited for it in vain, and it was not heard of since.
    is_written_off: bool,
}

/// A process and whether it was heard of lately.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Living {
    pub heartbeat: Heartbeat,
    pub is_silent: bool,
}

/// Who has not answered a rebuild.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Unanswered {
    /// Gateways that are waited for, as `region/name-epoch`.
    pub awaited: Vec<String>,
    /// Whether there is any other that did not say good-bye: nobody waits for its answer, but it may wake up.
    pub has_sleepers: bool,
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
        let learn = |records: &[StoredRecord], next| self.learn(partition, records, next);
        tail::follow(&*log, from, LOOK_BACK_RECORDS, stop, learn).await
    }

    fn learn(&self, partition: u32, records: &[StoredRecord], next: u64) {
        for record in records {
            // What cannot be read is of a newer version; the other operations are for people.
            match Operation::decode(&record.value) {
                Ok(Operation::Heartbeat(heartbeat)) => self.hear(heartbeat),
                Ok(Operation::QuotaRebuild(step)) => self.hear_of_rebuild(step),
                Ok(Operation::OperatorAct(_) | Operation::ConsumerSkip(_) | Operation::AdmissionDenied(_)) | Err(_) => {
                }
            }
        }
        self.known.lock().heard.insert(partition, next);
        self.changed.notify_waiters();
    }

    /// Takes one in. An older one than what is known changes nothing.
    pub fn hear(&self, heartbeat: Heartbeat) {
        let owner = owner(&heartbeat.region, &heartbeat.gateway, heartbeat.epoch);
        let mut known = self.known.lock();
        let processes = &mut known.processes;
        if processes.get(&owner).is_some_and(|known| known.heartbeat.sent_at_ms > heartbeat.sent_at_ms) {
            return;
        }
        processes.insert(owner, Process { heartbeat, heard_at: Instant::now(), is_written_off: false });
        if processes.len() > MOST_PROCESSES {
            let silent_longest = processes.iter().min_by_key(|(_, known)| known.heartbeat.sent_at_ms);
            let silent_longest = silent_longest.map(|(owner, _)| Arc::clone(owner));
            silent_longest.and_then(|owner| processes.remove(&owner));
        }
    }

    /// Takes in a step of a rebuild.
    pub fn hear_of_rebuild(&self, step: QuotaRebuild) {
        let mut known = self.known.lock();
        match step.step.as_str() {
            QuotaRebuild::HELD => {
                if let Some(answers) = known.answers.get_mut(&step.rebuild_id) {
                    answers.insert((step.region, step.process, step.epoch));
                }
            }
            QuotaRebuild::OPENED => {
                for owner in step.absent {
                    // One that was heard of lately may have come back after it was waited for.
                    if let Some(process) = known.processes.get_mut(owner.as_str()) {
                        process.is_written_off |= process.heard_at.elapsed() > SILENT_AFTER;
                    }
                }
            }
            // The question is for gateways.
            _ => {}
        }
    }

    /// Everybody who did not say good-bye, by region, name and epoch.
    #[must_use]
    pub fn living(&self, now_ms: i64) -> Vec<Living> {
        let silent_before_ms = now_ms.saturating_sub(i64::try_from(SILENT_AFTER.as_millis()).unwrap_or(i64::MAX));
        let known = self.known.lock();
        let stays = known.processes.values().map(|process| &process.heartbeat).filter(|heartbeat| !heartbeat.leaves);
        stays.map(|beat| Living { is_silent: beat.sent_at_ms < silent_before_ms, heartbeat: beat.clone() }).collect()
    }

    /// Whether `owner` is known to have events that are not on the log.
    #[must_use]
    pub fn has_spooled(&self, owner: &str) -> bool {
        let known = self.known.lock();
        known.processes.get(owner).is_some_and(|known| known.heartbeat.spool_forwarded < known.heartbeat.spool_head)
    }

    /// Notes who answers `rebuild` from now on.
    pub(crate) fn expect_answers(&self, rebuild: Uuid) {
        self.known.lock().answers.insert(rebuild, BTreeSet::new());
    }

    pub(crate) fn forget_answers(&self, rebuild: Uuid) {
        self.known.lock().answers.remove(&rebuild);
    }

    /// Which gateways have not answered `rebuild`. The answer of a later epoch is also that of the earlier ones: it stands
    /// on the same spool.
    #[must_use]
    pub fn unanswered(&self, rebuild: Uuid, now_ms: i64) -> Unanswered {
        let known = self.known.lock();
        let answers = known.answers.get(&rebuild);
        let has_answered = |beat: &Heartbeat| {
            let of = |(region, name, epoch): &(Region, String, u64)| {
                *region == beat.region && *name == beat.gateway && *epoch >= beat.epoch
            };
            answers.is_some_and(|answers| answers.iter().any(of))
        };
        let mut unanswered = Unanswered::default();
        for (owner, process) in &known.processes {
            let beat = &process.heartbeat;
            if beat.leaves || beat.role != GATEWAY || has_answered(beat) {
                continue;
            }
            if process.is_written_off || beat.sent_at_ms < now_ms.saturating_sub(GONE_AFTER_MS) {
                unanswered.has_sleepers = true;
            } else {
                unanswered.awaited.push(owner.to_string());
            }
        }
        unanswered
    }

    /// Whether everything below these offsets was heard.
    pub(crate) fn has_heard(&self, ends: &[(u32, u64)]) -> bool {
        let known = self.known.lock();
        ends.iter().all(|(partition, end)| known.heard.get(partition).is_some_and(|heard| heard >= end))
    }

    /// Returns when something was heard, or a moment later.
    pub(crate) async fn next(&self, within: Duration) {
        // What came between a look and this call is seen a moment later.
        let _woken = tokio::time::timeout(within.min(LOOK_AGAIN), self.changed.notified()).await;
    }
}

/// A wake-up that was missed costs no more than this.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

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

    fn step(rebuild_id: Uuid, step: &str, of: &Heartbeat, absent: &[&str]) -> QuotaRebuild {
        QuotaRebuild {
            rebuild_id,
            step: step.to_owned(),
            process: of.gateway.clone(),
            region: of.region.clone(),
            epoch: of.epoch,
            tenants: 0,
            absent: absent.iter().map(|owner| (*owner).to_owned()).collect(),
            at_ms: NOW_MS,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn i15_a_rebuild_waits_for_every_gateway_that_may_hold_something() {
        let (presence, rebuild) = (Presence::default(), Uuid::from_u128(7));
        let awaited = |presence: &Presence| presence.unanswered(rebuild, NOW_MS).awaited;
        for name in ["a", "b", "left", "gone"] {
            presence.hear(beat(name, 1, if name == "gone" { NOW_MS - GONE_AFTER_MS - 1 } else { NOW_MS - 60_000 }));
        }
        presence.hear(Heartbeat { leaves: true, ..beat("left", 1, NOW_MS) });
        presence.hear(Heartbeat { role: "ledger".to_owned(), ..beat("builder", 1, NOW_MS) });
        presence.expect_answers(rebuild);
        assert_eq!(awaited(&presence), ["eu/a-1", "eu/b-1"]);
        assert!(presence.unanswered(rebuild, NOW_MS).has_sleepers, "the one that is gone may wake up");

        presence.hear_of_rebuild(step(Uuid::from_u128(8), QuotaRebuild::HELD, &beat("a", 1, NOW_MS), &[]));
        assert_eq!(awaited(&presence), ["eu/a-1", "eu/b-1"], "it answered another rebuild");
        presence.hear_of_rebuild(step(rebuild, QuotaRebuild::HELD, &beat("a", 2, NOW_MS), &[]));
        assert_eq!(awaited(&presence), ["eu/b-1"], "a later epoch speaks for the earlier ones");

        let opened = step(rebuild, QuotaRebuild::OPENED, &beat("r", 1, NOW_MS), &["eu/b-1"]);
        presence.hear_of_rebuild(opened.clone());
        assert_eq!(awaited(&presence), ["eu/b-1"], "it may just have come back");
        tokio::time::advance(2 * SILENT_AFTER).await;
        presence.hear_of_rebuild(opened);
        assert_eq!(presence.unanswered(rebuild, NOW_MS), Unanswered { awaited: Vec::new(), has_sleepers: true });
        presence.hear(beat("b", 1, NOW_MS));
        assert_eq!(awaited(&presence), ["eu/b-1"], "it lives");
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
