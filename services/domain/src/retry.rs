//! How often and when a failed attempt may be followed by another.
//!
//! The budget is gateway-wide: retries stay a small share of recent requests, so that two providers that fail together
//! meet a flat load and not a multiplied one. An exhausted budget is an answer (503), not a wait. Delays start small
//! with full jitter; a provider's `Retry-After` is kept verbatim.

use crate::rate::Rolling;

#[cfg(test)]
mod tests;

/// Seconds over which retries are a share of requests: a burst is over within it, an outage is not.
const BUDGET_WINDOW_S: usize = 10;

/// How many retries a gateway may make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryBudgetPolicy {
    /// Retries per 1,000 requests of the last ten seconds.
    pub per_mille: i64,
    /// Retries in ten seconds that are allowed in any case: a share of few requests would be none.
    pub at_least: i64,
}

impl Default for RetryBudgetPolicy {
    fn default() -> Self {
        Self { per_mille: 100, at_least: 10 }
    }
}

/// The gateway-wide share of retries. `now_ms` is any clock that does not go back.
#[derive(Debug, Clone)]
pub struct RetryBudget {
    policy: RetryBudgetPolicy,
    /// Requests and retries.
    recent: Rolling<BUDGET_WINDOW_S>,
}

impl RetryBudget {
    #[must_use]
    pub fn new(policy: RetryBudgetPolicy) -> Self {
        Self { policy, recent: Rolling::default() }
    }

    /// Counts an admitted request, whatever becomes of it.
    pub fn deposit(&mut self, now_ms: i64) {
        let second = now_ms.div_euclid(1000);
        self.recent.add(second, second, [1, 0]);
    }

    /// Takes one retry from the budget; false, and nothing taken, when there is none left.
    #[must_use]
    pub fn withdraw(&mut self, now_ms: i64) -> bool {
        if self.left(now_ms) <= 0 {
            return false;
        }
        let second = now_ms.div_euclid(1000);
        self.recent.add(second, second, [0, 1]);
        true
    }

    /// How many retries could be made now.
    #[must_use]
    pub fn left(&self, now_ms: i64) -> i64 {
        let [requests, retries] = self.recent.total(now_ms.div_euclid(1000));
        let share = requests.saturating_mul(self.policy.per_mille) / 1000;
        share.max(self.policy.at_least).saturating_sub(retries).max(0)
    }
}

/// The delay before a further attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// The longest delay before the first retry; each further one doubles it…
    pub base_ms: i64,
    /// …up to this.
    pub longest_ms: i64,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { base_ms: 50, longest_ms: 2_000 }
    }
}

impl Backoff {
    /// The delay before retry number `retry` (1, 2, 3…): evenly distributed by `random` between nothing and the ceiling,
    /// or what the provider asked for, to the millisecond. The caller compares it with what is left of the deadline.
    #[must_use]
    pub fn delay_ms(&self, retry: u32, random: u64, retry_after_ms: Option<i64>) -> i64 {
        if let Some(asked_ms) = retry_after_ms {
            return asked_ms.max(0);
        }
        let doublings = retry.saturating_sub(1).min(62);
        let ceiling_ms = self.base_ms.saturating_mul(1 << doublings).clamp(0, self.longest_ms.max(0));
        let scaled = (u128::from(random) * (u128::from(ceiling_ms.unsigned_abs()) + 1)) >> 64;
        i64::try_from(scaled).unwrap_or(ceiling_ms)
    }
}

/// A wait as a `Retry-After` header has it: whole seconds, rounded up and never 0, so that a client that obeys it comes
/// neither too early nor at once (O40).
#[must_use]
pub fn retry_after_header_s(wait_ms: i64) -> i64 {
    let wait_ms = wait_ms.max(1);
    wait_ms / 1000 + i64::from(wait_ms % 1000 != 0)
}
