//! What is open, by the minute in which its first lease ends.
//!
//! A row's key follows from the admission alone, so that whoever ends a reservation finds every row that anybody may
//! have written of it. Writes carry the log position of their change as their time: an older change neither overwrites
//! a newer one nor brings back what has ended. Those few that came back after an expiry have another due time than
//! their key says; they are kept in lists of their own, which are read whole.
//!
//! The directory of minutes is cleaned by readers. A writer puts its row first and the minute afterwards, with its clock
//! as the write time; a reader that found a minute empty removes only what was written [`GRACE_US`] before. So an entry
//! of a row that the reader could not see yet stays, unless two clocks are ten minutes apart.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use futures_util::future::try_join_all;
use scylla::value::MaybeUnset;
use scylla::{DeserializeRow, SerializeRow};
use uuid::Uuid;

use weir_domain::ids::{ReservationId, TenantId};
use weir_domain::reservation::{Created, ReservationStatus};
use weir_migrations::cql::upserts;

use crate::contract::{Change, LedgerError, OpenPage, OpenReservation, OpenStatus};

use super::known::Entry;
use super::ledger::CqlLedger;
use super::post::by_partition;
use super::stored::{amounts, figures};

const MINUTE_MS: i64 = 60_000;
const GRACE_US: i64 = 10 * 60 * 1_000_000;
/// Rows of one write.
const ROWS_PER_WRITE: usize = 128;

/// A list, as `open_reservations` numbers it.
type List = i8;
const RESERVED: List = 0;
const PENDING: List = 1;
/// Added to the list of a reservation that came back.
const RESUMED: List = 2;

/// A partition: list, minute, partition of the log.
type Place = (List, i32, i32);

/// What a change does to one list.
#[derive(Debug)]
pub(super) struct Move<'a> {
    change: &'a Change,
    list: List,
    log_partition: i32,
    /// The log position as a write time: from 1, because 0 is less than nothing to some servers.
    time: i64,
    is_put: bool,
}

impl<'a> Move<'a> {
    pub fn of(change: &'a Change) -> Vec<Self> {
        let Some(source) = change.last_source() else { return Vec::new() };
        let reservation = &change.reservation;
        let came_back = reservation.resumes > 0;
        let of = |list: List, is_put| Self {
            change,
            list,
            log_partition: source.partition,
            time: source.offset.saturating_add(1),
            is_put,
        };
        let stays_in = match reservation.status() {
            ReservationStatus::Reserved => Some(RESERVED),
            ReservationStatus::PendingReconciliation => Some(PENDING),
            ReservationStatus::Settled | ReservationStatus::Released => None,
        };
        let stays_in = stays_in.map(|list| if came_back { list + RESUMED } else { list });
        // Whoever is reserved and never came back was in no other list.
        if stays_in == Some(RESERVED) {
            return vec![of(RESERVED, true)];
        }
        let lists = if came_back { RESERVED..=PENDING + RESUMED } else { RESERVED..=PENDING };
        lists.map(|list| of(list, stays_in == Some(list))).collect()
    }

    fn created(&self) -> &'a Created {
        &self.change.reservation.created
    }

    fn minute(&self) -> i32 {
        minute_of(self.created().due_ms)
    }

    fn place(&self) -> Place {
        (self.list, self.minute(), self.log_partition)
    }

    fn row(&self) -> PutRow<'_> {
        let (created, reservation) = (self.created(), &self.change.reservation);
        let (list, minute, log_partition) = self.place();
        let (held_requests, held_tokens, held_nusd) = figures(reservation.held());
        PutRow {
            list,
            minute,
            log_partition,
            first_due_ms: created.due_ms,
            reservation: *created.id.uuid(),
            tenant: created.tenant.as_str(),
            due_ms: reservation.due_ms,
            admitted_at_ms: created.admitted_at_ms,
            status_since_ms: self.status_since_ms(),
            held_requests,
            held_tokens,
            held_nusd,
            escalated: reservation.escalated,
            time: self.time,
        }
    }

    /// When its status came, if this change brought it; otherwise the row keeps what it has.
    fn status_since_ms(&self) -> MaybeUnset<i64> {
        let since_ms = self.change.status_since_ms;
        let is_brought = self.change.events.iter().any(|event| event.recorded_at_ms == since_ms);
        if is_brought { MaybeUnset::Set(since_ms) } else { MaybeUnset::Unset }
    }
}

#[derive(Debug, SerializeRow)]
struct PutRow<'a> {
    list: List,
    minute: i32,
    log_partition: i32,
    first_due_ms: i64,
    reservation: Uuid,
    tenant: &'a str,
    due_ms: i64,
    admitted_at_ms: i64,
    status_since_ms: MaybeUnset<i64>,
    held_requests: i64,
    held_tokens: i64,
    held_nusd: i64,
    escalated: bool,
    #[scylla(rename = "[timestamp]")]
    time: i64,
}

#[derive(Debug, DeserializeRow)]
struct OpenRow {
    reservation: Uuid,
    tenant: String,
    due_ms: i64,
    admitted_at_ms: i64,
    status_since_ms: Option<i64>,
    held_requests: i64,
    held_tokens: i64,
    held_nusd: i64,
    escalated: bool,
}

impl CqlLedger {
    pub(super) async fn move_open(&self, moves: Vec<Move<'_>>) -> Result<(), LedgerError> {
        let (puts, deletes): (Vec<_>, Vec<_>) = moves.into_iter().partition(|one| one.is_put);
        let puts = by_partition(puts.into_iter().map(|one| (one.place(), one)));
        let deletes = by_partition(deletes.into_iter().map(|one| (one.place(), one)));
        let put = puts.iter().map(|(place, moves)| self.put_open(*place, moves));
        let delete = deletes.values().map(|moves| self.delete_open(moves));
        futures_util::try_join!(try_join_all(put), try_join_all(delete))?;
        Ok(())
    }

    async fn put_open(&self, place: Place, moves: &[Move<'_>]) -> Result<(), LedgerError> {
        for moves in moves.chunks(ROWS_PER_WRITE) {
            let rows: Vec<PutRow<'_>> = moves.iter().map(Move::row).collect();
            self.cql.execute_together(&upserts(&self.statements.open.put_open, rows.len()), &rows[..]).await?;
        }
        self.put_open_minute(place).await
    }

    async fn delete_open(&self, moves: &[Move<'_>]) -> Result<(), LedgerError> {
        let key = |one: &Move<'_>| {
            let (created, (list, minute, log_partition)) = (one.created(), one.place());
            (one.time, list, minute, log_partition, created.due_ms, *created.id.uuid())
        };
        for moves in moves.chunks(ROWS_PER_WRITE) {
            let rows: Vec<_> = moves.iter().map(key).collect();
            self.cql.execute_together(&upserts(&self.statements.open.delete_open, rows.len()), &rows[..]).await?;
        }
        Ok(())
    }

    /// After the rows, never before them.
    async fn put_open_minute(&self, (list, minute, log_partition): Place) -> Result<(), LedgerError> {
        let now_ms = self.clock.now_ms();
        let of_minute = Entry::OpenMinute { list, log_partition, minute };
        if self.known.has(&of_minute, now_ms) {
            return Ok(());
        }
        let of_partition = Entry::LogPartition(log_partition);
        if !self.known.has(&of_partition, now_ms) {
            self.cql.execute(&self.statements.open.put_log_partition, (0_i8, log_partition)).await?;
            self.known.add(of_partition, now_ms);
        }
        let values = (list, log_partition, minute, self.clock.now_us());
        self.cql.execute(&self.statements.open.put_open_minute, values).await?;
        self.known.add(of_minute, now_ms);
        Ok(())
    }

    pub(super) async fn page_of_open(&self, page: &OpenPage) -> Result<Vec<OpenReservation>, LedgerError> {
        let list = match page.status {
            OpenStatus::Reserved => RESERVED,
            OpenStatus::PendingReconciliation => PENDING,
        };
        let mut came_back: BTreeMap<(i64, ReservationId), OpenReservation> = BTreeMap::new();
        for (minute, log_partition) in self.minutes(list + RESUMED, i32::MIN).await? {
            self.read_minute((list + RESUMED, minute, log_partition), page, &mut came_back).await?;
        }
        let first = page.after.map_or(i32::MIN, |(due_ms, _)| minute_of(due_ms));
        let minutes = self.minutes(list, first).await?;
        let mut found = Vec::new();
        let mut by_minute: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
        for (minute, log_partition) in minutes {
            by_minute.entry(minute).or_default().push(log_partition);
        }
        for (minute, log_partitions) in by_minute {
            let ends_ms = i64::from(minute).saturating_add(1).saturating_mul(MINUTE_MS);
            let later = came_back.split_off(&(ends_ms, ReservationId::from_bytes([0; 16])));
            let mut of_minute = std::mem::replace(&mut came_back, later);
            for log_partition in log_partitions {
                self.read_minute((list, minute, log_partition), page, &mut of_minute).await?;
            }
            found.extend(of_minute.into_values());
            if found.len() >= page.most {
                break;
            }
        }
        if found.len() < page.most {
            found.extend(came_back.into_values());
        }
        found.truncate(page.most);
        Ok(found)
    }

    /// Minutes with something in them, as far as the directory knows.
    async fn minutes(&self, list: List, from: i32) -> Result<BTreeSet<(i32, i32)>, LedgerError> {
        let log_partitions: Vec<(i32,)> = self.cql.rows(&self.statements.open.log_partitions, ()).await?;
        let mut minutes = BTreeSet::new();
        for (log_partition,) in log_partitions {
            let values = (list, log_partition, from);
            let of_partition: Vec<(i32,)> = self.cql.rows(&self.statements.open.open_minutes, values).await?;
            minutes.extend(of_partition.into_iter().map(|(minute,)| (minute, log_partition)));
        }
        Ok(minutes)
    }

    /// Adds what the page asks for of one partition, the earliest of it if there is more than the page takes.
    async fn read_minute(
        &self,
        place: Place,
        page: &OpenPage,
        found: &mut BTreeMap<(i64, ReservationId), OpenReservation>,
    ) -> Result<(), LedgerError> {
        let mut is_empty = true;
        let status = match page.status {
            OpenStatus::Reserved => ReservationStatus::Reserved,
            OpenStatus::PendingReconciliation => ReservationStatus::PendingReconciliation,
        };
        let take = |row: OpenRow| {
            is_empty = false;
            let id = ReservationId::new(row.reservation);
            let order = (row.due_ms, id);
            let is_asked = page.after.is_none_or(|after| order > after)
                && page.tenant.as_ref().is_none_or(|tenant| tenant.as_str() == row.tenant);
            if is_asked {
                found.insert(order, row.open(id, status));
            }
            Ok::<_, LedgerError>(ControlFlow::Continue(()))
        };
        self.cql.pages(&self.statements.open.open_of_minute, place, take).await?;
        if is_empty {
            self.forget_minute(place).await?;
        }
        Ok(())
    }

    async fn forget_minute(&self, (list, minute, log_partition): Place) -> Result<(), LedgerError> {
        let time = self.clock.now_us().saturating_sub(GRACE_US);
        let values = (time, list, log_partition, minute);
        self.cql.execute(&self.statements.open.delete_open_minute, values).await?;
        Ok(())
    }
}

impl OpenRow {
    fn open(self, id: ReservationId, status: ReservationStatus) -> OpenReservation {
        OpenReservation {
            id,
            tenant: TenantId::from(self.tenant),
            status,
            status_since_ms: self.status_since_ms.unwrap_or(self.admitted_at_ms),
            due_ms: self.due_ms,
            held: amounts((self.held_requests, self.held_tokens, self.held_nusd)),
            escalated: self.escalated,
        }
    }
}

fn minute_of(due_ms: i64) -> i32 {
    super::lines::clamped(due_ms.div_euclid(MINUTE_MS))
}
