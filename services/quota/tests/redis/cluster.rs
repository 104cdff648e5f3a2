//! The quota store on a real Redis Cluster.

use crate::support::{Shared, open};
use weir_quota::conformance::{Model, model};

static CLUSTER: Shared = Shared::new();

#[tokio::test]
async fn the_model_and_a_cluster_agree() {
    let Some(servers) = CLUSTER.get("cluster", &[]) else { return };
    let quota = servers.quota();
    for seed in 101..=103 {
        let tenant = open(&quota, &format!("model-{seed}")).await;
        let run = Model { seed, tenant, steps: 400, scale: 1, lease_ms: 60 };
        model(&quota, &run, async |_, _| {}).await.unwrap_or_else(|parted| panic!("{parted}"));
    }
}
