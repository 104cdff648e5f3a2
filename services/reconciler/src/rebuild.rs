//! The question that a rebuild of lost counters asks, and the answer of a gateway (I2, I15).
//!
//! ```text
//!   rebuilder   close the books ─▶ "began" ────────────────────────▶ everybody? ─▶ fold the log to its end ─▶ open ─▶ "opened"
//!   gateway                          └▶ doubt the store's word ─▶ own appends on the log ─▶ "held"
//! ```
//!
//! All is said on `weir.operations`, because whoever can put its holds on the log can also say so there, and whoever cannot
//! has nothing on it that the fold would miss. Nothing has to be still: a gateway answers for what it appended before it
//! doubted, and what comes later asked the store again (`weir_quota::Trust`).
//!
//! The wait has a bound. A gateway that does not answer in time is named in "opened": what waits in its spool is missing
//! from the counters until it is forwarded, and nothing else is, because its word of the store is old by then.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use thiserror::Error;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use uuid::Uuid;

use weir_domain::ids::{KeyId, TenantId};
use weir_quota::GOOD_FOR;
use weir_runtime::story::story;
use weir_schemas::Record as _;
use weir_schemas::operations::{Operation, QuotaRebuild};
use weir_schemas::revocation::KeyRevoked;
use weir_streams::{EventLog, Limits, Position, ReadError, StoredRecord, Topic, Visibility};

use crate::journal::{Journal, JournalError};
use crate::presence::Presence;
use crate::tail;

/// How often the question is repeated while somebody has not answered: a gateway that starts meanwhile hears it then.
const ASK_EVERY: Duration = Duration::from_secs(5);

/// Clocks of different machines run at almost the same speed.
const DRIFT: Duration = Duration::from_millis(100);

/// Questions that a gateway has not answered yet. More rebuilds at a time are none of this installation.
const MOST_QUESTIONS: usize = 64;

/// Why nobody can tell whether all holds are on the log.
#[derive(Debug, Error)]
pub enum BarrierError {
    #[error("nothing can be asked on the log")]
    Journal(#[from] JournalError),
    #[error("the log of operations cannot be read")]
    Read(#[from] ReadError),
}

/// A process that says steps of a rebuild, under the name and epoch of its heartbeats.
#[derive(Debug, Clone)]
pub struct Speaker {
    pub journal: Journal,
    pub process: String,
    pub epoch: u64,
}

impl Speaker {
    /// Appends a step; returns once it is durable.
    ///
    /// # Errors
    /// [`JournalError`].
    pub async fn say(
        &self,
        rebuild_id: Uuid,
        step: &str,
        tenants: u64,
        absent: Vec<String>,
    ) -> Result<(), JournalError> {
        let step = QuotaRebuild {
            rebuild_id,
            step: step.to_owned(),
            process: self.process.clone(),
            region: self.journal.region().clone(),
            epoch: self.epoch,
            tenants,
            absent,
            at_ms: self.journal.now_ms(),
        };
        self.journal.write(Topic::Operations, Bytes::from(self.process.clone()), &step).await
    }
}

/// Returns once everything that any gateway may spend by the closed books of `tenants` tenants is on the log, or the
/// patience is over: then with the absentees. The patience counts only while the log answers.
///
/// # Errors
/// [`BarrierError`]: the books stay closed, and the next try asks anew.
pub async fn everybody_holds(
    speaker: &Speaker,
    presence: &Presence,
    rebuild: Uuid,
    tenants: u64,
    patience: Duration,
) -> Result<Vec<String>, BarrierError> {
    let closed_at = Instant::now();
    presence.expect_answers(rebuild);
    let answered = wait_for_answers(speaker, presence, rebuild, tenants, patience).await;
    let has_sleepers = presence.unanswered(rebuild, speaker.journal.now_ms()).has_sleepers;
    presence.forget_answers(rebuild);
    let absent = answered?;
    if has_sleepers || !absent.is_empty() {
        sleep_until(closed_at + GOOD_FOR + DRIFT).await;
    }
    Ok(absent)
}

async fn wait_for_answers(
    speaker: &Speaker,
    presence: &Presence,
    rebuild: Uuid,
    tenants: u64,
    patience: Duration,
) -> Result<Vec<String>, BarrierError> {
    let mut waited = Duration::ZERO;
    loop {
        speaker.say(rebuild, QuotaRebuild::BEGAN, tenants, Vec::new()).await?;
        let ends = ends(&**speaker.journal.log()).await?;
        let asked_at = Instant::now();
        loop {
            let awaited = presence.unanswered(rebuild, speaker.journal.now_ms()).awaited;
            let has_heard = presence.has_heard(&ends);
            let waits = asked_at.elapsed();
            if has_heard && (awaited.is_empty() || waited + waits >= patience) {
                return Ok(awaited);
            }
            if waits >= ASK_EVERY {
                waited += waits;
                break;
            }
            presence.next(ASK_EVERY - waits).await;
        }
    }
}

/// Where each partition of the operations ends. Before it stands every heartbeat of whoever was admitted to by the closed
/// books: a gateway says that it lives before it takes the first request.
async fn ends(log: &dyn EventLog) -> Result<Vec<(u32, u64)>, ReadError> {
    let mut ends = Vec::new();
    for partition in 0..log.partitions(Topic::Operations) {
        ends.push((partition, log.offsets(Topic::Operations, partition).await?.durable));
    }
    Ok(ends)
}

/// What a gateway does when it is asked.
#[async_trait]
pub trait Holder: Debug + Send + Sync {
    /// From now on the store is asked again before a provider is called by what it said.
    fn doubt(&self);

    /// Returns once everything that was appended before is on the log, the spool included.
    async fn on_log(&self);
}

/// The questions that a gateway has heard and not answered.
#[derive(Debug, Default)]
pub struct Questions {
    open: Mutex<BTreeSet<Uuid>>,
    news: Notify,
}

impl Questions {
    /// Listens to one partition of the operations from its end on, until `stop`.
    ///
    /// # Errors
    /// [`ReadError`], when the log cannot be followed without a person.
    pub async fn listen(
        &self,
        log: Arc<dyn EventLog>,
        partition: u32,
        stop: impl Future<Output = ()> + Send,
    ) -> Result<(), ReadError> {
        let hear = |records: &[StoredRecord], _| records.iter().for_each(|record| self.hear(&record.value));
        tail::follow(&*log, (Topic::Operations, partition), 0, stop, hear).await
    }

    fn hear(&self, frame: &[u8]) {
        let Ok(Operation::QuotaRebuild(step)) = Operation::decode(frame) else { return };
        if step.step != QuotaRebuild::BEGAN {
            return;
        }
        let mut open = self.open.lock();
        if open.len() < MOST_QUESTIONS {
            open.insert(step.rebuild_id);
        }
        self.news.notify_one();
    }

    /// Answers until `stop`. A question that is heard while another waits for the log is answered next.
    pub async fn answer(&self, holder: &dyn Holder, speaker: &Speaker, stop: impl Future<Output = ()> + Send) {
        let answering = async {
            loop {
                self.news.notified().await;
                let heard = std::mem::take(&mut *self.open.lock());
                if heard.is_empty() {
                    continue;
                }
                holder.doubt();
                holder.on_log().await;
                for rebuild in heard {
                    tracing::info!(%rebuild, "all that was admitted here is on the log");
                    if let Err(error) = speaker.say(rebuild, QuotaRebuild::HELD, 0, Vec::new()).await {
                        // It is asked again.
                        let error = story(&error);
                        tracing::warn!(%rebuild, error, "a rebuild was not answered");
                    }
                }
            }
        };
        tokio::select! {
            () = stop => {}
            () = answering => {}
        }
    }
}

/// Every key that was ever revoked in an emergency, by tenant: what the store's own set forgot with everything else.
///
/// # Errors
/// [`ReadError`].
pub async fn revoked_keys(log: &dyn EventLog) -> Result<HashMap<TenantId, Vec<KeyId>>, ReadError> {
    let mut revoked = HashMap::<TenantId, Vec<KeyId>>::new();
    for partition in 0..log.partitions(Topic::Revocations) {
        let offsets = log.offsets(Topic::Revocations, partition).await?;
        let mut offset = offsets.start;
        while offset < offsets.durable {
            let at = Position { topic: Topic::Revocations, partition, offset };
            let records = log.read(at, Limits::default(), Visibility::Durable).await?;
            let Some(last) = records.last() else { break };
            offset = last.offset + 1;
            for record in &records {
                match KeyRevoked::decode(&record.value) {
                    Ok(KeyRevoked { tenant, key, .. }) => revoked.entry(tenant).or_default().push(key),
                    Err(error) => tracing::warn!(partition, record.offset, %error, "revocation cannot be read"),
                }
            }
        }
    }
    Ok(revoked)
}

#[cfg(test)]
#[path = "rebuild_tests.rs"]
mod tests;
