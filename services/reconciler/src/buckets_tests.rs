//! Rows for each verdict; properties for sums.

use proptest::prelude::*;

use weir_domain::testing::id;
use weir_domain::usage::{Meter, Usage};

use super::{Bucket, BucketVerdict, Inconclusive, UnknownAttempt, judge};

fn usage(input: i64, output: i64) -> Usage {
    Usage::new([(Meter::InUncached, input), (Meter::OutVisible, output)]).unwrap()
}

fn unknown(n: u64, weight: i64) -> UnknownAttempt {
    UnknownAttempt { reservation: id(n), number: 1, weight }
}

fn bucket(requests: u64, meters: Usage) -> Bucket {
    Bucket { requests: Some(requests), meters }
}

#[test]
fn no_request_beyond_the_known_ones_proves_that_none_ran() {
    let known = [usage(100, 50), usage(10, 5)];
    assert_eq!(judge(&bucket(2, usage(110, 55)), &known, &[unknown(1, 9)]), BucketVerdict::NoneRan);
    let more = judge(&bucket(2, usage(111, 55)), &known, &[unknown(1, 9)]);
    assert_eq!(more, BucketVerdict::Inconclusive(Inconclusive::MeterDiffers(Meter::InUncached)));
}

#[test]
fn what_remains_belongs_exactly_to_the_one_unknown_attempt() {
    let BucketVerdict::Exact(share) = judge(&bucket(2, usage(200, 950)), &[usage(100, 50)], &[unknown(7, 1)]) else {
        panic!("one unknown attempt takes what remains");
    };
    assert_eq!((share.reservation, share.number, share.usage), (id(7), 1, usage(100, 900)));
}

#[test]
fn several_unknown_attempts_share_in_proportion() {
    let BucketVerdict::Split(shares) =
        judge(&bucket(3, usage(10, 7)), &[], &[unknown(1, 1), unknown(2, 2), unknown(3, 0)])
    else {
        panic!("three unknown attempts share what remains");
    };
    let readings: Vec<_> =
        shares.iter().map(|s| (s.usage.get(Meter::InUncached), s.usage.get(Meter::OutVisible))).collect();
    assert_eq!(readings, [(3, 2), (7, 5), (0, 0)]);
}

#[test]
fn counts_that_do_not_fit_prove_nothing() {
    let two = [unknown(1, 1), unknown(2, 1)];
    let between = judge(&bucket(2, usage(200, 60)), &[usage(100, 50)], &two);
    let expected = Inconclusive::CountBetween { counted: 2, known: 1, unknown: 2 };
    assert_eq!(between, BucketVerdict::Inconclusive(expected));
    let uncounted = Bucket { requests: None, meters: usage(1, 1) };
    assert_eq!(judge(&uncounted, &[], &two), BucketVerdict::Inconclusive(Inconclusive::NoRequestCount));
    let less = judge(&bucket(3, usage(99, 60)), &[usage(100, 50)], &two);
    assert_eq!(less, BucketVerdict::Inconclusive(Inconclusive::MeterDiffers(Meter::InUncached)));
}

fn meters() -> impl Strategy<Value = Usage> {
    proptest::collection::vec((0..Meter::ALL.len(), 0..1_000_000i64), 0..6)
        .prop_map(|readings| Usage::new(readings.into_iter().map(|(at, n)| (Meter::ALL[at], n))).unwrap())
}

proptest! {
    #[test]
    fn shares_and_known_usage_sum_to_what_the_provider_counted(
        known in proptest::collection::vec(meters(), 0..5),
        weights in proptest::collection::vec(0..5_000i64, 1..6),
        rest in meters(),
    ) {
        let all = known.iter().chain([&rest]).flat_map(|u| u.readings()).map(|r| (r.meter, r.quantity));
        let total = Usage::new(all).unwrap();
        let unknown: Vec<_> = weights.iter().zip(1..).map(|(weight, n)| unknown(n, *weight)).collect();
        let requests = known.len() as u64 + unknown.len() as u64;
        let shares = match judge(&bucket(requests, total.clone()), &known, &unknown) {
            BucketVerdict::Exact(share) => vec![share],
            BucketVerdict::Split(shares) => shares,
            other => return Err(TestCaseError::fail(format!("{other:?}"))),
        };
        prop_assert_eq!(shares.len(), unknown.len());
        let shared = shares.iter().map(|share| &share.usage).chain(&known);
        let sum = Usage::new(shared.flat_map(|u| u.readings()).map(|r| (r.meter, r.quantity))).unwrap();
        prop_assert_eq!(sum, total);
    }

    #[test]
    fn nothing_is_proved_by_a_count_in_between(known in 0..5u64, unknown_count in 2..6u64, ran in 1..5u64) {
        prop_assume!(ran < unknown_count);
        let of_known: Vec<_> = (0..known).map(|_| usage(1, 1)).collect();
        let unknown: Vec<_> = (0..unknown_count).map(|n| unknown(n, 1)).collect();
        let total = usage(i64::try_from(known + ran).unwrap(), i64::try_from(known + ran).unwrap());
        let verdict = judge(&bucket(known + ran, total), &of_known, &unknown);
        prop_assert!(matches!(verdict, BucketVerdict::Inconclusive(Inconclusive::CountBetween { .. })), "{:?}", verdict);
    }
}
