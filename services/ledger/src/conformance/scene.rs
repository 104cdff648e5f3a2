//! Reservations, lines and changes to test with: everything optional set in one, nothing in another.

use std::sync::Arc;

use weir_domain::attempt::{Attempt, AttemptOutcome, Target};
use weir_domain::calendar::{self, Zone};
use weir_domain::ids::{KeyId, ModelName, ReservationId, TeamId, TenantId};
use weir_domain::ledger::{LedgerLine, LineKey, SourcePosition};
use weir_domain::money::{Amounts, NanoUsd};
use weir_domain::quota::{Counting, Scope};
use weir_domain::reservation::{Created, Event, EventKind, IdempotencyRecord, Reservation, UsageRecord, apply};
use weir_domain::usage::{Meter, Usage, UsageSource};

use crate::contract::{Change, EventMark};

/// 2026-03-01 12:00:00 UTC, a Sunday.
pub const NOON_MS: i64 = 1_772_366_400_000;

/// The `n`th reservation, admitted `n` seconds after noon.
#[must_use]
pub fn id(n: u64) -> ReservationId {
    let admitted_at_ms = admitted_at_ms(n);
    let mut bytes = [0; 16];
    bytes[..6].copy_from_slice(&admitted_at_ms.to_be_bytes()[2..]);
    bytes[6] = 0x70;
    bytes[8] = 0x80;
    bytes[12..].copy_from_slice(&(n as u32).to_be_bytes());
    ReservationId::from_bytes(bytes)
}

#[must_use]
pub fn admitted_at_ms(n: u64) -> i64 {
    NOON_MS.saturating_add_unsigned(n.saturating_mul(1000))
}

#[must_use]
pub fn created(n: u64, tenant: &str) -> Created {
    let (team, key, model) = (None, KeyId::from("key-1"), ModelName::from("small"));
    let admitted_at_ms = admitted_at_ms(n);
    Created {
        id: id(n),
        tenant: TenantId::from(tenant),
        counting: Counting {
            scopes: Scope::of_request(team.as_ref(), &key, &model),
            windows: calendar::windows_at(admitted_at_ms, &Zone::default()),
        },
        team,
        key,
        model,
        fingerprint: [7; 32],
        hold: Amounts::new(1, 1_000, NanoUsd::from_nanos(105_000_000)),
        price_version: "prices-1".into(),
        admitted_at_ms,
        due_ms: admitted_at_ms + 60_000,
        owner: Arc::from("eu/gw-1/3"),
        labels: Arc::from([]),
        end_user: None,
        idempotency: None,
        adjust_on_mismatch: false,
    }
}

/// With everything set that can be, and scopes in an order that follows from nothing else.
#[must_use]
pub fn created_in_full(n: u64, tenant: &str) -> Created {
    let plain = created(n, tenant);
    let team = Some(TeamId::from("team \"ü\""));
    let mut scopes = Scope::of_request(team.as_ref(), &plain.key, &plain.model).to_vec();
    scopes.reverse();
    Created {
        team,
        counting: Counting { scopes: scopes.into(), ..plain.counting },
        labels: Arc::from([("app".to_owned(), "x,\"y\"".to_owned()), ("app".to_owned(), String::new())]),
        end_user: Some("ab12".to_owned()),
        idempotency: Some(IdempotencyRecord { key_hash: [9; 32], expires_at_ms: plain.admitted_at_ms + 86_400_000 }),
        adjust_on_mismatch: true,
        ..plain
    }
}

#[must_use]
pub fn target() -> Arc<Target> {
    Arc::new(Target {
        deployment: "small-eu".into(),
        provider: "acme".into(),
        upstream_model: "acme-small-2026-02".to_owned(),
        provider_region: "eu-west".to_owned(),
        price: "small-2026".to_owned(),
    })
}

#[must_use]
pub fn record(tokens: i64, nanos: i64, source: UsageSource, cause: &str) -> UsageRecord {
    UsageRecord {
        usage: Usage::new([(Meter::InUncached, tokens - tokens / 4), (Meter::OutVisible, tokens / 4)])
            .unwrap_or_default(),
        source,
        charge: Amounts::new(0, tokens, NanoUsd::from_nanos(nanos)),
        price_version: "prices-1".into(),
        served_tier: None,
        cause: cause.to_owned(),
    }
}

/// The `seq`th line of attempt 1 of `created`, from the event at `offset`, recorded a second after admission.
#[must_use]
pub fn line(created: &Arc<Created>, seq: u32, nanos: i64, offset: i64) -> LedgerLine {
    let record = Arc::new(record(100, nanos, UsageSource::Response, ""));
    let charge = Amounts { requests: i64::from(seq == 0), ..record.charge };
    LedgerLine {
        key: LineKey { reservation: created.id, attempt: 1, seq },
        created: Arc::clone(created),
        target: Some(target()),
        record,
        amount: charge,
        total: charge,
        corrects: seq.checked_sub(1),
        flagged: false,
        posted_at_ms: created.admitted_at_ms + 1000,
        source: SourcePosition { partition: 0, offset },
    }
}

/// The reservation after its attempt was charged `nanos` and it was settled.
#[must_use]
pub fn settled(created: &Arc<Created>, nanos: i64) -> Reservation {
    let mut reservation = reserved(created);
    let total = Amounts::new(1, 100, NanoUsd::from_nanos(nanos));
    reservation.attempts.push(Attempt {
        outcome: Some(AttemptOutcome::Executed),
        charge: Some(total),
        provider_id: Some("chatcmpl-1".to_owned()),
        ..Attempt::started(1, created.hold, target())
    });
    after(reservation, &Event::ReservationSettled { charged: total })
}

/// The reservation as it was created.
#[must_use]
#[expect(clippy::expect_used, reason = "a creation applied to nothing always gives a reservation")]
pub fn reserved(created: &Arc<Created>) -> Reservation {
    apply(None, &Event::ReservationCreated(Arc::clone(created))).expect("a creation creates")
}

/// The reservation after one more event.
#[must_use]
#[expect(clippy::expect_used, reason = "an event applied to a reservation always gives one")]
pub fn after(reservation: Reservation, event: &Event) -> Reservation {
    apply(Some(reservation), event).expect("an event leaves a reservation")
}

/// The change that ends at `offset`, with one event of `kind` and `lines`.
#[must_use]
pub fn change(reservation: Reservation, kind: EventKind, offset: i64, lines: Vec<LedgerLine>) -> Change {
    let recorded_at_ms = reservation.created.admitted_at_ms + offset;
    let source = SourcePosition { partition: 0, offset };
    let attempt = u16::from(kind == EventKind::UsageRecorded);
    Change {
        reservation,
        status_since_ms: recorded_at_ms,
        events: vec![EventMark { source, kind, attempt, recorded_at_ms }],
        lines,
    }
}

/// The change of a request that was charged `nanos` by the event at `offset`.
#[must_use]
pub fn charged(created: &Arc<Created>, nanos: i64, offset: i64) -> Change {
    let line = line(created, 0, nanos, offset);
    change(settled(created, nanos), EventKind::UsageRecorded, offset, vec![line])
}
