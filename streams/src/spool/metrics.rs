//! What the spool shows. An alert watches its age: while it grows, the brokers are away and the room is being used up.

use weir_runtime::metrics::{Counter, Gauge, Metrics};

/// One set; clones share it.
#[derive(Debug, Clone, Default)]
pub struct SpoolMetrics {
    pub bytes: Gauge,
    pub records: Gauge,
    pub age_ms: Gauge,
    pub spooled: Counter,
    pub forwarded: Counter,
}

impl SpoolMetrics {
    /// Registers everything under `weir_spool_…`; once per process.
    #[must_use]
    pub fn declare(metrics: &Metrics) -> Self {
        let own = Self::default();
        metrics.declare("spool", |registry| {
            registry.register("bytes", "Bytes that wait in the spool for the brokers", own.bytes.clone());
            registry.register("records", "Records that wait in the spool for the brokers", own.records.clone());
            registry.register(
                "age_ms",
                "How long the spool has not been empty, in milliseconds; zero when it is",
                own.age_ms.clone(),
            );
            registry.register("spooled", "Records that were put into the spool", own.spooled.clone());
            registry.register("forwarded", "Records of the spool that the brokers confirmed", own.forwarded.clone());
        });
        own
    }
}
