//! Thousands of requests of mixed fate against the real process, and exact books at the end (I9, I11, I12, I13).
//!
//! Answers that are whole, without usage, late, broken before and after their first content; providers that refuse, are
//! overloaded, stall or are not there; clients that leave; second attempts; reports that come late, twice, from two
//! sides, or contradict. At rest, every counter is the sum of its ledger lines and of what is open, every line is what
//! the provider billed for that very call, nothing is left reserved, and folding the log again gives the same.
//!
//! `WEIR_FATES=50000` sends more; `WEIR_TEST_SEED` chooses others. Both are printed.

#![expect(clippy::unwrap_used, reason = "a helper of a test may fail as the test does")]

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinSet;

use weir_stub::StubOptions;
use weir_stub::journal::{Billed, JournalOptions};
use weir_stub::script::{Script, Scripts};
use weir_tests::bill::{self, AttemptKey, Call};
use weir_tests::catalog::{Catalog, KEY, Model, TENANT, key_hash};
use weir_tests::client::{Client, chat};
use weir_tests::random::{Random, number, seed};
use weir_tests::{AtRest, House, Setup, eventually};

/// As many at once as a busy application has open.
const WORKERS: usize = 48;
/// For everything to be answered and derived after the last request was sent.
const REST: Duration = Duration::from_secs(90);

const TEAM_KEY: &str = "weir_live_TeamTeamTeamTeamTeamTeamTeamTe000000";
const OTHER_KEY: &str = "weir_live_OtherOtherOtherOtherOtherOthe000000";
const OTHER_TENANT: &str = "globex";

/// What the client does with its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reader {
    ReadsAll,
    /// Closes its connection before any content came.
    LeavesEarly,
    /// Closes it after some.
    LeavesLate,
}

/// A kind of request: who answers it, how, and what the client does.
struct Fate {
    name: &'static str,
    /// Of 1,000 requests.
    share: u64,
    /// The script of the first tier; the second, where there is one, answers well.
    script: Value,
    has_second_tier: bool,
    /// `None`: either.
    stream: Option<bool>,
    reader: Reader,
}

impl Fate {
    fn new(name: &'static str, share: u64, script: Value) -> Self {
        Self { name, share, script, has_second_tier: false, stream: None, reader: Reader::ReadsAll }
    }

    fn then_second_tier(self) -> Self {
        Self { has_second_tier: true, ..self }
    }

    fn streamed(self) -> Self {
        Self { stream: Some(true), ..self }
    }

    fn plain(self) -> Self {
        Self { stream: Some(false), ..self }
    }

    fn reader(self, reader: Reader) -> Self {
        Self { reader, ..self }
    }
}

fn fates() -> Vec<Fate> {
    let after = |kind: &str, chunks: u64| json!({"chunks": 6, "fault": {"kind": kind, "after_chunks": chunks}});
    // An error status before anything ran costs nothing; a cut that nobody can judge costs what was generated.
    let status = |status: u16| json!({"status": status});
    let busy = json!({"fault": {"kind": "error", "after_chunks": 0, "code": "overloaded"}, "billing": "none"});
    let charged = json!({"status": 500, "billing": "full", "body": {
        "error": {"message": "after the work", "type": "server_error"},
        "usage": {"prompt_tokens": 40, "completion_tokens": 7, "total_tokens": 47}},
        "usage": {"prompt": 40, "completion": 7}});
    vec![
        Fate::new("answered", 400, json!({})),
        Fate::new("slow", 40, json!({"chunks": 5, "gap_ms": 20, "before_headers_ms": 30})),
        Fate::new("usage absent", 40, json!({"usage": {"report": "never"}})),
        Fate::new("odd usage", 20, json!({"usage": {"verbatim": {"prompt_tokens": -1, "completion_tokens": 5}}})),
        Fate::new("400", 30, status(400)),
        Fate::new("429", 20, status(429)),
        Fate::new("429, second tier", 20, status(429)).then_second_tier(),
        Fate::new("500", 20, status(500)),
        Fate::new("500, second tier", 20, status(500)).then_second_tier(),
        Fate::new("529, second tier", 20, status(529)).then_second_tier(),
        Fate::new("504", 20, status(504)),
        Fate::new("504, second tier", 20, status(504)).then_second_tier(),
        Fate::new("500 that is charged", 20, charged),
        Fate::new("reset", 20, json!({"refuse": "reset"})),
        Fate::new("reset, second tier", 20, json!({"refuse": "reset"})).then_second_tier(),
        Fate::new("close, second tier", 20, json!({"refuse": "close"})).then_second_tier(),
        Fate::new("reset after content", 20, after("reset", 2)).streamed(),
        Fate::new("cut plain answer", 20, json!({"fault": {"kind": "cut", "after_bytes": 40}})).plain(),
        Fate::new("stall", 10, after("stall", 0)).streamed(),
        Fate::new("stall, second tier", 20, after("stall", 0)).streamed().then_second_tier(),
        Fate::new("stall after content", 10, after("stall", 2)).streamed(),
        Fate::new("early close", 20, after("close", 3)).streamed(),
        Fate::new("finish without usage", 20, json!({"done": false, "usage": {"report": "never"}})).streamed(),
        Fate::new("error before content, second tier", 20, busy).streamed().then_second_tier(),
        Fate::new("error after content", 20, after("error", 2)).streamed(),
        Fate::new("garbage", 20, after("garbage", 1)).streamed(),
        Fate::new("client leaves early", 30, json!({"before_headers_ms": 3_000})).reader(Reader::LeavesEarly),
        Fate::new("client leaves late", 40, json!({"chunks": 60, "gap_ms": 20})).streamed().reader(Reader::LeavesLate),
    ]
}

/// A fate has several models, and each deployments of its own, so that no circuit opens and hides the fate behind it.
const CALLS_PER_LANE: u64 = 4;

fn lanes(fate: &Fate, requests: u64) -> u64 {
    (requests * fate.share / 1_000 / CALLS_PER_LANE).max(1)
}

fn model(fate: &Fate, lane: u64) -> String {
    format!("{}/{lane}", fate.name.replace([' ', ','], "-"))
}

fn setup(fates: &[Fate], requests: u64) -> Setup {
    let mut scripts = HashMap::new();
    let mut models = Vec::new();
    for fate in fates {
        let script: Script = serde_json::from_value(fate.script.clone()).unwrap();
        for lane in 0..lanes(fate, requests) {
            let name = model(fate, lane);
            let upstream = if fate.has_second_tier { vec![name.as_str(), "good"] } else { vec![name.as_str()] };
            models.push(Model::tiers(&name, &upstream).deadlines(r#"first_content = "400ms", idle = "400ms""#));
            scripts.insert(name, script.clone());
        }
    }
    let more = format!(
        r#"
[[team]]
tenant = "{TENANT}"
name = "search"

[[key]]
name = "of-the-team"
tenant = "{TENANT}"
team = "search"
hash = "{}"

[[tenant]]
name = "{OTHER_TENANT}"
zone = "Asia/Tokyo"

[[key]]
name = "main"
tenant = "{OTHER_TENANT}"
hash = "{}"

[[limit]]
tenant = "{TENANT}"
kind = "usd per month"
max = "1000000"
"#,
        key_hash(TEAM_KEY),
        key_hash(OTHER_KEY)
    );
    let entries = usize::try_from(requests).unwrap() * 3;
    Setup {
        catalog: Catalog::of(&models).and(&more),
        scripts: Scripts { default: Script::default(), scripts },
        stub: StubOptions { journal: JournalOptions { entries, body_bytes: 0 }, ..StubOptions::default() },
        ..Setup::default()
    }
}

/// One request to come.
struct Planned {
    fate: usize,
    key: &'static str,
    body: Value,
    reader: Reader,
}

fn plan(fates: &[Fate], requests: u64, random: &mut Random) -> Vec<Planned> {
    let whole: u64 = fates.iter().map(|fate| fate.share).sum();
    let mut sent: Vec<u64> = vec![0; fates.len()];
    let mut planned = Vec::new();
    for _ in 0..requests {
        let mut at = random.below(whole);
        let fate = fates.iter().position(|fate| match at.checked_sub(fate.share) {
            None => true,
            Some(rest) => {
                at = rest;
                false
            }
        });
        let number = fate.unwrap();
        let fate = &fates[number];
        let lane = sent[number] % lanes(fate, requests);
        sent[number] += 1;
        let prompt = 1 + random.below(60);
        let usage = json!({"prompt": prompt, "cached": random.below(prompt), "completion": random.below(40)});
        // Figures that a script fixes stay as they are.
        let fixed = fate.script["usage"].get("prompt").is_some();
        let changes = if fixed { json!({}) } else { json!({ "usage": usage }) };
        let stream = fate.stream.unwrap_or_else(|| random.below(2) == 0);
        let mut body = chat(&model(fate, lane), stream, &changes);
        if stream && random.below(2) == 0 {
            body["stream_options"] = json!({"include_usage": true});
        }
        let key = random.pick(&[KEY, KEY, TEAM_KEY, OTHER_KEY]);
        planned.push(Planned { fate: number, key, body, reader: fate.reader });
    }
    planned
}

/// Plays the client. Returns what it saw, for the table that is printed.
async fn play(client: Client, planned: &Planned) -> String {
    let client = client.with_key(planned.key);
    match planned.reader {
        Reader::ReadsAll => {
            let answer = client.chat(&planned.body).await;
            let broke = answer.events().iter().any(|event| event.contains(r#""incomplete":true"#));
            format!("{}{}", answer.status.as_u16(), if broke { " broken" } else { "" })
        }
        Reader::LeavesEarly => {
            let left = tokio::time::timeout(Duration::from_millis(150), client.open_chat(&planned.body)).await;
            if left.is_err() { "left".to_owned() } else { "answered too early".to_owned() }
        }
        Reader::LeavesLate => {
            let mut open = client.open_chat(&planned.body).await.unwrap();
            for _ in 0..3 {
                open.next().await;
            }
            "left".to_owned()
        }
    }
}

async fn send_all(house: &House, fates: &[Fate], planned: Vec<Planned>) {
    let planned = Arc::new(Mutex::new(planned));
    let mut workers = JoinSet::new();
    for _ in 0..WORKERS {
        let (client, planned) = (house.client.clone(), Arc::clone(&planned));
        workers.spawn(async move {
            let mut seen: BTreeMap<(usize, String), u64> = BTreeMap::new();
            loop {
                let next = planned.lock().unwrap().pop();
                let Some(next) = next else { return seen };
                *seen.entry((next.fate, play(client.clone(), &next).await)).or_default() += 1;
            }
        });
    }
    let mut seen: BTreeMap<(usize, String), u64> = BTreeMap::new();
    while let Some(of_worker) = workers.join_next().await {
        for (what, count) in of_worker.unwrap() {
            *seen.entry(what).or_default() += count;
        }
    }
    for ((fate, saw), count) in &seen {
        println!("{count:>6}  {:<36} {saw}", fates[*fate].name);
    }
    let met: BTreeSet<usize> = seen.keys().map(|(fate, _)| *fate).collect();
    assert_eq!(met.len(), fates.len(), "every fate was met");
}

/// Both tenants at rest, with exact counters, and everything that the log proves.
async fn exact(house: &House) -> Vec<AtRest> {
    let stub = &house.stub;
    eventually("the end of all calls", REST, async || (stub.totals().open == 0).then_some(())).await;
    let mut rests = Vec::new();
    for tenant in [TENANT, OTHER_TENANT] {
        let rest = house.at_rest(tenant, REST).await;
        rest.assert_exact(house).await;
        rests.push(rest);
    }
    house.verify();
    rests
}

/// What the provider says afterwards about one attempt.
fn report(attempt: AttemptKey, billed: Option<Billed>, source: &str) -> Value {
    let (reservation, attempt) = attempt;
    let mut report = json!({"reservation_id": reservation, "attempt": attempt, "source": source});
    match billed {
        None => report["requests"] = json!(0),
        Some(Billed { prompt, completion, cached, .. }) => {
            report["meters"] =
                json!({"in.uncached": prompt - cached, "in.cache_read": cached, "out.visible": completion});
        }
    }
    report
}

async fn post(house: &House, reports: &[Value]) {
    let answer = house.admin.post("/admin/v1/usage-reports", Value::from(reports).to_string()).await;
    assert!(answer.status.is_success(), "{}", answer.text());
}

/// The same reports as a file for the command.
fn csv(reports: &[Value]) -> String {
    let mut text = "reservation_id,attempt,source,requests,in.uncached,in.cache_read,out.visible\n".to_owned();
    for report in reports {
        let field = |value: &Value| match value {
            Value::Null => String::new(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let meters = &report["meters"];
        let row = [
            &report["reservation_id"],
            &report["attempt"],
            &report["source"],
            &report["requests"],
            &meters["in.uncached"],
            &meters["in.cache_read"],
            &meters["out.visible"],
        ];
        text.push_str(&row.map(field).join(","));
        text.push('\n');
    }
    text
}

/// Reports for everything that is pending, by both ways, twice; then contradictions, which change nothing; then a
/// person's word about settled attempts, which does. `calls` then says what the ledger must.
async fn report_all(house: &House, rests: &[AtRest], calls: &mut BTreeMap<AttemptKey, Call>, random: &mut Random) {
    let pending: BTreeSet<_> = rests.iter().flat_map(|rest| rest.pending.iter().map(|open| open.id)).collect();
    let lines: Vec<_> = rests.iter().flat_map(|rest| rest.lines.iter().cloned()).collect();
    let known = bill::by_attempt(&lines);
    let unknown: Vec<AttemptKey> =
        calls.keys().filter(|key| pending.contains(&key.0) && !known.contains_key(key)).copied().collect();
    let reports: Vec<Value> = unknown.iter().map(|key| report(*key, calls[key].billed, "request_log")).collect();
    let (by_api, by_file) = reports.split_at(reports.len() / 2);
    let file = house.folder().join("reports.csv");
    std::fs::write(&file, csv(by_file)).unwrap();
    for _ in 0..2 {
        post(house, by_api).await;
        house.import(&file);
    }
    // Another figure of the same rank, about attempts that a report or the answer itself has settled.
    let another = |key: &AttemptKey| {
        let billed = calls[key].billed?;
        Some(report(*key, Some(Billed { completion: billed.completion + 1, ..billed }), "request_log"))
    };
    let settled: Vec<AttemptKey> = known.keys().copied().collect();
    let contradicted: Vec<Value> = settled.iter().take(20).chain(unknown.iter().take(20)).filter_map(another).collect();
    exact(house).await;
    post(house, &contradicted).await;
    // Nobody knows this one; it waits for its reservation and disturbs nothing.
    let nowhere = "01890000-0000-7000-8000-000000000000".parse().unwrap();
    post(house, &[report((nowhere, 1), Some(Billed { prompt: 5, ..Billed::default() }), "request_log")]).await;
    exact(house).await;
    let mut corrected = Vec::new();
    for key in settled.iter().skip(20).take(20) {
        let billed = Billed { prompt: 3, completion: i64::try_from(random.below(50)).unwrap(), ..Billed::default() };
        calls.get_mut(key).unwrap().billed = Some(billed);
        corrected.push(report(*key, Some(billed), "manual"));
    }
    post(house, &corrected).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn books_are_exact_after_requests_of_mixed_fate() {
    let (seed, requests) = (seed(), number("WEIR_FATES").unwrap_or(5_000));
    println!("WEIR_TEST_SEED={seed} WEIR_FATES={requests}");
    let mut random = Random::new(seed);
    let fates = fates();
    let mut house = House::start(setup(&fates, requests)).await;
    send_all(&house, &fates, plan(&fates, requests, &mut random)).await;

    let rests = exact(&house).await;
    let mut calls = bill::calls(&house.stub.journal());
    bill::assert_billed(&rests, &calls);
    let pending: usize = rests.iter().map(|rest| rest.pending.len()).sum();
    let second = calls.keys().filter(|(_, attempt)| *attempt == 2).count();
    println!("{} calls, {second} of them second attempts, {pending} reservations pending", calls.len());
    assert!(pending > 0 && second > 0);

    report_all(&house, &rests, &mut calls, &mut random).await;
    let rests = exact(&house).await;
    bill::assert_billed(&rests, &calls);
    for rest in &rests {
        assert!(rest.pending.is_empty(), "{:#?}", rest.pending);
        assert!(rest.counters.held.is_zero(), "{:?}", rest.counters.held);
    }

    // What the next process folds from the log is what this one counted.
    house.restart().await;
    let again = exact(&house).await;
    for (before, after) in rests.iter().zip(&again) {
        assert_eq!(before.counters, after.counters);
        assert_eq!(before.lines, after.lines);
    }
}
