//! Posting: the reservation first, whole; then what can be asked about it.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::try_join_all;
use scylla::value::MaybeUnset;
use uuid::Uuid;

use weir_domain::ledger::{LedgerLine, LineKey};
use weir_domain::reservation::Created;
use weir_migrations::cql::conditional_batch;

use crate::contract::{Change, LedgerError, Posted, first_difference};

use super::ledger::CqlLedger;
use super::lines::LineRows;
use super::open::Move;
use super::stored::{StoredChange, StoredLine, amounts, damaged, figures, parsed, text};

/// What a row of `reservations` binds, in the order of the statement.
type RowValues<'a> = (
    Uuid,
    i32,
    i64,
    i64,
    MaybeUnset<&'a str>,
    MaybeUnset<&'a str>,
    MaybeUnset<&'a str>,
    MaybeUnset<i64>,
    MaybeUnset<i64>,
    MaybeUnset<i64>,
);

/// One change with its texts: they go to several tables.
pub(super) struct Written<'a> {
    pub change: &'a Change,
    pub created: String,
    state: String,
    /// In the order of the change's lines.
    pub lines: Vec<String>,
}

impl<'a> Written<'a> {
    fn of(change: &'a Change) -> Result<Self, LedgerError> {
        let lines = change.lines.iter().map(|line| text("line", &StoredLine::of(line)));
        Ok(Self {
            change,
            created: text("reservation", &*change.reservation.created)?,
            state: text("change", &StoredChange::of(change))?,
            lines: lines.collect::<Result<_, _>>()?,
        })
    }

    fn id(&self) -> Uuid {
        *self.change.reservation.created.id.uuid()
    }

    fn change_row(&self) -> Result<RowValues<'_>, LedgerError> {
        let offsets = self.change.events.iter().map(|event| event.source.offset);
        let (first, last) = (offsets.clone().min(), offsets.max());
        let (Some(first), Some(last)) = (first, last) else { return Err(damaged("change", &"it has no event")) };
        let (created, state) = (MaybeUnset::Set(&*self.created), MaybeUnset::Set(&*self.state));
        let (line, none) = (MaybeUnset::Unset, MaybeUnset::Unset);
        Ok((self.id(), 0, last, first, created, state, line, none, none, none))
    }

    /// The `at`th line; `alone` with what its reservation says, otherwise beside a row that says it.
    fn line_row(&self, at: usize, alone: bool) -> RowValues<'_> {
        let (line, text) = (&self.change.lines[at], MaybeUnset::Set(&*self.lines[at]));
        let created = if alone { MaybeUnset::Set(&*self.created) } else { MaybeUnset::Unset };
        let (requests, tokens, nanos) = figures(line.amount);
        let amounts = [requests, tokens, nanos].map(MaybeUnset::Set);
        let [requests, tokens, nanos] = amounts;
        let LineKey { attempt, seq, .. } = line.key;
        (self.id(), attempt.into(), seq.into(), 0, created, MaybeUnset::Unset, text, requests, tokens, nanos)
    }
}

impl CqlLedger {
    pub(super) async fn post_changes(&self, changes: &[Change]) -> Result<Posted, LedgerError> {
        let written = changes.iter().map(Written::of).collect::<Result<Vec<_>, _>>()?;
        let (lined, plain): (Vec<_>, Vec<_>) = written.iter().partition(|one| !one.lines.is_empty());
        // What has no line cannot be refused, so everything about it is written at once.
        let plain_moves = plain.iter().flat_map(|one| Move::of(one.change)).collect();
        let plain = try_join_all(plain.iter().map(|one| self.post_reservation(one)));
        let (posted, _, ()) = futures_util::try_join!(self.post_lined(&lined), plain, self.move_open(plain_moves))?;
        Ok(posted)
    }

    /// The query tables come after every line is the one under its key: they never show one that was refused.
    async fn post_lined(&self, written: &[&Written<'_>]) -> Result<Posted, LedgerError> {
        let posted = try_join_all(written.iter().map(|one| self.post_reservation(one))).await?;
        let mut rows = LineRows::default();
        for one in written {
            rows.add(one)?;
        }
        let moves = written.iter().flat_map(|one| Move::of(one.change)).collect();
        futures_util::try_join!(self.put_lines(rows), self.move_open(moves))?;
        let sum =
            |sum: Posted, one: &Posted| Posted { lines: sum.lines + one.lines, repeated: sum.repeated + one.repeated };
        Ok(posted.iter().fold(Posted::default(), sum))
    }

    /// One partition: the lines and the change together, or nothing.
    async fn post_reservation(&self, one: &Written<'_>) -> Result<Posted, LedgerError> {
        let (put_row, put_line) = (&self.statements.reservations.put_row, &self.statements.reservations.put_line);
        let change = one.change_row()?;
        let count = one.lines.len();
        if count > 0 {
            let mut batch = conditional_batch();
            let mut values: Vec<RowValues<'_>> = Vec::with_capacity(count + 1);
            for at in 0..count {
                batch.append_statement(put_line.clone());
                values.push(one.line_row(at, false));
            }
            batch.append_statement(put_row.clone());
            values.push(change);
            if self.cql.conditional_together(&batch, &values).await? {
                return Ok(Posted { lines: count, repeated: 0 });
            }
        }
        let mut posted = Posted::default();
        for at in 0..count {
            if self.post_line(one, at, count == 1).await? {
                posted.lines += 1;
            } else {
                posted.repeated += 1;
            }
        }
        self.cql.execute(put_row, one.change_row()?).await?;
        Ok(posted)
    }

    /// Whether the line is new. The first stays: another one under its key is a conflict that names the field.
    async fn post_line(&self, one: &Written<'_>, at: usize, is_there: bool) -> Result<bool, LedgerError> {
        let line = &one.change.lines[at];
        if !is_there && self.cql.conditional(&self.statements.reservations.put_line, one.line_row(at, true)).await? {
            return Ok(true);
        }
        let stored = self.stored_line(line.key).await?.ok_or_else(|| damaged("line", &"it is there and is not"))?;
        match first_difference(&stored, line) {
            None => Ok(false),
            Some(field) => Err(LedgerError::Conflict { key: line.key, field }),
        }
    }

    /// What stands under a key, as conditional writes see it.
    async fn stored_line(&self, key: LineKey) -> Result<Option<LedgerLine>, LedgerError> {
        type Found = (Option<String>, Option<String>, Option<i64>, Option<i64>, Option<i64>);
        let values = (key.reservation.uuid(), i32::from(key.attempt), i64::from(key.seq));
        let found: Option<Found> = self.cql.first(&self.statements.reservations.line, values).await?;
        let Some((Some(created), Some(line), Some(requests), Some(tokens), Some(nanos))) = found else {
            return Ok(None);
        };
        let created: Arc<Created> = Arc::new(parsed("reservation", &created)?);
        let line: StoredLine = parsed("line", &line)?;
        line.line(key, amounts((requests, tokens, nanos)), &created).map(Some)
    }
}

/// Groups rows by their partition, in a stable order.
pub(super) fn by_partition<K: Ord, R>(rows: impl IntoIterator<Item = (K, R)>) -> BTreeMap<K, Vec<R>> {
    let mut grouped: BTreeMap<K, Vec<R>> = BTreeMap::new();
    for (key, row) in rows {
        grouped.entry(key).or_default().push(row);
    }
    grouped
}
