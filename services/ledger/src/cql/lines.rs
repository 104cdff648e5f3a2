//! The query tables of lines: who is asked for what, and how a row comes into its partition.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::try_join_all;
use scylla::SerializeRow;
use scylla::statement::prepared::PreparedStatement;
use uuid::Uuid;

use weir_domain::calendar::{Window, WindowKind};
use weir_domain::ids::{KeyId, ModelName, TeamId};
use weir_domain::ledger::LedgerLine;
use weir_domain::quota::{Counting, Scope, Subject};
use weir_domain::reservation::Created;
use weir_migrations::cql::upserts;

use crate::contract::LedgerError;
use crate::hours::HOUR_MS;

use super::known::Entry;
use super::ledger::CqlLedger;
use super::post::Written;
use super::stored::{figures, parsed, text};

/// Bits of a log offset that one partition of `lines_by_hour` spans.
const HOUR_BLOCK_BITS: u32 = 16;
/// The same of `lines_by_key` and `lines_by_model`, whose rows are small.
const TALLY_BLOCK_BITS: u32 = 20;
/// Rows of one write, some 90 KB and 40 KB: below what servers warn of (ScyllaDB at 128 KiB).
const HOUR_ROWS_PER_WRITE: usize = 64;
const TALLY_ROWS_PER_WRITE: usize = 256;
const HOURS_PER_DAY: i32 = 24;

/// What every query table says of a line.
#[derive(Debug, Clone, SerializeRow)]
struct Facts<'a> {
    tenant: &'a str,
    log_partition: i32,
    log_offset: i64,
    reservation: Uuid,
    attempt: i32,
    seq: i64,
    team: Option<&'a str>,
    key_id: &'a str,
    model: &'a str,
    window_day: i32,
    window_week: i32,
    window_month: i32,
    counting: Option<String>,
    requests: i64,
    tokens: i64,
    nusd: i64,
}

#[derive(Debug, SerializeRow)]
struct HourRow<'a> {
    #[scylla(flatten)]
    facts: Facts<'a>,
    hour: i32,
    block: i64,
    posted_at_ms: i64,
    created: &'a str,
    line: &'a str,
}

#[derive(Debug, SerializeRow)]
struct TallyRow<'a> {
    #[scylla(flatten)]
    facts: Facts<'a>,
    day: i32,
    block: i64,
}

/// The rows of one `post`, by table and partition.
#[derive(Debug, Default)]
pub(super) struct LineRows<'a> {
    by_hour: BTreeMap<(&'a str, i32, i32, i64), Vec<HourRow<'a>>>,
    by_key: BTreeMap<(&'a str, &'a str, i32, i32, i64), Vec<TallyRow<'a>>>,
    by_model: BTreeMap<(&'a str, &'a str, i32, i32, i64), Vec<TallyRow<'a>>>,
    directory: BTreeSet<(&'a str, i32, i32, i64)>,
}

impl<'a> LineRows<'a> {
    pub fn add(&mut self, written: &'a Written<'a>) -> Result<(), LedgerError> {
        for (line, line_text) in written.change.lines.iter().zip(&written.lines) {
            let facts = facts(line)?;
            let (hour, partition) = (hour_of(line.posted_at_ms), line.source.partition);
            let day = day_of(hour);
            let block = line.source.offset >> HOUR_BLOCK_BITS;
            let row = HourRow {
                facts: facts.clone(),
                hour,
                block,
                posted_at_ms: line.posted_at_ms,
                created: &written.created,
                line: line_text,
            };
            self.by_hour.entry((facts.tenant, hour, partition, block)).or_default().push(row);
            self.directory.insert((facts.tenant, hour, partition, block));
            let block = tally_block(block);
            let row = || TallyRow { facts: facts.clone(), day, block };
            self.by_key.entry((facts.tenant, facts.key_id, day, partition, block)).or_default().push(row());
            self.by_model.entry((facts.tenant, facts.model, day, partition, block)).or_default().push(row());
        }
        Ok(())
    }
}

fn facts(line: &LedgerLine) -> Result<Facts<'_>, LedgerError> {
    let created = &*line.created;
    let [day, week, month, _] = created.counting.windows.map(|window| window.ordinal);
    let is_usual = created.counting == usual_counting(created, [day, week, month]);
    let (requests, tokens, nusd) = figures(line.amount);
    Ok(Facts {
        tenant: created.tenant.as_str(),
        log_partition: line.source.partition,
        log_offset: line.source.offset,
        reservation: *line.key.reservation.uuid(),
        attempt: line.key.attempt.into(),
        seq: line.key.seq.into(),
        team: created.team.as_ref().map(TeamId::as_str),
        key_id: created.key.as_str(),
        model: created.model.as_str(),
        window_day: day,
        window_week: week,
        window_month: month,
        counting: if is_usual { None } else { Some(text("counting", &created.counting)?) },
        requests,
        tokens,
        nusd,
    })
}

fn usual_counting(created: &Created, ordinals: [i32; 3]) -> Counting {
    let scopes = Scope::of_request(created.team.as_ref(), &created.key, &created.model);
    Counting { scopes, windows: usual_windows(ordinals) }
}

fn usual_windows([day, week, month]: [i32; 3]) -> [Window; 4] {
    [
        Window { kind: WindowKind::Day, ordinal: day },
        Window { kind: WindowKind::Week, ordinal: week },
        Window { kind: WindowKind::Month, ordinal: month },
        Window::TOTAL,
    ]
}

/// On which counters a stored line counts.
#[derive(Debug)]
pub(super) struct Counts {
    pub team: Option<TeamId>,
    pub key: KeyId,
    pub model: ModelName,
    pub ordinals: [i32; 3],
    /// Where it is not what the columns make of it.
    pub counting: Option<String>,
}

impl Counts {
    pub fn are_on(&self, scope: Option<&Scope>, window: Option<Window>) -> Result<bool, LedgerError> {
        if let Some(counting) = &self.counting {
            let counting: Counting = parsed("counting", counting)?;
            return Ok(scope.is_none_or(|scope| counting.scopes.contains(scope))
                && window.is_none_or(|window| counting.windows.contains(&window)));
        }
        let is_in_window = window.is_none_or(|window| usual_windows(self.ordinals).contains(&window));
        let is_in_scope = scope.is_none_or(|scope| {
            let is_subject = match &scope.subject {
                Subject::Tenant => true,
                Subject::Team(team) => self.team.as_ref() == Some(team),
                Subject::Key(key) => &self.key == key,
            };
            is_subject && scope.model.as_ref().is_none_or(|model| &self.model == model)
        });
        Ok(is_in_window && is_in_scope)
    }
}

impl CqlLedger {
    /// Rows and the directory that leads to them; complete when it returns.
    pub(super) async fn put_lines(&self, rows: LineRows<'_>) -> Result<(), LedgerError> {
        let LineRows { by_hour, by_key, by_model, directory } = rows;
        let statements = &self.statements;
        let by_hour =
            by_hour.values().map(|rows| self.put_together(&statements.lines.put_by_hour, HOUR_ROWS_PER_WRITE, rows));
        let by_key =
            by_key.values().map(|rows| self.put_together(&statements.lines.put_by_key, TALLY_ROWS_PER_WRITE, rows));
        let by_model =
            by_model.values().map(|rows| self.put_together(&statements.lines.put_by_model, TALLY_ROWS_PER_WRITE, rows));
        let directory = directory.into_iter().map(|entry| self.put_in_directory(entry));
        futures_util::try_join!(
            try_join_all(by_hour),
            try_join_all(by_key),
            try_join_all(by_model),
            try_join_all(directory)
        )?;
        Ok(())
    }

    /// One write after the other: several at once into one partition only get into each other's way, until they time out.
    async fn put_together<R: scylla::serialize::row::SerializeRow>(
        &self,
        statement: &PreparedStatement,
        rows_per_write: usize,
        rows: &[R],
    ) -> Result<(), LedgerError> {
        for rows in rows.chunks(rows_per_write) {
            self.cql.execute_together(&upserts(statement, rows.len()), rows).await?;
        }
        Ok(())
    }

    async fn put_in_directory(&self, entry: (&str, i32, i32, i64)) -> Result<(), LedgerError> {
        let (tenant, hour, log_partition, block) = entry;
        let (day, now_ms) = (day_of(hour), self.clock.now_ms());
        let of_block = Entry::TenantBlock { tenant: tenant.to_owned(), hour, log_partition, block };
        if self.known.has(&of_block, now_ms) {
            return Ok(());
        }
        let of_day = Entry::TenantDay { tenant: tenant.to_owned(), day };
        if !self.known.has(&of_day, now_ms) {
            self.cql.execute(&self.statements.lines.put_tenant_day, (tenant, day)).await?;
            self.known.add(of_day, now_ms);
        }
        self.cql.execute(&self.statements.lines.put_tenant_block, (tenant, day, hour, log_partition, block)).await?;
        self.known.add(of_block, now_ms);
        Ok(())
    }
}

pub(super) fn hour_of(posted_at_ms: i64) -> i32 {
    clamped(posted_at_ms.div_euclid(HOUR_MS))
}

pub(super) const fn day_of(hour: i32) -> i32 {
    hour.div_euclid(HOURS_PER_DAY)
}

/// The block of the small tables that holds a block of `lines_by_hour`.
pub(super) const fn tally_block(block: i64) -> i64 {
    block >> (TALLY_BLOCK_BITS - HOUR_BLOCK_BITS)
}

/// Hours and days beyond 245,000 years stand at the end.
pub(super) fn clamped(number: i64) -> i32 {
    i32::try_from(number).unwrap_or(if number < 0 { i32::MIN } else { i32::MAX })
}
