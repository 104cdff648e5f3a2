//! The ring of buckets against a plain list of events.

use proptest::prelude::*;

use super::*;

/// What a rate window stands for: every event with its second, added up when asked.
#[derive(Debug, Default)]
struct EventList {
    events: Vec<(i64, i64, i64)>,
    latest_s: Option<i64>,
}

impl EventList {
    fn see(&mut self, now_s: i64) -> i64 {
        let latest_s = self.latest_s.map_or(now_s, |latest_s| latest_s.max(now_s));
        self.latest_s = Some(latest_s);
        latest_s
    }

    fn add(&mut self, second: i64, now_s: i64, requests: i64, tokens: i64) {
        let latest_s = self.see(now_s.max(second));
        if second >= latest_s - 60 {
            self.events.push((second, requests, tokens));
        }
    }

    fn total(&self, now_s: i64) -> (i64, i64) {
        let now_s = self.latest_s.map_or(now_s, |latest_s| latest_s.max(now_s));
        let live = self.events.iter().filter(|(second, ..)| *second >= now_s - 60);
        live.fold((0, 0), |(requests, tokens), event| (requests + event.1, tokens + event.2))
    }

    fn tokens_retry_after_ms(&self, now_ms: i64, limit: i64, needed: i64) -> i64 {
        let now_s = now_ms.div_euclid(1000);
        let last_s = self.latest_s.unwrap_or(now_s).max(now_s) + 61;
        let fits = |second: &i64| self.total(*second).1 + needed <= limit;
        let first = (self.latest_s.unwrap_or(now_s).max(now_s)..=last_s).find(fits);
        first.map_or(60_000, |second| (second * 1000 - now_ms).max(0))
    }
}

#[test]
fn a_unit_is_free_again_after_sixty_whole_seconds() {
    let mut window = RateWindow::default();
    window.add(100, 100, 1, 10);
    assert_eq!((window.total(100), window.total(160), window.total(161)), ((1, 10), (1, 10), (0, 0)));
    // A clock that goes back shows what the latest second showed.
    window.add(200, 200, 0, 5);
    assert_eq!(window.total(100), (0, 5));
}

#[test]
fn a_refund_goes_to_the_second_of_admission_or_nowhere() {
    let mut window = RateWindow::default();
    window.add(100, 100, 1, 10);
    window.add(130, 130, 1, 10);
    window.add(100, 140, 0, -4);
    assert_eq!(window.total(140), (2, 16));
    assert_eq!(window.total(161), (1, 10));
    window.add(100, 161, -1, -6);
    assert_eq!(window.total(161), (1, 10));
}

#[test]
fn o40_the_wait_is_until_enough_whole_seconds_have_dropped() {
    let mut window = RateWindow::default();
    window.add(100, 100, 1, 50);
    window.add(110, 110, 1, 50);
    // At 156.8 s the bucket of second 100 has 4.2 s to live.
    let wait_ms = window.tokens_retry_after_ms(156_800, 100, 1);
    assert_eq!((wait_ms, crate::retry::retry_after_header_s(wait_ms)), (4_200, 5));
    assert_eq!(window.tokens_retry_after_ms(156_800, 100, 51), 14_200);
    assert_eq!(window.requests_retry_after_ms(156_800, 3, 1), 0);
    assert_eq!(window.requests_retry_after_ms(156_800, 2, 1), 4_200);
    assert_eq!(window.requests_retry_after_ms(156_800, 2, 3), 60_000);
}

#[test]
fn a_quiet_window_costs_nothing_but_itself() {
    let mut window = RateWindow::default();
    assert_eq!((size_of::<RateWindow>(), window.0.buckets.capacity()), (56, 0));
    // What comes to nothing, or is over, is not kept.
    window.add(100, 100, 1, 10);
    window.add(101, 101, 1, 10);
    window.add(100, 101, -1, -10);
    assert_eq!(window.buckets(), (101, vec![(101, [1, 10])]));
    window.add(500, 500, 0, 0);
    assert_eq!((window.total(500), window.0.buckets.capacity()), ((0, 0), 0));
}

#[derive(Debug, Clone)]
enum Step {
    /// Time passes (or goes back), and something of this many tokens is added this many seconds ago.
    Add {
        passed_s: i64,
        ago_s: i64,
        requests: i64,
        tokens: i64,
    },
    Ask {
        passed_s: i64,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let passed = || prop_oneof![4 => 0..3i64, 2 => 0..30i64, 1 => 55..65i64, 1 => 0..500i64, 1 => -20..0i64];
    let ago = prop_oneof![3 => Just(0i64), 2 => 0..60i64, 1 => 58..64i64, 1 => -3..0i64];
    let add = (passed(), ago, -2..3i64, -50..100i64).prop_map(|(passed_s, ago_s, requests, tokens)| Step::Add {
        passed_s,
        ago_s,
        requests,
        tokens,
    });
    let ask = passed().prop_map(|passed_s| Step::Ask { passed_s });
    proptest::collection::vec(prop_oneof![add, ask], 1..80)
}

fn at_rest(window: &RateWindow) -> RateWindow {
    serde_json::from_str(&serde_json::to_string(window).unwrap()).unwrap()
}

proptest! {
    #[test]
    fn the_ring_is_the_list(steps in steps(), start_s in prop_oneof![Just(0i64), -100..100i64, Just(1_790_000_000i64)]) {
        let (mut ring, mut list) = (RateWindow::default(), EventList::default());
        let mut now_s = start_s;
        prop_assert_eq!(&at_rest(&ring), &ring);
        for step in steps {
            match step {
                Step::Add { passed_s, ago_s, requests, tokens } => {
                    now_s += passed_s;
                    ring.add(now_s - ago_s, now_s, requests, tokens);
                    list.add(now_s - ago_s, now_s, requests, tokens);
                }
                Step::Ask { passed_s } => now_s += passed_s,
            }
            prop_assert_eq!(&at_rest(&ring), &ring);
            prop_assert_eq!(ring.total(now_s), list.total(now_s));
            for (limit, needed) in [(100, 1), (100, 60), (0, 1), (-40, 1), (300, 300)] {
                let now_ms = now_s * 1000 + 250;
                let expected_ms = list.tokens_retry_after_ms(now_ms, limit, needed);
                prop_assert_eq!(ring.tokens_retry_after_ms(now_ms, limit, needed), expected_ms);
            }
        }
    }

    /// Admitting whenever the limit permits: the tokens admitted in any real interval of 60 seconds keep within it.
    #[test]
    fn no_sixty_seconds_admit_more_than_the_limit(
        calls in proptest::collection::vec((prop_oneof![0..400i64, 0..20_000i64], 1..40i64), 1..200),
    ) {
        const LIMIT: i64 = 100;
        let mut window = RateWindow::default();
        let mut admitted: Vec<(i64, i64)> = Vec::new();
        let mut now_ms = 1_790_000_000_123;
        for (passed_ms, tokens) in calls {
            now_ms += passed_ms;
            let now_s = now_ms / 1000;
            let wait_ms = window.tokens_retry_after_ms(now_ms, LIMIT, tokens);
            let admits = window.total(now_s).1 + tokens <= LIMIT;
            prop_assert_eq!(admits, wait_ms == 0);
            if admits {
                window.add(now_s, now_s, 1, tokens);
                admitted.push((now_ms, tokens));
            } else {
                // The wait is enough, and a millisecond less is not.
                let later_s = |ms: i64| (now_ms + ms) / 1000;
                prop_assert!(window.total(later_s(wait_ms)).1 + tokens <= LIMIT);
                prop_assert!(window.total(later_s(wait_ms - 1)).1 + tokens > LIMIT);
            }
        }
        for (start_ms, _) in &admitted {
            let within: i64 =
                admitted.iter().filter(|(at, _)| (0..60_000).contains(&(at - start_ms))).map(|(_, tokens)| tokens).sum();
            prop_assert!(within <= LIMIT, "{within} within a minute of {start_ms}");
        }
    }
}
