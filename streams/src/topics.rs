//! The topics: names as a type, everything else from `topics.toml`.
//!
//! A topic and its dead letters are both a [`Topic`], because both are appended to, read and kept by the same rules.
//! The names are in the type rather than in the file so that code cannot name a topic that does not exist; a test
//! and [`Topics::bundled`] hold file and type together.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::Deserialize;
use thiserror::Error;

const BUNDLED: &str = include_str!("../topics.toml");
/// Put before every topic's suffix unless the configuration says otherwise.
pub const DEFAULT_PREFIX: &str = "weir.";

/// One ordered, keyed stream of records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Topic {
    Reservations,
    UsageReports,
    Ledger,
    Usage,
    Discrepancies,
    Snapshots,
    Revocations,
    Operations,
    ReservationsDeadLetters,
    UsageReportsDeadLetters,
    LedgerDeadLetters,
    UsageDeadLetters,
    DiscrepanciesDeadLetters,
    SnapshotsDeadLetters,
    RevocationsDeadLetters,
    OperationsDeadLetters,
}

impl Topic {
    /// All topics in the order in which the embedded log syncs them: the one that clients wait for comes first.
    pub const ALL: [Self; 16] = [
        Self::Reservations,
        Self::UsageReports,
        Self::Ledger,
        Self::Usage,
        Self::Discrepancies,
        Self::Snapshots,
        Self::Revocations,
        Self::Operations,
        Self::ReservationsDeadLetters,
        Self::UsageReportsDeadLetters,
        Self::LedgerDeadLetters,
        Self::UsageDeadLetters,
        Self::DiscrepanciesDeadLetters,
        Self::SnapshotsDeadLetters,
        Self::RevocationsDeadLetters,
        Self::OperationsDeadLetters,
    ];
    pub const COUNT: usize = Self::ALL.len();

    /// Position in [`Topic::ALL`], for tables with one row per topic.
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The name without prefix, such as `usage-reports`: also the name of its folder in the embedded log.
    #[must_use]
    pub const fn suffix(self) -> &'static str {
        match self {
            Self::Reservations => "reservations",
            Self::UsageReports => "usage-reports",
            Self::Ledger => "ledger",
            Self::Usage => "usage",
            Self::Discrepancies => "discrepancies",
            Self::Snapshots => "snapshots",
            Self::Revocations => "revocations",
            Self::Operations => "operations",
            Self::ReservationsDeadLetters => "reservations.dead-letters",
            Self::UsageReportsDeadLetters => "usage-reports.dead-letters",
            Self::LedgerDeadLetters => "ledger.dead-letters",
            Self::UsageDeadLetters => "usage.dead-letters",
            Self::DiscrepanciesDeadLetters => "discrepancies.dead-letters",
            Self::SnapshotsDeadLetters => "snapshots.dead-letters",
            Self::RevocationsDeadLetters => "revocations.dead-letters",
            Self::OperationsDeadLetters => "operations.dead-letters",
        }
    }

    /// Where what a consumer cannot digest is recorded. The dead letters of dead letters are themselves.
    #[must_use]
    pub const fn dead_letters(self) -> Self {
        match self {
            Self::Reservations | Self::ReservationsDeadLetters => Self::ReservationsDeadLetters,
            Self::UsageReports | Self::UsageReportsDeadLetters => Self::UsageReportsDeadLetters,
            Self::Ledger | Self::LedgerDeadLetters => Self::LedgerDeadLetters,
            Self::Usage | Self::UsageDeadLetters => Self::UsageDeadLetters,
            Self::Discrepancies | Self::DiscrepanciesDeadLetters => Self::DiscrepanciesDeadLetters,
            Self::Snapshots | Self::SnapshotsDeadLetters => Self::SnapshotsDeadLetters,
            Self::Revocations | Self::RevocationsDeadLetters => Self::RevocationsDeadLetters,
            Self::Operations | Self::OperationsDeadLetters => Self::OperationsDeadLetters,
        }
    }

    #[must_use]
    pub fn is_dead_letters(self) -> bool {
        self == self.dead_letters()
    }

    /// The topic with this suffix, if there is one.
    #[must_use]
    pub fn by_suffix(suffix: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|topic| topic.suffix() == suffix)
    }
}

impl fmt::Display for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.suffix())
    }
}

/// How long records stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retention {
    Forever,
    Days(u32),
    /// The last record of each key stays. The embedded log keeps all of them: such topics are small, and offsets
    /// without holes are worth more there than the space.
    Compacted,
}

/// What a consumer does with an event that it can never digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnPoison {
    ParkKey,
    SkipRecord,
}

/// One row of `topics.toml`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicSpec {
    pub purpose: String,
    pub key: String,
    pub written_by: Vec<String>,
    pub read_by: Vec<String>,
    pub partitions: u32,
    pub retention: Retention,
    pub on_poison: OnPoison,
    pub sync_gap: Duration,
}

/// Why the table of topics cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TopicsError {
    #[error("topics.toml does not parse: {0}")]
    Syntax(String),
    #[error("topics.toml has no table [{0}]: every topic needs one")]
    Missing(&'static str),
    #[error("topics.toml has a table [{0}], which is not a topic: remove it or add it to `Topic`")]
    Unknown(String),
    #[error("[{topic}] keep = \"{keep}\": write \"forever\", \"compacted\" or days such as \"35d\"")]
    Retention { topic: &'static str, keep: String },
    #[error("[{0}] partitions = 0: a topic needs at least one")]
    NoPartition(&'static str),
}

/// The table of all topics, with the prefix that this installation puts before their names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topics {
    prefix: String,
    specs: Vec<TopicSpec>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    purpose: String,
    key: String,
    written_by: Vec<String>,
    read_by: Vec<String>,
    partitions: u32,
    keep: String,
    on_poison: OnPoison,
    sync_gap_ms: u64,
}

impl Topics {
    /// The table that ships with Weir, under [`DEFAULT_PREFIX`].
    ///
    /// # Errors
    /// Only if the file and [`Topic`] disagree, which a test of this crate excludes.
    pub fn bundled() -> Result<Self, TopicsError> {
        Self::parse(BUNDLED)
    }

    /// # Errors
    /// When the text is not a table with exactly one row for every topic that is not a dead-letter topic.
    pub fn parse(text: &str) -> Result<Self, TopicsError> {
        let mut rows: BTreeMap<String, Row> =
            toml::from_str(text).map_err(|error| TopicsError::Syntax(error.to_string()))?;
        let mut specs = Vec::with_capacity(Topic::COUNT);
        for topic in Topic::ALL.into_iter().filter(|topic| !topic.is_dead_letters()) {
            let name = topic.suffix();
            specs.push(spec(name, rows.remove(name).ok_or(TopicsError::Missing(name))?)?);
        }
        if let Some(name) = rows.into_keys().next() {
            return Err(TopicsError::Unknown(name));
        }
        let dead_letters: Vec<TopicSpec> = specs.iter().map(dead_letters_of).collect();
        specs.extend(dead_letters);
        Ok(Self { prefix: DEFAULT_PREFIX.to_owned(), specs })
    }

    #[must_use]
    pub fn with_prefix(self, prefix: impl Into<String>) -> Self {
        Self { prefix: prefix.into(), ..self }
    }

    /// No topic with more partitions than this, for small installations.
    #[must_use]
    pub fn with_max_partitions(mut self, most: u32) -> Self {
        for spec in &mut self.specs {
            spec.partitions = spec.partitions.min(most.max(1));
        }
        self
    }

    /// The full name on a shared cluster, such as `weir.reservations`.
    #[must_use]
    pub fn name(&self, topic: Topic) -> String {
        format!("{}{}", self.prefix, topic.suffix())
    }

    #[must_use]
    pub fn spec(&self, topic: Topic) -> &TopicSpec {
        &self.specs[topic.index()]
    }
}

fn spec(topic: &'static str, row: Row) -> Result<TopicSpec, TopicsError> {
    let retention = match row.keep.as_str() {
        "forever" => Retention::Forever,
        "compacted" => Retention::Compacted,
        other => match other.strip_suffix('d').and_then(|days| days.parse().ok()) {
            Some(days) if days > 0 => Retention::Days(days),
            Some(_) | None => return Err(TopicsError::Retention { topic, keep: row.keep }),
        },
    };
    if row.partitions == 0 {
        return Err(TopicsError::NoPartition(topic));
    }
    Ok(TopicSpec {
        purpose: row.purpose,
        key: row.key,
        written_by: row.written_by,
        read_by: row.read_by,
        partitions: row.partitions,
        retention,
        on_poison: row.on_poison,
        sync_gap: Duration::from_millis(row.sync_gap_ms),
    })
}

fn dead_letters_of(source: &TopicSpec) -> TopicSpec {
    TopicSpec {
        purpose: format!("what a consumer could not digest of: {}", source.purpose),
        written_by: vec!["any consumer".to_owned()],
        read_by: vec!["operators".to_owned()],
        retention: Retention::Forever,
        on_poison: OnPoison::SkipRecord,
        sync_gap: Duration::ZERO,
        ..source.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bundled_table_has_every_topic_and_its_dead_letters() {
        let topics = Topics::bundled().unwrap();
        assert_eq!(topics.name(Topic::Reservations), "weir.reservations");
        assert_eq!(topics.name(Topic::Usage.dead_letters()), "weir.usage.dead-letters");
        assert_eq!(topics.clone().with_prefix("eu.").name(Topic::UsageReports), "eu.usage-reports");
        for (index, topic) in Topic::ALL.into_iter().enumerate() {
            assert_eq!(topic.index(), index);
            assert_eq!(Topic::by_suffix(topic.suffix()), Some(topic));
            assert_eq!(topic.is_dead_letters(), topic.suffix().ends_with(".dead-letters"));
            assert_eq!(topics.spec(topic).partitions, topics.spec(topic.dead_letters()).partitions);
        }
    }

    #[test]
    fn money_topics_park_and_stay() {
        let topics = Topics::bundled().unwrap();
        for topic in [Topic::Reservations, Topic::UsageReports, Topic::Ledger, Topic::Discrepancies] {
            assert_eq!(topics.spec(topic).on_poison, OnPoison::ParkKey, "{topic}");
        }
        assert_eq!(topics.spec(Topic::Reservations).retention, Retention::Forever);
        assert_eq!(topics.spec(Topic::Reservations).sync_gap, Duration::ZERO);
    }

    #[test]
    fn a_wrong_table_is_refused_by_field() {
        let with = |from: &str, to: &str| Topics::parse(&BUNDLED.replace(from, to));
        assert_eq!(with("[usage]", "[usages]"), Err(TopicsError::Missing("usage")));
        let last = BUNDLED.rfind("[operations]").unwrap();
        let extra = format!("{BUNDLED}\n{}", BUNDLED[last..].replace("operations", "more"));
        assert_eq!(Topics::parse(&extra), Err(TopicsError::Unknown("more".to_owned())));
        for keep in ["35", "0d", "d", "-1d"] {
            let refused = with("\"35d\"", &format!("\"{keep}\""));
            assert!(matches!(refused, Err(TopicsError::Retention { topic: "usage", .. })), "{keep}: {refused:?}");
        }
        assert_eq!(with("partitions = 48", "partitions = 0"), Err(TopicsError::NoPartition("reservations")));
        assert!(matches!(with("sync_gap_ms", "sync_gap"), Err(TopicsError::Syntax(_))));
    }
}
