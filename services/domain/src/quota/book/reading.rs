//! What can be read of a book.

use std::borrow::Cow;

use crate::calendar::Window;
use crate::ids::ReservationId;
use crate::money::Amounts;
use crate::quota::{Counter, CounterReading, Scope, ScopeCounters};
use crate::reservation::Reservation;

use super::{Book, Entry};

impl Book {
    /// Reserved reservations whose lease ended by `now_ms`, oldest first, at most `most`.
    #[must_use]
    pub fn due(&self, now_ms: i64, most: usize) -> Vec<Reservation> {
        let ended = self.due.iter().take_while(|(due_ms, _)| *due_ms <= now_ms).take(most);
        ended.filter_map(|(_, id)| self.reservation(*id)).map(Cow::into_owned).collect()
    }

    /// A copy, if it has ended: those are kept packed.
    #[must_use]
    pub fn reservation(&self, id: ReservationId) -> Option<Cow<'_, Reservation>> {
        Some(match self.entry(id)? {
            Cow::Borrowed(entry) => Cow::Borrowed(&entry.reservation),
            Cow::Owned(entry) => Cow::Owned(entry.reservation),
        })
    }

    pub(super) fn entry(&self, id: ReservationId) -> Option<Cow<'_, Entry>> {
        match self.entries.get(&id) {
            Some(held) => Some(Cow::Borrowed(&held.entry)),
            None => self.ended.get(id).map(Cow::Owned),
        }
    }

    /// All of them. It unpacks what has ended: not for a running process.
    pub fn reservations(&self) -> impl Iterator<Item = Cow<'_, Reservation>> {
        let ended = self.ended.entries().map(|(_, entry)| Cow::Owned(entry.reservation));
        self.unfinished().map(Cow::Borrowed).chain(ended)
    }

    /// Everything that holds something or waits for something, and what the ledger has not confirmed yet.
    pub fn unfinished(&self) -> impl Iterator<Item = &Reservation> {
        self.entries.values().map(|held| &held.entry.reservation)
    }

    #[must_use]
    pub fn counter(&self, scope: &Scope, window: Window) -> Counter {
        self.scopes.get(scope).map(|counters| counters.counter(window)).unwrap_or_default()
    }

    /// Slots taken by `scope` now.
    #[must_use]
    pub fn slots(&self, scope: &Scope) -> i64 {
        self.scopes.get(scope).map_or(0, ScopeCounters::slots)
    }

    /// Requests and tokens of `scope` in the last minute.
    #[must_use]
    pub fn rate(&self, scope: &Scope, now_ms: i64) -> (i64, i64) {
        self.scopes.get(scope).map_or((0, 0), |counters| counters.rate_total(now_ms.div_euclid(1000)))
    }

    /// Every calendar counter, sorted by scope and window.
    #[must_use]
    pub fn counters(&self) -> Vec<CounterReading> {
        let mut readings: Vec<CounterReading> = self
            .scopes
            .iter()
            .flat_map(|(scope, counters)| {
                counters.windows().map(|(window, counter)| CounterReading { scope: scope.clone(), window, counter })
            })
            .filter(|reading| reading.counter != Counter::default())
            .collect();
        readings.sort_by(|a, b| (&a.scope, a.window).cmp(&(&b.scope, b.window)));
        readings
    }

    /// What is held in all, by open reservations.
    #[must_use]
    pub fn held(&self) -> Amounts {
        self.unfinished().map(Reservation::held).sum()
    }
}
