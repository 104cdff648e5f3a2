//! Money and the amounts that quota counts.
//!
//! One unit: the nano-dollar (10⁻⁹ USD) in an `i64`, so that ±9.2 billion dollars fit. There is no floating point: a
//! decimal string is parsed digit by digit, and a product is taken in `i128` and rounded up once (see `price`).

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Neg, Sub, SubAssign};
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

/// An amount of money in nano-USD (10⁻⁹ US dollars). Arithmetic saturates: an amount can never wrap into its opposite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct NanoUsd(i64);

impl NanoUsd {
    pub const ZERO: Self = Self(0);
    pub const MAX: Self = Self(i64::MAX);

    #[must_use]
    pub const fn from_nanos(nanos: i64) -> Self {
        Self(nanos)
    }

    #[must_use]
    pub const fn nanos(self) -> i64 {
        self.0
    }

    #[must_use]
    pub const fn is_negative(self) -> bool {
        self.0 < 0
    }
}

impl Add for NanoUsd {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl Sub for NanoUsd {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl Neg for NanoUsd {
    type Output = Self;
    fn neg(self) -> Self {
        Self(self.0.saturating_neg())
    }
}

impl AddAssign for NanoUsd {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl SubAssign for NanoUsd {
    fn sub_assign(&mut self, other: Self) {
        *self = *self - other;
    }
}

impl Sum for NanoUsd {
    fn sum<I: Iterator<Item = Self>>(amounts: I) -> Self {
        amounts.fold(Self::ZERO, Add::add)
    }
}

/// Plain decimal dollars: no exponent, no currency sign, no trailing zeros.
impl fmt::Display for NanoUsd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let magnitude = self.0.unsigned_abs();
        let (whole, fraction) = (magnitude / 1_000_000_000, magnitude % 1_000_000_000);
        let sign = if self.0 < 0 { "-" } else { "" };
        if fraction == 0 {
            return write!(f, "{sign}{whole}");
        }
        let digits = format!("{fraction:09}");
        write!(f, "{sign}{whole}.{}", digits.trim_end_matches('0'))
    }
}

/// Why a text is not an amount of money.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum MoneyError {
    #[error("`{0}` is not a decimal amount: write dollars as digits with an optional fraction, such as \"0.105\"")]
    NotDecimal(String),
    #[error("`{0}` has more than {1} decimal places")]
    TooPrecise(String, usize),
    #[error("`{0}` is larger than Weir can count")]
    TooLarge(String),
}

impl FromStr for NanoUsd {
    type Err = MoneyError;
    fn from_str(text: &str) -> Result<Self, MoneyError> {
        parse_decimal(text, 9).map(Self)
    }
}

/// Parses plain decimal `text` into an integer of units of 10^-`places`. Refuses exponents and signs other than a
/// leading minus; digits beyond `places` are accepted only when they are zeros, so nothing is rounded in silence.
pub fn parse_decimal(text: &str, places: usize) -> Result<i64, MoneyError> {
    let not_decimal = || MoneyError::NotDecimal(text.to_owned());
    let (negative, unsigned) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (whole, fraction) = unsigned.split_once('.').unwrap_or((unsigned, ""));
    let has_dot = unsigned.len() != whole.len();
    if whole.is_empty() || (has_dot && fraction.is_empty()) {
        return Err(not_decimal());
    }
    if !whole.bytes().chain(fraction.bytes()).all(|b| b.is_ascii_digit()) {
        return Err(not_decimal());
    }
    let (kept, beyond) = fraction.split_at(fraction.len().min(places));
    if beyond.bytes().any(|b| b != b'0') {
        return Err(MoneyError::TooPrecise(text.to_owned(), places));
    }
    let padding = std::iter::repeat_n(b'0', places - kept.len());
    let magnitude = whole
        .bytes()
        .chain(kept.bytes())
        .chain(padding)
        .try_fold(0i64, |sum, digit| sum.checked_mul(10)?.checked_add(i64::from(digit - b'0')))
        .ok_or_else(|| MoneyError::TooLarge(text.to_owned()))?;
    Ok(if negative { -magnitude } else { magnitude })
}

/// In JSON and TOML an amount is a decimal string of dollars, so that no reader passes it through a double.
impl Serialize for NanoUsd {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() { serializer.collect_str(self) } else { serializer.serialize_i64(self.0) }
    }
}

impl<'de> Deserialize<'de> for NanoUsd {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
        } else {
            i64::deserialize(deserializer).map(Self)
        }
    }
}

/// What quota counts, in three units: requests, tokens, nano-USD. A hold, a charge and a counter are all `Amounts`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Amounts {
    pub requests: i64,
    pub tokens: i64,
    pub usd: NanoUsd,
}

/// The worst case taken at admission or for one attempt.
pub type Hold = Amounts;
/// What is owed for known usage. Never clamped to the hold.
pub type Charge = Amounts;

impl Amounts {
    pub const ZERO: Self = Self { requests: 0, tokens: 0, usd: NanoUsd::ZERO };

    #[must_use]
    pub const fn new(requests: i64, tokens: i64, usd: NanoUsd) -> Self {
        Self { requests, tokens, usd }
    }

    #[must_use]
    pub fn is_zero(self) -> bool {
        self == Self::ZERO
    }

    /// The smaller of the two in each unit.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        Self {
            requests: self.requests.min(other.requests),
            tokens: self.tokens.min(other.tokens),
            usd: self.usd.min(other.usd),
        }
    }

    /// The larger of the two in each unit.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self {
            requests: self.requests.max(other.requests),
            tokens: self.tokens.max(other.tokens),
            usd: self.usd.max(other.usd),
        }
    }

    /// What of `self` is not covered by `other`, in each unit, never below zero.
    #[must_use]
    pub fn beyond(self, other: Self) -> Self {
        (self - other).max(Self::ZERO)
    }

    #[must_use]
    pub fn has_negative(self) -> bool {
        self.requests < 0 || self.tokens < 0 || self.usd.is_negative()
    }
}

impl Add for Amounts {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self {
            requests: self.requests.saturating_add(other.requests),
            tokens: self.tokens.saturating_add(other.tokens),
            usd: self.usd + other.usd,
        }
    }
}

impl Sub for Amounts {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self {
            requests: self.requests.saturating_sub(other.requests),
            tokens: self.tokens.saturating_sub(other.tokens),
            usd: self.usd - other.usd,
        }
    }
}

impl AddAssign for Amounts {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl SubAssign for Amounts {
    fn sub_assign(&mut self, other: Self) {
        *self = *self - other;
    }
}

impl Sum for Amounts {
    fn sum<I: Iterator<Item = Self>>(amounts: I) -> Self {
        amounts.fold(Self::ZERO, Add::add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_round_trip_without_floats() {
        let cases = [
            ("0.105", 105_000_000, "0.105"),
            ("0", 0, "0"),
            ("-0.03", -30_000_000, "-0.03"),
            ("0.000000335", 335, "0.000000335"),
            ("12.500000000000", 12_500_000_000, "12.5"),
        ];
        for (text, nanos, printed) in cases {
            let amount: NanoUsd = text.parse().unwrap();
            assert_eq!((amount.nanos(), amount.to_string().as_str()), (nanos, printed), "{text}");
        }
    }

    #[test]
    fn what_is_no_amount_is_refused_with_the_reason() {
        for text in ["", ".", "1.", ".5", "1e3", "+1", "1,5", "0x10", "NaN", " 1"] {
            assert!(matches!(text.parse::<NanoUsd>(), Err(MoneyError::NotDecimal(_))), "{text}");
        }
        assert!(matches!("0.0000000001".parse::<NanoUsd>(), Err(MoneyError::TooPrecise(_, 9))));
        assert!(matches!("9223372037".parse::<NanoUsd>(), Err(MoneyError::TooLarge(_))));
    }
}
