//! Folding the log: the ledger and the counters as a function of its events (I13).
//!
//! One fold serves three readers: the ledger builder takes its lines, a starting process takes its books, and
//! `replay --verify` compares both with what is stored. Copies of events, at any distance, change nothing.

mod image;
#[cfg(test)]
#[path = "fold_tests.rs"]
mod tests;

pub use image::FoldImage;

use std::borrow::Cow;
use std::sync::Arc;

use crate::attempt::{Attempt, AttemptNumber, AttemptOutcome};
use crate::ids::{OwnMap, ReservationId, ReservationMap, TenantId};
use crate::ledger::{Context, LedgerLine, Posting, ReservationAccount, SourcePosition};
use crate::quota::{Book, BookOptions};
use crate::reservation::{Created, Event, Reservation, ReservationStatus};

/// What one event changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Absorbed {
    pub tenant: TenantId,
    pub before: Option<ReservationStatus>,
    pub after: ReservationStatus,
    /// For a usage: what the ledger makes of it.
    pub posting: Option<Posting>,
    /// Whether the event changed the reservation at all; `false` for a copy.
    pub is_news: bool,
    /// The reservation as the event left it, once it has ended: from then on the fold may forget it at any event, the
    /// one that ended it included.
    pub ended: Option<Reservation>,
}

/// The fold does not know the reservation: either its record left after the horizon, and [`Fold::restore`] takes it
/// back from its ledger lines, or it was never created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("reservation {0} is not in the fold: restore it from its ledger lines")]
pub struct Unknown(pub ReservationId);

/// What the fold knows beside the book, small: there is one for every reservation of a retry horizon.
#[derive(Debug, Clone)]
struct Folded {
    /// Its place among the books.
    book: u32,
    /// Only where it is not what the reservation alone says ([`ReservationAccount::usual`]).
    account: Option<Box<ReservationAccount>>,
}

#[derive(Debug, Clone, Default)]
pub struct Fold {
    options: BookOptions,
    /// A place is never given to another tenant.
    places: OwnMap<TenantId, u32>,
    books: Vec<(TenantId, Book)>,
    folded: ReservationMap<Folded>,
}

impl Fold {
    #[must_use]
    pub fn new(options: BookOptions) -> Self {
        Self { options, ..Self::default() }
    }

    /// Folds one event that stands at `source` and was recorded at `recorded_at_ms`.
    pub fn absorb(
        &mut self,
        source: SourcePosition,
        id: ReservationId,
        event: &Event,
        recorded_at_ms: i64,
    ) -> Result<Absorbed, Unknown> {
        let at = match (self.folded.get(&id), event) {
            (Some(folded), _) => folded.book,
            (None, Event::ReservationCreated(created)) => {
                let at = self.place(&created.tenant);
                self.folded.insert(id, Folded { book: at, account: None });
                at
            }
            (None, _) => return Err(Unknown(id)),
        };
        let (tenant, book) = &mut self.books[at as usize];
        let state = book.reservation(id);
        let before = state.as_deref().map(Reservation::status);

        let account = self.folded.get_mut(&id).map(|folded| &mut folded.account);
        let posted = post(account, state.as_deref(), source, event, recorded_at_ms);
        let mut is_news = book.record(id, event, recorded_at_ms);
        let posting = posted.map(|(posting, account)| {
            if let Some(line) = line_of(&posting) {
                let total = line.total;
                is_news |= book.record(id, &Event::ChargeCorrected { number: line.key.attempt, total }, recorded_at_ms);
                book.confirm(id, line.key.attempt, source, recorded_at_ms);
            }
            let is_usual = book.reservation(id).is_some_and(|reservation| account.is_usual(&reservation));
            if !is_usual && let Some(folded) = self.folded.get_mut(&id) {
                folded.account = Some(Box::new(account));
            }
            posting
        });
        book.mark_applied(source);

        let (after, ended) = match book.rest(id) {
            Some(reservation) => (reservation.status(), Some(reservation)),
            None => {
                let state = book.reservation(id).ok_or(Unknown(id))?;
                let after = state.status();
                (after, after.is_final().then(|| state.into_owned()))
            }
        };
        let absorbed = Absorbed { tenant: tenant.clone(), before, after, posting, is_news, ended };
        let mut gone = Vec::new();
        book.forget(recorded_at_ms, &mut gone);
        for id in gone {
            self.folded.remove(&id);
        }
        Ok(absorbed)
    }

    /// The place of a tenant's book; a new one if it has none.
    fn place(&mut self, tenant: &TenantId) -> u32 {
        if let Some(at) = self.places.get(tenant) {
            return *at;
        }
        // Four thousand million tenants do not fit into memory.
        let at = u32::try_from(self.books.len()).unwrap_or(u32::MAX);
        self.places.insert(tenant.clone(), at);
        self.books.push((tenant.clone(), Book::new(self.options)));
        at
    }

    /// Takes back a reservation that left, from its stored lines in order; `false` when there are none.
    pub fn restore(&mut self, lines: &[LedgerLine], now_ms: i64) -> bool {
        let Some(first) = lines.first() else { return false };
        self.restore_ended(&first.created, &[], lines, now_ms);
        true
    }

    /// Takes back a reservation that left, from what was stored of it: what it was created as, its attempts, and its
    /// lines in order up to the event that asks for it. It left because it had ended, so it comes back ended.
    ///
    /// `attempts` may be newer than the lines (a replay asks for a state of long ago): what they were charged is read
    /// from the lines alone, and an attempt that neither a line nor its verdict explains was not there yet.
    pub fn restore_ended(&mut self, created: &Arc<Created>, attempts: &[Attempt], lines: &[LedgerLine], now_ms: i64) {
        let account = ReservationAccount::of_lines(lines);
        let attempts = attempts_of(attempts, &account, lines);
        let at = self.place(&created.tenant);
        let confirmed = account.attempts.iter().map(|a| (a.number, newest_offset(lines, a.number))).collect();
        let reservation = Reservation::ended(Arc::clone(created), attempts);
        let account = (!account.is_usual(&reservation)).then(|| Box::new(account));
        self.books[at as usize].1.restore(reservation, confirmed, now_ms);
        self.folded.insert(created.id, Folded { book: at, account });
    }

    #[must_use]
    pub const fn options(&self) -> BookOptions {
        self.options
    }

    /// A copy, if it has ended: those are kept packed.
    #[must_use]
    pub fn reservation(&self, id: ReservationId) -> Option<Cow<'_, Reservation>> {
        let folded = self.folded.get(&id)?;
        self.books[folded.book as usize].1.reservation(id)
    }

    #[must_use]
    pub fn knows(&self, id: ReservationId) -> bool {
        self.folded.contains_key(&id)
    }

    /// How many reservations it keeps, the ended ones included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.folded.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.folded.is_empty()
    }

    pub fn books(&self) -> impl Iterator<Item = (&TenantId, &Book)> {
        self.books.iter().map(|(tenant, book)| (tenant, book))
    }

    #[must_use]
    pub fn book(&self, tenant: &TenantId) -> Option<&Book> {
        self.places.get(tenant).map(|at| &self.books[*at as usize].1)
    }

    pub fn into_books(self) -> impl Iterator<Item = (TenantId, Book)> {
        self.books.into_iter()
    }
}

fn newest_offset(lines: &[LedgerLine], number: AttemptNumber) -> i64 {
    let of_attempt = lines.iter().filter(|line| line.key.attempt == number);
    of_attempt.map(|line| line.source.offset).max().unwrap_or(-1)
}

fn attempts_of(stored: &[Attempt], account: &ReservationAccount, lines: &[LedgerLine]) -> Vec<Attempt> {
    let total_of = |number| account.attempts.iter().find(|a| a.number == number).map(|a| a.total);
    let explained = stored.iter().filter_map(|attempt| {
        let charge = total_of(attempt.number);
        let is_known = charge.is_some() || attempt.outcome == Some(AttemptOutcome::NotExecuted);
        is_known.then(|| Attempt { charge, ..attempt.clone() })
    });
    let is_stored = |number| stored.iter().any(|attempt| attempt.number == number);
    let of_lines_alone = account.attempts.iter().filter(|a| !is_stored(a.number));
    let target_of = |number| lines.iter().find(|line| line.key.attempt == number).and_then(|line| line.target.clone());
    let from_lines =
        of_lines_alone.map(|a| Attempt { target: target_of(a.number), ..Attempt::from_ledger(a.number, a.total) });
    explained.chain(from_lines).collect()
}

/// What the ledger makes of a usage, and the account after it.
fn post(
    account: Option<&mut Option<Box<ReservationAccount>>>,
    state: Option<&Reservation>,
    source: SourcePosition,
    event: &Event,
    recorded_at_ms: i64,
) -> Option<(Posting, ReservationAccount)> {
    let Event::UsageRecorded { number, record } = event else { return None };
    let reservation = state?;
    let account = account.and_then(Option::take);
    let mut account = account.map_or_else(|| ReservationAccount::usual(reservation), |account| *account);
    let target = reservation.attempt(*number).and_then(|attempt| attempt.target.as_ref());
    let context = Context { created: &reservation.created, target, number: *number, recorded_at_ms, source };
    let posting = account.post(context, record);
    account.take(*number, record, &posting);
    Some((posting, account))
}

fn line_of(posting: &Posting) -> Option<&LedgerLine> {
    match posting {
        Posting::Posted(line) => Some(line),
        Posting::Discrepancy { adjustment, .. } => adjustment.as_deref(),
        Posting::AlreadyPosted => None,
    }
}
