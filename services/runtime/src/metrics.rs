//! Metrics of the process, in the OpenMetrics text format.
//!
//! Each crate declares its metrics once, in its `metrics.rs`, under its own name: `gateway` and `requests` become
//! `weir_gateway_requests_total`. Names are `<crate>_<noun>_<unit>`; the encoder adds `_total` to counters. Label
//! values that come from outside go through [`BoundedLabels`], or one hostile client could fill the memory of the
//! process and of whatever scrapes it.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use prometheus_client::registry::Registry;

mod process;

pub use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
pub use prometheus_client::metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram};

/// The content type of [`Metrics::encode`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// All metrics of one process. Clones share them; tests make one of their own.
#[derive(Debug, Clone)]
pub struct Metrics {
    registry: Arc<Mutex<Registry>>,
}

impl Metrics {
    #[must_use]
    pub fn new() -> Self {
        Self { registry: Arc::new(Mutex::new(Registry::with_prefix("weir"))) }
    }

    /// Declares the metrics of `crate_name` (without the `weir-`); called once per crate and process.
    pub fn declare<T>(&self, crate_name: &'static str, register: impl FnOnce(&mut Registry) -> T) -> T {
        register(self.registry.lock().sub_registry_with_prefix(crate_name))
    }

    /// What `/metrics` answers.
    #[must_use]
    pub fn encode(&self) -> String {
        let mut text = String::new();
        if prometheus_client::encoding::text::encode(&mut text, &self.registry.lock()).is_err() {
            // Writing to a string cannot fail, so a metric's own encoding did: half a scrape would look like zeros.
            tracing::error!("metrics could not be encoded");
            text.clear();
        }
        text
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

/// The label that stands for every value beyond the bound.
pub const OTHER: &str = "other";

/// Label values from outside: the first `max` distinct ones are kept; all later ones, and those which are too long or
/// would break the text format, count as [`OTHER`].
#[derive(Debug)]
pub struct BoundedLabels {
    max: usize,
    seen: RwLock<HashSet<Arc<str>>>,
}

/// A longer value is no name a person chose.
const LONGEST_LABEL_BYTES: usize = 128;

impl BoundedLabels {
    #[must_use]
    pub fn new(max: usize) -> Self {
        Self { max, seen: RwLock::default() }
    }

    /// The label for `value`.
    #[must_use]
    pub fn label(&self, value: &str) -> Arc<str> {
        if let Some(known) = self.seen.read().get(value) {
            return known.clone();
        }
        if value.len() > LONGEST_LABEL_BYTES || value.chars().any(breaks_the_format) {
            return Arc::from(OTHER);
        }
        let mut seen = self.seen.write();
        // Another thread may have brought this value, or the last free place, since the read.
        match seen.get(value) {
            Some(known) => known.clone(),
            None if seen.len() < self.max => {
                let label: Arc<str> = Arc::from(value);
                seen.insert(label.clone());
                label
            }
            None => Arc::from(OTHER),
        }
    }
}

/// The encoder writes label values as they are, so one with a quote could forge a line of the scrape.
fn breaks_the_format(character: char) -> bool {
    character.is_control() || character == '"' || character == '\\'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
    struct ByModel {
        model: Arc<str>,
    }

    #[test]
    fn a_scrape_shows_names_help_labels_and_totals() {
        let metrics = Metrics::new();
        let requests = metrics.declare("gateway", |registry| {
            let requests = Family::<ByModel, Counter>::default();
            registry.register("requests", "Requests that reached the gateway", requests.clone());
            requests
        });
        let open: Gauge = metrics.declare("runtime", |registry| {
            let open = Gauge::default();
            registry.register("connections_open", "Open connections", open.clone());
            open
        });
        requests.get_or_create(&ByModel { model: Arc::from("m1") }).inc();
        open.set(3);

        let expected = "\
# HELP weir_gateway_requests Requests that reached the gateway.
# TYPE weir_gateway_requests counter
weir_gateway_requests_total{model=\"m1\"} 1
# HELP weir_runtime_connections_open Open connections.
# TYPE weir_runtime_connections_open gauge
weir_runtime_connections_open 3
# EOF
";
        assert_eq!(metrics.encode(), expected);
    }

    #[test]
    fn label_values_are_bounded_in_number_length_and_alphabet() {
        let labels = BoundedLabels::new(2);
        assert_eq!((&*labels.label("a"), &*labels.label("b"), &*labels.label("c")), ("a", "b", OTHER));
        assert_eq!(&*labels.label("a"), "a", "what is known stays known");
        let unfit = ["x".repeat(129), "a\"} 1\nforged 1".to_owned(), "a\\".to_owned(), "a\nb".to_owned()];
        for value in unfit {
            assert_eq!(&*BoundedLabels::new(9).label(&value), OTHER, "{value}");
        }
    }
}
