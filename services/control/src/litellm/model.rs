//! One model of the price map as one price entry.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::value::RawValue;

use weir_domain::money::NanoUsd;
use weir_domain::price::{PriceEntry, Rate, TermsEntry};
use weir_domain::usage::Meter;

use super::keys::{Column, Key, Place, Tier};
use super::{Fields, decimal, text_of};

/// A model that has a price.
#[derive(Debug)]
pub(super) struct Read {
    pub price: PriceEntry,
    pub left_out: Vec<String>,
    pub batch_prices: usize,
}

type Cells = BTreeMap<Place, BTreeMap<Column, Rate>>;

/// What is read of a model before it is known whether it makes a price.
#[derive(Debug, Default)]
struct Sheet {
    cells: Cells,
    each: BTreeMap<Meter, NanoUsd>,
    left_out: BTreeMap<String, Vec<String>>,
    batch_prices: usize,
}

/// The kinds of model whose requests are tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    /// They answer without tokens.
    Embedding,
}

/// Searches here are free up to an amount, or paid by the prompt.
const SEARCHES_BY_OTHER_RULES: [&str; 2] = ["gemini", "vertex_ai"];

/// Its band begins at the threshold rather than above it.
const FROM_THRESHOLD: &str = "xai";

/// The error is the reason why the model is skipped.
pub(super) fn read(name: &str, provider: &str, fields: &Fields) -> Result<Read, String> {
    if let Some(model) = text_of(fields, "alias_of") {
        return Err(format!("it is a moving name of `{model}`: name the model that answers"));
    }
    let kind = match text_of(fields, "mode").as_deref() {
        Some("chat" | "responses" | "completion") => Kind::Text,
        Some("embedding") => Kind::Embedding,
        Some(other) => return Err(format!("its mode `{other}` is not priced by tokens here")),
        None => return Err("it has no mode".to_owned()),
    };
    let mut sheet = Sheet::default();
    for (key, raw) in fields {
        sheet.take(key, raw, provider)?;
    }
    sheet.fill_bands();
    sheet.check_default(kind)?;
    sheet.drop_partial_tiers(kind);
    let mut terms = sheet.terms(provider == FROM_THRESHOLD);
    sheet.drop_uneven(&mut terms);
    let left_out =
        sheet.left_out.into_iter().map(|(reason, parts)| format!("{}: {reason}", parts.join(", "))).collect();
    let source = text_of(fields, "source").map_or_else(|| "LiteLLM".to_owned(), |page| format!("LiteLLM, {page}"));
    let price = PriceEntry {
        name: name.to_owned(),
        source: Some(source),
        effective_from: None,
        effective_to: None,
        free: false,
        each: sheet.each,
        terms,
    };
    Ok(Read { price, left_out, batch_prices: sheet.batch_prices })
}

impl Sheet {
    fn take(&mut self, key: &str, raw: &RawValue, provider: &str) -> Result<(), String> {
        let (known, text) = (Key::of(key), raw.get());
        if text == "null" || matches!(decimal::dollars(text), Ok(NanoUsd::ZERO)) && !matches!(known, Key::Rate(..)) {
            return Ok(());
        }
        let exact = |reason| format!("`{key}`: {reason}");
        match known {
            Key::NoPrice => {}
            Key::Batch => self.batch_prices += 1,
            Key::Unknown => return Err(format!("`{key}` speaks of money and is not known here")),
            Key::Refuses(reason) => return Err(format!("{reason} (`{key}`)")),
            Key::LeftOut(reason) => self.leave_out(key, reason),
            Key::Rate(column, place) => {
                let rate = decimal::per_million(text).map_err(exact)?;
                self.rate(key, column, place, rate)?;
            }
            Key::CodeSession => {
                self.each.insert(Meter::ToolCodeSession, decimal::dollars(text).map_err(exact)?);
            }
            Key::WebSearch if SEARCHES_BY_OTHER_RULES.iter().any(|start| provider.starts_with(start)) => {
                self.leave_out(key, "searches are free up to an amount, or paid by the prompt");
            }
            Key::WebSearch => match one_price(text).map_err(exact)? {
                Some(price) => {
                    self.each.insert(Meter::ToolWebSearch, price);
                }
                None => self.leave_out(key, "a search costs what its context size says"),
            },
            Key::Bands => self.bands(text).map_err(exact)?,
        }
        Ok(())
    }

    fn leave_out(&mut self, part: &str, reason: &str) {
        self.left_out.entry(reason.to_owned()).or_default().push(part.to_owned());
    }

    fn rate(&mut self, key: &str, column: Column, place: Place, rate: Rate) -> Result<(), String> {
        // A zero here says that the provider does not tell of caches, and not that they are free.
        if rate == Rate::ZERO && matches!(column, Column::CacheRead | Column::CacheWrite) {
            self.leave_out(key, "a cache at no cost takes the plain input rate");
            return Ok(());
        }
        match self.cells.entry(place).or_default().insert(column, rate) {
            Some(other) if other != rate => {
                Err(format!("`{key}` contradicts another key: {rate} and {other} a million"))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// `tiered_pricing`: above each `range`'s start, its rates for the whole request.
    fn bands(&mut self, text: &str) -> Result<(), String> {
        let bands: Vec<Fields> = serde_json::from_str(text).map_err(|_| "it is no list of objects".to_owned())?;
        let mut starts_at = 0;
        for band in &bands {
            let range = band.get("range").ok_or("a band has no range")?;
            let range: [Box<RawValue>; 2] =
                serde_json::from_str(range.get()).map_err(|_| "a range is no pair of numbers".to_owned())?;
            let [from, to] = range.map(|bound| decimal::whole(bound.get()));
            let (from, to) = (from?, to?);
            if from != starts_at {
                return Err(format!("a band begins at {from} and not where the one before ends"));
            }
            starts_at = to;
            for (key, raw) in band.iter().filter(|(key, _)| *key != "range") {
                match Key::of(key) {
                    Key::Rate(column, (Tier::Default, 0)) => {
                        self.rate(key, column, (Tier::Default, from), decimal::per_million(raw.get())?)?;
                    }
                    Key::Batch => self.batch_prices += 1,
                    Key::LeftOut(reason) => self.leave_out(key, reason),
                    Key::NoPrice => {}
                    Key::Rate(..) | Key::WebSearch | Key::CodeSession | Key::Bands | Key::Refuses(_) | Key::Unknown => {
                        return Err(format!("a band has a `{key}`"));
                    }
                }
            }
        }
        Ok(())
    }

    /// A band that changes only caches leaves the price of tokens as it is below. One that changes only input or output
    /// is not completed: that is more likely a gap than a price.
    fn fill_bands(&mut self) {
        for tier in [Tier::Default, Tier::Flex, Tier::Priority] {
            let Some(base) = self.cells.get(&(tier, 0)).cloned() else { continue };
            for cell in self.cells.range_mut((tier, 1)..=(tier, i64::MAX)).map(|(_, cell)| cell) {
                if !cell.contains_key(&Column::Input) && !cell.contains_key(&Column::Output) {
                    for (column, rate) in &base {
                        cell.entry(*column).or_insert(*rate);
                    }
                }
            }
        }
    }

    /// Whether the default tier says what plain text costs, at every length.
    fn check_default(&mut self, kind: Kind) -> Result<(), String> {
        if self.cells.is_empty() {
            return Err("it has no price of tokens".to_owned());
        }
        if self.cells.values().flat_map(BTreeMap::values).all(|rate| *rate == Rate::ZERO) {
            return Err("all its prices are zero: if it costs nothing, write a price with `free = true`".to_owned());
        }
        if kind == Kind::Embedding {
            for cell in self.cells.values_mut() {
                cell.entry(Column::Output).or_insert(Rate::ZERO);
            }
        }
        let base = self.cells.get(&(Tier::Default, 0)).ok_or("it has no price without a threshold or tier")?;
        let plain = [(Column::Input, "input"), (Column::Output, "output")];
        for (column, side) in plain {
            match base.get(&column) {
                None => return Err(format!("it has no price of {side} tokens")),
                Some(&Rate::ZERO) if kind == Kind::Text => {
                    return Err(format!("its {side} tokens cost nothing, its others do: write its price yourself"));
                }
                Some(_) => {}
            }
        }
        for ((tier, threshold), cell) in &self.cells {
            if let (Tier::Default, Some((_, side))) = (tier, missing(cell)) {
                return Err(format!("above {threshold} input tokens it has no price of {side} tokens"));
            }
        }
        Ok(())
    }

    /// A tier without all that the default has would be cheaper, or unpriced, where nobody expects it.
    fn drop_partial_tiers(&mut self, kind: Kind) {
        let thresholds = |cells: &Cells, of: Tier| -> BTreeSet<i64> {
            cells.keys().filter(|(tier, _)| *tier == of).map(|(_, threshold)| *threshold).collect()
        };
        let expected = thresholds(&self.cells, Tier::Default);
        for (tier, name) in [(Tier::Flex, "flex"), (Tier::Priority, "priority")] {
            let given = thresholds(&self.cells, tier);
            let is_whole = |(place, cell): (&Place, &BTreeMap<Column, Rate>)| {
                let is_free = |column| kind == Kind::Text && cell.get(&column) == Some(&Rate::ZERO);
                place.0 != tier || (missing(cell).is_none() && !is_free(Column::Input) && !is_free(Column::Output))
            };
            let reason = if given.is_empty() || (given == expected && self.cells.iter().all(is_whole)) {
                continue;
            } else if given == expected {
                "it does not price both input and output"
            } else {
                "it does not have the length bands of the default"
            };
            self.cells.retain(|place, _| place.0 != tier);
            self.leave_out(&format!("the tier {name}"), reason);
        }
    }

    fn terms(&self, from_threshold: bool) -> Vec<TermsEntry> {
        let has = |column| self.cells.values().any(|cell| cell.contains_key(&column));
        let write = unasked_lifetimes(has(Column::CacheWrite1h), has(Column::CacheWrite12h));
        let of_cell = |(&(tier, threshold), cell): (&Place, &BTreeMap<Column, Rate>)| TermsEntry {
            tier: match tier {
                Tier::Default => None,
                Tier::Flex => Some("flex".to_owned()),
                Tier::Priority => Some("priority".to_owned()),
            },
            above_input_tokens: (threshold > 0).then_some(threshold),
            from_threshold: threshold > 0 && from_threshold,
            rates: cell.iter().flat_map(|(column, rate)| meters(*column, write).iter().map(|m| (*m, *rate))).collect(),
        };
        self.cells.iter().map(of_cell).collect()
    }

    /// Sound and pictures have no rate to fall back on, so they are priced in all terms or in none.
    fn drop_uneven(&mut self, terms: &mut [TermsEntry]) {
        for meter in [Meter::InAudio, Meter::InImage, Meter::OutAudio, Meter::OutImage] {
            let priced = terms.iter().filter(|terms| terms.rates.contains_key(&meter)).count();
            if priced > 0 && priced < terms.len() {
                for terms in terms.iter_mut() {
                    terms.rates.remove(&meter);
                }
                self.leave_out(meter.code(), "it is not priced in every tier and band");
            }
        }
    }
}

/// What of plain text a cell does not price.
fn missing(cell: &BTreeMap<Column, Rate>) -> Option<(Column, &'static str)> {
    [(Column::Input, "input"), (Column::Output, "output")].into_iter().find(|(column, _)| !cell.contains_key(column))
}

/// The file tells of a write by its lifetime only where it exceeds the ordinary one, which is then 5 minutes below an
/// hour and 30 minutes below twelve. A write without any other costs the same whatever its lifetime.
const fn unasked_lifetimes(has_1h: bool, has_12h: bool) -> &'static [Meter] {
    match (has_1h, has_12h) {
        (true, _) => &[Meter::InCacheWrite5m],
        (false, true) => &[Meter::InCacheWrite30m],
        (false, false) => {
            &[Meter::InCacheWrite5m, Meter::InCacheWrite30m, Meter::InCacheWrite1h, Meter::InCacheWrite12h]
        }
    }
}

const fn meters(column: Column, write: &'static [Meter]) -> &'static [Meter] {
    match column {
        Column::Input => &[Meter::InUncached],
        Column::CacheRead => &[Meter::InCacheRead],
        Column::CacheWrite => write,
        Column::CacheWrite1h => &[Meter::InCacheWrite1h],
        Column::CacheWrite12h => &[Meter::InCacheWrite12h],
        Column::AudioInput => &[Meter::InAudio],
        Column::ImageInput => &[Meter::InImage],
        Column::Output => &[Meter::OutVisible],
        Column::Reasoning => &[Meter::OutReasoning],
        Column::AudioOutput => &[Meter::OutAudio],
        Column::ImageOutput => &[Meter::OutImage],
    }
}

/// The price of a search where every context size costs the same; `None` where they differ.
fn one_price(text: &str) -> Result<Option<NanoUsd>, String> {
    let by_size: Fields = serde_json::from_str(text).map_err(|_| "it is no object of sizes".to_owned())?;
    let prices: BTreeSet<NanoUsd> =
        by_size.values().map(|raw| decimal::dollars(raw.get())).collect::<Result<_, _>>()?;
    let mut prices = prices.into_iter();
    let first = prices.next();
    Ok(first.filter(|price| prices.next().is_none() && *price > NanoUsd::ZERO))
}
