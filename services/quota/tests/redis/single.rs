//! The quota store on one real Redis: what it answers, who wins races, what it leaves behind.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use weir_domain::calendar::WindowKind;
use weir_domain::ids::{KeyId, TeamId, TenantId};
use weir_domain::money::{Amounts, NanoUsd};
use weir_domain::quota::{DenialReason, Limit, Measure, Scope, Subject, Unit};
use weir_domain::reservation::{Command, Decision};
use weir_domain::testing::{
    Request, amounts, close_attempt, daily_budget, executed, id, runs, start, tenant_limit, usd,
};
use weir_quota::conformance::{Model, model};
use weir_quota::redis::{RedisOptions, RedisQuota};
use weir_quota::{QuotaError, QuotaStore};
use weir_runtime::units::HumanDuration;

use crate::support::{Servers, Shared, keys_of, open, quota, request_now};

static REDIS: Shared = Shared::new();

fn servers() -> Option<Arc<Servers>> {
    REDIS.get("single", &[])
}

#[tokio::test]
async fn the_model_and_redis_agree() {
    let Some(servers) = servers() else { return };
    let quota = servers.quota();
    for seed in 1..=runs(12) {
        let tenant = open(&quota, &format!("model-{seed}")).await;
        // Amounts beyond 2^53 after a few dozen steps, exact to the last unit.
        let scale = if seed % 2 == 0 { 1 } else { 10_000_000_000_001 };
        let run = Model { seed, tenant, steps: 700, scale, lease_ms: 60 };
        model(&quota, &run, async |step, _| {
            if step % 25 == 0 {
                tokio::time::sleep(Duration::from_millis(3)).await;
            }
        })
        .await
        .unwrap_or_else(|parted| panic!("{parted}"));
    }
}

/// A minute and more of real time for many slow runs at once: buckets of the sliding minute are dropped one by one.
#[tokio::test]
async fn the_model_and_redis_agree_over_more_than_a_minute() {
    let Some(servers) = servers() else { return };
    let quota = Arc::new(servers.quota());
    let mut together = tokio::task::JoinSet::new();
    for seed in 1_001..=1_000 + runs(12) {
        let quota = Arc::clone(&quota);
        together.spawn(async move {
            let tenant = open(&quota, &format!("slow-{seed}")).await;
            let run = Model { seed, tenant, steps: 200, scale: 1, lease_ms: 3_000 };
            model(&*quota, &run, async |_, _| tokio::time::sleep(Duration::from_millis(370)).await).await
        });
    }
    for ended in together.join_all().await {
        ended.unwrap_or_else(|parted| panic!("{parted}"));
    }
}

#[tokio::test]
async fn amounts_beyond_the_doubles_are_exact_to_the_last_unit() {
    let Some(servers) = servers() else { return };
    let quota = servers.quota();
    let tenant = open(&quota, "beyond-doubles").await;
    let odd = (1 << 53) + 1;
    let limit = tenant_limit(Measure::Calendar { unit: Unit::Usd, window: WindowKind::Total }, 3 * odd);
    for (n, nanos, fits) in [(1, odd, true), (2, odd, true), (3, odd + 1, false), (4, odd, true), (5, 1, false)] {
        let hold = Amounts::new(1, nanos, NanoUsd::from_nanos(nanos));
        let request = Request { hold, limits: vec![limit.clone()], ..request_now(&quota, &tenant, n).await };
        let reply = quota.execute(&tenant, id(n), &request.command()).await.unwrap();
        assert_eq!(matches!(reply.decision, Decision::Change(_)), fits, "{n}: {reply:?}");
    }
    assert_eq!(quota.read(&tenant).await.unwrap().held.usd.nanos(), 3 * odd);
    let too_much = Amounts::new(1, i64::MAX, NanoUsd::ZERO);
    let request = Request { hold: too_much, ..request_now(&quota, &tenant, 6).await };
    let refused = quota.execute(&tenant, id(6), &request.command()).await;
    assert!(matches!(refused, Err(QuotaError::OutOfBounds { .. })), "{refused:?}");
}

/// 200 at once through three clients, each kind of limit, on different scopes.
#[tokio::test(flavor = "multi_thread")]
async fn o49_the_last_unit_goes_to_exactly_the_right_number() {
    let Some(servers) = servers() else { return };
    let clients: Vec<_> = (0..3).map(|_| Arc::new(servers.quota())).collect();
    let calendar = |unit, window| Measure::Calendar { unit, window };
    let on_key =
        |measure, max| Limit { scope: Scope { subject: Subject::Key("vk-1".into()), model: None }, measure, max };
    let on_team = |measure, max| Limit {
        scope: Scope { subject: Subject::Team("search".into()), model: Some("fast".into()) },
        measure,
        max,
    };
    let cases = [
        ("tokens a minute", on_key(Measure::PerMinute { unit: Unit::Tokens }, 100), 1),
        ("requests a minute", on_key(Measure::PerMinute { unit: Unit::Requests }, 1), 1),
        ("dollars a day", daily_budget("0.10"), 3),
        ("dollars a month", on_team(calendar(Unit::Usd, WindowKind::Month), usd("0.10").nanos()), 3),
        ("requests a week", on_team(calendar(Unit::Requests, WindowKind::Week), 7), 7),
        ("tokens in all", on_key(calendar(Unit::Tokens, WindowKind::Total), 659), 10),
        ("at the same time", on_key(Measure::Concurrent, 2), 2),
    ];
    for (name, limit, expected) in cases {
        let tenant = open(&clients[0], name).await;
        let mut racing = tokio::task::JoinSet::new();
        for n in 1..=200 {
            let (quota, tenant) = (Arc::clone(&clients[n as usize % 3]), tenant.clone());
            let hold = amounts(1, 60, "0.03");
            let request = Request { hold, limits: vec![limit.clone()], ..request_now(&quota, &tenant, n).await };
            racing.spawn(async move { quota.execute(&tenant, id(n), &request.command()).await.unwrap() });
        }
        let replies = racing.join_all().await;
        let admitted = replies.iter().filter(|reply| matches!(reply.decision, Decision::Change(_))).count();
        assert_eq!(admitted, expected, "{name}");
        for reply in &replies {
            let Decision::Denied(denial) = &reply.decision else { continue };
            assert_eq!(denial.limit, limit, "{name}");
            let waits = !matches!(limit.measure, Measure::Calendar { .. });
            let DenialReason::Exhausted { retry_after_ms } = denial.reason else { panic!("{name}: {denial:?}") };
            assert_eq!(retry_after_ms.is_some(), waits, "{name}");
        }
        let held = clients[1].read(&tenant).await.unwrap().held;
        assert_eq!(held.requests, i64::try_from(expected).unwrap(), "{name}");
    }
}

/// One reservation, the same and contradicting commands at once through three clients: each lost race is decided again.
#[tokio::test(flavor = "multi_thread")]
async fn i03_a_race_on_one_reservation_changes_it_once() {
    let Some(servers) = servers() else { return };
    let clients: Vec<_> = (0..3).map(|_| Arc::new(servers.quota())).collect();
    let tenant = open(&clients[0], "one-reservation").await;
    let request = request_now(&clients[0], &tenant, 1).await;
    let steps = [
        vec![request.command()],
        vec![start(1, request.hold, None), start(1, amounts(0, 1, "0.01"), None)],
        vec![close_attempt(1, executed(7, "0.01")), close_attempt(1, executed(9, "0.03"))],
        vec![Command::Close, Command::Release],
    ];
    for commands in steps {
        let mut racing = tokio::task::JoinSet::new();
        for n in 0..60 {
            let (quota, tenant) = (Arc::clone(&clients[n % 3]), tenant.clone());
            let command = commands[n / 3 % commands.len()].clone();
            racing.spawn(async move { quota.execute(&tenant, id(1), &command).await.unwrap() });
        }
        let replies = racing.join_all().await;
        let changes = replies.iter().filter(|reply| matches!(reply.decision, Decision::Change(_))).count();
        assert_eq!(changes, 1, "{commands:?}: {replies:?}");
    }
    let reading = clients[0].read(&tenant).await.unwrap();
    assert_eq!((reading.counters[0].counter.charged.requests, reading.held), (1, Amounts::ZERO));
}

#[tokio::test]
async fn o50_fifty_denials_leave_nothing_behind() {
    let Some(servers) = servers() else { return };
    let quota = servers.quota();
    let tenant = open(&quota, "o50").await;
    let limit = |subject, measure, max| Limit { scope: Scope { subject, model: None }, measure, max };
    let of = |request: Request, dollars| Request {
        hold: amounts(1, 100, "0.50"),
        limits: vec![
            limit(Subject::Key(KeyId::new("vk-1")), Measure::PerMinute { unit: Unit::Requests }, 100),
            limit(Subject::Team(TeamId::new("search")), Measure::PerMinute { unit: Unit::Tokens }, 1_000),
            limit(Subject::Tenant, Measure::Concurrent, 1),
            daily_budget(dollars),
        ],
        ..request
    };
    let before = keys_of(&servers, "o50").await;
    for n in 1..=50 {
        let request = of(request_now(&quota, &tenant, n).await, "0.49");
        let Decision::Denied(denial) = quota.execute(&tenant, id(n), &request.command()).await.unwrap().decision else {
            panic!("{n} was not denied")
        };
        assert_eq!(denial.limit, daily_budget("0.49"));
    }
    assert_eq!(keys_of(&servers, "o50").await, before);
    let admitted = of(request_now(&quota, &tenant, 51).await, "0.50");
    let reply = quota.execute(&tenant, id(51), &admitted.command()).await.unwrap();
    assert!(matches!(reply.decision, Decision::Change(_)), "{reply:?}");
    assert_eq!(reply.rates.requests.unwrap().taken, 1);
    assert_eq!(reply.rates.tokens.unwrap().taken, 100);
}

/// Reservations begun by processes that die at any moment: what is left is listed by its lease, and nothing else is left.
#[tokio::test]
async fn o54_nothing_lives_for_ever_without_being_listed() {
    let Some(servers) = servers() else { return };
    let horizon = HumanDuration::from_ms(300);
    let quota = quota(&RedisOptions { retry_horizon: horizon, ..servers.options() });
    let tenant = open(&quota, "o54").await;
    for n in 1..=runs(1_000) {
        let request = Request { lease_ms: 40, ..request_now(&quota, &tenant, n).await };
        let life = async {
            quota.execute(&tenant, id(n), &request.command()).await.unwrap();
            quota.execute(&tenant, id(n), &start(1, request.hold, None)).await.unwrap();
            let closing = [close_attempt(1, executed(1, "0.01")), Command::Close];
            quota.execute_all(&tenant, id(n), &closing).await.unwrap();
        };
        // Most are cut off in the middle of a call.
        let patience = Duration::from_micros(n * 7919 % 1_500);
        drop(tokio::time::timeout(patience, life).await);
    }
    end_all(&quota, &tenant).await;
    let left = keys_of(&servers, "o54").await;
    let lasting: Vec<_> = left.iter().filter(|(_, ttl_ms)| **ttl_ms < 0).map(|(key, _)| key.as_str()).collect();
    // Settled records wait for their ledger line; here no line ever comes.
    let forgotten = lasting.iter().filter(|key| !key.starts_with("r:")).copied().collect::<Vec<_>>();
    assert_eq!(forgotten, ["book"], "{lasting:?}");
    let reading = quota.read(&tenant).await.unwrap();
    assert_eq!((reading.held, reading.reserved, reading.pending), (Amounts::ZERO, 0, 0));
}

/// What the reconciler would do, until nothing is open.
async fn end_all(quota: &RedisQuota, tenant: &TenantId) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    while quota.read(tenant).await.unwrap().reserved > 0 {
        assert!(tokio::time::Instant::now() < deadline, "open, and never listed");
        let due = quota.due(usize::MAX).await.unwrap();
        for reservation in due.into_iter().filter(|reservation| reservation.created.tenant == *tenant) {
            let end = match reservation.attempts.last() {
                None => vec![Command::Release],
                Some(attempt) => vec![close_attempt(attempt.number, executed(1, "0.01")), Command::Close],
            };
            quota.execute_all(tenant, reservation.created.id, &end).await.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_record_goes_when_its_horizon_is_over_and_not_before_its_line() {
    let Some(servers) = servers() else { return };
    let horizon = HumanDuration::from_ms(400);
    let quota = quota(&RedisOptions { retry_horizon: horizon, ..servers.options() });
    let tenant = open(&quota, "leaving").await;
    let settled = request_now(&quota, &tenant, 1).await;
    quota.execute(&tenant, id(1), &settled.command()).await.unwrap();
    quota.execute(&tenant, id(1), &start(1, settled.hold, None)).await.unwrap();
    let closing = [close_attempt(1, executed(10, "0.01")), Command::Close];
    quota.execute_all(&tenant, id(1), &closing).await.unwrap();
    let released = request_now(&quota, &tenant, 2).await;
    quota.execute(&tenant, id(2), &released.command()).await.unwrap();
    quota.execute(&tenant, id(2), &Command::Release).await.unwrap();

    let ttl_of = |keys: &BTreeMap<String, i64>, n: u64| keys.get(&format!("r:{}", id(n).uuid().simple())).copied();
    let keys = keys_of(&servers, "leaving").await;
    assert_eq!(ttl_of(&keys, 1), Some(-1), "its line has not come");
    assert!(ttl_of(&keys, 2).is_some_and(|ttl| (1..=400).contains(&ttl)), "nothing can be asked of it: {keys:?}");
    let deadline = tokio::time::Instant::now() + Duration::from_secs(5);
    while quota.find(&tenant, id(2)).await.unwrap().is_some() {
        assert!(tokio::time::Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(quota.find(&tenant, id(1)).await.unwrap().is_some());
}

#[tokio::test]
async fn a_clock_that_is_far_off_is_refused() {
    let Some(servers) = servers() else { return };
    let quota = servers.quota();
    let tenant = open(&quota, "skew").await;
    for (n, off_ms, is_fine) in [(1, 0, true), (2, -4_000, true), (3, 5_900, false), (4, -5_900, false)] {
        let now = request_now(&quota, &tenant, n).await;
        let request = Request { at_ms: now.at_ms + off_ms, ..now };
        let answer = quota.execute(&tenant, id(n), &request.command()).await;
        let is_skewed = matches!(answer, Err(QuotaError::ClockSkewed { .. }));
        assert_eq!((answer.is_ok(), is_skewed), (is_fine, !is_fine), "{off_ms} ms off: {answer:?}");
    }
}
