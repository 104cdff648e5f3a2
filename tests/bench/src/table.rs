//! The report for people: one line a case, Weir beside the bare proxy, and the targets.

use std::fmt::Write as _;

use crate::report::Report;
use crate::targets::{self, Wanted};

/// Threads that a line names; the others are small.
const NAMED_THREADS: usize = 6;

pub(crate) fn of(report: &Report) -> String {
    let mut text = format!(
        "\n{:<52}{:>22}{:>22}{:>16}{:>16}{:>14}\n",
        "medians: weir / bare", "CPU µs a request", "requests/s", "p50 ms", "p99 ms", "RSS MiB"
    );
    let cases: Vec<_> = report.rows.iter().map(|row| row.case).collect();
    let mut seen = Vec::new();
    for case in cases {
        if seen.contains(&case) {
            continue;
        }
        seen.push(case);
        let Some((weir, bare)) = report.pair(|other| *other == case) else { continue };
        let cpu = format!(
            "{:.0} / {:.0} = {:.2}",
            weir.cpu_us_per_request,
            bare.cpu_us_per_request,
            weir.cpu_us_per_request / bare.cpu_us_per_request
        );
        let rate = format!(
            "{:.0} / {:.0} = {:.2}",
            weir.requests_per_s,
            bare.requests_per_s,
            weir.requests_per_s / bare.requests_per_s
        );
        let pair = |a: f64, b: f64| format!("{a:.2} / {b:.2}");
        line(
            &mut text,
            format_args!(
                "{:<52}{cpu:>22}{rate:>22}{:>16}{:>16}{:>14}",
                case.to_string(),
                pair(weir.p50_ms, bare.p50_ms),
                pair(weir.p99_ms, bare.p99_ms),
                format!("{:.0} / {:.0}", weir.rss_mib, bare.rss_mib),
            ),
        );
        let threads: Vec<String> =
            weir.threads.iter().take(NAMED_THREADS).map(|(name, us)| format!("{name} {us:.1}")).collect();
        line(&mut text, format_args!("{:<52}  µs by thread: {}", "", threads.join(", ")));
    }
    text.push('\n');
    for metric in &report.metrics {
        line(&mut text, format_args!("{:<46}{:>14.3} {}", metric.metric, metric.value, metric.unit));
    }
    line(&mut text, format_args!("\n{:<46}{:>14}  {:<16}", "targets", "found", "wanted"));
    for target in targets::of(report) {
        let wanted = match target.wanted {
            Wanted::AtMost(most) => format!("≤ {most} {}", target.unit),
            Wanted::AtLeast(least) => format!("≥ {least} {}", target.unit),
        };
        let found = target.found.map_or("not measured".to_owned(), |found| format!("{found:.2}"));
        let verdict = match target.holds() {
            None => "",
            Some(true) => "holds",
            Some(false) => "MISSED",
        };
        line(&mut text, format_args!("{:<46}{found:>14}  {wanted:<22}{verdict}", target.what));
    }
    text
}

fn line(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    // Writing to a String does not fail.
    let _ = writeln!(text, "{arguments}");
}
