//! An event of a reservation with its header: the topic `reservations`, the source of truth.
//!
//! The event is the domain's own type; what stands on the wire is in `wire`. The header's event id and attempt are
//! computed from the event, so that nobody can write a fact under another fact's name.

mod wire;

use thiserror::Error;
use weir_domain::attempt::AttemptNumber;
use weir_domain::ids::{KeyId, Region, ReservationId, TenantId};
use weir_domain::money::Amounts;
use weir_domain::reservation::{Event, EventKind};

use crate::event_id::event_id;
use crate::frame::{DecodeError, EncodeError, FieldError, FieldProblem};
use crate::json;
use crate::names::Names;

/// What the writer adds to an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    pub reservation: ReservationId,
    /// When the writer recorded it, microseconds since 1970 UTC by its own clock.
    pub recorded_at_us: i64,
    /// The reservation's home region.
    pub region: Region,
    pub tenant: TenantId,
    pub key: KeyId,
    /// The policy snapshot in force where it was written.
    pub snapshot_version: u64,
    /// The W3C trace of the client's request.
    pub trace_id: Option<[u8; 16]>,
}

impl Header {
    /// What the fold and the ledger count in.
    #[must_use]
    pub const fn recorded_at_ms(&self) -> i64 {
        self.recorded_at_us.div_euclid(1000)
    }
}

/// A fact on the log. Exists only for events that belong there and whose figures can be read back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReservationEvent {
    header: Header,
    event: Event,
    kind: EventKind,
    event_id: [u8; 16],
}

/// An event has no place on the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum NotLogged {
    #[error("the event concerns the quota store alone: it is not written to the log")]
    StoreOnly,
    #[error(transparent)]
    Field(#[from] FieldError),
}

impl ReservationEvent {
    /// Refuses what concerns the store alone, negative figures, and a creation whose ids differ from the header's.
    pub fn new(header: Header, event: Event) -> Result<Self, NotLogged> {
        let kind = event.kind().ok_or(NotLogged::StoreOnly)?;
        check(&header, &event, kind)?;
        let event_id = event_id(header.reservation, event.attempt(), kind, &event.cause());
        Ok(Self { header, event, kind, event_id })
    }

    #[must_use]
    pub const fn header(&self) -> &Header {
        &self.header
    }

    #[must_use]
    pub const fn event(&self) -> &Event {
        &self.event
    }

    #[must_use]
    pub const fn kind(&self) -> EventKind {
        self.kind
    }

    /// Equal for copies of one fact; see [`event_id`].
    #[must_use]
    pub const fn event_id(&self) -> [u8; 16] {
        self.event_id
    }

    #[must_use]
    pub fn into_parts(self) -> (Header, Event) {
        (self.header, self.event)
    }

    /// Appends the frame to `out`, which is as before when it fails.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        wire::encode(self, out)
    }

    /// Reads a frame of any released version of any event. The event id is the one that was written.
    pub fn decode(frame: &[u8]) -> Result<Self, DecodeError> {
        Self::decode_with(frame, &mut Names::default())
    }

    /// As [`Self::decode`], sharing the texts that came before.
    pub fn decode_with(frame: &[u8], names: &mut Names) -> Result<Self, DecodeError> {
        let event = wire::decode(frame, names)?;
        check(&event.header, &event.event, event.kind)?;
        Ok(event)
    }

    /// For people: readable ids, money as decimal text, times as RFC 3339.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        let mut frame = Vec::new();
        json::of_encoded(self.encode(&mut frame).map(|()| frame))
    }
}

/// What is said of one attempt names it, and what is said of the whole names none.
fn speaks_of_an_attempt(kind: EventKind) -> bool {
    match kind {
        EventKind::ReservationExtended
        | EventKind::AttemptStarted
        | EventKind::AttemptCorrelated
        | EventKind::UsageBounded
        | EventKind::UsageRecorded
        | EventKind::AttemptClosed => true,
        EventKind::ReservationCreated
        | EventKind::ReservationPending
        | EventKind::ReservationSettled
        | EventKind::ReservationReleased
        | EventKind::ReservationResumed
        | EventKind::ReservationEscalated => false,
    }
}

fn check(header: &Header, event: &Event, kind: EventKind) -> Result<(), FieldError> {
    let field = |field, problem| Err(FieldError { record: kind.as_str(), field, problem });
    let attempt: AttemptNumber = event.attempt();
    if speaks_of_an_attempt(kind) != (attempt > 0) {
        return field("header.attempt", FieldProblem::AttemptNumber);
    }
    if let Event::ReservationCreated(created) = event {
        let differing = [
            ("id", created.id == header.reservation),
            ("tenant", created.tenant == header.tenant),
            ("key", created.key == header.key),
        ];
        if let Some((name, _)) = differing.into_iter().find(|(_, is_equal)| !is_equal) {
            return field(name, FieldProblem::DiffersFromHeader);
        }
    }
    match amounts(event) {
        Some((name, amounts)) if amounts.has_negative() => field(name, FieldProblem::Negative),
        Some(_) | None => Ok(()),
    }
}

/// The figures that an event carries. None may be negative: holds and charges are what is taken, not differences.
fn amounts(event: &Event) -> Option<(&'static str, Amounts)> {
    match event {
        Event::ReservationCreated(created) => Some(("hold", created.hold)),
        Event::ReservationExtended { by, .. } => Some(("by", *by)),
        Event::AttemptStarted { hold, .. } | Event::UsageBounded { hold, .. } => Some(("hold", *hold)),
        Event::UsageRecorded { record, .. } => Some(("charge", record.charge)),
        Event::ReservationSettled { charged } => Some(("charged", *charged)),
        Event::ChargeCorrected { total, .. } => Some(("total", *total)),
        Event::AttemptCorrelated { .. }
        | Event::AttemptClosed { .. }
        | Event::ReservationPending { .. }
        | Event::ReservationReleased
        | Event::ReservationResumed { .. }
        | Event::ReservationEscalated
        | Event::SlotFreed
        | Event::LeaseRenewed { .. } => None,
    }
}
