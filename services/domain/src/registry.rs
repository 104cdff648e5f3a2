//! The registry: logical models, the deployments behind them, and the providers those live at.
//!
//! What a logical model can do is computed as the intersection of its deployments, never typed in: a client must not
//! get a capability error that depends on which deployment the router happened to pick.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::ids::{DeploymentId, ModelName, ProviderId};

macro_rules! capabilities {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// Something a request may need and a deployment may offer.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Capability { $($(#[$doc])* $variant,)* }

        impl Capability {
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}

capabilities! {
    Streaming = "streaming",
    Tools = "tools",
    Vision = "vision",
    JsonMode = "json_mode",
    JsonSchema = "json_schema",
    Audio = "audio",
    Logprobs = "logprobs",
    /// More than one choice (`n` above 1).
    ManyChoices = "many_choices",
    /// Provider-side web search.
    WebSearch = "web_search",
    /// Embeddings, and nothing else: such a model answers no conversation.
    Embeddings = "embeddings",
}

/// A set of capabilities, one bit each.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Capabilities(u16);

impl Capabilities {
    pub const NONE: Self = Self(0);

    #[must_use]
    pub fn all() -> Self {
        Capability::ALL.iter().copied().collect()
    }

    /// Everything that conversations can need.
    #[must_use]
    pub fn of_conversations() -> Self {
        Capability::ALL.iter().copied().filter(|capability| *capability != Capability::Embeddings).collect()
    }

    #[must_use]
    pub const fn with(self, capability: Capability) -> Self {
        Self(self.0 | 1 << capability as u16)
    }

    #[must_use]
    pub const fn contains(self, capability: Capability) -> bool {
        self.0 & (1 << capability as u16) != 0
    }

    #[must_use]
    pub const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// What of `self` is not in `offered`.
    #[must_use]
    pub const fn missing_from(self, offered: Self) -> Self {
        Self(self.0 & !offered.0)
    }

    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn iter(self) -> impl Iterator<Item = Capability> {
        Capability::ALL.iter().copied().filter(move |capability| self.contains(*capability))
    }
}

impl FromIterator<Capability> for Capabilities {
    fn from_iter<I: IntoIterator<Item = Capability>>(capabilities: I) -> Self {
        capabilities.into_iter().fold(Self::NONE, Self::with)
    }
}

impl fmt::Debug for Capabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter().map(Capability::as_str)).finish()
    }
}

impl Serialize for Capabilities {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

impl<'de> Deserialize<'de> for Capabilities {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Vec::<Capability>::deserialize(deserializer)?.into_iter().collect())
    }
}

/// Whose API a provider speaks. Which of its endpoints is asked follows from the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProviderDialect {
    /// `openai_chat` is what catalogs said while chat completions were all that there was.
    #[serde(alias = "openai_chat")]
    Openai,
    Anthropic,
}

/// The version in which an Anthropic deployment is asked on behalf of clients of another API; those of its own bring
/// theirs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum AnthropicVersion {
    #[default]
    #[serde(rename = "2023-06-01")]
    V2023_06_01,
    /// Without sampling parameters.
    #[serde(rename = "2026-10-21")]
    V2026_10_21,
}

/// What to do with an attempt that nobody waits for any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnAbandon {
    /// Close the connection at once; the usage stays unknown until a report.
    #[default]
    Close,
    /// Read on to learn the usage, for as long as the process allows; the provider goes on billing meanwhile.
    Drain,
    /// Read on for a short while, then close.
    DrainWithin,
}

/// What can break a stream that has begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BreakTrigger {
    /// The connection broke, or the stream ended early.
    TransportError,
    ReadTimeout,
    UpstreamDecodeError,
    /// Where another target might do better: never the client's own fault.
    UpstreamInBandError,
}

impl BreakTrigger {
    pub const ALL: [Self; 4] =
        [Self::TransportError, Self::ReadTimeout, Self::UpstreamDecodeError, Self::UpstreamInBandError];
}

/// What becomes of a stream that breaks after its first content.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum OnBreak {
    /// It ends with an error event (I4).
    #[default]
    Terminate,
    /// Another deployment is asked for the rest, visibly, as an attempt of its own.
    Continue {
        on: Vec<BreakTrigger>,
        /// Attempts, tighter than those before content on purpose: the client waits in mid-sentence.
        most: u16,
    },
}

/// An account at a provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Provider {
    pub id: ProviderId,
    pub dialect: ProviderDialect,
    /// Scheme, authority and path prefix, without a trailing slash, such as `https://api.openai.com/v1`.
    pub base_url: String,
    /// A reference to the credential (`env:NAME`, `file:PATH`), never the credential (I6).
    pub credential: Option<String>,
    pub organization: Option<String>,
    pub project: Option<String>,
    pub on_abandon: OnAbandon,
    /// A content filter of this provider bills although it answers with an error status.
    pub bills_filtered_errors: bool,
}

/// Which member carries the output cap at a deployment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CapField {
    #[default]
    MaxCompletionTokens,
    MaxTokens,
}

/// A vocabulary by which a model counts text. Naming one is the operator's word that the model uses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tokenizer {
    O200k,
    Cl100k,
}

/// A concrete model at a provider, in a region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deployment {
    pub id: DeploymentId,
    pub provider: Arc<Provider>,
    /// The model's name at the provider.
    pub upstream_model: String,
    pub region: String,
    pub capabilities: Capabilities,
    /// The model's own output cap, tokens.
    pub max_output_tokens: i64,
    /// The name in the price book; a deployment without a price is never eligible (O21).
    pub price: String,
    pub cap_field: CapField,
    pub accepts_stream_options: bool,
    /// Whether the deployment knows the `developer` role; otherwise it is sent as `system`.
    pub accepts_developer_role: bool,
    /// Whether it writes on from an assistant's message in last position; otherwise it is told to go on in words (O12).
    pub accepts_prefill: bool,
    pub anthropic_version: AnthropicVersion,
    /// The most input tokens that 1,000 bytes of text can be.
    pub tokens_per_kilobyte: i64,
    /// The most input tokens that one picture can be.
    pub tokens_per_image: i64,
    /// Counts text exactly where the bound by bytes would refuse; without one the bound is the last word.
    pub tokenizer: Option<Tokenizer>,
}

impl Deployment {
    /// Whether it can do what a request needs.
    #[must_use]
    pub const fn can(&self, needs: Capabilities) -> bool {
        let embeds = Capability::Embeddings;
        needs.missing_from(self.capabilities).is_empty()
            && (needs.contains(embeds) || !self.capabilities.contains(embeds))
    }
}

/// Deadlines of one logical model, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadlines {
    /// Over all attempts of a plain request.
    pub plain_total_ms: i64,
    /// Over all attempts of a stream.
    pub stream_total_ms: i64,
    /// From a stream's request to its first content, for each attempt. Comments do not extend it.
    pub first_content_ms: i64,
    /// Without one byte from the provider, comments included.
    pub idle_ms: i64,
    /// To connect, TLS included.
    pub connect_ms: i64,
    /// For the usage after the finish reason.
    pub usage_after_finish_ms: i64,
    /// Without one byte accepted by the client.
    pub write_stall_ms: i64,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            plain_total_ms: 600_000,
            stream_total_ms: 3_600_000,
            first_content_ms: 120_000,
            idle_ms: 60_000,
            connect_ms: 5_000,
            usage_after_finish_ms: 2_000,
            write_stall_ms: 60_000,
        }
    }
}

/// The alias that clients ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogicalModel {
    pub name: ModelName,
    /// In order of preference; within a tier the router ranks.
    pub tiers: Vec<Vec<Arc<Deployment>>>,
    /// The cap written into requests that bring none; otherwise the model's own.
    pub default_output_tokens: Option<i64>,
    pub max_attempts: u16,
    pub deadlines: Deadlines,
    pub on_break: OnBreak,
}

impl LogicalModel {
    pub fn deployments(&self) -> impl Iterator<Item = &Arc<Deployment>> {
        self.tiers.iter().flatten()
    }

    /// What every deployment can do.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        self.deployments().fold(Capabilities::all(), |common, d| common.intersection(d.capabilities))
    }
}
