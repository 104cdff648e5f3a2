//! SIGKILL on the stack: of gateways at every named step of a request, of consumers between effect and commit (s15).
//!
//! As `crash_matrix.rs` does in one process; here whoever is left must finish the work of whoever died, from what is on
//! Kafka, in the CQL ledger and in Redis. Both gateways die in each round, at two points. Afterwards everything is
//! compared by `Stack::assert_exact`, and everything of which a client saw content is on the bill.
//!
//! `WEIR_CRASH=all` goes through every point twice and kills each consumer fifty times; without it through a third of
//! the points, and eight times. `WEIR_TEST_SEED` chooses where, and is printed.
#![cfg(test)]

use std::collections::{BTreeSet, HashMap};
use std::os::unix::process::ExitStatusExt as _;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::task::JoinSet;

use weir_domain::ids::ReservationId;
use weir_domain::money::{Amounts, NanoUsd};
use weir_stub::script::{ReportUsage, Script, Scripts, UsageScript};
use weir_tests::PATIENCE;
use weir_tests::catalog::{Catalog, Model, TENANT};
use weir_tests::client::chat;
use weir_tests::crash::{self, COVERED, ONE, Seen, TWO, seed_case};
use weir_tests::eventually;
use weir_tests::failpoints::Plan;
use weir_tests::random::{Random, seed};
use weir_tests::stack::load::{End, Load, answered, summary};
use weir_tests::stack::{LONG, RoleProcess, Stack, StackSetup, is_skipped};

/// A point in the life of a request, and how many of the first hits a burst is sure to reach.
const POINTS: [(&str, u64); 12] = [
    ("reserve.after", 12),
    ("mark.before_append", 12),
    ("mark.after_append", 12),
    ("attempt.before_call", 12),
    ("attempt.after_head", 8),
    // Retries have a budget, so few second attempts are let through.
    ("failover.before_route", 2),
    ("relay.before_content", 10),
    ("relay.piece", 20),
    ("relay.after_end", 5),
    ("finalize.before_append", 10),
    ("finalize.before_store", 10),
    ("finalize.after_store", 10),
];
const BURST: usize = 24;

const BUILDER: [&str; 3] = ["builder.before_store", "builder.before_publish", "builder.before_position"];
const RECONCILER: [&str; 5] = [
    "corrector.before_store",
    "corrector.before_position",
    "reports.before_append",
    "reports.before_store",
    "reports.before_position",
];

fn is_all() -> bool {
    std::env::var("WEIR_CRASH").is_ok_and(|which| !which.is_empty())
}

/// Short leases, so that the dead are found soon; long enough for a machine that is busy with something else.
const CONFIG: &str = r#"
[gateway]
lease = "4s"
renew_every = "1s"

[listener]
drain = "1s"

[reconciler]
lease = "4s"
period = "200ms"
pending_period = "500ms"
"#;

fn plans(names: &[&'static str]) -> HashMap<&'static str, Plan> {
    names.iter().map(|name| (*name, Plan::default())).collect()
}

fn setup(names: &[&'static str]) -> StackSetup {
    let models = [
        Model::tiers(ONE, &["answers"]),
        Model::tiers(TWO, &["busy", "answers"]),
        Model::tiers(COVERED, &["resets", "answers"]),
    ];
    StackSetup {
        catalog: Catalog::of(&models),
        scripts: crash::scripts(),
        config: CONFIG.to_owned(),
        plans: plans(names),
        ..StackSetup::default()
    }
}

/// Waits until it was killed by itself; any other end, and none, fails.
async fn killed(role: &mut RoleProcess) {
    let status = role.process.wait(PATIENCE).await;
    assert_eq!(status.signal(), Some(9), "{}: {status}\n{}", role.name, role.process.told());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn s15_gateways_killed_at_every_step_of_a_request() {
    if is_skipped("s15: gateways killed at every step of a request") {
        return;
    }
    let seed = seed();
    println!("WEIR_TEST_SEED={seed}");
    let mut random = Random::new(seed);
    let mut stack = Stack::start(setup(&["gateway-0", "gateway-1"])).await;
    let mut seen = BTreeSet::new();
    for round in rounds(&mut random) {
        let scripts = round.map(|(point, most)| format!("{point}=kill@{}", 1 + random.below(most)));
        println!("{}", scripts.join(" and "));
        seen.extend(gateways_killed(&mut stack, &scripts).await);
        let began = Instant::now();
        let books = stack.assert_exact(&seen).await;
        let (charged, took) = (books.attempts.len(), began.elapsed());
        println!("  {charged} charged so far, {} had to be reported, exact after {took:.1?}", books.pending);
    }
}

/// Pairs of points, each point once, or twice with other partners.
fn rounds(random: &mut Random) -> Vec<[(&'static str, u64); 2]> {
    let mut rounds = Vec::new();
    for _ in 0..if is_all() { 2 } else { 1 } {
        let mut points = POINTS.to_vec();
        for last in (1..points.len()).rev() {
            let other = usize::try_from(random.below(last as u64 + 1)).expect("it is small");
            points.swap(last, other);
        }
        rounds.extend(points.chunks_exact(2).map(|pair| [pair[0], pair[1]]));
    }
    if !is_all() {
        rounds.truncate(2);
    }
    rounds
}

/// A burst to each gateway, which dies of it, and is started again; the reservations of which a client saw content.
async fn gateways_killed(stack: &mut Stack, scripts: &[String; 2]) -> BTreeSet<ReservationId> {
    restart_gateways(stack, scripts).await;
    let mut requests = JoinSet::new();
    for number in 0..2 * BURST {
        let client = stack.client(number % 2);
        let nth = number / 2;
        let model = [ONE, TWO, ONE, COVERED][nth % 4];
        requests.spawn(crash::send(client, model.to_owned(), nth / 2 % 2 == 0));
    }
    let seen: Vec<Seen> = requests.join_all().await;
    for gateway in &mut stack.gateways {
        killed(gateway).await;
    }
    restart_gateways(stack, &[String::new(), String::new()]).await;
    seen.into_iter().filter(|seen| seen.content).filter_map(|seen| seen.reservation).collect()
}

async fn restart_gateways(stack: &mut Stack, scripts: &[String; 2]) {
    let folder = stack.folder().to_owned();
    for (name, script) in ["gateway-0", "gateway-1"].into_iter().zip(scripts) {
        stack.plans[name].set(script);
    }
    for gateway in &mut stack.gateways {
        gateway.restart(&folder);
    }
    stack.ready().await;
}

/// Times that each consumer dies.
fn kills() -> usize {
    if is_all() { 50 } else { 8 }
}

/// Of requests whose usage the answer does not tell, so that reports have something to do.
const SILENT: &str = "silent";

/// The builder and the reconciler with its corrector, each killed again and again between an effect and its commit,
/// while requests flow and reports come.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn s15_consumers_killed_between_effect_and_commit() {
    if is_skipped("s15: ledger builder, corrector and reconciler killed between effect and commit") {
        return;
    }
    let seed = seed();
    println!("WEIR_TEST_SEED={seed}");
    let mut random = Random::new(seed);
    let mut setup = setup(&["ledger", "reconciler"]);
    setup.catalog = Catalog::of(&[Model::named("fast"), Model::named(SILENT)]);
    let never = UsageScript { report: ReportUsage::Never, ..UsageScript::default() };
    let silent = Script { usage: never, ..Script::default() };
    setup.scripts = Scripts { default: Script::default(), scripts: HashMap::from([(SILENT.to_owned(), silent)]) };
    setup.journal = 200_000;
    // A killed member keeps its partitions for so long.
    setup.session_timeout = Duration::from_secs(2);
    let mut stack = Stack::start(setup).await;
    let load = Load::start(&stack, stack.client(0).bearer());
    let mut killed_times = [0, 0];
    let mut points: HashMap<String, usize> = HashMap::new();
    next_kill(&mut stack, 0, &mut random);
    next_kill(&mut stack, 1, &mut random);
    let deadline = Instant::now() + LONG * u32::try_from(kills()).expect("it is small");
    while killed_times.iter().any(|times| *times < kills()) {
        for (which, times) in killed_times.iter_mut().enumerate() {
            if let Some(status) = role(&mut stack, which).process.ended() {
                assert_eq!(status.signal(), Some(9), "{status}\n{}", stack.told());
                *times += 1;
                let point = next_kill(&mut stack, which, &mut random);
                *points.entry(point).or_default() += 1;
            }
        }
        report_silent(&stack).await;
        assert!(Instant::now() < deadline, "{killed_times:?} kills\n{}", stack.told());
    }
    let seen = load.stop().await;
    for (which, name) in NAMES.into_iter().enumerate() {
        stack.plans[name].set("");
        let folder = stack.folder().to_owned();
        role(&mut stack, which).restart(&folder);
    }
    stack.ready().await;
    let books = stack.assert_exact(&answered(&seen)).await;
    println!("{} kills of the builder, {} of the reconciler, at {points:?}", killed_times[0], killed_times[1]);
    println!("{}; {} attempts charged, {} reported at the end", summary(&seen), books.attempts.len(), books.pending);
    assert!(seen.iter().all(|seen| seen.end == End::Whole), "{}", summary(&seen));
}

const NAMES: [&str; 2] = ["ledger", "reconciler"];

const fn role(stack: &mut Stack, which: usize) -> &mut RoleProcess {
    if which == 0 { &mut stack.ledger } else { &mut stack.reconciler }
}

/// Starts it again, to die at a hit that comes soon; the point.
fn next_kill(stack: &mut Stack, which: usize, random: &mut Random) -> String {
    let point = if which == 0 { *random.pick(&BUILDER) } else { *random.pick(&RECONCILER) };
    stack.plans[NAMES[which]].set(&format!("{point}=kill@{}", 1 + random.below(4)));
    let folder = stack.folder().to_owned();
    role(stack, which).restart(&folder);
    point.to_owned()
}

/// Asks once without an answer's usage, and says what the provider billed for one that is pending.
async fn report_silent(stack: &Stack) {
    let answer = stack.client(0).chat(&chat(SILENT, false, &json!({}))).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let id = answer.reservation().expect("an answer names its reservation");
    let billed = weir_tests::bill::calls(&stack.stub.journal());
    let call = billed.get(&(id.parse().expect("an id"), 1)).and_then(|call| call.billed).expect("it was billed");
    let report = json!({
        "reservation_id": id, "attempt": 1,
        "meters": {"in.uncached": call.prompt, "out.visible": call.completion},
    });
    let said = stack.admin.post("/admin/v1/usage-reports", report.to_string()).await;
    assert!(said.status.is_success(), "{}", said.text());
}

fn amounts(value: &Value) -> Amounts {
    serde_json::from_value(value.clone()).expect("an amount")
}

/// The seed's own case: the usage is on the log at $0.0822, the gateway is killed before it tells Redis, which holds
/// $0.105. The corrector charges $0.0822 and gives $0.0228 back, once.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn s15_usage_recorded_and_the_gateway_killed_before_the_quota_close() {
    if is_skipped("s15: usage recorded, gateway killed before the quota close") {
        return;
    }
    let mut setup = setup(&["gateway-0"]);
    setup.catalog = Catalog::default().and(seed_case::CATALOG);
    setup.scripts.scripts.insert("seed".to_owned(), seed_case::script());
    setup.charge = seed_case::charge;
    let mut stack = Stack::start(setup).await;
    // Held long enough to be looked at.
    stack.plans["gateway-0"].set("reserve.after=delay:2s; finalize.before_store=kill");
    let folder = stack.folder().to_owned();
    stack.gateways[0].restart(&folder);
    stack.ready().await;
    let client = stack.client(0);
    let mut asked = JoinSet::new();
    asked.spawn(async move { drop(client.open_chat(&seed_case::request()).await) });
    let held = eventually("a hold", PATIENCE, async || {
        let held = amounts(&stack.counters().await?["held"]).usd;
        (held != NanoUsd::ZERO).then_some(held)
    });
    assert_eq!(held.await, "0.105".parse().expect("dollars"));
    killed(&mut stack.gateways[0]).await;
    asked.join_all().await;

    let charged = |counters: &Value| -> Vec<NanoUsd> {
        let counters = counters["counters"].as_array().expect("counters are listed");
        counters.iter().map(|counter| amounts(&counter["charged"]).usd).collect()
    };
    // Nobody starts the gateway again, and nobody reports: the line is enough. Twice, because once is not again.
    for round in 0..2 {
        let books = stack.assert_exact(&BTreeSet::new()).await;
        assert_eq!(books.pending, 0, "round {round}");
        let sums: Vec<NanoUsd> = books.attempts.values().map(|sum| sum.usd).collect();
        assert_eq!(sums, ["0.0822".parse().expect("dollars")], "round {round}");
        assert_eq!(amounts(&books.counters["held"]), Amounts::ZERO, "round {round}");
        assert!(charged(&books.counters).iter().all(|usd| *usd == sums[0]), "{}", books.counters);
        let id = books.attempts.keys().next().expect("there is one").0;
        let report = json!({
            "reservation_id": id, "attempt": 1, "meters": {"in.uncached": 1_500, "out.visible": 310},
        });
        let said = stack.admin.post("/admin/v1/usage-reports", report.to_string()).await;
        assert!(said.status.is_success(), "{}", said.text());
    }
    assert!(stack.command(&["budget", "show", "--tenant", TENANT]).contains("0.0822"));
}
