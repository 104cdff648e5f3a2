//! Counters as a store that is not a [`Book`](super::Book) read them, in one step, for one decision.
//!
//! Such a store compares and refuses by itself; what the refusal says (which limit, how long to wait, how the rates
//! stand) is decided here from what it saw, by the same code that a book runs.

use std::collections::HashMap;

use crate::calendar::Window;
use crate::money::Amounts;
use crate::rate::RateWindow;
use crate::reservation::Balances;

use super::counters::admits;
use super::{Counting, Denial, Limit, RateStandings, Scope, ScopeCounters, Unit};

#[derive(Debug, Clone, Default)]
pub struct Seen {
    scopes: HashMap<Scope, ScopeCounters>,
}

impl Seen {
    /// Charged and held together, of one unit in one window.
    pub fn total(&mut self, scope: &Scope, window: Window, unit: Unit, total: i64) {
        self.of(scope).see_total(window, unit, total);
    }

    pub fn rate(&mut self, scope: &Scope, rate: RateWindow) {
        self.of(scope).see_rate(rate);
    }

    pub fn slots(&mut self, scope: &Scope, slots: i64) {
        self.of(scope).see_slots(slots);
    }

    #[must_use]
    pub fn standings(&self, limits: &[Limit], now_ms: i64) -> RateStandings {
        RateStandings::of(limits, |scope| self.scopes.get(scope), now_ms)
    }

    fn of(&mut self, scope: &Scope) -> &mut ScopeCounters {
        self.scopes.entry(scope.clone()).or_default()
    }
}

impl Balances for Seen {
    fn admit(
        &self,
        counting: &Counting,
        limits: &[Limit],
        extra: Amounts,
        slots: i64,
        now_ms: i64,
    ) -> Result<(), Denial> {
        admits(|scope| self.scopes.get(scope), counting, limits, (extra, slots), now_ms)
    }
}
