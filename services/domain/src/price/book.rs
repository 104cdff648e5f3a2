//! All prices of one catalog under one version.
//!
//! The version is the hash of [`PriceBook::canonical_text`], which renders what is charged (fallbacks resolved, order
//! and sources left out), so two books have one version exactly when they charge alike. The hash function is the
//! caller's, because this crate knows no cryptography.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;
use std::sync::Arc;

use thiserror::Error;

use super::entry::{PriceEntry, TermsEntry};
use super::rates::Rates;
use super::{DEFAULT_TIER, Price, PriceError, Rate, Terms, canonical_tier};
use crate::ids::PriceVersion;
use crate::usage::{MAX_QUANTITY, Meter};

/// The prices in force, by name and date. Locked by version at admission (I10).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PriceBook {
    version: PriceVersion,
    entries: HashMap<String, Vec<Dated>>,
}

/// A price between two instants in milliseconds, the second excluded.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Dated {
    from_ms: i64,
    to_ms: i64,
    price: Arc<Price>,
}

/// Why entries are not a price book. Each names the entry and what to write instead.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PriceBookError {
    #[error("a price has an empty `name`")]
    NoName,
    #[error("price `{name}`: two entries are in force at the same time; give them `effective_from` and `effective_to`")]
    Overlap { name: String },
    #[error("price `{name}`: `effective_to` must be later than `effective_from`")]
    EndsBeforeStart { name: String },
    #[error("price `{name}`: it says `free = true` and has rates; remove one of the two")]
    FreeWithRates { name: String },
    #[error("price `{name}`: it has no rates; add [[price.terms]], or say `free = true`")]
    NoTerms { name: String },
    #[error("price `{name}`: tier `{tier}` needs exactly one [[price.terms]] without `above_input_tokens`")]
    NoBaseTerms { name: String, tier: String },
    #[error("price `{name}`: tier `{tier}` has two [[price.terms]] from {from_input_tokens} input tokens on")]
    SameTerms { name: String, tier: String, from_input_tokens: i64 },
    #[error("price `{name}`: `above_input_tokens` must be between 1 and {MAX_QUANTITY}")]
    BadThreshold { name: String },
    #[error("price `{name}`: `from_threshold` means nothing without `above_input_tokens`")]
    FlagWithoutThreshold { name: String },
    #[error("price `{name}`: `{meter}` is counted in tokens and belongs in `rates`, not in `each`")]
    TokensInEach { name: String, meter: Meter },
    #[error("price `{name}`: `{meter}` is not counted in tokens and belongs in `each`, not in `rates`")]
    UnitsInRates { name: String, meter: Meter },
    #[error("price `{name}`: `each.\"{meter}\"` must be between \"0\" and \"1000\" dollars")]
    BadUnitPrice { name: String, meter: Meter },
    #[error("price `{name}`: tier `{tier}` has no rate for `{meter}`, which other terms have; add it")]
    Uneven { name: String, tier: String, meter: Meter },
}

/// `own` entries and those of `shipped` whose names `own` does not use: a name in a catalog replaces the whole shipped
/// history of that name, so that no date of the shipped book shines through.
#[must_use]
pub fn overlay(shipped: Vec<PriceEntry>, own: Vec<PriceEntry>) -> Vec<PriceEntry> {
    let names: BTreeSet<&str> = own.iter().map(|entry| entry.name.as_str()).collect();
    let kept: Vec<PriceEntry> = shipped.into_iter().filter(|entry| !names.contains(entry.name.as_str())).collect();
    kept.into_iter().chain(own).collect()
}

impl PriceBook {
    /// Checks `entries` and versions them by `version_of` their canonical text.
    pub fn new(entries: &[PriceEntry], version_of: impl FnOnce(&str) -> PriceVersion) -> Result<Self, PriceBookError> {
        let mut by_name: HashMap<String, Vec<Dated>> = HashMap::new();
        for entry in entries {
            by_name.entry(entry.name.clone()).or_default().push(dated(entry)?);
        }
        for (name, dates) in &mut by_name {
            dates.sort_by_key(|dated| dated.from_ms);
            if dates.windows(2).any(|pair| pair[0].to_ms > pair[1].from_ms) {
                return Err(PriceBookError::Overlap { name: name.clone() });
            }
        }
        let mut book = Self { version: PriceVersion::new(""), entries: by_name };
        book.version = version_of(&book.canonical_text());
        Ok(book)
    }

    #[must_use]
    pub const fn version(&self) -> &PriceVersion {
        &self.version
    }

    /// The price called `name` for a request admitted at `admitted_ms`.
    pub fn price(&self, name: &str, admitted_ms: i64) -> Result<&Arc<Price>, PriceError> {
        self.entries
            .get(name)
            .and_then(|dates| dates.iter().find(|dated| (dated.from_ms..dated.to_ms).contains(&admitted_ms)))
            .map(|dated| &dated.price)
            .ok_or_else(|| PriceError::NoPrice { name: name.to_owned(), at_ms: admitted_ms })
    }

    /// Whether any entry, of whatever date, has this name.
    #[must_use]
    pub fn knows(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }

    /// Everything that decides a charge, in one deterministic text: what the version is a hash of.
    #[must_use]
    pub fn canonical_text(&self) -> String {
        let mut text = String::from("weir prices 1\n");
        let mut names: Vec<&String> = self.entries.keys().collect();
        names.sort_unstable();
        for name in names {
            for dated in &self.entries[name] {
                write_dated(&mut text, name, dated);
            }
        }
        text
    }
}

fn write_dated(text: &mut String, name: &str, dated: &Dated) {
    // Writing to a `String` cannot fail. Names are escaped, so that no name can imitate another line.
    let _ = writeln!(text, "price {name:?} {} {} free={}", dated.from_ms, dated.to_ms, dated.price.free);
    for terms in &dated.price.terms {
        let _ = writeln!(text, "terms {:?} {}", terms.tier, terms.from_input_tokens);
        for meter in Meter::ALL {
            if let Some(rate) = terms.rates.get(*meter) {
                let _ = writeln!(text, "{meter} {}", rate.nanos_per_million());
            }
        }
    }
}

fn dated(entry: &PriceEntry) -> Result<Dated, PriceBookError> {
    let name = || entry.name.clone();
    if entry.name.is_empty() {
        return Err(PriceBookError::NoName);
    }
    let from_ms = entry.effective_from.map_or(i64::MIN, |from| from.0);
    let to_ms = entry.effective_to.map_or(i64::MAX, |to| to.0);
    if from_ms >= to_ms {
        return Err(PriceBookError::EndsBeforeStart { name: name() });
    }
    let has_rates = !entry.terms.is_empty() || !entry.each.is_empty();
    match (entry.free, has_rates) {
        (true, true) => Err(PriceBookError::FreeWithRates { name: name() }),
        (false, false) => Err(PriceBookError::NoTerms { name: name() }),
        (true, false) => Ok(Price { free: true, terms: Vec::new() }),
        (false, true) => priced(entry),
    }
    .map(|price| Dated { from_ms, to_ms, price: Arc::new(price) })
}

fn priced(entry: &PriceEntry) -> Result<Price, PriceBookError> {
    let name = || entry.name.clone();
    let each = unit_rates(entry)?;
    // A model that is billed by units alone needs no terms of tokens.
    let by_units_alone = [TermsEntry::default()];
    let written: &[TermsEntry] = if entry.terms.is_empty() { &by_units_alone } else { &entry.terms };
    let mut terms = written.iter().map(|written| terms(&entry.name, written, &each)).collect::<Result<Vec<_>, _>>()?;
    terms.sort_by(|a, b| (&a.tier, a.from_input_tokens).cmp(&(&b.tier, b.from_input_tokens)));
    if let Some(pair) = terms.windows(2).find(|pair| is_same_place(&pair[0], &pair[1])) {
        let Terms { tier, from_input_tokens, .. } = &pair[0];
        return Err(match from_input_tokens {
            0 => PriceBookError::NoBaseTerms { name: name(), tier: tier.clone() },
            _ => PriceBookError::SameTerms { name: name(), tier: tier.clone(), from_input_tokens: *from_input_tokens },
        });
    }
    let tiers = terms.iter().map(|terms| terms.tier.as_str()).chain([DEFAULT_TIER]);
    let has_base = |tier: &str| terms.iter().any(|terms| terms.tier == tier && terms.from_input_tokens == 0);
    if let Some(tier) = tiers.into_iter().find(|tier| !has_base(tier)) {
        return Err(PriceBookError::NoBaseTerms { name: name(), tier: tier.to_owned() });
    }
    // A band or tier that forgot a rate would turn a request that was admitted into one that has no price.
    for meter in Meter::ALL {
        let covered = |terms: &Terms| terms.rates.get(*meter).is_some();
        if let (true, Some(uneven)) = (terms.iter().any(covered), terms.iter().find(|terms| !covered(terms))) {
            return Err(PriceBookError::Uneven { name: name(), tier: uneven.tier.clone(), meter: *meter });
        }
    }
    Ok(Price { free: false, terms })
}

fn is_same_place(a: &Terms, b: &Terms) -> bool {
    (&a.tier, a.from_input_tokens) == (&b.tier, b.from_input_tokens)
}

fn unit_rates(entry: &PriceEntry) -> Result<BTreeMap<Meter, Rate>, PriceBookError> {
    let mut rates = BTreeMap::new();
    for (&meter, &unit_price) in &entry.each {
        let name = || entry.name.clone();
        if meter.is_tokens() {
            return Err(PriceBookError::TokensInEach { name: name(), meter });
        }
        let rate = Rate::from_each(unit_price).map_err(|_| PriceBookError::BadUnitPrice { name: name(), meter })?;
        rates.insert(meter, rate);
    }
    Ok(rates)
}

fn terms(name: &str, written: &TermsEntry, each: &BTreeMap<Meter, Rate>) -> Result<Terms, PriceBookError> {
    let name = || name.to_owned();
    if let Some(meter) = written.rates.keys().find(|meter| !meter.is_tokens()) {
        return Err(PriceBookError::UnitsInRates { name: name(), meter: *meter });
    }
    let from_input_tokens = match written.above_input_tokens {
        None if written.from_threshold => return Err(PriceBookError::FlagWithoutThreshold { name: name() }),
        None => 0,
        Some(threshold @ 1..=MAX_QUANTITY) if written.from_threshold => threshold,
        Some(threshold @ 1..=MAX_QUANTITY) => threshold + 1,
        Some(_) => return Err(PriceBookError::BadThreshold { name: name() }),
    };
    let mut given = written.rates.clone();
    given.extend(each);
    let tier = canonical_tier(written.tier.as_deref().unwrap_or(DEFAULT_TIER)).to_owned();
    Ok(Terms { tier, from_input_tokens, rates: Rates::resolve(&given) })
}
