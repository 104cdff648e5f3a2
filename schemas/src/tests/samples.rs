//! One of each record, with every optional field present: what the golden files hold.

use std::sync::Arc;

use uuid::Uuid;
use weir_domain::attempt::{Attempt, AttemptOutcome, Target};
use weir_domain::calendar::{Zone, windows_at};
use weir_domain::ids::{KeyId, ModelName, Region, ReservationId, TeamId, TenantId};
use weir_domain::ledger::{Discrepancy as Found, LedgerLine, LineKey, SourcePosition};
use weir_domain::money::{Amounts, NanoUsd};
use weir_domain::quota::{Counting, Scope};
use weir_domain::reservation::{Created, Event, IdempotencyRecord, PendCause, UsageRecord};
use weir_domain::usage::{Meter, Usage, UsageSource};

use crate::discrepancy::Discrepancy;
use crate::ledger_entry::LedgerEntry;
use crate::operations::{AdmissionDenied, ConsumerSkip, Heartbeat, OperatorAct, QuotaRebuild};
use crate::reservation_event::{Header, ReservationEvent};
use crate::revocation::KeyRevoked;
use crate::snapshot::SnapshotPublished;
use crate::usage_report::{Correlation, CorrelationKind, ReportGrain, ReportOutcome, ReportSource, UsageReport};
use crate::usage_row::{RowSource, UsageRow};

/// 2026-03-01 09:30:00.123 UTC.
const ADMITTED_AT_MS: i64 = 1_772_357_400_123;
const SOURCE: SourcePosition = SourcePosition { partition: 7, offset: 123_456 };

pub(super) fn reservation() -> ReservationId {
    "0195502a-3f7b-7c31-9a54-2f6d1c0b8e11".parse().unwrap()
}

pub(super) fn header() -> Header {
    Header {
        reservation: reservation(),
        recorded_at_us: ADMITTED_AT_MS * 1000 + 456,
        region: Region::new("eu-west"),
        tenant: TenantId::new("t_acme"),
        key: KeyId::new("k_build"),
        snapshot_version: 42,
        trace_id: Some(*b"0123456789abcdef"),
    }
}

/// The worked example of the design: $0.105 held, $0.0822 charged.
pub(super) fn created() -> Created {
    let (team, key, model) = (TeamId::new("tm_search"), KeyId::new("k_build"), ModelName::new("chat-large"));
    let zone: Zone = "Europe/Berlin".parse().unwrap();
    Created {
        id: reservation(),
        tenant: TenantId::new("t_acme"),
        fingerprint: [0xab; 32],
        hold: Amounts::new(1, 9000, NanoUsd::from_nanos(105_000_000)),
        counting: Counting {
            scopes: Scope::of_request(Some(&team), &key, &model),
            windows: windows_at(ADMITTED_AT_MS, &zone),
        },
        team: Some(team),
        key,
        model,
        price_version: "p_5f3a".into(),
        admitted_at_ms: ADMITTED_AT_MS,
        due_ms: ADMITTED_AT_MS + 60_000,
        owner: Arc::from("eu-west/gw-1/17"),
        labels: Arc::from([("app".to_owned(), "søk".to_owned()), ("feature".to_owned(), String::new())]),
        end_user: Some("9c1185a5c5e9fc54612808977ee8f548b2258d31".to_owned()),
        idempotency: Some(IdempotencyRecord { key_hash: [0xcd; 32], expires_at_ms: ADMITTED_AT_MS + 86_400_000 }),
        adjust_on_mismatch: true,
    }
}

pub(super) fn target() -> Target {
    Target {
        deployment: "d_eu_large".into(),
        provider: "pr_main".into(),
        upstream_model: "gpt-large-2026".to_owned(),
        provider_region: "eu".to_owned(),
        price: "large".to_owned(),
    }
}

pub(super) fn usage_record() -> UsageRecord {
    UsageRecord {
        usage: Usage::new([
            (Meter::InUncached, 4000),
            (Meter::InCacheRead, 1000),
            (Meter::OutVisible, 2200),
            (Meter::OutReasoning, 300),
            (Meter::ToolWebSearch, 1),
        ])
        .unwrap(),
        source: UsageSource::ProviderReport,
        charge: Amounts::new(1, 7500, NanoUsd::from_nanos(82_200_000)),
        price_version: "p_5f3a".into(),
        served_tier: Some("priority".to_owned()),
        cause: "rep_77/2".to_owned(),
    }
}

/// In the order of `EventKind::ALL`.
pub(super) fn events() -> Vec<ReservationEvent> {
    let charge = usage_record().charge;
    let hold = Amounts { requests: 0, ..created().hold };
    let events = [
        Event::ReservationCreated(Arc::new(created())),
        Event::ReservationExtended { number: 2, by: hold },
        Event::AttemptStarted { number: 1, hold, target: Arc::new(target()) },
        Event::AttemptCorrelated { number: 1, provider_id: "chatcmpl-9Xa".to_owned() },
        Event::UsageBounded { number: 1, hold: Amounts::new(0, 6000, NanoUsd::from_nanos(70_000_000)) },
        Event::UsageRecorded { number: 1, record: Arc::new(usage_record()) },
        Event::AttemptClosed { number: 1, outcome: AttemptOutcome::ExecutedUsageUnknown },
        Event::ReservationPending { cause: PendCause::Expired, ordinal: 1 },
        Event::ReservationSettled { charged: charge },
        Event::ReservationReleased,
        Event::ReservationResumed { ordinal: 2, due_ms: ADMITTED_AT_MS + 120_000 },
        Event::ReservationEscalated,
    ];
    events.into_iter().map(|event| ReservationEvent::new(header(), event).unwrap()).collect()
}

pub(super) fn ledger_line() -> LedgerLine {
    LedgerLine {
        key: LineKey { reservation: reservation(), attempt: 1, seq: 1 },
        created: Arc::new(created()),
        target: Some(Arc::new(target())),
        record: Arc::new(usage_record()),
        amount: Amounts::new(0, -40, NanoUsd::from_nanos(-335)),
        total: usage_record().charge,
        corrects: Some(0),
        flagged: false,
        posted_at_ms: ADMITTED_AT_MS + 5000,
        source: SOURCE,
    }
}

pub(super) fn ledger_entry() -> LedgerEntry {
    LedgerEntry::from_line(&ledger_line(), &Region::new("eu-west"))
}

pub(super) fn usage_row() -> UsageRow {
    let mut attempt = Attempt::started(1, created().hold, Arc::new(target()));
    attempt.outcome = Some(AttemptOutcome::Executed);
    let source = RowSource { recorded_at_ms: ADMITTED_AT_MS + 5000, position: SOURCE };
    UsageRow::of_attempt(&created(), &Region::new("eu-west"), &attempt, Some(&usage_record()), source)
}

pub(super) fn discrepancy() -> Discrepancy {
    let recorded = usage_record().charge;
    let found = Found {
        reservation: reservation(),
        attempt: 1,
        recorded,
        recorded_source: UsageSource::Response,
        reported: recorded + Amounts::new(0, 1, NanoUsd::from_nanos(10)),
        reported_source: UsageSource::ProviderReport,
        cause: "rep_77/2".to_owned(),
        adjusted: true,
    };
    Discrepancy::new(&found, &TenantId::new("t_acme"), &Region::new("eu-west"), ADMITTED_AT_MS + 9000, SOURCE)
}

pub(super) fn usage_report() -> UsageReport {
    UsageReport {
        report_id: "rep_77".to_owned(),
        revision: 2,
        adapter: "csv-import".to_owned(),
        source: ReportSource::Manual,
        grain: ReportGrain::Attempt,
        provider: "pr_main".into(),
        correlation: Some(Correlation {
            kind: CorrelationKind::ProviderResponse,
            value: "chatcmpl-9Xa".to_owned(),
            reservation: Some(reservation()),
            attempt: Some(1),
        }),
        window_start_ms: Some(ADMITTED_AT_MS - 123),
        window_end_ms: Some(ADMITTED_AT_MS - 123 + 60_000),
        occurred_at_ms: Some(ADMITTED_AT_MS + 2000),
        fetched_at_ms: ADMITTED_AT_MS + 3_600_000,
        model_requested: Some("gpt-large".to_owned()),
        model_reported: Some("gpt-large-2026".to_owned()),
        service_tier: Some("priority".to_owned()),
        request_count: Some(1),
        meters: usage_record().usage,
        cost_usd: Some(NanoUsd::from_nanos(82_200_000)),
        outcome: ReportOutcome::Completed,
        reporter: "dana@acme".to_owned(),
        reason: "invoice of March".to_owned(),
    }
}

pub(super) fn heartbeat() -> Heartbeat {
    Heartbeat {
        gateway: "gw-1".to_owned(),
        region: Region::new("eu-west"),
        epoch: 17,
        started_at_ms: ADMITTED_AT_MS - 60_000,
        sent_at_ms: ADMITTED_AT_MS,
        spool_head: 9000,
        spool_forwarded: 8999,
        role: "reconciler".to_owned(),
        release: "0.1.0".to_owned(),
        snapshot_version: 43,
        leaves: true,
    }
}

pub(super) fn operator_act() -> OperatorAct {
    OperatorAct {
        act_id: Uuid::from_bytes([7; 16]),
        who: "dana@acme".to_owned(),
        why: "leaked in a screenshot".to_owned(),
        act: "key.revoke".to_owned(),
        object: "k_build".to_owned(),
        tenant: Some(TenantId::new("t_acme")),
        at_ms: ADMITTED_AT_MS,
    }
}

pub(super) fn consumer_skip() -> ConsumerSkip {
    ConsumerSkip {
        consumer: "ledger".to_owned(),
        topic: "weir.reservations".to_owned(),
        partition: 7,
        offset: 99,
        key: reservation().to_string(),
        error: "schema id 9 is unknown".to_owned(),
        who: "dana@acme".to_owned(),
        why: "written by a test client".to_owned(),
        at_ms: ADMITTED_AT_MS,
    }
}

pub(super) fn admission_denied() -> AdmissionDenied {
    AdmissionDenied {
        tenant: TenantId::new("t_acme"),
        key: KeyId::new("k_build"),
        model: ModelName::new("chat-large"),
        limit: "usd per day of tenant ($100)".to_owned(),
        count: 250,
        gateway: "gw-1".to_owned(),
        at_ms: ADMITTED_AT_MS,
    }
}

pub(super) fn quota_rebuild() -> QuotaRebuild {
    QuotaRebuild {
        rebuild_id: Uuid::from_bytes([9; 16]),
        step: QuotaRebuild::OPENED.to_owned(),
        process: "reconciler-1".to_owned(),
        region: Region::new("eu-west"),
        epoch: 18,
        tenants: 3,
        absent: vec!["eu-west/gw-1-17".to_owned()],
        at_ms: ADMITTED_AT_MS,
    }
}

pub(super) fn key_revoked() -> KeyRevoked {
    KeyRevoked {
        key: KeyId::new("k_build"),
        tenant: TenantId::new("t_acme"),
        who: "dana@acme".to_owned(),
        why: "leaked in a screenshot".to_owned(),
        revoked_at_ms: ADMITTED_AT_MS,
    }
}

pub(super) fn snapshot() -> SnapshotPublished {
    SnapshotPublished::new("t_acme".to_owned(), 43, ADMITTED_AT_MS, "{\"models\":[]}".to_owned())
}
