//! Two sources of the same rank that disagree: the topic `discrepancies`.

use serde::{Deserialize, Serialize};
use weir_domain::attempt::AttemptNumber;
use weir_domain::ids::{Region, ReservationId, TenantId};
use weir_domain::ledger::{Discrepancy as Found, SourcePosition};
use weir_domain::money::{Amounts, Charge, NanoUsd};
use weir_domain::usage::UsageSource;

use crate::frame::{FieldError, FieldProblem};
use crate::parts::{dollars, millis, reservation};
use crate::record::{Record, check_figures};

/// What the ledger has, what else was reported, and what became of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Discrepancy {
    #[serde(rename = "reservation_id", with = "reservation")]
    pub reservation: ReservationId,
    pub attempt: AttemptNumber,
    pub tenant: TenantId,
    pub region: Region,
    pub recorded_requests: i64,
    pub recorded_tokens: i64,
    #[serde(with = "dollars")]
    pub recorded_usd: NanoUsd,
    pub recorded_source: UsageSource,
    pub reported_requests: i64,
    pub reported_tokens: i64,
    #[serde(with = "dollars")]
    pub reported_usd: NanoUsd,
    pub reported_source: UsageSource,
    pub cause: String,
    pub adjusted: bool,
    #[serde(rename = "found_at", with = "millis")]
    pub found_at_ms: i64,
    pub source_partition: i32,
    pub source_offset: i64,
}

impl Discrepancy {
    /// The record of what the ledger `found` in the event at `source`, recorded at `found_at_ms`.
    #[must_use]
    pub fn new(found: &Found, tenant: &TenantId, region: &Region, found_at_ms: i64, source: SourcePosition) -> Self {
        Self {
            reservation: found.reservation,
            attempt: found.attempt,
            tenant: tenant.clone(),
            region: region.clone(),
            recorded_requests: found.recorded.requests,
            recorded_tokens: found.recorded.tokens,
            recorded_usd: found.recorded.usd,
            recorded_source: found.recorded_source,
            reported_requests: found.reported.requests,
            reported_tokens: found.reported.tokens,
            reported_usd: found.reported.usd,
            reported_source: found.reported_source,
            cause: found.cause.clone(),
            adjusted: found.adjusted,
            found_at_ms,
            source_partition: source.partition,
            source_offset: source.offset,
        }
    }

    #[must_use]
    pub const fn recorded(&self) -> Charge {
        Amounts::new(self.recorded_requests, self.recorded_tokens, self.recorded_usd)
    }

    #[must_use]
    pub const fn reported(&self) -> Charge {
        Amounts::new(self.reported_requests, self.reported_tokens, self.reported_usd)
    }
}

impl Record for Discrepancy {
    const NAME: &'static str = "Discrepancy";
    const SCHEMA_ID: u32 = 70501;

    fn check(&self) -> Result<(), FieldError> {
        if self.attempt == 0 {
            return Err(FieldError { record: Self::NAME, field: "attempt", problem: FieldProblem::AttemptNumber });
        }
        let figures = [
            ("recorded_requests", self.recorded_requests),
            ("recorded_tokens", self.recorded_tokens),
            ("recorded_usd", self.recorded_usd.nanos()),
            ("reported_requests", self.reported_requests),
            ("reported_tokens", self.reported_tokens),
            ("reported_usd", self.reported_usd.nanos()),
            ("source_partition", self.source_partition.into()),
            ("source_offset", self.source_offset),
        ];
        check_figures(Self::NAME, &figures)
    }
}
