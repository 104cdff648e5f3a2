//! From rows of texts to reports, or to the list of what is wrong with them.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Display;
use std::str::FromStr;

use chrono::DateTime;
use sha2::{Digest, Sha256};

use weir_domain::attempt::AttemptNumber;
use weir_domain::ids::{ProviderId, ReservationId};
use weir_domain::money::NanoUsd;
use weir_domain::usage::{Meter, Usage};
use weir_schemas::usage_report::{Correlation, CorrelationKind, ReportGrain, ReportOutcome, ReportSource, UsageReport};

use super::read::{Row, problem};
use super::{Importer, Problem};
use crate::claim::Said;

/// What brought the report, on the log.
const ADAPTER: &str = "import";
/// A longer text is none that a provider or a person gave on purpose.
const LONGEST_TEXT_BYTES: usize = 512;
/// Sets these hashes apart from every other use of SHA-256; a changed recipe gets a new word.
const ID_RECIPE: &[u8] = b"weir.import.1\0";

/// Checks all rows; what is wrong goes to `problems`.
pub(super) fn reports(rows: &[Row], importer: &Importer, problems: &mut Vec<Problem>) -> Vec<UsageReport> {
    let mut reports: Vec<UsageReport> = Vec::with_capacity(rows.len());
    let mut lines: HashMap<String, (u64, usize)> = HashMap::new();
    for row in rows {
        let before = problems.len();
        let report = Checked { row, problems }.report(importer);
        if problems.len() > before {
            continue;
        }
        match lines.get(&report.cause()) {
            Some((_, at)) if reports[*at] == report => {}
            Some((first, _)) => problems.push(problem(
                row.line,
                "revision",
                format!("line {first} has the same `report_id` and `revision`, and says something else"),
                "raise `revision` where the content changed",
            )),
            None => {
                lines.insert(report.cause(), (row.line, reports.len()));
                reports.push(report);
            }
        }
    }
    reports
}

struct Checked<'a> {
    row: &'a Row,
    problems: &'a mut Vec<Problem>,
}

const FIELDS: [&str; 14] = [
    "report_id",
    "revision",
    "reservation_id",
    "attempt",
    "provider_response_id",
    "provider",
    "occurred_at",
    "model",
    "service_tier",
    "requests",
    "outcome",
    "cost_usd",
    "source",
    "reason",
];

impl Checked<'_> {
    fn report(mut self, importer: &Importer) -> UsageReport {
        self.check_names();
        let report = UsageReport {
            report_id: self.text("report_id").unwrap_or_else(|| content_id(&self.row.fields)),
            revision: self.revision(),
            adapter: ADAPTER.to_owned(),
            source: self.source(),
            grain: ReportGrain::Attempt,
            provider: ProviderId::from(self.text("provider").unwrap_or_default()),
            correlation: self.correlation(),
            window_start_ms: None,
            window_end_ms: None,
            occurred_at_ms: self.occurred_at_ms(),
            fetched_at_ms: importer.at_ms,
            model_requested: None,
            model_reported: self.text("model"),
            service_tier: self.text("service_tier"),
            request_count: self.number("requests", 0, i64::MAX, "write 0 or 1"),
            meters: self.meters(),
            cost_usd: self
                .parsed("cost_usd", "write decimal dollars such as \"0.028\"", |cost: &NanoUsd| !cost.is_negative()),
            outcome: self.outcome(),
            reporter: importer.who.clone(),
            reason: self.text("reason").unwrap_or_else(|| importer.why.clone()),
        };
        if let Err(unusable) = Said::by(&report) {
            let meters = "give the meters that were used, or say that nothing ran: `requests` 0, or `outcome` failed";
            self.wrong("meters", unusable.to_string(), meters);
        }
        report
    }

    fn wrong(&mut self, field: &str, what: impl Into<String>, fix: impl Into<String>) {
        self.problems.push(problem(self.row.line, field, what, fix));
    }

    /// An unknown field is a misspelt one, or something that Weir would silently leave out.
    fn check_names(&mut self) {
        for (field, text) in &self.row.fields {
            if !FIELDS.contains(&field.as_str()) && field.parse::<Meter>().is_err() {
                let fix = format!("fields are {}, and meters such as `in.uncached`", FIELDS.join(", "));
                self.wrong(field, "there is no such field", fix);
            }
            if text.len() > LONGEST_TEXT_BYTES {
                let what = format!("it has {} bytes", text.len());
                self.wrong(field, what, format!("write at most {LONGEST_TEXT_BYTES}"));
            }
        }
    }

    fn text(&self, field: &str) -> Option<String> {
        self.row.fields.get(field).cloned()
    }

    fn parsed<T: FromStr<Err: Display>>(
        &mut self,
        field: &str,
        fix: &str,
        is_allowed: impl FnOnce(&T) -> bool,
    ) -> Option<T> {
        let text = self.row.fields.get(field)?;
        match text.parse::<T>() {
            Ok(value) if is_allowed(&value) => Some(value),
            Ok(_) => {
                self.wrong(field, format!("`{text}` is out of range"), fix);
                None
            }
            Err(error) => {
                self.wrong(field, format!("`{text}` is not valid: {error}"), fix);
                None
            }
        }
    }

    fn number(&mut self, field: &str, low: i64, high: i64, fix: &str) -> Option<i64> {
        self.parsed(field, fix, |number: &i64| (low..=high).contains(number))
    }

    /// Without an id of its own a row's id is what it says, so that a revision would mean nothing.
    fn revision(&mut self) -> u32 {
        if self.row.fields.contains_key("revision") && !self.row.fields.contains_key("report_id") {
            self.wrong("revision", "it needs a `report_id` that it revises", "give one, or leave `revision` out");
        }
        self.parsed("revision", "write a whole number from 1", |number: &u32| *number > 0).unwrap_or(1)
    }

    fn correlation(&mut self) -> Option<Correlation> {
        let reservation: Option<ReservationId> =
            self.parsed("reservation_id", "write the UUID that Weir gave", |_| true);
        let attempt: Option<AttemptNumber> =
            self.parsed("attempt", "write a whole number from 1", |number: &AttemptNumber| *number > 0);
        let provider_id = self.text("provider_response_id");
        let is_named = self.row.fields.contains_key("reservation_id") || provider_id.is_some();
        if !is_named {
            self.wrong("reservation_id", "the row names no attempt", "give `reservation_id` or `provider_response_id`");
        }
        let (kind, value) = match (provider_id, reservation) {
            (Some(value), _) => (CorrelationKind::ProviderResponse, value),
            (None, Some(id)) => (CorrelationKind::GatewayAttempt, id.to_string()),
            (None, None) => return None,
        };
        Some(Correlation { kind, value, reservation, attempt })
    }

    fn occurred_at_ms(&mut self) -> Option<i64> {
        let text = self.row.fields.get("occurred_at")?;
        match DateTime::parse_from_rfc3339(text) {
            Ok(time) => Some(time.timestamp_millis()),
            Err(error) => {
                let what = format!("`{text}` is no time: {error}");
                self.wrong("occurred_at", what, "write RFC 3339, such as 2026-03-01T12:00:00Z");
                None
            }
        }
    }

    fn meters(&mut self) -> Usage {
        let mut readings = Vec::new();
        for meter in Meter::ALL {
            let fix = "write a whole number, digits only";
            readings.extend(self.number(meter.code(), 0, i64::MAX, fix).map(|quantity| (*meter, quantity)));
        }
        match Usage::new(readings) {
            Ok(usage) => usage,
            Err(error) => {
                self.wrong("meters", error.to_string(), "correct the quantity");
                Usage::default()
            }
        }
    }

    fn outcome(&mut self) -> ReportOutcome {
        let Some(text) = self.row.fields.get("outcome") else { return ReportOutcome::Unreported };
        match text.as_str() {
            "completed" => ReportOutcome::Completed,
            "incomplete" => ReportOutcome::Incomplete,
            "failed" => ReportOutcome::Failed,
            "cancelled" => ReportOutcome::Cancelled,
            "filtered" => ReportOutcome::Filtered,
            other => {
                let fix = "write completed, incomplete, failed, cancelled or filtered";
                self.wrong("outcome", format!("`{other}` is no outcome"), fix);
                ReportOutcome::Unreported
            }
        }
    }

    fn source(&mut self) -> ReportSource {
        let Some(text) = self.row.fields.get("source") else { return ReportSource::Manual };
        match text.as_str() {
            "manual" => ReportSource::Manual,
            "request_log" => ReportSource::RequestLog,
            "object_by_id" => ReportSource::ObjectById,
            "object_by_tag" => ReportSource::ObjectByTag,
            "peer_export" => ReportSource::PeerExport,
            other => {
                let fix = "write manual, request_log, object_by_id, object_by_tag or peer_export";
                self.wrong("source", format!("`{other}` is no source of a report about one attempt"), fix);
                ReportSource::Manual
            }
        }
    }
}

/// Sixteen bytes of a SHA-256 over all fields but the reason, in hex: the same words are the same report.
fn content_id(fields: &BTreeMap<String, String>) -> String {
    let mut hash = Sha256::new();
    hash.update(ID_RECIPE);
    for (field, text) in fields.iter().filter(|(field, _)| field.as_str() != "reason") {
        for part in [field, text] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part.as_bytes());
        }
    }
    hex::encode(&hash.finalize()[..16])
}
