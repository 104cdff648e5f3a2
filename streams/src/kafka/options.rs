//! What an operator may set of the log on Kafka. What its promises rest on is not among it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use weir_runtime::secrets::SecretRef;
use weir_runtime::units::{ByteSize, HumanDuration};

use crate::topics::{DEFAULT_PREFIX, Topics, TopicsError};

/// The event log on Kafka.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct KafkaOptions {
    /// Where clients begin, as "host:port". Two or three of a cluster do: the others are learned from them.
    pub brokers: Vec<String>,
    /// Before the name of every topic and consumer group, so that installations can share a cluster.
    pub prefix: String,
    /// On how many brokers each topic lies. With 3, two must confirm: any one broker may be lost. 1 is for a machine
    /// whose loss may take the log along.
    pub replication: u16,
    /// The most partitions that `weir topics apply` gives a topic it creates: for small installations. Absent: as in
    /// the table of topics. Partitions are for life, whatever is written here later.
    pub max_partitions: Option<u32>,
    /// How long one batch may stay unconfirmed before its outcome is called unknown. Longer than a broker takes to come
    /// back, because an unknown outcome may leave copies. Without effect where there is a spool: nothing times out then.
    pub message_timeout: HumanDuration,
    /// What may wait for confirmation in memory; beyond it appends are refused as busy.
    pub queue: ByteSize,
    /// How long the producer gathers records. Every append waits this much longer for fewer, larger requests.
    pub linger: HumanDuration,
    pub compression: Compression,
    /// How long the brokers wait for a silent consumer before they give its partitions to others.
    pub session_timeout: HumanDuration,
    /// How long an effect may take to finish when its partition goes to another process. What has not finished then is
    /// abandoned: the new owner applies it again.
    pub revoke_timeout: HumanDuration,
    /// Settings of the client library (librdkafka) for security and networks, such as `security.protocol`. Those on
    /// which the promises rest are refused.
    pub client: BTreeMap<String, String>,
    /// The same for secrets, such as `sasl.password`, as references.
    pub client_secrets: BTreeMap<String, SecretRef>,
    pub spool: SpoolOptions,
}

/// What stands in for brokers that do not confirm.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SpoolOptions {
    /// On a volume that outlives the process; absent: `spool` in the data folder. One process at a time.
    pub folder: Option<PathBuf>,
    /// When a batch that the brokers have not confirmed is also synced to the spool, and counts as durable.
    pub after: HumanDuration,
    /// The most that waits in the spool. Beyond it everything is refused.
    pub max: ByteSize,
    /// The part of `max` that is kept for the closing events of what runs: when only this is left, new requests get
    /// 503. A running request needs at most 4 KiB, so the default is enough for sixteen thousand at once.
    pub reserve: ByteSize,
}

/// How records are compressed on their way and on the brokers' disks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Compression {
    /// Records are a few hundred bytes of binary: compressing costs the gateway more than it saves the brokers.
    #[default]
    None,
    Lz4,
    Zstd,
    Gzip,
    Snappy,
}

impl Compression {
    /// As the client library calls it.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
            Self::Gzip => "gzip",
            Self::Snappy => "snappy",
        }
    }
}

impl Default for KafkaOptions {
    fn default() -> Self {
        Self {
            brokers: vec!["127.0.0.1:9092".to_owned()],
            prefix: DEFAULT_PREFIX.to_owned(),
            replication: 3,
            max_partitions: None,
            message_timeout: HumanDuration::from_secs(60),
            queue: ByteSize::mib(64),
            linger: HumanDuration::from_ms(0),
            compression: Compression::None,
            session_timeout: HumanDuration::from_secs(10),
            revoke_timeout: HumanDuration::from_secs(30),
            client: BTreeMap::new(),
            client_secrets: BTreeMap::new(),
            spool: SpoolOptions::default(),
        }
    }
}

impl Default for SpoolOptions {
    fn default() -> Self {
        Self { folder: None, after: HumanDuration::from_ms(100), max: ByteSize::mib(1024), reserve: ByteSize::mib(64) }
    }
}

impl KafkaOptions {
    /// The table of topics as this installation has it.
    ///
    /// # Errors
    /// As [`Topics::bundled`].
    pub fn topics(&self) -> Result<Topics, TopicsError> {
        let topics = Topics::bundled()?.with_prefix(&self.prefix);
        Ok(self.max_partitions.map_or(topics.clone(), |most| topics.with_max_partitions(most)))
    }

    /// How many replicas must have a record before it counts as durable.
    #[must_use]
    pub const fn min_in_sync(&self) -> u16 {
        match self.replication {
            0..=1 => 1,
            2 => 2,
            more => more - 1,
        }
    }
}
