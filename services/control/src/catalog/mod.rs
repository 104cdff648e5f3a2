//! `catalog.toml`: providers, deployments, models, tenants, teams, limits, keys and prices, typed and checked.
//!
//! ```toml
//! [[provider]]
//! id = "openai"
//! dialect = "openai"
//! base_url = "https://api.openai.com/v1"
//! credential = "env:OPENAI_API_KEY"        # or "file:PATH"; never the secret itself
//!
//! [[deployment]]
//! id = "gpt-4o-mini@openai"
//! provider = "openai"
//! model = "gpt-4o-mini"                    # the name there
//! region = "us"                            # default "global"
//! price = "gpt-4o-mini"                    # default: the model's name
//! max_output_tokens = 16_384
//!
//! [[model]]
//! name = "fast"                            # what clients ask for
//! deployments = ["gpt-4o-mini@openai"]     # or: tiers = [["a", "b"], ["c"]]
//! default_output_tokens = 1_024
//! deadlines = { first_content = "30s" }
//!
//! [[tenant]]
//! name = "acme"
//! zone = "Europe/Berlin"
//!
//! [[team]]
//! tenant = "acme"
//! name = "search"
//!
//! [[limit]]
//! tenant = "acme"
//! team = "search"                          # or key = "…"; neither: the whole tenant
//! kind = "usd per month"
//! max = "250"
//! ```
//!
//! `deploy/catalog.example.toml` has every field. Parsing and checking collect every mistake before anything is refused, and each names its place and its fix.

mod check;
mod entries;
mod links;
mod parse;
mod problem;
mod quickstart;

#[cfg(test)]
mod check_tests;
#[cfg(test)]
mod example_tests;
#[cfg(test)]
mod parse_tests;
#[cfg(test)]
mod sound_tests;

use std::collections::BTreeSet;

use weir_domain::price::PriceEntry;

pub(crate) use check::{check_labels, is_name, limit_max};
pub use entries::{
    Catalog, DeadlinesEntry, DeploymentEntry, KeyEntry, KeyHashText, LimitEntry, LimitKind, LimitMax, ModelEntry,
    OnReportMismatch, ProviderEntry, StreamFailureEntry, StreamFailureMode, TeamEntry, TenantEntry,
};
pub use parse::LARGEST_CATALOG_BYTES;
pub use problem::{CatalogProblem, CatalogProblems, Position};
pub use quickstart::{QUICKSTART_TENANT, TomlError};

/// What a catalog is checked against beside itself.
#[derive(Debug, Clone, Copy)]
pub struct Surroundings<'a> {
    /// The name of the file, for messages.
    pub file: &'a str,
    /// The price book that ships with this binary.
    pub shipped_prices: &'a [PriceEntry],
    /// (tenant, name) of the keys that the admin API ever made. Limits may name them, those of revoked ones too: a
    /// revocation must not make the next apply fail.
    pub admin_keys: &'a BTreeSet<(String, String)>,
    /// Prices must be in force now.
    pub now_ms: i64,
}

impl Catalog {
    /// Reads and checks `text`.
    ///
    /// # Errors
    /// Every mistake that was found, in the order of the file.
    pub fn from_toml(text: &str, surroundings: Surroundings<'_>) -> Result<Self, CatalogProblems> {
        let (tables, unreadable) = parse::parse(surroundings.file, text);
        check::check(tables, unreadable, surroundings)
    }

    /// The prices in force with this catalog: its own, and the shipped ones whose names it does not use.
    #[must_use]
    pub fn prices_over(&self, shipped: &[PriceEntry]) -> Vec<PriceEntry> {
        weir_domain::price::overlay(shipped.to_vec(), self.prices.clone())
    }
}
