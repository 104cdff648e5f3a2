//! What is measured: one shape of request under one load.

use std::fmt;

use serde::Serialize;
use serde_json::json;

/// Content chunks of a streamed answer, and words of a plain one.
pub(crate) const CHUNKS: usize = 44;

/// The model whose answers begin and then stay open.
pub(crate) const IDLE_MODEL: &str = "idle";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Shape {
    Plain,
    Stream,
}

/// Prompt sizes are bytes here; the report says kilobytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Case {
    pub shape: Shape,
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
                let load =
                    |shape, prompt_bytes, gap_ms| Self { shape, prompt_bytes, gap_ms, connections, provider_delay_ms };
                cases.extend([SMALL, USUAL, LARGE].map(|bytes| load(Shape::Plain, bytes, 0)));
                // A small prompt, so that the figure per chunk is about chunks.
                cases.extend([0, 10].map(|gap_ms| load(Shape::Stream, SMALL, gap_ms)));
            }
        }
        cases
    }

    /// Those that a target is about.
    pub(crate) fn quick() -> Vec<Self> {
        Self::all().into_iter().filter(Self::has_target).collect()
    }

    fn has_target(&self) -> bool {
        match self.shape {
            Shape::Plain => self.is_saturating_usual() || self.shows_added_latency(),
            Shape::Stream => self.connections > 1 && self.provider_delay_ms == 0,
        }
    }

    /// The row of the targets for CPU and throughput.
    pub(crate) fn is_saturating_usual(&self) -> bool {
        self.shape == Shape::Plain && self.prompt_bytes == USUAL && self.connections > 1 && self.provider_delay_ms == 0
    }

    /// Low load, a provider that needs time: what a proxy adds is the difference to asking the provider itself.
    pub(crate) fn shows_added_latency(&self) -> bool {
        self.shape == Shape::Plain && self.prompt_bytes == USUAL && self.connections == 1 && self.provider_delay_ms > 0
    }

    /// The model's name, which is also the name of the provider's script.
    pub(crate) fn model(&self) -> String {
        match self.shape {
            Shape::Plain => format!("plain-{}", self.provider_delay_ms),
            Shape::Stream => format!("stream-{}-{}", self.gap_ms, self.provider_delay_ms),
        }
    }

    pub(crate) fn body(&self) -> String {
        body(&self.model(), self.prompt_bytes, self.shape == Shape::Stream)
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
        write!(f, ", {} conn., +{} ms", self.connections, self.provider_delay_ms)
    }
}

/// A request as an SDK writes it.
pub(crate) fn body(model: &str, prompt_bytes: usize, streams: bool) -> String {
    const WORDS: &str =
        "A weir is a low barrier across a river; it raises the water and measures what flows over it.\n";
    let prompt: String = WORDS.chars().cycle().take(prompt_bytes).collect();
    let mut body = json!({
        "model": model,
        "messages": [
            { "role": "system", "content": "You answer briefly." },
            { "role": "user", "content": prompt },
        ],
        "temperature": 0.2,
        "max_tokens": 256,
    });
    if streams {
        body["stream"] = json!(true);
        body["stream_options"] = json!({ "include_usage": true });
    }
    body.to_string()
}
