//! The worst case of a request, before anything of it is spent (I7: it sizes a hold, never a bill).
//!
//! Output is what the client caps, else what the policy caps and Weir then writes into the request, else what the model
//! can do; times the choices. Input is bounded by bytes. The hold covers the dearest permitted deployment.

use std::collections::BTreeSet;
use std::sync::Arc;

use weir_domain::ids::DeploymentId;
use weir_domain::money::{Amounts, Hold};
use weir_domain::policy::{Key, Snapshot};
use weir_domain::price::{Price, PriceError, TierScope, TokenKinds, UsageBound};
use weir_domain::registry::{Capability, Deployment, LogicalModel, Tokenizer};
use weir_domain::usage::{Meter, MeterReading, Usage};
use weir_wire::bound::{TokenRatio, input_tokens_at_most};
use weir_wire::request::RequestFacts;
use weir_wire::{ClientRequest, RequestError, Untranslatable, UpstreamRequest};

use crate::dialects::{spoken, upstream_request};
use crate::recount::Count;
use crate::respond::{BodyRefusal, Refusal, Unavailable};

/// What each permitted deployment could cost at worst.
#[derive(Debug, Clone)]
pub(crate) struct Estimate {
    /// Of the dearest permitted deployment.
    pub hold: Hold,
    deployments: Vec<DeploymentEstimate>,
    /// The cap that Weir writes into the upstream request because the client gave none.
    pub written_cap: Option<u64>,
    /// The request in the dialect of the first deployment that speaks another one than the client. Others are translated
    /// anew when they are asked, so that a large body is not kept once for each of them.
    translated: Option<(DeploymentId, UpstreamRequest)>,
}

/// The worst case at one deployment, and the price that was locked for it (I10).
#[derive(Debug, Clone)]
pub(crate) struct DeploymentEstimate {
    deployment: DeploymentId,
    pub hold: Hold,
    pub price: Arc<Price>,
    bound: UsageBound,
    ratio: TokenRatio,
    tokenizer: Option<Tokenizer>,
    tier: Option<String>,
    /// Members that only advise about caching and that this deployment is not told.
    pub left_out: Vec<String>,
}

impl Estimate {
    pub(crate) fn of(&self, deployment: &DeploymentId) -> Option<&DeploymentEstimate> {
        self.deployments.iter().find(|estimate| estimate.deployment == *deployment)
    }

    /// The tokenizers of all permitted deployments; `None` when one of them is bounded by bytes only.
    pub(crate) fn tokenizers(&self) -> Option<Vec<Tokenizer>> {
        let all: Option<BTreeSet<Tokenizer>> = self.deployments.iter().map(|estimate| estimate.tokenizer).collect();
        Some(all?.into_iter().collect())
    }

    /// The same with counted text, where that is less.
    pub(crate) fn recounted(&self, count: &Count) -> Self {
        let deployments: Vec<_> = self.deployments.iter().map(|estimate| estimate.recounted(count)).collect();
        Self { hold: dearest(&deployments), deployments, ..self.clone() }
    }

    /// What `deployment` is sent.
    ///
    /// # Errors
    /// None for a deployment that is among the estimated.
    pub(crate) fn upstream_request(
        &self,
        request: &ClientRequest,
        deployment: &Deployment,
        correlation: &str,
    ) -> Result<UpstreamRequest, Untranslatable> {
        match &self.translated {
            Some((of, translated)) if *of == deployment.id => Ok(translated.clone()),
            Some(_) | None => upstream_request(request, deployment, self.written_cap, Some(correlation)),
        }
    }
}

impl DeploymentEstimate {
    fn recounted(&self, count: &Count) -> Self {
        let Some(tokens) = self.tokenizer.and_then(|tokenizer| count.tokens(tokenizer)) else { return self.clone() };
        let input_tokens = input_tokens_at_most(&count.rest, &self.ratio).saturating_add(tokens);
        let bound = UsageBound { input_tokens: input_tokens.min(self.bound.input_tokens), ..self.bound.clone() };
        match worst_case(&self.price, &bound, self.tier.as_deref()) {
            Ok(hold) => Self { hold, bound, ..self.clone() },
            Err(_) => self.clone(),
        }
    }

    /// The worst case once a part of the usage is known: its input exactly, its output still up to the cap. Partial
    /// usage is a bound, not a bill.
    pub(crate) fn tightened_by(&self, partial: &Usage) -> Option<Hold> {
        let bound = UsageBound { input_tokens: partial.input_tokens(), ..self.bound.clone() };
        worst_case(&self.price, &bound, self.tier.as_deref()).ok()
    }
}

/// Estimates `request` on every deployment of `model` that has a price, that `key` may use and that can be told all of
/// it; on the one that has its state, where there is one.
pub(crate) fn estimate(
    snapshot: &Snapshot,
    key: &Key,
    model: &LogicalModel,
    request: &ClientRequest,
    pinned: Option<&DeploymentId>,
    default_tokens_per_kilobyte: u32,
    now_ms: i64,
) -> Result<Estimate, Refusal> {
    let facts = request.facts();
    let written_cap = if facts.cap_tokens.is_none() { model.default_output_tokens } else { None };
    let written_cap = written_cap.and_then(|cap| u64::try_from(cap).ok());
    let mut deployments = Vec::with_capacity(1);
    let (mut translated, mut untold) = (None, None);
    let is_there = |deployment: &&Arc<Deployment>| pinned.is_none_or(|id| *id == deployment.id);
    for deployment in model.deployments().filter(is_there).filter(|deployment| is_permitted(key, deployment, facts)) {
        let left_out = if spoken(request.dialect(), deployment) == request.dialect() {
            Vec::new()
        } else {
            match upstream_request(request, deployment, written_cap, None) {
                Ok(upstream) => {
                    let left_out = upstream.left_out.clone();
                    translated.get_or_insert((deployment.id.clone(), upstream));
                    left_out
                }
                Err(error) => {
                    untold.get_or_insert(error);
                    continue;
                }
            }
        };
        let Ok(price) = snapshot.prices.price(&deployment.price, now_ms) else { continue };
        let ratio = ratio(deployment, default_tokens_per_kilobyte);
        let bound = if request.counts_only() { nothing() } else { bound(deployment, model, facts, &ratio) };
        let Ok(hold) = worst_case(price, &bound, facts.service_tier.as_deref()) else { continue };
        deployments.push(DeploymentEstimate {
            deployment: deployment.id.clone(),
            hold,
            price: Arc::clone(price),
            bound,
            ratio,
            tokenizer: deployment.tokenizer,
            tier: facts.service_tier.clone(),
            left_out,
        });
    }
    match (deployments.is_empty(), untold) {
        (true, Some(error)) => Err(BodyRefusal::Invalid(RequestError::from(error)).into()),
        (true, None) => Err(why_none(key, model, facts).into()),
        (false, _) => Ok(Estimate { hold: dearest(&deployments), deployments, written_cap, translated }),
    }
}

/// One request at whatever deployment costs most in each unit.
fn dearest(deployments: &[DeploymentEstimate]) -> Hold {
    let dearest = deployments.iter().fold(Amounts::ZERO, |dearest, estimate| dearest.max(estimate.hold));
    Amounts { requests: 1, ..dearest }
}

/// Deployments that the policy excludes do not size the hold.
fn is_permitted(key: &Key, deployment: &Deployment, facts: &RequestFacts) -> bool {
    key.tenant.regions.contains(&deployment.region)
        && key.tenant.providers.contains(&deployment.provider.id)
        && deployment.can(facts.needs)
}

fn why_none(key: &Key, model: &LogicalModel, facts: &RequestFacts) -> Unavailable {
    let permitted = model.deployments().any(|deployment| is_permitted(key, deployment, facts));
    if permitted {
        return Unavailable::Unpriced { model: facts.model.clone() };
    }
    let in_region = model.deployments().any(|d| key.tenant.regions.contains(&d.region));
    let of_vendor = model
        .deployments()
        .any(|d| key.tenant.regions.contains(&d.region) && key.tenant.providers.contains(&d.provider.id));
    let reason = match (in_region, of_vendor) {
        (false, _) => "residency",
        (true, false) => "vendor",
        (true, true) => "capability",
    };
    Unavailable::NoEligible { reason }
}

fn ratio(deployment: &Deployment, per_kilobyte: u32) -> TokenRatio {
    let of_deployment = u32::try_from(deployment.tokens_per_kilobyte).unwrap_or(per_kilobyte);
    TokenRatio {
        tokens_per_1000_bytes: if of_deployment == 0 { per_kilobyte } else { of_deployment },
        tokens_per_image: u32::try_from(deployment.tokens_per_image).unwrap_or(u32::MAX),
        ..TokenRatio::STRICT
    }
}

fn bound(deployment: &Deployment, model: &LogicalModel, facts: &RequestFacts, ratio: &TokenRatio) -> UsageBound {
    let cap = match (facts.cap_tokens, model.default_output_tokens) {
        (Some(cap), _) => i64::try_from(cap).unwrap_or(i64::MAX),
        (None, Some(default)) => default,
        (None, None) => deployment.max_output_tokens,
    };
    let kinds = TokenKinds {
        cache_writes: true,
        audio: facts.needs.contains(Capability::Audio),
        images: facts.size.images > 0,
    };
    UsageBound {
        input_tokens: input_tokens_at_most(&facts.size, ratio),
        output_tokens: cap.saturating_mul(i64::from(facts.choices)),
        kinds,
        units: searches(facts),
    }
}

/// What is held where no model runs.
fn nothing() -> UsageBound {
    UsageBound {
        input_tokens: 0,
        output_tokens: 0,
        kinds: TokenKinds { cache_writes: false, audio: false, images: false },
        units: Vec::new(),
    }
}

/// A provider that searches the web bills each search; one per choice is what a chat request can cause.
fn searches(facts: &RequestFacts) -> Vec<MeterReading> {
    let quantity = i64::from(facts.choices);
    let searches = facts.needs.contains(Capability::WebSearch);
    searches.then_some(MeterReading { meter: Meter::ToolWebSearch, quantity }).into_iter().collect()
}

fn worst_case(price: &Price, bound: &UsageBound, tier: Option<&str>) -> Result<Hold, PriceError> {
    let tiers = match tier {
        Some("auto") | None => TierScope::Any,
        Some(tier) => TierScope::Requested(tier),
    };
    let usd = price.worst_case(bound, tiers)?;
    Ok(Amounts { requests: 0, tokens: bound.input_tokens.saturating_add(bound.output_tokens), usd })
}
