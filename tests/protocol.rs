//! The accounting protocol on the real rules (`decide`, `apply`, `Book`, `Fold`, `reconcile::plan`, the sweep's moves),
//! over every interleaving of gateways, kills, late wake-ups, expiry, reports, copies, redelivery, spools and a store
//! that loses writes. At rest the ledger is what providers ran, counters are ledger + open holds, in the store and in a
//! replay alike (I8, I9, I11, I12, I13), and no admission ever passed the budget (I2). Eight mistakes must be found.
//!
//! One search of everything has no end, so each test is about faults that meet. `WEIR_PROTOCOL=all` takes away the
//! short cuts: consumers whose every step may be stale, a builder that lags, more kills.
#![cfg(test)]

use std::io::Write as _;

use weir_domain::reconcile::CeilingPolicy;
use weir_tests::protocol::{Faults, Found, Mutation, ReportsSay, Scenario, search};

/// Nothing expires.
const NOW: &[i64] = &[0];
/// The lease ends behind the first moment; in `DAYS` the ceiling and the retry horizon of what has ended follow.
const LEASE: &[i64] = &[0, 61_000];
const TWO_LEASES: &[i64] = &[0, 61_000, 125_000];
const HORIZON: &[i64] = &[0, 2 * 3_600_000];
const CEILING: &[i64] = &[0, 61_000, 2 * 3_600_000];
const DAYS: &[i64] = &[0, 61_000, 2 * 3_600_000, 5 * 3_600_000];

const KILL: Faults = Scenario::plain("").faults;

/// Nothing beside the bounds that a test sets, or the larger ones of the long run.
fn quick(name: &'static str) -> Scenario {
    let is_quick = !is_long();
    Scenario { are_consumers_quick: is_quick, is_builder_quick: is_quick, ..Scenario::plain(name) }
}

/// Every call runs and bills more than it held; the answer may be lost.
fn runs(name: &'static str) -> Scenario {
    Scenario { bills: &[4], refuses: false, loses_calls: false, ..quick(name) }
}

fn is_long() -> bool {
    std::env::var("WEIR_PROTOCOL").is_ok_and(|which| which == "all")
}

fn run(scenario: &Scenario) -> Found {
    let found = search(scenario);
    // Past the capture of the test's output: how much was searched is part of the result.
    let mut out = std::io::stderr();
    let mutation = scenario.mutation.map(|mutation| format!(", {mutation:?}")).unwrap_or_default();
    let Found { states, steps, at_rest, stores, logs, took, wrong, residual, .. } = &found;
    let _ = writeln!(
        out,
        "protocol, {}{mutation}: {states} states, {steps} steps, {at_rest} at rest, {stores} stores, {logs} logs, {} ms; \
         wrong: {}; residual: {}",
        scenario.name,
        took.as_millis(),
        wrong.len(),
        residual.len(),
    );
    found
}

/// Nothing is wrong, and the stated residual risks are met exactly where they are stated.
fn holds(scenario: &Scenario, residual: &[&str]) {
    let found = run(scenario);
    assert!(found.wrong.is_empty(), "{}: {:#?}", scenario.name, found.wrong);
    let met: Vec<&str> = found.residual.keys().copied().collect();
    assert_eq!(met, residual, "{}: {:#?}", scenario.name, found.residual);
}

fn is_found(mutation: Mutation, scenario: Scenario) {
    let found = run(&Scenario { mutation: Some(mutation), ..scenario });
    assert!(!found.wrong.is_empty(), "{mutation:?} is not found in {} states", found.states);
}

const LOST_MARK: &str = "residual: executed, and the store lost the only record";
const NOT_WAITED_FOR: &str = "residual: the rebuild did not wait for everybody";

fn overlap() -> Scenario {
    Scenario { moments_ms: TWO_LEASES, faults: Faults { rollbacks: 1, ..KILL }, ..runs("a store that loses writes") }
}

fn rewinds() -> Scenario {
    let faults = Faults { rewinds: 1, ..KILL };
    Scenario { moments_ms: DAYS, loses_answers: false, faults, ..runs("lines read again after their record expired") }
}

fn two_attempts() -> Scenario {
    let faults = Faults { kills: u8::from(is_long()), ..KILL };
    Scenario { attempts: 2, bills: &[1], refuses: true, faults, ..runs("two attempts") }
}

fn broken() -> Scenario {
    Scenario { breaks_streams: true, bills: &[2], ..Scenario::plain("streams that break off") }
}

fn parked() -> Scenario {
    let faults = Faults { kills: 0, parks: 1, ..KILL };
    let short = Scenario { loses_answers: false, bills: &[1], ..runs("an entry that is parked") };
    let adjusts = Scenario { reports: ReportsSay::OneMore, adjust_on_mismatch: true, ..short };
    Scenario { requests: 2, moments_ms: if is_long() { HORIZON } else { NOW }, faults, ..adjusts }
}

#[test]
fn i08_i12_one_request_whose_gateway_is_killed_anywhere_and_every_consumer_is_late() {
    holds(&Scenario::plain("one request"), &[]);
}

#[test]
fn i11_consumers_killed_between_any_two_steps() {
    let faults = Faults { consumer_kills: 1, ..KILL };
    holds(&Scenario { is_builder_quick: !is_long(), faults, ..Scenario::plain("consumers killed") }, &[]);
}

#[test]
fn i15_a_store_that_loses_writes_loses_a_mark_only_where_it_is_stated() {
    holds(&overlap(), &[LOST_MARK]);
    holds(&Scenario { name: "a store that loses writes, durable first", durable_first: true, ..overlap() }, &[]);
}

#[test]
fn i15_a_rebuild_that_does_not_wait_for_everybody() {
    let faults = Faults { absences: 1, rollbacks: 1, ..KILL };
    holds(&Scenario { name: "absent gateways", faults, ..overlap() }, &[LOST_MARK, NOT_WAITED_FOR]);
}

#[test]
fn i07_reports_that_differ_from_the_response() {
    let faults = Faults { rewinds: 1, ..KILL };
    let differ = Scenario { reports: ReportsSay::OneMore, faults, ..quick("reports that differ") };
    holds(&differ, &[]);
    holds(&Scenario { name: "reports that differ and adjust", adjust_on_mismatch: true, ..differ }, &[]);
}

#[test]
fn i13_copies_and_redelivery_after_records_expired() {
    let faults = Faults { kills: 0, copies: 1, ..KILL };
    let copies = Scenario { moments_ms: HORIZON, faults, ..runs("copies of what expired") };
    holds(&copies, &[]);
    holds(&rewinds(), &[]);
}

#[test]
fn i09_nobody_reports() {
    let silent = Scenario { reports: ReportsSay::Nothing, moments_ms: DAYS, ..quick("nobody reports") };
    holds(&silent, &[]);
    let estimate = Scenario { name: "nobody reports, estimated", ceiling: CeilingPolicy::Estimate, ..silent };
    holds(&estimate, &[]);
    let late = Scenario { ceiling: CeilingPolicy::Estimate, moments_ms: CEILING, ..runs("reports behind an estimate") };
    holds(&late, &[]);
}

#[test]
fn i11_leases_taken_back() {
    holds(&Scenario { renews: true, moments_ms: TWO_LEASES, ..runs("leases taken back") }, &[]);
}

#[test]
fn i14_spools() {
    let faults = Faults { outages: 1, ..KILL };
    holds(&Scenario { faults, ..quick("spools") }, &[]);
    let faults = Faults { rollbacks: 1, ..faults };
    let short = Scenario { loses_answers: false, reports: ReportsSay::Nothing, ..runs("spools and lost writes") };
    holds(&Scenario { moments_ms: TWO_LEASES, faults, ..short }, &[LOST_MARK]);
}

#[test]
fn i04_two_attempts() {
    holds(&two_attempts(), &[]);
    let silent = Scenario { faults: KILL, reports: ReportsSay::Nothing, ..two_attempts() };
    holds(&Scenario { name: "two attempts of a gateway that is killed", ..silent }, &[]);
}

#[test]
fn i07_streams_that_break_off() {
    holds(&broken(), &[]);
}

#[test]
fn i02_two_requests_at_the_edge_of_a_budget() {
    let faults = Faults { kills: 2, ..KILL };
    holds(&Scenario { requests: 2, budget: Some(5), faults, ..runs("two requests, one budget") }, &[]);
    let faults = Faults { kills: 0, rollbacks: 1, ..KILL };
    let short = Scenario { loses_answers: false, reports: ReportsSay::Nothing, bills: &[1], ..runs("and lost writes") };
    holds(&Scenario { requests: 2, budget: Some(5), moments_ms: LEASE, faults, ..short }, &[]);
}

#[test]
fn i12_an_entry_that_is_parked_while_others_pass() {
    holds(&parked(), &[]);
}

#[test]
fn every_mistake_is_found() {
    for mutation in Mutation::ALL {
        let scenario = match mutation {
            Mutation::NoFence => overlap(),
            Mutation::NaiveExpiry | Mutation::QuotaFirst | Mutation::LastWriter => Scenario::plain("one request"),
            Mutation::NoSourcePosition => rewinds(),
            Mutation::PositionBeforeRecord => parked(),
            Mutation::CorrectTheWhole => two_attempts(),
            Mutation::PartialBilled => broken(),
        };
        is_found(mutation, scenario);
    }
}
