//! The price book that ships with Weir: dated facts about well-known models, overlaid by a catalog's own prices.

use serde::Deserialize;
use thiserror::Error;

use weir_domain::price::PriceEntry;

/// Where the figures came from, and when, is said in the file.
const SHIPPED: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/prices/prices-2026-11.toml"));

/// The file is compiled in and tested, so this is a mistake of the build.
#[derive(Debug, Error)]
#[error("the shipped price book cannot be read: {0}")]
pub struct ShippedPricesError(#[from] toml::de::Error);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PriceFile {
    price: Vec<PriceEntry>,
}

/// The shipped prices, by the model's name at its provider.
pub fn shipped_prices() -> Result<Vec<PriceEntry>, ShippedPricesError> {
    Ok(toml::from_str::<PriceFile>(SHIPPED)?.price)
}

#[cfg(test)]
#[path = "prices_tests.rs"]
mod tests;
