use super::*;
use crate::reservation::{Command, Decision};
use crate::testing::*;

const REQUESTS: Measure = Measure::PerMinute { unit: Unit::Requests };
const TOKENS: Measure = Measure::PerMinute { unit: Unit::Tokens };

fn limit(subject: Subject, measure: Measure, max: i64) -> Limit {
    Limit { scope: Scope { subject, model: None }, measure, max }
}

fn key() -> Subject {
    Subject::Key("vk-1".into())
}

fn reserve(book: &mut Book, n: u64, limits: &[Limit], tokens: i64, now_ms: i64) -> Reply {
    let hold = amounts(1, tokens, "0.01");
    book.execute(id(n), &Request { hold, limits: limits.to_vec(), at_ms: now_ms, ..request(n) }.command(), now_ms)
}

#[test]
fn an_admission_and_a_denial_tell_how_the_tightest_rates_stand() {
    let mut book = Book::new(BookOptions::default());
    let limits = [
        limit(Subject::Tenant, REQUESTS, 100),
        limit(key(), REQUESTS, 3),
        limit(key(), TOKENS, 1_000),
        limit(Subject::Tenant, TOKENS, 900),
        daily_budget("1"),
    ];
    let standing = |max, taken, clears_in_ms| Some(RateStanding { max, taken, clears_in_ms });
    let first = reserve(&mut book, 1, &limits, 400, NOON_MS + 250);
    assert_eq!(first.rates.requests, standing(3, 1, 60_750), "whole seconds are counted, 61 of them");
    assert_eq!(first.rates.tokens, standing(900, 400, 60_750), "least room, not smallest share");
    // Ten seconds later one does not fit: what was taken before it stands, and clears earlier.
    let denied = reserve(&mut book, 2, &limits, 501, NOON_MS + 10_000);
    assert!(matches!(denied.decision, Decision::Denied(_)));
    assert_eq!((denied.rates.requests, denied.rates.tokens), (standing(3, 1, 51_000), standing(900, 400, 51_000)));
    // The same command again tells the same.
    let again = reserve(&mut book, 1, &limits, 400, NOON_MS + 250);
    assert!(matches!(again.decision, Decision::NoChange(_)));
    assert_eq!(again.rates, first.rates);
}

#[test]
fn nothing_is_told_without_a_rate_or_beside_a_reserve() {
    let mut book = Book::new(BookOptions::default());
    let limits = [daily_budget("1"), limit(key(), Measure::Concurrent, 4)];
    assert_eq!(reserve(&mut book, 1, &limits, 10, NOON_MS).rates, RateStandings::default());
    let limits = [limit(key(), REQUESTS, 4)];
    reserve(&mut book, 2, &limits, 10, NOON_MS);
    assert_eq!(book.execute(id(2), &Command::Close, NOON_MS).rates, RateStandings::default());
    book.revoke("vk-1".into());
    assert_eq!(reserve(&mut book, 3, &limits, 10, NOON_MS).rates, RateStandings::default());
}

#[test]
fn a_rate_that_nobody_used_is_whole_and_one_overdrawn_has_no_room() {
    let mut book = Book::new(BookOptions::default());
    let other = limit(Subject::Key("vk-2".into()), TOKENS, 70);
    let rates = reserve(&mut book, 1, &[other, limit(key(), REQUESTS, 9)], 10, NOON_MS).rates;
    assert_eq!(rates.tokens, Some(RateStanding { max: 70, taken: 0, clears_in_ms: 0 }));
    assert_eq!(rates.requests.map(|standing| standing.remaining()), Some(8));
    assert_eq!(RateStanding { max: 5, taken: 9, clears_in_ms: 1 }.remaining(), 0);
}
