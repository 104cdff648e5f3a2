//! Load, and what its clients saw.
//!
//! Plain requests come from `wrk`: independent of this repository, and cheap enough that two cores are left for what is
//! measured. It cannot tell when the first event of a stream came nor how many there were, and it cuts what is open at
//! the end of a round; so streams have a small client of their own, which lets every stream end.

pub(crate) mod stream;
pub(crate) mod wrk;

/// What Anthropic's API wants to be told; the other one does not look at it.
const ANTHROPIC_VERSION: &str = "2023-06-01";

/// What one round of load saw.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Seen {
    pub requests: u64,
    pub seconds: f64,
    /// To the whole answer of a plain request; to the first event of a stream.
    pub p50_ms: f64,
    pub p99_ms: f64,
}

impl Seen {
    pub(crate) fn requests_per_s(&self) -> f64 {
        as_f64(self.requests) / self.seconds
    }
}

/// Exact up to 2⁵³.
#[expect(clippy::cast_precision_loss, reason = "counts and nanoseconds of a run are far below 2⁵³")]
pub(crate) const fn as_f64(count: u64) -> f64 {
    count as f64
}
