//! What a ledger store promises, whatever keeps the rows.
//!
//! The store is a projection: everything in it is a function of the log and can be built again from it. So it promises
//! no more durability than its position has, and no order between reservations; what it must never do is forget in
//! part, or let two different lines pass for one.

use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;
use thiserror::Error;

use weir_domain::attempt::{Attempt, AttemptNumber};
use weir_domain::calendar::Window;
use weir_domain::ids::{ReservationId, TenantId};
use weir_domain::ledger::{LedgerLine, LineKey, SourcePosition};
use weir_domain::money::{Amounts, Charge, Hold};
use weir_domain::quota::Scope;
use weir_domain::reservation::{Created, EventKind, Reservation, ReservationStatus};
use weir_streams::consumer::{Parking, Positions};

/// The ledger's lines, the attempts, the index of reservations by status, and what its consumers keep beside them.
///
/// ```text
///   log        e1  e2  e3  e4 | e5  e6                 | position, stored after the batch
///   post       ──── batch ────▶ rows of e1…e4          a crash before the position posts them again
/// ```
///
/// A backend MUST
/// - make [`LedgerStore::post`] idempotent: the same batch, or one cut in other places, posted again at any time by
///   any number of writers, leaves the same rows;
/// - keep a line for ever under its key (reservation, attempt, seq), and answer another line under the same key with
///   [`LedgerError::Conflict`], named by field (I8);
/// - let no older change of a reservation overwrite a newer one: changes are ordered by the log position of their last
///   event, which is on one partition for one reservation;
/// - give back every line bit for bit as it was posted: replays and restored reservations are built from them (I13);
/// - be as durable as its position: a power loss may take back a suffix of what was posted, never more of the rows
///   than of the position that was stored after them.
///
/// It MUST NOT change or remove a line, post half of a reservation's change, or sum in floating point.
///
/// Positions and parked records live in the same store so that one of those promises covers both.
#[async_trait]
pub trait LedgerStore: Positions + Parking + Debug + Send + Sync {
    /// Posts the changes of one batch; the position follows when it returned. A backend with transactions posts all or
    /// none of it; one without does so per reservation.
    ///
    /// # Errors
    /// [`LedgerError`]; what was posted of the batch before it stays and does no harm.
    async fn post(&self, changes: Arc<[Change]>) -> Result<Posted, LedgerError>;

    /// Everything stored of one reservation, or `None` if it was never created as far as the projection has come.
    ///
    /// # Errors
    /// [`LedgerError`].
    async fn find(&self, id: ReservationId) -> Result<Option<StoredReservation>, LedgerError>;

    /// The sum of a tenant's lines that count on `scope` in `window` (of admission); `None` means any. At rest this is
    /// what the counter of that scope and window has charged (I12).
    ///
    /// # Errors
    /// [`LedgerError`].
    async fn totals(
        &self,
        tenant: &TenantId,
        scope: Option<&Scope>,
        window: Option<Window>,
    ) -> Result<Charge, LedgerError>;

    /// A page of a tenant's lines, in order of posting time, then log position.
    ///
    /// # Errors
    /// [`LedgerError`].
    async fn lines(&self, page: LinePage) -> Result<Vec<LedgerLine>, LedgerError>;

    /// A page of the reservations that are not ended, the earliest due first.
    ///
    /// # Errors
    /// [`LedgerError`].
    async fn open(&self, page: OpenPage) -> Result<Vec<OpenReservation>, LedgerError>;

    /// How much there is.
    ///
    /// # Errors
    /// [`LedgerError`].
    async fn count(&self) -> Result<Count, LedgerError>;

    /// Keeps an image of the fold and lets go of all but the newest `keep` of the same partitions.
    ///
    /// # Errors
    /// [`LedgerError`].
    async fn save_checkpoint(&self, checkpoint: StoredCheckpoint, keep: usize) -> Result<(), LedgerError>;

    /// The `nth` newest checkpoint of exactly these `partitions`, ascending, as it was stored, unverified; zero is the
    /// newest.
    ///
    /// # Errors
    /// [`LedgerError`].
    async fn checkpoint(&self, partitions: &[u32], nth: usize) -> Result<Option<StoredCheckpoint>, LedgerError>;
}

/// Everything one batch of events has to say about one reservation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The state after the last event. A backend keeps what [`StoredReservation`] shows.
    pub reservation: Reservation,
    /// When it came to its status, ms, if it changed in this batch.
    pub status_since_ms: i64,
    /// The events of the batch, in the order of the log; at least one, all on one partition.
    pub events: Vec<EventMark>,
    /// The lines they made, in order.
    pub lines: Vec<LedgerLine>,
}

impl Change {
    /// The position of its last event: what orders the changes of a reservation.
    #[must_use]
    pub fn last_source(&self) -> Option<SourcePosition> {
        self.events.iter().map(|event| event.source).max()
    }
}

/// One event in the index of a reservation: where it stands, not what it says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct EventMark {
    pub source: SourcePosition,
    pub kind: EventKind,
    /// Zero for the reservation as a whole.
    pub attempt: AttemptNumber,
    pub recorded_at_ms: i64,
}

/// What [`LedgerStore::post`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Posted {
    pub lines: usize,
    /// Lines that were there already, equal to the last unit.
    pub repeated: usize,
}

/// What is stored of one reservation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredReservation {
    pub created: Arc<Created>,
    pub status: ReservationStatus,
    pub status_since_ms: i64,
    pub due_ms: i64,
    pub held: Hold,
    pub escalated: bool,
    pub flagged: bool,
    /// Every attempt, with target, verdict and charge.
    pub attempts: Vec<Attempt>,
    /// In the order of the log, each once.
    pub events: Vec<EventMark>,
    /// By attempt and seq.
    pub lines: Vec<LedgerLine>,
}

/// A page of lines: those of `tenant` posted in `from_ms..until_ms`, behind `after`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinePage {
    pub tenant: TenantId,
    pub from_ms: i64,
    pub until_ms: i64,
    pub after: Option<LineCursor>,
    /// At most this many; fewer mean that there are no more.
    pub most: usize,
}

/// A place in the order of lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LineCursor {
    pub posted_at_ms: i64,
    pub source: SourcePosition,
}

impl LineCursor {
    #[must_use]
    pub const fn of(line: &LedgerLine) -> Self {
        Self { posted_at_ms: line.posted_at_ms, source: line.source }
    }
}

/// What of the open reservations is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenPage {
    pub status: OpenStatus,
    pub tenant: Option<TenantId>,
    pub after: Option<(i64, ReservationId)>,
    pub most: usize,
}

/// The statuses that are not an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OpenStatus {
    Reserved,
    PendingReconciliation,
}

/// A reservation that still holds something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenReservation {
    pub id: ReservationId,
    pub tenant: TenantId,
    pub status: ReservationStatus,
    pub status_since_ms: i64,
    pub due_ms: i64,
    pub held: Hold,
    pub escalated: bool,
}

/// How many rows there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Count {
    pub reservations: u64,
    pub lines: u64,
    /// The sum of all lines.
    pub charged: Amounts,
}

/// An image of the fold as a store keeps it: opaque bytes with what is needed to trust them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredCheckpoint {
    pub taken_at_ms: i64,
    /// Next offset by partition of the reservations' topic, ascending.
    pub positions: Vec<(u32, u64)>,
    pub format: u32,
    pub sha256: [u8; 32],
    pub image: Vec<u8>,
}

impl StoredCheckpoint {
    /// The partitions that it is of, ascending.
    #[must_use]
    pub fn partitions(&self) -> Vec<u32> {
        self.positions.iter().map(|(partition, _)| *partition).collect()
    }
}

/// Why the store did not do it.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LedgerError {
    /// Another line stands under this key. Nobody's retry helps: either the log was written in two versions, or the
    /// store does not belong to this log.
    #[error("line {}/{}/{} is stored with another `{field}`", key.reservation, key.attempt, key.seq)]
    Conflict { key: LineKey, field: &'static str },
    /// A stored row cannot be read back: rebuild the projection from the log.
    #[error("a stored {what} cannot be read: {reason}; rebuild the ledger from the log")]
    Damaged { what: &'static str, reason: String },
    /// The store did not answer. The change may have been made: post it again.
    #[error("the ledger's store did not answer: {reason}")]
    Unavailable { reason: String },
    /// It was opened for reading beside the process that writes.
    #[error("the ledger's store was opened for reading only")]
    ReadOnly,
}

impl LedgerError {
    /// Whether the same call may succeed later without anybody's help.
    #[must_use]
    pub const fn is_temporary(&self) -> bool {
        match self {
            Self::Unavailable { .. } => true,
            Self::Conflict { .. } | Self::Damaged { .. } | Self::ReadOnly => false,
        }
    }
}

/// The first field in which two lines under one key differ.
#[must_use]
pub fn first_difference(a: &LedgerLine, b: &LedgerLine) -> Option<&'static str> {
    let fields = [
        ("amount", a.amount == b.amount),
        ("total", a.total == b.total),
        ("record", a.record == b.record),
        ("corrects", a.corrects == b.corrects),
        ("flagged", a.flagged == b.flagged),
        ("target", a.target == b.target),
        ("posted_at", a.posted_at_ms == b.posted_at_ms),
        ("source", a.source == b.source),
        ("created", a.created == b.created),
    ];
    fields.into_iter().find(|(_, is_equal)| !is_equal).map(|(name, _)| name)
}
