//! `deploy/catalog.example.toml` is a catalog that can be applied, and leaves no field out.

use serde::de::DeserializeOwned;
use weir_domain::price::{PriceEntry, TermsEntry};

use super::*;

const EXAMPLE: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/catalog.example.toml"));

/// 2026-11-29.
const NOW_MS: i64 = 1_795_910_400_000;

#[test]
fn the_example_can_be_applied() {
    let shipped = crate::prices::shipped_prices().unwrap();
    let surroundings = Surroundings {
        file: "catalog.example.toml",
        shipped_prices: &shipped,
        admin_keys: &BTreeSet::new(),
        now_ms: NOW_MS,
    };
    let catalog = Catalog::from_toml(EXAMPLE, surroundings).map_err(|problems| problems.to_string()).unwrap();
    assert_eq!(catalog.models.len(), 2);
}

/// The fields of a table, as its own error tells them.
fn fields<T: DeserializeOwned>() -> Vec<String> {
    let error = toml::from_str::<T>("no_such_field = 1").err().unwrap().to_string();
    let named: Vec<String> = error.split('`').skip(3).step_by(2).map(str::to_owned).collect();
    assert!(!named.is_empty(), "{error}");
    named
}

#[test]
fn the_example_leaves_no_field_out() {
    let all = [
        fields::<Catalog>(),
        fields::<ProviderEntry>(),
        fields::<DeploymentEntry>(),
        fields::<ModelEntry>(),
        fields::<DeadlinesEntry>(),
        fields::<StreamFailureEntry>(),
        fields::<TenantEntry>(),
        fields::<TeamEntry>(),
        fields::<LimitEntry>(),
        fields::<KeyEntry>(),
        fields::<PriceEntry>(),
        fields::<TermsEntry>(),
    ];
    for field in all.iter().flatten() {
        let is_there = [format!("{field} = "), format!("[[{field}]]"), format!("[[price.{field}]]")]
            .iter()
            .any(|form| EXAMPLE.contains(form.as_str()));
        assert!(is_there, "the example says nothing of `{field}`");
    }
}
