//! Reading: one partition for a reservation; for a tenant, the directory first and then only what it names.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::ControlFlow;
use std::sync::Arc;

use scylla::DeserializeRow;
use scylla::statement::prepared::PreparedStatement;
use uuid::Uuid;

use weir_domain::calendar::Window;
use weir_domain::ids::{KeyId, ModelName, ReservationId, TeamId, TenantId};
use weir_domain::ledger::{LedgerLine, LineKey};
use weir_domain::money::{Amounts, Charge};
use weir_domain::quota::{Scope, Subject};
use weir_domain::reservation::Created;

use crate::contract::{Count, LedgerError, LinePage, StoredReservation};
use crate::hours::first_hour;

use super::ledger::CqlLedger;
use super::lines::{Counts, clamped, day_of, hour_of, tally_block};
use super::stored::{StoredChange, StoredLine, amounts, damaged, parsed};

#[derive(Debug, DeserializeRow)]
struct Row {
    attempt: i32,
    seq: i64,
    cut: i64,
    created: Option<String>,
    change: Option<String>,
    line: Option<String>,
    requests: Option<i64>,
    tokens: Option<i64>,
    nusd: Option<i64>,
}

#[derive(Debug, DeserializeRow)]
struct SumRow {
    team: Option<String>,
    key_id: String,
    model: String,
    window_day: i32,
    window_week: i32,
    window_month: i32,
    counting: Option<String>,
    requests: i64,
    tokens: i64,
    nusd: i64,
}

#[derive(Debug, DeserializeRow)]
struct LineRow {
    posted_at_ms: i64,
    log_offset: i64,
    attempt: i32,
    seq: i64,
    requests: i64,
    tokens: i64,
    nusd: i64,
    created: String,
    line: String,
}

/// Where lines of one day are: an hour, a partition of the log, a block of it.
type Place = (i32, i32, i64);

impl CqlLedger {
    pub(super) async fn find_reservation(&self, id: ReservationId) -> Result<Option<StoredReservation>, LedgerError> {
        let rows: Vec<Row> = self.cql.rows(&self.statements.reservations.rows_of_reservation, (id.uuid(),)).await?;
        let Some(created) = rows.iter().find_map(|row| row.created.as_deref()) else { return Ok(None) };
        let created: Arc<Created> = Arc::new(parsed("reservation", created)?);
        let mut lines = Vec::new();
        let mut history: BTreeMap<(i64, i64), StoredChange> = BTreeMap::new();
        for row in &rows {
            if let Some(change) = &row.change {
                history.insert((row.seq, row.cut), parsed("change", change)?);
            }
            if let Some(line) = &row.line {
                let key = line_key(id, row.attempt, row.seq)?;
                let amount = (row.requests.unwrap_or(0), row.tokens.unwrap_or(0), row.nusd.unwrap_or(0));
                lines.push(parsed::<StoredLine>("line", line)?.line(key, amounts(amount), &created)?);
            }
        }
        let status_since_ms = since(history.values());
        let mut events: Vec<_> = history.values().flat_map(StoredChange::events).collect();
        events.sort_unstable();
        events.dedup();
        // A line whose change is not there yet: the builder is between the two.
        let Some((_, newest)) = history.pop_last() else { return Ok(None) };
        Ok(Some(StoredReservation {
            status: newest.status,
            status_since_ms: status_since_ms.unwrap_or(created.admitted_at_ms),
            due_ms: newest.due_ms,
            held: newest.held(),
            escalated: newest.escalated,
            flagged: newest.flagged,
            attempts: newest.attempts,
            events,
            lines,
            created,
        }))
    }

    pub(super) async fn sum(
        &self,
        tenant: &TenantId,
        scope: Option<&Scope>,
        window: Option<Window>,
    ) -> Result<Charge, LedgerError> {
        let from = window.map_or(i32::MIN, |window| day_of(clamped(first_hour(window))));
        let mut sum = Summing { scope, window, total: Amounts::ZERO };
        for day in self.days(tenant, from, i32::MAX).await? {
            let places = self.places(tenant, day).await?;
            let tallies: BTreeSet<(i32, i64)> =
                places.iter().map(|(_, partition, block)| (*partition, tally_block(*block))).collect();
            let statements = &self.statements;
            match scope {
                Some(Scope { subject: Subject::Key(key), .. }) => {
                    self.sum_tallies(&statements.lines.sums_by_key, (tenant, key.as_str(), day), &tallies, &mut sum)
                        .await?;
                }
                Some(Scope { model: Some(model), .. }) => {
                    let of = (tenant, model.as_str(), day);
                    self.sum_tallies(&statements.lines.sums_by_model, of, &tallies, &mut sum).await?;
                }
                Some(Scope { subject: Subject::Tenant | Subject::Team(_), model: None }) | None => {
                    for (hour, partition, block) in places {
                        let of = (tenant.as_str(), hour, partition, block);
                        let take = |row| sum.take(row);
                        self.cql.pages::<SumRow, LedgerError>(&statements.lines.sums_by_hour, of, take).await?;
                    }
                }
            }
        }
        Ok(sum.total)
    }

    async fn sum_tallies(
        &self,
        statement: &PreparedStatement,
        (tenant, name, day): (&TenantId, &str, i32),
        tallies: &BTreeSet<(i32, i64)>,
        sum: &mut Summing<'_>,
    ) -> Result<(), LedgerError> {
        for (partition, block) in tallies {
            let of = (tenant.as_str(), name, day, *partition, *block);
            self.cql.pages::<SumRow, LedgerError>(statement, of, |row| sum.take(row)).await?;
        }
        Ok(())
    }

    pub(super) async fn page_of_lines(&self, page: &LinePage) -> Result<Vec<LedgerLine>, LedgerError> {
        let from_ms = page.after.map_or(page.from_ms, |after| page.from_ms.max(after.posted_at_ms));
        let (first, last) = (hour_of(from_ms), hour_of(page.until_ms));
        let mut lines = Vec::new();
        for day in self.days(&page.tenant, day_of(first), day_of(last)).await? {
            let mut hours: BTreeMap<i32, Vec<Place>> = BTreeMap::new();
            for place in self.places(&page.tenant, day).await? {
                hours.entry(place.0).or_default().push(place);
            }
            for (_, places) in hours.range(first..=last) {
                if lines.len() >= page.most {
                    return Ok(lines);
                }
                self.merge(page, places, &mut lines).await?;
            }
        }
        Ok(lines)
    }

    /// The lines of one hour, from all its partitions in one order. Each is read as far as it is needed.
    async fn merge(&self, page: &LinePage, places: &[Place], lines: &mut Vec<LedgerLine>) -> Result<(), LedgerError> {
        let most = page.most - lines.len();
        let mut sources: Vec<Source> = places.iter().map(|place| Source::new(*place, page, most)).collect();
        while lines.len() < page.most {
            let mut earliest: Option<((i64, i32, i64), usize)> = None;
            for (at, source) in sources.iter_mut().enumerate() {
                if source.read.is_empty() && !source.is_done {
                    self.refill(page, source).await?;
                }
                let Some(next) = source.read.front() else { continue };
                let order = (next.posted_at_ms, source.place.1, next.log_offset);
                if earliest.is_none_or(|(known, _)| order < known) {
                    earliest = Some((order, at));
                }
            }
            let Some(row) = earliest.and_then(|(_, at)| sources[at].read.pop_front()) else { return Ok(()) };
            lines.push(row.line()?);
        }
        Ok(())
    }

    async fn refill(&self, page: &LinePage, source: &mut Source) -> Result<(), LedgerError> {
        let (hour, partition, block) = source.place;
        let (after, limit) = (source.after, source.limit);
        let until = (page.until_ms, i64::MIN);
        let values = (page.tenant.as_str(), hour, partition, block, after.0, after.1, until.0, until.1, limit);
        source.read = self.cql.rows::<LineRow>(&self.statements.lines.lines_of_hour, values).await?.into();
        source.is_done = source.read.len() < usize::try_from(limit).unwrap_or(usize::MAX);
        if let Some(last) = source.read.back() {
            source.after = (last.posted_at_ms, last.log_offset);
        }
        Ok(())
    }

    async fn days(&self, tenant: &TenantId, from: i32, until: i32) -> Result<Vec<i32>, LedgerError> {
        let days: Vec<(i32,)> =
            self.cql.rows(&self.statements.lines.tenant_days, (tenant.as_str(), from, until)).await?;
        Ok(days.into_iter().map(|(day,)| day).collect())
    }

    async fn places(&self, tenant: &TenantId, day: i32) -> Result<Vec<Place>, LedgerError> {
        Ok(self.cql.rows(&self.statements.lines.tenant_blocks, (tenant.as_str(), day)).await?)
    }

    /// A scan of the whole table, in pages. Only a verification at rest asks for it.
    pub(super) async fn count_rows(&self) -> Result<Count, LedgerError> {
        type Found = (Uuid, i32, Option<i64>, Option<i64>, Option<i64>);
        let mut count = Count::default();
        let mut last = None;
        let take = |(id, attempt, requests, tokens, nanos): Found| {
            count.reservations += u64::from(last.replace(id) != Some(id));
            if attempt > 0 {
                count.lines += 1;
                count.charged += amounts((requests.unwrap_or(0), tokens.unwrap_or(0), nanos.unwrap_or(0)));
            }
            Ok::<_, LedgerError>(ControlFlow::Continue(()))
        };
        self.cql.pages(&self.statements.reservations.all_rows, (), take).await?;
        Ok(count)
    }
}

/// When the newest status came: by the first of the changes, at the end of the history, that have it.
fn since<'a>(history: impl Iterator<Item = &'a StoredChange>) -> Option<i64> {
    let mut current = None;
    for change in history {
        if current.is_none_or(|(status, _)| status != change.status) {
            current = Some((change.status, change.status_since_ms));
        }
    }
    current.map(|(_, since_ms)| since_ms)
}

fn line_key(reservation: ReservationId, attempt: i32, seq: i64) -> Result<LineKey, LedgerError> {
    let attempt = attempt.try_into().map_err(|error| damaged("line", &error))?;
    let seq = seq.try_into().map_err(|error| damaged("line", &error))?;
    Ok(LineKey { reservation, attempt, seq })
}

struct Summing<'a> {
    scope: Option<&'a Scope>,
    window: Option<Window>,
    total: Amounts,
}

impl Summing<'_> {
    fn take(&mut self, row: SumRow) -> Result<ControlFlow<()>, LedgerError> {
        let amount = amounts((row.requests, row.tokens, row.nusd));
        let counts = Counts {
            team: row.team.map(TeamId::from),
            key: KeyId::from(row.key_id),
            model: ModelName::from(row.model),
            ordinals: [row.window_day, row.window_week, row.window_month],
            counting: row.counting,
        };
        if counts.are_on(self.scope, self.window)? {
            self.total += amount;
        }
        Ok(ControlFlow::Continue(()))
    }
}

/// One partition of an hour, as far as it is read.
struct Source {
    place: Place,
    read: VecDeque<LineRow>,
    /// Behind which row the next read begins.
    after: (i64, i64),
    limit: i32,
    is_done: bool,
}

/// Rows of one read at least and at most.
const READ_ROWS: std::ops::RangeInclusive<usize> = 16..=1000;

impl Source {
    fn new(place: Place, page: &LinePage, most: usize) -> Self {
        let from = (page.from_ms.saturating_sub(1), i64::MAX);
        let after = page.after.map_or(from, |after| {
            // Within one instant, partitions follow each other.
            let offset = match place.1.cmp(&after.source.partition) {
                std::cmp::Ordering::Less => i64::MAX,
                std::cmp::Ordering::Equal => after.source.offset,
                std::cmp::Ordering::Greater => -1,
            };
            from.max((after.posted_at_ms, offset))
        });
        let limit = most.clamp(*READ_ROWS.start(), *READ_ROWS.end());
        let limit = i32::try_from(limit).unwrap_or(i32::MAX);
        Self { place, read: VecDeque::new(), after, limit, is_done: false }
    }
}

impl LineRow {
    fn line(self) -> Result<LedgerLine, LedgerError> {
        let created: Arc<Created> = Arc::new(parsed("reservation", &self.created)?);
        let key = line_key(created.id, self.attempt, self.seq)?;
        let amount = amounts((self.requests, self.tokens, self.nusd));
        parsed::<StoredLine>("line", &self.line)?.line(key, amount, &created)
    }
}
