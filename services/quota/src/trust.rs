//! Whether what the store said may still be acted on (I2, I15).
//!
//! Between the store's word and the call of a provider lies an append, and a process may be stopped anywhere. If the store
//! loses its data meanwhile, the counters that are rebuilt may know nothing of the hold. So a word is good for a moment
//! only, and not at all once somebody has cast doubt on it; whoever has waited for longer asks again, by the same command.
//!
//! ```text
//!   rebuild   close ─▶ ask every gateway ─────────────────────▶ wait ─▶ fold the log to its end ─▶ open
//!   gateway             └▶ doubt ─▶ all appends on the log ─▶ answer
//! ```
//!
//! A call that was made before the doubt had its append before it, so the fold has it. One after the doubt asked again, and
//! was refused, or found the rebuilt counters to know it. One of a process that never heard the question was made within
//! [`GOOD_FOR`] of the close, and a rebuild without an answer waits for longer than that.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// How long the store's word is good: much longer than an append takes, so that hardly anybody asks twice, and short for
/// whoever waits for a gateway that does not answer.
pub const GOOD_FOR: Duration = Duration::from_secs(2);

/// What a process knows of the age of the store's answers.
#[derive(Debug, Default)]
pub struct Trust {
    doubts: AtomicU64,
}

/// When something was asked.
#[derive(Debug, Clone, Copy)]
pub struct Asked {
    doubts: u64,
    at: Instant,
}

impl Trust {
    /// To be taken before the store is asked.
    #[must_use]
    pub fn ask(&self) -> Asked {
        Asked { doubts: self.doubts.load(Ordering::SeqCst), at: Instant::now() }
    }

    /// Whether the answer to what was asked then may be acted on now. To be looked at once nothing can lose the act's
    /// record.
    #[must_use]
    pub fn holds(&self, asked: Asked) -> bool {
        asked.doubts == self.doubts.load(Ordering::SeqCst) && asked.at.elapsed() < GOOD_FOR
    }

    /// Nothing that was asked before holds any more.
    pub fn doubt(&self) {
        self.doubts.fetch_add(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_word_is_good_for_a_moment_and_until_somebody_doubts_it() {
        let trust = Trust::default();
        let asked = trust.ask();
        assert!(trust.holds(asked));
        tokio::time::advance(GOOD_FOR).await;
        assert!(!trust.holds(asked), "it is old");
        let asked = trust.ask();
        trust.doubt();
        assert!(!trust.holds(asked), "it was doubted");
        assert!(trust.holds(trust.ask()));
    }
}
