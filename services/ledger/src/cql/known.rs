//! Which directory entries this process has written, so that each is written once and not per line.
//!
//! Forgetting is harmless (an entry is written again), so the memory is bounded by letting go of all of it.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// Entries kept: some ten megabytes.
const MOST: usize = 100_000;
/// How long an entry of a directory that readers clean is taken for written. They remove only what was written ten
/// minutes ago (see [`super::open`]), so a minute leaves nine for clocks that differ.
pub(super) const CLEANED_AFTER_MS: i64 = 60_000;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Entry {
    TenantDay { tenant: String, day: i32 },
    TenantBlock { tenant: String, hour: i32, log_partition: i32, block: i64 },
    LogPartition(i32),
    OpenMinute { list: i8, log_partition: i32, minute: i32 },
}

impl Entry {
    const fn is_cleaned(&self) -> bool {
        match self {
            Self::TenantDay { .. } | Self::TenantBlock { .. } | Self::LogPartition(_) => false,
            Self::OpenMinute { .. } => true,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Known(Mutex<HashMap<Entry, i64>>);

impl Known {
    pub fn has(&self, entry: &Entry, now_ms: i64) -> bool {
        let entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        entries.get(entry).is_some_and(|written_ms| {
            let age_ms = now_ms.saturating_sub(*written_ms);
            !entry.is_cleaned() || (0..CLEANED_AFTER_MS).contains(&age_ms)
        })
    }

    /// `entry` was written at `now_ms`.
    pub fn add(&self, entry: Entry, now_ms: i64) {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if entries.len() >= MOST {
            entries.clear();
        }
        entries.insert(entry, now_ms);
    }
}
