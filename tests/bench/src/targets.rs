//! The targets of the design, section 11, beside what was found.

use crate::case::{Case, Shape};
use crate::report::{Mode, Report, Row};

/// One target and its figure; absent where the run did not measure it.
#[derive(Debug)]
pub(crate) struct Target {
    pub what: &'static str,
    pub found: Option<f64>,
    pub wanted: Wanted,
    pub unit: &'static str,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Wanted {
    AtMost(f64),
    AtLeast(f64),
}

impl Target {
    pub(crate) fn holds(&self) -> Option<bool> {
        self.found.map(|found| match self.wanted {
            Wanted::AtMost(most) => found <= most,
            Wanted::AtLeast(least) => found >= least,
        })
    }
}

/// What a stream may hold beyond the bare proxy's, KiB.
const IDLE_STREAM_KIB: f64 = 24.0;

pub(crate) fn of(report: &Report) -> Vec<Target> {
    match report.mode {
        Mode::Embedded => embedded(report),
        Mode::Stack => stack(report),
    }
}

/// On Kafka, a CQL server and Redis.
fn stack(report: &Report) -> Vec<Target> {
    use Wanted::{AtLeast, AtMost};
    let cpu = report.pair(Case::is_saturating_usual);
    let cpu = cpu.map(|(weir, bare)| weir.cpu_us_per_request / bare.cpu_us_per_request);
    let rates = report.metric("ledger_builder_rate").zip(report.metric("cql_conditional_inserts"));
    let of_inserts = rates.map(|(builder, inserts)| 100.0 * builder / inserts);
    let target = |what, found, wanted, unit| Target { what, found, wanted, unit };
    vec![
        target("CPU per plain request, 6 KB, 64 connections", cpu, AtMost(4.0), "× bare"),
        target("added latency p50, 20 ms provider", report.metric("added_p50_weir"), AtMost(0.8), "ms"),
        target("added latency p99, 20 ms provider", report.metric("added_p99_weir"), AtMost(5.0), "ms"),
        target("ledger builder, of bare conditional inserts", of_inserts, AtLeast(60.0), "%"),
    ]
}

fn embedded(report: &Report) -> Vec<Target> {
    use Wanted::{AtLeast, AtMost};
    let ratio =
        |wanted: fn(&Case) -> bool, of: fn(&Row) -> f64| report.pair(wanted).map(|(weir, bare)| of(weir) / of(bare));
    let cpu = |row: &Row| row.cpu_us_per_request;
    let chunk = |row: &Row| row.cpu_us_per_chunk.unwrap_or_default();
    let idle = report.metric("idle_stream_memory_weir").zip(report.metric("idle_stream_memory_bare"));
    let target = |what, found, wanted, unit| Target { what, found, wanted, unit };
    vec![
        target(
            "CPU per plain request, 6 KB, 64 connections",
            ratio(Case::is_saturating_usual, cpu),
            AtMost(2.5),
            "× bare",
        ),
        target("CPU per chunk that arrive together", ratio(|case| is_stream(case, 0), chunk), AtMost(1.0), "× bare"),
        target("CPU per chunk with 10 ms gaps", ratio(|case| is_stream(case, 10), chunk), AtMost(1.25), "× bare"),
        target("added latency p50, 20 ms provider", report.metric("added_p50_weir"), AtMost(0.3), "ms"),
        target("added latency p99, 20 ms provider", report.metric("added_p99_weir"), AtMost(2.0), "ms"),
        target(
            "throughput per core at saturation",
            ratio(Case::is_saturating_usual, |row| 1.0 / row.cpu_us_per_request),
            AtLeast(0.4),
            "× bare",
        ),
        target(
            "memory per idle stream, beyond bare",
            idle.map(|(weir, bare)| weir - bare),
            AtMost(IDLE_STREAM_KIB),
            "KiB",
        ),
        target("fold", report.metric("fold_rate"), AtLeast(200_000.0), "events/s"),
    ]
}

fn is_stream(case: &Case, gap_ms: u64) -> bool {
    case.is_usual_pair()
        && case.shape == Shape::Stream
        && case.gap_ms == gap_ms
        && case.connections > 1
        && case.provider_delay_ms == 0
}
