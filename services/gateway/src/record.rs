//! The reservation as its gateway holds it: the state, what is not yet on the log, and the way to log and store.
//!
//! The gateway folds the same events into a state of its own, so that it can compute closing events without asking the
//! store, append them, and only then settle the store (I8).

use std::sync::Arc;

use bytes::Bytes;

use weir_domain::attempt::AttemptNumber;
use weir_domain::ids::{KeyId, ReservationId, TenantId};
use weir_domain::money::{Amounts, Charge};
use weir_domain::quota::{Counting, Denial, Limit, Reply};
use weir_domain::reservation::{
    Balances, Closing, Command, Decision, Event, Reservation, ReservationStatus, apply, decide,
};
use weir_quota::QuotaError;
use weir_runtime::failpoint;
use weir_schemas::reservation_event::{Header, NotLogged, ReservationEvent};
use weir_streams::{Append, AppendError, Batch, Topic};

use crate::lifecycle::Prepared;
use crate::server::Inner;

/// What stands in the header of every event of one reservation.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    pub id: ReservationId,
    pub tenant: TenantId,
    key: KeyId,
    snapshot_version: u64,
    trace_id: Option<[u8; 16]>,
}

/// One reservation and its unwritten events.
#[derive(Debug)]
pub(crate) struct Record {
    gateway: Arc<Inner>,
    identity: Identity,
    pub limits: Arc<[Limit]>,
    state: Option<Reservation>,
    unwritten: Vec<Event>,
}

/// How often a command is run again when the store's reply was lost: the same id makes it the same command.
const LOST_REPLY_TRIES: u32 = 3;

impl Record {
    pub(crate) fn new(gateway: &Arc<Inner>, prepared: &Prepared, id: ReservationId, limits: Arc<[Limit]>) -> Self {
        Self {
            gateway: Arc::clone(gateway),
            identity: Identity {
                id,
                tenant: prepared.key.tenant.id.clone(),
                key: prepared.key.id.clone(),
                snapshot_version: prepared.snapshot.version,
                trace_id: prepared.arrival.trace_id,
            },
            limits,
            state: None,
            unwritten: Vec::with_capacity(2),
        }
    }

    pub(crate) const fn id(&self) -> ReservationId {
        self.identity.id
    }

    pub(crate) const fn identity(&self) -> &Identity {
        &self.identity
    }

    pub(crate) const fn state(&self) -> Option<&Reservation> {
        self.state.as_ref()
    }

    pub(crate) fn charged(&self) -> Charge {
        self.state.as_ref().map_or(Amounts::ZERO, Reservation::charged)
    }

    pub(crate) fn status(&self) -> Option<ReservationStatus> {
        self.state.as_ref().map(Reservation::status)
    }

    /// Whether the provider's id of an attempt is known.
    pub(crate) fn is_correlated(&self, number: AttemptNumber) -> bool {
        let attempt = self.state.as_ref().and_then(|state| state.attempt(number));
        attempt.is_some_and(|attempt| attempt.provider_id.is_some())
    }

    pub(crate) fn next_attempt(&self) -> AttemptNumber {
        self.state.as_ref().map_or(1, Reservation::next_attempt)
    }

    /// Runs one command on the store and folds what it changed.
    pub(crate) async fn command(&mut self, command: Command) -> Result<Reply, QuotaError> {
        let reply = self.ask(&command).await?;
        if let Decision::Change(events) = &reply.decision {
            self.fold(events);
        }
        Ok(reply)
    }

    /// Runs one command on the store; what it changes there is not news here.
    pub(crate) async fn ask(&self, command: &Command) -> Result<Reply, QuotaError> {
        let mut tries = 1;
        loop {
            match self.gateway.quota.execute(&self.identity.tenant, self.identity.id, command).await {
                Err(QuotaError::Unavailable { .. }) if tries < LOST_REPLY_TRIES => tries += 1,
                other => return other,
            }
        }
    }

    fn fold(&mut self, events: &[Event]) {
        for event in events {
            self.state = apply(self.state.take(), event);
            if event.kind().is_some() {
                self.unwritten.push(event.clone());
            }
        }
    }

    /// Hands everything unwritten to the log, as one batch. `None` when there is nothing.
    pub(crate) fn append(&mut self) -> Option<Append> {
        if self.unwritten.is_empty() {
            return None;
        }
        let batch = batch(&self.gateway, &self.identity, self.unwritten.drain(..));
        Some(self.gateway.log.append(batch))
    }

    /// Ends an attempt that another one follows: written to the log first, then the store (I8). The sweep may be at work
    /// on the reservation, and what only the store knew would be told to nobody once it has ended there.
    pub(crate) async fn close_attempt(&mut self, number: AttemptNumber, closing: Closing) -> Result<Reply, CloseError> {
        let command = Command::CloseAttempt { number, closing };
        let now_ms = self.gateway.clock.now_ms();
        if let Decision::Change(events) = decide(self.state.as_ref(), &NoBalances, &command, now_ms) {
            self.fold(&events);
        }
        if let Some(append) = self.append() {
            append.written().await.map_err(CloseError::Log)?;
        }
        self.ask(&command).await.map_err(CloseError::Store)
    }

    /// Ends an attempt and the reservation on every path: the log first, then the store. `closing` is absent when no
    /// attempt is open.
    pub(crate) async fn close(&mut self, closing: Option<(AttemptNumber, Closing)>) -> Result<(), CloseError> {
        let mut commands = Vec::with_capacity(2);
        if let Some((number, closing)) = closing {
            commands.push(Command::CloseAttempt { number, closing });
        }
        commands.push(Command::Close);
        for event in self.gateway.leases.resumed(self.identity.id) {
            self.state = apply(self.state.take(), &event);
        }
        let now_ms = self.gateway.clock.now_ms();
        for command in &commands {
            if let Decision::Change(events) = decide(self.state.as_ref(), &NoBalances, command, now_ms) {
                self.fold(&events);
            }
        }
        failpoint::pass("finalize.before_append").await;
        if let Some(append) = self.append() {
            append.durable().await.map_err(CloseError::Log)?;
        }
        failpoint::pass("finalize.before_store").await;
        self.gateway
            .quota
            .execute_all(&self.identity.tenant, self.identity.id, &commands)
            .await
            .map_err(CloseError::Store)?;
        failpoint::pass("finalize.after_store").await;
        Ok(())
    }

    /// Adds what was learnt after the end: the log first, then the store (I8). Somebody else may have told the store
    /// meanwhile; then it is a repeat, or for the ledger's ranks.
    pub(crate) async fn conclude(&mut self, commands: &[Command]) -> Result<(), CloseError> {
        let now_ms = self.gateway.clock.now_ms();
        for command in commands {
            if let Decision::Change(events) = decide(self.state.as_ref(), &NoBalances, command, now_ms) {
                self.fold(&events);
            }
        }
        if let Some(append) = self.append() {
            append.durable().await.map_err(CloseError::Log)?;
        }
        let told = self.gateway.quota.execute_all(&self.identity.tenant, self.identity.id, commands).await;
        told.map(drop).map_err(CloseError::Store)
    }
}

/// What the events of most steps take, framing included; larger ones grow the buffer.
const STEP_BYTES: usize = 1024;
const EVENTS_OF_A_STEP: usize = 4;

/// The events of one step, framed, as one batch.
pub(crate) fn batch(gateway: &Inner, identity: &Identity, events: impl Iterator<Item = Event>) -> Batch {
    let now_us = gateway.clock.now_us();
    let header = Header {
        reservation: identity.id,
        recorded_at_us: now_us,
        region: gateway.region.clone(),
        tenant: identity.tenant.clone(),
        key: identity.key.clone(),
        snapshot_version: identity.snapshot_version,
        trace_id: identity.trace_id,
    };
    let values = encoded(&header, events);
    Batch::new(Topic::Reservations, Bytes::copy_from_slice(identity.id.as_bytes()), now_us / 1000, values)
}

/// The frames of one step's events, which share one buffer; what concerns the store alone has none.
fn encoded(header: &Header, events: impl Iterator<Item = Event>) -> Vec<Bytes> {
    let mut bytes = Vec::with_capacity(STEP_BYTES);
    let mut ends = Vec::with_capacity(EVENTS_OF_A_STEP);
    for event in events {
        let start = bytes.len();
        // Every field was bounded on its way in; should one not be, the rest of the step must still be told.
        match ReservationEvent::new(header.clone(), event).map(|event| event.encode(&mut bytes)) {
            Ok(Ok(())) => ends.push(bytes.len()),
            Ok(Err(error)) => {
                tracing::error!(reservation_id = %header.reservation, %error, "event cannot be encoded");
                bytes.truncate(start);
            }
            Err(NotLogged::StoreOnly) => {}
            Err(error @ NotLogged::Field(_)) => {
                tracing::error!(reservation_id = %header.reservation, %error, "event cannot be logged");
            }
        }
    }
    // The log keeps its newest events in memory, and counts their bytes, not their room.
    bytes.shrink_to_fit();
    let mut rest = Bytes::from(bytes);
    let mut taken = 0;
    ends.into_iter().map(|end| rest.split_to(end - std::mem::replace(&mut taken, end))).collect()
}

/// Why a reservation could not be closed. Either way it is found by its lease and completed by the reconciler.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CloseError {
    #[error("the closing events are not on the log")]
    Log(#[source] AppendError),
    #[error("the closing events are on the log, but the quota store did not take them")]
    Store(#[source] QuotaError),
}

/// Closing and renewing take nothing from any limit.
pub(crate) struct NoBalances;

impl Balances for NoBalances {
    fn admit(&self, _: &Counting, _: &[Limit], _: Amounts, _: i64, _: i64) -> Result<(), Denial> {
        Ok(())
    }
}
