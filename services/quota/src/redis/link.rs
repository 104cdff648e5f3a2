//! The connection, single or cluster, and the scripts.
//!
//! Every script may run twice: `apply` knows its own repeat by the operation's id, the others read or say the same thing
//! again. So a lost reply, a promoted node and a restarted one are all met by running the same call again, for as long as
//! the operator's patience lasts. `NOSCRIPT` was not run, and is met by sending the script's text.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::{ConnectionLike, ConnectionManager, ConnectionManagerConfig};
use redis::cluster::ClusterClientBuilder;
use redis::cluster_routing::{MultipleNodeRoutingInfo, RoutingInfo};
use redis::io::tcp::TcpSettings;
use redis::{
    Cmd, ConnectionInfo, ErrorKind, IntoConnectionInfo as _, RedisConnectionInfo, RedisError, RetryMethod,
    Script as Hashed, ServerErrorKind, Value,
};
use secrecy::ExposeSecret as _;
use tokio::time::Instant;

use weir_runtime::secrets::SecretRef;

use crate::contract::QuotaError;

use super::cluster::Cluster;
use super::options::{RedisOptions, RedisOptionsError};

/// The text of a script: the prelude, then its own file.
macro_rules! script {
    ($file:literal, $flags:literal) => {
        concat!("#!lua", $flags, "\n", include_str!("lua/prelude.lua"), include_str!(concat!("lua/", $file, ".lua")))
    };
}

/// The scripts by name. What only reads says so, because a node that is full or lacks replicas still answers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Script {
    Apply,
    Read,
    List,
    Counters,
    Revoke,
    Status,
    Validate,
    RebuildBegin,
    RebuildPut,
    RebuildOpen,
    Turn,
}

impl Script {
    const ALL: [Self; 11] = [
        Self::Apply,
        Self::Read,
        Self::List,
        Self::Counters,
        Self::Revoke,
        Self::Status,
        Self::Validate,
        Self::RebuildBegin,
        Self::RebuildPut,
        Self::RebuildOpen,
        Self::Turn,
    ];

    const fn text(self) -> &'static str {
        match self {
            Self::Apply => script!("apply", ""),
            Self::Read => script!("read", " flags=no-writes"),
            Self::List => script!("list", " flags=no-writes"),
            Self::Counters => script!("counters", " flags=no-writes"),
            Self::Revoke => script!("revoke", ""),
            Self::Status => script!("status", " flags=no-writes"),
            Self::Validate => script!("validate", ""),
            Self::RebuildBegin => script!("rebuild_begin", ""),
            Self::RebuildPut => script!("rebuild_put", ""),
            Self::RebuildOpen => script!("rebuild_open", ""),
            Self::Turn => script!("turn", ""),
        }
    }
}

/// Keys and arguments of one run of a script.
#[derive(Debug, Clone, Default)]
pub(super) struct Call {
    keys: Vec<Vec<u8>>,
    arguments: Vec<Vec<u8>>,
}

impl Call {
    pub(super) fn with_key(key: Vec<u8>) -> Self {
        Self { keys: vec![key], arguments: Vec::new() }
    }

    pub(super) fn key(&mut self, key: Vec<u8>) -> &mut Self {
        self.keys.push(key);
        self
    }

    pub(super) fn bytes(&mut self, bytes: Vec<u8>) -> &mut Self {
        self.arguments.push(bytes);
        self
    }

    pub(super) fn text(&mut self, text: &str) -> &mut Self {
        self.bytes(text.as_bytes().to_vec())
    }

    pub(super) fn number(&mut self, number: impl ToString) -> &mut Self {
        self.bytes(number.to_string().into_bytes())
    }

    fn command(&self, verb: &str, script: &str) -> Cmd {
        let mut command = redis::cmd(verb);
        command.arg(script).arg(self.keys.len()).arg(&self.keys).arg(&self.arguments);
        command
    }
}

/// A value of a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Found {
    Number(i64),
    Bytes(Vec<u8>),
    List(Vec<Self>),
}

impl Found {
    /// The exact number, which the scripts send as text where it is an amount.
    pub(super) fn number(&self) -> Result<i64, QuotaError> {
        match self {
            Self::Number(number) => Ok(*number),
            Self::Bytes(bytes) => {
                let number = std::str::from_utf8(bytes).ok().and_then(|text| text.parse().ok());
                number.ok_or_else(|| malformed("a number"))
            }
            Self::List(_) => Err(malformed("a number")),
        }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Number(_) | Self::List(_) => &[],
        }
    }

    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(self.bytes()).into_owned()
    }

    pub(super) fn list(&self) -> &[Self] {
        match self {
            Self::List(list) => list,
            Self::Number(_) | Self::Bytes(_) => &[],
        }
    }

    fn of(value: Value) -> Self {
        match value {
            Value::Int(number) => Self::Number(number),
            Value::BulkString(bytes) => Self::Bytes(bytes),
            Value::SimpleString(text) => Self::Bytes(text.into_bytes()),
            Value::Okay => Self::Bytes(b"OK".to_vec()),
            Value::Array(values) | Value::Set(values) => Self::List(values.into_iter().map(Self::of).collect()),
            Value::Map(pairs) => Self::List(pairs.into_iter().flat_map(|(k, v)| [Self::of(k), Self::of(v)]).collect()),
            _ => Self::Bytes(Vec::new()),
        }
    }
}

/// A script's reply: a word, the store's clock, and the rest.
#[derive(Debug, Clone)]
pub(super) struct Answer {
    pub(super) word: String,
    pub(super) now_ms: i64,
    rest: Vec<Found>,
}

impl Answer {
    pub(super) fn rest(&self, at: usize) -> &Found {
        const NOTHING: &Found = &Found::Bytes(Vec::new());
        self.rest.get(at).unwrap_or(NOTHING)
    }

    fn of(value: Value) -> Result<Self, QuotaError> {
        let Found::List(values) = Found::of(value) else { return Err(malformed("a reply")) };
        let mut values = values.into_iter();
        let (Some(word), Some(now)) = (values.next(), values.next()) else { return Err(malformed("a reply")) };
        let answer = Self { word: word.text(), now_ms: now.number()?, rest: values.collect() };
        match answer.word.as_str() {
            "missing" => Err(not_validated("there is no validated book of this tenant: it has to be rebuilt")),
            "fenced" => Err(not_validated("the node failed over or restarted since the book was validated")),
            "lost" => Err(not_validated("another rebuild took over, or the node failed over meanwhile")),
            "beyond" => Err(QuotaError::OutOfBounds { what: "a counter of the tenant" }),
            _ => Ok(answer),
        }
    }
}

fn not_validated(reason: &str) -> QuotaError {
    QuotaError::NotValidated { reason: reason.to_owned() }
}

pub(super) fn malformed(what: &str) -> QuotaError {
    QuotaError::Unavailable { reason: format!("the store's answer is not understood: {what} is missing") }
}

#[derive(Clone)]
enum Connection {
    Single(ConnectionManager),
    Cluster(Arc<Cluster>),
}

pub(super) struct Link {
    connection: Connection,
    scripts: Vec<Hashed>,
    patience: Duration,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.connection {
            Connection::Single(_) => "single",
            Connection::Cluster(_) => "cluster",
        };
        f.debug_struct("Link").field("kind", &kind).field("patience", &self.patience).finish_non_exhaustive()
    }
}

/// Between two tries of a call: short beside a promotion (seconds), long beside a round trip.
const PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// How long the same call is made again.
struct Patience {
    until: Instant,
    pause: Duration,
}

impl Patience {
    fn new(length: Duration) -> Self {
        Self { until: Instant::now() + length, pause: PAUSE }
    }

    /// Returns when the call may be made again, or the refusal when it may not.
    async fn wait_after(&mut self, error: &RedisError) -> Result<(), QuotaError> {
        if !may_pass(error) || Instant::now() + self.pause > self.until {
            return Err(unavailable(error));
        }
        tracing::debug!(%error, "the quota store is asked again");
        tokio::time::sleep(self.pause).await;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        Ok(())
    }
}

impl Link {
    /// Connects when it is first needed: a process starts while its stores are down.
    pub(super) fn new(options: &RedisOptions) -> Result<Self, RedisOptionsError> {
        let nodes = nodes(options)?;
        let (connect, respond) = (options.connect_timeout.duration(), options.response_timeout.duration());
        let unusable =
            |error: RedisError| RedisOptionsError::Node { node: options.nodes.join(", "), reason: error.to_string() };
        let connection = if options.cluster {
            // The driver follows redirections; everything else is tried again here, so that one bound holds.
            let client = ClusterClientBuilder::new(nodes)
                .retries(3)
                .min_retry_wait(10)
                .max_retry_wait(100)
                .connection_timeout(connect)
                .response_timeout(respond)
                .tcp_settings(tcp_settings())
                .build()
                .map_err(unusable)?;
            Connection::Cluster(Arc::new(Cluster::new(client, respond)))
        } else {
            let node = nodes.into_iter().next().ok_or(RedisOptionsError::NoNodes)?;
            let client = redis::Client::open(node).map_err(unusable)?;
            let config = ConnectionManagerConfig::new()
                .set_number_of_retries(1)
                .set_min_delay(PAUSE)
                .set_max_delay(LONGEST_PAUSE)
                .set_connection_timeout(Some(connect))
                .set_response_timeout(Some(respond));
            Connection::Single(ConnectionManager::new_lazy_with_config(client, config).map_err(unusable)?)
        };
        let scripts = Script::ALL.iter().map(|script| Hashed::new(script.text())).collect();
        Ok(Self { connection, scripts, patience: options.patience.duration() })
    }

    pub(super) async fn run(&self, script: Script, call: &Call) -> Result<Answer, QuotaError> {
        let command = call.command("EVALSHA", self.scripts[script as usize].get_hash());
        let mut patience = Patience::new(self.patience);
        loop {
            let error = match self.send(&command).await {
                Ok(value) => return Answer::of(value),
                Err(error) => error,
            };
            let error = if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) {
                match self.send(&call.command("EVAL", script.text())).await {
                    Ok(value) => return Answer::of(value),
                    Err(error) => error,
                }
            } else {
                error
            };
            patience.wait_after(&error).await?;
        }
    }

    /// One command to wherever its key lies. Only what may run twice.
    pub(super) async fn ask(&self, command: &Cmd) -> Result<Found, QuotaError> {
        let mut patience = Patience::new(self.patience);
        loop {
            match self.send(command).await {
                Ok(value) => return Ok(Found::of(value)),
                Err(error) => patience.wait_after(&error).await?,
            }
        }
    }

    /// One command to every master; each answer with the node it came from.
    pub(super) async fn ask_nodes(&self, command: &Cmd) -> Result<Vec<(String, Found)>, QuotaError> {
        match &self.connection {
            Connection::Single(_) => Ok(vec![("the node".to_owned(), self.ask(command).await?)]),
            Connection::Cluster(cluster) => {
                let everywhere = RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, None));
                let answers = cluster.route(command, everywhere).await;
                match answers.map_err(|error| unavailable(&error))? {
                    Value::Map(nodes) => {
                        Ok(nodes.into_iter().map(|(node, found)| (Found::of(node).text(), Found::of(found))).collect())
                    }
                    _ => Err(malformed("answer of each node")),
                }
            }
        }
    }

    async fn send(&self, command: &Cmd) -> Result<Value, RedisError> {
        // Clones share one multiplexed connection.
        let value = match self.connection.clone() {
            Connection::Single(mut manager) => manager.req_packed_command(command).await,
            Connection::Cluster(cluster) => cluster.send(command).await,
        };
        value?.extract_error()
    }
}

/// The nodes with the credentials that the options refer to.
fn nodes(options: &RedisOptions) -> Result<Vec<ConnectionInfo>, RedisOptionsError> {
    if options.nodes.is_empty() {
        return Err(RedisOptionsError::NoNodes);
    }
    let password =
        options.password.as_ref().map(SecretRef::resolve).transpose().map_err(RedisOptionsError::Password)?;
    let mut settings = RedisConnectionInfo::default();
    if let Some(username) = &options.username {
        settings = settings.set_username(username);
    }
    if let Some(password) = &password {
        settings = settings.set_password(password.expose_secret());
    }
    let named = options.nodes.iter().map(|node| {
        if node.contains('@') {
            return Err(RedisOptionsError::Credentials);
        }
        let info = node.as_str().into_connection_info();
        let info = info.map_err(|error| RedisOptionsError::Node { node: node.clone(), reason: error.to_string() })?;
        Ok(info.set_redis_settings(settings.clone()).set_tcp_settings(tcp_settings()))
    });
    named.collect()
}

/// The driver leaves Nagle's algorithm on: a call would wait until the answer to the one before it acknowledges that.
fn tcp_settings() -> TcpSettings {
    TcpSettings::default().set_nodelay(true)
}

/// Whether the same call may do better in a moment. What a script or the server itself refuses stays refused.
fn may_pass(error: &RedisError) -> bool {
    !matches!(error.retry_method(), RetryMethod::NoRetry) || error.is_io_error() || error.is_cluster_error()
}

fn unavailable(error: &RedisError) -> QuotaError {
    QuotaError::Unavailable { reason: error.to_string() }
}
