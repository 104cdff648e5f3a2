//! What the ledger's projection shows, and whether its silence means anything.
//!
//! A line that is missing proves nothing until the builder has read everything that was on the log when the store was
//! looked at. So a round first looks at the store, then marks the ends of the log, then waits (bounded) until the
//! builder has passed the mark. Comparing with the *current* end instead would never succeed under load.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use thiserror::Error;
use tokio::time::{Instant, sleep};

use weir_domain::attempt::{Attempt, AttemptNumber, AttemptOutcome};
use weir_domain::ids::ReservationId;
use weir_domain::ledger::LedgerLine;
use weir_domain::money::Charge;
use weir_domain::reconcile::LedgerView;
use weir_domain::reservation::{Closing, Command, Event, PendCause, Reservation, ReservationStatus};
use weir_ledger::builder::subscription;
use weir_ledger::contract::{LedgerError, LedgerStore, StoredReservation};
use weir_streams::consumer::StoreError;
use weir_streams::{EventLog, ReadError, Topic};

use crate::rehearsal::told_again;

/// How often the builder's position is looked at while waiting: well below the time of one of its batches.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// The ledger store, as far as the builder has come.
#[derive(Debug, Clone)]
pub struct Projection {
    store: Arc<dyn LedgerStore>,
    log: Arc<dyn EventLog>,
    patience: Duration,
}

/// Ends of the reservations' topic, by partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark(Vec<(u32, u64)>);

/// What the builder's silence means after a [`Mark`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Seen {
    /// It has read everything before the mark.
    all: bool,
    /// Reservations whose events it has set aside for a person.
    parked: HashSet<Bytes>,
}

/// Why the projection could not be asked. Each may pass by itself.
#[derive(Debug, Error)]
pub enum ProjectionError {
    #[error("the ledger's store does not answer")]
    Store(#[from] LedgerError),
    #[error("the builder's position cannot be read")]
    Position(#[from] StoreError),
    #[error("the log cannot say where it ends")]
    Log(#[from] ReadError),
}

impl Projection {
    /// `patience` bounds how long one round waits for the builder; beyond it the projection counts as lagging.
    #[must_use]
    pub const fn new(store: Arc<dyn LedgerStore>, log: Arc<dyn EventLog>, patience: Duration) -> Self {
        Self { store, log, patience }
    }

    /// Beside the ledger it keeps what waits for an attempt.
    pub(crate) fn store(&self) -> &dyn LedgerStore {
        &*self.store
    }

    /// Where the log ends now, written included: what is written may yet be read.
    ///
    /// # Errors
    /// [`ProjectionError`].
    pub async fn mark(&self) -> Result<Mark, ProjectionError> {
        let mut ends = Vec::new();
        for partition in 0..self.log.partitions(Topic::Reservations) {
            ends.push((partition, self.log.offsets(Topic::Reservations, partition).await?.written));
        }
        Ok(Mark(ends))
    }

    /// Where the builder stands: moves when there is news.
    ///
    /// # Errors
    /// [`ProjectionError`].
    pub async fn position(&self) -> Result<Mark, ProjectionError> {
        let mut positions = Vec::new();
        for partition in 0..self.log.partitions(Topic::Reservations) {
            positions.push((partition, self.store.load(&subscription(partition)).await?.unwrap_or(0)));
        }
        Ok(Mark(positions))
    }

    /// Waits, bounded, until the builder has read everything before `mark`.
    ///
    /// # Errors
    /// [`ProjectionError`].
    pub async fn seen(&self, mark: &Mark) -> Result<Seen, ProjectionError> {
        let deadline = Instant::now() + self.patience;
        while !self.position().await?.has_passed(mark) {
            if Instant::now() >= deadline {
                return Ok(Seen::default());
            }
            sleep(LOOK_EVERY).await;
        }
        let mut parked = HashSet::new();
        for (partition, _) in &mark.0 {
            parked.extend(self.store.list(&subscription(*partition)).await?.into_iter().map(|parked| parked.key));
        }
        Ok(Seen { all: true, parked })
    }

    /// Everything the projection has of `id`.
    ///
    /// # Errors
    /// [`ProjectionError`].
    pub async fn find(&self, id: ReservationId) -> Result<Option<StoredReservation>, ProjectionError> {
        Ok(self.store.find(id).await?)
    }
}

impl Mark {
    fn has_passed(&self, other: &Self) -> bool {
        self.0.len() == other.0.len() && self.0.iter().zip(&other.0).all(|((_, here), (_, there))| here >= there)
    }
}

impl Seen {
    /// What the ledger says of `id`, of which `stored` was found after the mark was passed.
    #[must_use]
    pub fn view(&self, id: ReservationId, stored: Option<&StoredReservation>) -> LedgerView {
        if !self.all || self.parked.contains(&id.as_bytes()[..]) {
            return LedgerView::NotYetKnown;
        }
        let totals = stored.map(|stored| totals_of(&stored.lines)).unwrap_or_default();
        if totals.is_empty() { LedgerView::Absent } else { LedgerView::Found(totals) }
    }
}

/// What the log knows and the store has not heard, beside charges: a gateway appends first, and may die before it tells
/// the store. Only facts that are there count, so a lagging projection is no obstacle.
#[must_use]
pub fn unheard(reservation: &Reservation, stored: Option<&StoredReservation>) -> Vec<Command> {
    let on_log = |number| stored?.attempts.iter().find(|attempt| attempt.number == number);
    let unknown = reservation.attempts.iter().filter(|attempt| !attempt.is_known());
    unknown.filter_map(|attempt| Some((attempt, on_log(attempt.number)?))).flat_map(unheard_of_attempt).collect()
}

fn unheard_of_attempt((in_store, on_log): (&Attempt, &Attempt)) -> Vec<Command> {
    let number = in_store.number;
    let mut commands = Vec::new();
    if let (None, Some(provider_id)) = (&in_store.provider_id, &on_log.provider_id) {
        commands.push(Command::Correlate { number, provider_id: provider_id.clone() });
    }
    if on_log.outcome == Some(AttemptOutcome::NotExecuted) && on_log.charge.is_none() {
        commands.push(Command::CloseAttempt { number, closing: Closing::NotExecuted });
    } else if in_store.hold.min(on_log.hold) != in_store.hold {
        commands.push(Command::Tighten { number, hold: on_log.hold });
    }
    commands
}

/// A lease that its owner took back on the log, and died before it told the store: the store is told, and the lease ends
/// again in its own time. Only a projection that does not lag can tell it from a pending that is not read yet.
#[must_use]
pub fn taken_back(
    reservation: &Reservation,
    stored: Option<&StoredReservation>,
    ledger: &LedgerView,
) -> Option<Command> {
    let stored = stored.filter(|_| *ledger != LedgerView::NotYetKnown)?;
    let is_taken_back = reservation.status() == ReservationStatus::PendingReconciliation
        && reservation.pended == Some(PendCause::Expired)
        && stored.status == ReservationStatus::Reserved;
    let owner = Arc::clone(&reservation.created.owner);
    is_taken_back.then_some(Command::Renew { until_ms: stored.due_ms, owner })
}

/// What the record of a pending reservation shows and the log has never heard. A gateway may mark between the look of a
/// step and its word to the store, which then pends more than the step told the log, and die before its own append.
#[must_use]
pub fn untold(reservation: &Reservation, stored: Option<&StoredReservation>, ledger: &LedgerView) -> Vec<Event> {
    let is_pending = reservation.status() == ReservationStatus::PendingReconciliation;
    let on_log = |number| stored?.attempts.iter().find(|attempt| attempt.number == number);
    let is_told = |attempt: &Attempt| {
        on_log(attempt.number).is_some_and(|known| known.is_known() || known.hold.min(attempt.hold) == known.hold)
    };
    if !is_pending || *ledger == LedgerView::NotYetKnown || reservation.attempts.iter().all(is_told) {
        return Vec::new();
    }
    let cause = reservation.pended.unwrap_or(PendCause::Expired);
    let mut events = told_again(reservation, ledger);
    events.push(Event::ReservationPending { cause, ordinal: reservation.resumes });
    events
}

/// The running total of each attempt: that of its newest line.
#[must_use]
pub fn totals_of(lines: &[LedgerLine]) -> Vec<(AttemptNumber, Charge)> {
    let mut newest: Vec<&LedgerLine> = Vec::new();
    for line in lines {
        match newest.iter_mut().find(|known| known.key.attempt == line.key.attempt) {
            Some(known) if known.key.seq < line.key.seq => *known = line,
            Some(_) => {}
            None => newest.push(line),
        }
    }
    newest.into_iter().map(|line| (line.key.attempt, line.total)).collect()
}
