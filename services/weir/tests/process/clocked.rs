//! What takes minutes and hours, in no time: the whole of `weir up` inside the test, on a clock that the test moves.
//!
//! Wall time is the test's (admission, windows, leases, ages, what the log says of when); timers of sockets stay real. The
//! commands are processes of their own beside it, as for an operator.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::runtime::Runtime;

use weir::config::Config;
use weir::up::{CatalogSource, Start, Weir};
use weir_runtime::clock::{ManualClock, SharedClock};
use weir_runtime::tls;
use weir_stub::StubOptions;
use weir_stub::script::{Script, Scripts, UsageScript};

use crate::support::{MODEL, Place, ask, eventually};

/// 2026-03-11T23:59:40Z, a Wednesday: the day ends while the stream runs, the week and the month do not.
const JUST_BEFORE_MIDNIGHT_MS: i64 = 1_773_273_580_000;
const STREAMED: Duration = Duration::from_secs(40);
const UNTIL_THE_REPORT: Duration = Duration::from_secs(9 * 60 * 60);

/// `gpt-4o-mini` of the price book that ships with the program, nano-dollars a token.
const IN: i64 = 150;
const OUT: i64 = 600;
/// What the client lets the model write.
const CAP: i64 = 1_000;

/// A running house whose time is the test's.
struct Clocked {
    place: Place,
    clock: Arc<ManualClock>,
    runtime: Runtime,
    weir: Weir,
}

impl Clocked {
    fn start(at_ms: i64, script: Script) -> Self {
        tls::install_provider();
        let (place, clock, runtime) = (Place::new(), Arc::new(ManualClock::at_ms(at_ms)), Runtime::new().unwrap());
        let mut config = Config::default();
        config.process.data = place.data();
        config.listen.gateway = "127.0.0.1:0".parse().unwrap();
        config.listen.admin = "127.0.0.1:0".parse().unwrap();
        let scripts = Scripts { default: script, ..Scripts::default() };
        let start = Start {
            catalog: CatalogSource::Stub,
            stub: Some(StubOptions { scripts, ..StubOptions::default() }),
            clock: Arc::clone(&clock) as SharedClock,
            ..Start::new(config)
        };
        let weir = runtime.block_on(Weir::start(start)).unwrap();
        Self { place, clock, runtime, weir }
    }

    fn json(&self, args: &[&str]) -> Value {
        self.place.run(&[args, &["--json"]].concat()).json()
    }

    /// The provider's only call, once it has ended.
    fn call(&self) -> Value {
        let url = format!("{}/stub/journal", self.weir.addresses.stub_url.as_ref().unwrap());
        eventually("the end of the provider's call", || {
            let journal: Value = ureq::get(&url).call().unwrap().body_mut().read_json().unwrap();
            let entries = journal.as_array().or_else(|| journal["entries"].as_array()).unwrap();
            assert_eq!(entries.len(), 1, "{journal}");
            (entries[0]["state"] != "running").then(|| entries[0].clone())
        })
    }

    /// The story of a reservation once it has `status` and everything on the log is derived.
    fn story(&self, id: &str, status: &str) -> Value {
        eventually(status, || {
            let shown = self.place.run(&["show", id, "--json"]);
            let story: Value = serde_json::from_str(&shown.out).ok()?;
            (story["status"] == status && story["derived"] == true).then_some(story)
        })
    }

    /// Charged, held and pending money of the tenant on all models, by window.
    fn counters(&self) -> Vec<(String, [String; 3])> {
        let page = self.json(&["budget", "show", "--tenant", "default"]);
        let counters = page["counters"].as_array().unwrap().iter();
        let of_tenant = counters.filter(|counter| counter["subject"] == "tenant" && counter["model"].is_null());
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let usd = |counter: &Value| ["charged", "held", "pending"].map(|field| text(&counter[field]["usd"]));
        of_tenant.map(|counter| (text(&counter["window"]), usd(counter))).collect()
    }

    fn stop(self) -> Place {
        assert!(self.runtime.block_on(self.weir.stop()).is_settled);
        self.place
    }
}

/// Decimal dollars, as everything prints them.
fn usd(nanos: i64) -> String {
    let text = format!("{}.{:09}", nanos / 1_000_000_000, nanos % 1_000_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn kinds(story: &Value) -> Vec<&str> {
    story["events"].as_array().unwrap().iter().map(|event| event["kind"].as_str().unwrap()).collect()
}

/// The windows of admission, and no other: the report comes on the next day.
const ADMITTED_IN: [&str; 4] = ["d2026-03-11", "w2026-W11", "m2026-03", "total"];

fn assert_counted(house: &Clocked, expected: &[String; 3], when: &str) {
    let counters = house.counters();
    let mut windows: Vec<&str> = counters.iter().map(|(window, _)| window.as_str()).collect();
    windows.sort_unstable();
    let mut admitted = ADMITTED_IN;
    admitted.sort_unstable();
    assert_eq!(windows, admitted, "{when}");
    for (window, amounts) in &counters {
        assert_eq!(amounts, expected, "{when}: charged, held, pending in {window}");
    }
}

#[test]
fn s07_a_stream_left_after_forty_seconds_is_pending_until_the_providers_report_settles_it_exactly() {
    let usage = UsageScript { prompt: Some(20), completion: Some(CAP), ..UsageScript::default() };
    let script = Script { chunks: 1_000, gap_ms: 10, usage, ..Script::default() };
    for endpoint in ["chat/completions", "messages"] {
        let house = Clocked::start(JUST_BEFORE_MIDNIGHT_MS, script.clone());
        let key = house.weir.first_key.as_ref().unwrap().expose().to_owned();
        let body = json!({
            "model": MODEL, "stream": true, "max_tokens": CAP, "messages": [{ "role": "user", "content": "hello" }]
        });
        let mut stream = ask(&format!("{}/v1/{endpoint}", house.weir.addresses.gateway_url), &key, &body);
        assert_eq!(stream.status, 200);
        let id = stream.reservation.clone().unwrap();
        for _ in 0..STREAMED.as_secs() {
            assert!(stream.event().is_some(), "the stream goes on");
            house.clock.advance(Duration::from_secs(1));
        }
        drop(stream);

        // What was generated is unknown, so the worst case stays held: the cap, and the bound of the input.
        let call = house.call();
        assert_eq!(call["state"], "cancelled", "nobody generates on for nobody");
        let story = house.story(&id, "pending_reconciliation");
        assert_eq!(story["admission"]["admitted_at"], "2026-03-11T23:59:40Z");
        assert_eq!(story["attempts"][0]["outcome"], "executed_usage_unknown");
        let ended = story["events"].as_array().unwrap().last().unwrap();
        assert_eq!((&ended["kind"], &ended["at"]), (&json!("ReservationPending"), &json!("2026-03-12T00:00:20Z")));
        let held = story["held"]["usd"].as_str().unwrap().to_owned();
        let [zero, worst] = [usd(0), usd(CAP * OUT)];
        assert!(held > worst, "{held} covers {worst} of output");
        assert_counted(&house, &[zero.clone(), held.clone(), held.clone()], "pending");
        assert!(story["lines"].as_array().unwrap().is_empty(), "a bound is no bill");
        assert_eq!(house.json(&["pending"])["pending"][0]["reservation"], id.as_str());

        // The provider's word comes in the morning, by the provider's id of the answer.
        house.clock.advance(UNTIL_THE_REPORT);
        let [prompt, completion] = ["prompt", "completion"].map(|field| call["billed"][field].as_i64().unwrap());
        assert!(prompt == 20 && completion > 0 && completion < CAP, "{call}");
        let report = json!({
            "provider_response_id": call["answer_id"], "source": "request_log", "outcome": "cancelled",
            "meters": { "in.uncached": prompt, "out.visible": completion }
        });
        let file = house.place.write("reports.jsonl", &format!("{report}\n"));
        let import = ["reconcile", "import", file.to_str().unwrap(), "--who", "ada", "--why", "the morning's export"];
        house.place.run(&import).ok();

        let story = house.story(&id, "settled");
        let charged = usd(prompt * IN + completion * OUT);
        assert_eq!((&story["charged"]["usd"], &story["held"]["usd"]), (&json!(charged), &json!("0")));
        let tail = ["ReservationPending", "UsageRecorded", "AttemptClosed", "ReservationSettled"];
        assert!(kinds(&story).ends_with(&tail), "{:?}", kinds(&story));
        assert_eq!(story["events"].as_array().unwrap().last().unwrap()["at"], "2026-03-12T09:00:20Z");
        let lines = story["lines"].as_array().unwrap();
        assert_eq!((lines.len(), &lines[0]["amount"]["usd"]), (1, &json!(charged)));
        let settled = [charged.clone(), zero.clone(), zero];
        eventually("the counters", || (house.counters().iter().all(|(_, of)| *of == settled)).then_some(()));
        assert_counted(&house, &settled, "settled");
        assert_eq!(house.json(&["pending"])["count"], 0);

        // The same file again changes nothing; and folding the log again finds the same.
        house.place.run(&import).ok();
        let place = house.stop();
        place.run(&["replay", "--verify"]).ok();
        let exported = place.run(&["ledger", "export", "--tenant", "default", "--format", "jsonl"]).ok();
        assert_eq!(exported.lines().count(), 1, "{exported}");
    }
}
