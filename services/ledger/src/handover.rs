//! Lines on their way from the builder to the corrector, where both run in one process.
//!
//! The corrector follows the ledger's topic in any case: its position, its order and its repetitions are those of the
//! log. What is spared is reading back what was written a moment ago: the builder leaves beside each entry's offset what
//! the corrector would make of it. An entry that is not here, after a restart or a long lag, is decoded.

use std::collections::VecDeque;

use parking_lot::Mutex;

use weir_domain::ids::TenantId;
use weir_domain::ledger::LedgerLine;
use weir_domain::quota::Correction;

/// Some seconds of entries at the highest rates; a corrector that is further behind reads the log.
const MOST: usize = 32_768;

/// What one entry says to the corrector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handed {
    pub tenant: TenantId,
    pub correction: Correction,
}

impl Handed {
    #[must_use]
    pub fn of(line: &LedgerLine) -> Self {
        let correction = Correction {
            reservation: line.key.reservation,
            number: line.key.attempt,
            total: line.total,
            amount: line.amount,
            counting: line.created.counting.clone(),
            admitted_at_ms: line.created.admitted_at_ms,
            source: line.source,
        };
        Self { tenant: line.created.tenant.clone(), correction }
    }
}

/// Between one builder and one corrector, on a log that has one partition.
#[derive(Debug, Default)]
pub struct Handover(Mutex<VecDeque<(u64, Handed)>>);

impl Handover {
    /// The entries at `first` and behind it say this.
    pub fn leave(&self, first: u64, entries: impl IntoIterator<Item = Handed>) {
        let mut waiting = self.0.lock();
        waiting.extend((first..).zip(entries));
        let too_many = waiting.len().saturating_sub(MOST);
        waiting.drain(..too_many);
    }

    /// What the entry at `offset` says, if it is here. Offsets are asked for in order: earlier ones are let go.
    #[must_use]
    pub fn take(&self, offset: u64) -> Option<Handed> {
        let mut waiting = self.0.lock();
        while waiting.front().is_some_and(|(at, _)| *at < offset) {
            waiting.pop_front();
        }
        let is_here = waiting.front().is_some_and(|(at, _)| *at == offset);
        if is_here { waiting.pop_front().map(|(_, handed)| handed) } else { None }
    }
}

#[cfg(test)]
#[path = "handover_tests.rs"]
mod tests;
