//! What the log counts. Alerts watch the time of a sync (every confirmed close waits for one) and reads from files
//! (a consumer that keeps up makes none).

use weir_runtime::metrics::{Counter, Histogram, Metrics};

/// Seconds. A good disk syncs in well under a millisecond, a shared one in a few, a sick one in hundreds.
const SYNC_BUCKETS: [f64; 10] = [0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.1, 0.5, 2.0];

/// One set of counters; clones share them. Those of the writer are counted once per drain, not per batch.
#[derive(Debug, Clone)]
pub struct LogMetrics {
    pub appends: Counter,
    pub append_bytes: Counter,
    pub drains: Counter,
    pub sync_seconds: Histogram,
    pub tail_reads: Counter,
    pub file_reads: Counter,
}

impl Default for LogMetrics {
    fn default() -> Self {
        Self {
            appends: Counter::default(),
            append_bytes: Counter::default(),
            drains: Counter::default(),
            sync_seconds: Histogram::new(SYNC_BUCKETS),
            tail_reads: Counter::default(),
            file_reads: Counter::default(),
        }
    }
}

impl LogMetrics {
    /// Registers everything under `weir_streams_…`; once per process.
    #[must_use]
    pub fn declare(metrics: &Metrics) -> Self {
        let own = Self::default();
        metrics.declare("streams", |registry| {
            registry.register("appends", "Batches written to the event log", own.appends.clone());
            registry.register("append_bytes", "Bytes of frames written to the event log", own.append_bytes.clone());
            registry.register("drains", "Times the writer emptied its queue", own.drains.clone());
            registry.register(
                "sync_seconds",
                "Time of one sync of a topic, its segments and its folder, in seconds",
                own.sync_seconds.clone(),
            );
            registry.register("tail_reads", "Reads answered from memory", own.tail_reads.clone());
            registry.register("file_reads", "Reads that went to a segment file", own.file_reads.clone());
        });
        own
    }
}
