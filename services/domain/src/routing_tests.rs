//! The hard filter as a table, and the order that follows it.

use std::collections::{HashMap, HashSet};

use super::*;
use crate::calendar::Calendar;
use crate::ids::PriceVersion;
use crate::policy::{Allowed, KeyHash, Tenant, TenantSecret};
use crate::price::PriceEntry;
use crate::reconcile::CeilingPolicy;
use crate::registry::{
    AnthropicVersion, CapField, Capability, Deadlines, OnAbandon, OnBreak, Provider, ProviderDialect,
};
use crate::testing::NOON_MS;

fn deployment(id: &str) -> Deployment {
    let provider = Provider {
        id: "alpha".into(),
        dialect: ProviderDialect::Openai,
        base_url: "https://alpha.example/v1".to_owned(),
        credential: None,
        organization: None,
        project: None,
        on_abandon: OnAbandon::Close,
        bills_filtered_errors: false,
    };
    Deployment {
        id: id.into(),
        provider: Arc::new(provider),
        upstream_model: "m-1".to_owned(),
        region: "eu".to_owned(),
        capabilities: [Capability::Streaming, Capability::Tools].into_iter().collect(),
        max_output_tokens: 4_096,
        price: "m-1".to_owned(),
        cap_field: CapField::MaxTokens,
        accepts_stream_options: true,
        accepts_developer_role: true,
        accepts_prefill: false,
        anthropic_version: AnthropicVersion::default(),
        tokens_per_kilobyte: 400,
        tokens_per_image: 1_600,
        tokenizer: None,
    }
}

fn model(tiers: Vec<Vec<Deployment>>) -> LogicalModel {
    LogicalModel {
        name: "fast".into(),
        tiers: tiers.into_iter().map(|tier| tier.into_iter().map(Arc::new).collect()).collect(),
        default_output_tokens: None,
        max_attempts: 3,
        on_break: OnBreak::Terminate,
        deadlines: Deadlines::default(),
    }
}

/// A key of a tenant whose data stays in `eu` and with `alpha`.
fn key() -> Key {
    let tenant = Tenant {
        id: "acme".into(),
        name: "Acme".to_owned(),
        calendar: Calendar::default(),
        limits: Vec::new(),
        models: Allowed::Everything,
        regions: Allowed::Only(HashSet::from(["eu".to_owned()])),
        providers: Allowed::Only(HashSet::from(["alpha".into()])),
        denied_tools: HashSet::new(),
        adjust_on_mismatch: false,
        on_ceiling: CeilingPolicy::Person,
        secret: TenantSecret([0; 32]),
    };
    Key {
        id: "vk-1".into(),
        hash: KeyHash([0; 32]),
        prefix: "wk-12".to_owned(),
        tenant: Arc::new(tenant),
        team: None,
        models: Allowed::Everything,
        limits: Vec::new(),
        expires_at_ms: None,
        labels: Vec::new(),
    }
}

/// Only `m-1` has a price, and only from noon on.
fn prices() -> PriceBook {
    let entry = PriceEntry {
        name: "m-1".to_owned(),
        source: None,
        effective_from: Some(crate::price::EffectiveMs(NOON_MS)),
        effective_to: None,
        free: true,
        each: Default::default(),
        terms: Vec::new(),
    };
    PriceBook::new(&[entry], PriceVersion::new).unwrap()
}

fn filter(model: &LogicalModel, needs: &[Capability], at_ms: i64, tried: &[&str], open: &[&str]) -> Filtered {
    let key = key();
    let capabilities = needs.iter().copied().collect();
    let tried: Vec<DeploymentId> = tried.iter().map(|id| (*id).into()).collect();
    let demand = Demand { key: &key, capabilities, admitted_ms: at_ms };
    eligible(model, demand, &prices(), &tried, |id| open.contains(&id.as_str()))
}

fn ids(eligible: &[Eligible]) -> Vec<&str> {
    eligible.iter().map(|candidate| candidate.deployment().id.as_str()).collect()
}

fn elsewhere(id: &str) -> Deployment {
    Deployment { region: "us".to_owned(), ..deployment(id) }
}

fn of_beta(id: &str) -> Deployment {
    let provider = Provider { id: "beta".into(), ..Provider::clone(&deployment(id).provider) };
    Deployment { provider: Arc::new(provider), ..deployment(id) }
}

#[test]
fn every_hard_filter_names_its_reason() {
    use Capability::{Streaming, Vision};
    let unpriced = || Deployment { price: "m-2".to_owned(), ..deployment("d") };
    // what the deployment is, the request's needs, when, tried, circuits open, why not
    let rows = [
        ("as it should be", deployment("d"), &[Streaming][..], NOON_MS, &[][..], &[][..], None),
        ("in another region", elsewhere("d"), &[], NOON_MS, &[], &[], Some(Ineligible::Residency)),
        ("of a vendor that is not allowed", of_beta("d"), &[], NOON_MS, &[], &[], Some(Ineligible::Vendor)),
        ("blind", deployment("d"), &[Streaming, Vision], NOON_MS, &[], &[], Some(Ineligible::Capability)),
        ("without a price (O21)", unpriced(), &[], NOON_MS, &[], &[], Some(Ineligible::Unpriced)),
        ("before its price begins", deployment("d"), &[], NOON_MS - 1, &[], &[], Some(Ineligible::Unpriced)),
        ("behind an open circuit", deployment("d"), &[], NOON_MS, &[], &["d"], Some(Ineligible::CircuitOpen)),
        ("tried already", deployment("d"), &[], NOON_MS, &["d"], &[], Some(Ineligible::AlreadyTried)),
        ("elsewhere, blind, broken", elsewhere("d"), &[Vision], NOON_MS, &["d"], &["d"], Some(Ineligible::Residency)),
    ];
    for (name, deployment, needs, at_ms, tried, open, why) in rows {
        let filtered = filter(&model(vec![vec![deployment]]), needs, at_ms, tried, open);
        let refused: Vec<Ineligible> = filtered.refused.iter().map(|(_, why)| *why).collect();
        assert_eq!(
            (refused, filtered.eligible.len()),
            (why.into_iter().collect(), usize::from(why.is_none())),
            "{name}"
        );
    }
}

#[test]
fn when_nothing_is_eligible_the_reason_is_the_one_nearest_to_serving() {
    let tiers = || model(vec![vec![elsewhere("us"), deployment("eu-1")], vec![of_beta("beta")]]);
    let reason = |tried, open| filter(&tiers(), &[], NOON_MS, tried, open).reason();
    assert_eq!(reason(&[], &["eu-1"]), Some(Ineligible::CircuitOpen));
    // That it was tried is no reason by itself: the last attempt has one.
    assert_eq!(reason(&["eu-1"], &[]), Some(Ineligible::Vendor));
    let only_one = filter(&model(vec![vec![deployment("d")]]), &[], NOON_MS, &["d"], &[]);
    assert_eq!((only_one.eligible.len(), only_one.reason()), (0, None));
    let codes = [(Ineligible::Residency, "residency"), (Ineligible::CircuitOpen, "circuits_open")];
    assert!(codes.into_iter().all(|(why, code)| why.as_str() == code));
}

#[test]
fn tiers_come_in_order_and_health_decides_within_one() {
    let tiers = vec![vec![deployment("a"), deployment("b"), deployment("c")], vec![deployment("cheap-and-quick")]];
    let filtered = filter(&model(tiers), &[], NOON_MS, &[], &[]);
    let health = HashMap::from([("a", 10), ("b", 90), ("c", 10), ("cheap-and-quick", 1_000)]);
    let ranked = rank(filtered.eligible, |id| health[id.as_str()]);
    assert_eq!(ids(&ranked), ["b", "a", "c", "cheap-and-quick"]);
    assert_eq!(ranked.iter().map(Eligible::tier).collect::<Vec<_>>(), [0, 0, 0, 1]);
}

#[test]
fn every_hop_asks_the_filter_again() {
    let model = model(vec![vec![deployment("a")], vec![elsewhere("b"), deployment("c")]]);
    assert_eq!(ids(&filter(&model, &[], NOON_MS, &[], &[]).eligible), ["a", "c"]);
    // After `a` failed the fallback in another region is still none.
    assert_eq!(ids(&filter(&model, &[], NOON_MS, &["a"], &[]).eligible), ["c"]);
    assert_eq!(ids(&filter(&model, &[], NOON_MS, &["a", "c"], &[]).eligible), [""; 0]);
}
