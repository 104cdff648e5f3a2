//! A catalog without a file: OpenAI's chat models, for `weir up --quickstart`.

use std::collections::BTreeSet;

use thiserror::Error;

use weir_domain::ids::{DeploymentId, ModelName, ProviderId};
use weir_domain::registry::{AnthropicVersion, CapField, Capability, OnAbandon, ProviderDialect};
use weir_runtime::secrets::SecretRef;

use super::entries::{
    Catalog, DeadlinesEntry, DeploymentEntry, ModelEntry, ProviderEntry, StreamFailureEntry, TenantEntry,
    one_token_a_byte, text_capabilities,
};

/// Where OpenAI's API is.
const OPENAI_BASE_URL: &str = "https://api.openai.com/v1";

/// OpenAI's chat models that have a shipped price, with their own output cap in tokens.
const MODELS: &[(&str, i64)] = &[
    ("gpt-6.1-sol", 128_000),
    ("gpt-6.1-terra", 128_000),
    ("gpt-6-astra", 128_000),
    ("gpt-6-sol", 128_000),
    ("gpt-6-luna", 128_000),
    ("gpt-5.6-sol", 128_000),
    ("gpt-5.6-terra", 128_000),
    ("gpt-5.6-luna", 128_000),
    ("gpt-5.5", 128_000),
    ("gpt-5.4", 128_000),
    ("gpt-5.4-mini", 128_000),
    ("gpt-5.4-nano", 128_000),
    ("gpt-5", 128_000),
    ("gpt-5-mini", 128_000),
    ("gpt-4.1", 32_768),
    ("gpt-4.1-mini", 32_768),
    ("gpt-4o", 16_384),
    ("gpt-4o-mini", 16_384),
];

/// The tenant of a quickstart, without limits.
pub const QUICKSTART_TENANT: &str = "default";

#[derive(Debug, Error)]
#[error("a catalog cannot be written as TOML: {0}")]
pub struct TomlError(#[from] toml::ser::Error);

impl Catalog {
    /// OpenAI's priced chat models under their own names, and one tenant. `base_url` points elsewhere, such as at a
    /// stub.
    #[must_use]
    pub fn quickstart(credential: SecretRef, base_url: Option<&str>) -> Self {
        let provider = ProviderEntry {
            id: ProviderId::new("openai"),
            dialect: ProviderDialect::Openai,
            base_url: base_url.unwrap_or(OPENAI_BASE_URL).trim_end_matches('/').to_owned(),
            credential: Some(credential),
            organization: None,
            project: None,
            on_abandon: OnAbandon::Close,
            bills_filtered_errors: false,
        };
        Self {
            providers: vec![provider],
            deployments: MODELS.iter().map(|(name, cap)| deployment(name, *cap)).collect(),
            models: MODELS.iter().map(|(name, _)| model(name)).collect(),
            tenants: vec![TenantEntry::named(QUICKSTART_TENANT)],
            ..Self::default()
        }
    }

    /// The catalog as a file that [`Catalog::from_toml`] reads back.
    pub fn to_toml(&self) -> Result<String, TomlError> {
        Ok(toml::to_string(self)?)
    }
}

fn deployment(name: &str, max_output_tokens: i64) -> DeploymentEntry {
    DeploymentEntry {
        id: DeploymentId::new(name),
        provider: ProviderId::new("openai"),
        model: name.to_owned(),
        region: "global".to_owned(),
        price: None,
        capabilities: capabilities(),
        max_output_tokens,
        cap_field: CapField::MaxCompletionTokens,
        accepts_stream_options: true,
        accepts_developer_role: true,
        accepts_prefill: false,
        anthropic_version: AnthropicVersion::default(),
        tokens_per_kilobyte: one_token_a_byte(),
        tokens_per_image: Some(MOST_TOKENS_PER_IMAGE),
        tokenizer: None,
    }
}

/// All of these models see pictures. The dearest by OpenAI's published formulas is gpt-4o-mini's: 2,833 tokens and
/// 5,667 for each of at most 8 tiles of 512 pixels.
const MOST_TOKENS_PER_IMAGE: i64 = 2_833 + 8 * 5_667;

fn capabilities() -> BTreeSet<Capability> {
    text_capabilities().into_iter().chain([Capability::Vision]).collect()
}

fn model(name: &str) -> ModelEntry {
    ModelEntry {
        name: ModelName::new(name),
        deployments: vec![DeploymentId::new(name)],
        tiers: Vec::new(),
        default_output_tokens: None,
        max_attempts: 2,
        deadlines: DeadlinesEntry::default(),
        stream_failure: StreamFailureEntry::default(),
    }
}
