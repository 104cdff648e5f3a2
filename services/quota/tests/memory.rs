//! The embedded backend runs the suite that every backend runs.
#![cfg(test)]

use std::collections::HashMap;

use weir_domain::ids::TenantId;
use weir_domain::quota::BookOptions;
use weir_domain::testing::runs;
use weir_quota::MemoryQuota;
use weir_quota::conformance::{Model, model};
use weir_runtime::clock::SystemClock;

#[tokio::test]
async fn the_model_and_the_embedded_store_agree() {
    for seed in 1..=runs(8) {
        let store = MemoryQuota::new(SystemClock::shared(), BookOptions::default());
        store.open(HashMap::new(), 0);
        let run = Model { seed, tenant: TenantId::new("acme"), steps: 600, scale: 1, lease_ms: 20 };
        model(&store, &run, async |_, _| {}).await.unwrap_or_else(|parted| panic!("{parted}"));
    }
}
