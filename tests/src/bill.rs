//! The provider's side of the books: what the stub billed, by attempt of Weir's.
//!
//! Weir sends its own id of every call along, `<reservation>-<attempt>`, and the stub writes it down: so the two sides
//! are compared call by call, never only in sum, where two mistakes could hide each other.

use std::collections::{BTreeMap, BTreeSet};

use weir_domain::attempt::AttemptNumber;
use weir_domain::ids::ReservationId;
use weir_domain::ledger::LedgerLine;
use weir_domain::money::{Amounts, NanoUsd};
use weir_stub::journal::{Billed, Entry};

use crate::AtRest;
use crate::catalog::nanos;

/// One call, as the provider saw it.
#[derive(Debug, Clone)]
pub struct Call {
    pub answer_id: String,
    pub billed: Option<Billed>,
}

pub type AttemptKey = (ReservationId, AttemptNumber);

/// Every call by its attempt. Panics when two calls have one attempt, or one has none.
#[must_use]
pub fn calls(journal: &[Entry]) -> BTreeMap<AttemptKey, Call> {
    let mut calls = BTreeMap::new();
    for entry in journal {
        let sent = entry.headers.iter().find(|(name, _)| name == "x-client-request-id");
        let (_, correlation) = sent.unwrap_or_else(|| panic!("a call without an id of Weir's: {entry:?}"));
        let (reservation, attempt) = correlation.rsplit_once('-').expect("an attempt's id has a number");
        let key = (reservation.parse().expect("a reservation's id"), attempt.parse().expect("an attempt's number"));
        let call = Call { answer_id: entry.answer_id.clone(), billed: entry.billed };
        let before = calls.insert(key, call);
        assert!(before.is_none(), "two calls under {correlation}");
    }
    calls
}

/// What `billed` comes to at the price of the tests, without the request itself.
#[must_use]
pub fn charge(billed: Billed) -> Amounts {
    let usd = NanoUsd::from_nanos(nanos(billed.prompt, billed.cached, billed.completion));
    Amounts::new(0, billed.prompt + billed.completion, usd)
}

/// What the ledger has for each attempt, without the requests, and in how many reservations.
#[must_use]
pub fn by_attempt(lines: &[LedgerLine]) -> BTreeMap<AttemptKey, Amounts> {
    let mut sums: BTreeMap<AttemptKey, Amounts> = BTreeMap::new();
    for line in lines {
        let sum = sums.entry((line.key.reservation, line.key.attempt)).or_default();
        *sum += Amounts { requests: 0, ..line.amount };
    }
    sums
}

/// Every line is what was billed for its call, and every call that was billed has its lines or is pending. Panics with the
/// first that is not.
pub fn assert_billed(rests: &[AtRest], calls: &BTreeMap<AttemptKey, Call>) {
    let lines: Vec<_> = rests.iter().flat_map(|rest| rest.lines.iter().cloned()).collect();
    let charged = by_attempt(&lines);
    let pending: BTreeSet<_> = rests.iter().flat_map(|rest| rest.pending.iter().map(|open| open.id)).collect();
    for (attempt, charged) in &charged {
        let call = calls.get(attempt).unwrap_or_else(|| panic!("{attempt:?} has a line and was never called"));
        let billed = call.billed.map(charge).unwrap_or_default();
        assert_eq!(*charged, billed, "{attempt:?}: ledger, bill; {call:?}");
    }
    for (attempt, call) in calls {
        let is_open = charged.contains_key(attempt) || pending.contains(&attempt.0);
        assert!(is_open || call.billed.is_none(), "{attempt:?} was billed and is nowhere: {call:?}");
    }
    let requests: i64 = lines.iter().map(|line| line.amount.requests).sum();
    let reservations: BTreeSet<_> = lines.iter().map(|line| line.key.reservation).collect();
    assert_eq!(requests, i64::try_from(reservations.len()).expect("a count"), "one request each");
}
