//! Attempts as one text in the row of their reservation.
//!
//! `[number, outcome, [deployment, provider, upstream model, region, price], started with, hold now, charge, provider's id]`
//! each, amounts as `[requests, tokens, nano-USD]`, `null` for what is not there and for a hold that was never
//! tightened. Without names, because the row is written twice per request; `v_attempts` has them.

use std::borrow::Cow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use weir_domain::attempt::{Attempt, AttemptNumber, AttemptOutcome, Target};
use weir_domain::money::{Amounts, NanoUsd};

use crate::contract::LedgerError;

use super::rows::{damaged, json};

type Figures = (i64, i64, i64);

#[derive(Serialize, Deserialize)]
struct Packed<'a>(
    AttemptNumber,
    Option<u8>,
    #[serde(borrow)] Option<[Cow<'a, str>; 5]>,
    Figures,
    Option<Figures>,
    Option<Figures>,
    #[serde(borrow)] Option<Cow<'a, str>>,
);

pub(super) fn attempts_text(attempts: &[Attempt]) -> Result<String, LedgerError> {
    let packed: Vec<Packed<'_>> = attempts.iter().map(pack).collect();
    json("attempts", &packed)
}

pub(super) fn read_attempts(text: &str) -> Result<Vec<Attempt>, LedgerError> {
    let packed: Vec<Packed<'_>> = serde_json::from_str(text).map_err(|error| damaged("attempts", &error))?;
    packed.into_iter().map(unpack).collect()
}

fn pack(attempt: &Attempt) -> Packed<'_> {
    let target = attempt.target.as_deref().map(|target| {
        let Target { deployment, provider, upstream_model, provider_region, price } = target;
        [deployment.as_str(), provider.as_str(), upstream_model, provider_region, price].map(Cow::Borrowed)
    });
    let hold = (attempt.hold != attempt.started_with).then(|| figures(attempt.hold));
    let charge = attempt.charge.map(figures);
    let provider_id = attempt.provider_id.as_deref().map(Cow::Borrowed);
    let outcome = attempt.outcome.map(outcome_code);
    Packed(attempt.number, outcome, target, figures(attempt.started_with), hold, charge, provider_id)
}

fn unpack(packed: Packed<'_>) -> Result<Attempt, LedgerError> {
    let Packed(number, outcome, target, started_with, hold, charge, provider_id) = packed;
    Ok(Attempt {
        number,
        target: target.map(|[deployment, provider, upstream_model, provider_region, price]| {
            Arc::new(Target {
                deployment: deployment.as_ref().into(),
                provider: provider.as_ref().into(),
                upstream_model: upstream_model.into_owned(),
                provider_region: provider_region.into_owned(),
                price: price.into_owned(),
            })
        }),
        started_with: amounts(started_with),
        hold: amounts(hold.unwrap_or(started_with)),
        outcome: outcome.map(outcome_of).transpose()?,
        charge: charge.map(amounts),
        provider_id: provider_id.map(Cow::into_owned),
    })
}

const fn figures(amounts: Amounts) -> Figures {
    (amounts.requests, amounts.tokens, amounts.usd.nanos())
}

const fn amounts((requests, tokens, nanos): Figures) -> Amounts {
    Amounts::new(requests, tokens, NanoUsd::from_nanos(nanos))
}

/// The row of `attempt_outcomes`.
const fn outcome_code(outcome: AttemptOutcome) -> u8 {
    match outcome {
        AttemptOutcome::NotExecuted => 0,
        AttemptOutcome::MayHaveExecuted => 1,
        AttemptOutcome::Executed => 2,
        AttemptOutcome::ExecutedUsageUnknown => 3,
    }
}

fn outcome_of(code: u8) -> Result<AttemptOutcome, LedgerError> {
    const ALL: [AttemptOutcome; 4] = [
        AttemptOutcome::NotExecuted,
        AttemptOutcome::MayHaveExecuted,
        AttemptOutcome::Executed,
        AttemptOutcome::ExecutedUsageUnknown,
    ];
    ALL.into_iter().find(|outcome| outcome_code(*outcome) == code).ok_or_else(|| damaged("attempt outcome", &code))
}
