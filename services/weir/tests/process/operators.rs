//! What operators do by hand: dead letters, a rebuild of the counters, the topics, and an import of prices.

use bytes::Bytes;
use serde_json::{Value, json};

use weir_schemas::operations::Operation;
use weir_streams::segment::{SegmentLog, SegmentOptions};
use weir_streams::{Batch, EventLog as _, Limits, Position, Topic, Visibility};

use crate::support::{MODEL, Place, eventually, plain, streamed};

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// Writes what nothing can read under `key` of the reservations, while no process runs.
fn poison(place: &Place, key: &[u8], records: usize) {
    block_on(async {
        let log = SegmentLog::open(SegmentOptions::new(place.data().join("log"))).unwrap();
        for n in 0..records {
            let value = Bytes::from(format!("no event {n}"));
            let batch = Batch::new(Topic::Reservations, Bytes::copy_from_slice(key), 0, vec![value]);
            log.append(batch).durable().await.unwrap();
        }
        log.close().await;
    });
}

/// What operators did, as the log tells it.
fn acts(place: &Place) -> Vec<Operation> {
    block_on(async {
        let log = SegmentLog::open(SegmentOptions::new(place.data().join("log"))).unwrap();
        let at = Position { topic: Topic::Operations, partition: 0, offset: 0 };
        let records = log.read(at, Limits::default(), Visibility::Durable).await.unwrap();
        log.close().await;
        records.iter().map(|record| Operation::decode(&record.value).unwrap()).collect()
    })
}

const KEY: &[u8; 16] = &[1, 0x98, 0, 0, 0, 0, 0x70, 0, 0x80, 0, 0, 0, 0, 0, 0, 7];
const KEY_SHOWN: &str = "01980000-0000-7000-8000-000000000007";

#[test]
fn a_parked_key_waits_is_replayed_in_vain_and_goes_on_without_its_poison() {
    let place = Place::new();
    let first = place.up_with_stub("");
    let key = first.key().to_owned();
    first.stop();
    assert_eq!(place.run(&["dead-letters", "list"]).ok(), "0 keys wait\n", "without a process");
    let end = place.run(&["topics", "--json"]).json()["topics"][0]["embedded"]["end"].as_u64().unwrap();
    poison(&place, KEY, 2);
    let process = place.up_with_stub("");
    let list = || place.run(&["dead-letters", "list", "--json"]).json()["parked"].clone();
    let parked = eventually("the parked key", || (list()[0]["records"] == 2).then(list));
    assert_eq!((&parked[0]["key"], &parked[0]["consumer"]), (&json!(KEY_SHOWN), &json!("ledger")));
    assert_eq!((&parked[0]["topic"], &parked[0]["offset"]), (&json!("reservations"), &json!(end)));
    let told = place.run(&["dead-letters", "list"]).ok();
    let first = format!("{KEY_SHOWN}  ledger on reservations, 2 records from offset {end}\n");
    assert!(told.starts_with(&first) && told.ends_with("\n1 keys wait\n"), "{told}");
    assert_eq!(process.ask(&key, &plain()).status, 200, "others go on");

    let of = [KEY_SHOWN, "--consumer", "ledger", "--who", "ada"];
    let because = ["--why", "repaired"];
    let replay = |extra: &[&str]| place.run(&[&["dead-letters", "replay"], &of[..], extra].concat());
    let skip = |offset: u64| {
        let offset = offset.to_string();
        place.run(&[&["dead-letters", "skip"], &of[..], &because, &["--offset", &offset]].concat())
    };
    assert_eq!(replay(&[]).code, Some(2), "nobody acts without a reason");
    assert_eq!(replay(&["--why", " "]).refused(1), "weir: say `why`: it goes on the log with the act");
    let refused = replay(&because).refused(1);
    assert!(refused.starts_with(&format!("weir: {KEY_SHOWN} still waits: the record at {end} ")), "{refused}");
    let refused = skip(end + 1).refused(1);
    let expected = format!("the record at {} does not wait: the one that cannot be applied is at {end}", end + 1);
    assert_eq!(refused, format!("weir: {expected}"));

    let refused = skip(end).refused(1);
    assert!(refused.starts_with(&format!("weir: {KEY_SHOWN} still waits: the record at {} ", end + 1)), "{refused}");
    assert_eq!(skip(end + 1).ok(), format!("{KEY_SHOWN} goes on: 1 records of ledger are dealt with\n"));
    let refused = skip(end + 1).refused(3);
    assert_eq!(
        refused,
        format!("weir: `ledger` has no parked key `{KEY_SHOWN}`; `weir dead-letters list` shows what waits")
    );
    assert_eq!(list(), json!([]));
    process.stop();
    let stopped = replay(&because).refused(3);
    assert!(stopped.starts_with("weir: no process runs on the data folder "), "{stopped}");

    let told: Vec<String> = acts(&place)
        .into_iter()
        .filter_map(|act| match act {
            Operation::OperatorAct(act) => Some(format!("{} {} by {}: {}", act.act, act.object, act.who, act.why)),
            Operation::ConsumerSkip(skip) => {
                Some(format!("skip {} {} {} by {}: {}", skip.consumer, skip.key, skip.offset, skip.who, skip.why))
            }
            Operation::Heartbeat(_) => None,
            other @ (Operation::AdmissionDenied(_) | Operation::QuotaRebuild(_)) => Some(format!("{other:?}")),
        })
        .collect();
    let skipped = |offset: u64| format!("skip ledger {KEY_SHOWN} {offset} by ada: repaired");
    let replayed = format!("dead-letters.replay ledger {KEY_SHOWN} by ada: repaired");
    assert_eq!(told, [replayed, skipped(end), skipped(end + 1)]);
}

fn counters(place: &Place) -> Value {
    place.run(&["budget", "show", "--tenant", "default", "--json"]).json()
}

#[test]
fn rebuilt_counters_are_the_counters_and_a_stream_in_flight_is_settled() {
    let place = Place::new();
    let process =
        place.up_with_stub("[default]\nchunks = 8\ngap_ms = 200\nusage = { prompt = 1000, completion = 500 }");
    for _ in 0..3 {
        process.ask(process.key(), &plain()).text();
    }
    let before = eventually("the settlements", || {
        let counters = counters(&place);
        (counters["reserved"] == 0 && counters["counters"][0]["charged"]["requests"] == 3).then_some(counters)
    });
    let rebuild = ["quota", "rebuild", "--who", "ada", "--why", "drill", "--json"];
    let rebuilt = place.run(&rebuild).json();
    assert_eq!((&rebuilt["tenants"], &rebuilt["reservations"]), (&json!(1), &json!(0)));
    assert_eq!(counters(&place)["counters"], before["counters"]);

    let mut stream = process.ask(process.key(), &streamed());
    stream.event().unwrap();
    let rebuilt = place.run(&rebuild).json();
    assert_eq!(rebuilt["reservations"], 1, "its hold is found on the log");
    assert_ne!(counters(&place)["held"]["tokens"], 0);
    assert!(stream.text().contains("[DONE]"), "the client notices nothing");
    assert_eq!(process.ask(process.key(), &plain()).status, 200, "open again");
    eventually("the settlements", || {
        let counters = counters(&place);
        let is_settled = counters["held"]["tokens"] == 0 && counters["reserved"] == 0;
        (is_settled && counters["counters"][0]["charged"]["requests"] == 5).then_some(())
    });
    eventually("the proof", || {
        let told = place.run(&["replay", "--verify"]).ok();
        told.ends_with("also with the running process\nlog, ledger and counters agree\n").then_some(())
    });

    let wrong = "x".repeat(40);
    let refused = place.run(&[&rebuild[..6], &["--admin-token", &wrong]].concat()).refused(1);
    assert!(refused.starts_with("weir: send `Authorization: Bearer TOKEN`"), "{refused}");
    assert_eq!(place.run(&rebuild[..4]).code, Some(2), "nobody acts without a reason");
    process.stop();
    assert!(place.run(&rebuild).err.contains("no process runs on the data folder"));
    let is_rebuild = |act: &Operation| matches!(act, Operation::OperatorAct(act) if act.act == "quota.rebuild");
    assert_eq!(acts(&place).iter().filter(|act| is_rebuild(act)).count(), 2);
}

#[test]
fn topics_tell_what_they_are_for_and_how_far_they_are_written() {
    let place = Place::new();
    let alone = place.run(&["topics", "--json"]).json();
    assert_eq!((alone["topics"].as_array().map(Vec::len), &alone["topics"][0]["embedded"]), (Some(8), &Value::Null));
    let process = place.up_with_stub("");
    process.ask(process.key(), &plain()).text();
    let embedded = eventually("the events", || {
        let embedded = place.run(&["topics", "--json"]).json()["topics"][0]["embedded"].clone();
        (embedded["end"] == 6).then_some(embedded)
    });
    assert_eq!(embedded, json!({ "start": 0, "end": 6 }));
    process.stop();
    let told = place.run(&["topics"]).ok();
    let expected = "weir.reservations: every step of every reservation: the source of truth from which all else is rebuilt\n  \
                    by reservation id, kept forever, 48 partitions on a cluster; here 6 records, 0 to 6\n";
    assert!(told.starts_with(expected), "{told}");
    assert_eq!(place.run(&["topics", "--dead-letters", "--json"]).json()["topics"].as_array().map(Vec::len), Some(16));
}

#[test]
fn imported_prices_are_a_catalog_and_nothing_is_overwritten() {
    let place = Place::new();
    let map = json!({
        MODEL: {
            "input_cost_per_token": 0.000_000_15, "output_cost_per_token": 0.000_000_6, "litellm_provider": "openai",
            "mode": "chat", "max_output_tokens": 16384, "fedramp_uplift_multiplier": 1.1
        },
        "clock": { "litellm_provider": "deepseek", "mode": "chat", "off_peak_pricing": {}, "input_cost_per_token": 1 },
    });
    let file = place.write("map.json", &map.to_string());
    let import = ["catalog", "import", "litellm", file.to_str().unwrap()];
    let imported = place.run(&import);
    let expected = "skipped clock: its price depends on the time of day (`off_peak_pricing`)\n\
                    left out of gpt-4o-mini: fedramp_uplift_multiplier: a surcharge of some regions or endpoints\n\
                    1 prices; 1 models skipped; 1 parts left out, whose requests will be refused; 0 batch prices passed \
                    over\n";
    assert_eq!(imported.err, expected);
    let text = imported.ok();
    assert!(text.contains("rates = { \"in.uncached\" = \"0.15\", \"out.visible\" = \"0.6\" }"), "{text}");
    let prices = place.write("prices.toml", &text);
    let told = place.run(&["catalog", "check", prices.to_str().unwrap()]).ok();
    assert!(told.contains("1 prices"), "{told}");

    let shown = place.run(&[&import[..], &["--json", "--provider", "openai"]].concat()).json();
    assert_eq!(shown["conversion"]["prices"][0]["price"]["terms"][0]["rates"]["in.uncached"], "0.15");
    assert_eq!(shown["conversion"]["skipped"], json!([]));
    let to_file = [&import[..], &["-o", "prices.toml"]].concat();
    let refused = place.run(&to_file).refused(1);
    assert!(refused.ends_with("name a file that does not exist"), "{refused}");
    assert_eq!(std::fs::read_to_string(&prices).unwrap(), text);
    let written = place.run(&[&import[..], &["-q", "-o", "other.toml"]].concat());
    assert_eq!(written.err.lines().count(), 1, "{written:?}");
    assert_eq!(written.ok(), "");
    assert_eq!(std::fs::read_to_string(place.path("other.toml")).unwrap(), text);
    let nobody = place.run(&[&import[..], &["--provider", "nobody"]].concat()).refused(2);
    assert!(nobody.ends_with("none that is asked for; it knows the providers deepseek, openai"), "{nobody}");
    place.write("list.json", "[1]");
    let refused = place.run(&["catalog", "import", "litellm", "list.json"]).refused(2);
    assert!(refused.starts_with("weir: list.json: it is not LiteLLM's price map, one JSON object of models: "));
}
