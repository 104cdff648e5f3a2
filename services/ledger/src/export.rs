//! Lines for finance: a tenant and a time range as CSV or JSON lines.
//!
//! Amounts are exact decimal strings, because a spreadsheet or a JSON reader would pass a number through a double. The
//! columns and their order are a promise: new ones are added at the end.

use std::collections::BTreeMap;
use std::io::Write;

use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};
use thiserror::Error;

use weir_domain::calendar::{Window, WindowKind};
use weir_domain::ids::TenantId;
use weir_domain::ledger::LedgerLine;
use weir_domain::money::Charge;
use weir_domain::usage::UsageSource;

use crate::contract::{LedgerError, LedgerStore, LineCursor, LinePage};

/// The text form of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ExportFormat {
    /// RFC 4180 with a heading; `usage` and `labels` are JSON in a cell.
    Csv,
    /// One object per line, the same names; `usage` and `labels` are objects.
    JsonLines,
}

/// Which lines: those of `tenant` posted in `from_ms..until_ms`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportRange {
    pub tenant: TenantId,
    pub from_ms: i64,
    pub until_ms: i64,
}

/// What was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Exported {
    pub lines: u64,
    /// The sum of the lines, to compare with a counter.
    pub charged: Charge,
}

/// Why an export ended early. What was written until then is not to be used.
#[derive(Debug, Error)]
pub enum ExportError {
    #[error("the ledger cannot be read")]
    Store(#[from] LedgerError),
    #[error("the export cannot be written")]
    Write(#[from] std::io::Error),
}

const WIDTH: usize = 28;

/// The names of the columns, in order.
pub const COLUMNS: [&str; WIDTH] = [
    "posted_at",
    "admitted_at",
    "reservation",
    "attempt",
    "seq",
    "tenant",
    "team",
    "key",
    "model",
    "deployment",
    "provider",
    "upstream_model",
    "provider_region",
    "requests",
    "tokens",
    "usd",
    "attempt_total_usd",
    "source",
    "flagged",
    "corrects",
    "cause",
    "price_version",
    "served_tier",
    "window_day",
    "window_month",
    "end_user",
    "labels",
    "usage",
];

/// Lines read at once: some megabytes.
const PAGE: usize = 2048;

/// Writes all lines of `range` to `out`, in order of posting.
///
/// # Errors
/// [`ExportError`].
pub async fn export<W: Write + Send>(
    store: &dyn LedgerStore,
    range: &ExportRange,
    format: ExportFormat,
    out: W,
) -> Result<Exported, ExportError> {
    let mut sheet = Sheet::new(format, out)?;
    let mut exported = Exported::default();
    let ExportRange { tenant, from_ms, until_ms } = range.clone();
    let mut page = LinePage { tenant, from_ms, until_ms, after: None, most: PAGE };
    loop {
        let lines = store.lines(page.clone()).await?;
        for line in &lines {
            sheet.write(&cells(line))?;
            exported.lines += 1;
            exported.charged += line.amount;
        }
        match lines.last() {
            Some(last) if lines.len() == PAGE => page.after = Some(LineCursor::of(last)),
            Some(_) | None => break,
        }
    }
    sheet.finish()?;
    Ok(exported)
}

/// One value of a line.
enum Cell {
    Absent,
    Text(String),
    Number(i64),
    Flag(bool),
    Numbers(BTreeMap<&'static str, i64>),
    Texts(BTreeMap<String, String>),
}

fn cells(line: &LedgerLine) -> [Cell; WIDTH] {
    let (created, record, target) = (&line.created, &line.record, line.target.as_deref());
    let text = |text: &str| Cell::Text(text.to_owned());
    let optional = |text: Option<&str>| text.map_or(Cell::Absent, |text| Cell::Text(text.to_owned()));
    let meters = record.usage.readings().iter().map(|reading| (reading.meter.code(), reading.quantity)).collect();
    [
        Cell::Text(instant(line.posted_at_ms)),
        Cell::Text(instant(created.admitted_at_ms)),
        Cell::Text(line.key.reservation.to_string()),
        Cell::Number(line.key.attempt.into()),
        Cell::Number(line.key.seq.into()),
        text(created.tenant.as_str()),
        optional(created.team.as_ref().map(|team| team.as_str())),
        text(created.key.as_str()),
        text(created.model.as_str()),
        optional(target.map(|target| target.deployment.as_str())),
        optional(target.map(|target| target.provider.as_str())),
        optional(target.map(|target| target.upstream_model.as_str())),
        optional(target.map(|target| target.provider_region.as_str())),
        Cell::Number(line.amount.requests),
        Cell::Number(line.amount.tokens),
        Cell::Text(line.amount.usd.to_string()),
        Cell::Text(line.total.usd.to_string()),
        text(source_name(record.source)),
        Cell::Flag(line.flagged),
        line.corrects.map_or(Cell::Absent, |seq| Cell::Number(seq.into())),
        text(&record.cause),
        text(record.price_version.as_str()),
        optional(record.served_tier.as_deref()),
        window(line, WindowKind::Day),
        window(line, WindowKind::Month),
        optional(created.end_user.as_deref()),
        Cell::Texts(created.labels.iter().cloned().collect()),
        Cell::Numbers(meters),
    ]
}

const fn source_name(source: UsageSource) -> &'static str {
    match source {
        UsageSource::Estimate => "estimate",
        UsageSource::Split => "split",
        UsageSource::BucketResidual => "bucket_residual",
        UsageSource::Response => "response",
        UsageSource::ProviderReport => "provider_report",
        UsageSource::Person => "person",
    }
}

fn window(line: &LedgerLine, kind: WindowKind) -> Cell {
    let of_kind = |window: &&Window| window.kind == kind;
    line.created.counting.windows.iter().find(of_kind).map_or(Cell::Absent, |window| Cell::Text(window.to_string()))
}

/// RFC 3339 in UTC with milliseconds; a time that no calendar can name stays a number.
fn instant(ms: i64) -> String {
    match chrono::DateTime::from_timestamp_millis(ms) {
        Some(time) => time.to_rfc3339_opts(chrono::SecondsFormat::Millis, true),
        None => ms.to_string(),
    }
}

enum Sheet<W: Write> {
    Csv(Box<csv::Writer<W>>),
    JsonLines(W),
}

impl<W: Write> Sheet<W> {
    fn new(format: ExportFormat, out: W) -> Result<Self, std::io::Error> {
        match format {
            ExportFormat::JsonLines => Ok(Self::JsonLines(out)),
            ExportFormat::Csv => {
                let mut writer = csv::Writer::from_writer(out);
                writer.write_record(COLUMNS)?;
                Ok(Self::Csv(Box::new(writer)))
            }
        }
    }

    fn write(&mut self, cells: &[Cell; WIDTH]) -> Result<(), std::io::Error> {
        match self {
            Self::Csv(writer) => Ok(writer.write_record(cells.iter().map(Cell::text))?),
            Self::JsonLines(out) => {
                serde_json::to_writer(&mut *out, &Object(cells))?;
                out.write_all(b"\n")
            }
        }
    }

    fn finish(self) -> Result<(), std::io::Error> {
        match self {
            Self::Csv(mut writer) => writer.flush(),
            Self::JsonLines(mut out) => out.flush(),
        }
    }
}

impl Cell {
    /// In a CSV cell. A map of texts and integers always has a JSON form.
    fn text(&self) -> String {
        match self {
            Self::Absent => String::new(),
            Self::Text(text) => text.clone(),
            Self::Number(number) => number.to_string(),
            Self::Flag(flag) => flag.to_string(),
            Self::Numbers(numbers) => serde_json::to_string(numbers).unwrap_or_default(),
            Self::Texts(texts) => serde_json::to_string(texts).unwrap_or_default(),
        }
    }
}

impl Serialize for Cell {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Absent => serializer.serialize_none(),
            Self::Text(text) => serializer.serialize_str(text),
            Self::Number(number) => serializer.serialize_i64(*number),
            Self::Flag(flag) => serializer.serialize_bool(*flag),
            Self::Numbers(numbers) => numbers.serialize(serializer),
            Self::Texts(texts) => texts.serialize(serializer),
        }
    }
}

/// A line as an object whose fields keep the order of the columns.
struct Object<'a>(&'a [Cell; WIDTH]);

impl Serialize for Object<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_map(Some(WIDTH))?;
        for (name, cell) in COLUMNS.iter().zip(self.0) {
            object.serialize_entry(name, cell)?;
        }
        object.end()
    }
}

#[cfg(test)]
#[path = "export_tests.rs"]
mod tests;
