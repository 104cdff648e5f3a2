//! Usage reports from files and from the admin API: JSON lines and CSV.
//!
//! Both forms have the same fields. **Nothing is half imported**: every row is read and checked before the first report
//! is appended, and an error names line, field, and what to write instead. Importing the same file twice is harmless: a
//! row's id is a hash of what it says, unless the row brings its own.
//!
//! | field | meaning |
//! |---|---|
//! | `reservation_id`, `attempt` | which attempt; without `attempt` the only one there is |
//! | `provider_response_id` | which attempt, by the provider's id of the answer; one of the two is required |
//! | `provider` | the provider account; checked against the attempt's when given |
//! | a meter's code, such as `in.uncached` | whole quantity; in JSON inside `meters` |
//! | `requests` | `0` says that the provider ran nothing |
//! | `outcome` | `completed`, `incomplete`, `failed`, `cancelled`, `filtered`; `failed` without meters: nothing ran |
//! | `cost_usd` | what the provider bills, decimal dollars; compared, never billed |
//! | `service_tier`, `model` | as the provider reports them |
//! | `occurred_at` | RFC 3339 |
//! | `source` | `manual` (default: whoever imports vouches for it), `request_log`, `object_by_id`, `object_by_tag`, `peer_export` |
//! | `report_id`, `revision` | for feeds that correct themselves; a revision needs an id |
//! | `reason` | why; default: the one given for the whole file |

mod check;
mod read;

use bytes::Bytes;
use thiserror::Error;

use weir_schemas::usage_report::UsageReport;
use weir_streams::Topic;

use crate::journal::{Journal, JournalError};

/// Rows of one file: some fifty megabytes of reports in memory.
pub const MAX_ROWS: usize = 100_000;
/// Bytes of one file.
pub const MAX_BYTES: usize = 64 * 1024 * 1024;
/// Problems that are listed: a person mends these, and tries again.
const MOST_PROBLEMS: usize = 20;

/// How the rows are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    JsonLines,
    /// Comma-separated, with a header line of field names.
    Csv,
}

/// Who imports, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Importer {
    /// As the admin API authenticated them.
    pub who: String,
    pub why: String,
    /// Now, ms.
    pub at_ms: i64,
}

/// One thing that is wrong in a file.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("line {line}, `{field}`: {problem}; {fix}")]
pub struct Problem {
    /// From 1; the header of a CSV file is line 1.
    pub line: u64,
    pub field: String,
    pub problem: String,
    pub fix: String,
}

/// Why nothing was imported.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ImportError {
    #[error("the file has {bytes} bytes, at most {MAX_BYTES} are read at once: split it")]
    TooLarge { bytes: usize },
    #[error("the file has more than {MAX_ROWS} rows: split it")]
    TooManyRows,
    #[error("{}", listed(.problems, *.more))]
    Rows {
        problems: Vec<Problem>,
        /// Beyond those listed.
        more: usize,
    },
}

fn listed(problems: &[Problem], more: usize) -> String {
    let mut lines: Vec<String> = problems.iter().map(Problem::to_string).collect();
    if more > 0 {
        lines.push(format!("and {more} more"));
    }
    lines.join("\n")
}

/// Reads and checks every row.
///
/// # Errors
/// [`ImportError`], which lists what to mend; then nothing of the file counts.
pub fn parse(format: Format, bytes: &[u8], importer: &Importer) -> Result<Vec<UsageReport>, ImportError> {
    if bytes.len() > MAX_BYTES {
        return Err(ImportError::TooLarge { bytes: bytes.len() });
    }
    let (rows, mut problems) = match format {
        Format::JsonLines => read::json_lines(bytes),
        Format::Csv => read::csv(bytes),
    }?;
    let reports = check::reports(&rows, importer, &mut problems);
    if problems.is_empty() {
        return Ok(reports);
    }
    problems.sort_by_key(|problem| problem.line);
    let more = problems.len().saturating_sub(MOST_PROBLEMS);
    problems.truncate(MOST_PROBLEMS);
    Err(ImportError::Rows { problems, more })
}

/// Appends `reports` to `weir.usage-reports` and returns when all are durable. When the log refuses in the middle, the
/// same again is harmless.
///
/// # Errors
/// [`JournalError`].
pub async fn append(journal: &Journal, reports: Vec<UsageReport>) -> Result<usize, JournalError> {
    let count = reports.len();
    let keyed: Vec<(Bytes, UsageReport)> =
        reports.into_iter().map(|report| (Bytes::from(report.report_id.clone()), report)).collect();
    journal.write_all(Topic::UsageReports, &keyed).await?;
    Ok(count)
}

#[cfg(test)]
mod tests;
