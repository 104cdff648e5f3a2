//! The counters of one scope: calendar windows, the sliding minute, and slots.

use serde::{Deserialize, Serialize};

use crate::calendar::{Window, WindowKind};
use crate::money::{Amounts, NanoUsd};
use crate::rate::RateWindow;

use super::{Counting, Denial, DenialReason, Limit, Measure, Scope, Unit};

/// What was charged and is held in one window. A limit looks at the sum (I2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Counter {
    pub charged: Amounts,
    pub held: Amounts,
    /// The part of `held` that belongs to pending reservations: shown apart, because nobody is using it (design 6).
    pub pending: Amounts,
}

impl Counter {
    #[must_use]
    pub fn total(&self) -> Amounts {
        self.charged + self.held
    }
}

/// One counter as a reader sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CounterReading {
    pub scope: Scope,
    pub window: Window,
    pub counter: Counter,
}

/// Everything counted for one scope.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ScopeCounters {
    /// Ascending. A list, because there are some eight of them and every event looks at four.
    windows: Vec<(Window, Counter)>,
    rate: RateWindow,
    slots: i64,
}

impl ScopeCounters {
    #[must_use]
    pub fn counter(&self, window: Window) -> Counter {
        self.windows.iter().find(|(of, _)| *of == window).map(|(_, counter)| *counter).unwrap_or_default()
    }

    pub fn windows(&self) -> impl Iterator<Item = (Window, Counter)> {
        self.windows.iter().copied()
    }

    #[must_use]
    pub const fn slots(&self) -> i64 {
        self.slots
    }

    /// Requests and tokens of the last 60 seconds, charged and held.
    #[must_use]
    pub fn rate_total(&self, now_s: i64) -> (i64, i64) {
        self.rate.total(now_s)
    }

    /// The sliding minute as it is counted.
    #[must_use]
    pub const fn rate(&self) -> &RateWindow {
        &self.rate
    }

    /// How long until the last minute has nothing of `unit`, if nothing else comes.
    pub(super) fn rate_clears_in_ms(&self, unit: Unit, now_ms: i64) -> i64 {
        match unit {
            Unit::Tokens => self.rate.tokens_retry_after_ms(now_ms, 0, 0),
            Unit::Requests | Unit::Usd => self.rate.requests_retry_after_ms(now_ms, 0, 0),
        }
    }

    /// Takes over what another store read.
    pub(super) fn see_total(&mut self, window: Window, unit: Unit, total: i64) {
        let charged = &mut self.counter_mut(window).charged;
        match unit {
            Unit::Requests => charged.requests = total,
            Unit::Tokens => charged.tokens = total,
            Unit::Usd => charged.usd = NanoUsd::from_nanos(total),
        }
    }

    pub(super) fn see_rate(&mut self, rate: RateWindow) {
        self.rate = rate;
    }

    pub(super) const fn see_slots(&mut self, slots: i64) {
        self.slots = slots;
    }

    pub(super) fn change(&mut self, window: Window, charged: Amounts, held: Amounts, pending: Amounts) {
        let counter = self.counter_mut(window);
        counter.charged += charged;
        counter.held += held;
        counter.pending += pending;
    }

    fn counter_mut(&mut self, window: Window) -> &mut Counter {
        let at = match self.windows.iter().position(|(of, _)| *of >= window) {
            Some(at) if self.windows[at].0 == window => at,
            found => {
                let at = found.unwrap_or(self.windows.len());
                self.windows.insert(at, (window, Counter::default()));
                at
            }
        };
        &mut self.windows[at].1
    }

    pub(super) fn change_rate(&mut self, admitted_s: i64, now_s: i64, change: Amounts) {
        if change.requests != 0 || change.tokens != 0 {
            self.rate.add(admitted_s, now_s, change.requests, change.tokens);
        }
    }

    pub(super) fn change_slots(&mut self, by: i64) {
        self.slots = self.slots.saturating_add(by);
    }

    /// Forgets windows before the one that precedes `current`, unless something is still held there. A charge that
    /// arrives later still makes a counter; no limit looks at it, and the ledger has the line.
    pub(super) fn prune(&mut self, current: &[Window; 4]) {
        if self.windows.len() <= 2 * WindowKind::ALL.len() {
            return;
        }
        self.windows.retain(|(window, counter)| {
            let is_recent = current.iter().any(|now| now.kind == window.kind && window.ordinal >= now.ordinal - 1);
            is_recent || counter.held != Amounts::ZERO
        });
    }

    /// Whether `limit` has room for `extra` (and `slots` more slots) now.
    pub(super) fn admits(
        &self,
        limit: &Limit,
        extra: Amounts,
        slots: i64,
        windows: &[Window; 4],
        now_ms: i64,
    ) -> Result<(), Denial> {
        let needed = limit.share_of(extra, slots);
        if needed <= 0 {
            return Ok(());
        }
        let deny = |reason| Err(Denial { limit: limit.clone(), reason });
        if needed > limit.max {
            return deny(DenialReason::ExceedsLimit { needed });
        }
        match limit.measure {
            Measure::Calendar { unit, window: kind } => {
                let window = windows.iter().find(|window| window.kind == kind).copied();
                let Some(window) = window else { return Ok(()) };
                let taken = unit.of(self.counter(window).total());
                if taken.saturating_add(needed) <= limit.max {
                    return Ok(());
                }
                deny(DenialReason::Exhausted { retry_after_ms: None })
            }
            Measure::PerMinute { unit } => {
                let now_s = now_ms.div_euclid(1000);
                let (requests, tokens) = self.rate.total(now_s);
                let taken = match unit {
                    Unit::Requests => requests,
                    Unit::Tokens => tokens,
                    Unit::Usd => return Ok(()),
                };
                if taken.saturating_add(needed) <= limit.max {
                    return Ok(());
                }
                let retry_after_ms = match unit {
                    Unit::Tokens => self.rate.tokens_retry_after_ms(now_ms, limit.max, needed),
                    Unit::Requests | Unit::Usd => self.rate.requests_retry_after_ms(now_ms, limit.max, needed),
                };
                deny(DenialReason::Exhausted { retry_after_ms: Some(retry_after_ms) })
            }
            Measure::Concurrent => {
                if self.slots.saturating_add(needed) <= limit.max {
                    return Ok(());
                }
                deny(DenialReason::Exhausted { retry_after_ms: Some(CONCURRENCY_RETRY_AFTER_MS) })
            }
        }
    }
}

/// `Ok` when every one of `limits` has room for `extra` (and `slots` more slots), otherwise the first that has not.
pub(super) fn admits<'a>(
    counters_of: impl Fn(&Scope) -> Option<&'a ScopeCounters>,
    counting: &Counting,
    limits: &[Limit],
    (extra, slots): (Amounts, i64),
    now_ms: i64,
) -> Result<(), Denial> {
    let untouched = ScopeCounters::default();
    for limit in limits {
        let counters = counters_of(&limit.scope).unwrap_or(&untouched);
        counters.admits(limit, extra, slots, &counting.windows, now_ms)?;
    }
    Ok(())
}

/// When a slot frees is unknown; a second is long enough not to hammer and short enough not to idle.
const CONCURRENCY_RETRY_AFTER_MS: i64 = 1_000;
