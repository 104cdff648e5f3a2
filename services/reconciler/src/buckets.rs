//! What a bucket of a provider's usage report proves about the attempts in its window that nobody knows the usage of.
//!
//! A bucket counts requests and meters of one key, model and tier. Take away what is known, and what remains belongs to
//! the unknown ones: exactly, when there is one; shared out and flagged for ever, when there are several; the sum is
//! always the provider's. Where the counts do not fit, nothing is concluded (I9): the caller widens the window, because
//! a provider may book an attempt when it ends.

use weir_domain::attempt::AttemptNumber;
use weir_domain::ids::ReservationId;
use weir_domain::usage::{Meter, Usage};

/// What the provider counted in the window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bucket {
    /// `None`: it counts no requests, so that nothing can be concluded.
    pub requests: Option<u64>,
    pub meters: Usage,
}

/// An attempt in the window that may have run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnknownAttempt {
    pub reservation: ReservationId,
    pub number: AttemptNumber,
    /// Its share of a split: the tokens of its worst case.
    pub weight: i64,
}

/// The share of one attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    pub reservation: ReservationId,
    pub number: AttemptNumber,
    pub usage: Usage,
}

/// What the bucket proves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BucketVerdict {
    /// The provider counted what is known and no more: none of the unknown ones ran.
    NoneRan,
    /// The one unknown attempt used exactly what remains.
    Exact(Share),
    /// All ran; each gets a part of what remains, and the parts sum to it.
    Split(Vec<Share>),
    /// Nothing is proved.
    Inconclusive(Inconclusive),
}

/// Why nothing is proved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inconclusive {
    NoRequestCount,
    /// Neither what is known nor all together: some ran, and nobody can say which.
    CountBetween {
        counted: u64,
        known: u64,
        unknown: u64,
    },
    /// The provider counted less of this meter than is known, or more although it counted no other request.
    MeterDiffers(Meter),
}

/// Judges one bucket by the usage of the `known` attempts in its window and the `unknown` ones.
#[must_use]
pub fn judge(bucket: &Bucket, known: &[Usage], unknown: &[UnknownAttempt]) -> BucketVerdict {
    let Some(counted) = bucket.requests else { return BucketVerdict::Inconclusive(Inconclusive::NoRequestCount) };
    let (known_count, unknown_count) = (known.len() as u64, unknown.len() as u64);
    let rest = match rest_of(&bucket.meters, known) {
        Ok(rest) => rest,
        Err(meter) => return BucketVerdict::Inconclusive(Inconclusive::MeterDiffers(meter)),
    };
    if counted == known_count {
        return match rest.first() {
            None => BucketVerdict::NoneRan,
            Some((meter, _)) => BucketVerdict::Inconclusive(Inconclusive::MeterDiffers(*meter)),
        };
    }
    if counted != known_count.saturating_add(unknown_count) {
        let between = Inconclusive::CountBetween { counted, known: known_count, unknown: unknown_count };
        return BucketVerdict::Inconclusive(between);
    }
    let mut shares = split(&rest, unknown);
    match (shares.len(), shares.pop()) {
        (1, Some(only)) => BucketVerdict::Exact(only),
        (_, last) => {
            shares.extend(last);
            BucketVerdict::Split(shares)
        }
    }
}

/// Provider total minus known, meter by meter, without zeros.
fn rest_of(total: &Usage, known: &[Usage]) -> Result<Vec<(Meter, i64)>, Meter> {
    let mut rest = Vec::new();
    for meter in Meter::ALL.iter().copied() {
        let of_known = known.iter().fold(0i64, |sum, usage| sum.saturating_add(usage.get(meter)));
        match total.get(meter).checked_sub(of_known) {
            Some(0) => {}
            Some(left) if left > 0 => rest.push((meter, left)),
            Some(_) | None => return Err(meter),
        }
    }
    Ok(rest)
}

fn split(rest: &[(Meter, i64)], unknown: &[UnknownAttempt]) -> Vec<Share> {
    let weights: Vec<i64> = unknown.iter().map(|attempt| attempt.weight.max(0)).collect();
    let mut readings: Vec<Vec<(Meter, i64)>> = vec![Vec::new(); unknown.len()];
    for (meter, quantity) in rest {
        for (of, part) in readings.iter_mut().zip(parts(*quantity, &weights)) {
            of.push((*meter, part));
        }
    }
    let share = |(attempt, readings): (&UnknownAttempt, Vec<(Meter, i64)>)| Share {
        reservation: attempt.reservation,
        number: attempt.number,
        // A part of a quantity that was a valid usage is one.
        usage: Usage::new(readings).unwrap_or_default(),
    };
    unknown.iter().zip(readings).map(share).collect()
}

/// Splits `quantity` in proportion to `weights`; the parts sum to it exactly. What rounding down leaves goes, one by
/// one, to those who lost the most of it, the earlier first. Weights that are all zero count alike.
fn parts(quantity: i64, weights: &[i64]) -> Vec<i64> {
    let is_even = weights.iter().all(|weight| *weight == 0);
    let weights: Vec<i128> = weights.iter().map(|weight| if is_even { 1 } else { i128::from(*weight) }).collect();
    let all: i128 = weights.iter().sum();
    if all == 0 {
        return Vec::new();
    }
    let products: Vec<i128> = weights.iter().map(|weight| i128::from(quantity) * weight).collect();
    let mut parts: Vec<i64> = products.iter().map(|p| i64::try_from(p / all).unwrap_or(quantity)).collect();
    let left = quantity.saturating_sub(parts.iter().sum());
    let mut order: Vec<usize> = (0..parts.len()).collect();
    order.sort_by_key(|at| std::cmp::Reverse(products[*at] % all));
    for at in order.into_iter().take(usize::try_from(left).unwrap_or(0)) {
        parts[at] += 1;
    }
    parts
}

#[cfg(test)]
#[path = "buckets_tests.rs"]
mod tests;
