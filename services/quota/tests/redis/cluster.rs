//! The quota store on a real Redis Cluster: three masters.

use weir_domain::ids::{KeyId, ModelName, TeamId, TenantId};
use weir_domain::quota::{Limit, Measure, Scope, Unit};
use weir_domain::reservation::{Command, Decision};
use weir_domain::testing::{Dice, LEASE_MS, Request, close_attempt, executed, id, start};
use weir_quota::QuotaStore as _;
use weir_quota::conformance::{Model, model};

use crate::support::{Shared, empty, open, request_now};

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

/// Names with everything that could reach a hash tag: every script finds all its keys in one slot.
#[tokio::test]
async fn o53_no_name_tears_a_tenant_apart() {
    let Some(servers) = CLUSTER.get("cluster", &[]) else { return };
    let quota = servers.quota();
    let mut dice = Dice::new(53);
    for n in 1..=1_000 {
        let mut name = || -> String {
            let parts = ["{", "}", "{}", " ", "a", "ключ", "\n", ":", "}{", "weir", "é", "\0"];
            (0..dice.between(1, 6)).map(|_| *dice.pick(&parts)).collect()
        };
        let tenant = TenantId::from(format!("{}{}", name(), n / 10));
        let (team, key, model) = (TeamId::from(name()), KeyId::from(name()), ModelName::from(name()));
        if n % 10 == 1 || quota.tenant_state(&tenant).await.unwrap() == weir_quota::redis::TenantState::Missing {
            quota.rebuild(&tenant, &empty(), LEASE_MS).await.unwrap();
        }
        let scopes = Scope::of_request(Some(&team), &key, &model);
        let measure = Measure::PerMinute { unit: Unit::Requests };
        let limits = scopes.iter().map(|scope| Limit { scope: scope.clone(), measure, max: 1_000 }).collect();
        let request = Request { team: Some(team), key, model, limits, ..request_now(&quota, &tenant, n).await };
        let closing = [close_attempt(1, executed(7, "0.01")), Command::Close];
        for commands in [&[request.command()][..], &[start(1, request.hold, None)], &closing] {
            for reply in quota.execute_all(&tenant, id(n), commands).await.unwrap() {
                assert!(matches!(reply.decision, Decision::Change(_)), "{tenant:?}: {reply:?}");
            }
        }
        let counted = quota.read(&tenant).await.unwrap().counters;
        assert!(scopes.iter().all(|scope| counted.iter().any(|reading| reading.scope == *scope)), "{tenant:?}");
    }
}
