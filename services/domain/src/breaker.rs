//! The circuit breaker of one deployment, and how healthy the deployment looks.
//!
//! Closed: calls flow and are counted. Six failures in a row, or half of the recent calls, open it: every call is
//! refused for a cooldown, without touching the network. Then exactly one probe may go through; it closes the breaker,
//! or opens it again for twice as long. (*Open* means tripped, as in the source documents.)
//!
//! A provider's `Retry-After` is a promise apart from the state: it is kept after a single 429, in every state (O40).
//! The state gates; the health score only ranks what the gate lets through.

use crate::rate::Rolling;

#[cfg(test)]
mod tests;

/// How a call ended, as far as the health of its deployment is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallOutcome {
    Succeeded {
        /// Until the first content, or until the whole answer of a plain call.
        latency_ms: i64,
    },
    Failed {
        cause: FailureCause,
        /// What the provider asked for, if it did.
        retry_after_ms: Option<i64>,
    },
    /// The deployment did nothing wrong: the client left, or its request was at fault.
    NotCounted,
}

/// What a provider did wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FailureCause {
    /// It has no capacity for anyone (503, 529).
    Overloaded,
    /// It has no capacity for us (429).
    RateLimited,
    /// Any other 5xx, a broken answer, or an error within a stream.
    ServerError,
    /// No answer, no first content or no progress in time.
    TimedOut,
    /// No connection.
    Unreachable,
}

/// The tunable figures of a breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BreakerPolicy {
    /// So many failures in a row open it.
    pub consecutive_failures: u32,
    /// So many failures per 1,000 recent calls open it…
    pub failures_per_mille: i64,
    /// …once there were this many recent calls, because a share of few calls says nothing.
    pub calls_before_share: i64,
    /// How long it stays open the first time.
    pub cooldown_ms: i64,
    /// Each failed probe doubles the cooldown up to this.
    pub longest_cooldown_ms: i64,
    /// A probe that has not ended by then counts as lost, and another may go: a lost task must not shut a deployment
    /// for ever.
    pub probe_ms: i64,
    /// A typical latency at which the health score is halved.
    pub slow_ms: i64,
}

impl Default for BreakerPolicy {
    fn default() -> Self {
        Self {
            consecutive_failures: 6,
            failures_per_mille: 500,
            calls_before_share: 20,
            cooldown_ms: 30_000,
            longest_cooldown_ms: 300_000,
            probe_ms: 120_000,
            slow_ms: 10_000,
        }
    }
}

/// Whether a call may go out now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    Open(Permit),
    Shut(Refusal),
}

/// Why a call may not go out, and when asking again may help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    pub reason: RefusalReason,
    pub retry_after_ms: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RefusalReason {
    /// The breaker is open, or its one probe is under way.
    CircuitOpen,
    /// The provider asked to be left alone until then.
    RetryAfter,
}

/// The right to make one call; handed back with its outcome to [`Breaker::record`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a permit that is not recorded may be the only probe"]
pub struct Permit {
    generation: u64,
}

/// The states of the source documents, for metrics and people.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CircuitState {
    Closed,
    Open,
    HalfOpen,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Circuit {
    Closed {
        consecutive_failures: u32,
    },
    Open {
        until_ms: i64,
        cooldown_ms: i64,
    },
    /// One probe is under way; another may go at `lost_at_ms`.
    HalfOpen {
        lost_at_ms: i64,
        cooldown_ms: i64,
    },
}

/// Seconds over which failures are a share of calls: long enough to have calls to count, short enough to forget.
const SHARE_WINDOW_S: usize = 30;

/// The longest `Retry-After` that is kept: a spend limit lasts until the month turns, and nothing lasts longer.
const LONGEST_RETRY_AFTER_MS: i64 = 32 * 24 * 60 * 60 * 1000;

/// New latencies weigh an eighth in the typical one.
const LATENCY_WEIGHT: i64 = 8;

/// The circuit breaker of one deployment. `now_ms` is any clock that does not go back.
#[derive(Debug, Clone)]
pub struct Breaker {
    policy: BreakerPolicy,
    circuit: Circuit,
    /// Rises with every change of state, so that calls from before it decide nothing.
    generation: u64,
    not_before_ms: i64,
    /// Calls and failures.
    recent: Rolling<SHARE_WINDOW_S>,
    /// `None` until a call succeeded.
    typical_latency_ms: Option<i64>,
}

impl Breaker {
    #[must_use]
    pub fn new(policy: BreakerPolicy) -> Self {
        Self {
            policy,
            circuit: Circuit::Closed { consecutive_failures: 0 },
            generation: 0,
            not_before_ms: i64::MIN,
            recent: Rolling::default(),
            typical_latency_ms: None,
        }
    }

    /// Whether [`Self::admit`] would let a call out, without taking the probe: for the filter of candidates.
    pub fn check(&self, now_ms: i64) -> Result<(), Refusal> {
        let (reason, until_ms) = match self.circuit {
            Circuit::Open { until_ms, .. } if now_ms < until_ms => (RefusalReason::CircuitOpen, until_ms),
            Circuit::HalfOpen { lost_at_ms, .. } if now_ms < lost_at_ms => (RefusalReason::CircuitOpen, lost_at_ms),
            Circuit::Closed { .. } | Circuit::Open { .. } | Circuit::HalfOpen { .. } => {
                (RefusalReason::RetryAfter, self.not_before_ms)
            }
        };
        // Both may apply: whichever ends later says when hope returns.
        let until_ms = until_ms.max(self.not_before_ms);
        if now_ms < until_ms {
            return Err(Refusal { reason, retry_after_ms: until_ms - now_ms });
        }
        Ok(())
    }

    /// Lets a call out, or not. After a cooldown the first call to ask is the probe.
    pub fn admit(&mut self, now_ms: i64) -> Gate {
        if let Err(refusal) = self.check(now_ms) {
            return Gate::Shut(refusal);
        }
        match self.circuit {
            Circuit::Closed { .. } => {}
            Circuit::Open { cooldown_ms, .. } | Circuit::HalfOpen { cooldown_ms, .. } => {
                let lost_at_ms = now_ms.saturating_add(self.policy.probe_ms);
                self.enter(Circuit::HalfOpen { lost_at_ms, cooldown_ms });
            }
        }
        Gate::Open(Permit { generation: self.generation })
    }

    /// Takes back a permit with how its call ended. A call from before the last change of state decides nothing, but
    /// its `Retry-After` is still kept.
    pub fn record(&mut self, permit: Permit, outcome: CallOutcome, now_ms: i64) {
        let asked_ms = match outcome {
            CallOutcome::Failed { retry_after_ms, .. } => retry_after_ms.unwrap_or_default(),
            CallOutcome::Succeeded { .. } | CallOutcome::NotCounted => 0,
        };
        if asked_ms > 0 {
            let until_ms = now_ms.saturating_add(asked_ms.min(LONGEST_RETRY_AFTER_MS));
            self.not_before_ms = self.not_before_ms.max(until_ms);
        }
        if permit.generation == self.generation {
            self.observe(outcome, now_ms);
            self.decide(outcome, now_ms);
        }
    }

    #[must_use]
    pub const fn state(&self) -> CircuitState {
        match self.circuit {
            Circuit::Closed { .. } => CircuitState::Closed,
            Circuit::Open { .. } => CircuitState::Open,
            Circuit::HalfOpen { .. } => CircuitState::HalfOpen,
        }
    }

    /// Failures in a row while closed; 0 in the other states.
    #[must_use]
    pub const fn consecutive_failures(&self) -> u32 {
        match self.circuit {
            Circuit::Closed { consecutive_failures } => consecutive_failures,
            Circuit::Open { .. } | Circuit::HalfOpen { .. } => 0,
        }
    }

    /// The best score where no call ended recently: a deployment that once was slow must get a chance to show better.
    #[must_use]
    pub fn health(&self, now_ms: i64) -> HealthScore {
        let [calls, failures] = self.recent.total(second_of(now_ms));
        if calls == 0 {
            return HealthScore::BEST;
        }
        // One imagined success keeps a single failure from looking like an outage.
        let succeeded = 1000 - per_mille(failures, calls.saturating_add(1));
        let latency_ms = self.typical_latency_ms.unwrap_or_default();
        let slow_ms = self.policy.slow_ms.max(1);
        let fast = per_mille(slow_ms, slow_ms.saturating_add(latency_ms));
        HealthScore(u16::try_from((succeeded * fast / 1000).clamp(0, 1000)).unwrap_or_default())
    }

    fn observe(&mut self, outcome: CallOutcome, now_ms: i64) {
        let second = second_of(now_ms);
        match outcome {
            CallOutcome::Succeeded { latency_ms } => {
                self.recent.add(second, second, [1, 0]);
                let latency_ms = latency_ms.max(0);
                let typical_ms = self.typical_latency_ms.unwrap_or(latency_ms);
                self.typical_latency_ms = Some(typical_ms + (latency_ms - typical_ms) / LATENCY_WEIGHT);
            }
            CallOutcome::Failed { .. } => self.recent.add(second, second, [1, 1]),
            CallOutcome::NotCounted => {}
        }
    }

    fn decide(&mut self, outcome: CallOutcome, now_ms: i64) {
        match (self.circuit, outcome) {
            (Circuit::Closed { .. }, CallOutcome::Succeeded { .. }) => {
                self.circuit = Circuit::Closed { consecutive_failures: 0 };
            }
            (Circuit::Closed { consecutive_failures }, CallOutcome::Failed { .. }) => {
                let consecutive_failures = consecutive_failures.saturating_add(1);
                self.circuit = Circuit::Closed { consecutive_failures };
                if consecutive_failures >= self.policy.consecutive_failures || self.fails_too_often(now_ms) {
                    self.open(self.policy.cooldown_ms, now_ms);
                }
            }
            (Circuit::HalfOpen { .. }, CallOutcome::Succeeded { .. }) => {
                // What failed before the probe is history: counting it would open the breaker at the next failure.
                self.recent.clear();
                self.enter(Circuit::Closed { consecutive_failures: 0 });
            }
            (Circuit::HalfOpen { cooldown_ms, .. }, CallOutcome::Failed { .. }) => {
                self.open(cooldown_ms.saturating_mul(2).min(self.policy.longest_cooldown_ms), now_ms);
            }
            // The probe told nothing: the next call may be one.
            (Circuit::HalfOpen { cooldown_ms, .. }, CallOutcome::NotCounted) => {
                self.enter(Circuit::Open { until_ms: now_ms, cooldown_ms });
            }
            // No permit is given while open, so none of its generation comes back.
            (Circuit::Open { .. }, CallOutcome::Succeeded { .. } | CallOutcome::Failed { .. })
            | (Circuit::Closed { .. } | Circuit::Open { .. }, CallOutcome::NotCounted) => {}
        }
    }

    fn fails_too_often(&self, now_ms: i64) -> bool {
        let [calls, failures] = self.recent.total(second_of(now_ms));
        calls >= self.policy.calls_before_share && per_mille(failures, calls) >= self.policy.failures_per_mille
    }

    fn open(&mut self, cooldown_ms: i64, now_ms: i64) {
        self.enter(Circuit::Open { until_ms: now_ms.saturating_add(cooldown_ms), cooldown_ms });
    }

    fn enter(&mut self, circuit: Circuit) {
        self.circuit = circuit;
        self.generation += 1;
    }
}

/// How healthy a deployment looks, from 0 to 1,000: the share of recent successes, lowered by the typical latency. It
/// ranks; it never excludes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HealthScore(u16);

impl HealthScore {
    /// Nothing bad is known.
    pub const BEST: Self = Self(1000);

    #[must_use]
    pub const fn per_mille(self) -> u16 {
        self.0
    }
}

fn per_mille(part: i64, whole: i64) -> i64 {
    part.saturating_mul(1000).checked_div(whole).unwrap_or_default()
}

const fn second_of(now_ms: i64) -> i64 {
    now_ms.div_euclid(1000)
}
