//! What must hold after a process was killed, wherever that was.
//!
//! The provider is the witness: its journal says which calls reached it and what it bills for each. Every call carries
//! our own id, reservation and attempt, so a call that is on no record is found by name (I14). What is pending after a
//! lease is then reported exactly as the provider bills it, and the books must equal the bill to the last token.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;

use weir_domain::attempt::AttemptOutcome;
use weir_domain::ids::ReservationId;
use weir_domain::money::Amounts;
use weir_domain::reservation::ReservationStatus;
use weir_ledger::SqliteLedger;
use weir_ledger::contract::{LedgerStore as _, StoredReservation};
use weir_runtime::tasks::Tasks;
use weir_stub::script::{FaultKind, Refuse, Script, Scripts, UsageScript};
use weir_stub::{StubOptions, script};

use crate::bill::{AttemptKey, Call, by_attempt, calls, charge};
use crate::catalog::{Catalog, Model, TENANT};
use crate::client::{Client, chat};
use crate::failpoints::{Plan, failpoints_binary};
use crate::{AtRest, House, PATIENCE, Process, Setup, eventually};

/// A reservation's life without renewal, in these tests.
pub const LEASE: Duration = Duration::from_secs(2);
/// Every reservation has ended or is pending this long after a restart (I11).
pub const WITHIN: Duration = LEASE.saturating_add(Duration::from_secs(10));

/// One deployment that answers.
pub const ONE: &str = "one";
/// A first deployment that refuses without executing, and a second that answers.
pub const TWO: &str = "two";
/// A first deployment that may have executed before its connection broke, and a second that answers.
pub const COVERED: &str = "covered";

/// `weir.toml` with short leases. `more` is more sections, or more of the last one, `[log]`.
#[must_use]
pub fn config(more: &str) -> String {
    let lease = LEASE.as_millis();
    format!(
        r#"
[gateway]
lease = "{lease}ms"
renew_every = "500ms"

[listener]
drain = "1s"

[reconciler]
lease = "{lease}ms"
period = "200ms"
pending_period = "500ms"

[ledger]
checkpoint_events = 5

[log]
{more}
"#
    )
}

/// Five chunks, slow enough that a kill strikes between them.
#[must_use]
pub fn scripts() -> Scripts {
    let usage = UsageScript { prompt: Some(100), completion: Some(10), ..UsageScript::default() };
    let answers = Script { chunks: 5, gap_ms: 15, before_headers_ms: 5, usage, ..Script::default() };
    let busy = Script { status: 503, ..answers.clone() };
    let resets = Script { refuse: Some(Refuse::Reset), ..answers.clone() };
    let breaks = Script {
        fault: Some(script::Fault {
            kind: FaultKind::Reset,
            after_chunks: 2,
            after_bytes: None,
            code: None,
            message: None,
            bytes: None,
        }),
        ..answers.clone()
    };
    let named = [("busy", busy), ("resets", resets), ("breaks", breaks)];
    let scripts = named.into_iter().map(|(name, script)| (name.to_owned(), script)).collect();
    Scripts { default: answers, scripts }
}

/// A house whose processes follow `plan`.
#[must_use]
pub fn setup(plan: &Plan, log: &str, catalog: &str) -> Setup {
    let models = [
        Model::tiers(ONE, &["answers"]),
        Model::tiers(TWO, &["busy", "answers"]),
        Model::tiers(COVERED, &["resets", "answers"]),
    ];
    Setup {
        catalog: Catalog::of(&models).and(catalog),
        config: config(log),
        scripts: scripts(),
        stub: StubOptions::default(),
        provider_host: None,
        environment: plan.environment(),
        binary: failpoints_binary().to_owned(),
    }
}

/// The seed's worked example: $0.105 held, $0.0822 charged.
pub mod seed_case {
    use serde_json::{Value, json};

    use weir_domain::money::{Amounts, NanoUsd};
    use weir_stub::journal::Billed;
    use weir_stub::script::{Script, UsageScript};

    /// Its prices, $0.00003 and $0.00012 a token, on a model of their own.
    pub const CATALOG: &str = r#"
[[price]]
name = "seed"
[[price.terms]]
rates = { "in.uncached" = "30", "out.visible" = "120" }

[[deployment]]
id = "seed-0"
provider = "stub"
model = "seed"
price = "seed"
max_output_tokens = 4096
tokens_per_kilobyte = 1000

[[model]]
name = "seed"
tiers = [["seed-0"]]
"#;
    /// The prompt whose bound is 1,500 tokens: one a byte, and 38 for the message around it.
    const PROMPT_BYTES: usize = 1_462;

    #[must_use]
    pub fn request() -> Value {
        json!({
            "model": "seed", "max_tokens": 500,
            "messages": [{"role": "user", "content": "x".repeat(PROMPT_BYTES)}],
        })
    }

    /// What a call comes to, without the request itself.
    #[must_use]
    pub fn charge(billed: Billed) -> Amounts {
        let usd = NanoUsd::from_nanos(30_000 * billed.prompt + 120_000 * billed.completion);
        Amounts::new(0, billed.prompt + billed.completion, usd)
    }

    #[must_use]
    pub fn script() -> Script {
        let usage = UsageScript { prompt: Some(1_500), completion: Some(310), ..UsageScript::default() };
        Script { usage, ..Script::default() }
    }
}

/// What a client saw of one request.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    pub status: Option<u16>,
    pub reservation: Option<ReservationId>,
    /// Any of the answer: what is held back until content comes is not seen before it.
    pub content: bool,
    /// The answer ended in good order.
    pub whole: bool,
}

/// Sends one request and reads what comes, to its end or its break.
pub async fn send(client: Client, model: String, stream: bool) -> Seen {
    let body = chat(&model, stream, &json!({}));
    let Ok(mut open) = client.open_chat(&body).await else { return Seen::default() };
    let reservation = open.reservation().and_then(|id| id.parse().ok());
    let (status, mut text) = (open.status.as_u16(), Vec::new());
    let is_broken = loop {
        match open.next().await {
            Some(Ok(piece)) => text.extend_from_slice(&piece),
            Some(Err(_)) => break true,
            None => break false,
        }
    };
    let ended = !stream || String::from_utf8_lossy(&text).contains("data: [DONE]");
    let content = status == 200 && !text.is_empty();
    Seen { status: Some(status), reservation, content, whole: content && ended && !is_broken }
}

/// Sends `total` requests, `in_flight` at a time.
pub async fn send_all(client: &Client, model: &str, stream: bool, in_flight: usize, total: usize) -> Vec<Seen> {
    let tasks = Tasks::new();
    let senders = (0..in_flight).map(|nth| {
        let (client, model) = (client.clone(), model.to_owned());
        let each = total / in_flight + usize::from(nth < total % in_flight);
        tasks.spawn("client", async move {
            let mut seen = Vec::with_capacity(each);
            for _ in 0..each {
                seen.push(send(client.clone(), model.clone(), stream).await);
            }
            seen
        })
    });
    let senders: Vec<_> = senders.collect();
    let mut all = Vec::with_capacity(total);
    for sender in senders {
        all.extend(sender.await.expect("a client does not panic"));
    }
    all
}

/// How a reservation stands, one that left no trace included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stands {
    Absent,
    Pending,
    Settled,
    Released,
    Reserved,
}

impl Stands {
    #[must_use]
    pub fn of(stored: Option<&StoredReservation>) -> Self {
        match stored.map(|stored| stored.status) {
            None => Self::Absent,
            Some(ReservationStatus::Reserved) => Self::Reserved,
            Some(ReservationStatus::PendingReconciliation) => Self::Pending,
            Some(ReservationStatus::Settled) => Self::Settled,
            Some(ReservationStatus::Released) => Self::Released,
        }
    }
}

/// Waits until the process was killed by itself; any other end, and none, fails.
pub async fn killed(house: &mut House) {
    let status = house.process.wait(PATIENCE).await;
    assert_eq!(status.signal(), Some(9), "{status}\n{}", house.process.told());
    provider_is_quiet(house).await;
}

/// Waits until the provider has noticed that its client is gone.
pub async fn provider_is_quiet(house: &House) {
    eventually("an end of every call", PATIENCE, async || (house.stub.totals().open == 0).then_some(())).await;
}

/// The state of things after a restart and a lease.
#[derive(Debug)]
pub struct After {
    pub rest: AtRest,
    /// Every call in the provider's journal.
    pub calls: BTreeMap<AttemptKey, Call>,
    /// Every reservation that anybody has heard of.
    pub stands: BTreeMap<ReservationId, Stands>,
    /// Every attempt on record.
    pub attempts: BTreeSet<AttemptKey>,
}

impl After {
    /// Waits for rest, then: books, fold and counters are equal; everything of which a client saw content is on record,
    /// and so is every call that reached the provider (I14).
    pub async fn a_lease(house: &House, seen: &[Seen]) -> Self {
        let after = Self::damage(house, seen).await;
        for (id, number) in after.calls.keys() {
            assert!(after.attempts.contains(&(*id, *number)), "the provider was called for {id}-{number}: no record");
        }
        after
    }

    /// The same where the disk lost what was written and not yet confirmed. A kill cannot do that, so only then may the
    /// record of a call be gone; what a client saw waits for the disk's word and must be there.
    pub async fn damage(house: &House, seen: &[Seen]) -> Self {
        let rest = house.at_rest(TENANT, WITHIN).await;
        rest.assert_exact(house).await;
        house.verify();
        let (ledger, calls) = (house.ledger(), calls(&house.stub.journal()));
        let mut ids: BTreeSet<ReservationId> = calls.keys().map(|(reservation, _)| *reservation).collect();
        ids.extend(seen.iter().filter_map(|seen| seen.reservation));
        ids.extend(rest.pending.iter().map(|open| open.id));
        ids.extend(rest.lines.iter().map(|line| line.key.reservation));
        let (mut stands, mut attempts) = (BTreeMap::new(), BTreeSet::new());
        for id in ids {
            let stored = find(&ledger, id).await;
            attempts.extend(stored.iter().flat_map(|stored| &stored.attempts).map(|attempt| (id, attempt.number)));
            stands.insert(id, Stands::of(stored.as_ref()));
        }
        for seen in seen.iter().filter(|seen| seen.content) {
            let is_recorded = seen.reservation.is_some_and(|id| attempts.contains(&(id, 1)));
            assert!(is_recorded, "a client saw content of which there is no record: {seen:?}");
        }
        Self { rest, calls, stands, attempts }
    }

    /// The reports that the provider would send for what is pending.
    pub async fn reports(&self, house: &House) -> String {
        let ledger = house.ledger();
        let mut rows = String::new();
        for open in &self.rest.pending {
            let stored = find(&ledger, open.id).await.expect("what is pending is stored");
            for attempt in stored.attempts.iter().filter(|attempt| attempt.charge.is_none()) {
                if attempt.outcome == Some(AttemptOutcome::NotExecuted) {
                    continue;
                }
                let number = attempt.number;
                let row = match self.calls.get(&(open.id, number)).and_then(|call| call.billed) {
                    Some(billed) => json!({
                        "reservation_id": open.id.to_string(), "attempt": number,
                        "meters": {"in.uncached": billed.prompt - billed.cached, "out.visible": billed.completion},
                    }),
                    None => json!({"reservation_id": open.id.to_string(), "attempt": number, "requests": 0}),
                };
                writeln!(rows, "{row}").expect("a text takes a line");
            }
        }
        rows
    }

    /// Nothing is pending, nothing is held, and the books are the provider's bill.
    pub async fn assert_is_the_bill(house: &House) {
        eventually("an end of everything pending", PATIENCE, async || {
            let counters = house.counters(TENANT).await;
            (counters.pending == 0 && counters.reserved == 0).then_some(())
        })
        .await;
        let rest = house.at_rest(TENANT, PATIENCE).await;
        rest.assert_exact(house).await;
        house.verify();
        assert!(rest.pending.is_empty(), "{:#?}", rest.pending);
        assert_eq!(rest.counters.held, Amounts::ZERO, "leaked holds");
        for counter in &rest.counters.counters {
            assert_eq!(counter.held, Amounts::ZERO, "leaked hold: {counter:?}");
        }
        let billed: BTreeMap<AttemptKey, Amounts> = calls(&house.stub.journal())
            .into_iter()
            .filter_map(|(attempt, call)| Some((attempt, charge(call.billed?))))
            .collect();
        assert_eq!(by_attempt(&rest.lines), billed, "charged by the ledger, billed by the provider");
        let executed: BTreeSet<ReservationId> = billed.keys().map(|(reservation, _)| *reservation).collect();
        assert_eq!(rest.charged().requests, i64::try_from(executed.len()).expect("few requests"));
    }
}

/// Starts `weir up` on a house's data while the house itself runs nothing, or something that has the lock. What it says
/// where it refuses; killed again where it listens.
#[must_use]
pub fn refusal_to_start(house: &House) -> Option<String> {
    let mut command = Command::new(house.binary());
    command
        .args(["up", "--json", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--config", "weir.toml"])
        .args(["--catalog", "catalog.toml", "--data", "data"])
        .current_dir(house.folder());
    let mut process = Process::start(command, house.folder(), "second");
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = process.ended() {
            assert!(!status.success() && status.code().is_some(), "{status}: {}", process.told());
            return Some(process.told());
        }
        if std::fs::read_to_string(&process.stdout).is_ok_and(|printed| printed.contains("gateway_url")) {
            return None;
        }
        assert!(Instant::now() < deadline, "neither listens nor ends\n{}", process.told());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Writes `rows` and imports them. Whether the process lived to say so is the caller's to know.
pub fn import(house: &House, rows: &str) -> std::process::Output {
    let file = house.folder().join("reports.jsonl");
    std::fs::write(&file, rows).expect("reports can be written");
    house.run(&["reconcile", "import", &file.display().to_string()])
}

async fn find(ledger: &SqliteLedger, id: ReservationId) -> Option<StoredReservation> {
    ledger.find(id).await.expect("the ledger can be read")
}
