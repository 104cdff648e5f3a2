//! What the quota store costs on a Redis that runs already: `redis_speed redis://127.0.0.1:PORT`.
//!
//! Scripts beside an empty one on the same connection, memory of a reservation and of a tenant, and the time of a
//! rebuild. The server's data are replaced: give it one of its own.

use std::error::Error;
use std::time::Duration;

use tokio::time::Instant;

use weir_domain::calendar::WindowKind;
use weir_domain::ids::TenantId;
use weir_domain::quota::{Book, BookOptions, Limit, Measure, Scope, Unit};
use weir_domain::reservation::Command;
use weir_domain::testing::{LEASE_MS, Request, close_attempt, executed, id, request, start, usd};
use weir_quota::QuotaStore as _;
use weir_quota::redis::{RedisOptions, RedisQuota};
use weir_runtime::entropy::OsEntropy;

type Failure = Box<dyn Error>;

const REQUESTS: u64 = 3_000;
/// Callers at once, where a rate is asked for.
const TOGETHER: usize = 32;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let node = std::env::args().nth(1).ok_or("name a node: redis://127.0.0.1:PORT")?;
    let mut plain = redis::Client::open(node.as_str())?.get_multiplexed_async_connection().await?;
    let () = redis::cmd("FLUSHALL").query_async(&mut plain).await?;
    let quota = RedisQuota::new(&RedisOptions { nodes: vec![node], ..RedisOptions::default() }, &OsEntropy)?;
    let tenant = TenantId::new("acme");
    quota.rebuild(&tenant, &Book::new(BookOptions::default()), LEASE_MS).await?;
    let empty_tenant = used_memory(&mut plain).await?;

    let empty = redis::Script::new("return 1");
    let (started, cpu_us) = (Instant::now(), server_cpu_us(&mut plain).await?);
    for _ in 0..REQUESTS {
        let _: i64 = empty.key("{acme}").invoke_async(&mut plain).await?;
    }
    report("redis_bare_call", "empty script", started.elapsed(), server_cpu_us(&mut plain).await? - cpu_us);

    let started = Instant::now();
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..TOGETHER {
        let (empty, mut plain) = (empty.clone(), plain.clone());
        callers.spawn(async move {
            for _ in 0..REQUESTS {
                let _: i64 = empty.key("{acme}").invoke_async(&mut plain).await?;
            }
            Ok::<(), redis::RedisError>(())
        });
    }
    while let Some(done) = callers.join_next().await {
        done??;
    }
    let calls = u128::from(REQUESTS) * TOGETHER as u128 * 1_000_000 / started.elapsed().as_micros().max(1);
    println!("figure redis_bare_calls {calls}");
    println!("{TOGETHER} callers: {calls} empty scripts a second");

    let requests: Vec<Request> = (1..=REQUESTS).map(full).collect();
    let (started, cpu_us) = (Instant::now(), server_cpu_us(&mut plain).await?);
    for request in &requests {
        // Two calls a request, so that its clock is the store's.
        let request = Request { at_ms: quota.now_ms().await?, ..request.clone() };
        quota.execute(&tenant, request.id, &request.command()).await?;
    }
    report(
        "redis_reserve",
        "reserve, 6 scopes x 4 windows, 9 limits, and a look at the clock",
        started.elapsed(),
        server_cpu_us(&mut plain).await? - cpu_us,
    );
    let open = used_memory(&mut plain).await?;

    let (started, cpu_us) = (Instant::now(), server_cpu_us(&mut plain).await?);
    for request in &requests {
        quota.execute(&tenant, request.id, &start(1, request.hold, None)).await?;
    }
    report("redis_start", "start an attempt", started.elapsed(), server_cpu_us(&mut plain).await? - cpu_us);

    let closing = [close_attempt(1, executed(1_810, "0.0822")), Command::Close];
    let (started, cpu_us) = (Instant::now(), server_cpu_us(&mut plain).await?);
    for request in &requests {
        quota.execute_all(&tenant, request.id, &closing).await?;
    }
    report(
        "redis_close",
        "close attempt and reservation",
        started.elapsed(),
        server_cpu_us(&mut plain).await? - cpu_us,
    );
    let ended = used_memory(&mut plain).await?;

    let book_key: Vec<String> = redis::cmd("KEYS").arg("weir:{*}:book").query_async(&mut plain).await?;
    let each = |bytes: u64| bytes.saturating_sub(empty_tenant) / REQUESTS;
    println!("bytes of a reservation: open {}, settled {}", each(open), each(ended));
    let book: u64 = redis::cmd("MEMORY").arg("USAGE").arg(book_key).query_async(&mut plain).await?;
    println!("bytes of the tenant's book, 6 scopes: {book}");
    rebuild(&quota, &tenant, &requests).await?;
    Ok(())
}

/// Limits of every kind on several scopes, none of which denies.
fn full(n: u64) -> Request {
    let request = request(n);
    let scopes = Scope::of_request(request.team.as_ref(), &request.key, &request.model);
    let budget = |window| Measure::Calendar { unit: Unit::Usd, window };
    let measures = [
        budget(WindowKind::Day),
        budget(WindowKind::Month),
        Measure::PerMinute { unit: Unit::Requests },
        Measure::PerMinute { unit: Unit::Tokens },
        Measure::Concurrent,
    ];
    let on = |scope: &Scope| {
        let scope = scope.clone();
        measures.map(|measure| Limit { scope: scope.clone(), measure, max: usd("1000000").nanos() })
    };
    let limits = on(&scopes[0]).into_iter().chain(on(&scopes[4])).take(9).collect();
    Request { id: id(n), limits, lease_ms: 3_600_000, ..request }
}

async fn rebuild(quota: &RedisQuota, tenant: &TenantId, requests: &[Request]) -> Result<(), Failure> {
    let at_ms = quota.now_ms().await?;
    let mut book = Book::new(BookOptions::default());
    for request in requests {
        book.execute(request.id, &Request { at_ms, ..request.clone() }.command(), at_ms);
    }
    let rebuilt = quota.rebuild(tenant, &book, LEASE_MS).await?;
    println!("rebuild of {} open reservations: {:?}", rebuilt.reservations, rebuilt.took);
    Ok(())
}

/// `name` is what another program finds the figure by.
fn report(name: &str, what: &str, took: Duration, cpu_us: u64) {
    println!("figure {name} {}", cpu_us / REQUESTS);
    println!(
        "{what}: {} us of the server's CPU, {} us in all",
        cpu_us / REQUESTS,
        took.as_micros() / u128::from(REQUESTS)
    );
}

/// CPU time of the server so far, us: unlike wall time it says the same on a busy machine.
async fn server_cpu_us(plain: &mut redis::aio::MultiplexedConnection) -> Result<u64, Failure> {
    let info: String = redis::cmd("INFO").arg("cpu").query_async(plain).await?;
    let mut total_us = 0;
    for name in ["used_cpu_user:", "used_cpu_sys:"] {
        let value = info.lines().find_map(|line| line.strip_prefix(name)).ok_or("no CPU time")?;
        let (seconds, micros) = value.trim().split_once('.').ok_or("no decimals")?;
        total_us += seconds.parse::<u64>()? * 1_000_000 + micros.parse::<u64>()?;
    }
    Ok(total_us)
}

async fn used_memory(plain: &mut redis::aio::MultiplexedConnection) -> Result<u64, Failure> {
    let info: String = redis::cmd("INFO").arg("memory").query_async(plain).await?;
    let line = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
    Ok(line.ok_or("no used_memory")?.trim().parse()?)
}
