//! The accounting of one request: opened when it arrives, closed exactly once, however it ends.
//!
//! It travels with the request's future and then with the body of the answer. When the client leaves, hyper drops
//! whichever holds it, and the drop is the record of the cancellation.

use std::sync::Arc;

use weir_runtime::clock::SharedClock;

use crate::dialect::Figures;
use crate::journal::{Billed, Journal, Record, State};
use crate::script::Billing;
use crate::shelf::Kept;

#[derive(Debug)]
pub(crate) struct Exchange {
    journal: Arc<Journal>,
    clock: SharedClock,
    record: Option<Arc<Record>>,
    /// What the provider keeps of the answer, to be fetched or built on later.
    kept: Option<Kept>,
    tab: Option<Tab>,
    chunks: u64,
    bytes: u64,
    ended: bool,
}

/// What the provider will charge, by how far it comes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tab {
    pub(crate) billing: Billing,
    /// For the whole answer.
    pub(crate) whole: Figures,
    /// Content chunks of the whole answer, over all choices.
    pub(crate) chunks: u64,
}

impl Exchange {
    pub(crate) fn begin(journal: Arc<Journal>, clock: SharedClock, record: Option<Arc<Record>>) -> Self {
        journal.begin();
        Self { journal, clock, record, kept: None, tab: None, chunks: 0, bytes: 0, ended: false }
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut crate::journal::Entry)) {
        if let Some(record) = &self.record {
            record.change(change);
        }
    }

    pub(crate) fn keep(&mut self, kept: Kept) {
        self.kept = Some(kept);
    }

    /// From here on the provider works, and charges.
    pub(crate) fn open_tab(&mut self, tab: Tab) {
        self.tab = Some(tab);
    }

    /// A plain answer is generated whole before its first byte is sent: whatever becomes of it, all of it is charged.
    pub(crate) fn all_generated(&mut self) {
        if let Some(tab) = self.tab.as_mut().filter(|tab| tab.billing == Billing::Generated) {
            tab.billing = Billing::Full;
        }
    }

    pub(crate) fn wrote(&mut self, chunks: u64, bytes: usize) {
        self.chunks += chunks;
        self.bytes += u64::try_from(bytes).unwrap_or(u64::MAX);
        if let Some(record) = &self.record {
            record.wrote(self.chunks, self.bytes);
        }
    }

    pub(crate) fn end(&mut self, state: State) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        let billed = self.tab.and_then(|tab| tab.charge(self.chunks, state));
        if let Some(kept) = &self.kept {
            kept.end(state);
        }
        let now_ms = self.clock.now_ms();
        self.change(|entry| {
            entry.state = state;
            entry.ended_at_ms = Some(now_ms);
            entry.billed = billed;
        });
        self.journal.end(state, billed);
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.end(State::Cancelled);
    }
}

impl Tab {
    fn charge(self, chunks_written: u64, state: State) -> Option<Billed> {
        match self.billing {
            Billing::None => None,
            Billing::Full => Some(self.whole.into()),
            Billing::Generated if state == State::Complete && chunks_written >= self.chunks => Some(self.whole.into()),
            Billing::Generated => Some(self.generated(chunks_written)),
        }
    }

    /// The prompt is charged whole, the completion by the share of chunks that were written, rounded down.
    fn generated(self, chunks_written: u64) -> Billed {
        let share = |tokens: i64| {
            if chunks_written >= self.chunks {
                return if self.chunks == 0 { 0 } else { tokens };
            }
            let part = i128::from(tokens) * i128::from(chunks_written) / i128::from(self.chunks);
            i64::try_from(part).unwrap_or(tokens)
        };
        let completion = share(self.whole.completion);
        Billed { completion, reasoning: share(self.whole.reasoning), ..self.whole.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_charge_depends_on_the_chunks_that_were_written() {
        let whole = Figures { prompt: 100, completion: 10, cached: 40, reasoning: 4, ..Figures::default() };
        let tab = |billing| Tab { billing, whole, chunks: 4 };
        let billed = |prompt, completion, reasoning| {
            Some(Billed { prompt, completion, cached: 40, reasoning, ..Billed::default() })
        };
        let cases = [
            (Billing::Generated, 4, State::Complete, billed(100, 10, 4)),
            (Billing::Generated, 4, State::Cancelled, billed(100, 10, 4)),
            (Billing::Generated, 3, State::Cancelled, billed(100, 7, 3)),
            (Billing::Generated, 0, State::Broken, billed(100, 0, 0)),
            (Billing::Full, 0, State::Cancelled, billed(100, 10, 4)),
            (Billing::None, 4, State::Complete, None),
        ];
        for (billing, chunks, state, expected) in cases {
            assert_eq!(tab(billing).charge(chunks, state), expected, "{billing:?} {chunks} {state:?}");
        }
        let no_chunks = Tab { billing: Billing::Generated, whole, chunks: 0 };
        assert_eq!(no_chunks.charge(0, State::Complete), billed(100, 10, 4));
        assert_eq!(no_chunks.charge(0, State::Cancelled), billed(100, 0, 0));
    }
}
