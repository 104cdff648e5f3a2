//! Catalogs that tests write, and virtual keys by their hash.
//!
//! Prices are such that figures in a test can be checked in the head: an input token costs 10 micro-dollars, a cached
//! one 1, an output token 30.

use hmac::{Hmac, Mac as _};
use sha2::Sha256;

/// Dollars per million tokens.
pub const IN: i64 = 10;
pub const CACHED: i64 = 1;
pub const OUT: i64 = 30;

/// The tenant of a test that needs only one.
pub const TENANT: &str = "acme";
/// Its key.
pub const KEY: &str = "weir_live_AcmeAcmeAcmeAcmeAcmeAcmeAcmeAc000000";
/// The pepper of every test, and what the provider expects: planted, so that a test can look for them.
pub const PEPPER: &str = "a pepper that stands in no output: 8d1f4c2b";
pub const PROVIDER_KEY: &str = "sk-upstream-key-that-stands-in-no-output-77c1";

/// What `input` and `output` tokens cost at the price of the tests, nano-dollars.
#[must_use]
pub const fn nanos(input: i64, cached: i64, output: i64) -> i64 {
    // A dollar per million tokens is 1,000 nano-dollars a token.
    ((input - cached) * IN + cached * CACHED + output * OUT) * 1_000
}

/// HMAC-SHA256 of `key` under the pepper, as a catalog names a key.
#[must_use]
pub fn key_hash(key: &str) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(PEPPER.as_bytes()).expect("HMAC takes keys of any length");
    mac.update(key.as_bytes());
    hex::encode(mac.finalize().into_bytes())
}

/// A model of the catalog; each of its tiers has one deployment.
#[derive(Debug, Clone)]
pub struct Model {
    /// What clients ask for.
    pub name: String,
    /// The names at the provider, by tier. The stub plays the script of that name.
    pub upstream: Vec<String>,
    /// `deadlines` of the model, as TOML.
    pub deadlines: String,
    /// Whose API its provider speaks: `openai` or `anthropic`.
    pub api: &'static str,
    /// What its deployments can, as TOML lines; what they do with text where empty.
    pub capabilities: String,
}

impl Model {
    /// A model with one tier, which has the same name at the provider.
    #[must_use]
    pub fn named(name: &str) -> Self {
        Self::tiers(name, &[name])
    }

    #[must_use]
    pub fn tiers(name: &str, upstream: &[&str]) -> Self {
        let upstream = upstream.iter().map(|name| (*name).to_owned()).collect();
        Self { name: name.to_owned(), upstream, deadlines: String::new(), api: "openai", capabilities: String::new() }
    }

    /// The same at a provider of another API.
    #[must_use]
    pub fn at(mut self, api: &'static str) -> Self {
        self.api = api;
        self
    }

    #[must_use]
    pub fn capable(mut self, toml: &str) -> Self {
        toml.clone_into(&mut self.capabilities);
        self
    }

    #[must_use]
    pub fn deadlines(mut self, toml: &str) -> Self {
        toml.clone_into(&mut self.deadlines);
        self
    }
}

/// A catalog with one stub, which is a provider of either API.
#[derive(Debug, Clone)]
pub struct Catalog {
    pub models: Vec<Model>,
    /// Whatever the tenant's table says, as TOML.
    pub tenant: String,
    /// Whatever else it says, as TOML: limits, more tenants and keys.
    pub more: String,
}

impl Default for Catalog {
    fn default() -> Self {
        Self { models: vec![Model::named("fast")], tenant: String::new(), more: String::new() }
    }
}

impl Catalog {
    #[must_use]
    pub fn of(models: &[Model]) -> Self {
        Self { models: models.to_vec(), ..Self::default() }
    }

    #[must_use]
    pub fn and(mut self, toml: &str) -> Self {
        self.more.push_str(toml);
        self
    }

    /// The file, for a provider at `base_url` whose key is in `credential`.
    #[must_use]
    pub fn to_toml(&self, base_url: &str, credential: &str) -> String {
        let mut toml = format!(
            r#"
[[provider]]
id = "stub"
dialect = "openai_chat"
base_url = "{base_url}"
credential = "{credential}"

[[provider]]
id = "stub-anthropic"
dialect = "anthropic"
base_url = "{base_url}"
credential = "{credential}"

[[price]]
name = "test"
[[price.terms]]
rates = {{ "in.uncached" = "{IN}", "in.cache_read" = "{CACHED}", "out.visible" = "{OUT}" }}

[[tenant]]
name = "{TENANT}"
{}

[[key]]
name = "main"
tenant = "{TENANT}"
hash = "{}"
"#,
            self.tenant,
            key_hash(KEY)
        );
        for Model { name, upstream, deadlines, api, capabilities } in &self.models {
            let provider = if *api == "openai" { "stub".to_owned() } else { format!("stub-{api}") };
            let ids: Vec<String> = (0..upstream.len()).map(|tier| format!("{name}-{tier}")).collect();
            for (id, upstream) in ids.iter().zip(upstream) {
                toml.push_str(&format!(
                    "\n[[deployment]]\nid = \"{id}\"\nprovider = \"{provider}\"\nmodel = \"{upstream}\"\nprice = \"test\"\n\
                     max_output_tokens = 4096\n{capabilities}\n"
                ));
            }
            toml.push_str(&format!(
                "\n[[model]]\nname = \"{name}\"\ntiers = {ids:?}\ndefault_output_tokens = 100\ndeadlines = {{ \
                 {deadlines} }}\n",
                ids = ids.iter().map(|id| [id]).collect::<Vec<_>>()
            ));
        }
        toml.push_str(&self.more);
        toml
    }
}
