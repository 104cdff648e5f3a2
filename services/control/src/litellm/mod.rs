//! LiteLLM's price map (`model_prices_and_context_window.json`) as price entries.
//!
//! The file is one flat object of models whose prices are floats in dollars a token. Here every figure stays text until
//! it is an integer rate, so `4e-07` is exactly $0.40 a million. What the file says and an entry cannot say exactly is
//! told with its reason, in one of two ways: a **skipped** model has no price at all, because what remained could
//! undercharge; a **left out** part makes Weir refuse the requests that would need it, never charge them wrongly.
//!
//! How the file means what it says is LiteLLM's own reading: length bands are cliffs above their threshold (at it, for
//! xAI), the tiers of a price have the same bands as its default, and a missing cache price is the plain input price.

mod decimal;
mod keys;
mod model;
mod written;

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::value::RawValue;
use thiserror::Error;

use weir_domain::price::{PriceBook, PriceEntry};

pub use written::{Heading, to_toml};

/// What of the file is wanted; empty lists want everything.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// Values of `litellm_provider`.
    pub providers: Vec<String>,
    /// Names in the file; one `*` stands for anything.
    pub models: Vec<String>,
}

/// A price, and what a deployment of it would need to know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Imported {
    pub price: PriceEntry,
    pub provider: String,
    /// The name at the provider, without the prefix that names the provider in the file.
    pub model: String,
    pub max_output_tokens: Option<i64>,
}

/// A model without a price, or the parts that a price lacks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unsaid {
    pub name: String,
    pub reason: String,
}

/// What came of the file, each list by name.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Conversion {
    pub prices: Vec<Imported>,
    pub skipped: Vec<Unsaid>,
    pub left_out: Vec<Unsaid>,
    /// Batch prices, which no request through a gateway is charged.
    pub batch_prices: usize,
}

/// Why there is nothing to convert.
#[derive(Debug, Error)]
pub enum LitellmError {
    #[error("it is not LiteLLM's price map, one JSON object of models: {0}")]
    NotAMap(#[source] serde_json::Error),
    #[error("it has {models} models and none that is asked for; it knows the providers {providers}")]
    NothingWanted { models: usize, providers: String },
}

/// Keys of the file that are no models.
const RESERVED: [&str; 2] = ["sample_spec", "fallback_generalizations"];

type Fields = BTreeMap<String, Box<RawValue>>;

/// Converts `text`, the content of the file.
///
/// # Errors
/// [`LitellmError`]. A model that cannot be converted is no error; it is among the skipped.
pub fn convert(text: &str, wanted: &Wanted) -> Result<Conversion, LitellmError> {
    let file: BTreeMap<String, Box<RawValue>> = serde_json::from_str(text).map_err(LitellmError::NotAMap)?;
    let mut conversion = Conversion::default();
    let mut providers = BTreeMap::<String, usize>::new();
    let mut found = false;
    for (name, model) in file.iter().filter(|(name, _)| !RESERVED.contains(&name.as_str())) {
        let fields: Fields = match serde_json::from_str(model.get()) {
            Ok(fields) => fields,
            Err(_) if wanted.providers.is_empty() && wanted.has_model(name) => {
                found = true;
                conversion.skip(name, "it is no object");
                continue;
            }
            Err(_) => continue,
        };
        let provider = text_of(&fields, "litellm_provider").unwrap_or_default();
        if !provider.is_empty() {
            *providers.entry(provider.clone()).or_default() += 1;
        }
        if wanted.has_provider(&provider) && wanted.has_model(name) {
            found = true;
            conversion.add(name, &provider, &fields);
        }
    }
    if found {
        return Ok(conversion);
    }
    Err(LitellmError::NothingWanted { models: file.len(), providers: most_frequent(providers) })
}

const MOST_PROVIDERS_TOLD: usize = 12;

fn most_frequent(providers: BTreeMap<String, usize>) -> String {
    let mut providers: Vec<_> = providers.into_iter().collect();
    providers.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    let more = if providers.len() > MOST_PROVIDERS_TOLD { ", …" } else { "" };
    let names: Vec<String> = providers.into_iter().take(MOST_PROVIDERS_TOLD).map(|(name, _)| name).collect();
    names.join(", ") + more
}

impl Wanted {
    fn has_provider(&self, provider: &str) -> bool {
        self.providers.is_empty() || self.providers.iter().any(|wanted| wanted == provider)
    }

    fn has_model(&self, name: &str) -> bool {
        let is = |wanted: &String| match wanted.split_once('*') {
            None => wanted == name,
            Some((start, end)) => {
                name.len() >= start.len() + end.len() && name.starts_with(start) && name.ends_with(end)
            }
        };
        self.models.is_empty() || self.models.iter().any(is)
    }
}

impl Conversion {
    fn skip(&mut self, name: &str, reason: &str) {
        self.skipped.push(Unsaid { name: name.to_owned(), reason: reason.to_owned() });
    }

    fn add(&mut self, name: &str, provider: &str, fields: &Fields) {
        let read = match model::read(name, provider, fields) {
            Ok(read) => read,
            Err(reason) => return self.skip(name, &reason),
        };
        // The last word is the price book's own: what it refuses would be refused by `catalog check` as well.
        if let Err(error) = PriceBook::new(std::slice::from_ref(&read.price), |_| "".into()) {
            return self.skip(name, &error.to_string());
        }
        self.batch_prices += read.batch_prices;
        self.left_out.extend(read.left_out.into_iter().map(|reason| Unsaid { name: name.to_owned(), reason }));
        self.prices.push(Imported {
            price: read.price,
            provider: provider.to_owned(),
            model: name.strip_prefix(&format!("{provider}/")).unwrap_or(name).to_owned(),
            max_output_tokens: number_of(fields, "max_output_tokens"),
        });
    }
}

fn text_of(fields: &Fields, key: &str) -> Option<String> {
    serde_json::from_str(fields.get(key)?.get()).ok()
}

fn number_of(fields: &Fields, key: &str) -> Option<i64> {
    decimal::whole(fields.get(key)?.get()).ok()
}

#[cfg(test)]
#[path = "../litellm_tests.rs"]
mod tests;
