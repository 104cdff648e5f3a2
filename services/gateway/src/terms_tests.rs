use std::collections::HashSet;

use weir_domain::calendar::{Calendar, WindowKind};
use weir_domain::ids::{PriceVersion, TenantId};
use weir_domain::policy::{Allowed, KeyHash, Tenant, TenantSecret};
use weir_domain::price::PriceBook;
use weir_domain::quota::{Measure, Subject, Unit};
use weir_domain::reconcile::CeilingPolicy;

use super::*;

/// 2026-11-29 12:00 UTC: a Sunday, three hours before the next day in Tokyo.
const NOON_MS: i64 = 1_795_953_600_000;
const HOUR_MS: i64 = 3_600_000;

fn limit(max: i64) -> Limit {
    let measure = Measure::Calendar { unit: Unit::Requests, window: WindowKind::Day };
    Limit { scope: Scope { subject: Subject::Tenant, model: None }, measure, max }
}

fn snapshot(version: u64) -> Snapshot {
    let prices = Arc::new(PriceBook::new(&[], |_| PriceVersion::from("pv")).unwrap());
    Snapshot { version, ..Snapshot::empty(prices) }
}

fn key(id: &str, max: i64) -> Key {
    let tenant = Tenant {
        id: TenantId::from("tn"),
        name: "t".to_owned(),
        calendar: Calendar::new("Asia/Tokyo".parse().unwrap()),
        limits: vec![limit(max)],
        models: Allowed::Everything,
        regions: Allowed::Everything,
        providers: Allowed::Everything,
        denied_tools: HashSet::new(),
        adjust_on_mismatch: false,
        on_ceiling: CeilingPolicy::Person,
        secret: TenantSecret([0; 32]),
    };
    Key {
        id: KeyId::from(id),
        hash: KeyHash([0; 32]),
        prefix: String::new(),
        tenant: Arc::new(tenant),
        team: None,
        models: Allowed::Everything,
        limits: Vec::new(),
        expires_at_ms: None,
        labels: Vec::new(),
    }
}

#[test]
fn terms_are_made_once_for_a_snapshot_and_end_with_a_window() {
    let (cache, snapshot, key, model) = (TermsCache::default(), snapshot(1), key("k", 5), ModelName::from("fast"));
    let first = cache.of(&snapshot, &key, &model, NOON_MS);
    let again = cache.of(&snapshot, &key, &model, NOON_MS + 3 * HOUR_MS - 1);
    assert!(Arc::ptr_eq(&first.limits, &again.limits) && Arc::ptr_eq(&first.scopes, &again.scopes));
    let tomorrow = cache.of(&snapshot, &key, &model, NOON_MS + 3 * HOUR_MS);
    assert_ne!(tomorrow.windows.windows()[0], first.windows.windows()[0], "midnight in Tokyo");
    // A clock that went back meets the windows of its own time.
    assert_eq!(cache.of(&snapshot, &key, &model, NOON_MS).windows.windows(), first.windows.windows());
}

#[test]
fn a_new_snapshot_brings_its_own_limits_and_an_old_one_keeps_its_own() {
    let (cache, model) = (TermsCache::default(), ModelName::from("fast"));
    let max = |version, max| cache.of(&snapshot(version), &key("k", max), &model, NOON_MS).limits[0].max;
    assert_eq!((max(1, 5), max(2, 9)), (5, 9));
    assert_eq!(max(1, 5), 5, "a request that began before the change");
    assert_eq!(max(2, 0), 9, "which does not drop what is in force");
}

#[test]
fn what_is_kept_is_bounded() {
    let (cache, snapshot, model) = (TermsCache::default(), snapshot(1), ModelName::from("fast"));
    let key = key("k", 5);
    for n in 0..=MOST_TERMS {
        let name = ModelName::from(format!("m{n}").as_str());
        cache.of(&snapshot, &key, &name, NOON_MS);
    }
    assert_eq!(cache.0.read().count, 1);
    cache.of(&snapshot, &key, &model, NOON_MS);
    cache.of(&snapshot, &key, &model, NOON_MS);
    assert_eq!(cache.0.read().count, 2, "one that is known is not counted again");
}
