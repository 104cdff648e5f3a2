//! Sums over the last seconds, in one-second buckets: integers, no averages, no floating point.
//!
//! A rate window has 61 buckets, the current second and the 60 before it. Any real interval of 60 seconds touches at
//! most 61 of them, so what was admitted within it is never more than the limit; the price is that a unit is free again
//! up to a second late. Time is the store's clock in seconds. It never goes back: an earlier second counts as the
//! latest one seen.

mod image;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use image::RollingImage;

/// Buckets of a rate per minute: the current second and the 60 before it.
const BUCKETS: usize = 61;

/// Two running sums over the last `SECONDS` seconds. Adding and advancing are O(1), amortised over the seconds.
///
/// The sums saturate; callers bound every amount, so that 61 buckets cannot reach the ends of an `i64`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "RollingImage", into = "RollingImage")]
pub(crate) struct Rolling<const SECONDS: usize> {
    /// The seconds that hold something, oldest first: most scopes are quiet, and sixty-one empty buckets for each of a
    /// hundred thousand tenants' scopes would be a gigabyte.
    buckets: VecDeque<(i64, [i64; 2])>,
    sum: [i64; 2],
    /// The latest second seen; before the first one, the earliest there is.
    latest_s: i64,
}

impl<const SECONDS: usize> Default for Rolling<SECONDS> {
    fn default() -> Self {
        Self { buckets: VecDeque::new(), sum: [0; 2], latest_s: i64::MIN }
    }
}

impl<const SECONDS: usize> Rolling<SECONDS> {
    /// Adds `amounts` to the bucket of `second`, which may be past; a bucket that was dropped takes nothing.
    pub(crate) fn add(&mut self, second: i64, now_s: i64, amounts: [i64; 2]) {
        self.advance(now_s.max(second));
        if second > self.dropped_until(self.latest_s) {
            self.add_to_bucket(second, amounts);
            self.sum = plus(self.sum, amounts);
        }
    }

    /// Nearly always the last one. A bucket that comes to nothing goes: equal windows are equal.
    fn add_to_bucket(&mut self, second: i64, amounts: [i64; 2]) {
        match self.buckets.back_mut() {
            Some((last, bucket)) if *last == second => {
                *bucket = plus(*bucket, amounts);
                if *bucket == [0; 2] {
                    self.buckets.pop_back();
                }
                return;
            }
            Some((last, _)) if *last > second => {}
            Some(_) | None => {
                if amounts != [0; 2] {
                    self.buckets.push_back((second, amounts));
                }
                return;
            }
        }
        match self.buckets.binary_search_by_key(&second, |(of, _)| *of) {
            Ok(at) => {
                self.buckets[at].1 = plus(self.buckets[at].1, amounts);
                if self.buckets[at].1 == [0; 2] {
                    self.buckets.remove(at);
                }
            }
            Err(at) if amounts != [0; 2] => self.buckets.insert(at, (second, amounts)),
            Err(_) => {}
        }
    }

    /// The sums at `now_s`.
    pub(crate) fn total(&self, now_s: i64) -> [i64; 2] {
        self.expiring(now_s).fold(self.sum, |sum, (_, bucket)| minus(sum, bucket))
    }

    /// The earliest second, not before `now_s`, at which `fits` the sums if nothing else is added; `None` if never.
    pub(crate) fn first_second(&self, now_s: i64, fits: impl Fn([i64; 2]) -> bool) -> Option<i64> {
        let now_s = now_s.max(self.latest_s);
        let mut sum = self.total(now_s);
        if fits(sum) {
            return Some(now_s);
        }
        for (second, bucket) in self.expiring(self.latest_s.saturating_add(Self::length())) {
            let gone_at_s = second.saturating_add(Self::length());
            if gone_at_s <= now_s {
                continue;
            }
            sum = minus(sum, bucket);
            if fits(sum) {
                return Some(gone_at_s);
            }
        }
        None
    }

    pub(crate) fn clear(&mut self) {
        *self = Self { latest_s: self.latest_s, ..Self::default() };
    }

    fn advance(&mut self, now_s: i64) {
        if now_s <= self.latest_s {
            return;
        }
        if self.dropped_until(now_s) >= self.latest_s {
            self.clear();
        } else {
            let dropped_until = self.dropped_until(now_s);
            while let Some((_, bucket)) = self.buckets.pop_front_if(|(second, _)| *second <= dropped_until) {
                self.sum = minus(self.sum, bucket);
            }
        }
        self.latest_s = now_s;
    }

    /// The buckets that are counted now and gone at `now_s`, oldest first, each with its second.
    fn expiring(&self, now_s: i64) -> impl Iterator<Item = (i64, [i64; 2])> {
        let last = self.dropped_until(now_s).min(self.latest_s);
        self.buckets.iter().copied().take_while(move |(second, _)| *second <= last)
    }

    fn dropped_until(&self, now_s: i64) -> i64 {
        now_s.saturating_sub(Self::length())
    }

    const fn length() -> i64 {
        SECONDS as i64
    }
}

fn plus(a: [i64; 2], b: [i64; 2]) -> [i64; 2] {
    [a[0].saturating_add(b[0]), a[1].saturating_add(b[1])]
}

fn minus(a: [i64; 2], b: [i64; 2]) -> [i64; 2] {
    [a[0].saturating_sub(b[0]), a[1].saturating_sub(b[1])]
}

/// Requests and tokens of the last minute: what was charged and what is held, in the second of admission.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(from = "RateRecord", into = "RateRecord")]
pub struct RateWindow(Rolling<BUCKETS>);

const REQUESTS: usize = 0;
const TOKENS: usize = 1;

impl RateWindow {
    /// Adds signed `requests` and `tokens` to the second of an admission. Once that second is more than 60 before
    /// `now_s`, its bucket is gone and there is nothing to refund or to charge.
    pub fn add(&mut self, admitted_s: i64, now_s: i64, requests: i64, tokens: i64) {
        self.0.add(admitted_s, now_s, [requests, tokens]);
    }

    /// Requests and tokens in the second `now_s` and the 60 before it.
    #[must_use]
    pub fn total(&self, now_s: i64) -> (i64, i64) {
        let [requests, tokens] = self.0.total(now_s);
        (requests, tokens)
    }

    /// How long until `needed` more requests keep within `limit`, if nothing else comes: when enough whole buckets
    /// will have dropped. Zero when they do now; a minute when they never will.
    #[must_use]
    pub fn requests_retry_after_ms(&self, now_ms: i64, limit: i64, needed: i64) -> i64 {
        self.retry_after_ms(REQUESTS, now_ms, limit, needed)
    }

    /// As [`Self::requests_retry_after_ms`], of tokens.
    #[must_use]
    pub fn tokens_retry_after_ms(&self, now_ms: i64, limit: i64, needed: i64) -> i64 {
        self.retry_after_ms(TOKENS, now_ms, limit, needed)
    }

    /// A window whose latest second and buckets another store counted: second, requests and tokens of each.
    #[must_use]
    pub fn of_buckets(latest_s: i64, buckets: Vec<(i64, [i64; 2])>) -> Self {
        RateRecord { latest_s, buckets }.into()
    }

    /// The latest second seen, and the buckets that are not empty, oldest first.
    #[must_use]
    pub fn buckets(&self) -> (i64, Vec<(i64, [i64; 2])>) {
        let RateRecord { latest_s, buckets } = self.clone().into();
        (latest_s, buckets)
    }

    fn retry_after_ms(&self, unit: usize, now_ms: i64, limit: i64, needed: i64) -> i64 {
        let now_s = now_ms.div_euclid(1000);
        match self.0.first_second(now_s, |sum| sum[unit].saturating_add(needed) <= limit) {
            Some(second) => second.saturating_mul(1000).saturating_sub(now_ms).max(0),
            None => 60_000,
        }
    }
}

/// A rate window at rest, as checkpoints hold it: the buckets that are not empty.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RateRecord {
    latest_s: i64,
    buckets: Vec<(i64, [i64; 2])>,
}

impl From<RateWindow> for RateRecord {
    fn from(RateWindow(rolling): RateWindow) -> Self {
        Self { latest_s: rolling.latest_s, buckets: rolling.buckets.into() }
    }
}

impl From<RateRecord> for RateWindow {
    fn from(record: RateRecord) -> Self {
        let mut rolling = Rolling::default();
        rolling.advance(record.latest_s);
        for (second, bucket) in record.buckets {
            rolling.add(second, record.latest_s, bucket);
        }
        Self(rolling)
    }
}
