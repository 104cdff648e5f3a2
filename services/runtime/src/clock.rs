//! Time as an argument.
//!
//! One trait for wall time; everything that decides takes `now` from it. Timers and deadlines of sockets stay with
//! tokio's own clock, which tests pause; the two are never mixed in one decision.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Wall time since the Unix epoch, UTC. It may step backwards when an operator or NTP sets it: a caller that needs an
/// order takes it from the log, not from here.
pub trait Clock: Send + Sync + Debug {
    /// Microseconds since the Unix epoch.
    fn now_us(&self) -> i64;

    /// Milliseconds since the Unix epoch, rounded down.
    fn now_ms(&self) -> i64 {
        self.now_us().div_euclid(1_000)
    }
}

pub type SharedClock = Arc<dyn Clock>;

/// The operating system's clock: the only reader of it in the workspace.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl SystemClock {
    #[must_use]
    pub fn shared() -> SharedClock {
        Arc::new(Self)
    }
}

impl Clock for SystemClock {
    fn now_us(&self) -> i64 {
        #[expect(clippy::disallowed_methods, reason = "this is the one clock that all others go through")]
        let now = SystemTime::now();
        let since_epoch = now.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        i64::try_from(since_epoch.as_micros()).unwrap_or(i64::MAX).saturating_add(crate::failpoint::clock_ahead_us())
    }
}

/// A clock that stands still until a test moves it.
#[derive(Debug, Default)]
pub struct ManualClock {
    now_us: AtomicI64,
}

impl ManualClock {
    /// A clock that shows `now_ms` milliseconds since the epoch.
    #[must_use]
    pub fn at_ms(now_ms: i64) -> Self {
        Self { now_us: AtomicI64::new(now_ms.saturating_mul(1_000)) }
    }

    pub fn set_ms(&self, now_ms: i64) {
        self.now_us.store(now_ms.saturating_mul(1_000), Ordering::SeqCst);
    }

    pub fn advance(&self, by: Duration) {
        let by_us = i64::try_from(by.as_micros()).unwrap_or(i64::MAX);
        self.now_us.fetch_add(by_us, Ordering::SeqCst);
    }

    pub fn advance_ms(&self, by_ms: i64) {
        self.now_us.fetch_add(by_ms.saturating_mul(1_000), Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now_us(&self) -> i64 {
        self.now_us.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manual_clock_moves_only_when_told() {
        let clock = ManualClock::at_ms(1_790_000_000_000);
        assert_eq!((clock.now_ms(), clock.now_us()), (1_790_000_000_000, 1_790_000_000_000_000));
        clock.advance(Duration::from_micros(2_500));
        assert_eq!((clock.now_ms(), clock.now_us()), (1_790_000_000_002, 1_790_000_000_002_500));
        clock.advance_ms(-3);
        assert_eq!(clock.now_ms(), 1_789_999_999_999);
        clock.set_ms(-1);
        assert_eq!((clock.now_ms(), clock.now_us()), (-1, -1_000));
    }

    #[test]
    fn the_system_clock_counts_from_the_unix_epoch() {
        let clock = SystemClock;
        let year_2020_ms = 1_577_836_800_000;
        assert!(clock.now_ms() > year_2020_ms);
        assert!((clock.now_us() / 1_000 - clock.now_ms()).abs() < 60_000, "one unit is a thousand of the other");
    }
}
