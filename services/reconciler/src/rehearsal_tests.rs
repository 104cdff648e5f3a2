//! A record told again folds to what the store holds, however it came to be; seeds as in the simulation.

use weir_domain::quota::{Book, BookOptions};
use weir_domain::reconcile::{LedgerView, Patience, Plan, plan};
use weir_domain::reservation::{Reservation, ReservationStatus, apply};
use weir_domain::testing::{LEASE_MS, RandomRun};

use super::{after, told_again};
use crate::moves::moves;

fn folded(events: &[weir_domain::reservation::Event]) -> Option<Reservation> {
    events.iter().fold(None, apply)
}

/// Open reservations as random gateways leave them, with the book and the time.
fn every_open_one(mut check: impl FnMut(u64, &Book, &Reservation, i64)) {
    for seed in 1..=150 {
        let mut run = RandomRun::new(seed);
        let mut book = Book::new(BookOptions::default());
        for _ in 0..60 {
            let step = run.step();
            book.execute(step.id, &step.command, step.now_ms);
        }
        let now_ms = run.now_ms() + LEASE_MS;
        let open = book.unfinished().filter(|reservation| reservation.status() == ReservationStatus::Reserved);
        for reservation in open {
            check(seed, &book, reservation, now_ms);
        }
    }
}

#[test]
fn a_record_told_again_weighs_the_same() {
    let mut checked = 0;
    every_open_one(|seed, _, reservation, _| {
        let again = folded(&told_again(reservation, &LedgerView::Absent)).unwrap();
        // What is granted and not taken is no attempt's: an extension for an attempt that never came stands elsewhere
        // in the order, and the closing that follows gives all of it back.
        let weight = |state: &Reservation| (state.held() - state.free, state.charged(), state.status());
        assert_eq!(weight(&again), weight(reservation), "seed {seed}: {reservation:#?}\n{again:#?}");
        checked += 1;
    });
    assert!(checked > 200, "{checked} open reservations are too few to show anything");
}

/// What goes on the log and what the store makes of the commands weigh the same: the log alone could rebuild it (I13).
#[test]
fn the_log_and_the_store_come_to_the_same_after_a_step() {
    every_open_one(|seed, book, reservation, now_ms| {
        let patience = Patience { ceiling_ms: i64::MAX, policy: weir_domain::reconcile::CeilingPolicy::Person };
        let plan = plan(reservation, &LedgerView::Absent, patience, now_ms);
        assert_ne!(plan, Plan::Wait, "seed {seed}: its lease has ended");
        let moves = moves(reservation, &LedgerView::Absent, &plan, now_ms);
        let on_log = folded(&moves.log).unwrap();
        let mut book = book.clone();
        for command in &moves.store {
            book.execute(reservation.created.id, command, now_ms);
        }
        let in_store = book.reservation(reservation.created.id).unwrap();
        assert_eq!(on_log.position(), in_store.position(), "seed {seed}: {plan:?} of {reservation:#?}");
        assert_eq!(on_log.status(), in_store.status(), "seed {seed}");
        assert_eq!(after(reservation, &moves.store, now_ms).status(), in_store.status(), "seed {seed}");
        // Twice is once.
        for command in &moves.store {
            book.execute(reservation.created.id, command, now_ms);
        }
        assert_eq!(book.reservation(reservation.created.id).unwrap().position(), on_log.position(), "seed {seed}");
    });
}
