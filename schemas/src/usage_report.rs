//! What is said about usage after the fact: the topic `usage-reports`.
//!
//! One neutral form for provider look-ups, usage buckets, files and people. A bucket never settles a reservation by
//! itself: only what the matcher makes of it does, so that every settlement has one report as its cause.

use serde::{Deserialize, Serialize};
use weir_domain::attempt::AttemptNumber;
use weir_domain::ids::{ProviderId, ReservationId};
use weir_domain::money::NanoUsd;
use weir_domain::usage::Usage;

use crate::frame::{FieldError, FieldProblem};
use crate::parts::{meters, millis, optional_dollars, optional_millis, optional_reservation};
use crate::record::{Record, check_figures};

/// Consumers keep the highest revision of a `report_id`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageReport {
    /// A hash of adapter, account, grain and natural key: stable over revisions.
    pub report_id: String,
    pub revision: u32,
    pub adapter: String,
    pub source: ReportSource,
    pub grain: ReportGrain,
    pub provider: ProviderId,
    /// `None` only for a bucket.
    pub correlation: Option<Correlation>,
    /// A bucket is `[start, end)`.
    #[serde(rename = "window_start", with = "optional_millis")]
    pub window_start_ms: Option<i64>,
    #[serde(rename = "window_end", with = "optional_millis")]
    pub window_end_ms: Option<i64>,
    #[serde(rename = "occurred_at", with = "optional_millis")]
    pub occurred_at_ms: Option<i64>,
    #[serde(rename = "fetched_at", with = "millis")]
    pub fetched_at_ms: i64,
    pub model_requested: Option<String>,
    pub model_reported: Option<String>,
    pub service_tier: Option<String>,
    /// `None`: not reported. Zero is a statement.
    pub request_count: Option<i64>,
    #[serde(with = "meters")]
    pub meters: Usage,
    /// For comparison, never billed.
    #[serde(with = "optional_dollars")]
    pub cost_usd: Option<NanoUsd>,
    pub outcome: ReportOutcome,
    /// A process or a person.
    pub reporter: String,
    /// Why a person reports; empty for a process.
    pub reason: String,
}

/// What kind of statement a report is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReportSource {
    ObjectById,
    ObjectByTag,
    RequestLog,
    UsageBucket,
    CostBucket,
    PeerExport,
    /// A person, or a file that a person vouches for.
    Manual,
}

/// What a report speaks of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReportGrain {
    Attempt,
    Bucket,
}

/// How a report names an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Correlation {
    pub kind: CorrelationKind,
    /// As the provider gives it.
    pub value: String,
    #[serde(rename = "reservation_id", with = "optional_reservation")]
    pub reservation: Option<ReservationId>,
    pub attempt: Option<AttemptNumber>,
}

/// Which id a correlation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CorrelationKind {
    /// The one that Weir sent along.
    GatewayAttempt,
    ProviderResponse,
    ProviderRequest,
    ProviderGeneration,
}

/// How the provider says the call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReportOutcome {
    Completed,
    Incomplete,
    Failed,
    Cancelled,
    Filtered,
    /// It does not say.
    Unreported,
}

impl UsageReport {
    /// The cause of the usage that this report leads to: tells its revisions apart.
    #[must_use]
    pub fn cause(&self) -> String {
        format!("{}/{}", self.report_id, self.revision)
    }
}

impl Record for UsageReport {
    const NAME: &'static str = "ProviderUsageReport";
    const SCHEMA_ID: u32 = 70201;

    fn check(&self) -> Result<(), FieldError> {
        let is_unnamed = match self.grain {
            ReportGrain::Attempt => self.correlation.is_none(),
            ReportGrain::Bucket => false,
        };
        let names_attempt_zero = self.correlation.as_ref().is_some_and(|named| named.attempt == Some(0));
        if is_unnamed || names_attempt_zero {
            return Err(FieldError { record: Self::NAME, field: "correlation", problem: FieldProblem::AttemptNumber });
        }
        let figures = [
            ("request_count", self.request_count.unwrap_or_default()),
            ("cost_usd", self.cost_usd.unwrap_or_default().nanos()),
        ];
        check_figures(Self::NAME, &figures)
    }
}
