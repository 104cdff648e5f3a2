//! One line of the ledger, flat, for finance and for whoever rebuilds counters from it: the topic `ledger`.
//!
//! Carries what a reader needs without the log: who, where, how much, since when, on whose word; and what the corrector
//! needs: the exact counters and the position of the event behind it. Money is split by unit in columns, because a
//! nested record is a nuisance in a warehouse.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use weir_domain::attempt::AttemptNumber;
use weir_domain::calendar::{Window, WindowKind};
use weir_domain::ids::{
    DeploymentId, KeyId, ModelName, PriceVersion, ProviderId, Region, ReservationId, TeamId, TenantId,
};
use weir_domain::ledger::{LedgerLine, LineKey, SourcePosition};
use weir_domain::money::{Amounts, Charge, NanoUsd};
use weir_domain::quota::{Correction, Counting, Scope};
use weir_domain::reservation::Labels;
use weir_domain::usage::{Usage, UsageSource};

use crate::frame::{FieldError, FieldProblem};
use crate::parts::{dollars, labels, meters, millis, reservation, scopes};
use crate::record::{Record, check_figures};

/// Unique on ([`Self::key`]); may be delivered more than once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerEntry {
    #[serde(rename = "reservation_id", with = "reservation")]
    pub reservation: ReservationId,
    pub attempt: AttemptNumber,
    pub seq: u32,
    pub tenant: TenantId,
    pub team: Option<TeamId>,
    #[serde(rename = "key_id")]
    pub key: KeyId,
    pub model: ModelName,
    pub region: Region,
    pub deployment: Option<DeploymentId>,
    pub provider: Option<ProviderId>,
    pub upstream_model: Option<String>,
    pub provider_region: Option<String>,
    /// This line's own amount, signed.
    pub amount_requests: i64,
    pub amount_tokens: i64,
    #[serde(with = "dollars")]
    pub amount_usd: NanoUsd,
    /// The attempt's running total after this line.
    pub total_requests: i64,
    pub total_tokens: i64,
    #[serde(with = "dollars")]
    pub total_usd: NanoUsd,
    #[serde(with = "meters")]
    pub meters: Usage,
    pub source: UsageSource,
    pub cause: String,
    pub price_version: PriceVersion,
    pub served_tier: Option<String>,
    /// The seq that an adjustment corrects.
    pub corrects: Option<u32>,
    pub flagged: bool,
    #[serde(rename = "admitted_at", with = "millis")]
    pub admitted_at_ms: i64,
    #[serde(rename = "posted_at", with = "millis")]
    pub posted_at_ms: i64,
    pub window_day: Window,
    pub window_week: Window,
    pub window_month: Window,
    #[serde(rename = "counted_scopes", with = "scopes")]
    pub scopes: Arc<[Scope]>,
    #[serde(with = "labels")]
    pub labels: Labels,
    pub end_user: Option<String>,
    pub source_partition: i32,
    pub source_offset: i64,
}

impl LedgerEntry {
    /// The entry of `line`, whose reservation is at home in `region`.
    #[must_use]
    pub fn from_line(line: &LedgerLine, region: &Region) -> Self {
        let LedgerLine { key, created, target, record, amount, total, corrects, flagged, posted_at_ms, source } = line;
        let [window_day, window_week, window_month, _total] = created.counting.windows;
        let target = target.as_deref();
        Self {
            reservation: key.reservation,
            attempt: key.attempt,
            seq: key.seq,
            tenant: created.tenant.clone(),
            team: created.team.clone(),
            key: created.key.clone(),
            model: created.model.clone(),
            region: region.clone(),
            deployment: target.map(|target| target.deployment.clone()),
            provider: target.map(|target| target.provider.clone()),
            upstream_model: target.map(|target| target.upstream_model.clone()),
            provider_region: target.map(|target| target.provider_region.clone()),
            amount_requests: amount.requests,
            amount_tokens: amount.tokens,
            amount_usd: amount.usd,
            total_requests: total.requests,
            total_tokens: total.tokens,
            total_usd: total.usd,
            meters: record.usage.clone(),
            source: record.source,
            cause: record.cause.clone(),
            price_version: record.price_version.clone(),
            served_tier: record.served_tier.clone(),
            corrects: *corrects,
            flagged: *flagged,
            admitted_at_ms: created.admitted_at_ms,
            posted_at_ms: *posted_at_ms,
            window_day,
            window_week,
            window_month,
            scopes: Arc::clone(&created.counting.scopes),
            labels: Arc::clone(&created.labels),
            end_user: created.end_user.clone(),
            source_partition: source.partition,
            source_offset: source.offset,
        }
    }

    #[must_use]
    pub const fn key(&self) -> LineKey {
        LineKey { reservation: self.reservation, attempt: self.attempt, seq: self.seq }
    }

    #[must_use]
    pub const fn amount(&self) -> Charge {
        Amounts::new(self.amount_requests, self.amount_tokens, self.amount_usd)
    }

    #[must_use]
    pub const fn total(&self) -> Charge {
        Amounts::new(self.total_requests, self.total_tokens, self.total_usd)
    }

    #[must_use]
    pub const fn source_position(&self) -> SourcePosition {
        SourcePosition { partition: self.source_partition, offset: self.source_offset }
    }

    /// The counters of the reservation, as locked at admission (I10).
    #[must_use]
    pub fn counting(&self) -> Counting {
        let windows = [self.window_day, self.window_week, self.window_month, Window::TOTAL];
        Counting { scopes: Arc::clone(&self.scopes), windows }
    }

    /// What the line does to the counters.
    #[must_use]
    pub fn correction(&self) -> Correction {
        Correction {
            reservation: self.reservation,
            number: self.attempt,
            total: self.total(),
            amount: self.amount(),
            counting: self.counting(),
            admitted_at_ms: self.admitted_at_ms,
            source: self.source_position(),
        }
    }
}

impl Record for LedgerEntry {
    const NAME: &'static str = "LedgerEntry";
    const SCHEMA_ID: u32 = 70301;

    /// Amounts have a sign; totals and positions have none.
    fn check(&self) -> Result<(), FieldError> {
        let figures = [
            ("total_requests", self.total_requests),
            ("total_tokens", self.total_tokens),
            ("total_usd", self.total_usd.nanos()),
            ("source_partition", self.source_partition.into()),
            ("source_offset", self.source_offset),
        ];
        check_figures(Self::NAME, &figures)?;
        let field = |field, problem| Err(FieldError { record: Self::NAME, field, problem });
        if self.attempt == 0 {
            return field("attempt", FieldProblem::AttemptNumber);
        }
        let kinds = [self.window_day.kind, self.window_week.kind, self.window_month.kind];
        if kinds != [WindowKind::Day, WindowKind::Week, WindowKind::Month] {
            return field("window_day", FieldProblem::NotFourWindows);
        }
        Ok(())
    }
}
