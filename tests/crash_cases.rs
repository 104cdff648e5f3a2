//! Two stories of a killed process, with their ids: what the ledger knows and the quota store was never told (s15), and
//! what hundreds of interrupted reserves leave behind (O54).

#![expect(clippy::expect_used, reason = "helpers of tests panic with what they saw, as tests do")]

use std::time::Duration;

use serde_json::{Value, json};

use weir_domain::money::NanoUsd;
use weir_runtime::tasks::Tasks;
use weir_tests::catalog::{TENANT, key_hash};
use weir_tests::client::chat;
use weir_tests::crash::{self, After, COVERED, ONE, Stands, TWO, seed_case};
use weir_tests::failpoints::Plan;
use weir_tests::random::{Random, seed};
use weir_tests::{House, PATIENCE, eventually};

fn usd(text: &str) -> NanoUsd {
    text.parse().expect("a decimal amount")
}

/// The fifteenth failure scenario: the usage is in the ledger at $0.0822, the gateway is killed before it tells the
/// quota store, which holds $0.105. The tenant is charged $0.0822 and gets $0.0228 back, once, and nobody is asked.
#[test]
fn s15_settled_in_the_ledger_and_killed_before_the_quota_store_was_told() {
    run(async {
        let plan = Plan::default();
        // Held long enough to be looked at, then killed between log and store.
        plan.set("reserve.after=delay:1s; finalize.before_store=kill");
        let mut setup = crash::setup(&plan, "", seed_case::CATALOG);
        setup.scripts.scripts.insert("seed".to_owned(), seed_case::script());
        let mut house = House::start(setup).await;
        let client = house.client.clone();
        let asked = Tasks::new()
            .spawn("client", async move { client.open_chat(&seed_case::request()).await.ok()?.reservation() });
        let held = eventually("a hold", PATIENCE, async || {
            let held = house.counters(TENANT).await.held.usd;
            (held != NanoUsd::ZERO).then_some(held)
        });
        assert_eq!(held.await, usd("0.105"));
        // The store is told nothing, so until its end the process shows the worst case.
        crash::killed(&mut house).await;
        drop(asked);

        plan.set("");
        house.restart().await;
        for round in 0..2 {
            let after = After::a_lease(&house, &[]).await;
            assert_eq!(after.stands.values().collect::<Vec<_>>(), [&Stands::Settled], "round {round}");
            assert_eq!((after.rest.charged().usd, after.rest.counters.held.usd), (usd("0.0822"), NanoUsd::ZERO));
            // A person who confirms a line leaves a second one, of nothing.
            let moved = after.rest.lines.iter().filter(|line| !line.amount.is_zero()).count();
            assert_eq!((moved, after.rest.lines.len()), (1, 1 + round), "{:#?}", after.rest.lines);
            for counter in &after.rest.counters.counters {
                assert_eq!((counter.charged.usd, counter.held.usd), (usd("0.0822"), NanoUsd::ZERO), "{counter:?}");
            }
            let story = house.show(&after.rest.lines[0].key.reservation.to_string());
            assert_eq!(story["status"], "settled", "{story}");
            // Once more: neither another start nor the provider's own report of the same usage charges again.
            let id = after.rest.lines[0].key.reservation.to_string();
            let report = json!({
                "reservation_id": id, "attempt": 1, "meters": {"in.uncached": 1_500, "out.visible": 310},
            });
            assert!(crash::import(&house, &report.to_string()).status.success());
            house.restart().await;
        }
    });
}

/// How many may run at once in [`o54_kills_during_reserves_leave_no_counter_slot_or_hold`].
const SLOTS: usize = 40;
const OTHER_KEY: &str = "weir_live_OtherOtherOtherOtherOtherOtherO000000";

/// O54: SIGKILL at random moments of some hundred reserves, again and again on the same data. A lease after the last
/// restart nothing is held that nobody waits for; every slot of the concurrency limit is free; what was charged in the
/// minute does not refuse what the minute has room for.
#[test]
fn o54_kills_during_reserves_leave_no_counter_slot_or_hold() {
    let seed = seed();
    println!("WEIR_TEST_SEED={seed}");
    let mut random = Random::new(seed);
    run(async move {
        let plan = Plan::default();
        let limits = format!(
            r#"
[[limit]]
tenant = "{TENANT}"
kind = "concurrent"
max = {SLOTS}

[[limit]]
tenant = "{TENANT}"
key = "main"
kind = "requests per minute"
max = 20000

[[limit]]
tenant = "{TENANT}"
kind = "usd per month"
max = "1000"

[[key]]
name = "other"
tenant = "{TENANT}"
hash = "{}"
"#,
            key_hash(OTHER_KEY)
        );
        let mut house = House::start(crash::setup(&plan, "segment = \"64KiB\"", &limits)).await;
        let mut seen = Vec::new();
        let kills = if std::env::var_os("WEIR_CRASH").is_some() { 25 } else { 5 };
        for _ in 0..kills {
            let moment = Duration::from_millis(20 + random.below(1_200));
            let (model, stream) = (*random.pick(&[ONE, TWO, COVERED]), random.below(2) == 0);
            let client = house.client.clone();
            let asking = Tasks::new()
                .spawn("clients", async move { crash::send_all(&client, model, stream, SLOTS, 10 * SLOTS).await });
            tokio::time::sleep(moment).await;
            house.process.kill();
            seen.extend(asking.await.expect("clients do not panic"));
            crash::provider_is_quiet(&house).await;
            house.restart().await;
        }
        let after = After::a_lease(&house, &seen).await;
        println!("{} kills, {} requests, {} reservations left a trace", kills, seen.len(), after.stands.len());
        let rows = after.reports(&house).await;
        assert!(rows.is_empty() || crash::import(&house, &rows).status.success());
        After::assert_is_the_bill(&house).await;
        all_slots_are_free(&house).await;
        After::assert_is_the_bill(&house).await;
    });
}

/// Exactly as many as the limit says run at once, and the next is refused.
async fn all_slots_are_free(house: &House) {
    let slow: Value = chat(ONE, true, &json!({"chunks": 8, "gap_ms": 400}));
    let mut open = Vec::new();
    for nth in 0..SLOTS {
        let answer = tokio::time::timeout(PATIENCE, house.client.open_chat(&slow)).await;
        let answer = answer.expect("an answer comes in time").expect("an answer comes");
        assert_eq!(answer.status.as_u16(), 200, "slot {nth} of {SLOTS} is taken: {}", answer.read().await.text());
        open.push(answer);
    }
    let refused = house.client.with_key(OTHER_KEY).chat(&slow).await;
    assert_eq!(refused.status.as_u16(), 429, "{}", refused.text());
    for answer in open {
        let answer = answer.read().await;
        assert_eq!(answer.events().last().map(String::as_str), Some("[DONE]"), "{}", answer.text());
    }
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime can be built").block_on(test);
}
