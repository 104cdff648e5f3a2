//! The recovery cycle of the source documents, promises to providers, and what no sequence of outcomes may do.

use proptest::prelude::*;

use super::*;

const FAILED: CallOutcome = CallOutcome::Failed { cause: FailureCause::RateLimited, retry_after_ms: None };
const SUCCEEDED: CallOutcome = CallOutcome::Succeeded { latency_ms: 100 };

fn breaker() -> Breaker {
    Breaker::new(BreakerPolicy::default())
}

fn permit(breaker: &mut Breaker, now_ms: i64) -> Permit {
    match breaker.admit(now_ms) {
        Gate::Open(permit) => permit,
        Gate::Shut(refusal) => panic!("{refusal:?}"),
    }
}

fn call(breaker: &mut Breaker, outcome: CallOutcome, now_ms: i64) {
    let permit = permit(breaker, now_ms);
    breaker.record(permit, outcome, now_ms);
}

fn shut_for(breaker: &mut Breaker, now_ms: i64) -> Option<(RefusalReason, i64)> {
    match breaker.admit(now_ms) {
        Gate::Open(_) => None,
        Gate::Shut(refusal) => Some((refusal.reason, refusal.retry_after_ms)),
    }
}

fn open_at(now_ms: i64) -> Breaker {
    let mut breaker = breaker();
    for _ in 0..6 {
        call(&mut breaker, FAILED, now_ms);
    }
    breaker
}

#[test]
fn the_seeds_cycle_opens_at_six_probes_at_32_s_and_closes_at_33_s() {
    let mut breaker = breaker();
    for failures in 1..=5 {
        call(&mut breaker, FAILED, 2_000);
        assert_eq!((breaker.state(), breaker.consecutive_failures()), (CircuitState::Closed, failures));
    }
    call(&mut breaker, FAILED, 2_000);
    assert_eq!(breaker.state(), CircuitState::Open);
    assert_eq!(shut_for(&mut breaker, 2_000), Some((RefusalReason::CircuitOpen, 30_000)));
    assert_eq!(shut_for(&mut breaker, 31_999), Some((RefusalReason::CircuitOpen, 1)));

    assert_eq!(breaker.check(32_000), Ok(()));
    let probe = permit(&mut breaker, 32_000);
    assert_eq!(breaker.state(), CircuitState::HalfOpen);
    assert!(shut_for(&mut breaker, 32_500).is_some(), "one probe, not two");
    breaker.record(probe, SUCCEEDED, 33_000);
    assert_eq!((breaker.state(), breaker.consecutive_failures()), (CircuitState::Closed, 0));
    assert_eq!(shut_for(&mut breaker, 33_000), None);
}

#[test]
fn each_failed_probe_doubles_the_cooldown_up_to_its_bound() {
    let mut breaker = open_at(0);
    let mut now_ms = 0;
    for cooldown_s in [30, 60, 120, 240, 300, 300] {
        assert_eq!(shut_for(&mut breaker, now_ms), Some((RefusalReason::CircuitOpen, cooldown_s * 1000)));
        now_ms += cooldown_s * 1000;
        call(&mut breaker, FAILED, now_ms);
    }
    now_ms += 300_000;
    call(&mut breaker, SUCCEEDED, now_ms);
    for _ in 0..6 {
        call(&mut breaker, FAILED, now_ms);
    }
    assert_eq!(shut_for(&mut breaker, now_ms), Some((RefusalReason::CircuitOpen, 30_000)), "closing starts afresh");
}

#[test]
fn a_success_in_between_starts_the_row_anew() {
    let mut breaker = breaker();
    for _ in 0..3 {
        for _ in 0..5 {
            call(&mut breaker, FAILED, 0);
        }
        call(&mut breaker, SUCCEEDED, 0);
        call(&mut breaker, SUCCEEDED, 40_000);
    }
    let half: [CallOutcome; 2] = [SUCCEEDED, FAILED];
    let mut breaker = Breaker::new(BreakerPolicy::default());
    for turn in 0..19 {
        call(&mut breaker, half[turn % 2], 0);
        assert_eq!(breaker.state(), CircuitState::Closed, "{turn}: too few calls to speak of a share");
    }
    call(&mut breaker, FAILED, 0);
    assert_eq!(breaker.state(), CircuitState::Open, "10 of 20 recent calls failed, never two in a row");
}

#[test]
fn failures_older_than_the_window_are_no_share() {
    let mut breaker = breaker();
    for turn in 0..40 {
        call(&mut breaker, if turn % 2 == 0 { FAILED } else { SUCCEEDED }, turn * 2_000);
        assert_eq!(breaker.state(), CircuitState::Closed, "15 calls in 30 s");
    }
}

#[test]
fn client_errors_and_cancels_count_for_nothing() {
    let mut breaker = breaker();
    for _ in 0..100 {
        call(&mut breaker, CallOutcome::NotCounted, 0);
    }
    assert_eq!((breaker.state(), breaker.health(0)), (CircuitState::Closed, HealthScore::BEST));

    // A probe that the client cancelled told nothing: the next call is the probe.
    let mut breaker = open_at(0);
    call(&mut breaker, CallOutcome::NotCounted, 30_000);
    assert_eq!(breaker.state(), CircuitState::Open);
    let probe = permit(&mut breaker, 30_001);
    breaker.record(probe, FAILED, 30_001);
    assert_eq!(shut_for(&mut breaker, 30_001), Some((RefusalReason::CircuitOpen, 60_000)));
}

#[test]
fn a_lost_probe_is_replaced_and_decides_nothing_later() {
    let mut breaker = open_at(0);
    let lost = permit(&mut breaker, 30_000);
    assert_eq!(shut_for(&mut breaker, 149_999), Some((RefusalReason::CircuitOpen, 1)));
    let _second = permit(&mut breaker, 150_000);
    breaker.record(lost, SUCCEEDED, 150_001);
    assert_eq!(breaker.state(), CircuitState::HalfOpen);
}

#[test]
fn calls_from_before_it_opened_decide_nothing() {
    let mut breaker = breaker();
    let slow = [permit(&mut breaker, 0), permit(&mut breaker, 0)];
    for _ in 0..6 {
        call(&mut breaker, FAILED, 0);
    }
    breaker.record(slow[0], SUCCEEDED, 10);
    assert_eq!(breaker.state(), CircuitState::Open);
    let probe = permit(&mut breaker, 30_000);
    breaker.record(slow[1], FAILED, 30_001);
    assert_eq!(breaker.state(), CircuitState::HalfOpen);
    breaker.record(probe, SUCCEEDED, 30_002);
    assert_eq!(breaker.state(), CircuitState::Closed);
}

#[test]
fn closing_forgets_the_failures_from_before() {
    let policy = BreakerPolicy { calls_before_share: 6, cooldown_ms: 1_000, ..BreakerPolicy::default() };
    let mut breaker = Breaker::new(policy);
    let late = permit(&mut breaker, 0);
    for _ in 0..6 {
        call(&mut breaker, FAILED, 0);
    }
    call(&mut breaker, SUCCEEDED, 1_000);
    breaker.record(late, FAILED, 1_000);
    assert_eq!(breaker.health(1_000).per_mille(), 1000, "{breaker:?}");
    call(&mut breaker, FAILED, 1_000);
    assert_eq!((breaker.state(), breaker.consecutive_failures()), (CircuitState::Closed, 1));
}

#[test]
fn o40_a_deployment_is_not_tried_before_its_retry_after() {
    let limited = |retry_after_ms| CallOutcome::Failed { cause: FailureCause::RateLimited, retry_after_ms };
    let mut a = breaker();
    call(&mut a, limited(Some(6_500)), 1_000);
    assert_eq!(a.state(), CircuitState::Closed, "one 429 opens nothing");
    assert_eq!(shut_for(&mut a, 1_000), Some((RefusalReason::RetryAfter, 6_500)));
    assert_eq!(shut_for(&mut a, 7_499), Some((RefusalReason::RetryAfter, 1)));
    assert_eq!(shut_for(&mut a, 7_500), None);

    // Of two deployments the smallest wait gives hope.
    let (mut a, mut b) = (breaker(), breaker());
    call(&mut a, limited(Some(7_000)), 0);
    call(&mut b, limited(Some(3_000)), 0);
    let waits = [a.check(0), b.check(0)].map(|check| check.unwrap_err().retry_after_ms);
    assert_eq!(waits.into_iter().min(), Some(3_000));
}

#[test]
fn o40_a_longer_retry_after_outlasts_the_cooldown_and_late_ones_count_too() {
    let mut breaker = breaker();
    let late = permit(&mut breaker, 0);
    for _ in 0..6 {
        call(&mut breaker, FAILED, 0);
    }
    breaker.record(late, CallOutcome::Failed { cause: FailureCause::Overloaded, retry_after_ms: Some(60_000) }, 1_000);
    assert_eq!(shut_for(&mut breaker, 1_000), Some((RefusalReason::CircuitOpen, 60_000)));
    assert_eq!(shut_for(&mut breaker, 40_000), Some((RefusalReason::RetryAfter, 21_000)));
    assert_eq!(shut_for(&mut breaker, 61_000), None);
}

#[test]
fn an_absurd_retry_after_ends_some_day() {
    let mut breaker = breaker();
    call(&mut breaker, CallOutcome::Failed { cause: FailureCause::RateLimited, retry_after_ms: Some(i64::MAX) }, 0);
    assert_eq!(shut_for(&mut breaker, LONGEST_RETRY_AFTER_MS), None);
}

#[test]
fn health_falls_with_errors_and_latency_and_recovers() {
    let mut healthy = breaker();
    call(&mut healthy, CallOutcome::Succeeded { latency_ms: 0 }, 0);
    assert_eq!(healthy.health(0), HealthScore::BEST);

    let mut slow = breaker();
    call(&mut slow, CallOutcome::Succeeded { latency_ms: 10_000 }, 0);
    assert_eq!(slow.health(0).per_mille(), 500);
    assert_eq!(slow.health(31_000), HealthScore::BEST, "what is long ago is not held against it");

    let mut failing = breaker();
    call(&mut failing, SUCCEEDED, 0);
    for _ in 0..2 {
        call(&mut failing, FAILED, 0);
    }
    let scores = [healthy.health(0), failing.health(0)];
    assert!(scores[0] > scores[1] && scores[1].per_mille() > 0, "{scores:?}");
    assert!(failing.health(31_000) > failing.health(0));
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Admit,
    Record { which: usize, outcome: CallOutcome },
    Wait(i64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let outcome = prop_oneof![
        3 => Just(FAILED),
        2 => Just(SUCCEEDED),
        1 => Just(CallOutcome::NotCounted),
        1 => (0..90_000i64).prop_map(|ms| CallOutcome::Failed {
            cause: FailureCause::RateLimited,
            retry_after_ms: Some(ms)
        }),
    ];
    let step = prop_oneof![
        4 => Just(Step::Admit),
        4 => (any::<usize>(), outcome).prop_map(|(which, outcome)| Step::Record { which, outcome }),
        2 => (0..40_000i64).prop_map(Step::Wait),
    ];
    proptest::collection::vec(step, 1..120)
}

proptest! {
    /// Whatever happens in whatever order: while not closed there is one probe in `probe_ms`, nothing goes out before
    /// a `Retry-After`, `check` says what `admit` does, and after the longest waits a call goes out again.
    #[test]
    fn no_sequence_of_outcomes_breaks_its_promises(steps in steps()) {
        let mut breaker = breaker();
        let mut permits: Vec<Permit> = Vec::new();
        let (mut now_ms, mut promised_ms) = (0, 0);
        let mut probe_until_ms: Option<i64> = None;
        for step in steps {
            match step {
                Step::Wait(ms) => now_ms += ms,
                Step::Admit => {
                    let expected = breaker.check(now_ms);
                    let was_closed = breaker.state() == CircuitState::Closed;
                    match breaker.admit(now_ms) {
                        Gate::Open(permit) => {
                            prop_assert!(expected.is_ok() && now_ms >= promised_ms);
                            if !was_closed {
                                prop_assert!(probe_until_ms.is_none_or(|until_ms| now_ms >= until_ms), "two probes");
                                probe_until_ms = Some(now_ms + BreakerPolicy::default().probe_ms);
                            }
                            permits.push(permit);
                        }
                        Gate::Shut(refusal) => {
                            prop_assert_eq!(Err(refusal), expected);
                            prop_assert!(refusal.retry_after_ms > 0);
                        }
                    }
                }
                Step::Record { which, outcome } if !permits.is_empty() => {
                    let at = which % permits.len();
                    let was = breaker.state();
                    breaker.record(permits.swap_remove(at), outcome, now_ms);
                    if was == CircuitState::HalfOpen && breaker.state() != was {
                        probe_until_ms = None;
                    }
                    if let CallOutcome::Failed { retry_after_ms: Some(ms), .. } = outcome {
                        promised_ms = promised_ms.max(now_ms + ms);
                    }
                }
                Step::Record { .. } => {}
            }
            prop_assert!(breaker.health(now_ms) <= HealthScore::BEST);
        }
        let far_ms = now_ms + 400_000;
        prop_assert!(matches!(breaker.admit(far_ms), Gate::Open(_)), "it comes back");
    }
}
