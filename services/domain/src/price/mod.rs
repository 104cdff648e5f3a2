//! What usage costs: one concrete model's terms, the charge for what was used, and the worst case that a hold takes.
//!
//! A [`Rate`] is an integer of nano-USD per million units, so a charge is a sum of integer products in `i128`, rounded
//! up **once**, here, per ledger line. Nothing is ever free by omission: a meter that no rate and no fallback covers is
//! [`PriceError::NoRate`], and a tier that the price does not know is [`PriceError::UnknownTier`] rather than the
//! default. A model is free only where its entry says `free = true`.
//!
//! # The written form
//!
//! Catalog files and the shipped price book hold `[[price]]` tables ([`PriceEntry`]); unknown keys are errors, money is
//! text. Several entries may share a name when their dates do not overlap; a request takes the one of its admission.
//!
//! ```toml
//! [[price]]
//! name = "long-context-model"              # what a deployment's `price` refers to
//! source = "https://example.com/pricing"   # where the figures come from; no part of the version
//! effective_from = "2026-10-01"            # a date (midnight UTC) or an RFC 3339 time; included; absent: since ever
//! effective_to = "2027-01-01T00:00:00Z"    # excluded; absent: until further notice
//! each = { "tool.web_search" = "0.01" }    # dollars per call, image or second; the same in every tier and band
//!
//! [[price.terms]]                          # the default tier, any length
//! rates = { "in.uncached" = "3", "in.cache_read" = "0.30", "in.cache_write.5m" = "3.75", "out.visible" = "15" }
//!
//! [[price.terms]]                          # past 200,000 input tokens every token of the request costs this
//! above_input_tokens = 200_000
//! from_threshold = false                   # true: already at 200,000 exactly (`>=` in place of `>`)
//! rates = { "in.uncached" = "6", "in.cache_read" = "0.60", "in.cache_write.5m" = "7.50", "out.visible" = "22.50" }
//!
//! [[price.terms]]
//! tier = "priority"                        # the tier that the provider says it served
//! rates = { "in.uncached" = "6", "out.visible" = "30" }
//!
//! [[price]]
//! name = "own-hardware"
//! free = true
//! ```
//!
//! Where a rate is missing: a cache read costs the plain input rate, reasoning costs the visible output rate, a cache
//! write without a rate of its own costs the dearest of the write rates given and the plain input rate, and a write of
//! unknown lifetime costs the dearest of the four. Audio and image tokens have no fallback.

mod book;
mod entry;
mod rates;

#[cfg(test)]
mod cases_tests;
#[cfg(test)]
mod property_tests;

use thiserror::Error;

use crate::money::NanoUsd;
use crate::usage::{Meter, MeterReading, Usage};

pub use book::{PriceBook, PriceBookError, overlay};
pub use entry::{EffectiveMs, PriceEntry, TermsEntry};
pub use rates::Rate;
use rates::{Rates, UNITS_PER_RATE};

/// The tier of a request or answer that names none.
pub const DEFAULT_TIER: &str = "default";

/// Why usage has no price. Both of the first two are the operator's to mend; neither may be read as zero (I9).
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PriceError {
    #[error("no price named `{name}` is in force at {at_ms} ms: add a [[price]] entry for it, or `free = true`")]
    NoPrice { name: String, at_ms: i64 },
    #[error("the price has no rate for `{meter}`: add it to `rates` or `each`")]
    NoRate { meter: Meter },
    #[error("the price has no terms for the service tier `{tier}`: add [[price.terms]] with this `tier`")]
    UnknownTier { tier: String },
    #[error("the amount is larger than Weir can count: check the rates")]
    TooLarge,
}

/// The price of one concrete model at one time, with every fallback resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Price {
    /// Explicitly unpriced: every charge is zero.
    free: bool,
    /// Sorted by tier, then by threshold, the unbanded terms of a tier first.
    terms: Vec<Terms>,
}

/// Rates of one tier from one input length on.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Terms {
    tier: String,
    /// The fewest input tokens at which these terms apply; 0 for the terms without a threshold.
    from_input_tokens: i64,
    rates: Rates,
}

/// Which tiers a request could be served in, and so may be billed at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TierScope<'a> {
    /// The tier that the request names. A provider may serve the default instead, so both count.
    Requested(&'a str),
    /// The request leaves it to the account (`auto`, or says nothing): any tier of the price.
    Any,
}

/// The most that a request may use. Usage is *within* it when its input and output tokens are, its meters are of the
/// permitted kinds, and each of its other meters is at most the quantity in `units`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageBound {
    /// Input tokens of all kinds.
    pub input_tokens: i64,
    /// Output tokens of all kinds, for all choices together.
    pub output_tokens: i64,
    pub kinds: TokenKinds,
    /// Tool calls, images and seconds.
    pub units: Vec<MeterReading>,
}

/// Which kinds of token, beside plain ones, cache reads and reasoning, a request may cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenKinds {
    pub cache_writes: bool,
    pub audio: bool,
    pub images: bool,
}

impl UsageBound {
    /// A request of text without tools; it may write to the provider's cache.
    #[must_use]
    pub const fn text(input_tokens: i64, output_tokens: i64) -> Self {
        let kinds = TokenKinds { cache_writes: true, audio: false, images: false };
        Self { input_tokens, output_tokens, kinds, units: Vec::new() }
    }
}

impl TokenKinds {
    const fn permits(self, meter: Meter) -> bool {
        match meter {
            Meter::InUncached | Meter::InCacheRead | Meter::OutVisible | Meter::OutReasoning => true,
            Meter::InCacheWrite5m
            | Meter::InCacheWrite30m
            | Meter::InCacheWrite1h
            | Meter::InCacheWrite12h
            | Meter::InCacheWriteUnknown => self.cache_writes,
            Meter::InAudio | Meter::OutAudio => self.audio,
            Meter::InImage | Meter::OutImage => self.images,
            Meter::ToolWebSearch
            | Meter::ToolWebFetch
            | Meter::ToolCodeSession
            | Meter::ToolSearchUnit
            | Meter::MediaImage
            | Meter::MediaSecond => false,
        }
    }
}

impl Price {
    /// The charge for `usage` served in `tier` (`None`: the provider named none), in nano-USD, rounded up once.
    pub fn charge(&self, usage: &Usage, tier: Option<&str>) -> Result<NanoUsd, PriceError> {
        if self.free {
            return Ok(NanoUsd::ZERO);
        }
        let rates = &self.served_terms(usage, tier)?.rates;
        let mut micro_nanos = 0i128;
        for reading in usage.readings() {
            micro_nanos += product(reading.quantity, rates.require(reading.meter)?);
        }
        rounded_up(micro_nanos)
    }

    /// The unit prices behind [`Price::charge`], one for each meter of `usage`: what the log records beside a charge.
    pub fn unit_prices(&self, usage: &Usage, tier: Option<&str>) -> Result<Vec<(Meter, Rate)>, PriceError> {
        if self.free {
            return Ok(usage.readings().iter().map(|reading| (reading.meter, Rate::ZERO)).collect());
        }
        let rates = &self.served_terms(usage, tier)?.rates;
        usage.readings().iter().map(|reading| Ok((reading.meter, rates.require(reading.meter)?))).collect()
    }

    /// The most that usage within `bound` can cost in any tier of `tiers`: every token at the dearest rate of its
    /// direction, in the dearest band and tier that could be served. Rounded up, in nano-USD.
    pub fn worst_case(&self, bound: &UsageBound, tiers: TierScope<'_>) -> Result<NanoUsd, PriceError> {
        if self.free {
            return Ok(NanoUsd::ZERO);
        }
        if let Some(tier) = tiers.named()
            && !self.terms.iter().any(|terms| terms.tier == tier)
        {
            return Err(PriceError::UnknownTier { tier: tier.to_owned() });
        }
        let mut dearest = None;
        for terms in self.terms.iter().filter(|terms| terms.could_apply(bound, tiers)) {
            dearest = dearest.max(Some(terms.worst_case(bound)?));
        }
        rounded_up(dearest.ok_or_else(|| PriceError::UnknownTier { tier: DEFAULT_TIER.to_owned() })?)
    }

    fn served_terms(&self, usage: &Usage, tier: Option<&str>) -> Result<&Terms, PriceError> {
        let tier = canonical_tier(tier.unwrap_or(DEFAULT_TIER));
        let input_tokens = usage.input_tokens();
        self.terms
            .iter()
            .rfind(|terms| terms.tier == tier && terms.from_input_tokens <= input_tokens)
            .ok_or_else(|| PriceError::UnknownTier { tier: tier.to_owned() })
    }
}

impl Terms {
    fn could_apply(&self, bound: &UsageBound, tiers: TierScope<'_>) -> bool {
        self.from_input_tokens <= bound.input_tokens.max(0)
            && tiers.named().is_none_or(|tier| self.tier == tier || self.tier == DEFAULT_TIER)
    }

    /// In millionths of a nano-dollar, so that the caller rounds once.
    fn worst_case(&self, bound: &UsageBound) -> Result<i128, PriceError> {
        let input = self.dearest(bound.input_tokens, Meter::InUncached, bound.kinds, Meter::is_input)?;
        let output = self.dearest(bound.output_tokens, Meter::OutVisible, bound.kinds, Meter::is_output)?;
        let mut micro_nanos = input + output;
        for unit in bound.units.iter().filter(|unit| unit.quantity > 0) {
            micro_nanos += product(unit.quantity, self.rates.require(unit.meter)?);
        }
        Ok(micro_nanos)
    }

    /// All `tokens` at the dearest rate among the permitted meters that `counts` selects. The `plain` meter must have
    /// a rate of its own, because it is what a provider counts by default.
    fn dearest(
        &self,
        tokens: i64,
        plain: Meter,
        kinds: TokenKinds,
        counts: impl Fn(Meter) -> bool,
    ) -> Result<i128, PriceError> {
        if tokens <= 0 {
            return Ok(0);
        }
        let candidates = Meter::ALL.iter().copied().filter(|meter| counts(*meter) && kinds.permits(*meter));
        let plain = self.rates.require(plain)?;
        let rate = candidates.filter_map(|meter| self.rates.get(meter)).fold(plain, Rate::max);
        Ok(product(tokens, rate))
    }
}

impl<'a> TierScope<'a> {
    /// The one tier that the request asks for; `None` when the account decides.
    fn named(self) -> Option<&'a str> {
        match self {
            Self::Requested("auto") | Self::Any => None,
            Self::Requested(tier) => Some(canonical_tier(tier)),
        }
    }
}

/// Providers call the ordinary tier `default` or `standard`. Other synonyms are the dialect's to translate.
fn canonical_tier(tier: &str) -> &str {
    match tier {
        "" | "standard" | DEFAULT_TIER => DEFAULT_TIER,
        other => other,
    }
}

fn product(quantity: i64, rate: Rate) -> i128 {
    i128::from(quantity) * i128::from(rate.nanos_per_million())
}

/// The one rounding of the money path: up, to a whole nano-dollar.
fn rounded_up(micro_nanos: i128) -> Result<NanoUsd, PriceError> {
    let nanos = (micro_nanos + (UNITS_PER_RATE - 1)).div_euclid(UNITS_PER_RATE);
    i64::try_from(nanos).map(NanoUsd::from_nanos).map_err(|_| PriceError::TooLarge)
}
