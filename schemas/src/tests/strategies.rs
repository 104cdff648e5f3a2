//! Random events, with the edges of every type among them.

use std::sync::Arc;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use weir_domain::attempt::{AttemptNumber, AttemptOutcome, Target};
use weir_domain::calendar::{Window, WindowKind};
use weir_domain::ids::{KeyId, ModelName, Region, ReservationId, TeamId, TenantId};
use weir_domain::ledger::{LedgerLine, LineKey, SourcePosition};
use weir_domain::money::{Amounts, NanoUsd};
use weir_domain::quota::{Counting, Scope, Subject};
use weir_domain::reservation::{Created, Event, IdempotencyRecord, PendCause, UsageRecord};
use weir_domain::usage::{MAX_QUANTITY, Meter, Usage, UsageSource};

use crate::reservation_event::{Header, ReservationEvent};

pub(super) fn text() -> impl Strategy<Value = String> {
    prop_oneof![4 => "[a-z0-9_./-]{0,24}", 1 => "\\PC{0,80}"]
}

fn figure() -> impl Strategy<Value = i64> {
    prop_oneof![Just(0), Just(i64::MAX), 0i64..1000, any::<i64>().prop_map(i64::unsigned_abs).prop_map(clamp)]
}

fn clamp(magnitude: u64) -> i64 {
    i64::try_from(magnitude).unwrap_or(i64::MAX)
}

pub(super) fn amounts() -> impl Strategy<Value = Amounts> {
    (figure(), figure(), figure())
        .prop_map(|(requests, tokens, usd)| Amounts::new(requests, tokens, NanoUsd::from_nanos(usd)))
}

pub(super) fn signed_amounts() -> impl Strategy<Value = Amounts> {
    let signed = || prop_oneof![any::<i64>(), -300i64..300, Just(i64::MIN), Just(i64::MAX)];
    (signed(), signed(), signed())
        .prop_map(|(requests, tokens, usd)| Amounts::new(requests, tokens, NanoUsd::from_nanos(usd)))
}

/// Whatever microseconds can say.
pub(super) fn time_ms() -> impl Strategy<Value = i64> {
    let most = i64::MAX / 1000;
    prop_oneof![3 => 1_700_000_000_000i64..2_000_000_000_000, 1 => -most..=most, 1 => Just(-most), 1 => Just(most)]
}

fn scope() -> impl Strategy<Value = Scope> {
    let subject = prop_oneof![
        Just(Subject::Tenant),
        text().prop_map(|id| Subject::Team(TeamId::from(id))),
        text().prop_map(|id| Subject::Key(KeyId::from(id))),
    ];
    (subject, option::of(text())).prop_map(|(subject, model)| Scope { subject, model: model.map(ModelName::from) })
}

/// Windows of the years 1970 to 9999, whose ids have four digits for the year.
fn counting() -> impl Strategy<Value = Counting> {
    (vec(scope(), 0..7), 4i32..2_900_000, 0i32..400_000, 0i32..96_000).prop_map(|(scopes, day, week, month)| {
        let window = |kind, ordinal| Window { kind, ordinal };
        let windows = [
            window(WindowKind::Day, day),
            window(WindowKind::Week, week),
            window(WindowKind::Month, month),
            Window::TOTAL,
        ];
        Counting { scopes: scopes.into(), windows }
    })
}

fn idempotency() -> impl Strategy<Value = IdempotencyRecord> {
    (any::<[u8; 32]>(), time_ms()).prop_map(|(key_hash, expires_at_ms)| IdempotencyRecord { key_hash, expires_at_ms })
}

pub(super) fn created() -> impl Strategy<Value = Created> {
    let ids = (any::<[u8; 16]>(), text(), option::of(text()), text(), text(), text());
    let times = (time_ms(), time_ms());
    let about = (text(), vec((text(), text()), 0..5), option::of(text()), option::of(idempotency()), any::<bool>());
    (ids, any::<[u8; 32]>(), amounts(), counting(), times, about).prop_map(
        |(ids, fingerprint, hold, counting, (admitted_at_ms, due_ms), about)| {
            let (id, tenant, team, key, model, price_version) = ids;
            let (owner, labels, end_user, idempotency, adjust_on_mismatch) = about;
            Created {
                id: ReservationId::from_bytes(id),
                tenant: tenant.into(),
                team: team.map(TeamId::from),
                key: key.into(),
                model: model.into(),
                fingerprint,
                hold,
                counting,
                price_version: price_version.into(),
                admitted_at_ms,
                due_ms,
                owner: owner.into(),
                labels: labels.into(),
                end_user,
                idempotency,
                adjust_on_mismatch,
            }
        },
    )
}

fn target() -> impl Strategy<Value = Target> {
    let texts = (text(), text(), text(), text(), text());
    texts.prop_map(|(deployment, provider, upstream_model, provider_region, price)| Target {
        deployment: deployment.into(),
        provider: provider.into(),
        upstream_model,
        provider_region,
        price,
    })
}

pub(super) fn usage() -> impl Strategy<Value = Usage> {
    let reading = (proptest::sample::select(Meter::ALL), 0..MAX_QUANTITY / 32);
    vec(reading, 0..12).prop_map(|readings| Usage::new(readings).unwrap())
}

fn usage_source() -> impl Strategy<Value = UsageSource> {
    use UsageSource::{BucketResidual, Estimate, Person, ProviderReport, Response, Split};
    proptest::sample::select(vec![Estimate, Split, BucketResidual, Response, ProviderReport, Person])
}

pub(super) fn usage_record() -> impl Strategy<Value = UsageRecord> {
    (usage(), usage_source(), amounts(), text(), option::of(text()), text()).prop_map(
        |(usage, source, charge, price_version, served_tier, cause)| UsageRecord {
            usage,
            source,
            charge,
            price_version: price_version.into(),
            served_tier,
            cause,
        },
    )
}

fn number() -> impl Strategy<Value = AttemptNumber> {
    prop_oneof![3 => 1u16..4, 1 => 1..=u16::MAX]
}

pub(super) fn outcome() -> impl Strategy<Value = AttemptOutcome> {
    use AttemptOutcome::{Executed, ExecutedUsageUnknown, MayHaveExecuted, NotExecuted};
    proptest::sample::select(vec![NotExecuted, MayHaveExecuted, Executed, ExecutedUsageUnknown])
}

/// Every kind of event, equally often.
fn event() -> impl Strategy<Value = Event> {
    let cause = proptest::sample::select(vec![PendCause::UsageUnknown, PendCause::Expired]);
    prop_oneof![
        created().prop_map(|created| Event::ReservationCreated(Arc::new(created))),
        (number(), amounts()).prop_map(|(number, by)| Event::ReservationExtended { number, by }),
        (number(), amounts(), target()).prop_map(|(number, hold, target)| Event::AttemptStarted {
            number,
            hold,
            target: Arc::new(target)
        }),
        (number(), text()).prop_map(|(number, provider_id)| Event::AttemptCorrelated { number, provider_id }),
        (number(), amounts()).prop_map(|(number, hold)| Event::UsageBounded { number, hold }),
        (number(), usage_record())
            .prop_map(|(number, record)| Event::UsageRecorded { number, record: Arc::new(record) }),
        (number(), outcome()).prop_map(|(number, outcome)| Event::AttemptClosed { number, outcome }),
        (cause, any::<u16>()).prop_map(|(cause, ordinal)| Event::ReservationPending { cause, ordinal }),
        amounts().prop_map(|charged| Event::ReservationSettled { charged }),
        Just(Event::ReservationReleased),
        (any::<u16>(), time_ms()).prop_map(|(ordinal, due_ms)| Event::ReservationResumed { ordinal, due_ms }),
        Just(Event::ReservationEscalated),
    ]
}

fn header() -> impl Strategy<Value = Header> {
    let ids = (any::<[u8; 16]>(), text(), text(), text());
    (ids, any::<i64>(), 0..=u64::try_from(i64::MAX).unwrap(), option::of(any::<[u8; 16]>())).prop_map(
        |((reservation, region, tenant, key), recorded_at_us, snapshot_version, trace_id)| Header {
            reservation: ReservationId::from_bytes(reservation),
            recorded_at_us,
            region: Region::from(region),
            tenant: TenantId::from(tenant),
            key: KeyId::from(key),
            snapshot_version,
            trace_id,
        },
    )
}

pub(super) fn reservation_event() -> impl Strategy<Value = ReservationEvent> {
    (header(), event()).prop_map(|(mut header, event)| {
        if let Event::ReservationCreated(created) = &event {
            header.reservation = created.id;
            header.tenant = created.tenant.clone();
            header.key = created.key.clone();
        }
        ReservationEvent::new(header, event).unwrap()
    })
}

pub(super) fn ledger_line() -> impl Strategy<Value = LedgerLine> {
    let key = (number(), 0..=u32::MAX >> 1, option::of(0u32..9));
    let source = (0i32..=i32::MAX, 0i64..=i64::MAX);
    (
        created(),
        option::of(target()),
        usage_record(),
        (signed_amounts(), amounts()),
        key,
        any::<bool>(),
        time_ms(),
        source,
    )
        .prop_map(
            |(created, target, record, (amount, total), (attempt, seq, corrects), flagged, posted_at_ms, source)| {
                LedgerLine {
                    key: LineKey { reservation: created.id, attempt, seq },
                    created: Arc::new(created),
                    target: target.map(Arc::new),
                    record: Arc::new(record),
                    amount,
                    total,
                    corrects,
                    flagged,
                    posted_at_ms,
                    source: SourcePosition { partition: source.0, offset: source.1 },
                }
            },
        )
}
