//! The tables of a catalog, as people write them and as the control store keeps them.
//!
//! One set of types for both: what was applied can be shown and hashed in the words that its author used. A type says
//! what a single field may hold; what fields mean together is in `check`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use weir_domain::calendar::{WindowKind, Zone};
use weir_domain::ids::{DeploymentId, ModelName, ProviderId};
use weir_domain::price::{EffectiveMs, PriceEntry};
use weir_domain::quota::{Measure, Unit};
use weir_domain::reconcile::CeilingPolicy;
use weir_domain::registry::{
    AnthropicVersion, BreakTrigger, CapField, Capability, OnAbandon, ProviderDialect, Tokenizer,
};
use weir_runtime::secrets::SecretRef;
use weir_runtime::units::HumanDuration;

/// Everything that one catalog says, each kind in the order of its names.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Catalog {
    #[serde(rename = "provider", default, skip_serializing_if = "Vec::is_empty")]
    pub providers: Vec<ProviderEntry>,
    #[serde(rename = "deployment", default, skip_serializing_if = "Vec::is_empty")]
    pub deployments: Vec<DeploymentEntry>,
    #[serde(rename = "model", default, skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<ModelEntry>,
    #[serde(rename = "tenant", default, skip_serializing_if = "Vec::is_empty")]
    pub tenants: Vec<TenantEntry>,
    #[serde(rename = "team", default, skip_serializing_if = "Vec::is_empty")]
    pub teams: Vec<TeamEntry>,
    #[serde(rename = "limit", default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<LimitEntry>,
    #[serde(rename = "key", default, skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<KeyEntry>,
    #[serde(rename = "price", default, skip_serializing_if = "Vec::is_empty")]
    pub prices: Vec<PriceEntry>,
}

/// `[[provider]]`: an account at a provider.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProviderEntry {
    pub id: ProviderId,
    pub dialect: ProviderDialect,
    /// Such as `https://api.openai.com/v1`, without a trailing slash.
    pub base_url: String,
    /// Absent for a provider that asks for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credential: Option<SecretRef>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub organization: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    #[serde(default)]
    pub on_abandon: OnAbandon,
    #[serde(default)]
    pub bills_filtered_errors: bool,
}

/// `[[deployment]]`: a concrete model at a provider, in a region.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeploymentEntry {
    pub id: DeploymentId,
    pub provider: ProviderId,
    /// The model's name at the provider.
    pub model: String,
    #[serde(default = "default_region")]
    pub region: String,
    /// The name in the price book; absent: the model's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price: Option<String>,
    #[serde(default = "text_capabilities")]
    pub capabilities: BTreeSet<Capability>,
    /// The model's own output cap, tokens; a model for embeddings has no output and needs none.
    #[serde(default)]
    pub max_output_tokens: i64,
    #[serde(default)]
    pub cap_field: CapField,
    #[serde(default = "yes")]
    pub accepts_stream_options: bool,
    #[serde(default = "yes")]
    pub accepts_developer_role: bool,
    /// Whether it writes on from an assistant's message in last position, as some models do.
    #[serde(default, skip_serializing_if = "is_default")]
    pub accepts_prefill: bool,
    /// In which version an Anthropic deployment is asked for clients of other APIs.
    #[serde(default, skip_serializing_if = "is_usual")]
    pub anthropic_version: AnthropicVersion,
    #[serde(default = "one_token_a_byte")]
    pub tokens_per_kilobyte: i64,
    /// The most input tokens that one picture can be; needed with `vision`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_image: Option<i64>,
    /// `o200k` or `cl100k`, where the model's vocabulary is known: text is then counted exactly before a limit refuses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokenizer: Option<Tokenizer>,
}

impl DeploymentEntry {
    /// Whether it has no output to bound and to price.
    pub(super) fn only_embeds(&self) -> bool {
        self.capabilities.contains(&Capability::Embeddings)
    }

    /// The name in the price book.
    #[must_use]
    pub fn price_name(&self) -> &str {
        self.price.as_deref().unwrap_or(&self.model)
    }
}

/// What most catalogs need not say.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// What most catalogs need not say.
fn is_usual(version: &AnthropicVersion) -> bool {
    *version == AnthropicVersion::default()
}

/// Where a provider does not say where it computes.
fn default_region() -> String {
    "global".to_owned()
}

/// What every current model behind an OpenAI-shaped API does with text. Pictures, sound and search are never assumed:
/// they cost differently.
pub(super) fn text_capabilities() -> BTreeSet<Capability> {
    BTreeSet::from([
        Capability::Streaming,
        Capability::Tools,
        Capability::JsonMode,
        Capability::JsonSchema,
        Capability::Logprobs,
        Capability::ManyChoices,
    ])
}

const fn yes() -> bool {
    true
}

/// The only ratio that holds for any text and any tokenizer; a lower one is the operator's knowledge of a family.
pub(super) const fn one_token_a_byte() -> i64 {
    1_000
}

/// `[[model]]`: the alias that clients ask for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelEntry {
    pub name: ModelName,
    /// One tier; or else `tiers`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deployments: Vec<DeploymentId>,
    /// In order of preference.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tiers: Vec<Vec<DeploymentId>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_output_tokens: Option<i64>,
    #[serde(default = "default_attempts")]
    pub max_attempts: u16,
    #[serde(default)]
    pub deadlines: DeadlinesEntry,
    #[serde(default, skip_serializing_if = "is_default")]
    pub stream_failure: StreamFailureEntry,
}

/// `stream_failure` of a model: what becomes of a stream that breaks after its first content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StreamFailureEntry {
    pub mode: StreamFailureMode,
    /// With `continue`: what is gone on after.
    pub on: Vec<BreakTrigger>,
    /// With `continue`: how many other deployments are asked for the rest.
    pub max_fallbacks: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StreamFailureMode {
    #[default]
    Terminate,
    Continue,
}

impl Default for StreamFailureEntry {
    fn default() -> Self {
        Self { mode: StreamFailureMode::Terminate, on: BreakTrigger::ALL.to_vec(), max_fallbacks: 1 }
    }
}

impl ModelEntry {
    /// The tiers, however they were written.
    pub fn tiers(&self) -> impl Iterator<Item = &[DeploymentId]> {
        let single = (!self.deployments.is_empty()).then_some(self.deployments.as_slice());
        single.into_iter().chain(self.tiers.iter().map(Vec::as_slice))
    }
}

/// The first call and two more: enough to leave one bad deployment and one bad moment behind.
const fn default_attempts() -> u16 {
    3
}

/// `deadlines` of a model; what is absent has the default of `weir_domain::registry::Deadlines`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeadlinesEntry {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plain_total: Option<HumanDuration>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream_total: Option<HumanDuration>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_content: Option<HumanDuration>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle: Option<HumanDuration>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connect: Option<HumanDuration>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage_after_finish: Option<HumanDuration>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_stall: Option<HumanDuration>,
}

/// `[[tenant]]`. Absent lists mean everything.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TenantEntry {
    pub name: String,
    #[serde(default)]
    pub zone: Zone,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub models: Option<BTreeSet<ModelName>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub regions: Option<BTreeSet<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub providers: Option<BTreeSet<ProviderId>>,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub denied_tools: BTreeSet<String>,
    #[serde(default)]
    pub on_report_mismatch: OnReportMismatch,
    #[serde(default)]
    pub on_ceiling: CeilingPolicy,
}

impl TenantEntry {
    /// A tenant that may use everything, without limits.
    #[must_use]
    pub fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            zone: Zone::UTC,
            models: None,
            regions: None,
            providers: None,
            denied_tools: BTreeSet::new(),
            on_report_mismatch: OnReportMismatch::default(),
            on_ceiling: CeilingPolicy::default(),
        }
    }
}

/// What a report does that contradicts a response of the same rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnReportMismatch {
    /// A discrepancy for people; the ledger stays.
    #[default]
    Flag,
    /// A discrepancy, and an adjustment of the ledger.
    Adjust,
}

/// `[[team]]`: a group of keys within a tenant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TeamEntry {
    pub tenant: String,
    pub name: String,
}

/// `[[limit]]`: on a tenant, or on one of its teams or keys; on all models together, or on one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitEntry {
    pub tenant: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub team: Option<String>,
    /// A key's name. Each key of that name has the limit for itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelName>,
    pub kind: LimitKind,
    pub max: LimitMax,
}

/// `[[key]]`: a virtual key by its hash, for people who want keys in files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyEntry {
    pub name: String,
    /// HMAC-SHA256 of the key under the pepper, 64 hexadecimal digits:
    /// `printf %s "$KEY" | openssl dgst -sha256 -hmac "$(cat pepper)"`.
    pub hash: KeyHashText,
    pub tenant: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub team: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub models: Option<BTreeSet<ModelName>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<EffectiveMs>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

/// What a limit counts, written `usd per month`, `tokens per minute` or `concurrent`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitKind(pub Measure);

const LIMIT_KINDS: &str = "\"usd|tokens|requests per day|week|month|total\", \"tokens|requests per minute\" or \
                           \"concurrent\"";

impl FromStr for LimitKind {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let unknown = || format!("`{text}` is no kind of limit; write {LIMIT_KINDS}");
        if text == "concurrent" {
            return Ok(Self(Measure::Concurrent));
        }
        let (unit, period) = text.split_once(" per ").ok_or_else(unknown)?;
        let unit = match unit {
            "usd" => Unit::Usd,
            "tokens" => Unit::Tokens,
            "requests" => Unit::Requests,
            _ => return Err(unknown()),
        };
        if period == "minute" {
            return match unit {
                Unit::Usd => {
                    Err("money has no rate per minute; write \"usd per day\", or limit tokens per minute".into())
                }
                Unit::Tokens | Unit::Requests => Ok(Self(Measure::PerMinute { unit })),
            };
        }
        let window = WindowKind::ALL.into_iter().find(|kind| kind.to_string() == period).ok_or_else(unknown)?;
        Ok(Self(Measure::Calendar { unit, window }))
    }
}

impl fmt::Display for LimitKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Measure::Concurrent => f.write_str("concurrent"),
            measure @ (Measure::Calendar { .. } | Measure::PerMinute { .. }) => write!(f, "{measure}"),
        }
    }
}

impl Serialize for LimitKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for LimitKind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

/// The amount of a limit as written: money as text, a count as an integer. Which of the two it must be is the kind's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum LimitMax {
    Money(String),
    Count(i64),
}

impl<'de> Deserialize<'de> for LimitMax {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(LimitMaxVisitor)
    }
}

struct LimitMaxVisitor;

impl de::Visitor<'_> for LimitMaxVisitor {
    type Value = LimitMax;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an integer, or for money a decimal string such as \"100.50\"")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<LimitMax, E> {
        Ok(LimitMax::Money(text.to_owned()))
    }

    fn visit_i64<E: de::Error>(self, count: i64) -> Result<LimitMax, E> {
        Ok(LimitMax::Count(count))
    }

    fn visit_u64<E: de::Error>(self, count: u64) -> Result<LimitMax, E> {
        i64::try_from(count).map(LimitMax::Count).map_err(|_| E::custom("the count is larger than Weir can count"))
    }
}

/// 32 bytes in hexadecimal.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyHashText(pub [u8; 32]);

impl FromStr for KeyHashText {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let mut bytes = [0; 32];
        // The text is not repeated: it may be the key itself, put here by mistake (I6).
        let not_hash = "a key is written as its hash, 64 hexadecimal digits, never as the key itself";
        hex::decode_to_slice(text, &mut bytes).map_err(|_| not_hash.to_owned())?;
        Ok(Self(bytes))
    }
}

impl fmt::Display for KeyHashText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

/// As the domain's `KeyHash`: a hash is no key, but a log is no place for it either.
impl fmt::Debug for KeyHashText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyHash(…)")
    }
}

impl Serialize for KeyHashText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for KeyHashText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}
