//! Opening the log: the topics are there, and can keep the promise.

use std::time::Duration;

use rdkafka::config::{ClientConfig, FromClientConfigAndContext as _};
use rdkafka::producer::ThreadedProducer;
use thiserror::Error;

use super::client::{self, KafkaError};
use super::options::KafkaOptions;
use super::produce::{Deliveries, Producer};
use super::topics::{self, Found, TopicState};
use crate::topics::{Topic, Topics, TopicsError};

/// Why the log on Kafka cannot be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    #[error(transparent)]
    Kafka(#[from] KafkaError),
    #[error(transparent)]
    Topics(#[from] TopicsError),
    #[error("these topics are not there: {}; run `weir topics apply`", .0.join(", "))]
    Missing(Vec<String>),
    #[error("these topics can lose what they confirmed:{}", told(.0))]
    Unfit(Vec<TopicState>),
}

impl OpenError {
    /// Whether the same call may succeed later by itself: the brokers are away, or somebody is about to create the
    /// topics.
    #[must_use]
    pub const fn is_temporary(&self) -> bool {
        match self {
            Self::Kafka(error) => error.is_temporary(),
            Self::Missing(_) => true,
            Self::Topics(_) | Self::Unfit(_) => false,
        }
    }
}

fn told(states: &[TopicState]) -> String {
    let lines = states
        .iter()
        .flat_map(|state| state.broken().map(move |difference| format!("\n  {}: {difference}", state.name)));
    lines.collect()
}

/// What is needed to work on the topics.
#[derive(Debug)]
pub(super) struct Opened {
    pub producer: Producer,
    /// By [`Topic::index`].
    pub names: Vec<String>,
    pub partitions: Vec<u32>,
}

/// Checks all topics, then makes the producer and lets it introduce itself, which the first append would wait for.
pub(super) async fn open(options: &KafkaOptions, table: &Topics, timeout: Duration) -> Result<Opened, OpenError> {
    let config = client::producer(options, timeout)?;
    let states = topics::compare(options, table).await?;
    let missing: Vec<String> = of(&states, |state| state.found == Found::Missing).map(|it| it.name.clone()).collect();
    if !missing.is_empty() {
        return Err(OpenError::Missing(missing));
    }
    let unfit: Vec<TopicState> = of(&states, |state| state.broken().next().is_some()).cloned().collect();
    if !unfit.is_empty() {
        return Err(OpenError::Unfit(unfit));
    }
    for state in of(&states, |state| state.found != Found::AsWanted) {
        tracing::warn!(topic = state.name, found = ?state.found, "topic differs from the table");
    }
    let producer = producer(&config, options.queue.as_usize())?;
    let names: Vec<String> = states.iter().map(|state| state.name.clone()).collect();
    let partitions: Vec<u32> = states.iter().map(|state| state.partitions).collect();
    debug_assert_eq!(partitions.len(), Topic::COUNT, "one state for each topic");
    Ok(Opened { producer, names, partitions })
}

/// A producer that takes up to `queue` bytes that are not confirmed.
pub(super) fn producer(config: &ClientConfig, queue: usize) -> Result<Producer, KafkaError> {
    let producer: Result<ThreadedProducer<Deliveries>, _> =
        ThreadedProducer::from_config_and_context(config, Deliveries::new());
    let producer = producer.map_err(|error| KafkaError::Client(error.to_string()))?;
    Ok(Producer::new(producer, queue))
}

fn of(states: &[TopicState], is: impl Fn(&TopicState) -> bool) -> impl Iterator<Item = &TopicState> {
    states.iter().filter(move |state| is(state))
}
