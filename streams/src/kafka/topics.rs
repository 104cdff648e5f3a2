//! The topics on a cluster: created as `topics.toml` says, compared with it, and refused where they cannot keep the
//! promise.
//!
//! Nothing is ever deleted or altered. A change of a partition count would scatter the keys of what runs, and a change
//! of a setting on a shared cluster is the operator's to make: so a difference is reported with the command that would
//! repair it.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::config::FromClientConfigAndContext as _;
use rdkafka::metadata::MetadataTopic;
use tokio::time::{Instant, sleep};

use super::client::{self, CALL_TIMEOUT, KafkaError, MAX_RECORD_BYTES, Quiet};
use super::options::KafkaOptions;
use crate::topics::{Retention, Topic, TopicSpec, Topics};

const DAY_MS: i64 = 86_400_000;
/// Creating a few hundred partitions takes a small cluster some seconds.
const ADMIN_TIMEOUT: Duration = Duration::from_secs(60);

const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What was found of one topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicState {
    pub topic: Topic,
    pub name: String,
    /// How many it has; those of the table where it is missing.
    pub partitions: u32,
    pub found: Found,
}

/// Whether a topic is as the table says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// It was not there and has been created.
    Created,
    /// It is not there. Only from [`compare`], which creates nothing.
    Missing,
    AsWanted,
    Differs(Vec<Difference>),
}

/// One setting that is not as the table says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    pub setting: &'static str,
    pub wanted: String,
    pub found: String,
    /// Acknowledged records could be lost, or records refused: the log does not open on such a topic.
    pub breaks_the_promise: bool,
    /// What to run, or why nothing is to be done.
    pub fix: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}, wanted {}: {}", self.setting, self.found, self.wanted, self.fix)
    }
}

impl TopicState {
    /// The differences for which the log does not open.
    pub fn broken(&self) -> impl Iterator<Item = &Difference> {
        let differences = match &self.found {
            Found::Differs(differences) => differences.as_slice(),
            Found::Created | Found::Missing | Found::AsWanted => &[],
        };
        differences.iter().filter(|difference| difference.breaks_the_promise)
    }
}

/// Creates the topics that are missing and compares those that are there. May be repeated at any time.
///
/// # Errors
/// [`KafkaError`]. What was created before the error stays; the next run goes on.
pub async fn apply(options: &KafkaOptions, topics: &Topics) -> Result<Vec<TopicState>, KafkaError> {
    let cluster = Cluster::connect(options).await?;
    let mut states = cluster.compare(topics).await?;
    let missing: Vec<Topic> =
        states.iter().filter(|state| state.found == Found::Missing).map(|state| state.topic).collect();
    cluster.create(topics, &missing).await?;
    for state in states.iter_mut().filter(|state| missing.contains(&state.topic)) {
        state.found = Found::Created;
    }
    Ok(states)
}

/// Compares the topics with the table; changes nothing.
///
/// # Errors
/// [`KafkaError`].
pub async fn compare(options: &KafkaOptions, topics: &Topics) -> Result<Vec<TopicState>, KafkaError> {
    Cluster::connect(options).await?.compare(topics).await
}

struct Cluster<'a> {
    options: &'a KafkaOptions,
    admin: Arc<AdminClient<Quiet>>,
}

impl<'a> Cluster<'a> {
    async fn connect(options: &'a KafkaOptions) -> Result<Self, KafkaError> {
        let config = client::base(options)?;
        let admin = AdminClient::from_config_and_context(&config, Quiet);
        let admin = admin.map_err(|error| KafkaError::Client(error.to_string()))?;
        Ok(Self { options, admin: Arc::new(admin) })
    }

    async fn compare(&self, topics: &Topics) -> Result<Vec<TopicState>, KafkaError> {
        let shapes = self.shapes().await?;
        let mut states: Vec<TopicState> = Topic::ALL
            .into_iter()
            .map(|topic| {
                let (name, partitions) = (topics.name(topic), topics.spec(topic).partitions);
                TopicState { topic, name, partitions, found: Found::Missing }
            })
            .collect();
        let names: Vec<String> = states.iter().map(|state| state.name.clone()).collect();
        let there: Vec<&str> = names.iter().filter(|name| shapes.contains_key(*name)).map(String::as_str).collect();
        if there.is_empty() {
            return Ok(states);
        }
        let resources: Vec<ResourceSpecifier<'_>> = there.iter().map(|name| ResourceSpecifier::Topic(name)).collect();
        let described = self.admin.describe_configs(&resources, &admin_options()).await;
        let described = described.map_err(|error| client::failed(self.options, "describe the topics", &error))?;
        for (name, config) in there.iter().zip(described) {
            let config = config
                .map_err(|code| KafkaError::Refused { action: format!("describe {name}"), detail: code.to_string() })?;
            let Some(state) = states.iter_mut().find(|state| state.name == *name) else { continue };
            let Some(shape) = shapes.get(*name).copied() else { continue };
            state.partitions = u32::try_from(shape.partitions).unwrap_or(u32::MAX);
            let wanted = Wanted { name, spec: topics.spec(state.topic), options: self.options };
            let value = |key: &str| config.get(key).and_then(|entry| entry.value.clone()).unwrap_or_default();
            let differences = wanted.differences(shape, value);
            state.found = if differences.is_empty() { Found::AsWanted } else { Found::Differs(differences) };
        }
        Ok(states)
    }

    async fn shapes(&self) -> Result<HashMap<String, Shape>, KafkaError> {
        let admin = Arc::clone(&self.admin);
        // Asked for without names, because asking for one that is missing could create it.
        let shapes = client::blocking(move || {
            let metadata = admin.inner().fetch_metadata(None, CALL_TIMEOUT)?;
            let named = |topic: &MetadataTopic| shape(topic).map(|shape| (topic.name().to_owned(), shape));
            Ok(metadata.topics().iter().filter_map(named).collect())
        });
        shapes.await.map_err(|error| client::failed(self.options, "list the topics", &error))
    }

    async fn create(&self, topics: &Topics, missing: &[Topic]) -> Result<(), KafkaError> {
        if missing.is_empty() {
            return Ok(());
        }
        let names: Vec<String> = missing.iter().map(|topic| topics.name(*topic)).collect();
        let settings: Vec<Vec<(&str, String)>> =
            missing.iter().map(|topic| settings(topics.spec(*topic), self.options)).collect();
        let wanted: Vec<NewTopic<'_>> = missing
            .iter()
            .zip(&names)
            .zip(&settings)
            .map(|((topic, name), settings)| {
                let partitions = i32::try_from(topics.spec(*topic).partitions).unwrap_or(i32::MAX);
                let replication = TopicReplication::Fixed(i32::from(self.options.replication.max(1)));
                settings
                    .iter()
                    .fold(NewTopic::new(name, partitions, replication), |new, (key, value)| new.set(key, value))
            })
            .collect();
        let created = self.admin.create_topics(&wanted, &admin_options()).await;
        let created = created.map_err(|error| client::failed(self.options, "create the topics", &error))?;
        for result in created {
            match result {
                // Another process was quicker: the same table, the same topic.
                Ok(_) | Err((_, rdkafka::error::RDKafkaErrorCode::TopicAlreadyExists)) => {}
                Err((name, code)) => {
                    return Err(KafkaError::Refused { action: format!("create {name}"), detail: code.to_string() });
                }
            }
        }
        self.are_led(&names).await
    }

    /// Waits until the brokers themselves know of the topics: a log that is opened at once must find them.
    async fn are_led(&self, names: &[String]) -> Result<(), KafkaError> {
        let deadline = Instant::now() + ADMIN_TIMEOUT;
        loop {
            let shapes = self.shapes().await?;
            let Some(late) = names.iter().find(|name| !shapes.get(*name).is_some_and(|shape| shape.is_led)) else {
                return Ok(());
            };
            if Instant::now() >= deadline {
                let (brokers, detail) = (self.options.brokers.join(","), format!("{late} has no leader yet"));
                return Err(KafkaError::Unreachable { brokers, detail });
            }
            sleep(LOOK_EVERY).await;
        }
    }
}

fn admin_options() -> AdminOptions {
    AdminOptions::new().request_timeout(Some(ADMIN_TIMEOUT)).operation_timeout(Some(ADMIN_TIMEOUT))
}

/// How a topic is laid out over the brokers.
#[derive(Debug, Clone, Copy)]
struct Shape {
    partitions: usize,
    /// The least of all partitions.
    replication: usize,
    /// Every partition has a leader.
    is_led: bool,
}

fn shape(topic: &MetadataTopic) -> Option<Shape> {
    let replication = topic.partitions().iter().map(|partition| partition.replicas().len()).min()?;
    let is_led = topic.partitions().iter().all(|partition| partition.leader() >= 0);
    topic.error().is_none().then_some(Shape { partitions: topic.partitions().len(), replication, is_led })
}

/// What a topic is created with.
fn settings(spec: &TopicSpec, options: &KafkaOptions) -> Vec<(&'static str, String)> {
    vec![
        ("cleanup.policy", cleanup(spec.retention).to_owned()),
        ("retention.ms", retention_ms(spec.retention).to_string()),
        ("retention.bytes", "-1".to_owned()),
        ("min.insync.replicas", options.min_in_sync().to_string()),
        ("unclean.leader.election.enable", "false".to_owned()),
        ("max.message.bytes", MAX_RECORD_BYTES.to_string()),
        ("message.timestamp.type", "CreateTime".to_owned()),
        // Times are the caller's: a gateway whose clock is ahead must not lose its events.
        ("message.timestamp.after.max.ms", i64::MAX.to_string()),
    ]
}

const fn cleanup(retention: Retention) -> &'static str {
    match retention {
        Retention::Forever | Retention::Days(_) => "delete",
        Retention::Compacted => "compact",
    }
}

fn retention_ms(retention: Retention) -> i64 {
    match retention {
        Retention::Forever | Retention::Compacted => -1,
        Retention::Days(days) => i64::from(days) * DAY_MS,
    }
}

struct Wanted<'a> {
    name: &'a str,
    spec: &'a TopicSpec,
    options: &'a KafkaOptions,
}

impl Wanted<'_> {
    fn differences(&self, shape: Shape, value: impl Fn(&str) -> String) -> Vec<Difference> {
        let mut differences = Vec::new();
        if shape.partitions != self.spec.partitions as usize {
            differences.push(Difference {
                setting: "partitions",
                wanted: self.spec.partitions.to_string(),
                found: shape.partitions.to_string(),
                breaks_the_promise: false,
                fix: "leave it: a change would break the order of every key".to_owned(),
            });
        }
        let replication = usize::from(self.options.replication.max(1));
        if shape.replication != replication {
            differences.push(Difference {
                setting: "replication",
                wanted: replication.to_string(),
                found: shape.replication.to_string(),
                breaks_the_promise: shape.replication < replication,
                fix: format!("reassign {} with kafka-reassign-partitions, or set kafka.replication", self.name),
            });
        }
        for (setting, wanted) in settings(self.spec, self.options) {
            let found = value(setting);
            if found != wanted {
                let breaks_the_promise = self.breaks(setting, &found);
                let fix = format!(
                    "kafka-configs --alter --entity-type topics --entity-name {} --add-config {setting}={wanted}",
                    self.name
                );
                differences.push(Difference { setting, wanted, found, breaks_the_promise, fix });
            }
        }
        differences
    }

    /// Whether a setting that differs loses what was confirmed, or refuses what must be taken.
    fn breaks(&self, setting: &str, found: &str) -> bool {
        let number = found.parse::<i64>().ok();
        match setting {
            "min.insync.replicas" => number.is_none_or(|found| found < i64::from(self.options.min_in_sync())),
            "unclean.leader.election.enable" => found != "false",
            // Compaction takes records of a topic that is to keep all; a topic to be compacted may keep all.
            "cleanup.policy" => found.contains("compact") && cleanup(self.spec.retention) == "delete",
            "retention.ms" => match (retention_ms(self.spec.retention), number) {
                (_, Some(-1)) => false,
                (-1, _) | (_, None) => true,
                (wanted, Some(found)) => found < wanted,
            },
            "retention.bytes" => number != Some(-1),
            "max.message.bytes" => number.is_none_or(|found| found < MAX_RECORD_BYTES as i64),
            // A broker's own time or a refusal of early clocks loses nothing that was confirmed.
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn differences(topic: Topic, shape: Shape, change: (&str, &str)) -> Vec<(&'static str, bool)> {
        let topics = Topics::bundled().unwrap();
        let options = KafkaOptions::default();
        let wanted = Wanted { name: "t", spec: topics.spec(topic), options: &options };
        let usual = settings(topics.spec(topic), &options);
        let value = |key: &str| match usual.iter().find(|(name, _)| *name == key) {
            Some(_) if key == change.0 => change.1.to_owned(),
            Some((_, value)) => value.clone(),
            None => String::new(),
        };
        wanted.differences(shape, value).into_iter().map(|it| (it.setting, it.breaks_the_promise)).collect()
    }

    const GOOD: Shape = Shape { partitions: 48, replication: 3, is_led: true };

    #[test]
    fn a_topic_as_created_does_not_differ() {
        assert_eq!(differences(Topic::Reservations, GOOD, ("", "")), []);
    }

    /// Each row: a setting, a value, whether the log must refuse it.
    #[test]
    fn what_loses_confirmed_records_breaks_the_promise_and_what_keeps_more_does_not() {
        for (topic, setting, found, breaks) in [
            (Topic::Reservations, "min.insync.replicas", "1", true),
            (Topic::Reservations, "min.insync.replicas", "3", false),
            (Topic::Reservations, "unclean.leader.election.enable", "true", true),
            (Topic::Reservations, "cleanup.policy", "compact,delete", true),
            (Topic::Reservations, "retention.ms", "604800000", true),
            (Topic::Reservations, "retention.bytes", "1000", true),
            (Topic::Reservations, "max.message.bytes", "1048588", true),
            (Topic::Reservations, "message.timestamp.type", "LogAppendTime", false),
            (Topic::Reservations, "retention.ms", "", true),
        ] {
            assert_eq!(differences(topic, GOOD, (setting, found)), [(setting, breaks)], "{setting}={found}");
        }
        let usage = Shape { partitions: 12, ..GOOD };
        assert_eq!(differences(Topic::Usage, usage, ("retention.ms", "-1")), [("retention.ms", false)]);
        assert_eq!(differences(Topic::Usage, usage, ("retention.ms", "1000")), [("retention.ms", true)]);
        let snapshots = Shape { partitions: 1, ..GOOD };
        assert_eq!(differences(Topic::Snapshots, snapshots, ("cleanup.policy", "delete")), [("cleanup.policy", false)]);
    }

    #[test]
    fn another_partition_count_is_told_and_left_and_a_lost_replica_refused() {
        let shape = Shape { partitions: 12, replication: 2, is_led: true };
        let found = differences(Topic::Reservations, shape, ("", ""));
        assert_eq!(found, [("partitions", false), ("replication", true)]);
    }
}
