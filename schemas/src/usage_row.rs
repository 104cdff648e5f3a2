//! One row per closed attempt, for analytics: the topic `usage`. No prompt data, by construction: there is no field.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use weir_domain::attempt::{Attempt, AttemptNumber, AttemptOutcome};
use weir_domain::calendar::Window;
use weir_domain::ids::{DeploymentId, KeyId, ModelName, ProviderId, Region, ReservationId, TeamId, TenantId};
use weir_domain::ledger::SourcePosition;
use weir_domain::money::NanoUsd;
use weir_domain::reservation::{Created, Labels, UsageRecord};
use weir_domain::usage::{Meter, Usage, UsageSource};

use crate::frame::{FieldError, FieldProblem};
use crate::parts::{dollars, labels, meters, millis, reservation};
use crate::record::{Record, check_figures};

/// May repeat: the newest source position of each attempt counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageRow {
    #[serde(rename = "reservation_id", with = "reservation")]
    pub reservation: ReservationId,
    pub attempt: AttemptNumber,
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
    pub outcome: AttemptOutcome,
    /// `false`: the figures are zero because nobody knows them yet (I9).
    pub usage_known: bool,
    pub input_tokens: i64,
    /// Part of the input.
    pub cached_tokens: i64,
    pub output_tokens: i64,
    /// Part of the output.
    pub reasoning_tokens: i64,
    #[serde(with = "meters")]
    pub meters: Usage,
    #[serde(with = "dollars")]
    pub charge_usd: NanoUsd,
    pub source: Option<UsageSource>,
    pub served_tier: Option<String>,
    #[serde(rename = "admitted_at", with = "millis")]
    pub admitted_at_ms: i64,
    #[serde(rename = "closed_at", with = "millis")]
    pub closed_at_ms: i64,
    pub window_day: Window,
    pub window_week: Window,
    pub window_month: Window,
    #[serde(with = "labels")]
    pub labels: Labels,
    pub end_user: Option<String>,
    pub source_partition: i32,
    pub source_offset: i64,
}

/// The event behind a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowSource {
    /// When it was recorded, ms.
    pub recorded_at_ms: i64,
    pub position: SourcePosition,
}

impl UsageRow {
    /// The row of a closed `attempt`. `record` is the usage that the ledger went by, when there is one; without it the
    /// row says so instead of showing zeros as a fact.
    #[must_use]
    pub fn of_attempt(
        created: &Created,
        region: &Region,
        attempt: &Attempt,
        record: Option<&UsageRecord>,
        source: RowSource,
    ) -> Self {
        let [window_day, window_week, window_month, _total] = created.counting.windows;
        let target = attempt.target.as_deref();
        let usage = record.map(|record| record.usage.clone()).unwrap_or_default();
        Self {
            reservation: created.id,
            attempt: attempt.number,
            tenant: created.tenant.clone(),
            team: created.team.clone(),
            key: created.key.clone(),
            model: created.model.clone(),
            region: region.clone(),
            deployment: target.map(|target| target.deployment.clone()),
            provider: target.map(|target| target.provider.clone()),
            upstream_model: target.map(|target| target.upstream_model.clone()),
            provider_region: target.map(|target| target.provider_region.clone()),
            outcome: attempt.outcome.unwrap_or(AttemptOutcome::MayHaveExecuted),
            usage_known: record.is_some() || attempt.outcome == Some(AttemptOutcome::NotExecuted),
            input_tokens: usage.input_tokens(),
            cached_tokens: usage.get(Meter::InCacheRead),
            output_tokens: usage.output_tokens(),
            reasoning_tokens: usage.get(Meter::OutReasoning),
            meters: usage,
            charge_usd: record.map(|record| record.charge.usd).unwrap_or_default(),
            source: record.map(|record| record.source),
            served_tier: record.and_then(|record| record.served_tier.clone()),
            admitted_at_ms: created.admitted_at_ms,
            closed_at_ms: source.recorded_at_ms,
            window_day,
            window_week,
            window_month,
            labels: Arc::clone(&created.labels),
            end_user: created.end_user.clone(),
            source_partition: source.position.partition,
            source_offset: source.position.offset,
        }
    }
}

impl Record for UsageRow {
    const NAME: &'static str = "UsageRow";
    const SCHEMA_ID: u32 = 70401;

    fn check(&self) -> Result<(), FieldError> {
        if self.attempt == 0 {
            return Err(FieldError { record: Self::NAME, field: "attempt", problem: FieldProblem::AttemptNumber });
        }
        let figures = [
            ("input_tokens", self.input_tokens),
            ("cached_tokens", self.cached_tokens),
            ("output_tokens", self.output_tokens),
            ("reasoning_tokens", self.reasoning_tokens),
            ("charge_usd", self.charge_usd.nanos()),
            ("source_partition", self.source_partition.into()),
            ("source_offset", self.source_offset),
        ];
        check_figures(Self::NAME, &figures)
    }
}
