//! Servers and consumers that are lost while fifty requests a second flow, and exact books afterwards.
//!
//! `WEIR_OUTAGE=broker` goes only through those with that in their name.
//!
//! Each outage begins three seconds into a load through two gateways, plain and streamed, and lasts
//! `WEIR_OUTAGE_SECONDS` (8 unless set; `make test-long` takes 20, which loses nothing but patience here: every timeout
//! of the gateways is shorter than either). One request in five has a key of a limit that is used up while the outage
//! lasts, so counters that come back too low would let another one through. Then everything is compared by
//! `Stack::assert_exact`: log, ledger, counters, and the provider's bill call by call.
//!
//! Beside them: consumers that come and go, `WEIR_REBALANCES` times (10 unless set; `make test-long` takes 30).
#![cfg(test)]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::sync::Mutex;

use weir_tests::PATIENCE;
use weir_tests::catalog::{Catalog, TENANT, key_hash};
use weir_tests::random::{Random, number, seed};
use weir_tests::stack::load::{End, Load, Seen, answered, summary};
use weir_tests::stack::{Books, LONG, Layout, Stack, StackSetup, is_skipped};

/// Requests that the limited key of an outage has. Ten a second come: half of it is left when the outage begins.
const MOST_REQUESTS: i64 = 60;
const BEFORE: Duration = Duration::from_secs(3);
/// After everything flows again.
const AFTER: Duration = Duration::from_secs(4);
/// The newest calls that the provider keeps: of all outages on one stack, as long as they are in `make test-long`.
const CALLS: usize = 50_000;

/// Leases shorter than by default, so that a hold whose reply was lost does not take a minute to end; longer than what an
/// outage of eight seconds leaves waiting.
const CONFIG: &str =
    "[gateway]\nlease = \"20s\"\nrenew_every = \"5s\"\n[listener]\ndrain = \"5s\"\n[reconciler]\nlease = \"20s\"\n";

/// What clients may see of an outage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Clients {
    /// Nothing: not one request is refused.
    Nothing,
    /// 503 `quota_unavailable`, as long as limits cannot be checked. Nobody is let through unchecked.
    QuotaUnavailable,
}

struct Outage {
    /// Of the limited key too, hence no spaces.
    name: &'static str,
    clients: Clients,
    strike: fn(&mut Stack),
    heal: fn(&mut Stack),
}

const fn outage(name: &'static str, clients: Clients, strike: fn(&mut Stack), heal: fn(&mut Stack)) -> Outage {
    Outage { name, clients, strike, heal }
}

fn length() -> Duration {
    Duration::from_secs(number("WEIR_OUTAGE_SECONDS").unwrap_or(8))
}

/// The key whose requests run out during an outage.
fn limited_key(number: usize) -> String {
    format!("weir_live_OutageOutageOutageOutageOutag{number:02}00000")
}

/// One set of servers under load at a time: two of them on two cores answer neither in time.
static TURN: Mutex<()> = Mutex::const_new(());

/// Makes a stack with a limited key for each outage, goes through all of them, and compares after each.
async fn go_through(outages: &[Outage], layout: Layout, kafka: &str) {
    let _turn = TURN.lock().await;
    let only = std::env::var("WEIR_OUTAGE").unwrap_or_default();
    let outages: Vec<&Outage> = outages.iter().filter(|outage| outage.name.contains(&only)).collect();
    let mut more = String::new();
    for (number, outage) in outages.iter().enumerate() {
        let (name, hash) = (outage.name, key_hash(&limited_key(number)));
        more += &format!(
            "\n[[key]]\nname = \"{name}\"\ntenant = \"{TENANT}\"\nhash = \"{hash}\"\n\n[[limit]]\ntenant = \"{TENANT}\"\n\
             key = \"{name}\"\nkind = \"requests per day\"\nmax = {MOST_REQUESTS}\n"
        );
    }
    let catalog = Catalog::default().and(&more);
    let setup =
        StackSetup { catalog, layout, journal: CALLS, config: format!("{kafka}{CONFIG}"), ..StackSetup::default() };
    let mut stack = Stack::start(setup).await;
    stack.knows(&limited_key(outages.len() - 1)).await;
    let mut all = Vec::new();
    for (number, outage) in outages.iter().enumerate() {
        let seen = go_through_one(&mut stack, outage, &limited_key(number)).await;
        let was_refused = seen.iter().any(|one| matches!(one.end, End::Refused(429, _)));
        all.extend(seen);
        let began = Instant::now();
        let books = stack.assert_exact(&answered(&all)).await;
        println!("  exact after {:.1?}, {} had to be reported", began.elapsed(), books.pending);
        assert_limit_held(&books, outage.name, was_refused);
    }
}

async fn go_through_one(stack: &mut Stack, outage: &Outage, second_key: &str) -> Vec<Seen> {
    let load = Load::start(stack, second_key);
    tokio::time::sleep(BEFORE).await;
    let struck = load.elapsed();
    tokio::task::block_in_place(|| (outage.strike)(stack));
    tokio::time::sleep((struck + length()).saturating_sub(load.elapsed())).await;
    let healing = load.elapsed();
    tokio::task::block_in_place(|| (outage.heal)(stack));
    let healed = load.elapsed();
    // Where clients see nothing it is asked from the strike on.
    let flows = load.flows(if outage.clients == Clients::Nothing { struck } else { healing }).await;
    let flows = flows.unwrap_or_else(|ended| panic!("{}: {ended}\n{}", outage.name, stack.told()));
    tokio::time::sleep(AFTER).await;
    let seen = load.stop().await;
    println!("{}: {} sent, {}", outage.name, seen.len(), summary(&seen));
    let since = |from: Duration| flows.saturating_sub(from);
    println!("  healed after {:.1?}; flowing {:.1?} after the strike", healed - struck, since(struck));
    println!("  and {:.1?} after the servers were there again", since(healed));
    for one in &seen {
        let is_fine = match &one.end {
            End::Whole => true,
            // The limit of the second key.
            End::Refused(429, _) => one.is_second_key,
            End::Refused(503, code) => outage.clients == Clients::QuotaUnavailable && code == "quota_unavailable",
            End::Refused(..) | End::Broken(_) => false,
        };
        assert!(is_fine, "{}: {one:?}\n{}", outage.name, stack.told());
    }
    seen
}

/// By the ledger's own sum the limited key got what it may have, and not one more; and not one less where it was told that
/// its limit is reached. (While Redis is away for long, too few requests of it may pass to come that far.)
fn assert_limit_held(books: &Books, name: &str, was_refused: bool) {
    let counters = books.counters["counters"].as_array().expect("counters are listed");
    let of_key = |counter: &&Value| counter["subject"] == "key" && counter["name"] == name;
    let id = counters.iter().find(of_key).and_then(|counter| counter["id"].as_str());
    let charged = id.and_then(|id| books.requests.get(id)).copied().unwrap_or_default();
    assert!(
        charged <= MOST_REQUESTS,
        "{charged} requests of the limited key of {name}, which may have {MOST_REQUESTS}"
    );
    if was_refused {
        assert_eq!(charged, MOST_REQUESTS, "requests of the limited key of {name}");
    }
}

fn killed_roles(stack: &mut Stack) {
    for role in [&mut stack.ledger, &mut stack.reconciler, &mut stack.control] {
        role.process.kill();
    }
}

fn restarted_roles(stack: &mut Stack) {
    let folder = stack.folder().to_owned();
    for role in [&mut stack.ledger, &mut stack.reconciler, &mut stack.control] {
        role.restart(&folder);
    }
    stack.reconnect();
}

/// The partitions are shared out anew, and again when the first of each dies.
fn joined_and_killed_consumers(stack: &mut Stack) {
    stack.join("ledger", "ledger-2");
    stack.join("reconciler", "reconciler-2");
    std::thread::sleep(length() / 2);
    stack.ledger.process.kill();
    stack.reconciler.process.kill();
}

fn restarted_consumers(stack: &mut Stack) {
    let folder = stack.folder().to_owned();
    for role in [&mut stack.ledger, &mut stack.reconciler] {
        role.restart(&folder);
    }
}

/// The node with the tenant's counters.
fn kill_redis(stack: &mut Stack) {
    let number = stack.servers.redis_master_of(stack.prefix.trim_end_matches('.'));
    stack.servers.kill_redis(number);
}

fn restart_redis(stack: &mut Stack) {
    stack.servers.restart_redis();
}

const fn nothing(_: &mut Stack) {}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn each_server_lost_alone_under_load() {
    if is_skipped("a broker, the CQL server, a Redis master, every consumer, lost under load") {
        return;
    }
    let outages = [
        outage(
            "the-only-broker-killed",
            Clients::Nothing,
            |stack| stack.servers.kill_broker(1),
            |stack| stack.servers.restart_broker(1),
        ),
        outage(
            "the-CQL-server-killed",
            Clients::Nothing,
            |stack| stack.servers.kill_cql(),
            |stack| stack.servers.restart_cql(),
        ),
        outage("every-consumer-and-the-control-plane-killed", Clients::Nothing, killed_roles, restarted_roles),
        outage(
            "one-of-two-ledgers-and-reconcilers-killed",
            Clients::Nothing,
            joined_and_killed_consumers,
            restarted_consumers,
        ),
        outage("a-Redis-master-without-replica-killed", Clients::QuotaUnavailable, kill_redis, restart_redis),
        outage("FLUSHALL", Clients::QuotaUnavailable, |stack| stack.servers.flush_redis(), nothing),
    ];
    go_through(&outages, Layout::default(), "").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn replicated_servers_lost_under_load() {
    if is_skipped("one and two of three brokers, a Redis master with a replica, lost under load") {
        return;
    }
    let outages = [
        outage(
            "one-of-three-brokers-killed",
            Clients::Nothing,
            |stack| stack.servers.kill_broker(1),
            |stack| stack.servers.restart_broker(1),
        ),
        outage(
            "two-of-three-brokers-killed",
            Clients::Nothing,
            |stack| [2, 3].into_iter().for_each(|number| stack.servers.kill_broker(number)),
            |stack| [2, 3].into_iter().for_each(|number| stack.servers.restart_broker(number)),
        ),
        outage("a-Redis-master-with-a-replica-killed", Clients::QuotaUnavailable, kill_redis, restart_redis),
    ];
    // Shorter than the outage: a producer that gives up and sends again may leave copies of a record.
    go_through(&outages, Layout { brokers: 3, replicas: 1 }, "message_timeout = \"5s\"\n").await;
}

/// Roles whose processes share partitions out among them. The reconciler's are of two groups.
const CONSUMERS: [&str; 2] = ["ledger", "reconciler"];
/// Of each role. Fewer than partitions, so that everyone has some.
const MOST_MEMBERS: usize = 3;
/// Of each topic that they follow.
const PARTITIONS: u32 = 4;

/// What happens to the processes of a role.
#[derive(Debug, Clone, Copy)]
enum Change {
    Join,
    /// In order: it gives up what it follows.
    Stop,
    /// It keeps its partitions until the brokers have missed it for the session's time.
    Kill,
    /// Another one joins in the moment in which it is killed.
    Replace,
}

impl Change {
    /// One that leaves at least one process, and at most [`MOST_MEMBERS`].
    fn of(members: usize, random: &mut Random) -> Self {
        let possible: &[Self] = match members {
            1 => &[Self::Join, Self::Replace],
            MOST_MEMBERS => &[Self::Stop, Self::Kill, Self::Replace],
            _ => &[Self::Join, Self::Stop, Self::Kill, Self::Replace],
        };
        *random.pick(possible)
    }
}

/// Each change makes the brokers share all partitions out anew, while fifty requests a second go on: nothing that was
/// under way between two owners is lost or counted twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn consumer_groups_rebalanced_under_load() {
    if is_skipped("consumer groups rebalanced under load") {
        return;
    }
    let _turn = TURN.lock().await;
    let (seed, rounds) = (seed(), number("WEIR_REBALANCES").unwrap_or(10));
    println!("WEIR_TEST_SEED={seed}");
    let mut random = Random::new(seed);
    // A killed member keeps its partitions for so long.
    let session_timeout = Duration::from_secs(2);
    let setup = StackSetup { journal: CALLS, config: CONFIG.to_owned(), session_timeout, ..StackSetup::default() };
    let mut stack = Stack::start(setup).await;
    shared_out(&stack).await;
    let load = Load::start(&stack, stack.client(0).bearer());
    for round in 0..rounds {
        let mut changes = Vec::new();
        for role in CONSUMERS {
            changes.push(changed(&mut stack, role, round, &mut random).await);
        }
        let began = Instant::now();
        shared_out(&stack).await;
        println!("{}: shared out anew after {:.1?}", changes.join(", "), began.elapsed());
    }
    let seen = load.stop().await;
    let began = Instant::now();
    let books = stack.assert_exact(&answered(&seen)).await;
    println!("{} sent, {}", seen.len(), summary(&seen));
    println!("  exact after {:.1?}, {} had to be reported", began.elapsed(), books.pending);
    assert!(seen.iter().all(|seen| seen.end == End::Whole), "{}", summary(&seen));
}

/// Does something to one process of `role`; what, in words.
async fn changed(stack: &mut Stack, role: &'static str, round: u64, random: &mut Random) -> String {
    let names: Vec<String> = stack.members(role).into_iter().map(|member| member.name.clone()).collect();
    let (change, which, new) = (Change::of(names.len(), random), random.pick(&names), format!("{role}-of-{round}"));
    match change {
        Change::Join => stack.join(role, &new),
        Change::Stop => {
            let mut leaving = stack.leave(which);
            leaving.process.terminate();
            let status = leaving.process.wait(PATIENCE).await;
            assert!(status.success(), "{which}: {status}\n{}", leaving.process.told());
        }
        Change::Kill => stack.leave(which).process.kill(),
        Change::Replace => {
            stack.join(role, &new);
            stack.leave(which).process.kill();
        }
    }
    format!("{change:?} of {} {role}", names.len())
}

/// Waits until the processes that there are follow all partitions between them, each its fair share.
async fn shared_out(stack: &Stack) {
    const LOOK_EVERY: Duration = Duration::from_millis(100);
    let deadline = Instant::now() + LONG;
    for role in CONSUMERS {
        while !is_shared_out(stack, role).await {
            assert!(Instant::now() < deadline, "partitions are not shared out\n{}", stack.told());
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

async fn is_shared_out(stack: &Stack, role: &str) -> bool {
    let members = stack.members(role);
    let mut shares: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for member in &members {
        for (consumer, share) in member.metric("weir_consumer_partitions").await.unwrap_or_default() {
            shares.entry(consumer).or_default().push(share);
        }
    }
    let count = u32::try_from(members.len()).expect("they are few");
    let fair = f64::from(PARTITIONS / count)..=f64::from(PARTITIONS.div_ceil(count));
    let is_fair = |shares: &Vec<f64>| {
        let sum: f64 = shares.iter().sum();
        shares.len() == members.len() && sum == f64::from(PARTITIONS) && shares.iter().all(|share| fair.contains(share))
    };
    !shares.is_empty() && shares.values().all(is_fair)
}
