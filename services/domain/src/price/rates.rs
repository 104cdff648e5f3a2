//! Rates, and which rate stands in where none is given.
//!
//! Fallbacks are resolved once, when a price is built, so that pricing a request is an array look-up per meter.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::PriceError;
use crate::money::{MoneyError, NanoUsd};
use crate::usage::Meter;

/// How many units a rate is for.
pub(super) const UNITS_PER_RATE: i128 = 1_000_000;

/// The largest rate: $1,000 a unit. Dearer than anything sold, and small enough that the products of every meter at
/// `MAX_QUANTITY` add up within `i128`.
const MAX_NANOS_PER_MILLION: i64 = 1_000_000_000_000_000_000;

/// A price in integer nano-USD per million units, never negative. Written as decimal dollars per million ("0.15").
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rate(i64);

impl Rate {
    pub const ZERO: Self = Self(0);

    /// A rate from nano-USD per million units; refuses what is negative or above $1,000 a unit.
    pub fn from_nanos_per_million(nanos: i64) -> Result<Self, MoneyError> {
        match nanos {
            ..0 => Err(MoneyError::NotDecimal(NanoUsd::from_nanos(nanos).to_string())),
            0..=MAX_NANOS_PER_MILLION => Ok(Self(nanos)),
            _ => Err(MoneyError::TooLarge(NanoUsd::from_nanos(nanos).to_string())),
        }
    }

    /// A rate from the price of a single unit.
    pub fn from_each(unit_price: NanoUsd) -> Result<Self, MoneyError> {
        let per_million = unit_price.nanos().checked_mul(1_000_000);
        Self::from_nanos_per_million(per_million.ok_or_else(|| MoneyError::TooLarge(unit_price.to_string()))?)
    }

    #[must_use]
    pub const fn nanos_per_million(self) -> i64 {
        self.0
    }
}

impl FromStr for Rate {
    type Err = MoneyError;
    fn from_str(text: &str) -> Result<Self, MoneyError> {
        Self::from_nanos_per_million(text.parse::<NanoUsd>()?.nanos())
    }
}

/// Plain decimal dollars per million units.
impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        NanoUsd::from_nanos(self.0).fmt(f)
    }
}

impl Serialize for Rate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        NanoUsd::from_nanos(self.0).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let nanos = NanoUsd::deserialize(deserializer)?.nanos();
        Self::from_nanos_per_million(nanos).map_err(serde::de::Error::custom)
    }
}

/// The rate of every meter after fallbacks; `None` where the price does not cover the meter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rates([Option<Rate>; Meter::ALL.len()]);

impl Rates {
    pub(super) fn resolve(given: &BTreeMap<Meter, Rate>) -> Self {
        let mut rates = [None; Meter::ALL.len()];
        for meter in Meter::ALL {
            rates[*meter as usize] = resolved(*meter, given);
        }
        Self(rates)
    }

    pub(super) const fn get(&self, meter: Meter) -> Option<Rate> {
        self.0[meter as usize]
    }

    pub(super) fn require(&self, meter: Meter) -> Result<Rate, PriceError> {
        self.get(meter).ok_or(PriceError::NoRate { meter })
    }
}

const WRITES_OF_KNOWN_LIFETIME: [Meter; 4] =
    [Meter::InCacheWrite5m, Meter::InCacheWrite30m, Meter::InCacheWrite1h, Meter::InCacheWrite12h];

fn resolved(meter: Meter, given: &BTreeMap<Meter, Rate>) -> Option<Rate> {
    let own = |meter: Meter| given.get(&meter).copied();
    let fallback = || match meter {
        Meter::InCacheRead => own(Meter::InUncached),
        // A lifetime without a rate cannot be cheaper than the dearest it may be: a lower guess would undercharge.
        Meter::InCacheWrite5m | Meter::InCacheWrite30m | Meter::InCacheWrite1h | Meter::InCacheWrite12h => {
            WRITES_OF_KNOWN_LIFETIME.into_iter().map(own).fold(own(Meter::InUncached), Option::max)
        }
        Meter::InCacheWriteUnknown => {
            WRITES_OF_KNOWN_LIFETIME.into_iter().map(|write| resolved(write, given)).fold(None, Option::max)
        }
        Meter::OutReasoning => own(Meter::OutVisible),
        Meter::InUncached
        | Meter::InAudio
        | Meter::InImage
        | Meter::OutVisible
        | Meter::OutAudio
        | Meter::OutImage
        | Meter::ToolWebSearch
        | Meter::ToolWebFetch
        | Meter::ToolCodeSession
        | Meter::ToolSearchUnit
        | Meter::MediaImage
        | Meter::MediaSecond => None,
    };
    own(meter).or_else(fallback)
}
