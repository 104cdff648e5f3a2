//! The builder: the consumer that turns reservation events into the ledger.
//!
//! One delivery is: fold its records; post lines and rows in one transaction; append what follows from them to the other
//! topics and wait until it is durable; then the loop stores the position. A crash anywhere between repeats the delivery
//! from the last position, and the repetition finds the same lines, says the same entries again and loses nothing: the
//! lines are a function of the log, so there is no order in which two tries could disagree.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::Mutex;

use weir_domain::ids::TenantId;
use weir_domain::ledger::LineKey;
use weir_domain::quota::Book;
use weir_runtime::clock::SharedClock;
use weir_runtime::failpoint;
use weir_runtime::story::story;
use weir_schemas::reservation_event::ReservationEvent;
use weir_streams::consumer::{Applied, Delivery, Effect, EffectError, StoreError, Subscription};
use weir_streams::{Append, AppendError, EventLog, Topic};

use crate::checkpoint::{CheckpointOptions, LeftOut, Snapshot};
use crate::contract::{Change, LedgerError, LedgerStore};
use crate::handover::Handover;
use crate::outgoing::{self, Outgoing, OutgoingError};
use crate::projection::{AbsorbError, Projection};
use crate::start::Folded;

/// Under this name the builder's positions and parked keys are stored.
pub const CONSUMER: &str = "ledger";

/// The builder's subscription to one partition of the reservations' topic.
#[must_use]
pub fn subscription(partition: u32) -> Subscription {
    Subscription { consumer: Arc::from(CONSUMER), topic: Topic::Reservations, partition }
}

/// The effect of the ledger's consumer. One for all partitions that a process follows.
#[derive(Debug)]
pub struct LedgerBuilder {
    log: Arc<dyn EventLog>,
    store: Arc<dyn LedgerStore>,
    clock: SharedClock,
    options: CheckpointOptions,
    beside: Beside,
    state: Mutex<State>,
}

/// Sees every event that the builder reads, so that nobody else in the process decodes it again.
pub trait Witness: std::fmt::Debug + Send + Sync {
    /// Called in the order of the log, and again for what is delivered again. MUST NOT block.
    fn saw(&self, event: &ReservationEvent);
}

/// Who is in the same process, and is told in memory what others read from the log.
#[derive(Debug, Clone, Default)]
pub struct Beside {
    pub witness: Option<Arc<dyn Witness>>,
    pub handover: Option<Arc<Handover>>,
}

#[derive(Debug)]
struct State {
    projection: Projection,
    /// The first record not applied yet, by partition.
    applied: BTreeMap<u32, u64>,
    /// Stored and not yet durable on its own topic.
    outgoing: Vec<Outgoing>,
    since_checkpoint: u64,
    checkpoint_at_ms: i64,
}

/// Why a checkpoint was not taken. The ledger goes on without.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    #[error("the fold is ahead of what is stored: a delivery waits to be repeated")]
    Unsettled,
    #[error("the fold cannot be written down")]
    Flaw(#[from] crate::checkpoint::CheckpointFlaw),
    #[error("the checkpoint was not stored")]
    Store(#[from] LedgerError),
    #[error("the parked keys cannot be listed")]
    Parked(#[from] StoreError),
    #[error("the thread that wrote it down was lost")]
    Lost,
}

impl LedgerBuilder {
    /// A builder that goes on where `folded` stands.
    #[must_use]
    pub fn new(
        folded: Folded,
        log: Arc<dyn EventLog>,
        store: Arc<dyn LedgerStore>,
        clock: SharedClock,
        options: CheckpointOptions,
    ) -> Self {
        let checkpoint_at_ms = clock.now_ms();
        let state = State {
            projection: folded.projection,
            applied: folded.positions,
            outgoing: Vec::new(),
            since_checkpoint: folded.replayed_events,
            checkpoint_at_ms,
        };
        Self { log, store, clock, options, beside: Beside::default(), state: Mutex::new(state) }
    }

    /// The same builder, which tells `beside` what it reads and writes.
    #[must_use]
    pub fn with(self, beside: Beside) -> Self {
        Self { beside, ..self }
    }

    /// Takes a checkpoint now: at a clean stop, after the consumer's loop has ended.
    ///
    /// # Errors
    /// [`CheckpointError`]; a start without it only takes longer.
    pub async fn checkpoint(&self) -> Result<(), CheckpointError> {
        let mut state = self.state.lock().await;
        self.take_checkpoint(&mut state).await
    }

    async fn take_checkpoint(&self, state: &mut State) -> Result<(), CheckpointError> {
        if state.projection.has_pending() || !state.outgoing.is_empty() {
            return Err(CheckpointError::Unsettled);
        }
        let now_ms = self.clock.now_ms();
        let positions: Vec<(u32, u64)> =
            state.applied.iter().map(|(partition, offset)| (*partition, *offset)).collect();
        let mut left_out = Vec::new();
        for (partition, _) in &positions {
            let parked = self.store.list(&subscription(*partition)).await?.into_iter();
            left_out.extend(parked.map(|p| LeftOut { partition: *partition, key: p.key.to_vec(), offset: p.offset }));
        }
        let snapshot = Snapshot::of(&state.projection, positions, left_out, now_ms);
        // Sealing is a second of work at a million reservations: not on a thread that serves requests.
        let sealed =
            tokio::task::spawn_blocking(move || snapshot.seal()).await.map_err(|_| CheckpointError::Lost)??;
        failpoint::pass("checkpoint.before_store").await;
        self.store.save_checkpoint(sealed, self.options.keep).await?;
        failpoint::pass("checkpoint.after_store").await;
        state.since_checkpoint = 0;
        state.checkpoint_at_ms = now_ms;
        Ok(())
    }

    /// A checkpoint is taken between deliveries, when the position of the last one is stored: a checkpoint ahead of the
    /// position would leave out what is delivered again.
    async fn checkpoint_if_due(&self, state: &mut State, delivery: &Delivery<'_>) {
        let age_ms = self.clock.now_ms().saturating_sub(state.checkpoint_at_ms);
        let is_due = state.since_checkpoint >= self.options.events_between(state.projection.fold().len())
            || (state.since_checkpoint > 0 && age_ms >= self.options.every_ms);
        let first = delivery.records.first().map(|record| record.offset);
        let applied = state.applied.get(&delivery.subscription.partition).copied();
        let goes_on = delivery.position.is_some() && first >= applied;
        if !is_due || !goes_on {
            return;
        }
        if let Err(error) = self.take_checkpoint(state).await {
            tracing::warn!(error = story(&error), "checkpoint not taken");
        }
    }

    async fn absorb_all(&self, state: &mut State, delivery: &Delivery<'_>) -> Result<(), EffectError> {
        for record in delivery.records {
            let absorbed = match state.projection.read(record) {
                Ok(event) => {
                    if let Some(witness) = &self.beside.witness {
                        witness.saw(&event);
                    }
                    state.projection.take(&*self.store, record, &event).await
                }
                Err(error) => Err(error),
            };
            absorbed.map_err(|error| match error {
                AbsorbError::Poison(reason) => EffectError::Poison { offset: record.offset, reason },
                AbsorbError::Store(error) => retry(&error),
            })?;
        }
        Ok(())
    }

    /// Stores what is pending, then says it. What cannot be done now stays for the next try.
    async fn flush(&self, state: &mut State) -> Result<(), EffectError> {
        if state.projection.has_pending() {
            let changes = state.projection.take_changes();
            match self.store_changes(&changes, &state.projection).await {
                Ok(outgoing) => state.outgoing.extend(outgoing),
                Err(error) => {
                    state.projection.put_back(&changes);
                    return Err(match error {
                        OutgoingError::Store(LedgerError::Conflict { key, field }) => conflict(state, key, field),
                        OutgoingError::Store(_) | OutgoingError::Encode(_) => retry(&error),
                    });
                }
            }
            state.projection.stored();
        }
        failpoint::pass("builder.before_publish").await;
        self.publish(state).await
    }

    /// An entry that cannot be written would be one that the ledger has and finance never sees: better to stand still,
    /// visibly. The event was read from a frame of the same bound, so it does not happen.
    async fn store_changes(
        &self,
        changes: &Arc<[Change]>,
        projection: &Projection,
    ) -> Result<Vec<Outgoing>, OutgoingError> {
        failpoint::pass("builder.before_store").await;
        self.store.post(Arc::clone(changes)).await?;
        outgoing::batches(&*self.store, changes, projection).await
    }

    async fn publish(&self, state: &mut State) -> Result<(), EffectError> {
        let append = |outgoing: &Outgoing| {
            let append = self.log.append(outgoing.batch.clone());
            if let (Some(handover), Some(placed), Topic::Ledger) =
                (&self.beside.handover, append.place(), outgoing.batch.topic)
            {
                handover.leave(placed.first.offset, outgoing.corrections.iter().cloned());
            }
            append
        };
        let appends: Vec<Append> = state.outgoing.iter().map(append).collect();
        for append in appends {
            append.durable().await.map_err(|error: AppendError| retry(&error))?;
        }
        state.outgoing.clear();
        Ok(())
    }

    /// A copy of a tenant's counters as the ledger has come to them.
    pub async fn book(&self, tenant: &TenantId) -> Option<Book> {
        self.state.lock().await.projection.fold().book(tenant).cloned()
    }
}

#[cfg(test)]
impl LedgerBuilder {
    pub(crate) async fn fold_image(&self) -> weir_domain::fold::FoldImage {
        self.state.lock().await.projection.fold().image()
    }
}

#[async_trait]
impl Effect for LedgerBuilder {
    async fn apply(&self, delivery: Delivery<'_>) -> Result<Applied, EffectError> {
        let mut state = self.state.lock().await;
        let state = &mut *state;
        self.checkpoint_if_due(state, &delivery).await;
        self.absorb_all(state, &delivery).await?;
        self.flush(state).await?;
        state.since_checkpoint += delivery.records.len() as u64;
        if let Some(position) = delivery.position {
            state.applied.insert(delivery.subscription.partition, position);
        }
        // The loop stores the position next.
        failpoint::pass("builder.before_position").await;
        Ok(Applied::Effect)
    }
}

/// The stored line and the log disagree. The reservation is parked for a person; the others go on.
fn conflict(state: &mut State, key: LineKey, field: &'static str) -> EffectError {
    let error = LedgerError::Conflict { key, field };
    let source = state.projection.drop_pending(key.reservation);
    match source.and_then(|source| u64::try_from(source.offset).ok()) {
        Some(offset) => EffectError::Poison { offset, reason: error.to_string() },
        None => retry(&error),
    }
}

fn retry(error: &dyn std::error::Error) -> EffectError {
    EffectError::Retry { reason: error.to_string() }
}

#[cfg(test)]
#[path = "builder_tests.rs"]
mod tests;
