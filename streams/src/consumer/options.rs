//! How a consumer behaves.

use std::time::Duration;

use crate::contract::{Limits, Visibility};
use crate::topics::OnPoison;

/// How a consumer behaves; the defaults fit every consumer of Weir.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConsumerOptions {
    /// From the topic's row in `topics.toml`.
    pub on_poison: OnPoison,
    /// Of one delivery: what comes in a tenth of a second at the highest rates.
    pub limits: Limits,
    pub seen: Visibility,
    /// A delivery at the tail begins at least this long after the one before it ended, unless a full one waits or somebody
    /// waits in `Consumer::reached`. Under load it divides deliveries and with them the transactions of the stores; a
    /// record after silence is delivered at once. Zero delivers whatever is there.
    pub gather: Duration,
    /// Pause after the first failure of a delivery; doubles up to `longest_pause`.
    pub first_pause: Duration,
    pub longest_pause: Duration,
    /// How often the orders of operators are looked for while keys are parked.
    pub look_every: Duration,
    /// More parked keys than this are not single bad events but a bad consumer: poison is then retried, which holds
    /// the partition and raises its lag, instead of parking every reservation there is.
    pub max_parked_keys: usize,
}

impl ConsumerOptions {
    #[must_use]
    pub fn new(on_poison: OnPoison) -> Self {
        Self {
            on_poison,
            limits: Limits { records: 4096, bytes: 8 * 1024 * 1024 },
            seen: Visibility::Durable,
            gather: Duration::from_millis(25),
            first_pause: Duration::from_millis(50),
            longest_pause: Duration::from_secs(5),
            look_every: Duration::from_secs(1),
            max_parked_keys: 10_000,
        }
    }
}
