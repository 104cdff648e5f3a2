//! Many at once for the last of something: whatever the kind of limit and its scope, exactly the right number pass, and
//! what was denied leaves nothing behind. Then revocation, expiry and leases against requests that run.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::support::provider::{After, SocketProvider};
use crate::support::{House, KEY, MODEL, PATIENCE, Read, Setup, body, key_id, tenant};
use tokio::time::{Duration, Instant, sleep};
use weir_domain::calendar::WindowKind;
use weir_domain::ids::{KeyId, ModelName, TeamId};
use weir_domain::money::Amounts;
use weir_domain::policy::Key;
use weir_domain::quota::{Limit, Measure, Scope, Subject, Unit};
use weir_quota::QuotaStore;
use weir_runtime::tasks::Task;
use weir_stub::script::{Script, UsageScript};

const CROWD: usize = 200;

fn team() -> TeamId {
    TeamId::from("team_test")
}

/// Every scope that a request of the test key counts on.
fn scopes() -> Vec<Scope> {
    Scope::of_request(Some(&team()), &key_id(), &ModelName::from(MODEL)).to_vec()
}

fn on_key(measure: Measure, max: i64) -> Limit {
    Limit { scope: Scope { subject: Subject::Key(key_id()), model: None }, measure, max }
}

const REQUESTS_PER_DAY: Measure = Measure::Calendar { unit: Unit::Requests, window: WindowKind::Day };
const USD_PER_DAY: Measure = Measure::Calendar { unit: Unit::Usd, window: WindowKind::Day };
const REQUESTS_PER_MINUTE: Measure = Measure::PerMinute { unit: Unit::Requests };
const TOKENS_PER_MINUTE: Measure = Measure::PerMinute { unit: Unit::Tokens };

fn measures() -> Vec<Measure> {
    let mut measures = vec![REQUESTS_PER_MINUTE, TOKENS_PER_MINUTE, Measure::Concurrent];
    for window in WindowKind::ALL {
        measures.extend([Unit::Requests, Unit::Tokens, Unit::Usd].map(|unit| Measure::Calendar { unit, window }));
    }
    measures
}

/// A gateway before a provider that holds every answer back until the gate is opened, so that holds stay.
async fn gated(limits: Vec<Limit>) -> (House, SocketProvider) {
    let provider = SocketProvider::start(After::Keep).await;
    provider.close_gate();
    let setup =
        Setup { tiers: Vec::new(), providers: vec![provider.url()], team: Some(team()), limits, ..Setup::default() };
    (House::build(setup).await, provider)
}

/// What one request holds at admission.
async fn hold_of(request: &str) -> Amounts {
    let house = House::of(Script::default()).await;
    let read = house.post(request.to_owned()).await;
    house.reservation_of(&read).await.created.hold
}

/// Sends `requests` at once, each as a task of its own.
fn crowd(
    house: &Arc<House>,
    count: usize,
    at: impl Fn(usize) -> http::Request<http_body_util::Full<bytes::Bytes>>,
) -> Crowd {
    let done = Arc::<AtomicUsize>::default();
    let tasks = (0..count)
        .map(|number| {
            let (house_of_task, done) = (Arc::clone(house), Arc::clone(&done));
            let request = at(number);
            house.tasks.spawn("client", async move {
                let read = house_of_task.send(request).await;
                done.fetch_add(1, Ordering::AcqRel);
                read
            })
        })
        .collect();
    Crowd { tasks, done }
}

struct Crowd {
    tasks: Vec<Task<Read>>,
    done: Arc<AtomicUsize>,
}

impl Crowd {
    /// Waits until all but the admitted have their answer, and returns how many were admitted.
    async fn decided(&self, house: &House) -> usize {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let admitted = usize::try_from(house.quota.read(&tenant()).await.unwrap().reserved).unwrap();
            if admitted + self.done.load(Ordering::Acquire) == self.tasks.len() {
                return admitted;
            }
            assert!(Instant::now() < deadline, "{admitted} admitted, {} answered", self.done.load(Ordering::Acquire));
            sleep(Duration::from_millis(2)).await;
        }
    }

    async fn answers(self) -> Vec<Read> {
        let mut answers = Vec::with_capacity(self.tasks.len());
        for task in self.tasks {
            answers.push(task.await.unwrap());
        }
        answers
    }
}

/// The exact answers: `admitted` times 200, and 429 with a wait and `code` for the rest.
fn assert_answers(name: &str, answers: &[Read], admitted: usize, code: &str) {
    let passed = answers.iter().filter(|read| read.status == 200).count();
    assert_eq!(passed, admitted, "{name}");
    for read in answers.iter().filter(|read| read.status != 200) {
        assert_eq!(read.status, 429, "{name}: {}", read.text());
        assert_eq!(read.json()["error"]["code"], code, "{name}");
        let says_when = read.headers.contains_key("retry-after") || read.header("x-should-retry") == "false";
        assert!(says_when, "{name}: {:?}", read.headers);
    }
}

/// A prompt such that one request holds exactly `tokens`, `output` of them for the answer.
async fn request_of(tokens: i64, output: i64) -> String {
    let request = |length: usize| {
        let content = "a".repeat(length);
        format!(r#"{{"model":"{MODEL}","max_tokens":{output},"messages":[{{"role":"user","content":"{content}"}}]}}"#)
    };
    let least = hold_of(&request(0)).await.tokens;
    let length = usize::try_from(tokens - least).expect("the smallest prompt fits");
    let exact = request(length);
    assert_eq!(hold_of(&exact).await.tokens, tokens);
    exact
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o49_the_last_unit_goes_to_exactly_as_many_as_fit_over_three_replicas() {
    let sixty = request_of(60, 20).await;
    // 600 tokens of input at $10 and 800 of output at $30 a million are $0.03.
    let three_cents = request_of(1_400, 800).await;
    assert_eq!(hold_of(&three_cents).await.usd.nanos(), 30_000_000);
    let cases = [
        ("5 × 60 tokens for 100 a minute", on_key(TOKENS_PER_MINUTE, 100), 5, sixty, 1),
        ("50 for one a minute", on_key(REQUESTS_PER_MINUTE, 1), 50, body(false), 1),
        ("20 × $0.03 for $0.10", on_key(USD_PER_DAY, 100_000_000), 20, three_cents, 3),
    ];
    let codes = ["tokens_per_minute_exceeded", "requests_per_minute_exceeded", "budget_exceeded"];
    for ((name, limit, count, request, admitted), code) in cases.into_iter().zip(codes) {
        let (house, provider) = gated(vec![limit]).await;
        let replicas = [house.gateway, house.replica("second"), house.replica("third")];
        let house = Arc::new(house);
        let crowd = crowd(&house, count, |n| house.request_to(replicas[n % 3], KEY, request.clone()));
        assert_eq!(crowd.decided(&house).await, admitted, "{name}");
        provider.open_gate();
        assert_answers(name, &crowd.answers().await, admitted, code);
        house.assert_at_rest().await;
        assert_eq!(provider.seen().len(), admitted, "{name}: nothing else was executed");
    }
}

/// Every kind of limit on every scope: three fit and almost a fourth; 200 come at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_at_once_for_the_last_unit_of_each_limit_on_each_scope() {
    const FIT: i64 = 3;
    let hold = hold_of(&body(false)).await;
    for (number, measure) in measures().into_iter().enumerate() {
        // Each measure on two of the six scopes, so that all scopes and all kinds meet.
        for turn in [number, number + 3] {
            let scope = scopes().swap_remove(turn % 6);
            let one = match measure {
                Measure::Calendar { unit, .. } | Measure::PerMinute { unit } => unit.of(hold),
                Measure::Concurrent => 1,
            };
            let limit = Limit { scope, measure, max: one * FIT + (one - 1) };
            last_unit(limit, usize::try_from(FIT).unwrap()).await;
        }
    }
}

async fn last_unit(limit: Limit, admitted: usize) {
    let name = limit.to_string();
    let (house, provider) = gated(vec![limit.clone()]).await;
    let house = Arc::new(house);
    let watching = Arc::new(AtomicBool::new(true));
    let watch = house.tasks.spawn("watch", watch(Arc::clone(&house), limit.clone(), Arc::clone(&watching)));
    let crowd = crowd(&house, CROWD, |_| house.request(body(false)));
    assert_eq!(crowd.decided(&house).await, admitted, "{name}");
    provider.open_gate();
    let answers = crowd.answers().await;
    assert_eq!(answers.iter().filter(|read| read.status == 200).count(), admitted, "{name}");
    assert!(answers.iter().all(|read| read.status == 200 || read.status == 429), "{name}");
    watching.store(false, Ordering::Release);
    let readings = watch.await.unwrap();
    assert!(readings > 0);
    house.assert_at_rest().await;
    let read = house.quota.read(&tenant()).await.unwrap();
    assert_eq!(read.held, Amounts::ZERO, "{name}: nothing is held at rest");
    for reading in read.counters {
        assert_eq!(reading.counter.charged.requests, i64::try_from(admitted).unwrap(), "{name}: {:?}", reading.scope);
        assert_eq!(reading.counter.charged.tokens, 2 * i64::try_from(admitted).unwrap(), "{name}");
    }
}

/// Reads the counter of a calendar limit again and again: charged and held never exceed it (I2).
async fn watch(house: Arc<House>, limit: Limit, watching: Arc<AtomicBool>) -> usize {
    let mut readings = 0;
    while watching.load(Ordering::Acquire) {
        let read = house.quota.read(&tenant()).await.unwrap();
        if let Measure::Calendar { unit, window } = limit.measure {
            let of_limit = read.counters.iter().filter(|r| r.scope == limit.scope && r.window.kind == window);
            for reading in of_limit {
                assert!(unit.of(reading.counter.total()) <= limit.max, "{limit}: {:?}", reading.counter);
            }
        }
        readings += 1;
        sleep(Duration::from_millis(1)).await;
    }
    readings
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o50_a_denied_request_leaves_nothing_behind_on_any_scope() {
    let hold = hold_of(&body(false)).await;
    let subject = |subject| Scope { subject, model: None };
    // The tenant's money is gone with the first; key and team have room for exactly one more.
    let others = vec![
        on_key(REQUESTS_PER_MINUTE, 2),
        on_key(Measure::Concurrent, 2),
        Limit { scope: subject(Subject::Team(team())), measure: TOKENS_PER_MINUTE, max: 2 * hold.tokens },
    ];
    let budget = |max| Limit { scope: subject(Subject::Tenant), measure: USD_PER_DAY, max };
    let mut limits = others.clone();
    limits.push(budget(hold.usd.nanos()));
    let (house, provider) = gated(limits).await;
    let house = Arc::new(house);
    let first = crowd(&house, 1, |_| house.request(body(false)));
    provider.until_seen(1).await;
    let before = house.quota.read(&tenant()).await.unwrap();
    let denied = crowd(&house, 50, |_| house.request(body(false))).answers().await;
    assert_answers("no money", &denied, 0, "budget_exceeded");
    assert!(denied.iter().all(|read| read.json()["error"]["message"].as_str().unwrap().contains("tenant")));
    assert_eq!(house.quota.read(&tenant()).await.unwrap(), before, "the denied changed a counter");

    let mut raised = others;
    raised.push(budget(2 * hold.usd.nanos()));
    house.publish_limits(raised);
    let second = crowd(&house, 1, |_| house.request(body(false)));
    provider.until_seen(2).await;
    provider.open_gate();
    assert_answers("the first", &first.answers().await, 1, "");
    assert_answers("the 51st", &second.answers().await, 1, "");
    house.assert_at_rest().await;
    let created = house.kinds().await.iter().filter(|kind| **kind == "ReservationCreated").count();
    assert_eq!(created, 2, "the denied are not on the log");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_added_in_mid_window_finds_what_was_spent() {
    const BEFORE: i64 = 5;
    let hold = hold_of(&body(false)).await;
    let usage = UsageScript { prompt: Some(7), completion: Some(2), ..UsageScript::default() };
    let script = Script { usage, ..Script::default() };
    for (number, measure) in measures().into_iter().filter(|m| *m != Measure::Concurrent).enumerate() {
        let setup = Setup { tiers: vec![script.clone()], team: Some(team()), ..Setup::default() };
        let house = Arc::new(House::build(setup).await);
        for _ in 0..BEFORE {
            assert_eq!(house.post(body(false)).await.status, 200);
        }
        house.assert_at_rest().await;
        let spent = Amounts { requests: 1, tokens: 9, usd: weir_domain::money::NanoUsd::from_nanos(130_000) };
        let (Measure::Calendar { unit, .. } | Measure::PerMinute { unit }) = measure else { unreachable!() };
        // Room for one more worst case beside what was spent; without the spent there would be room for a second.
        let scope = scopes().swap_remove(number % 6);
        let max = BEFORE * unit.of(spent) + unit.of(hold);
        house.publish_limits(vec![Limit { scope: scope.clone(), measure, max: max - 1 }]);
        assert_eq!(house.post(body(false)).await.status, 429, "{measure} on {scope}");
        house.publish_limits(vec![Limit { scope: scope.clone(), measure, max }]);
        assert_eq!(house.post(body(false)).await.status, 200, "{measure} on {scope}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_keys_at_once_each_get_their_own_last_unit() {
    const KEYS: usize = 1_000;
    let house = Arc::new(House::of(Script::default()).await);
    let name = |number: usize| format!("weir_live_key-{number}");
    house.publish(|snapshot| {
        let template = snapshot.keys.values().next().unwrap().clone();
        for number in 0..KEYS {
            let id = KeyId::from(format!("key_{number}").as_str());
            let scope = Scope { subject: Subject::Key(id.clone()), model: None };
            let limits = vec![Limit { scope, measure: REQUESTS_PER_DAY, max: 1 }];
            let hash = house.pepper.hash(&name(number));
            snapshot.keys.insert(hash, Arc::new(Key { id, hash, limits, ..Key::clone(&template) }));
        }
    });
    // Two requests of each key; a bounded number of connections at a time, as a machine has.
    let next = Arc::<AtomicUsize>::default();
    let workers: Vec<_> = (0..CROWD)
        .map(|_| {
            let (house_of_task, next) = (Arc::clone(&house), Arc::clone(&next));
            house.tasks.spawn("client", async move {
                let mut passed = Vec::new();
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= 2 * KEYS {
                        return passed;
                    }
                    let key = number % KEYS;
                    let read = house_of_task.send(house_of_task.request_with(&name(key), body(false))).await;
                    match read.status.as_u16() {
                        200 => passed.push(key),
                        429 => assert_eq!(read.json()["error"]["code"], "request_quota_exceeded"),
                        _ => panic!("{}", read.text()),
                    }
                }
            })
        })
        .collect();
    let mut passed = HashMap::new();
    for worker in workers {
        for key in worker.await.unwrap() {
            *passed.entry(key).or_insert(0) += 1;
        }
    }
    assert_eq!(passed.len(), KEYS, "every key had one");
    assert!(passed.values().all(|count| *count == 1));
    house.assert_at_rest().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_revocation_returned_nothing_more_is_admitted() {
    for _ in 0..5 {
        let house = Arc::new(House::of(Script::default()).await);
        let (other, revoked) = (house.replica("second"), Arc::new(AtomicBool::new(false)));
        let passed = Arc::<AtomicUsize>::default();
        let clients: Vec<_> = (0..50)
            .map(|number| {
                let at = if number % 2 == 0 { house.gateway } else { other };
                let (house_of_task, revoked, passed) = (Arc::clone(&house), Arc::clone(&revoked), Arc::clone(&passed));
                house.tasks.spawn("client", async move {
                    loop {
                        let began_after = revoked.load(Ordering::SeqCst);
                        let read = house_of_task.send(house_of_task.request_to(at, KEY, body(false))).await;
                        match read.status.as_u16() {
                            200 => assert!(!began_after, "admitted after the revocation"),
                            401 => return assert_eq!(read.json()["error"]["code"], "revoked_api_key"),
                            _ => panic!("{}", read.text()),
                        }
                        passed.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        let deadline = Instant::now() + PATIENCE;
        while passed.load(Ordering::Relaxed) < 60 {
            assert!(Instant::now() < deadline);
            tokio::task::yield_now().await;
        }
        house.quota.revoke(&tenant(), &key_id()).await.unwrap();
        revoked.store(true, Ordering::SeqCst);
        let admitted = requests_counted(&house).await;
        for client in clients {
            client.await.unwrap();
        }
        house.assert_at_rest().await;
        assert_eq!(requests_counted(&house).await, admitted, "what was running went on, nothing was added");
    }
}

/// Requests of the tenant in all time, charged and held.
async fn requests_counted(house: &House) -> i64 {
    let read = house.quota.read(&tenant()).await.unwrap();
    let all = Scope { subject: Subject::Tenant, model: None };
    let total = read.counters.iter().find(|r| r.scope == all && r.window.kind == WindowKind::Total);
    total.map_or(0, |reading| reading.counter.total().requests)
}
