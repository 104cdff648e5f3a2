//! How the rates of a request stand, for those who must slow down before they are refused.

use super::{Limit, Measure, Scope, ScopeCounters, Unit};

/// A limit per minute, after the request that asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateStanding {
    pub max: i64,
    /// Charged and held in the last minute.
    pub taken: i64,
    /// How long until nothing of it is left, if nothing else comes. Milliseconds.
    pub clears_in_ms: i64,
}

impl RateStanding {
    /// What the limit still has room for; never negative, though a charge above its hold may take more than the limit.
    #[must_use]
    pub const fn remaining(&self) -> i64 {
        let left = self.max.saturating_sub(self.taken);
        if left < 0 { 0 } else { left }
    }
}

/// The tightest limit per minute of each unit: the one with the least room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RateStandings {
    pub requests: Option<RateStanding>,
    pub tokens: Option<RateStanding>,
}

impl RateStandings {
    /// Of `limits`; `counted` is what each scope has taken. Limits that are no rates cost one comparison each.
    pub(super) fn of<'a>(limits: &[Limit], counted: impl Fn(&Scope) -> Option<&'a ScopeCounters>, now_ms: i64) -> Self {
        let mut standings = Self::default();
        for limit in limits {
            let Measure::PerMinute { unit } = limit.measure else { continue };
            let counters = counted(&limit.scope);
            let (requests, tokens) = counters.map_or((0, 0), |counters| counters.rate_total(now_ms.div_euclid(1000)));
            let (tightest, taken) = match unit {
                Unit::Requests => (&mut standings.requests, requests),
                Unit::Tokens => (&mut standings.tokens, tokens),
                Unit::Usd => continue,
            };
            let clears_in_ms = counters.map_or(0, |counters| counters.rate_clears_in_ms(unit, now_ms));
            let standing = RateStanding { max: limit.max, taken, clears_in_ms };
            let room = |standing: &RateStanding| (standing.remaining(), standing.max);
            if tightest.as_ref().is_none_or(|known| room(&standing) < room(known)) {
                *tightest = Some(standing);
            }
        }
        standings
    }
}
