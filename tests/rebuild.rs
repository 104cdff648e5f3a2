//! Redis loses everything under load, together with whatever else goes wrong: no limit is passed, by the ledger's own sum
//! (I2, I15). One test at a time, because each breaks the servers of all.
#![cfg(test)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::sync::{Mutex, MutexGuard};
use tokio::task::JoinSet;

use weir_stub::script::Scripts;
use weir_tests::catalog::{Catalog, TENANT};
use weir_tests::client::{self, Client};
use weir_tests::eventually;
use weir_tests::stack::{LONG, Servers, Stack, StackSetup, is_skipped};

static TURN: Mutex<()> = Mutex::const_new(());

/// What the tenant may spend, and what one answer costs: 20 tokens in, 100 out.
const BUDGET_NANOS: i64 = 3_000_000_000;
const ANSWER_NANOS: i64 = weir_tests::catalog::nanos(20, 0, 100);

/// In flight at each gateway. So many holds are at stake.
const WORKERS: usize = 16;

/// Leases are short, so that what a closed store did not take is swept within the test; checkpoints come often, so that
/// what is rebuilt is more than one fold from the start.
const CONFIG: &str =
    "[ledger]\ncheckpoint_events = 200\n[gateway]\nlease = \"10s\"\nrenew_every = \"3s\"\n[listener]\ndrain = \"5s\"\n";

async fn stack(patience: &str) -> (Arc<Stack>, MutexGuard<'static, ()>) {
    let turn = TURN.lock().await;
    let limit = format!("\n[[limit]]\ntenant = \"{TENANT}\"\nkind = \"usd per month\"\nmax = \"3\"\n");
    let script = "[default]\nbefore_headers_ms = 400\nusage = { prompt = 20, completion = 100 }";
    let config = format!("{CONFIG}[reconciler]\nlease = \"10s\"\nrebuild_patience = \"{patience}\"\n");
    let scripts = Scripts::from_toml(script).expect("it is a script");
    let setup = StackSetup { catalog: Catalog::default().and(&limit), scripts, config, ..StackSetup::default() };
    (Arc::new(Stack::start(setup).await), turn)
}

/// Requests that flow through all gateways until the budget is spent.
struct Load {
    answered: Arc<Vec<AtomicUsize>>,
    is_over: Arc<AtomicBool>,
    workers: JoinSet<()>,
}

impl Load {
    fn start(stack: &Arc<Stack>) -> Self {
        let answered: Arc<Vec<AtomicUsize>> = Arc::new(stack.gateways.iter().map(|_| AtomicUsize::new(0)).collect());
        let (is_over, mut workers) = (Arc::new(AtomicBool::new(false)), JoinSet::new());
        for gateway in 0..stack.gateways.len() {
            for _ in 0..WORKERS {
                let (client, answered, is_over) = (stack.client(gateway), Arc::clone(&answered), Arc::clone(&is_over));
                workers.spawn(async move {
                    while !is_over.load(Ordering::SeqCst) {
                        match ask(&client).await {
                            Some(200) => _ = answered[gateway].fetch_add(1, Ordering::SeqCst),
                            // The budget is spent: what is held by others may still come back.
                            Some(_) | None => tokio::time::sleep(Duration::from_millis(20)).await,
                        }
                    }
                });
            }
        }
        Self { answered, is_over, workers }
    }

    fn answered(&self, gateway: usize) -> usize {
        self.answered[gateway].load(Ordering::SeqCst)
    }

    /// Returns when `gateway` has answered `more` requests from now on, and how long that took.
    async fn goes_on(&self, what: &str, gateway: usize, more: usize) -> Duration {
        let (from, began) = (self.answered(gateway), Instant::now());
        eventually(what, LONG, async || (self.answered(gateway) >= from + more).then_some(())).await;
        began.elapsed()
    }

    /// Returns when nothing is answered any more, because nothing is left.
    async fn until_spent(self, stack: &Stack) {
        let all = || (0..self.answered.len()).map(|gateway| self.answered(gateway)).sum::<usize>();
        let (mut last, mut since) = (all(), Instant::now());
        while since.elapsed() < Duration::from_secs(5) {
            tokio::time::sleep(Duration::from_millis(100)).await;
            if all() != last {
                (last, since) = (all(), Instant::now());
            }
        }
        let refused = ask_all(stack).await;
        self.is_over.store(true, Ordering::SeqCst);
        assert!(refused.iter().all(|status| *status == Some(429)), "{refused:?} after {last}\n{}", stack.told());
        self.workers.join_all().await;
    }
}

/// The status of one request; `None` when the connection broke.
async fn ask(client: &Client) -> Option<u16> {
    let body = client::chat("fast", false, &json!({}));
    let open = tokio::time::timeout(LONG, client.open_chat(&body)).await.ok()?.ok()?;
    let answer = tokio::time::timeout(LONG, open.read()).await.ok()?;
    Some(answer.status.as_u16())
}

async fn ask_all(stack: &Stack) -> Vec<Option<u16>> {
    let mut statuses = Vec::new();
    for gateway in 0..stack.gateways.len() {
        statuses.push(ask(&stack.client(gateway)).await);
    }
    statuses
}

/// At rest log, ledger and counters agree; what was spent is no more than the budget, and no less than what fits into it.
async fn is_exact(stack: &Stack) {
    let rest = stack.at_rest().await;
    let spent = rest["charged"]["usd"].as_str().map_or(0, nanos);
    println!("{} of {BUDGET_NANOS} nano-dollars spent, {} lines", spent, rest["lines"]);
    assert!(spent <= BUDGET_NANOS, "{spent} spent of {BUDGET_NANOS}: {rest}");
    // A request also holds room for its input.
    assert!(spent > BUDGET_NANOS - 2 * ANSWER_NANOS, "{spent} spent of {BUDGET_NANOS}: {rest}");
}

/// A decimal in billionths.
fn nanos(text: &str) -> i64 {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let whole: i64 = whole.parse().expect("dollars");
    whole * 1_000_000_000 + format!("{part:0<9}").parse::<i64>().expect("a fraction of a dollar")
}

/// Steps of rebuilds on the log, as the reconciler's own log has them.
fn told_of(stack: &Stack, what: &str) -> Vec<String> {
    let log = std::fs::read_to_string(&stack.reconciler.process.stderr).unwrap_or_default();
    log.lines().filter(|line| line.contains(what)).map(str::to_owned).collect()
}

/// The log is never still, and an operator's rebuild ends nevertheless; then everything is lost at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i15_flushed_under_load_and_no_limit_is_passed() {
    if is_skipped("i15: FLUSHALL under load") {
        return;
    }
    let (stack, _turn) = stack("30s").await;
    let load = Load::start(&stack);
    load.goes_on("requests", 0, 50).await;
    let drill = Arc::clone(&stack);
    let command = tokio::task::spawn_blocking(move || {
        drill.command(&["quota", "rebuild", "--who", "ada", "--why", "drill", "--json"])
    });
    let rebuilt: Value = serde_json::from_str(&command.await.expect("it ran")).expect("JSON");
    println!("an operator's rebuild under load: {rebuilt}");
    assert_eq!(rebuilt["tenants"], 1, "{rebuilt}");
    load.goes_on("requests after an operator's rebuild", 0, 50).await;

    Servers::shared().flush_redis();
    let [first, second] = [0, 1].map(|gateway| load.goes_on("requests after FLUSHALL", gateway, 2 * WORKERS));
    let (first, second) = tokio::join!(first, second);
    println!("FLUSHALL: every gateway answers again after {:?}", first.max(second));
    load.until_spent(&stack).await;
    is_exact(&stack).await;
    println!("{:#?}", told_of(&stack, "counters rebuilt"));

    // A request is six events. Only the tail behind each partition's checkpoint is folded.
    let rebuilt = stack.command(&["quota", "rebuild", "--who", "ada", "--why", "drill", "--json"]);
    let rebuilt: Value = serde_json::from_str(&rebuilt).expect("JSON");
    let in_all = 6 * BUDGET_NANOS / ANSWER_NANOS;
    println!("from checkpoints: {rebuilt}, of {in_all} events");
    assert!(rebuilt["events"].as_i64().is_some_and(|events| events < in_all / 2), "{rebuilt}");
    is_exact(&stack).await;
}

/// Holds wait in two spools, one of them of a process that is stopped, when everything is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i15_flushed_while_the_brokers_are_away_and_a_gateway_is_stopped() {
    if is_skipped("i15: FLUSHALL while brokers are away and a gateway is stopped") {
        return;
    }
    let (stack, _turn) = stack("60s").await;
    let load = Load::start(&stack);
    load.goes_on("requests", 0, 50).await;
    Servers::shared().kill_broker(1);
    // Answers go on, and what they cost is in the spools.
    load.goes_on("requests into the spool", 0, 50).await;
    load.goes_on("requests into the other spool", 1, 20).await;
    stack.gateways[1].process.pause();
    Servers::shared().flush_redis();
    let began = Instant::now();
    tokio::time::sleep(Duration::from_secs(2)).await;
    tokio::task::spawn_blocking(|| Servers::shared().restart_broker(1)).await.expect("it runs");
    let back = began.elapsed();
    tokio::time::sleep(Duration::from_secs(8)).await;
    let before = load.answered(0);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(load.answered(0), before, "nothing is admitted while a gateway's holds are unknown\n{}", stack.told());
    stack.gateways[1].process.resume();
    let woken = Instant::now();
    load.goes_on("requests after the rebuild", 0, WORKERS).await;
    println!("brokers back {back:?} after FLUSHALL; answers {:?} after the gateway woke up", woken.elapsed());
    load.until_spent(&stack).await;
    is_exact(&stack).await;
    assert_eq!(told_of(&stack, "gateways did not answer"), Vec::<String>::new());
}

/// A gateway that is stopped for longer than anybody waits wakes up to counters that do not know what it was about to do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i15_a_gateway_that_was_given_up_wakes_up_late() {
    if is_skipped("i15: a gateway that was given up wakes up late") {
        return;
    }
    let (stack, _turn) = stack("5s").await;
    let load = Load::start(&stack);
    load.goes_on("requests", 1, 50).await;
    stack.gateways[1].process.pause();
    Servers::shared().flush_redis();
    let took = load.goes_on("requests without the other gateway", 0, 2 * WORKERS).await;
    println!("answers {took:?} after FLUSHALL, without a gateway that is waited for 5 s");
    let absent = told_of(&stack, "gateways did not answer");
    assert!(absent.iter().any(|line| line.contains("gateway-1")), "{absent:?}\n{}", stack.told());
    // It is woken when the others have spent almost everything.
    let left = || BUDGET_NANOS / ANSWER_NANOS - i64::try_from(load.answered(0) + load.answered(1)).expect("some");
    eventually("almost nothing left", LONG, async || (left() < 100).then_some(())).await;
    stack.gateways[1].process.resume();
    load.until_spent(&stack).await;
    is_exact(&stack).await;
}
