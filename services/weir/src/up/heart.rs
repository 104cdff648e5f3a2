//! The heartbeat of this process on `weir.operations`.
//!
//! It is how others know who lives, what policy each has in force, and whose spool still holds events. The last one says
//! good-bye, so that an orderly stop is not taken for silence.

use std::sync::Arc;

use arc_swap::ArcSwap;
use bytes::Bytes;

use weir_domain::policy::Snapshot;
use weir_reconciler::presence::BEAT_EVERY;
use weir_reconciler::{Journal, JournalError};
use weir_runtime::story::story;
use weir_runtime::tasks::Tasks;
use weir_schemas::operations::Heartbeat;
use weir_streams::Topic;

use super::consumers::journal;
use crate::process::{Identity, Running, Spool};

/// Beats until the tasks stop.
pub(crate) fn start(running: &Running<'_>) {
    let heart = Heart::of(running);
    drop(running.owners.beside.spawn("heartbeat", heart.beat_on(running.owners.beside.clone())));
}

/// Beats once, and returns when that is durable.
#[cfg(all(feature = "kafka", feature = "cql", feature = "redis"))]
pub(crate) async fn beat(running: &Running<'_>) -> Result<(), JournalError> {
    Heart::of(running).told(false).await
}

struct Heart {
    identity: Identity,
    journal: Journal,
    snapshot: Arc<ArcSwap<Snapshot>>,
    spool: Option<Arc<dyn Spool>>,
    started_at_ms: i64,
}

impl Heart {
    fn of(running: &Running<'_>) -> Self {
        Self {
            identity: running.identity.clone(),
            journal: journal(running),
            snapshot: Arc::clone(running.snapshot),
            spool: running.spool.cloned(),
            started_at_ms: running.clock.now_ms(),
        }
    }

    async fn beat_on(self, tasks: Tasks) {
        let stopping = tasks.stopping();
        tokio::pin!(stopping);
        loop {
            // A log that does not answer must not hold up the stop.
            tokio::select! {
                () = &mut stopping => break,
                () = self.beat(false) => {}
            }
            tokio::select! {
                () = &mut stopping => break,
                () = tokio::time::sleep(BEAT_EVERY) => {}
            }
        }
        self.beat(true).await;
    }

    async fn beat(&self, leaves: bool) {
        if let Err(error) = self.told(leaves).await {
            tracing::debug!(error = story(&error), "heartbeat not written");
        }
    }

    async fn told(&self, leaves: bool) -> Result<(), JournalError> {
        let (spool_head, spool_forwarded) = self.spool.as_ref().map_or((0, 0), |spool| spool.positions());
        let heartbeat = Heartbeat {
            gateway: self.identity.name.clone(),
            region: self.journal.region().clone(),
            epoch: self.identity.epoch,
            started_at_ms: self.started_at_ms,
            sent_at_ms: self.journal.now_ms(),
            spool_head,
            spool_forwarded,
            role: self.identity.role.to_owned(),
            release: env!("CARGO_PKG_VERSION").to_owned(),
            snapshot_version: self.snapshot.load().version,
            leaves,
        };
        let key = Bytes::from(heartbeat.gateway.clone());
        self.journal.write(Topic::Operations, key, &heartbeat).await
    }
}
