//! Cases and promises that need the whole house: catalog, gateway, log, ledger, counters and commands together.
//!
//! What one crate can show alone is tested there; here each case is told from outside, by what a client, an operator and
//! an auditor see.

#![expect(clippy::unwrap_used, reason = "a helper of a test may fail as the test does")]

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use weir_domain::money::{Amounts, NanoUsd};
use weir_stub::script::Scripts;
use weir_tests::bill;
use weir_tests::catalog::{Catalog, Model, TENANT};
use weir_tests::client::{Answer, chat};
use weir_tests::{House, PATIENCE, Setup, eventually};

/// A house whose provider plays the named scripts.
async fn house(catalog: Catalog, scripts: &str) -> House {
    House::start(Setup { catalog, scripts: Scripts::from_toml(scripts).unwrap(), ..Setup::default() }).await
}

/// A deployment and a model `name` that are served at `price`.
fn served_at(name: &str, price: &str) -> String {
    format!(
        r#"
[[deployment]]
id = "{name}"
provider = "stub"
model = "{name}"
price = "{price}"
max_output_tokens = 4096

[[model]]
name = "{name}"
deployments = ["{name}"]
default_output_tokens = 10
"#
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o21_a_catalog_with_a_model_without_a_price_is_refused_and_the_old_one_stays() {
    let house = House::start(Setup::default()).await;
    let half = "\n[[price]]\nname = \"half\"\n[[price.terms]]\nrates = { \"in.uncached\" = \"1\" }\n";
    for (more, says) in [
        (served_at("new-model-x", "nowhere"), "nowhere"),
        (half.to_owned() + &served_at("new-model-x", "half"), "half"),
    ] {
        let catalog = Catalog::default().and(&more).to_toml(&format!("{}/v1", house.stub.url()), "env:PATH");
        let file = house.folder().join("new.toml");
        std::fs::write(&file, &catalog).unwrap();
        let checked = house.run(&["catalog", "check", &file.display().to_string()]);
        assert!(!checked.status.success());
        assert!(String::from_utf8_lossy(&checked.stderr).contains(says), "{checked:?}");
        let answer = house.admin.post("/admin/v1/catalog/apply", catalog).await.expect(400);
        assert_eq!(answer.json()["error"]["code"], "catalog_invalid");
        assert!(answer.text().contains(says), "{}", answer.text());
    }
    drop(house.client.chat(&chat("new-model-x", false, &json!({}))).await.expect(404));
    drop(house.client.chat(&chat("fast", false, &json!({}))).await.expect(200));
    assert_eq!(house.stub.totals().requests, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o22_money_is_exact_and_printed_the_same_everywhere() {
    const REQUESTS: i64 = 200;
    // Five tokens at $0.0669 a million are 334.5 nano-dollars; a line is rounded up once, to 335.
    let odd = "\n[[price]]\nname = \"odd\"\n[[price.terms]]\nrates = { \"in.uncached\" = \"0.0669\", \"out.visible\" = \"0.0669\" }\n";
    let small = "\n[[price]]\nname = \"small\"\n[[price.terms]]\nrates = { \"in.uncached\" = \"0.15\", \"out.visible\" = \"0.6\" }\n";
    let more = format!("{odd}{small}{}{}", served_at("odd", "odd"), served_at("small", "small"));
    let house = house(Catalog::default().and(&more), "").await;
    let five = json!({"usage": {"prompt": 5, "completion": 0}});
    for _ in 0..REQUESTS {
        drop(house.client.chat(&chat("odd", false, &five)).await.expect(200));
    }
    let seven = json!({"usage": {"prompt": 7, "completion": 0}});
    let seven = house.client.chat(&chat("small", false, &seven)).await.expect(200);
    let rest = house.at_rest(TENANT, PATIENCE).await;
    rest.assert_exact(&house).await;
    let odd: Vec<_> = rest.lines.iter().filter(|line| line.amount.usd.nanos() == 335).collect();
    assert_eq!(odd.len(), usize::try_from(REQUESTS).unwrap());
    assert_eq!(house.show(&seven.reservation().unwrap())["charged"]["usd"], "0.00000105");

    // 200 × 0.000000335 + 0.00000105
    let total = "0.00006805";
    assert_eq!(rest.charged().usd.to_string(), total, "ledger");
    let page = house.admin.get(&format!("/admin/v1/counters?tenant={TENANT}")).await.expect(200).json();
    let counters = page["counters"].as_array().unwrap();
    let of_tenant = |counter: &&Value| counter["subject"] == "tenant" && counter["model"].is_null();
    let printed: BTreeSet<_> =
        counters.iter().filter(of_tenant).map(|counter| counter["charged"]["usd"].clone().to_string()).collect();
    assert_eq!(printed, BTreeSet::from([format!("\"{total}\"")]), "counters of day, week, month and in all");
    let exported = house.export(TENANT);
    let sum: NanoUsd = exported
        .iter()
        .map(|line| line["usd"].as_str().unwrap().parse::<NanoUsd>().unwrap())
        .fold(NanoUsd::ZERO, |sum, usd| sum + usd);
    assert_eq!(sum.to_string(), total, "export");
    assert!(exported.iter().any(|line| line["usd"] == "0.000000335"), "{:?}", exported.first());
    assert!(house.command(&["budget", "show", "--tenant", TENANT]).contains(total), "budget show");
    house.verify();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o23_a_charge_above_what_is_left_is_recorded_in_full() {
    let limit = format!("\n[[limit]]\ntenant = \"{TENANT}\"\nkind = \"usd per total\"\nmax = \"1\"\n");
    let house = house(Catalog::default().and(&limit), "").await;
    // 95,000 input tokens at 10 micro-dollars, then 8,000.
    let spends = |tokens: i64| chat("fast", false, &json!({"usage": {"prompt": tokens, "completion": 0}}));
    drop(house.client.chat(&spends(95_000)).await.expect(200));
    let over = house.client.chat(&spends(8_000)).await.expect(200);
    // A charge follows its answer by a moment.
    drop(house.at_rest(TENANT, PATIENCE).await);
    let refused = house.client.chat(&spends(1)).await;
    assert_eq!((refused.status.as_u16(), &refused.json()["error"]["code"]), (429, &json!("budget_exceeded")));
    let rest = house.at_rest(TENANT, PATIENCE).await;
    rest.assert_exact(&house).await;
    let story = house.show(&over.reservation().unwrap());
    assert_eq!((&story["status"], &story["charged"]["usd"]), (&json!("settled"), &json!("0.08")), "{story:#}");
    let page = house.admin.get(&format!("/admin/v1/counters?tenant={TENANT}")).await.expect(200).json();
    assert_eq!((&page["limits"][0]["taken"], &page["limits"][0]["max"]), (&json!("1.03"), &json!("1")));
    assert_eq!(house.stub.totals().requests, 2, "a refusal reached the provider");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o33_every_chunk_and_the_whole_body_name_the_alias_also_after_a_failover() {
    let alias = Model::tiers("Team-Fast", &["vendor/model-7b-2026-01-01", "other-model"]);
    let scripts = r#"
[scripts."vendor/model-7b-2026-01-01"]
status = 500

[default]
text = "this text says other-model and keeps it"
"#;
    let house = house(Catalog::of(&[alias]), scripts).await;
    let plain = house.client.chat(&chat("Team-Fast", false, &json!({}))).await.expect(200);
    assert_eq!(plain.json()["model"], "Team-Fast");
    assert!(plain.json()["choices"][0]["message"]["content"].as_str().unwrap().contains("other-model"));
    let mut body = chat("Team-Fast", true, &json!({}));
    body["stream_options"] = json!({"include_usage": true});
    let streamed = house.client.chat(&body).await.expect(200);
    let chunks: Vec<Value> = streamed.events().iter().filter_map(|event| serde_json::from_str(event).ok()).collect();
    assert!(chunks.iter().all(|chunk| chunk["model"] == "Team-Fast"), "{chunks:#?}");
    assert!(chunks.iter().any(|chunk| chunk["choices"] == json!([])), "the usage chunk is among them");
    // Who really served it is in a header and in the story.
    assert_eq!(plain.header("x-weir-deployment").as_deref(), Some("Team-Fast-1"));
    drop(house.at_rest(TENANT, PATIENCE).await);
    let story = house.show(&plain.reservation().unwrap());
    let upstream: Vec<&Value> =
        story["attempts"].as_array().unwrap().iter().map(|attempt| &attempt["upstream_model"]).collect();
    assert_eq!(upstream, [&json!("vendor/model-7b-2026-01-01"), &json!("other-model")]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o58_the_refund_follows_what_was_sent() {
    // (a) no address, (b) broken in the middle of the request, (c) an error status, (d) a refusal.
    let nowhere = r#"
[[provider]]
id = "nowhere"
dialect = "openai_chat"
base_url = "http://no-such-host.invalid/v1"

[[deployment]]
id = "nowhere"
provider = "nowhere"
model = "nowhere"
price = "test"
max_output_tokens = 100

[[model]]
name = "nowhere"
deployments = ["nowhere"]
"#;
    let scripts =
        "[scripts.resets]\nrefuse = \"reset\"\n[scripts.fails]\nstatus = 500\n[scripts.rejects]\nstatus = 400\n";
    let catalog = Catalog::of(&["resets", "fails", "rejects"].map(Model::named)).and(nowhere);
    let house = house(catalog, scripts).await;
    let mut answers = Vec::new();
    for (model, status, outcome) in [
        ("nowhere", "released", "not_executed"),
        ("resets", "pending_reconciliation", "may_have_executed"),
        ("fails", "released", "not_executed"),
        ("rejects", "released", "not_executed"),
    ] {
        let answer: Answer = house.client.chat(&chat(model, false, &json!({}))).await;
        assert!(answer.status.is_client_error() || answer.status.is_server_error());
        answers.push((model, answer.reservation().unwrap(), status, outcome));
    }
    house.at_rest(TENANT, PATIENCE).await.assert_exact(&house).await;
    for (model, reservation, status, outcome) in answers {
        let story = house.show(&reservation);
        assert_eq!(
            (&story["status"], &story["attempts"][0]["outcome"]),
            (&json!(status), &json!(outcome)),
            "{model}: {story:#}"
        );
        let holds = story["held"]["usd"] != "0";
        assert_eq!(holds, status == "pending_reconciliation", "{model}: {story:#}");
    }
}

/// The kinds of a story's events, in order.
fn kinds(story: &Value) -> Vec<String> {
    story["events"].as_array().unwrap().iter().map(|event| event["kind"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i08_what_settles_a_counter_is_on_the_log_before_and_once() {
    let house = House::start(Setup::default()).await;
    for stream in [false, true] {
        let answer = house.client.chat(&chat("fast", stream, &json!({}))).await.expect(200);
        let rest = house.at_rest(TENANT, PATIENCE).await;
        rest.assert_exact(&house).await;
        let keys: BTreeSet<_> = rest.lines.iter().map(|line| line.key).collect();
        assert_eq!(keys.len(), rest.lines.len());
        let story = house.show(&answer.reservation().unwrap());
        let kinds = kinds(&story);
        let at =
            |kind: &str| kinds.iter().position(|found| found == kind).unwrap_or_else(|| panic!("{kind}: {kinds:?}"));
        assert_eq!(at("ReservationCreated"), 0);
        assert!(
            at("AttemptStarted") < at("UsageRecorded") && at("UsageRecorded") < at("ReservationSettled"),
            "{kinds:?}"
        );
        // The line points at the event that justifies it.
        let reservation = answer.reservation().unwrap();
        let line = rest.lines.iter().find(|line| line.key.reservation.to_string() == reservation).unwrap();
        let recorded = &story["events"][at("UsageRecorded")];
        assert_eq!(recorded["offset"].as_i64(), Some(line.source.offset));
    }
}

/// A lease that a test can wait for; the reconciler and the bound of a stop follow it.
const SHORT_LEASE: &str = r#"
[gateway]
lease = "2s"
renew_every = "500ms"

[reconciler]
lease = "2s"
period = "200ms"

[listener]
drain = "1s"
"#;

/// One lease, one round of the sweep, and a busy machine.
const LEASE_IS_OVER: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i14_a_process_killed_when_content_was_seen_leaves_the_attempt_on_record() {
    let mut house = House::start(Setup { config: SHORT_LEASE.to_owned(), ..Setup::default() }).await;
    let slow = json!({"chunks": 200, "gap_ms": 50, "usage": {"prompt": 30, "completion": 200}});
    let mut open = house.client.open_chat(&chat("fast", true, &slow)).await.unwrap();
    let reservation = open.reservation().unwrap();
    open.next().await.unwrap().unwrap();
    house.process.kill();

    house.restart().await;
    let rest = house.at_rest(TENANT, LEASE_IS_OVER).await;
    rest.assert_exact(&house).await;
    let pending: Vec<String> = rest.pending.iter().map(|open| open.id.to_string()).collect();
    assert_eq!(pending, std::slice::from_ref(&reservation));
    assert!(rest.counters.held.usd > NanoUsd::ZERO && rest.lines.is_empty());
    let story = house.show(&reservation);
    assert_eq!(story["status"], "pending_reconciliation");
    assert!(kinds(&story).contains(&"AttemptStarted".to_owned()), "{story:#}");

    // What the provider says settles it, to the last unit.
    let stub = &house.stub;
    eventually("the end of the call", PATIENCE, async || (stub.totals().open == 0).then_some(())).await;
    let calls = bill::calls(&house.stub.journal());
    let billed = calls.values().next().unwrap().billed.unwrap();
    let meters = json!({"in.uncached": billed.prompt, "out.visible": billed.completion});
    let report = json!({"reservation_id": reservation, "source": "request_log", "meters": meters});
    drop(house.admin.post("/admin/v1/usage-reports", report.to_string()).await.expect(200));
    let settled = async || (house.show(&reservation)["status"] == "settled").then_some(());
    eventually("the report's effect", PATIENCE, settled).await;
    let rest = house.at_rest(TENANT, PATIENCE).await;
    rest.assert_exact(&house).await;
    assert_eq!(rest.charged(), Amounts { requests: 1, ..bill::charge(billed) });
    house.verify();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i13_a_killed_process_and_a_lost_ledger_are_folded_to_the_same_books() {
    let mut house = House::start(Setup::default()).await;
    for number in 0..60_u32 {
        let script = match number % 3 {
            0 => json!({"usage": {"prompt": number + 1, "completion": 3}}),
            1 => json!({"usage": {"report": "never"}}),
            _ => json!({"chunks": 4, "fault": {"kind": "close", "after_chunks": 2}}),
        };
        drop(house.client.chat(&chat("fast", number % 2 == 0, &script)).await);
    }
    let before = house.at_rest(TENANT, PATIENCE).await;
    before.assert_exact(&house).await;
    assert!(!before.pending.is_empty() && !before.lines.is_empty());

    house.process.kill();
    house.restart().await;
    same(&before, &house).await;

    // The ledger is derived: without it, the log alone gives it back.
    house.stop().await;
    for file in ["ledger.sqlite", "ledger.sqlite-wal", "ledger.sqlite-shm"] {
        let path = house.data().join(file);
        if path.exists() {
            std::fs::remove_file(path).unwrap();
        }
    }
    house.restart().await;
    same(&before, &house).await;
}

/// Counters and lines as they were.
async fn same(before: &weir_tests::AtRest, house: &House) {
    let now = house.at_rest(TENANT, PATIENCE).await;
    now.assert_exact(house).await;
    assert_eq!((&now.counters, &now.lines), (&before.counters, &before.lines));
    house.verify();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i13_an_altered_ledger_is_found() {
    let mut house = House::start(Setup::default()).await;
    for _ in 0..3 {
        drop(house.client.chat(&chat("fast", false, &json!({}))).await.expect(200));
    }
    drop(house.at_rest(TENANT, PATIENCE).await);
    house.stop().await;
    house.verify();
    let database = rusqlite::Connection::open(house.data().join("ledger.sqlite")).unwrap();
    // The triggers that keep lines as they are, do so for people; whoever wants to cheat drops them.
    database.execute_batch("DROP TRIGGER lines_are_not_changed").unwrap();
    assert_eq!(database.execute("UPDATE lines SET amount_nusd = amount_nusd - 1 WHERE number = 1", []), Ok(1));
    drop(database);
    let verified = house.run(&["replay", "--verify"]);
    assert_eq!(verified.status.code(), Some(1), "one nano-dollar was taken: {verified:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i15_a_restarted_process_admits_nothing_before_it_knows_what_was_spent() {
    const ALLOWED: usize = 5;
    let limit = format!("\n[[limit]]\ntenant = \"{TENANT}\"\nkind = \"requests per month\"\nmax = {ALLOWED}\n");
    let mut house = house(Catalog::default().and(&limit), "").await;
    for _ in 0..ALLOWED {
        drop(house.client.chat(&chat("fast", false, &json!({}))).await.expect(200));
    }
    drop(house.at_rest(TENANT, PATIENCE).await);
    for is_lost in [false, true] {
        house.process.kill();
        if is_lost {
            std::fs::remove_file(house.data().join("ledger.sqlite")).unwrap();
        }
        house.restart_unready().await;
        // From the first moment on, and for a while after it is ready.
        let until = Instant::now() + Duration::from_secs(1);
        while Instant::now() < until {
            let answer = house.client.chat(&chat("fast", false, &json!({}))).await;
            assert!([429, 503].contains(&answer.status.as_u16()), "{} {}", answer.status, answer.text());
        }
    }
    assert_eq!(house.stub.totals().requests, ALLOWED as u64);
}
