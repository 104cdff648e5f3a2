//! What goes wrong with one server, each test on a server of its own.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command as Shell;
use std::sync::Arc;
use std::time::Duration;

use weir_domain::ids::TenantId;
use weir_domain::ledger::SourcePosition;
use weir_domain::reservation::{Command, Decision};
use weir_domain::testing::{LEASE_MS, amounts, id, runs, start};
use weir_quota::conformance::{Model, model};
use weir_quota::redis::{RedisOptions, TenantState, Unless};
use weir_quota::{QuotaError, QuotaStore as _};
use weir_runtime::units::HumanDuration;

use crate::proxy::Proxy;
use crate::support::{Servers, empty, live, open, quota, request_now, tag};

fn is_not_validated<T>(answer: &Result<T, QuotaError>) -> bool {
    matches!(answer, Err(QuotaError::NotValidated { .. }))
}

#[tokio::test]
async fn o52_a_flushed_script_cache_costs_nobody_a_request() {
    let Some(servers) = Servers::start("single", &[]) else { return };
    let clients: Vec<_> = (0..3).map(|_| Arc::new(servers.quota())).collect();
    let tenant = open(&clients[0], "flushed-scripts").await;
    let mut node = servers.node(1).await;
    let mut flushing = tokio::task::JoinSet::new();
    flushing.spawn(async move {
        loop {
            let (): () = redis::cmd("SCRIPT").arg("FLUSH").query_async(&mut node).await.unwrap();
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    let mut living = tokio::task::JoinSet::new();
    for (client, first) in clients.iter().zip([0, 100, 200]) {
        let (quota, tenant) = (Arc::clone(client), tenant.clone());
        living.spawn(async move {
            for n in 1..=100 {
                live(&quota, &tenant, first + n).await;
            }
        });
    }
    living.join_all().await;
    flushing.abort_all();
    let reading = clients[0].read(&tenant).await.unwrap();
    assert_eq!(reading.counters[0].counter.charged, amounts(300, 2_100, "3"));
    assert_eq!((reading.held.is_zero(), reading.reserved), (true, 0));
}

#[tokio::test]
async fn o52_a_lost_reply_is_asked_for_again_as_the_same_operation() {
    let Some(servers) = Servers::start("single", &[]) else { return };
    let proxy = Proxy::to(servers.first_port).await;
    let options = RedisOptions { nodes: vec![format!("redis://127.0.0.1:{}", proxy.port)], ..servers.options() };
    let cut_off = quota(&options);
    let tenant = open(&cut_off, "lost-replies").await;
    let closing = [weir_domain::testing::close_attempt(1, weir_domain::testing::executed(7, "0.01")), Command::Close];
    for n in 1..=40 {
        let request = request_now(&cut_off, &tenant, n).await;
        for commands in [&[request.command()][..], &[start(1, request.hold, None)], &closing] {
            proxy.cut();
            let replies = cut_off.execute_all(&tenant, id(n), commands).await.unwrap();
            assert!(proxy.was_cut());
            let is_change = replies.iter().all(|reply| matches!(reply.decision, Decision::Change(_)));
            assert!(is_change, "the answer that was lost: {replies:?}");
        }
    }
    let charged = servers.quota().read(&tenant).await.unwrap().counters[0].counter.charged;
    assert_eq!(charged, amounts(40, 280, "0.40"));
}

/// The caller is told that nobody knows, asks again, and learns what happened.
#[tokio::test]
async fn o52_a_caller_that_runs_the_same_command_again_gets_the_answer_that_was_lost() {
    let Some(servers) = Servers::start("single", &[]) else { return };
    let proxy = Proxy::to(servers.first_port).await;
    let nodes = vec![format!("redis://127.0.0.1:{}", proxy.port)];
    let impatient = quota(&RedisOptions { nodes, patience: HumanDuration::from_ms(1), ..servers.options() });
    let tenant = open(&impatient, "impatient").await;
    let request = request_now(&impatient, &tenant, 1).await;
    for command in [request.command(), start(1, request.hold, None)] {
        proxy.cut();
        let unknown = impatient.execute(&tenant, id(1), &command).await;
        assert!(matches!(unknown, Err(QuotaError::Unavailable { .. })), "{unknown:?}");
        let again = impatient.execute(&tenant, id(1), &command).await.unwrap();
        assert!(matches!(again.decision, Decision::Change(_)), "{again:?}");
        let third = impatient.execute(&tenant, id(1), &command).await.unwrap();
        assert!(matches!(third.decision, Decision::NoChange(_)), "{third:?}");
    }
    assert_eq!(impatient.read(&tenant).await.unwrap().held, request.hold);
}

/// Everything is lost again and again in the middle of a random run, and comes back from the book.
#[tokio::test]
async fn i15_a_flushed_store_refuses_until_it_is_rebuilt_and_is_exact_afterwards() {
    let Some(servers) = Servers::start("single", &[]) else { return };
    let quota = servers.quota();
    for seed in 201..=200 + runs(6) {
        let tenant = open(&quota, &format!("rebuilt-{seed}")).await;
        let run = Model { seed, tenant: tenant.clone(), steps: 500, scale: 1, lease_ms: 400 };
        model(&quota, &run, async |step, book| {
            if step % 90 != 89 {
                return;
            }
            let mut node = servers.node(1).await;
            // Half of the time the data are still there, and the rebuild must put the new in their place.
            if step % 180 == 89 {
                let (): () = redis::cmd("FLUSHALL").query_async(&mut node).await.unwrap();
                assert!(is_not_validated(&quota.execute(&tenant, id(1), &Command::Close).await));
                assert!(is_not_validated(&quota.read(&tenant).await));
                assert_eq!(quota.tenant_state(&tenant).await.unwrap(), TenantState::Missing);
                assert!(quota.wanted().await.unwrap().contains(&tenant));
            }
            let rebuilt = quota.rebuild(&tenant, book, LEASE_MS).await.unwrap();
            book.grace(rebuilt.leases_from_ms, LEASE_MS);
            assert!(!quota.wanted().await.unwrap().contains(&tenant));
        })
        .await
        .unwrap_or_else(|parted| panic!("{parted}"));
    }
}

#[tokio::test]
async fn i15_a_server_that_comes_back_with_older_data_is_fenced() {
    let Some(servers) = Servers::start("single", &[]) else { return };
    let quota = servers.quota();
    let tenant = open(&quota, "rolled-back").await;
    live(&quota, &tenant, 1).await;
    let (data, older) = (servers.data(1).join("appendonlydir"), servers.data(1).join("older"));
    copy(&data, &older);
    live(&quota, &tenant, 2).await;
    let before = quota.read(&tenant).await.unwrap();

    servers.run("kill", 1);
    std::fs::remove_dir_all(&data).unwrap();
    std::fs::rename(&older, &data).unwrap();
    servers.run("restart", 1);
    let request = request_now(&quota, &tenant, 3).await;
    assert!(is_not_validated(&quota.execute(&tenant, id(3), &request.command()).await));
    assert!(is_not_validated(&quota.revoke(&tenant, &"vk-1".into()).await));
    let state = quota.tenant_state(&tenant).await.unwrap();
    assert!(matches!(state, TenantState::Fenced { .. }), "{state:?}");

    // Whoever takes the data as they are finds them older: that is why it takes a person's word.
    assert!(quota.validate(&tenant).await.unwrap());
    assert_eq!(quota.read(&tenant).await.unwrap().counters[0].counter.charged.requests, 1);
    assert_eq!(before.counters[0].counter.charged.requests, 2);
    quota.rebuild(&tenant, &empty(), LEASE_MS).await.unwrap();
    live(&quota, &tenant, 4).await;
}

fn copy(from: &Path, to: &Path) {
    assert!(Shell::new("cp").arg("-r").arg(from).arg(to).status().unwrap().success());
}

#[tokio::test]
async fn i15_two_rebuilds_at_a_time_end_with_one_of_them() {
    let Some(servers) = Servers::start("single", &[]) else { return };
    let (one, other) = (servers.quota(), servers.quota());
    let tenant = open(&one, "twice").await;
    for n in 1..=300 {
        let request = request_now(&one, &tenant, n).await;
        one.execute(&tenant, id(n), &request.command()).await.unwrap();
    }
    let mut book = empty();
    for n in 1..=300 {
        let request = request_now(&one, &tenant, n).await;
        book.execute(id(n), &request.command(), request.at_ms);
    }
    let nothing = empty();
    let (full, bare) = tokio::join!(one.rebuild(&tenant, &book, LEASE_MS), other.rebuild(&tenant, &nothing, LEASE_MS));
    let held = one.read(&tenant).await.unwrap().held.requests;
    match (&full, &bare) {
        (Ok(_), Err(QuotaError::NotValidated { .. })) => assert_eq!(held, 300),
        (Err(QuotaError::NotValidated { .. }), Ok(_)) => assert_eq!(held, 0),
        // One was over before the other began.
        (Ok(full), Ok(bare)) => assert_eq!(held, if full.generation > bare.generation { 300 } else { 0 }),
        _ => panic!("{full:?} {bare:?}"),
    }
}

#[tokio::test]
async fn a_server_that_cannot_keep_the_promises_is_named() {
    let Some(servers) = Servers::start("single", &[]) else { return };
    let fine = servers.quota().check().await.unwrap();
    assert!(fine.iter().all(|node| node.lacks.is_empty()), "{fine:?}");
    let mut node = servers.node(1).await;
    let mut set = redis::cmd("CONFIG");
    set.arg("SET").arg("maxmemory-policy").arg("allkeys-lru");
    let (): () = set.query_async(&mut node).await.unwrap();
    let with_replicas = quota(&RedisOptions { replicas: 1, ..servers.options() });
    let lacks = with_replicas.check().await.unwrap().remove(0).lacks;
    assert_eq!(lacks.len(), 2, "{lacks:?}");
    assert!(lacks[0].contains("noeviction") && lacks[1].contains("min-replicas-to-write"), "{lacks:?}");
}

/// The book is closed before anybody looks at the log. Who closes it last opens it, and one that may be used is left alone.
#[tokio::test]
async fn i15_a_book_that_is_closed_is_opened_by_whoever_closed_it_last() {
    let Some(servers) = Servers::start("single", &[]) else { return };
    let (one, other) = (servers.quota(), servers.quota());
    let tenant = open(&one, "closed-twice").await;
    assert!(one.begin_rebuild(&tenant, Unless::InForce).await.unwrap().is_none(), "it is in force");
    let first = one.begin_rebuild(&tenant, Unless::Never).await.unwrap().unwrap();
    assert_eq!(one.tenant_state(&tenant).await.unwrap(), TenantState::Rebuilding);
    assert!(is_not_validated(&one.read(&tenant).await));
    let second = other.begin_rebuild(&tenant, Unless::InForce).await.unwrap().unwrap();
    assert!(is_not_validated(&one.finish_rebuild(&tenant, &first, vec![empty()], LEASE_MS).await));
    other.finish_rebuild(&tenant, &second, vec![empty()], LEASE_MS).await.unwrap();
    assert!(one.read(&tenant).await.is_ok());
    assert!(is_not_validated(&one.finish_rebuild(&tenant, &first, vec![empty()], LEASE_MS).await), "it is over");
}

#[tokio::test]
async fn one_process_rebuilds_at_a_time() {
    let Some(servers) = Servers::start("single", &[]) else { return };
    let (one, other) = (servers.quota(), servers.quota());
    let life = Duration::from_millis(300);
    assert!(one.is_my_turn(life).await.unwrap());
    assert!(!other.is_my_turn(life).await.unwrap());
    assert!(one.is_my_turn(life).await.unwrap(), "it is kept");
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    while !other.is_my_turn(life).await.unwrap() {
        assert!(tokio::time::Instant::now() < deadline, "a turn that nobody keeps ends");
    }
}

/// Each partition of the log has a book of its own; the store has their sum.
#[tokio::test]
async fn i12_the_books_of_several_partitions_are_one_book_in_the_store() {
    let Some(servers) = Servers::start("single", &[]) else { return };
    let quota = servers.quota();
    let tenant = open(&quota, "in-parts").await;
    let now_ms = quota.now_ms().await.unwrap();
    let (mut parts, mut whole) = ([empty(), empty(), empty()], empty());
    for n in 1..=30 {
        let request = request_now(&quota, &tenant, n).await;
        let closing =
            [weir_domain::testing::close_attempt(1, weir_domain::testing::executed(7, "0.01")), Command::Close];
        let mut commands = vec![request.command(), start(1, request.hold, None)];
        // A third of them stay open.
        commands.extend(closing.into_iter().filter(|_| n % 3 != 0));
        for book in [&mut parts[usize::try_from(n % 3).unwrap()], &mut whole] {
            for command in &commands {
                book.execute(id(n), command, now_ms);
            }
            let source = SourcePosition { partition: i32::try_from(n % 3).unwrap(), offset: i64::try_from(n).unwrap() };
            book.mark_applied(source);
        }
    }
    quota.rebuild(&tenant, &whole, LEASE_MS).await.unwrap();
    let expected = (quota.read(&tenant).await.unwrap(), rates(&servers, &tenant).await);
    let begun = quota.begin_rebuild(&tenant, Unless::Never).await.unwrap().unwrap();
    quota.finish_rebuild(&tenant, &begun, parts.to_vec(), LEASE_MS).await.unwrap();
    let found = (quota.read(&tenant).await.unwrap(), rates(&servers, &tenant).await);
    assert_eq!(found, expected);
    assert_eq!((found.0.reserved, found.0.counters.len() > 3, found.1.len() > 1), (10, true, true), "{found:?}");
}

/// Every rate of the tenant as it is stored.
async fn rates(servers: &Servers, tenant: &TenantId) -> BTreeMap<String, BTreeMap<String, String>> {
    let mut node = servers.node(1).await;
    let pattern = format!("{}rate:*", tag(tenant.as_str()));
    let keys: Vec<String> = redis::cmd("KEYS").arg(pattern).query_async(&mut node).await.unwrap();
    let mut rates = BTreeMap::new();
    for key in keys {
        let fields = redis::cmd("HGETALL").arg(&key).query_async(&mut node).await.unwrap();
        rates.insert(key, fields);
    }
    rates
}
