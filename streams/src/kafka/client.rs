//! Clients of the library: their settings, what they log, and how their errors are told.

use std::time::Duration;

use rdkafka::ClientContext;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::consumer::ConsumerContext;
use rdkafka::error::{KafkaError as LibraryError, RDKafkaErrorCode};
use secrecy::ExposeSecret;
use thiserror::Error;

use weir_runtime::secrets::SecretError;

use super::options::KafkaOptions;
use crate::contract::MAX_BATCH_BYTES;

/// The largest record with its framing: one batch may be a single record.
pub(super) const MAX_RECORD_BYTES: usize = MAX_BATCH_BYTES + 64 * 1024;
/// What one call to the cluster may take. A broker that restarts needs some seconds; a caller tries again anyway.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Why the cluster could not be used. The text names what to do.
#[derive(Debug, Error)]
pub enum KafkaError {
    #[error("kafka.client: `{0}` is not yours to set: a promise of the log rests on it")]
    Protected(String),
    #[error("kafka.client: `{0}` holds a secret: write it under kafka.client_secrets as \"env:NAME\" or \"file:PATH\"")]
    PlainSecret(String),
    #[error("kafka.client_secrets: `{key}`")]
    Secret { key: String, source: SecretError },
    #[error("kafka.brokers is empty: name at least one as \"host:port\"")]
    NoBroker,
    #[error("the Kafka client cannot be made: {0}; check kafka.client")]
    Client(String),
    #[error("Kafka at {brokers} does not answer: {detail}")]
    Unreachable { brokers: String, detail: String },
    #[error("Kafka refused to {action}: {detail}")]
    Refused { action: String, detail: String },
}

impl KafkaError {
    /// Whether the same call may succeed later without anybody's help with the configuration.
    #[must_use]
    pub const fn is_temporary(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            Self::Protected(_)
            | Self::PlainSecret(_)
            | Self::Secret { .. }
            | Self::NoBroker
            | Self::Client(_)
            | Self::Refused { .. } => false,
        }
    }
}

/// Settings that the promises rest on, with the prefixes of their names.
const PROTECTED: [&str; 22] = [
    "acks",
    "request.required.acks",
    "auto.offset.reset",
    "batch.size",
    "bootstrap.servers",
    "delivery.timeout.ms",
    "enable.auto.",
    "enable.gapless.guarantee",
    "enable.idempotence",
    "enable.partition.eof",
    "fetch.",
    "group.",
    "isolation.level",
    "max.in.flight",
    "message.max.bytes",
    "message.send.max.retries",
    "message.timeout.ms",
    "metadata.broker.list",
    "partition",
    "queue",
    "retries",
    "transaction",
];

const SECRETS: [&str; 5] =
    ["sasl.password", "ssl.key.password", "ssl.keystore.password", "ssl.key.pem", "sasl.oauthbearer.client.secret"];

/// What every client has in common.
pub(super) fn base(options: &KafkaOptions) -> Result<ClientConfig, KafkaError> {
    if options.brokers.is_empty() {
        return Err(KafkaError::NoBroker);
    }
    let mut config = ClientConfig::new();
    // Brokers are addressed by name or IPv4 unless somebody says otherwise; trying IPv6 first costs each reconnect.
    config.set("broker.address.family", "v4");
    // The library's own longest pause is ten seconds, by which every recovery would be late.
    config.set("reconnect.backoff.ms", "50").set("reconnect.backoff.max.ms", "500");
    config.set("socket.keepalive.enable", "true").set("socket.nagle.disable", "true");
    for (key, value) in &options.client {
        if SECRETS.contains(&key.as_str()) {
            return Err(KafkaError::PlainSecret(key.clone()));
        }
        config.set(check(key)?, value);
    }
    for (key, reference) in &options.client_secrets {
        let secret = reference.resolve().map_err(|source| KafkaError::Secret { key: key.clone(), source })?;
        config.set(check(key)?, secret.expose_secret());
    }
    config.set("bootstrap.servers", options.brokers.join(","));
    config.set("client.id", format!("{}weir", options.prefix));
    config.set_log_level(RDKafkaLogLevel::Warning);
    Ok(config)
}

fn check(key: &str) -> Result<&str, KafkaError> {
    if PROTECTED.iter().any(|protected| key.starts_with(protected)) {
        return Err(KafkaError::Protected(key.to_owned()));
    }
    Ok(key)
}

/// The producer of the log. `timeout` zero: nothing times out.
pub(super) fn producer(options: &KafkaOptions, timeout: Duration) -> Result<ClientConfig, KafkaError> {
    let mut config = base(options)?;
    config
        .set("enable.idempotence", "true")
        .set("acks", "all")
        .set("max.in.flight.requests.per.connection", "5")
        .set("message.timeout.ms", timeout.as_millis().to_string())
        .set("message.max.bytes", MAX_RECORD_BYTES.to_string())
        .set("linger.ms", options.linger.as_ms().to_string())
        .set("compression.type", options.compression.name())
        .set("retry.backoff.ms", "50")
        .set("retry.backoff.max.ms", "500")
        // Our own bound refuses first; the library's must never cut a batch in the middle.
        .set("queue.buffering.max.messages", "0")
        .set("queue.buffering.max.kbytes", (options.queue.bytes() / 1024 * 4 + 64 * 1024).min(2_000_000).to_string());
    Ok(config)
}

/// A client that reads given partitions from given places. It is in no group; the library wants a name nevertheless.
pub(super) fn reader(options: &KafkaOptions) -> Result<ClientConfig, KafkaError> {
    let mut config = consumer(options, "reader")?;
    config
        // An idle reader asks ten times a second; a longer wait would hold up partitions that are added meanwhile.
        .set("fetch.wait.max.ms", "100")
        .set("fetch.error.backoff.ms", "100")
        .set("fetch.queue.backoff.ms", "20")
        .set("fetch.message.max.bytes", (1024 * 1024).to_string())
        .set("queued.min.messages", "8192")
        .set("queued.max.messages.kbytes", "16384");
    Ok(config)
}

/// A member of a group, which only learns its partitions and commits: records come by a reader.
pub(super) fn member(options: &KafkaOptions, group: &str) -> Result<ClientConfig, KafkaError> {
    let mut config = consumer(options, group)?;
    let session_ms = options.session_timeout.as_ms();
    config
        .set("partition.assignment.strategy", "cooperative-sticky")
        .set("session.timeout.ms", session_ms.to_string())
        .set("heartbeat.interval.ms", (session_ms / 3).max(100).to_string())
        // Handing over a partition is bounded by `revoke_timeout`, and this must be longer.
        .set("max.poll.interval.ms", (options.revoke_timeout.as_ms() * 2).max(session_ms).max(60_000).to_string());
    Ok(config)
}

fn consumer(options: &KafkaOptions, group: &str) -> Result<ClientConfig, KafkaError> {
    let mut config = base(options)?;
    config
        .set("group.id", group_name(options, group))
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        // A place that is no longer there is an error: going on elsewhere would skip records in silence.
        .set("auto.offset.reset", "error")
        .set("isolation.level", "read_uncommitted")
        .set("allow.auto.create.topics", "false");
    Ok(config)
}

pub(super) fn group_name(options: &KafkaOptions, group: &str) -> String {
    format!("{}{group}", options.prefix)
}

/// Runs a call of the library that blocks. A runtime that shuts down is told as a call that failed.
pub(super) async fn blocking<T: Send + 'static>(
    call: impl FnOnce() -> Result<T, LibraryError> + Send + 'static,
) -> Result<T, LibraryError> {
    tokio::task::spawn_blocking(call).await.unwrap_or(Err(LibraryError::Canceled))
}

/// How a failed call is told.
pub(super) fn failed(options: &KafkaOptions, action: &str, error: &LibraryError) -> KafkaError {
    let detail = error.to_string();
    if error.rdkafka_error_code().is_none_or(is_temporary) {
        KafkaError::Unreachable { brokers: options.brokers.join(","), detail }
    } else {
        KafkaError::Refused { action: action.to_owned(), detail }
    }
}

/// Codes that pass when brokers come back or elect a leader.
pub(super) fn is_temporary(code: RDKafkaErrorCode) -> bool {
    !matches!(
        code,
        RDKafkaErrorCode::Authentication
            | RDKafkaErrorCode::SaslAuthenticationFailed
            | RDKafkaErrorCode::TopicAuthorizationFailed
            | RDKafkaErrorCode::GroupAuthorizationFailed
            | RDKafkaErrorCode::ClusterAuthorizationFailed
            | RDKafkaErrorCode::UnsupportedVersion
            | RDKafkaErrorCode::PolicyViolation
            | RDKafkaErrorCode::InvalidConfig
            | RDKafkaErrorCode::InvalidPartitions
            | RDKafkaErrorCode::InvalidReplicationFactor
            | RDKafkaErrorCode::InvalidTopic
    )
}

/// Sends the library's lines to our own log. It repeats itself at every reconnect, so an outage is told at debug level
/// here and by those who wait.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Quiet;

impl ClientContext for Quiet {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        log_line(level, facility, line);
    }

    fn error(&self, error: LibraryError, reason: &str) {
        tracing::debug!(%error, reason, "kafka client error");
    }
}

impl ConsumerContext for Quiet {}

pub(super) fn log_line(level: RDKafkaLogLevel, facility: &str, line: &str) {
    tracing::debug!(?level, facility, line, "kafka client");
}
