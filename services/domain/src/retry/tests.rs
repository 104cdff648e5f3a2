//! The share that retries may have, and the delays before them.

use proptest::prelude::*;

use super::*;

fn budget() -> RetryBudget {
    RetryBudget::new(RetryBudgetPolicy::default())
}

#[test]
fn retries_are_a_tenth_of_requests_and_a_few_in_any_case() {
    let mut budget = budget();
    let granted = |budget: &mut RetryBudget, now_ms| (0..1_000).filter(|_| budget.withdraw(now_ms)).count();
    assert_eq!(granted(&mut budget, 0), 10, "the minimum, without any request");
    for _ in 0..1_000 {
        budget.deposit(5_000);
    }
    assert_eq!(budget.left(5_000), 90);
    assert_eq!(granted(&mut budget, 5_000), 90);
    // The ten of the first second have left the window.
    assert_eq!(granted(&mut budget, 10_000), 10);
    assert_eq!(granted(&mut budget, 20_000), 10, "an old storm is forgotten");
}

#[test]
fn delays_double_up_to_the_bound_with_full_jitter() {
    let backoff = Backoff { base_ms: 50, longest_ms: 1_000 };
    for (retry, ceiling_ms) in [(0, 50), (1, 50), (2, 100), (3, 200), (5, 800), (6, 1_000), (u32::MAX, 1_000)] {
        assert_eq!(backoff.delay_ms(retry, 0, None), 0);
        assert_eq!(backoff.delay_ms(retry, u64::MAX, None), ceiling_ms, "{retry}");
        assert_eq!(backoff.delay_ms(retry, u64::MAX / 2, None), ceiling_ms / 2, "{retry}");
    }
}

#[test]
fn o40_retry_after_is_kept_verbatim() {
    for random in [0, u64::MAX] {
        assert_eq!(Backoff::default().delay_ms(1, random, Some(7_000)), 7_000);
    }
    assert_eq!(Backoff::default().delay_ms(1, 0, Some(-5)), 0);
}

#[test]
fn o40_a_header_rounds_up_and_is_never_zero() {
    for (wait_ms, seconds) in [(i64::MIN, 1), (0, 1), (1, 1), (1_000, 1), (1_001, 2), (4_200, 5)] {
        assert_eq!(retry_after_header_s(wait_ms), seconds, "{wait_ms}");
    }
    assert_eq!(retry_after_header_s(9 * 24 * 60 * 60 * 1000), 777_600);
}

proptest! {
    #[test]
    fn delays_stay_within_their_ceiling(base_ms in 0..10_000i64, longest_ms in 0..100_000i64, retry: u32, random: u64) {
        let delay_ms = Backoff { base_ms, longest_ms }.delay_ms(retry, random, None);
        prop_assert!((0..=longest_ms).contains(&delay_ms));
    }

    /// In any ten seconds: retries never exceed the minimum or a tenth of the requests that were seen by then.
    #[test]
    fn no_storm_exceeds_the_share(steps in proptest::collection::vec((0..1_500i64, any::<bool>()), 1..400)) {
        let mut budget = budget();
        let mut now_ms = 0;
        let (mut requests, mut retries): (Vec<i64>, Vec<i64>) = Default::default();
        for (passed_ms, is_request) in steps {
            now_ms += passed_ms;
            if is_request {
                budget.deposit(now_ms);
                requests.push(now_ms / 1000);
            } else {
                let recent = |seconds: &[i64]| seconds.iter().filter(|second| **second > now_ms / 1000 - 10).count();
                let allowed = (recent(&requests) / 10).max(10);
                prop_assert_eq!(budget.withdraw(now_ms), recent(&retries) < allowed);
                if recent(&retries) < allowed {
                    retries.push(now_ms / 1000);
                }
            }
        }
    }
}
