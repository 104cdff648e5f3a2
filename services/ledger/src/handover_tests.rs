//! What is handed over is what the log says, and never another entry's.

use std::sync::Arc;

use weir_domain::ledger::LedgerLine;
use weir_schemas::ledger_entry::LedgerEntry;

use super::*;
use crate::conformance::scene;

fn lines(count: u64) -> Vec<LedgerLine> {
    (0..count).map(|n| scene::line(&Arc::new(scene::created_in_full(n, "acme")), 1, 82_200_000, 7)).collect()
}

#[test]
fn it_says_what_the_entry_would() {
    for line in lines(3) {
        let entry = LedgerEntry::from_line(&line, &"eu".into());
        let read = Handed { tenant: entry.tenant.clone(), correction: entry.correction() };
        assert_eq!(Handed::of(&line), read);
    }
}

#[test]
fn only_the_entry_at_the_offset_is_given_and_once() {
    let handover = Handover::default();
    let all: Vec<Handed> = lines(6).iter().map(Handed::of).collect();
    handover.leave(10, all[..2].iter().cloned());
    handover.leave(15, all[2..].iter().cloned());
    let taken = [9, 11, 11, 12, 15, 17, 16, 18, 19].map(|offset| handover.take(offset));
    let expected = [None, Some(1), None, None, Some(2), Some(4), None, Some(5), None];
    assert_eq!(taken, expected.map(|at: Option<usize>| at.map(|at| all[at].clone())));
}

#[test]
fn a_corrector_that_does_not_come_costs_bounded_memory_and_finds_the_newest() {
    let handover = Handover::default();
    let one = Handed::of(&lines(1)[0]);
    for first in 0..(MOST as u64 + 10) {
        handover.leave(first, [one.clone()]);
    }
    assert_eq!(handover.0.lock().len(), MOST);
    assert_eq!((handover.take(9), handover.take(10)), (None, Some(one)));
}
