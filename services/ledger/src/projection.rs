//! From records to changes: the domain's fold, and what it needs of the store.
//!
//! The fold keeps a reservation until its retry horizon is over; an event that comes later (a report after days, a copy
//! at any distance) finds it in the store again. What the fold has decided and nobody stored yet stays **pending** here,
//! so that a delivery which failed half-way, and comes again, loses nothing: the second time its events are no news.

use std::sync::Arc;

use bytes::Bytes;

use weir_domain::attempt::{Attempt, AttemptNumber};
use weir_domain::fold::{Absorbed, Fold, Unknown};
use weir_domain::ids::{Region, ReservationId, ReservationMap};
use weir_domain::ledger::{Discrepancy, LedgerLine, Posting, SourcePosition};
use weir_domain::reservation::{Created, Event, Reservation};
use weir_schemas::Names;
use weir_schemas::reservation_event::{Header, ReservationEvent};
use weir_schemas::usage_row::RowSource;
use weir_streams::StoredRecord;

use crate::contract::{Change, EventMark, LedgerError, LedgerStore};

/// The fold and what of it is not stored yet.
#[derive(Debug, Clone)]
pub struct Projection {
    fold: Fold,
    /// The newest time that an event was recorded at, ms: how far the horizon has moved.
    latest_ms: i64,
    pending: Vec<Pending>,
    index: ReservationMap<usize>,
    names: Names,
}

/// What a batch did to one reservation.
#[derive(Debug, Clone)]
pub(crate) struct Pending {
    id: ReservationId,
    /// Of the record, so that what follows from it lands on the same partition.
    pub key: Bytes,
    pub region: Region,
    /// Kept apart from the fold once it has ended, because then the fold may forget it at any time.
    ended: Option<Reservation>,
    status_since_ms: Option<i64>,
    events: Vec<EventMark>,
    lines: Vec<LedgerLine>,
    /// Attempts that closed or whose charge moved, each with the event behind it; hardly ever more than one.
    pub rows: Vec<(AttemptNumber, RowSource)>,
    pub discrepancies: Vec<(Discrepancy, RowSource)>,
}

/// Why a record was not absorbed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AbsorbError {
    /// It can never be: what it says makes no sense here.
    #[error("{0}")]
    Poison(String),
    #[error(transparent)]
    Store(#[from] LedgerError),
}

impl Projection {
    #[must_use]
    pub fn new(fold: Fold, latest_ms: i64) -> Self {
        Self { fold, latest_ms, pending: Vec::new(), index: ReservationMap::default(), names: Names::with_room() }
    }

    #[must_use]
    pub const fn fold(&self) -> &Fold {
        &self.fold
    }

    #[must_use]
    pub fn into_fold(self) -> Fold {
        self.fold
    }

    #[must_use]
    pub const fn latest_ms(&self) -> i64 {
        self.latest_ms
    }

    #[must_use]
    pub fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Folds one record of the reservations' topic; says whether it is the first of its reservation.
    pub(crate) async fn absorb(&mut self, store: &dyn LedgerStore, record: &StoredRecord) -> Result<bool, AbsorbError> {
        let event = self.read(record)?;
        self.take(store, record, &event).await
    }

    /// What a record says.
    pub(crate) fn read(&mut self, record: &StoredRecord) -> Result<ReservationEvent, AbsorbError> {
        ReservationEvent::decode_with(&record.value, &mut self.names)
            .map_err(|error| AbsorbError::Poison(error.to_string()))
    }

    /// Folds what [`Self::read`] gave.
    pub(crate) async fn take(
        &mut self,
        store: &dyn LedgerStore,
        record: &StoredRecord,
        event: &ReservationEvent,
    ) -> Result<bool, AbsorbError> {
        let source = source_of(record)?;
        let id = event.header().reservation;
        if self.may_be_forgotten(id, event.event()) {
            self.restore(store, id, source).await?;
        }
        let recorded_at_ms = event.header().recorded_at_ms();
        let absorbed = self.fold.absorb(source, id, event.event(), recorded_at_ms);
        let absorbed = absorbed.map_err(|Unknown(id)| {
            AbsorbError::Poison(format!("reservation {id} was never created as far as the log goes"))
        })?;
        self.latest_ms = self.latest_ms.max(recorded_at_ms);
        let mark = EventMark { source, kind: event.kind(), attempt: event.event().attempt(), recorded_at_ms };
        let is_first = absorbed.before.is_none();
        self.note(record, event.header(), event.event(), mark, absorbed);
        Ok(is_first)
    }

    /// Whether the fold's not knowing `id` may mean that it forgot. A creation is looked up only when its admission is
    /// a horizon ago, so that the store is not asked about every new reservation.
    fn may_be_forgotten(&self, id: ReservationId, event: &Event) -> bool {
        if self.fold.knows(id) {
            return false;
        }
        let Event::ReservationCreated(created) = event else { return true };
        let horizon_ms = self.fold.options().retry_horizon_ms;
        created.admitted_at_ms.saturating_add(horizon_ms) <= self.latest_ms
    }

    /// Takes back what the fold forgot, as it was before the event at `source`.
    async fn restore(
        &mut self,
        store: &dyn LedgerStore,
        id: ReservationId,
        source: SourcePosition,
    ) -> Result<(), LedgerError> {
        let is_before = |other: SourcePosition| other.partition == source.partition && other.offset < source.offset;
        let stored = store.find(id).await?.filter(|stored| stored.events.iter().any(|event| is_before(event.source)));
        let pending = self.index.get(&id).map(|at| &self.pending[*at]);
        let ended = pending.and_then(|pending| pending.ended.as_ref());
        let created: Option<&Arc<Created>> =
            ended.map(|ended| &ended.created).or(stored.as_ref().map(|stored| &stored.created));
        let Some(created) = created else {
            // Then the fold has the last word: a creation is one, anything else is unknown to it.
            return Ok(());
        };
        let attempts: &[Attempt] = match (ended, &stored) {
            (Some(ended), _) => &ended.attempts,
            (None, Some(stored)) => &stored.attempts,
            (None, None) => &[],
        };
        let of_store = stored.iter().flat_map(|stored| &stored.lines);
        let of_pending = pending.iter().flat_map(|pending| &pending.lines);
        let mut lines: Vec<LedgerLine> =
            of_store.chain(of_pending).filter(|line| is_before(line.source)).cloned().collect();
        lines.sort_by_key(|line| line.key);
        lines.dedup_by_key(|line| line.key);
        self.fold.restore_ended(created, attempts, &lines, self.latest_ms);
        Ok(())
    }

    fn note(&mut self, record: &StoredRecord, header: &Header, event: &Event, mark: EventMark, absorbed: Absorbed) {
        let pending = self.pending_of(header.reservation, &record.key, &header.region);
        if pending.events.iter().all(|known| known.source != mark.source) {
            pending.events.push(mark);
        }
        if absorbed.before != Some(absorbed.after) {
            pending.status_since_ms = Some(mark.recorded_at_ms);
        }
        pending.ended = absorbed.ended;
        let behind = RowSource { recorded_at_ms: mark.recorded_at_ms, position: mark.source };
        if matches!(event, Event::AttemptClosed { .. }) && absorbed.is_news {
            pending.has_row(mark.attempt, behind);
        }
        match absorbed.posting {
            None | Some(Posting::AlreadyPosted) => {}
            Some(Posting::Posted(line)) => pending.post(*line, behind),
            Some(Posting::Discrepancy { discrepancy, adjustment }) => {
                pending.discrepancies.push((*discrepancy, behind));
                if let Some(line) = adjustment {
                    pending.post(*line, behind);
                }
            }
        }
    }

    fn pending_of(&mut self, id: ReservationId, key: &Bytes, region: &Region) -> &mut Pending {
        let at = *self.index.entry(id).or_insert_with(|| {
            self.pending.push(Pending::new(id, key.clone(), region.clone()));
            self.pending.len() - 1
        });
        &mut self.pending[at]
    }

    /// Everything that is not stored yet, as changes. [`Projection::stored`] follows, or [`Projection::put_back`].
    pub(crate) fn take_changes(&mut self) -> Arc<[Change]> {
        let Self { fold, pending, .. } = self;
        pending.iter_mut().filter_map(|pending| pending.take_change(fold)).collect()
    }

    /// The changes were not stored: they are pending again.
    pub(crate) fn put_back(&mut self, changes: &[Change]) {
        for Change { reservation, status_since_ms: _, events, lines } in changes {
            let Some(pending) = self.index.get(&reservation.created.id).map(|at| &mut self.pending[*at]) else {
                continue;
            };
            pending.ended = reservation.status().is_final().then(|| reservation.clone());
            (pending.events, pending.lines) = (events.clone(), lines.clone());
        }
    }

    /// What [`Projection::take_changes`] leaves out of the change of `id`.
    pub(crate) fn pending(&self, id: ReservationId) -> Option<&Pending> {
        self.index.get(&id).map(|at| &self.pending[*at])
    }

    /// The changes were stored.
    pub(crate) fn stored(&mut self) {
        self.index.clear();
        self.pending.clear();
    }

    /// Drops what is pending of `id`; gives the source of its newest line.
    pub(crate) fn drop_pending(&mut self, id: ReservationId) -> Option<SourcePosition> {
        let at = self.index.remove(&id)?;
        let dropped = self.pending.remove(at);
        for place in self.index.values_mut().filter(|place| **place > at) {
            *place -= 1;
        }
        dropped.lines.last().map(|line| line.source)
    }
}

impl Pending {
    const fn new(id: ReservationId, key: Bytes, region: Region) -> Self {
        Self {
            id,
            key,
            region,
            ended: None,
            status_since_ms: None,
            events: Vec::new(),
            lines: Vec::new(),
            rows: Vec::new(),
            discrepancies: Vec::new(),
        }
    }

    fn post(&mut self, line: LedgerLine, behind: RowSource) {
        self.has_row(line.key.attempt, behind);
        self.lines.push(line);
    }

    fn has_row(&mut self, attempt: AttemptNumber, behind: RowSource) {
        match self.rows.iter_mut().find(|(known, _)| *known == attempt) {
            Some((_, newest)) => *newest = behind,
            None => self.rows.push((attempt, behind)),
        }
    }

    fn take_change(&mut self, fold: &Fold) -> Option<Change> {
        let reservation = match self.ended.take() {
            Some(ended) => ended,
            None => fold.reservation(self.id)?.into_owned(),
        };
        Some(Change {
            status_since_ms: self.status_since_ms.unwrap_or(reservation.created.admitted_at_ms),
            reservation,
            events: std::mem::take(&mut self.events),
            lines: std::mem::take(&mut self.lines),
        })
    }
}

/// A position as the ledger names it.
fn source_of(record: &StoredRecord) -> Result<SourcePosition, AbsorbError> {
    let unnamable = |_| AbsorbError::Poison("its position is beyond what a line can name".to_owned());
    Ok(SourcePosition {
        partition: i32::try_from(record.partition).map_err(unnamable)?,
        offset: i64::try_from(record.offset).map_err(unnamable)?,
    })
}
