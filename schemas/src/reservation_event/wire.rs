//! The twelve events as they stand on the wire: one struct each, its fields in the order of its schema, lent from the
//! event when written and from the frame when read.

use std::borrow::Cow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use weir_domain::attempt::{AttemptNumber, AttemptOutcome, Target};
use weir_domain::calendar::{Window, WindowKind};
use weir_domain::ids::{ReservationId, TeamId};
use weir_domain::quota::Counting;
use weir_domain::reservation::{Created, Event, EventKind, IdempotencyRecord, Labels, PendCause, UsageRecord};
use weir_domain::usage::UsageSource;

use crate::datum::DatumError;
use crate::frame::{self, DecodeError, EncodeError, FieldError, FieldProblem, Opened};
use crate::names::{Names, TargetText};
use crate::parts::{Fixed, Meters, Millis, ScopeTexts, WireAmounts, labels};

use super::{Header, ReservationEvent};

/// The schema that each kind is written with: its newest.
const fn schema_id(kind: EventKind) -> u32 {
    match kind {
        EventKind::ReservationCreated => 70101,
        EventKind::ReservationExtended => 70102,
        EventKind::AttemptStarted => 70103,
        EventKind::AttemptCorrelated => 70104,
        EventKind::UsageBounded => 70105,
        EventKind::UsageRecorded => 70106,
        EventKind::AttemptClosed => 70107,
        EventKind::ReservationPending => 70108,
        EventKind::ReservationSettled => 70109,
        EventKind::ReservationReleased => 70110,
        EventKind::ReservationResumed => 70111,
        EventKind::ReservationEscalated => 70112,
    }
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct EventHeader<'a> {
    event_id: Fixed<16>,
    reservation_id: Fixed<16>,
    attempt: AttemptNumber,
    recorded_at: i64,
    region: &'a str,
    tenant: &'a str,
    key_id: &'a str,
    snapshot_version: u64,
    trace_id: Option<Fixed<16>>,
}

#[derive(Debug, Serialize, Deserialize)]
struct ReservationCreated<'a> {
    #[serde(borrow)]
    header: EventHeader<'a>,
    #[serde(borrow)]
    team: Option<&'a str>,
    model: &'a str,
    fingerprint: Fixed<32>,
    hold: WireAmounts,
    #[serde(borrow)]
    counted_scopes: ScopeTexts<'a>,
    counted_windows: Vec<WireWindow>,
    price_version: &'a str,
    admitted_at: Millis,
    due_at: Millis,
    owner: &'a str,
    #[serde(with = "labels")]
    labels: Labels,
    #[serde(borrow)]
    end_user: Option<&'a str>,
    idempotency: Option<Idempotency>,
    adjust_on_mismatch: bool,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct WireWindow {
    kind: WindowKind,
    ordinal: i32,
}

#[derive(Debug, Serialize, Deserialize)]
struct Idempotency {
    key_hash: Fixed<32>,
    expires_at: Millis,
}

#[derive(Debug, Serialize, Deserialize)]
struct ReservationExtended<'a> {
    #[serde(borrow)]
    header: EventHeader<'a>,
    by: WireAmounts,
}

#[derive(Debug, Serialize, Deserialize)]
struct AttemptStarted<'a> {
    #[serde(borrow)]
    header: EventHeader<'a>,
    hold: WireAmounts,
    deployment: &'a str,
    provider: &'a str,
    upstream_model: &'a str,
    provider_region: &'a str,
    price: &'a str,
}

#[derive(Debug, Serialize, Deserialize)]
struct AttemptCorrelated<'a> {
    #[serde(borrow)]
    header: EventHeader<'a>,
    provider_id: &'a str,
}

#[derive(Debug, Serialize, Deserialize)]
struct UsageBounded<'a> {
    #[serde(borrow)]
    header: EventHeader<'a>,
    hold: WireAmounts,
}

#[derive(Debug, Serialize, Deserialize)]
struct UsageRecorded<'a> {
    #[serde(borrow)]
    header: EventHeader<'a>,
    meters: Meters<'a>,
    source: UsageSource,
    charge: WireAmounts,
    price_version: &'a str,
    #[serde(borrow)]
    served_tier: Option<&'a str>,
    cause: &'a str,
}

#[derive(Debug, Serialize, Deserialize)]
struct AttemptClosed<'a> {
    #[serde(borrow)]
    header: EventHeader<'a>,
    outcome: AttemptOutcome,
}

#[derive(Debug, Serialize, Deserialize)]
struct ReservationPending<'a> {
    #[serde(borrow)]
    header: EventHeader<'a>,
    cause: PendCause,
    ordinal: u16,
}

#[derive(Debug, Serialize, Deserialize)]
struct ReservationSettled<'a> {
    #[serde(borrow)]
    header: EventHeader<'a>,
    charged: WireAmounts,
}

/// `ReservationReleased` and `ReservationEscalated`: that it happened is all there is to say.
#[derive(Debug, Serialize, Deserialize)]
struct HeaderOnly<'a> {
    #[serde(borrow)]
    header: EventHeader<'a>,
}

#[derive(Debug, Serialize, Deserialize)]
struct ReservationResumed<'a> {
    #[serde(borrow)]
    header: EventHeader<'a>,
    ordinal: u16,
    due_at: Millis,
}

pub(super) fn encode(of: &ReservationEvent, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    let header = EventHeader::of(of);
    match &of.event {
        Event::ReservationCreated(created) => put(of, &ReservationCreated::of(header, created), out),
        Event::ReservationExtended { by, .. } => put(of, &ReservationExtended { header, by: (*by).into() }, out),
        Event::AttemptStarted { hold, target, .. } => put(of, &AttemptStarted::of(header, (*hold).into(), target), out),
        Event::AttemptCorrelated { provider_id, .. } => put(of, &AttemptCorrelated { header, provider_id }, out),
        Event::UsageBounded { hold, .. } => put(of, &UsageBounded { header, hold: (*hold).into() }, out),
        Event::UsageRecorded { record, .. } => put(of, &UsageRecorded::of(header, record), out),
        Event::AttemptClosed { outcome, .. } => put(of, &AttemptClosed { header, outcome: *outcome }, out),
        Event::ReservationPending { cause, ordinal } => {
            put(of, &ReservationPending { header, cause: *cause, ordinal: *ordinal }, out)
        }
        Event::ReservationSettled { charged } => {
            put(of, &ReservationSettled { header, charged: (*charged).into() }, out)
        }
        Event::ReservationReleased | Event::ReservationEscalated => put(of, &HeaderOnly { header }, out),
        Event::ReservationResumed { ordinal, due_ms } => {
            put(of, &ReservationResumed { header, ordinal: *ordinal, due_at: Millis(*due_ms) }, out)
        }
        // No `ReservationEvent` holds one of these; the arm is there so that a new event breaks the build here.
        Event::SlotFreed | Event::LeaseRenewed { .. } | Event::ChargeCorrected { .. } => {
            let reason = DatumError::Unsupported("event of the quota store alone");
            Err(EncodeError::Unwritable { record: of.kind.as_str(), reason })
        }
    }
}

fn put(of: &ReservationEvent, body: &impl Serialize, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    frame::encode(of.kind.as_str(), schema_id(of.kind), body, out)
}

pub(super) fn decode(frame: &[u8], names: &mut Names) -> Result<ReservationEvent, DecodeError> {
    let opened = frame::open(frame)?;
    let found = opened.released.record;
    let kind = EventKind::ALL.into_iter().find(|kind| kind.as_str() == found);
    let kind = kind.ok_or(DecodeError::OtherRecord { expected: "reservation event", found })?;
    let (header, event) = read(&opened, kind, names)?;
    let header_of = Header {
        reservation: ReservationId::from_bytes(header.reservation_id.0),
        recorded_at_us: header.recorded_at,
        region: names.text(header.region),
        tenant: names.text(header.tenant),
        key: names.text(header.key_id),
        snapshot_version: header.snapshot_version,
        trace_id: header.trace_id.map(|id| id.0),
    };
    Ok(ReservationEvent { header: header_of, event, kind, event_id: header.event_id.0 })
}

fn read<'f>(opened: &Opened<'f>, kind: EventKind, names: &mut Names) -> Result<(EventHeader<'f>, Event), DecodeError> {
    Ok(match kind {
        EventKind::ReservationCreated => {
            let body: ReservationCreated<'f> = opened.read()?;
            let created = body.created(names)?;
            (body.header, Event::ReservationCreated(Arc::new(created)))
        }
        EventKind::ReservationExtended => {
            let ReservationExtended { header, by } = opened.read()?;
            let number = header.attempt;
            (header, Event::ReservationExtended { number, by: by.into() })
        }
        EventKind::AttemptStarted => {
            let body: AttemptStarted<'f> = opened.read()?;
            let (number, hold, target) = (body.header.attempt, body.hold.into(), body.target(names));
            (body.header, Event::AttemptStarted { number, hold, target })
        }
        EventKind::AttemptCorrelated => {
            let AttemptCorrelated { header, provider_id } = opened.read()?;
            let (number, provider_id) = (header.attempt, provider_id.to_owned());
            (header, Event::AttemptCorrelated { number, provider_id })
        }
        EventKind::UsageBounded => {
            let UsageBounded { header, hold } = opened.read()?;
            let number = header.attempt;
            (header, Event::UsageBounded { number, hold: hold.into() })
        }
        EventKind::UsageRecorded => {
            let body: UsageRecorded<'f> = opened.read()?;
            let (header, record) = body.into_parts(names);
            (header, Event::UsageRecorded { number: header.attempt, record: Arc::new(record) })
        }
        EventKind::AttemptClosed => {
            let AttemptClosed { header, outcome } = opened.read()?;
            let number = header.attempt;
            (header, Event::AttemptClosed { number, outcome })
        }
        EventKind::ReservationPending => {
            let ReservationPending { header, cause, ordinal } = opened.read()?;
            (header, Event::ReservationPending { cause, ordinal })
        }
        EventKind::ReservationSettled => {
            let ReservationSettled { header, charged } = opened.read()?;
            (header, Event::ReservationSettled { charged: charged.into() })
        }
        EventKind::ReservationReleased => (opened.read::<HeaderOnly<'f>>()?.header, Event::ReservationReleased),
        EventKind::ReservationResumed => {
            let ReservationResumed { header, ordinal, due_at } = opened.read()?;
            (header, Event::ReservationResumed { ordinal, due_ms: due_at.0 })
        }
        EventKind::ReservationEscalated => (opened.read::<HeaderOnly<'f>>()?.header, Event::ReservationEscalated),
    })
}

impl<'a> EventHeader<'a> {
    fn of(event: &'a ReservationEvent) -> Self {
        let header = &event.header;
        Self {
            event_id: Fixed(event.event_id),
            reservation_id: Fixed(*header.reservation.as_bytes()),
            attempt: event.event.attempt(),
            recorded_at: header.recorded_at_us,
            region: header.region.as_str(),
            tenant: header.tenant.as_str(),
            key_id: header.key.as_str(),
            snapshot_version: header.snapshot_version,
            trace_id: header.trace_id.map(Fixed),
        }
    }
}

impl<'a> ReservationCreated<'a> {
    fn of(header: EventHeader<'a>, created: &'a Created) -> Self {
        let window = |Window { kind, ordinal }| WireWindow { kind, ordinal };
        let idempotency = created
            .idempotency
            .as_ref()
            .map(|record| Idempotency { key_hash: Fixed(record.key_hash), expires_at: Millis(record.expires_at_ms) });
        Self {
            header,
            team: created.team.as_ref().map(TeamId::as_str),
            model: created.model.as_str(),
            fingerprint: Fixed(created.fingerprint),
            hold: created.hold.into(),
            counted_scopes: ScopeTexts::Of(&created.counting.scopes),
            counted_windows: created.counting.windows.map(window).to_vec(),
            price_version: created.price_version.as_str(),
            admitted_at: Millis(created.admitted_at_ms),
            due_at: Millis(created.due_ms),
            owner: &created.owner,
            labels: Arc::clone(&created.labels),
            end_user: created.end_user.as_deref(),
            idempotency,
            adjust_on_mismatch: created.adjust_on_mismatch,
        }
    }

    /// The ids that the header names are not repeated in the body.
    fn created(&self, names: &mut Names) -> Result<Created, FieldError> {
        let idempotency = self
            .idempotency
            .as_ref()
            .map(|record| IdempotencyRecord { key_hash: record.key_hash.0, expires_at_ms: record.expires_at.0 });
        let scopes = match &self.counted_scopes {
            ScopeTexts::Read(texts) => names.scopes(texts),
            ScopeTexts::Of(scopes) => Arc::from(*scopes),
        };
        Ok(Created {
            id: ReservationId::from_bytes(self.header.reservation_id.0),
            tenant: names.text(self.header.tenant),
            team: self.team.map(|team| names.text(team)),
            key: names.text(self.header.key_id),
            model: names.text(self.model),
            fingerprint: self.fingerprint.0,
            hold: self.hold.into(),
            counting: Counting { scopes, windows: self.windows()? },
            price_version: names.text(self.price_version),
            admitted_at_ms: self.admitted_at.0,
            due_ms: self.due_at.0,
            owner: names.text(self.owner),
            labels: names.labels(&self.labels),
            end_user: self.end_user.map(str::to_owned),
            idempotency,
            adjust_on_mismatch: self.adjust_on_mismatch,
        })
    }

    fn windows(&self) -> Result<[Window; 4], FieldError> {
        let problem = FieldError {
            record: EventKind::ReservationCreated.as_str(),
            field: "counted_windows",
            problem: FieldProblem::NotFourWindows,
        };
        let counted: &[WireWindow; 4] = self.counted_windows.as_slice().try_into().map_err(|_| problem)?;
        if counted.map(|window| window.kind) != WindowKind::ALL {
            return Err(problem);
        }
        Ok(counted.map(|WireWindow { kind, ordinal }| Window { kind, ordinal }))
    }
}

impl<'a> AttemptStarted<'a> {
    fn of(header: EventHeader<'a>, hold: WireAmounts, target: &'a Target) -> Self {
        let Target { deployment, provider, upstream_model, provider_region, price } = target;
        Self {
            header,
            hold,
            deployment: deployment.as_str(),
            provider: provider.as_str(),
            upstream_model,
            provider_region,
            price,
        }
    }

    fn target(&self, names: &mut Names) -> Arc<Target> {
        let Self { header: _, hold: _, deployment, provider, upstream_model, provider_region, price } = *self;
        names.target(TargetText { deployment, provider, upstream_model, provider_region, price })
    }
}

impl<'a> UsageRecorded<'a> {
    fn of(header: EventHeader<'a>, record: &'a UsageRecord) -> Self {
        let UsageRecord { usage, source, charge, price_version, served_tier, cause } = record;
        Self {
            header,
            meters: Meters(Cow::Borrowed(usage)),
            source: *source,
            charge: (*charge).into(),
            price_version: price_version.as_str(),
            served_tier: served_tier.as_deref(),
            cause,
        }
    }

    fn into_parts(self, names: &mut Names) -> (EventHeader<'a>, UsageRecord) {
        let record = UsageRecord {
            usage: self.meters.0.into_owned(),
            source: self.source,
            charge: self.charge.into(),
            price_version: names.text(self.price_version),
            served_tier: self.served_tier.map(str::to_owned),
            cause: self.cause.to_owned(),
        };
        (self.header, record)
    }
}
