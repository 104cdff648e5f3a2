//! Fail points: named places where a test kills, delays or fails a real process.
//!
//! Without the cargo feature `failpoints` every point compiles to `false` and nothing is read. With it, the environment
//! variable `WEIR_FAILPOINTS` says what happens where:
//!
//! ```text
//! WEIR_FAILPOINTS="relay.before_usage=kill@3; log.sync=delay:50ms; quota.reserve=fail@2"
//! ```
//!
//! `kill` ends the process with SIGKILL, `delay:D` waits, `fail` makes the point answer `true`, which the code there
//! turns into its own error. `@n` means at the n-th hit only; without it, at every hit. Where `WEIR_FAILPOINTS_FROM`
//! names a file, nothing counts before that file is there, so that a test need not know how often a start passes a
//! point. `WEIR_CLOCK_AHEAD_MS` sets the process's wall clock that far ahead of the machine's (behind it where negative). A script that cannot be read kills the process with a message: a crash test whose fault never happens would
//! pass for the wrong reason.

/// Passes a point. `true` asks the caller to fail. A delay blocks the thread: in async code use [`hit_async`].
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
#[must_use]
pub const fn hit(_point: &'static str) -> bool {
    false
}

/// How far the process's wall clock is ahead of the machine's, µs.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
#[must_use]
pub const fn clock_ahead_us() -> i64 {
    0
}

/// [`hit`] for async code: a delay is awaited.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub fn hit_async(_point: &'static str) -> std::future::Ready<bool> {
    std::future::ready(false)
}

/// [`hit_async`] where there is nothing to fail: the step can only be killed or delayed.
#[inline(always)]
pub async fn pass(point: &'static str) {
    let _nothing_to_fail = hit_async(point).await;
}

#[cfg(feature = "failpoints")]
pub use scripted::{clock_ahead_us, hit, hit_async};

#[cfg(feature = "failpoints")]
mod scripted;
