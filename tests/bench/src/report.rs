//! What was measured, as rows: medians over the rounds of each case.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use crate::case::{Api, Case, Shape};
use crate::error::BenchError;
use crate::load::{Seen, as_f64, stream};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Subject {
    Weir,
    Bare,
}

/// One round of one subject.
#[derive(Debug, Clone)]
pub(crate) struct Measured {
    pub seen: Seen,
    pub cpu_ns: u64,
    pub rss_kib: u64,
    /// Nanoseconds by the names of threads.
    pub threads: BTreeMap<String, u64>,
}

/// All rounds of a case.
#[derive(Debug)]
pub(crate) struct Rounds {
    case: Case,
    measured: BTreeMap<Subject, Vec<Measured>>,
    /// The provider asked without a proxy, where a difference of latencies is wanted.
    pub direct: Vec<Seen>,
}

impl Rounds {
    pub(crate) fn new(case: Case) -> Self {
        Self { case, measured: BTreeMap::new(), direct: Vec::new() }
    }

    pub(crate) fn push(&mut self, subject: Subject, measured: Measured) {
        self.measured.entry(subject).or_default().push(measured);
    }
}

/// One subject under one load.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Row {
    pub subject: Subject,
    pub mode: Mode,
    pub shape: Shape,
    pub ingress: Api,
    /// Of the provider that Weir calls; the bare proxy forwards what its client speaks.
    pub egress: Api,
    pub prompt_kb: f64,
    pub gap_ms: u64,
    pub connections: usize,
    pub provider_delay_ms: u64,
    pub requests_per_s: f64,
    /// To the whole answer of a plain request; to the first event of a stream.
    pub p50_ms: f64,
    pub p99_ms: f64,
    /// User and system, all threads, what is derived afterwards included.
    pub cpu_us_per_request: f64,
    /// The whole stream's cost, shared among its content chunks; absent for a plain answer.
    pub cpu_us_per_chunk: Option<f64>,
    /// What one core could do if it did nothing else: whole requests, or whole streams.
    pub per_core_s: f64,
    pub rss_mib: f64,
    #[serde(skip)]
    pub case: Case,
    /// Microseconds per request by the names of threads, the dearest first.
    #[serde(skip)]
    pub threads: Vec<(String, f64)>,
}

/// A figure that fits no row.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Metric {
    pub metric: &'static str,
    pub value: f64,
    pub unit: &'static str,
}

#[derive(Debug, Clone)]
pub(crate) struct Report {
    pub mode: Mode,
    pub rows: Vec<Row>,
    pub metrics: Vec<Metric>,
}

/// Where Weir's stores are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Mode {
    /// In the process.
    Embedded,
    /// On Kafka, a CQL server and Redis.
    Stack,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Entry<'a> {
    Row(&'a Row),
    Metric(&'a Metric),
}

impl Report {
    pub(crate) const fn new(mode: Mode) -> Self {
        Self { mode, rows: Vec::new(), metrics: Vec::new() }
    }

    pub(crate) fn add(&mut self, rounds: &Rounds) {
        for (subject, measured) in &rounds.measured {
            let row = row(self.mode, rounds.case, *subject, measured);
            if !rounds.direct.is_empty() {
                let direct = |of: fn(&Seen) -> f64| median(rounds.direct.iter().map(of));
                let (p50, p99) = match subject {
                    Subject::Weir => ("added_p50_weir", "added_p99_weir"),
                    Subject::Bare => ("added_p50_bare", "added_p99_bare"),
                };
                let added = |metric, value| Metric { metric, value, unit: "ms" };
                self.metrics.push(added(p50, row.p50_ms - direct(|seen| seen.p50_ms)));
                self.metrics.push(added(p99, row.p99_ms - direct(|seen| seen.p99_ms)));
            }
            self.rows.push(row);
        }
    }

    pub(crate) fn metric(&self, name: &str) -> Option<f64> {
        self.metrics.iter().find(|metric| metric.metric == name).map(|metric| metric.value)
    }

    /// Both rows of the first case that `wanted` chooses.
    pub(crate) fn pair(&self, wanted: impl Fn(&Case) -> bool) -> Option<(&Row, &Row)> {
        let of = |subject| self.rows.iter().find(|row| row.subject == subject && wanted(&row.case));
        of(Subject::Weir).zip(of(Subject::Bare))
    }

    /// Replaces what an earlier run of this mode has left in the file, and keeps what is of the other.
    pub(crate) fn write(&self, path: &Path) -> Result<(), BenchError> {
        let unexpected = |error: serde_json::Error| BenchError::unexpected("the report", error);
        let before = std::fs::read_to_string(path).unwrap_or_default();
        let mut entries: Vec<Value> = serde_json::from_str(&before).unwrap_or_default();
        let mode = serde_json::to_value(self.mode).map_err(unexpected)?;
        entries.retain(|entry| entry.get("mode").is_some_and(|of| *of != mode));
        for entry in self.rows.iter().map(Entry::Row).chain(self.metrics.iter().map(Entry::Metric)) {
            let mut entry = serde_json::to_value(entry).map_err(unexpected)?;
            entry["mode"] = mode.clone();
            entries.push(entry);
        }
        let text = serde_json::to_string_pretty(&entries).map_err(unexpected)?;
        std::fs::write(path, text + "\n").map_err(BenchError::io("the report"))
    }
}

fn row(mode: Mode, case: Case, subject: Subject, measured: &[Measured]) -> Row {
    let over = |of: &dyn Fn(&Measured) -> f64| median(measured.iter().map(of));
    let cpu_us = |ns: u64| as_f64(ns) / 1e3;
    let per_chunk = |each: &Measured| cpu_us(each.cpu_ns) / stream::chunks(each.seen.requests);
    Row {
        subject,
        mode,
        shape: case.shape,
        ingress: case.ingress,
        egress: case.egress,
        prompt_kb: case.prompt_kb(),
        gap_ms: case.gap_ms,
        connections: case.connections,
        provider_delay_ms: case.provider_delay_ms,
        requests_per_s: over(&|each| each.seen.requests_per_s()),
        p50_ms: over(&|each| each.seen.p50_ms),
        p99_ms: over(&|each| each.seen.p99_ms),
        cpu_us_per_request: over(&|each| cpu_us(each.cpu_ns) / as_f64(each.seen.requests)),
        cpu_us_per_chunk: match case.shape {
            Shape::Plain => None,
            Shape::Stream => Some(over(&per_chunk)),
        },
        per_core_s: over(&|each| as_f64(each.seen.requests) * 1e6 / cpu_us(each.cpu_ns)),
        rss_mib: over(&|each| as_f64(each.rss_kib) / 1024.0),
        case,
        threads: threads(measured),
    }
}

fn threads(measured: &[Measured]) -> Vec<(String, f64)> {
    let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
    for (name, ns) in measured.iter().flat_map(|each| &each.threads) {
        *sums.entry(name).or_default() += ns;
    }
    let requests: u64 = measured.iter().map(|each| each.seen.requests).sum();
    let mut threads: Vec<(String, f64)> =
        sums.into_iter().map(|(name, ns)| (name.to_owned(), as_f64(ns) / 1e3 / as_f64(requests.max(1)))).collect();
    threads.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    threads
}

/// The middle one; between two middle ones, their mean. 0 of nothing.
pub(crate) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match (values.get(middle), values.len() % 2) {
        (None, _) => 0.0,
        (Some(upper), 1) => *upper,
        (Some(upper), _) => (values[middle - 1] + upper) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_replaces_only_what_is_of_its_own_mode() {
        let folder = std::env::temp_dir().join(format!("weir-bench-report-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let file = folder.join("report.json");
        for (mode, value) in [(Mode::Embedded, 1.0), (Mode::Stack, 2.0), (Mode::Embedded, 3.0)] {
            let metrics = vec![Metric { metric: "m", value, unit: "s" }];
            Report { mode, rows: Vec::new(), metrics }.write(&file).unwrap();
        }
        let written: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
        std::fs::remove_dir_all(folder).unwrap();
        let entry =
            |mode: &str, value: f64| serde_json::json!({"metric": "m", "value": value, "unit": "s", "mode": mode});
        assert_eq!(written, [entry("stack", 2.0), entry("embedded", 3.0)]);
    }

    #[test]
    fn a_median_is_the_middle() {
        for (values, middle) in [(&[][..], 0.0), (&[3.0], 3.0), (&[9.0, 1.0, 2.0], 2.0), (&[4.0, 1.0, 2.0, 9.0], 3.0)] {
            assert!((median(values.iter().copied()) - middle).abs() < 1e-9, "{values:?}");
        }
    }
}
