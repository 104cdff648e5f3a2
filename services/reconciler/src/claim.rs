//! What a usage report says, without asking anybody: which attempt it speaks of, and what that attempt used.

use std::sync::Arc;

use thiserror::Error;

use weir_domain::attempt::{Attempt, AttemptNumber};
use weir_domain::ids::ReservationId;
use weir_domain::ledger::LedgerLine;
use weir_domain::money::{Amounts, NanoUsd};
use weir_domain::price::{Price, PriceError};
use weir_domain::reservation::{Closing, Created, UsageRecord};
use weir_domain::usage::{Usage, UsageSource};
use weir_schemas::usage_report::{Correlation, CorrelationKind, ReportGrain, ReportOutcome, ReportSource, UsageReport};

/// How a report names its attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claim {
    /// By our own ids. Without a number: the only attempt there is.
    Ours(ReservationId, Option<AttemptNumber>),
    /// By an id that the provider gave.
    Provider(String),
    /// A correlation that is none of ours, or none at all.
    Nameless,
}

impl Claim {
    #[must_use]
    pub fn of(report: &UsageReport) -> Self {
        match &report.correlation {
            Some(Correlation { reservation: Some(id), attempt, .. }) => Self::Ours(*id, *attempt),
            Some(Correlation { kind: CorrelationKind::GatewayAttempt, value, .. }) => {
                parse_correlation(value).map_or(Self::Nameless, |(id, number)| Self::Ours(id, Some(number)))
            }
            Some(Correlation { value, .. }) if !value.is_empty() => Self::Provider(value.clone()),
            Some(_) | None => Self::Nameless,
        }
    }
}

/// What Weir sends along with an attempt where the provider keeps it: the reservation's id, a dash, the attempt.
#[must_use]
pub fn correlation(id: ReservationId, number: AttemptNumber) -> String {
    format!("{id}-{number}")
}

fn parse_correlation(value: &str) -> Option<(ReservationId, AttemptNumber)> {
    let (id, number) = value.rsplit_once(['-', '/', '.'])?;
    Some((id.parse().ok()?, number.parse().ok().filter(|number| *number > 0)?))
}

/// What a report says of its attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Said {
    /// The provider did not run it: nothing is owed.
    NotExecuted,
    Used(Usage),
}

/// Why a report cannot be used as it is. A person repairs the report, the catalog, or skips it.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Unusable {
    #[error("it has neither meters, nor `request_count` 0, nor the outcome `failed`: unknown is not zero")]
    SaysNothing,
    #[error("it has meters, and says by `request_count` 0 that nothing ran: correct one of the two")]
    Contradiction,
    #[error("it has money without meters: a cost is only compared, meters are billed")]
    CostAlone,
    #[error("the attempt is known from its ledger line alone: where it went, and so its price, is not")]
    NoTarget,
    #[error("no price book of version `{version}` with a price `{name}` is kept: bring it back, then replay")]
    NoPrice { version: String, name: String },
    #[error("the locked price does not cover it")]
    Price(#[source] PriceError),
}

impl Said {
    /// # Errors
    /// [`Unusable`], when it says nothing that can be billed.
    pub fn by(report: &UsageReport) -> Result<Self, Unusable> {
        let has_meters = !report.meters.readings().is_empty();
        match (has_meters, report.request_count, report.outcome) {
            (true, Some(0), _) => Err(Unusable::Contradiction),
            (true, _, _) => Ok(Self::Used(report.meters.clone())),
            (false, Some(0), _) | (false, _, ReportOutcome::Failed) => Ok(Self::NotExecuted),
            (false, _, _) if report.cost_usd.is_some_and(|cost| cost != NanoUsd::ZERO) => Err(Unusable::CostAlone),
            (false, _, _) => Err(Unusable::SaysNothing),
        }
    }

    /// The record that goes on the log, priced by the price that `locked` finds. Nothing used is a record too, for an
    /// attempt that was charged before; it needs no price.
    ///
    /// # Errors
    /// [`Unusable`], when there is no locked price or it does not cover the meters.
    pub fn record(
        &self,
        report: &UsageReport,
        created: &Created,
        locked: impl FnOnce() -> Result<Arc<Price>, Unusable>,
    ) -> Result<UsageRecord, Unusable> {
        let (usage, usd) = match self {
            Self::NotExecuted => (Usage::default(), NanoUsd::ZERO),
            Self::Used(usage) => {
                let charge = locked()?.charge(usage, report.service_tier.as_deref());
                (usage.clone(), charge.map_err(Unusable::Price)?)
            }
        };
        Ok(UsageRecord {
            charge: Amounts::new(0, usage.tokens(), usd),
            usage,
            source: source_of(report),
            price_version: created.price_version.clone(),
            served_tier: report.service_tier.clone(),
            cause: report.cause(),
        })
    }

    /// How the attempt ended, for one of which nobody knew.
    #[must_use]
    pub fn closing(&self, record: &Arc<UsageRecord>) -> Closing {
        match self {
            Self::NotExecuted => Closing::NotExecuted,
            Self::Used(_) => Closing::Executed(Arc::clone(record)),
        }
    }
}

/// Who stands for it: a person outranks the provider.
const fn source_of(report: &UsageReport) -> UsageSource {
    match (report.source, report.grain) {
        (ReportSource::Manual, _) => UsageSource::Person,
        (_, ReportGrain::Bucket) => UsageSource::BucketResidual,
        (
            ReportSource::ObjectById
            | ReportSource::ObjectByTag
            | ReportSource::RequestLog
            | ReportSource::UsageBucket
            | ReportSource::CostBucket
            | ReportSource::PeerExport,
            ReportGrain::Attempt,
        ) => UsageSource::ProviderReport,
    }
}

/// Whether the ledger has this report already, or a newer revision of it.
#[must_use]
pub fn is_posted(report: &UsageReport, number: AttemptNumber, lines: &[LedgerLine]) -> bool {
    let of_attempt = lines.iter().filter(|line| line.key.attempt == number);
    of_attempt.filter_map(|line| line.record.cause.rsplit_once('/')).any(|(report_id, revision)| {
        report_id == report.report_id && revision.parse::<u32>().is_ok_and(|posted| posted >= report.revision)
    })
}

/// Whether `report` can be about `attempt`: an id of one provider means nothing at another.
#[must_use]
pub fn is_of_provider(report: &UsageReport, attempt: &Attempt) -> bool {
    let names_one = !report.provider.as_str().is_empty();
    attempt.target.as_ref().is_none_or(|target| !names_one || target.provider == report.provider)
}

#[cfg(test)]
mod tests {
    use weir_domain::testing::id;

    use super::*;

    fn named(kind: CorrelationKind, value: &str) -> Correlation {
        Correlation { kind, value: value.to_owned(), reservation: None, attempt: None }
    }

    fn claim(correlation: Correlation) -> Claim {
        let report = crate::scenarios::report(id(1), 1, 1, 1);
        Claim::of(&UsageReport { correlation: Some(correlation), ..report })
    }

    #[test]
    fn an_attempt_is_named_by_our_ids_or_by_the_providers() {
        let ours = correlation(id(7), 2);
        assert_eq!(claim(named(CorrelationKind::GatewayAttempt, &ours)), Claim::Ours(id(7), Some(2)));
        assert_eq!(claim(named(CorrelationKind::ProviderResponse, "resp-1")), Claim::Provider("resp-1".to_owned()));
        let both = Correlation { reservation: Some(id(7)), ..named(CorrelationKind::ProviderRequest, "req-1") };
        assert_eq!(claim(both), Claim::Ours(id(7), None), "our own id says more than the provider's");
        for nameless in ["", "7", &id(7).to_string(), &format!("{}-0", id(7)), &format!("{}-x", id(7))] {
            assert_eq!(claim(named(CorrelationKind::GatewayAttempt, nameless)), Claim::Nameless, "{nameless}");
        }
        assert_eq!(claim(named(CorrelationKind::ProviderResponse, "")), Claim::Nameless);
    }
}
