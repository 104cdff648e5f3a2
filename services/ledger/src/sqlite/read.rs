//! Reading: point look-ups by reservation, and pages that seek.

use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension as _, Row, params};

use weir_domain::calendar::Window;
use weir_domain::ids::{ReservationId, TenantId};
use weir_domain::ledger::{LedgerLine, LineKey};
use weir_domain::money::{Amounts, Charge};
use weir_domain::quota::Scope;
use weir_domain::reservation::Created;

use crate::contract::{Count, LedgerError, LinePage, OpenPage, OpenReservation, OpenStatus, StoredReservation};
use crate::hours::{HOUR_MS, first_hour};

use super::attempts::read_attempts;
use super::rows::{
    CREATED_COLUMNS, CREATED_WIDTH, Columns, LINE_COLUMNS, read_created, read_events, read_line, status_of,
};
use super::store_error;

pub(super) fn line(connection: &Connection, key: LineKey) -> Result<Option<LedgerLine>, LedgerError> {
    let sql = format!(
        "SELECT {CREATED_COLUMNS}, {LINE_COLUMNS} FROM lines l JOIN reservations r ON r.id = l.reservation
         WHERE l.reservation = ?1 AND l.attempt = ?2 AND l.seq = ?3"
    );
    let mut statement = connection.prepare_cached(&sql).map_err(store_error)?;
    let mut rows = statement.query(params![key.reservation.as_bytes(), key.attempt, key.seq]).map_err(store_error)?;
    rows.next().map_err(store_error)?.map(joined_line).transpose()
}

fn joined_line(row: &Row<'_>) -> Result<LedgerLine, LedgerError> {
    let created = Arc::new(read_created(row, 0)?);
    read_line(row, CREATED_WIDTH, &created)
}

pub(super) fn find(connection: &Connection, id: ReservationId) -> Result<Option<StoredReservation>, LedgerError> {
    let sql = format!(
        "SELECT {CREATED_COLUMNS}, r.status, r.status_since_ms, r.due_ms, r.held_requests, r.held_tokens, r.held_nusd,
             r.escalated, r.flagged, r.attempts, r.events, r.log_partition
         FROM reservations r WHERE r.id = ?1"
    );
    let mut statement = connection.prepare_cached(&sql).map_err(store_error)?;
    let mut rows = statement.query(params![id.as_bytes()]).map_err(store_error)?;
    let Some(row) = rows.next().map_err(store_error)? else { return Ok(None) };
    let created = Arc::new(read_created(row, 0)?);
    let mut columns = Columns::new(row, CREATED_WIDTH, "reservation");
    let status = status_of(columns.next()?)?;
    let (status_since_ms, due_ms) = (columns.next()?, columns.next()?);
    let held = columns.amounts()?;
    let (escalated, flagged) = (columns.next()?, columns.next()?);
    let attempts = read_attempts(&columns.next::<String>()?)?;
    let events = columns.next::<String>()?;
    let events = read_events(&events, columns.next()?, created.admitted_at_ms)?;
    let lines = lines_of(connection, &created)?;
    Ok(Some(StoredReservation {
        created,
        status,
        status_since_ms,
        due_ms,
        held,
        escalated,
        flagged,
        attempts,
        events,
        lines,
    }))
}

fn lines_of(connection: &Connection, created: &Arc<Created>) -> Result<Vec<LedgerLine>, LedgerError> {
    let sql = format!("SELECT {LINE_COLUMNS} FROM lines l WHERE l.reservation = ?1 ORDER BY l.attempt, l.seq");
    let mut statement = connection.prepare_cached(&sql).map_err(store_error)?;
    let mut rows = statement.query(params![created.id.as_bytes()]).map_err(store_error)?;
    let mut lines = Vec::new();
    while let Some(row) = rows.next().map_err(store_error)? {
        lines.push(read_line(row, 0, created)?);
    }
    Ok(lines)
}

/// The first hour from `hour` on in which any line was posted.
fn hour_with_lines(connection: &Connection, hour: i64) -> Result<Option<i64>, LedgerError> {
    let mut statement = connection
        .prepare_cached("SELECT posted_hour FROM lines WHERE posted_hour >= ?1 ORDER BY posted_hour LIMIT 1")
        .map_err(store_error)?;
    statement.query_row([hour], |row| row.get(0)).optional().map_err(store_error)
}

/// Two seeks per hour, so that a tenant's month costs the same whether it has one line a day or ten thousand.
pub(super) fn lines(connection: &Connection, page: &LinePage) -> Result<Vec<LedgerLine>, LedgerError> {
    let sql = format!(
        "SELECT {CREATED_COLUMNS}, {LINE_COLUMNS} FROM lines l JOIN reservations r ON r.id = l.reservation
         WHERE l.posted_hour = ?1 AND l.tenant = ?2 AND l.posted_at_ms >= ?3 AND l.posted_at_ms < ?4
             AND (l.posted_at_ms, l.log_partition, l.log_offset) > (?5, ?6, ?7)
         ORDER BY l.posted_at_ms, l.log_partition, l.log_offset LIMIT ?8"
    );
    let mut statement = connection.prepare_cached(&sql).map_err(store_error)?;
    let after = page.after.map_or((i64::MIN, 0, 0), |a| (a.posted_at_ms, a.source.partition, a.source.offset));
    let from_ms = page.from_ms.max(after.0);
    let last_hour = page.until_ms.div_euclid(HOUR_MS);
    let mut from_hour = from_ms.div_euclid(HOUR_MS);
    let mut lines = Vec::new();
    while let Some(hour) = hour_with_lines(connection, from_hour)?.filter(|hour| *hour <= last_hour) {
        from_hour = hour + 1;
        let most = i64::try_from(page.most - lines.len()).unwrap_or(i64::MAX);
        let tenant = page.tenant.as_str();
        let mut rows = statement
            .query(params![hour, tenant, from_ms, page.until_ms, after.0, after.1, after.2, most])
            .map_err(store_error)?;
        while let Some(row) = rows.next().map_err(store_error)? {
            lines.push(joined_line(row)?);
        }
        if lines.len() >= page.most {
            break;
        }
    }
    Ok(lines)
}

pub(super) fn totals(
    connection: &Connection,
    tenant: &TenantId,
    scope: Option<&Scope>,
    window: Option<Window>,
) -> Result<Charge, LedgerError> {
    let sql = format!(
        "SELECT {CREATED_COLUMNS}, l.amount_requests, l.amount_tokens, l.amount_nusd
         FROM lines l JOIN reservations r ON r.id = l.reservation WHERE l.posted_hour = ?1 AND l.tenant = ?2"
    );
    let mut statement = connection.prepare_cached(&sql).map_err(store_error)?;
    let mut total = Amounts::ZERO;
    let mut from_hour = window.map_or(i64::MIN, first_hour);
    while let Some(hour) = hour_with_lines(connection, from_hour)? {
        from_hour = hour + 1;
        let mut rows = statement.query(params![hour, tenant.as_str()]).map_err(store_error)?;
        while let Some(row) = rows.next().map_err(store_error)? {
            let counting = read_created(row, 0)?.counting;
            let is_counted = scope.is_none_or(|scope| counting.scopes.contains(scope))
                && window.is_none_or(|window| counting.windows.contains(&window));
            if is_counted {
                total += Columns::new(row, CREATED_WIDTH, "line").amounts()?;
            }
        }
    }
    Ok(total)
}

pub(super) fn open(connection: &Connection, page: &OpenPage) -> Result<Vec<OpenReservation>, LedgerError> {
    // The range of statuses is a constant, or SQLite would not see that the partial index covers it.
    let status = match page.status {
        OpenStatus::Reserved => "status = 0",
        OpenStatus::PendingReconciliation => "status = 1",
    };
    let sql = format!(
        "SELECT id, tenant, status, status_since_ms, due_ms, held_requests, held_tokens, held_nusd, escalated
         FROM reservations WHERE {status} AND (?1 IS NULL OR tenant = ?1) AND (due_ms, id) > (?2, ?3)
         ORDER BY due_ms, id LIMIT ?4"
    );
    let mut statement = connection.prepare_cached(&sql).map_err(store_error)?;
    let (due_ms, id) = page.after.unwrap_or((i64::MIN, ReservationId::from_bytes([0; 16])));
    let most = i64::try_from(page.most).unwrap_or(i64::MAX);
    let tenant = page.tenant.as_ref().map(TenantId::as_str);
    let mut rows = statement.query(params![tenant, due_ms, id.as_bytes(), most]).map_err(store_error)?;
    let mut found = Vec::new();
    while let Some(row) = rows.next().map_err(store_error)? {
        let mut columns = Columns::new(row, 0, "reservation");
        found.push(OpenReservation {
            id: columns.id()?,
            tenant: TenantId::from(columns.next::<String>()?),
            status: status_of(columns.next()?)?,
            status_since_ms: columns.next()?,
            due_ms: columns.next()?,
            held: columns.amounts()?,
            escalated: columns.next()?,
        });
    }
    Ok(found)
}

pub(super) fn count(connection: &Connection) -> Result<Count, LedgerError> {
    let sql = "SELECT (SELECT count(*) FROM reservations), count(*), coalesce(sum(amount_requests), 0),
                   coalesce(sum(amount_tokens), 0), coalesce(sum(amount_nusd), 0) FROM lines";
    let mut statement = connection.prepare_cached(sql).map_err(store_error)?;
    let counted = statement
        .query_row([], |row| {
            let mut columns = Columns::new(row, 2, "line");
            Ok((row.get(0)?, row.get(1)?, columns.amounts()))
        })
        .optional()
        .map_err(store_error)?;
    let Some((reservations, lines, charged)) = counted else { return Ok(Count::default()) };
    Ok(Count { reservations, lines, charged: charged? })
}
