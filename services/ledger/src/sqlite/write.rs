//! Posting: one transaction for everything that a batch says.

use rusqlite::{CachedStatement, Connection, TransactionBehavior, params};

use weir_domain::ledger::LedgerLine;

use crate::contract::{Change, LedgerError, Posted, first_difference};
use crate::hours::HOUR_MS;

use super::attempts::attempts_text;
use super::rows::{Details, damaged, events_text, source_code, status_code, usage_text};
use super::{read, store_error};

/// A change that is not newer than the row says nothing new: its events were packed and its status was passed.
const PUT_RESERVATION: &str = "
    INSERT INTO reservations (id, tenant, team, key_id, model, fingerprint, hold_requests, hold_tokens, hold_nusd,
        window_day, window_week, window_month, price_version, admitted_at_ms, first_due_ms, owner, details,
        status, status_since_ms, due_ms, held_requests, held_tokens, held_nusd, escalated, flagged, attempts, events,
        log_partition, last_offset)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23,
        ?24, ?25, ?26, ?27, ?28, ?29)
    ON CONFLICT (id) DO UPDATE SET
        status_since_ms = CASE WHEN status = excluded.status THEN status_since_ms ELSE excluded.status_since_ms END,
        status = excluded.status, due_ms = excluded.due_ms,
        held_requests = excluded.held_requests, held_tokens = excluded.held_tokens, held_nusd = excluded.held_nusd,
        escalated = excluded.escalated, flagged = excluded.flagged, attempts = excluded.attempts,
        events = events || excluded.events, last_offset = excluded.last_offset
    WHERE excluded.last_offset > last_offset";

const PUT_LINE: &str = "
    INSERT INTO lines (reservation, attempt, seq, tenant, posted_hour, posted_at_ms, deployment, provider,
        upstream_model, provider_region, price, usage, source, record_requests, record_tokens, record_nusd,
        price_version, served_tier, cause, amount_requests, amount_tokens, amount_nusd, total_requests, total_tokens,
        total_nusd, corrects, flagged, log_partition, log_offset)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23,
        ?24, ?25, ?26, ?27, ?28, ?29)
    ON CONFLICT (reservation, attempt, seq) DO NOTHING";

pub(super) fn post(connection: &mut Connection, changes: &[Change]) -> Result<Posted, LedgerError> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(store_error)?;
    let mut posted = Posted::default();
    {
        let mut put_reservation = transaction.prepare_cached(PUT_RESERVATION).map_err(store_error)?;
        let mut put_line = transaction.prepare_cached(PUT_LINE).map_err(store_error)?;
        for change in changes {
            write_reservation(&mut put_reservation, change)?;
            for line in &change.lines {
                if write_line(&mut put_line, line)? {
                    posted.lines += 1;
                } else {
                    compare(&transaction, line)?;
                    posted.repeated += 1;
                }
            }
        }
    }
    transaction.commit().map_err(store_error)?;
    Ok(posted)
}

fn write_reservation(statement: &mut CachedStatement<'_>, change: &Change) -> Result<(), LedgerError> {
    let reservation = &change.reservation;
    let created = &reservation.created;
    let last = change.last_source().ok_or_else(|| damaged("change", &"it has no event"))?;
    let held = reservation.held();
    let [day, week, month, _] = created.counting.windows.map(|window| window.ordinal);
    statement
        .execute(params![
            created.id.as_bytes(),
            created.tenant.as_str(),
            created.team.as_ref().map(|team| team.as_str()),
            created.key.as_str(),
            created.model.as_str(),
            created.fingerprint,
            created.hold.requests,
            created.hold.tokens,
            created.hold.usd.nanos(),
            day,
            week,
            month,
            created.price_version.as_str(),
            created.admitted_at_ms,
            created.due_ms,
            created.owner,
            Details::text_of(created)?,
            status_code(reservation.status()),
            change.status_since_ms,
            reservation.due_ms,
            held.requests,
            held.tokens,
            held.usd.nanos(),
            reservation.escalated,
            reservation.flagged,
            attempts_text(&reservation.attempts)?,
            events_text(&change.events, created.admitted_at_ms),
            last.partition,
            last.offset,
        ])
        .map_err(store_error)?;
    Ok(())
}

/// Whether the line is new.
fn write_line(statement: &mut CachedStatement<'_>, line: &LedgerLine) -> Result<bool, LedgerError> {
    let (key, record, target) = (line.key, &line.record, line.target.as_deref());
    let price_version = (record.price_version != line.created.price_version).then(|| record.price_version.as_str());
    let inserted = statement
        .execute(params![
            key.reservation.as_bytes(),
            key.attempt,
            key.seq,
            line.created.tenant.as_str(),
            line.posted_at_ms.div_euclid(HOUR_MS),
            line.posted_at_ms,
            target.map(|target| target.deployment.as_str()),
            target.map(|target| target.provider.as_str()),
            target.map(|target| target.upstream_model.as_str()),
            target.map(|target| target.provider_region.as_str()),
            target.map(|target| target.price.as_str()),
            usage_text(&record.usage),
            source_code(record.source),
            record.charge.requests,
            record.charge.tokens,
            record.charge.usd.nanos(),
            price_version,
            record.served_tier,
            record.cause,
            line.amount.requests,
            line.amount.tokens,
            line.amount.usd.nanos(),
            line.total.requests,
            line.total.tokens,
            line.total.usd.nanos(),
            line.corrects,
            line.flagged,
            line.source.partition,
            line.source.offset,
        ])
        .map_err(store_error)?;
    Ok(inserted == 1)
}

/// A key that is taken must hold this very line.
fn compare(connection: &Connection, line: &LedgerLine) -> Result<(), LedgerError> {
    let stored = read::line(connection, line.key)?.ok_or_else(|| damaged("line", &"it is there and is not"))?;
    match first_difference(&stored, line) {
        None => Ok(()),
        Some(field) => Err(LedgerError::Conflict { key: line.key, field }),
    }
}
