//! What is measured: one shape of request under one load.

use std::fmt;

use serde::Serialize;
use serde_json::json;

/// Content chunks of a streamed answer, and words of a plain one.
pub(crate) const CHUNKS: usize = 44;

/// The model whose answers begin and then stay open.
pub(crate) const IDLE_MODEL: &str = "idle";
/// The model whose answers are five megabytes, for clients that hardly read.
pub(crate) const SLOW_MODEL: &str = "torrent";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Shape {
    Plain,
    Stream,
}

/// Whose API is spoken, by a client or by a provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Api {
    Chat,
    Messages,
}

impl Api {
    pub(crate) const fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Messages => "/v1/messages",
        }
    }

    /// What stands in the last event of a whole stream, and nowhere before.
    pub(crate) const fn last_event(self) -> &'static [u8] {
        match self {
            Self::Chat => b"data: [DONE]",
            Self::Messages => b"event: message_stop",
        }
    }

    /// The provider of the catalog that speaks it.
    pub(crate) const fn provider(self) -> &'static str {
        match self {
            Self::Chat => "stub",
            Self::Messages => "stub-anthropic",
        }
    }
}

/// Prompt sizes are bytes here; the report says kilobytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Case {
    pub shape: Shape,
    /// The client's API; the bare proxy has no other.
    pub ingress: Api,
    /// Of the provider that Weir calls.
    pub egress: Api,
    pub prompt_bytes: usize,
    /// Between two chunks of a stream.
    pub gap_ms: u64,
    pub connections: usize,
    /// Before the provider's status line.
    pub provider_delay_ms: u64,
}

const SMALL: usize = 200;
const USUAL: usize = 6_000;
const LARGE: usize = 200_000;
const CONNECTIONS: [usize; 2] = [1, 64];
const DELAYS_MS: [u64; 2] = [0, 20];

impl Case {
    pub(crate) fn all() -> Vec<Self> {
        let mut cases = Vec::new();
        for provider_delay_ms in DELAYS_MS {
            for connections in CONNECTIONS {
                let load = |shape, prompt_bytes, gap_ms| Self {
                    prompt_bytes,
                    gap_ms,
                    connections,
                    provider_delay_ms,
                    ..Self::quick_stream().of(shape)
                };
                cases.extend([SMALL, USUAL, LARGE].map(|bytes| load(Shape::Plain, bytes, 0)));
                // A small prompt, so that the figure per chunk is about chunks.
                cases.extend([0, 10].map(|gap_ms| load(Shape::Stream, SMALL, gap_ms)));
            }
        }
        cases.extend(Self::pairs());
        cases
    }

    /// The pairs of APIs that the others are not about, under load: chunks together, and plain.
    fn pairs() -> impl Iterator<Item = Self> {
        let pairs = [(Api::Chat, Api::Messages), (Api::Messages, Api::Chat), (Api::Messages, Api::Messages)];
        pairs.into_iter().flat_map(|(ingress, egress)| {
            let load = Self { ingress, egress, connections: CONNECTIONS[1], ..Self::quick_stream() };
            [load, Self { prompt_bytes: USUAL, ..load.of(Shape::Plain) }]
        })
    }

    const fn of(self, shape: Shape) -> Self {
        Self { shape, ..self }
    }

    /// Whether the client's API is the provider's.
    pub(crate) fn is_of_one_api(&self) -> bool {
        self.ingress == self.egress
    }

    /// Those that a target is about, and streams that are translated.
    pub(crate) fn quick() -> Vec<Self> {
        let is_quick = |case: &Self| case.has_target() || (case.shape == Shape::Stream && !case.is_of_one_api());
        Self::all().into_iter().filter(is_quick).collect()
    }

    /// An ordinary stream of one client.
    pub(crate) const fn quick_stream() -> Self {
        Self {
            shape: Shape::Stream,
            ingress: Api::Chat,
            egress: Api::Chat,
            prompt_bytes: SMALL,
            gap_ms: 0,
            connections: 1,
            provider_delay_ms: 0,
        }
    }

    fn has_target(&self) -> bool {
        self.is_usual_pair()
            && match self.shape {
                Shape::Plain => self.is_saturating_usual() || self.shows_added_latency(),
                Shape::Stream => self.connections > 1 && self.provider_delay_ms == 0,
            }
    }

    /// Chat completions at a provider of the same API: the pair that the targets are about.
    pub(crate) fn is_usual_pair(&self) -> bool {
        self.ingress == Api::Chat && self.egress == Api::Chat
    }

    /// The row of the targets for CPU and throughput.
    pub(crate) fn is_saturating_usual(&self) -> bool {
        self.is_usual_pair()
            && self.shape == Shape::Plain
            && self.prompt_bytes == USUAL
            && self.connections > 1
            && self.provider_delay_ms == 0
    }

    /// Low load, a provider that needs time: what a proxy adds is the difference to asking the provider itself.
    pub(crate) fn shows_added_latency(&self) -> bool {
        self.is_usual_pair()
            && self.shape == Shape::Plain
            && self.prompt_bytes == USUAL
            && self.connections == 1
            && self.provider_delay_ms > 0
    }

    /// The model's name, which is also the name of the provider's script.
    pub(crate) fn model(&self) -> String {
        let at = match self.egress {
            Api::Chat => "",
            Api::Messages => "-messages",
        };
        match self.shape {
            Shape::Plain => format!("plain-{}{at}", self.provider_delay_ms),
            Shape::Stream => format!("stream-{}-{}{at}", self.gap_ms, self.provider_delay_ms),
        }
    }

    pub(crate) fn body(&self) -> String {
        body_of(self.ingress, &self.model(), self.prompt_bytes, self.shape == Shape::Stream)
    }

    pub(crate) fn prompt_kb(&self) -> f64 {
        // At most six digits.
        f64::from(u32::try_from(self.prompt_bytes).unwrap_or(u32::MAX)) / 1000.0
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.shape {
            Shape::Plain => write!(f, "plain {} KB", self.prompt_kb())?,
            Shape::Stream => write!(f, "stream, gap {} ms", self.gap_ms)?,
        }
        if !self.is_usual_pair() {
            let name = |api| match api {
                Api::Chat => "chat",
                Api::Messages => "messages",
            };
            write!(f, " {} at {}", name(self.ingress), name(self.egress))?;
        }
        write!(f, ", {} conn., +{} ms", self.connections, self.provider_delay_ms)
    }
}

/// A chat request as an SDK writes it.
pub(crate) fn body(model: &str, prompt_bytes: usize, streams: bool) -> String {
    body_of(Api::Chat, model, prompt_bytes, streams)
}

fn body_of(api: Api, model: &str, prompt_bytes: usize, streams: bool) -> String {
    const WORDS: &str =
        "A weir is a low barrier across a river; it raises the water and measures what flows over it.\n";
    let prompt: String = WORDS.chars().cycle().take(prompt_bytes).collect();
    let (instruction, asked) = ("You answer briefly.", json!({ "role": "user", "content": prompt }));
    let mut body = json!({ "model": model, "temperature": 0.2, "max_tokens": 256 });
    match api {
        Api::Chat => body["messages"] = json!([{ "role": "system", "content": instruction }, asked]),
        Api::Messages => {
            body["system"] = json!(instruction);
            body["messages"] = json!([asked]);
        }
    }
    if streams {
        body["stream"] = json!(true);
        if api == Api::Chat {
            body["stream_options"] = json!({ "include_usage": true });
        }
    }
    body.to_string()
}
