//! Rows and values: how a reservation and a line lie in their tables, exactly.
//!
//! What most reservations have is a column; what few have is one JSON text. Scopes and windows follow from team, key,
//! model and three numbers wherever they are what `Scope::of_request` and the calendar make of them, and are spelled
//! out where they are not: the list of counters is part of the record (I10), so nothing is assumed.

use std::sync::Arc;

use rusqlite::Row;
use serde::{Deserialize, Serialize};

use weir_domain::attempt::Target;
use weir_domain::calendar::{Window, WindowKind};
use weir_domain::ids::{KeyId, ModelName, TeamId};
use weir_domain::ids::{PriceVersion, ReservationId, TenantId};
use weir_domain::ledger::{LedgerLine, LineKey, SourcePosition};
use weir_domain::money::{Amounts, NanoUsd};
use weir_domain::quota::{Counting, Scope};
use weir_domain::reservation::{Created, EventKind, IdempotencyRecord, Labels, ReservationStatus, UsageRecord};
use weir_domain::usage::{Meter, Usage, UsageSource};

use crate::contract::{EventMark, LedgerError};

/// What locks a reservation, in the order that [`read_created`] reads from its first column on.
pub(super) const CREATED_COLUMNS: &str = "r.id, r.tenant, r.team, r.key_id, r.model, r.fingerprint, r.hold_requests, \
     r.hold_tokens, r.hold_nusd, r.window_day, r.window_week, r.window_month, r.price_version, r.admitted_at_ms, \
     r.first_due_ms, r.owner, r.details";
/// What makes a line, in the order that [`read_line`] reads from its first column on.
pub(super) const LINE_COLUMNS: &str = "l.reservation, l.attempt, l.seq, l.posted_at_ms, l.deployment, l.provider, \
     l.upstream_model, l.provider_region, l.price, l.usage, l.source, l.record_requests, l.record_tokens, \
     l.record_nusd, l.price_version, l.served_tier, l.cause, l.amount_requests, l.amount_tokens, l.amount_nusd, \
     l.total_requests, l.total_tokens, l.total_nusd, l.corrects, l.flagged, l.log_partition, l.log_offset";
pub(super) const CREATED_WIDTH: usize = 17;

/// What of a reservation is rarely set.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Details {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    labels: Option<Labels>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    end_user: Option<String>,
    /// The key's hash in hex, and when it ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    idempotency: Option<(String, i64)>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    adjust_on_mismatch: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    scopes: Option<Arc<[Scope]>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    windows: Option<[Window; 4]>,
}

impl Details {
    fn of(created: &Created) -> Self {
        let counting = &created.counting;
        let Created { team, key, model, .. } = created;
        let has_usual_scopes = Scope::are_of_request(&counting.scopes, team.as_ref(), key, model);
        let record = created.idempotency.as_ref();
        Self {
            labels: (!created.labels.is_empty()).then(|| Arc::clone(&created.labels)),
            end_user: created.end_user.clone(),
            idempotency: record.map(|record| (hex::encode(record.key_hash), record.expires_at_ms)),
            adjust_on_mismatch: created.adjust_on_mismatch,
            scopes: (!has_usual_scopes).then(|| Arc::clone(&counting.scopes)),
            windows: (counting.windows != usual_windows(counting.windows.map(|w| w.ordinal)))
                .then_some(counting.windows),
        }
    }

    /// The text for the column.
    pub fn text_of(created: &Created) -> Result<Option<String>, LedgerError> {
        let details = Self::of(created);
        if details == Self::default() { Ok(None) } else { json("reservation", &details).map(Some) }
    }
}

fn usual_windows(ordinals: [i32; 4]) -> [Window; 4] {
    let [day, week, month, _] = ordinals;
    [
        Window { kind: WindowKind::Day, ordinal: day },
        Window { kind: WindowKind::Week, ordinal: week },
        Window { kind: WindowKind::Month, ordinal: month },
        Window::TOTAL,
    ]
}

pub(super) fn json<T: Serialize>(what: &'static str, value: &T) -> Result<String, LedgerError> {
    serde_json::to_string(value).map_err(|error| damaged(what, &error))
}

pub(super) fn damaged(what: &'static str, reason: &dyn ToString) -> LedgerError {
    LedgerError::Damaged { what, reason: reason.to_string() }
}

/// Columns of one row, read one after the other.
pub(super) struct Columns<'a> {
    row: &'a Row<'a>,
    at: usize,
    what: &'static str,
}

impl<'a> Columns<'a> {
    pub const fn new(row: &'a Row<'a>, first: usize, what: &'static str) -> Self {
        Self { row, at: first, what }
    }

    pub fn next<T: rusqlite::types::FromSql>(&mut self) -> Result<T, LedgerError> {
        let at = self.at;
        self.at += 1;
        self.row.get(at).map_err(|error| damaged(self.what, &error))
    }

    /// A text that becomes an id without a `String` between.
    fn text<T: for<'t> From<&'t str>>(&mut self) -> Result<T, LedgerError> {
        self.optional_text()?.ok_or_else(|| damaged(self.what, &"a text is missing"))
    }

    fn optional_text<T: for<'t> From<&'t str>>(&mut self) -> Result<Option<T>, LedgerError> {
        let at = self.at;
        self.at += 1;
        let value = self.row.get_ref(at).map_err(|error| damaged(self.what, &error))?;
        let text = value.as_str_or_null().map_err(|error| damaged(self.what, &error))?;
        Ok(text.map(T::from))
    }

    pub fn amounts(&mut self) -> Result<Amounts, LedgerError> {
        Ok(Amounts::new(self.next()?, self.next()?, NanoUsd::from_nanos(self.next()?)))
    }

    pub fn id(&mut self) -> Result<ReservationId, LedgerError> {
        self.next().map(ReservationId::from_bytes)
    }

    fn source(&mut self) -> Result<SourcePosition, LedgerError> {
        Ok(SourcePosition { partition: self.next()?, offset: self.next()? })
    }
}

/// Reads [`CREATED_COLUMNS`], whose first is at `first`.
pub(super) fn read_created(row: &Row<'_>, first: usize) -> Result<Created, LedgerError> {
    let mut columns = Columns::new(row, first, "reservation");
    let id = columns.id()?;
    let tenant: TenantId = columns.text()?;
    let team: Option<TeamId> = columns.optional_text()?;
    let key: KeyId = columns.text()?;
    let model: ModelName = columns.text()?;
    let fingerprint: [u8; 32] = columns.next()?;
    let hold = columns.amounts()?;
    let ordinals = [columns.next()?, columns.next()?, columns.next()?, 0];
    let price_version: PriceVersion = columns.text()?;
    let (admitted_at_ms, due_ms) = (columns.next()?, columns.next()?);
    let owner: Arc<str> = columns.text()?;
    let details: Details = match columns.next::<Option<String>>()? {
        Some(text) => serde_json::from_str(&text).map_err(|error| damaged("reservation", &error))?,
        None => Details::default(),
    };
    let scopes = details.scopes.unwrap_or_else(|| Scope::of_request(team.as_ref(), &key, &model));
    let windows = details.windows.unwrap_or_else(|| usual_windows(ordinals));
    Ok(Created {
        id,
        tenant,
        team,
        key,
        model,
        fingerprint,
        hold,
        counting: Counting { scopes, windows },
        price_version,
        admitted_at_ms,
        due_ms,
        owner,
        labels: details.labels.unwrap_or_else(|| Arc::from([])),
        end_user: details.end_user,
        idempotency: details.idempotency.map(idempotency).transpose()?,
        adjust_on_mismatch: details.adjust_on_mismatch,
    })
}

fn idempotency((hash, expires_at_ms): (String, i64)) -> Result<IdempotencyRecord, LedgerError> {
    let mut key_hash = [0; 32];
    hex::decode_to_slice(hash, &mut key_hash).map_err(|error| damaged("reservation", &error))?;
    Ok(IdempotencyRecord { key_hash, expires_at_ms })
}

/// Reads [`LINE_COLUMNS`], whose first is at `first`.
pub(super) fn read_line(row: &Row<'_>, first: usize, created: &Arc<Created>) -> Result<LedgerLine, LedgerError> {
    let mut columns = Columns::new(row, first, "line");
    let key = LineKey { reservation: columns.id()?, attempt: columns.next()?, seq: columns.next()? };
    let posted_at_ms = columns.next()?;
    let target = target([columns.next()?, columns.next()?, columns.next()?, columns.next()?, columns.next()?])?;
    let usage = read_usage(&columns.next::<String>()?)?;
    let source = usage_source(columns.next()?)?;
    let charge = columns.amounts()?;
    let price_version: Option<PriceVersion> = columns.optional_text()?;
    let record = UsageRecord {
        usage,
        source,
        charge,
        price_version: price_version.unwrap_or_else(|| created.price_version.clone()),
        served_tier: columns.next()?,
        cause: columns.next()?,
    };
    Ok(LedgerLine {
        key,
        created: Arc::clone(created),
        target,
        record: Arc::new(record),
        amount: columns.amounts()?,
        total: columns.amounts()?,
        corrects: columns.next()?,
        flagged: columns.next()?,
        posted_at_ms,
        source: columns.source()?,
    })
}

fn target(columns: [Option<String>; 5]) -> Result<Option<Arc<Target>>, LedgerError> {
    match columns {
        [None, None, None, None, None] => Ok(None),
        [Some(deployment), Some(provider), Some(upstream_model), Some(provider_region), Some(price)] => {
            let (deployment, provider) = (deployment.into(), provider.into());
            Ok(Some(Arc::new(Target { deployment, provider, upstream_model, provider_region, price })))
        }
        _ => Err(damaged("line", &"half of a target")),
    }
}

/// Meters as a JSON object. Codes need no escapes.
pub(super) fn usage_text(usage: &Usage) -> String {
    let mut text = String::with_capacity(2 + 24 * usage.readings().len());
    text.push('{');
    for (at, reading) in usage.readings().iter().enumerate() {
        text.push_str(if at == 0 { "\"" } else { ",\"" });
        text.push_str(reading.meter.code());
        text.push_str("\":");
        push_number(&mut text, reading.quantity);
    }
    text.push('}');
    text
}

/// The digits of `number`: the formatter would be half of what such a text costs, twice per request.
fn push_number(text: &mut String, number: i64) {
    let mut digits = [0; 20];
    let mut first = digits.len();
    let mut rest = number.unsigned_abs();
    loop {
        first -= 1;
        digits[first] = b'0' + u8::try_from(rest % 10).unwrap_or(0);
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if number < 0 {
        text.push('-');
    }
    text.extend(digits[first..].iter().map(|digit| char::from(*digit)));
}

fn read_usage(text: &str) -> Result<Usage, LedgerError> {
    let meters: std::collections::BTreeMap<Meter, i64> =
        serde_json::from_str(text).map_err(|error| damaged("usage", &error))?;
    Usage::new(meters).map_err(|error| damaged("usage", &error))
}

/// `[offset,kind,attempt,ms after admission],` for each event.
pub(super) fn events_text(events: &[EventMark], admitted_at_ms: i64) -> String {
    let mut text = String::with_capacity(24 * events.len());
    for event in events {
        let after_ms = event.recorded_at_ms.saturating_sub(admitted_at_ms);
        let numbers = [event.source.offset, kind_code(event.kind).into(), event.attempt.into(), after_ms];
        for (at, number) in numbers.into_iter().enumerate() {
            text.push(if at == 0 { '[' } else { ',' });
            push_number(&mut text, number);
        }
        text.push_str("],");
    }
    text
}

pub(super) fn read_events(text: &str, partition: i32, admitted_at_ms: i64) -> Result<Vec<EventMark>, LedgerError> {
    let packed: Vec<(i64, u8, u16, i64)> = serde_json::from_str(&format!("[{}]", text.trim_end_matches(',')))
        .map_err(|error| damaged("event index", &error))?;
    let mut events = packed
        .into_iter()
        .map(|(offset, kind, attempt, after_ms)| {
            Ok(EventMark {
                source: SourcePosition { partition, offset },
                kind: kind_of(kind)?,
                attempt,
                recorded_at_ms: admitted_at_ms.saturating_add(after_ms),
            })
        })
        .collect::<Result<Vec<_>, LedgerError>>()?;
    events.sort_unstable();
    events.dedup();
    Ok(events)
}

/// The row of `event_kinds`.
const fn kind_code(kind: EventKind) -> u8 {
    match kind {
        EventKind::ReservationCreated => 0,
        EventKind::ReservationExtended => 1,
        EventKind::AttemptStarted => 2,
        EventKind::AttemptCorrelated => 3,
        EventKind::UsageBounded => 4,
        EventKind::UsageRecorded => 5,
        EventKind::AttemptClosed => 6,
        EventKind::ReservationPending => 7,
        EventKind::ReservationSettled => 8,
        EventKind::ReservationReleased => 9,
        EventKind::ReservationResumed => 10,
        EventKind::ReservationEscalated => 11,
    }
}

fn kind_of(code: u8) -> Result<EventKind, LedgerError> {
    EventKind::ALL.into_iter().find(|kind| kind_code(*kind) == code).ok_or_else(|| damaged("event kind", &code))
}

/// The row of `reservation_statuses`.
pub(super) const fn status_code(status: ReservationStatus) -> u8 {
    match status {
        ReservationStatus::Reserved => 0,
        ReservationStatus::PendingReconciliation => 1,
        ReservationStatus::Settled => 2,
        ReservationStatus::Released => 3,
    }
}

pub(super) fn status_of(code: u8) -> Result<ReservationStatus, LedgerError> {
    const ALL: [ReservationStatus; 4] = [
        ReservationStatus::Reserved,
        ReservationStatus::PendingReconciliation,
        ReservationStatus::Settled,
        ReservationStatus::Released,
    ];
    ALL.into_iter().find(|status| status_code(*status) == code).ok_or_else(|| damaged("status", &code))
}

/// The row of `usage_sources`.
pub(super) const fn source_code(source: UsageSource) -> u8 {
    match source {
        UsageSource::Estimate => 0,
        UsageSource::Split => 1,
        UsageSource::BucketResidual => 2,
        UsageSource::Response => 3,
        UsageSource::ProviderReport => 4,
        UsageSource::Person => 5,
    }
}

fn usage_source(code: u8) -> Result<UsageSource, LedgerError> {
    const ALL: [UsageSource; 6] = [
        UsageSource::Estimate,
        UsageSource::Split,
        UsageSource::BucketResidual,
        UsageSource::Response,
        UsageSource::ProviderReport,
        UsageSource::Person,
    ];
    ALL.into_iter().find(|source| source_code(*source) == code).ok_or_else(|| damaged("usage source", &code))
}

#[cfg(test)]
mod row_tests {
    use super::*;

    #[test]
    fn numbers_have_the_digits_that_the_formatter_gives_them() {
        for number in [0, 1, -1, 9, 10, 99, 100, -100, 1_234_567_890, i64::MAX, i64::MIN] {
            let mut text = String::new();
            push_number(&mut text, number);
            assert_eq!(text, number.to_string());
        }
    }
}
