//! What reached the provider, what it did, and what it charged.
//!
//! The journal is bounded and can be off; the totals are always counted. A gateway's ledger is compared with the
//! totals, so billing is a function of the script and of how many chunks were written, never of time.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::dialect::Figures;

/// One request, as far as it has come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Counts from 1, in order of arrival.
    pub id: u64,
    /// Milliseconds since the Unix epoch.
    pub at_ms: i64,
    pub method: String,
    pub path: String,
    pub headers: Vec<(String, String)>,
    /// The start of the request's body, invalid UTF-8 replaced.
    pub body: String,
    pub body_bytes: u64,
    pub model: String,
    /// The id in the answer, as `x-request-id` of a real provider.
    pub answer_id: String,
    pub status: u16,
    pub state: State,
    /// When the state became final.
    pub ended_at_ms: Option<i64>,
    /// Content chunks handed to the connection.
    pub chunks_written: u64,
    /// Bytes of the body handed to the connection.
    pub bytes_written: u64,
    /// Absent until the end, and where nothing is charged.
    pub billed: Option<Billed>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    Running,
    /// The answer was handed over to its end.
    Complete,
    /// The client's connection ended first.
    Cancelled,
    /// The script ended it: a reset, a cut, a refusal.
    Broken,
}

/// What the provider charges for one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Billed {
    pub prompt: i64,
    pub completion: i64,
    /// Of the prompt.
    pub cached: i64,
    /// Of the prompt.
    pub cache_write: i64,
    /// Of what was written to the cache, for the longer of two lives.
    #[serde(default)]
    pub cache_write_long: i64,
    /// Of the completion.
    pub reasoning: i64,
}

impl From<Figures> for Billed {
    fn from(figures: Figures) -> Self {
        let Figures { prompt, completion, cached, cache_write, cache_write_long, reasoning } = figures;
        Self { prompt, completion, cached, cache_write, cache_write_long, reasoning }
    }
}

/// Sums over all requests since the start or the last reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Totals {
    pub requests: u64,
    /// Requests that were charged for.
    pub executed: u64,
    pub cancelled: u64,
    /// Requests whose answer has not ended.
    pub open: u64,
    pub billed: Billed,
}

/// How much the journal keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JournalOptions {
    /// The newest entries; 0 turns the journal off.
    pub entries: usize,
    /// Of each request's body.
    pub body_bytes: usize,
}

impl Default for JournalOptions {
    /// A test's whole run, in at most some 100 MB.
    fn default() -> Self {
        Self { entries: 10_000, body_bytes: 8 * 1024 }
    }
}

#[derive(Debug)]
pub(crate) struct Journal {
    pub(crate) options: JournalOptions,
    next_id: AtomicU64,
    entries: Mutex<VecDeque<Arc<Record>>>,
    totals: Mutex<Totals>,
}

/// An entry while its request runs.
#[derive(Debug)]
pub(crate) struct Record {
    entry: Mutex<Entry>,
    chunks: AtomicU64,
    bytes: AtomicU64,
}

impl Journal {
    pub(crate) fn new(options: JournalOptions) -> Self {
        Self { options, next_id: AtomicU64::new(1), entries: Mutex::default(), totals: Mutex::default() }
    }

    pub(crate) fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn keeps_entries(&self) -> bool {
        self.options.entries > 0
    }

    pub(crate) fn begin(&self) {
        let mut totals = self.totals.lock();
        totals.requests += 1;
        totals.open += 1;
    }

    pub(crate) fn add(&self, entry: Entry) -> Arc<Record> {
        let record = Arc::new(Record { entry: Mutex::new(entry), chunks: AtomicU64::new(0), bytes: AtomicU64::new(0) });
        let mut entries = self.entries.lock();
        if entries.len() >= self.options.entries {
            entries.pop_front();
        }
        entries.push_back(record.clone());
        record
    }

    pub(crate) fn end(&self, state: State, billed: Option<Billed>) {
        let mut totals = self.totals.lock();
        totals.open = totals.open.saturating_sub(1);
        totals.cancelled += u64::from(state == State::Cancelled);
        if let Some(billed) = billed {
            totals.executed += 1;
            let sum = &mut totals.billed;
            sum.prompt = sum.prompt.saturating_add(billed.prompt);
            sum.completion = sum.completion.saturating_add(billed.completion);
            sum.cached = sum.cached.saturating_add(billed.cached);
            sum.cache_write = sum.cache_write.saturating_add(billed.cache_write);
            sum.cache_write_long = sum.cache_write_long.saturating_add(billed.cache_write_long);
            sum.reasoning = sum.reasoning.saturating_add(billed.reasoning);
        }
    }

    /// Entries with an id above `since`, oldest first.
    pub(crate) fn entries(&self, since: u64) -> Vec<Entry> {
        let entries = self.entries.lock().clone();
        let mut entries: Vec<_> =
            entries.iter().map(|record| record.entry()).filter(|entry| entry.id > since).collect();
        entries.sort_by_key(|entry| entry.id);
        entries
    }

    pub(crate) fn totals(&self) -> Totals {
        *self.totals.lock()
    }

    /// Forgets the entries and the sums; what is open stays open and is counted when it ends.
    pub(crate) fn clear(&self) {
        self.entries.lock().clear();
        let mut totals = self.totals.lock();
        *totals = Totals { open: totals.open, ..Totals::default() };
    }
}

impl Record {
    fn entry(&self) -> Entry {
        let mut entry = self.entry.lock().clone();
        entry.chunks_written = self.chunks.load(Ordering::Relaxed);
        entry.bytes_written = self.bytes.load(Ordering::Relaxed);
        entry
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut Entry)) {
        change(&mut self.entry.lock());
    }

    pub(crate) fn wrote(&self, chunks: u64, bytes: u64) {
        self.chunks.store(chunks, Ordering::Relaxed);
        self.bytes.store(bytes, Ordering::Relaxed);
    }
}
