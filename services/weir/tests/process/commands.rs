//! The commands against a real process, and without one.

use std::path::Path;

use serde_json::{Value, json};

use crate::support::{MODEL, Place, eventually, plain, streamed};

/// The story of a reservation once the ledger has all of it.
fn derived(place: &Place, reservation: &str) -> Value {
    eventually("the ledger line", || {
        let told = place.run(&["show", reservation, "--json"]);
        let story: Value = serde_json::from_str(&told.out).ok()?;
        (story["derived"] == true).then_some(story)
    })
}

#[test]
fn the_story_of_a_request_is_told_in_order_while_it_runs_and_afterwards() {
    let place = Place::new();
    let process = place.up_with_stub("[default]\nusage = { prompt = 1000, completion = 500 }");
    let reservation = process.ask(process.key(), &plain()).reservation.unwrap();
    let story = derived(&place, &reservation);
    let kinds: Vec<&str> =
        story["events"].as_array().unwrap().iter().map(|event| event["kind"].as_str().unwrap()).collect();
    let expected = [
        "ReservationCreated",
        "AttemptStarted",
        "AttemptCorrelated",
        "UsageRecorded",
        "AttemptClosed",
        "ReservationSettled",
    ];
    assert_eq!(kinds, expected);
    assert_eq!(story["lines"][0]["usage"], json!({ "in.uncached": 1000, "out.visible": 500 }));
    assert_eq!(story["charged"], story["lines"][0]["total"]);

    let told = place.run(&["show", &reservation]).ok();
    assert!(told.starts_with(&format!("reservation {reservation}: settled\n")), "{told}");
    assert!(told.contains("by response: in.uncached 1000, out.visible 500"), "{told}");
    process.stop();
    assert_eq!(place.run(&["show", &reservation]).ok(), told, "the same without a process");

    let unknown = "01980000-0000-7000-8000-000000000000";
    let refused = place.run(&["show", unknown]).refused(3);
    assert!(refused.starts_with(&format!("weir: there is no reservation {unknown} in ")), "{refused}");
    assert_eq!(place.run(&["show", "nonsense"]).code, Some(2));
}

#[test]
fn a_key_lives_from_create_to_revoke() {
    let place = Place::new();
    let process = place.up_with_stub("");
    let args = ["key", "create", "--tenant", "default", "--name", "app", "--label", "stage=test", "--json"];
    let made = place.run(&args).json();
    let (key, id) = (made["key"].as_str().unwrap(), made["id"].as_str().unwrap());
    assert_eq!(process.ask(key, &plain()).status, 200);

    let listed = place.run(&["key", "list", "--json"]).json();
    let shown = listed["keys"].as_array().unwrap().iter().find(|known| known["id"] == id).unwrap().clone();
    assert_eq!((&shown["status"], &shown["labels"]), (&json!("active"), &json!({ "stage": "test" })));
    assert!(!listed.to_string().contains(key), "a key is shown once");

    place.run(&["key", "revoke", id, "--who", "alice", "--why", "leaked"]).ok();
    assert_eq!(process.ask(key, &plain()).status, 401);
    let refused = place.run(&["key", "revoke", "key_unknown"]).refused(3);
    assert_eq!(refused, "weir: there is no key `key_unknown`");
    let refused = place.run(&["key", "create", "--tenant", "nobody", "--name", "app"]).refused(1);
    assert_eq!(refused, "weir: tenant: there is no tenant `nobody`; apply a catalog with it");
    process.stop();

    let table = place.run(&["key", "list"]).ok();
    assert!(table.lines().any(|line| line.starts_with(id) && line.contains("revoked")), "without a process:\n{table}");
    let refused = place.run(&["key", "create", "--tenant", "default", "--name", "b"]).refused(3);
    let folder = place.data();
    let expected = format!(
        "weir: no process runs on the data folder {}: start `weir up`, or name its admin API with --admin-url",
        folder.display()
    );
    assert_eq!(refused, expected);
}

fn catalog(stub: &str, limit: &str) -> String {
    format!(
        "[[provider]]\nid = \"p\"\ndialect = \"openai_chat\"\nbase_url = \"{stub}/v1\"\n\n\
         [[deployment]]\nid = \"d\"\nprovider = \"p\"\nmodel = \"{MODEL}\"\nmax_output_tokens = 1000\n\n\
         [[model]]\nname = \"{MODEL}\"\ndeployments = [\"d\"]\n\n\
         [[tenant]]\nname = \"acme\"\n\n\
         [[limit]]\ntenant = \"acme\"\nkind = \"{limit}\"\nmax = 2\n"
    )
}

#[test]
fn a_catalog_is_checked_applied_and_in_force() {
    let place = Place::new();
    let (stub, process) = (place.stub(), place.up(&[]));
    let stub_url = stub.greeting["url"].as_str().unwrap();
    let reason = "no catalog is applied: run `weir catalog apply FILE`";
    assert_eq!(process.readiness()["reasons"], json!([{ "condition": "catalog", "reason": reason }]));

    let good = place.write("catalog.toml", &catalog(stub_url, "requests per day"));
    let good = good.to_str().unwrap();
    let told = place.run(&["catalog", "check", good]).ok();
    assert_eq!(told, "catalog is in order: 1 deployments, 1 limits, 1 models, 1 providers, 1 tenants\n");
    place.run(&["catalog", "apply", good]).ok();
    let told = place.run(&["catalog", "apply", good]).ok();
    assert!(told.ends_with("; it changes nothing\n"), "{told}");

    let made = place.run(&["key", "create", "--tenant", "acme", "--name", "app", "--json"]).json();
    let key = made["key"].as_str().unwrap();
    eventually("readiness", || (process.readiness()["ready"] == true).then_some(()));
    let statuses = [(); 3].map(|()| process.ask(key, &plain()).status);
    assert_eq!(statuses, [200, 200, 429], "two requests a day");

    let bad = place.write("bad.toml", &catalog(stub_url, "requests per eternity"));
    let bad = bad.to_str().unwrap();
    for act in ["check", "apply"] {
        let refused = place.run(&["catalog", act, bad]).refused(1);
        assert!(refused.starts_with(&format!("weir: {bad}:21:8: limit.kind: ")), "{refused}");
    }
    process.stop();
    let refused = place.run(&["catalog", "check", bad]).refused(1);
    assert!(refused.starts_with(&format!("weir: {bad}:21:8: limit.kind: ")), "without a process: {refused}");
    let refused = place.run(&["catalog", "check", "missing.toml"]).refused(2);
    assert_eq!(refused, "weir: missing.toml cannot be read: No such file or directory (os error 2); name another file");
}

#[test]
fn exported_lines_sum_to_the_counters() {
    let place = Place::new();
    let process = place.up_with_stub("");
    let mut last = None;
    for body in [plain(), streamed(), plain()] {
        let answer = process.ask(process.key(), &body);
        last = answer.reservation.clone();
        answer.text();
    }
    derived(&place, &last.unwrap());
    let csv = place.run(&["ledger", "export", "--tenant", "default"]);
    let lines: Vec<&str> = csv.out.lines().collect();
    assert_eq!(lines.len(), 4, "a heading and three lines: {csv:#?}");
    let jsonl = place.run(&["ledger", "export", "--tenant", "default", "--format", "jsonl"]).ok();
    let nanos = |usd: &Value| usd.as_str().unwrap().parse::<weir_domain::money::NanoUsd>().unwrap();
    let sum: weir_domain::money::NanoUsd =
        jsonl.lines().map(|line| nanos(&serde_json::from_str::<Value>(line).unwrap()["usd"])).sum();
    let counters = place.run(&["budget", "show", "--tenant", "default", "--json"]).json();
    assert_eq!(nanos(&counters["counters"][0]["charged"]["usd"]), sum);
    assert_eq!(place.run(&["ledger", "export", "--tenant", "default", "--to", "2020-01-01"]).ok().lines().count(), 1);
    let refused = place.run(&["ledger", "export", "--tenant", "nobody"]).refused(3);
    assert_eq!(refused, "weir: there is no tenant `nobody`; there are: default");

    let told = place.run(&["replay", "--verify"]).ok();
    assert!(
        told.ends_with("compared 16 counters, also with the running process\nlog, ledger and counters agree\n"),
        "{told}"
    );
    process.stop();
}

#[test]
fn an_imported_report_settles_a_pending_reservation_once() {
    let place = Place::new();
    let process = place.up_with_stub("[default]\nchunks = 3\nfault = { kind = \"reset\", after_chunks = 2 }");
    let mut answer = process.ask(process.key(), &streamed());
    let reservation = answer.reservation.clone().unwrap();
    while answer.event().is_some() {}
    let story = derived(&place, &reservation);
    assert_eq!(story["status"], "pending_reconciliation", "{story}");
    let told = place.run(&["pending"]).ok();
    assert!(told.starts_with(&reservation) && told.contains("1 pending, holding"), "{told}");
    let told = eventually("the pending part of the counters", || {
        let told = place.run(&["budget", "show", "--tenant", "default"]).ok();
        told.contains(", of that pending ").then_some(told)
    });
    assert!(
        told.lines().any(|line| line.contains(", of that pending ") && line.contains(", the oldest for ")),
        "{told}"
    );

    let report =
        json!({ "reservation_id": reservation, "attempt": 1, "meters": { "in.uncached": 40, "out.visible": 2 } });
    let file = place.write("reports.jsonl", &format!("{report}\n"));
    let import = ["reconcile", "import", file.to_str().unwrap(), "--who", "alice", "--why", "invoice"];
    for _ in 0..2 {
        let told = place.run(&import).ok();
        assert_eq!(told, "1 reports are on the log; `weir show RESERVATION` tells what they settle\n");
    }
    let story = eventually("the settlement", || {
        let story = derived(&place, &reservation);
        (story["status"] == "settled").then_some(story)
    });
    assert_eq!(story["lines"].as_array().map(Vec::len), Some(1), "{story}");
    assert_eq!(story["charged"]["tokens"], 42);
    eventually("the counters", || {
        let counters = place.run(&["budget", "show", "--tenant", "default", "--json"]).json();
        (counters["held"]["tokens"] == 0 && counters["counters"][0]["charged"]["tokens"] == 42).then_some(())
    });

    let wrong = place.write("wrong.csv", "reservation_id,attempt,in.uncached\nnonsense,1,4\n");
    let refused = place.run(&["reconcile", "import", wrong.to_str().unwrap()]).refused(1);
    assert!(refused.starts_with("weir: line 2, `reservation_id`: "), "{refused}");
    let refused = place.run(&["reconcile", "import", "reports"]).refused(2);
    assert_eq!(refused, "weir: the name reports does not say how it is written: add --format csv or jsonl");
    process.stop();
}

#[test]
fn a_wrong_token_is_refused_and_a_silent_address_is_said() {
    let place = Place::new();
    let process = place.up_with_stub("");
    let refused = place.run(&["budget", "show", "--tenant", "default", "--admin-token", &"x".repeat(40)]).refused(1);
    assert_eq!(refused, "weir: send `Authorization: Bearer TOKEN` with the token of the data folder's `admin.token`");
    process.stop();
    let args = ["budget", "show", "--tenant", "default", "--admin-url", "http://127.0.0.1:1"];
    let refused = place.run(&args).refused(3);
    assert!(refused.starts_with("weir: http://127.0.0.1:1 does not answer: "), "{refused}");

    let error: Value =
        serde_json::from_str(&place.run(&["show", "--json", "01980000-0000-7000-8000-000000000000"]).refused(3))
            .unwrap();
    assert_eq!(error["code"], 3, "an error is JSON where JSON is asked for");
}

#[test]
fn commands_on_a_folder_that_is_none_say_so() {
    let place = Place::new();
    let missing = Path::new("/nowhere/weir-data");
    for args in [&["pending"][..], &["replay", "--verify"], &["ledger", "export", "--tenant", "t"]] {
        let args = [args, &["--data", missing.to_str().unwrap()]].concat();
        let refused = place.run(&args).refused(3);
        assert_eq!(
            refused,
            "weir: there is no data folder /nowhere/weir-data: name the one of the running process with --data"
        );
    }
}
