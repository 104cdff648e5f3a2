//! What a provider says it did: disjoint meters (I7).
//!
//! Providers report inclusive totals that overlap in different ways. Each dialect in `weir-wire` turns its report into
//! these meters, which never overlap, so that a price is a plain sum of products.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

macro_rules! meters {
    ($($(#[$doc:meta])* $variant:ident = $code:literal,)*) => {
        /// One thing a provider counts and bills. The codes are stable: they are on the log and in price books.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Meter { $($(#[$doc])* $variant,)* }

        impl Meter {
            /// Every meter, in the order of the codes in documentation.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            #[must_use]
            pub const fn code(self) -> &'static str {
                match self { $(Self::$variant => $code,)* }
            }
        }

        impl FromStr for Meter {
            type Err = UsageError;
            fn from_str(code: &str) -> Result<Self, UsageError> {
                match code {
                    $($code => Ok(Self::$variant),)*
                    other => Err(UsageError::UnknownMeter(other.to_owned())),
                }
            }
        }
    };
}

meters! {
    /// Prompt tokens at the plain rate.
    InUncached = "in.uncached",
    /// Prompt tokens read from the provider's cache.
    InCacheRead = "in.cache_read",
    /// Prompt tokens written to a cache that lives five minutes.
    InCacheWrite5m = "in.cache_write.5m",
    InCacheWrite30m = "in.cache_write.30m",
    InCacheWrite1h = "in.cache_write.1h",
    InCacheWrite12h = "in.cache_write.12h",
    /// Cache writes whose lifetime the provider did not say; priced at the dearest write rate.
    InCacheWriteUnknown = "in.cache_write.unk",
    InAudio = "in.audio",
    InImage = "in.image",
    /// Output that the client can see.
    OutVisible = "out.visible",
    OutReasoning = "out.reasoning",
    OutAudio = "out.audio",
    OutImage = "out.image",
    /// Calls of a provider-side tool; not tokens.
    ToolWebSearch = "tool.web_search",
    ToolWebFetch = "tool.web_fetch",
    ToolCodeSession = "tool.code_session",
    ToolSearchUnit = "tool.search_unit",
    MediaImage = "media.image",
    MediaSecond = "media.second",
}

impl Meter {
    /// Whether the meter counts tokens, and so counts against token limits (`in.*` and `out.*`).
    #[must_use]
    pub const fn is_tokens(self) -> bool {
        self.is_input() || self.is_output()
    }

    #[must_use]
    pub const fn is_input(self) -> bool {
        match self {
            Self::InUncached
            | Self::InCacheRead
            | Self::InCacheWrite5m
            | Self::InCacheWrite30m
            | Self::InCacheWrite1h
            | Self::InCacheWrite12h
            | Self::InCacheWriteUnknown
            | Self::InAudio
            | Self::InImage => true,
            Self::OutVisible
            | Self::OutReasoning
            | Self::OutAudio
            | Self::OutImage
            | Self::ToolWebSearch
            | Self::ToolWebFetch
            | Self::ToolCodeSession
            | Self::ToolSearchUnit
            | Self::MediaImage
            | Self::MediaSecond => false,
        }
    }

    #[must_use]
    pub const fn is_output(self) -> bool {
        match self {
            Self::OutVisible | Self::OutReasoning | Self::OutAudio | Self::OutImage => true,
            Self::InUncached
            | Self::InCacheRead
            | Self::InCacheWrite5m
            | Self::InCacheWrite30m
            | Self::InCacheWrite1h
            | Self::InCacheWrite12h
            | Self::InCacheWriteUnknown
            | Self::InAudio
            | Self::InImage
            | Self::ToolWebSearch
            | Self::ToolWebFetch
            | Self::ToolCodeSession
            | Self::ToolSearchUnit
            | Self::MediaImage
            | Self::MediaSecond => false,
        }
    }

    #[must_use]
    pub const fn is_cache_write(self) -> bool {
        matches!(
            self,
            Self::InCacheWrite5m
                | Self::InCacheWrite30m
                | Self::InCacheWrite1h
                | Self::InCacheWrite12h
                | Self::InCacheWriteUnknown
        )
    }
}

impl fmt::Display for Meter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code())
    }
}

impl Serialize for Meter {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.code())
    }
}

impl<'de> Deserialize<'de> for Meter {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let code = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        code.parse().map_err(serde::de::Error::custom)
    }
}

/// Why figures are not a usage.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum UsageError {
    #[error("unknown meter `{0}`")]
    UnknownMeter(String),
    #[error("meter `{0}` is negative")]
    Negative(Meter),
    #[error("meter `{0}` is larger than {MAX_QUANTITY}")]
    TooLarge(Meter),
}

/// The most of one meter that one attempt may report: above any model's context by orders of magnitude, and small
/// enough that a price times a quantity fits `i128` and a sum of charges fits `i64`.
pub const MAX_QUANTITY: i64 = 1_000_000_000_000;

/// Quantities by meter, sorted by meter, without zeros. Absent means zero; an unknown usage is no `Usage` at all (I9).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize)]
#[serde(transparent)]
pub struct Usage(Vec<MeterReading>);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MeterReading {
    pub meter: Meter,
    pub quantity: i64,
}

impl Usage {
    /// Adds up `readings`; refuses negative and absurd quantities.
    pub fn new(readings: impl IntoIterator<Item = (Meter, i64)>) -> Result<Self, UsageError> {
        let mut usage = Self::default();
        for (meter, quantity) in readings {
            usage.add(meter, quantity)?;
        }
        Ok(usage)
    }

    fn add(&mut self, meter: Meter, quantity: i64) -> Result<(), UsageError> {
        if quantity < 0 {
            return Err(UsageError::Negative(meter));
        }
        if quantity == 0 {
            return Ok(());
        }
        let total = self.get(meter).saturating_add(quantity);
        if total > MAX_QUANTITY {
            return Err(UsageError::TooLarge(meter));
        }
        match self.0.binary_search_by_key(&meter, |reading| reading.meter) {
            Ok(at) => self.0[at].quantity = total,
            Err(at) => self.0.insert(at, MeterReading { meter, quantity }),
        }
        Ok(())
    }

    #[must_use]
    pub fn get(&self, meter: Meter) -> i64 {
        self.0.binary_search_by_key(&meter, |reading| reading.meter).map_or(0, |at| self.0[at].quantity)
    }

    #[must_use]
    pub fn readings(&self) -> &[MeterReading] {
        &self.0
    }

    /// Input and output tokens, all kinds: what token limits count.
    #[must_use]
    pub fn tokens(&self) -> i64 {
        self.sum(Meter::is_tokens)
    }

    #[must_use]
    pub fn input_tokens(&self) -> i64 {
        self.sum(Meter::is_input)
    }

    #[must_use]
    pub fn output_tokens(&self) -> i64 {
        self.sum(Meter::is_output)
    }

    fn sum(&self, counts: impl Fn(Meter) -> bool) -> i64 {
        self.0.iter().filter(|reading| counts(reading.meter)).fold(0, |sum, r| sum.saturating_add(r.quantity))
    }
}

impl<'de> Deserialize<'de> for Usage {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let readings = Vec::<MeterReading>::deserialize(deserializer)?;
        Self::new(readings.into_iter().map(|r| (r.meter, r.quantity))).map_err(serde::de::Error::custom)
    }
}

/// Where a usage came from, weakest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UsageSource {
    /// The tenant's policy after the ceiling: flagged for ever.
    Estimate,
    /// A share of a bucket that several unknown attempts divide: flagged for ever.
    Split,
    /// The exact rest of a bucket with one unknown attempt.
    BucketResidual,
    /// The provider's own answer to the request.
    Response,
    /// The provider's report for this very attempt.
    ProviderReport,
    /// A person, with a name and a reason.
    Person,
}

impl UsageSource {
    /// A later usage of a higher rank corrects an earlier one; an equal rank with other figures is a discrepancy.
    #[must_use]
    pub const fn rank(self) -> u8 {
        match self {
            Self::Estimate => 0,
            Self::Split => 1,
            Self::BucketResidual => 2,
            Self::Response | Self::ProviderReport => 3,
            Self::Person => 4,
        }
    }

    /// Whether lines from this source carry a flag for ever.
    #[must_use]
    pub const fn is_flagged(self) -> bool {
        match self {
            Self::Estimate | Self::Split => true,
            Self::BucketResidual | Self::Response | Self::ProviderReport | Self::Person => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_parses_back_and_only_in_and_out_are_tokens() {
        for meter in Meter::ALL {
            assert_eq!(meter.code().parse::<Meter>(), Ok(*meter));
            let by_code = meter.code().starts_with("in.") || meter.code().starts_with("out.");
            assert_eq!(meter.is_tokens(), by_code, "{meter}");
            assert_eq!(meter.is_cache_write(), meter.code().starts_with("in.cache_write"), "{meter}");
        }
    }

    #[test]
    fn readings_are_summed_sorted_and_without_zeros() {
        let usage =
            Usage::new([(Meter::OutVisible, 5), (Meter::InUncached, 3), (Meter::OutVisible, 2), (Meter::InAudio, 0)])
                .unwrap();
        assert_eq!(usage.readings().len(), 2);
        assert_eq!((usage.input_tokens(), usage.output_tokens(), usage.tokens()), (3, 7, 10));
    }

    #[test]
    fn negative_and_absurd_quantities_are_refused() {
        assert_eq!(Usage::new([(Meter::InUncached, -1)]), Err(UsageError::Negative(Meter::InUncached)));
        assert_eq!(Usage::new([(Meter::InUncached, i64::MAX)]), Err(UsageError::TooLarge(Meter::InUncached)));
    }
}
