//! Masters that die and come back, on a cluster of this test's own: three masters with a replica each.

use std::time::Duration;

use tokio::time::Instant;
use weir_domain::ids::TenantId;
use weir_domain::testing::{LEASE_MS, id};
use weir_quota::redis::{RedisQuota, TenantState};
use weir_quota::{QuotaError, QuotaStore as _};

use crate::support::{Servers, empty, live, open, request_now, tag};

const NODES: u16 = 6;

/// The node that serves the tenant's book now.
async fn master_of(servers: &Servers, tenant: &TenantId, alive: impl Fn(u16) -> bool) -> Option<u16> {
    for node in (1..=NODES).filter(|node| alive(*node)) {
        let mut connection = servers.node(node).await;
        let mut exists = redis::cmd("EXISTS");
        exists.arg(format!("{}book", tag(tenant.as_str())));
        if exists.query_async::<i64>(&mut connection).await.is_ok() {
            return Some(node);
        }
    }
    None
}

async fn replica_of(servers: &Servers, master: u16) -> u16 {
    let mut info = redis::cmd("INFO");
    info.arg("replication");
    let info: String = info.query_async(&mut servers.node(master).await).await.unwrap();
    let line = info.lines().find(|line| line.starts_with("slave0:")).unwrap();
    let port = line.split(',').find_map(|word| word.strip_prefix("port=")).unwrap();
    port.parse::<u16>().unwrap() - servers.first_port + 1
}

/// An orderly change of roles. The nodes give it up after five seconds, which is short on a busy machine.
async fn promote(servers: &Servers, tenant: &TenantId, replica: u16) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while master_of(servers, tenant, |_| true).await != Some(replica) {
        assert!(Instant::now() < deadline, "node {replica} did not take over");
        let mut failover = redis::cmd("CLUSTER");
        failover.arg("FAILOVER");
        // Refused while the last one runs.
        drop(failover.query_async::<()>(&mut servers.node(replica).await).await);
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

async fn until_master(servers: &Servers, tenant: &TenantId, node: u16, alive: impl Fn(u16) -> bool) {
    let deadline = Instant::now() + Duration::from_secs(40);
    while master_of(servers, tenant, &alive).await != Some(node) {
        assert!(Instant::now() < deadline, "node {node} was not promoted");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Nothing is admitted until the book is rebuilt, whatever the client's connections went through.
async fn refused_until_rebuilt(quota: &RedisQuota, tenant: &TenantId, n: u64) {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let request = weir_domain::testing::request(n);
        match quota.execute(tenant, id(n), &request.command()).await {
            Err(QuotaError::NotValidated { .. }) => break,
            Err(QuotaError::Unavailable { .. }) => assert!(Instant::now() < deadline),
            answer => panic!("admitted behind the fence: {answer:?}"),
        }
    }
    assert!(matches!(quota.tenant_state(tenant).await.unwrap(), TenantState::Fenced { .. }));
    quota.rebuild(tenant, &empty(), LEASE_MS).await.unwrap();
    live(quota, tenant, n + 1).await;
}

/// A is validated; its replica B is promoted; A, the same process, follows B; B dies; A is promoted. The run id of A and
/// the client's connection to it are the same as in the beginning, its data are not.
#[tokio::test]
async fn i15_a_double_failover_is_fenced_twice() {
    let Some(servers) = Servers::start("cluster", &[("REPLICAS", "1")]) else { return };
    let quota = servers.quota();
    let tenant = open(&quota, "failed-over").await;
    live(&quota, &tenant, 1).await;
    let a = master_of(&servers, &tenant, |_| true).await.unwrap();
    let b = replica_of(&servers, a).await;

    promote(&servers, &tenant, b).await;
    refused_until_rebuilt(&quota, &tenant, 10).await;

    // A has to follow B before B may die.
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let info: String = redis::cmd("INFO").arg("replication").query_async(&mut servers.node(a).await).await.unwrap();
        if info.contains("role:slave") && info.contains("master_link_status:up") {
            break;
        }
        assert!(Instant::now() < deadline, "{info}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    request_now(&quota, &tenant, 20).await;
    servers.run("kill", b);
    let killed = Instant::now();
    until_master(&servers, &tenant, a, |node| node != b).await;
    refused_until_rebuilt(&quota, &tenant, 30).await;
    println!("refused and rebuilt {:?} after the master was killed", killed.elapsed());
}
