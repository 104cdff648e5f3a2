//! The oracle: at rest, log, ledger, counters and the provider's bill are the same, to the last unit.
//!
//! `replay --verify` folds the log from its first record and compares it with every line of the ledger and every counter
//! in Redis. What it cannot know is what was really called: that is the provider's journal, compared here call by call.
//! What nobody knew is reported first, exactly as the provider bills it, as in `crash`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde::Deserialize;
use serde_json::{Value, json};

use weir_domain::attempt::AttemptNumber;
use weir_domain::ids::ReservationId;
use weir_domain::money::{Amounts, NanoUsd};

use crate::bill::{AttemptKey, Call, calls};
use crate::catalog::TENANT;
use crate::eventually;

use super::{LONG, Stack};

/// What a tenant's ledger says at rest, after everything pending was reported.
#[derive(Debug, Clone)]
pub struct Books {
    /// Sums of the lines, without the requests.
    pub attempts: BTreeMap<AttemptKey, Amounts>,
    /// Requests charged, by key's id.
    pub requests: BTreeMap<String, i64>,
    /// Reservations that were pending before the reports.
    pub pending: usize,
    /// What the admin API shows.
    pub counters: Value,
}

/// The part of an exported line that is compared.
#[derive(Debug, Deserialize)]
struct Line {
    reservation: ReservationId,
    attempt: AttemptNumber,
    key: String,
    requests: i64,
    tokens: i64,
    usd: NanoUsd,
}

impl Stack {
    /// Waits for rest, reports what is pending, waits again, and compares everything. `seen` are the reservations of
    /// which clients saw a whole answer. Panics with the first difference.
    pub async fn assert_exact(&self, seen: &BTreeSet<ReservationId>) -> Books {
        self.assert_exact_without(0, seen).await
    }

    /// The same where a person has skipped `left_out` records.
    pub async fn assert_exact_without(&self, left_out: usize, seen: &BTreeSet<ReservationId>) -> Books {
        eventually("an end of every call", LONG, async || (self.stub.totals().open == 0).then_some(())).await;
        self.at_rest().await;
        let calls = calls(&self.stub.journal());
        let pending = self.report_pending(&calls).await;
        let verified = self.at_rest().await;
        assert_eq!(verified["left_out"], left_out, "{verified}");

        let counters = self.counters().await.expect("there are counters");
        assert_eq!((&counters["pending"], &counters["reserved"]), (&json!(0), &json!(0)), "{counters}");
        for counter in counters["counters"].as_array().expect("counters are listed") {
            let held: Amounts = Deserialize::deserialize(&counter["held"]).expect("an amount");
            assert_eq!(held, Amounts::ZERO, "leaked hold: {counter}");
        }
        let (attempts, requests) = self.lines();
        let billed: BTreeMap<AttemptKey, Amounts> =
            calls.iter().filter_map(|(attempt, call)| Some((*attempt, (self.charge)(call.billed?)))).collect();
        // Both ways, by name: a whole map that differs would not be read by anybody.
        let unbilled: Vec<_> = attempts.iter().filter(|(key, sum)| billed.get(key) != Some(sum)).collect();
        assert!(unbilled.is_empty(), "in the ledger, and not so on the bill: {unbilled:#?}");
        let lost: Vec<_> = billed.keys().filter(|key| !attempts.contains_key(key)).collect();
        assert!(lost.is_empty(), "on the bill, and not in the ledger: {lost:#?}");
        let executed: BTreeSet<ReservationId> = billed.keys().map(|(reservation, _)| *reservation).collect();
        assert_eq!(requests.values().sum::<i64>(), i64::try_from(executed.len()).expect("few requests"));
        let unknown: Vec<_> = seen.difference(&executed).collect();
        assert!(unknown.is_empty(), "clients got answers that nobody is charged for: {unknown:#?}");
        let charged: Amounts = Deserialize::deserialize(&verified["charged"]).expect("an amount");
        let sum = attempts.values().fold(Amounts::ZERO, |sum, amount| sum + *amount);
        assert_eq!(Amounts { requests: 0, ..charged }, sum, "charged by the fold, by the lines");
        Books { attempts, requests, pending, counters }
    }

    fn lines(&self) -> (BTreeMap<AttemptKey, Amounts>, BTreeMap<String, i64>) {
        let exported = self.command(&["ledger", "export", "--tenant", TENANT, "--format", "jsonl"]);
        let (mut attempts, mut requests) = (BTreeMap::new(), BTreeMap::new());
        for line in exported.lines() {
            let line: Line = serde_json::from_str(line).expect("a line is JSON");
            let sum: &mut Amounts = attempts.entry((line.reservation, line.attempt)).or_default();
            *sum += Amounts::new(0, line.tokens, line.usd);
            *requests.entry(line.key).or_default() += line.requests;
        }
        (attempts, requests)
    }

    /// Says of everything pending what the provider bills for it, and waits until nothing is; how many there were.
    async fn report_pending(&self, calls: &BTreeMap<AttemptKey, Call>) -> usize {
        let pending: Value =
            serde_json::from_str(&self.command(&["pending", "--most", "100000", "--json"])).expect("JSON");
        let pending = pending["pending"].as_array().expect("they are listed");
        if pending.is_empty() {
            return 0;
        }
        let mut rows = String::new();
        for open in pending {
            let id = open["reservation"].as_str().expect("it has an id");
            let story: Value = serde_json::from_str(&self.command(&["show", id, "--json"])).expect("JSON");
            let attempts = story["attempts"].as_array().expect("they are listed");
            let is_unknown = |attempt: &&Value| attempt["charge"].is_null() && attempt["outcome"] != "not_executed";
            for attempt in attempts.iter().filter(is_unknown) {
                let number =
                    AttemptNumber::try_from(attempt["number"].as_u64().expect("a number")).expect("it is small");
                let billed = calls.get(&(id.parse().expect("an id"), number)).and_then(|call| call.billed);
                let row = match billed {
                    Some(billed) => json!({
                        "reservation_id": id, "attempt": number,
                        "meters": {"in.uncached": billed.prompt - billed.cached, "out.visible": billed.completion},
                    }),
                    None => json!({"reservation_id": id, "attempt": number, "requests": 0}),
                };
                writeln!(rows, "{row}").expect("a text takes a line");
            }
        }
        let file = self.folder().join("reports.jsonl");
        std::fs::write(&file, rows).expect("reports can be written");
        self.command(&["reconcile", "import", &file.display().to_string()]);
        eventually("an end of everything pending", LONG, async || {
            let counters = self.counters().await?;
            (counters["pending"] == 0 && counters["reserved"] == 0).then_some(())
        })
        .await;
        pending.len()
    }
}
