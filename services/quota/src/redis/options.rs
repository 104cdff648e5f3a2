//! What an operator may set of the quota store on Redis.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use thiserror::Error;

use weir_runtime::secrets::{SecretError, SecretRef};
use weir_runtime::units::HumanDuration;

/// Why the options cannot work, whatever the servers say.
#[derive(Debug, Error)]
pub enum RedisOptionsError {
    #[error("quota.redis.nodes is empty: name a node as \"redis://host:port\"")]
    NoNodes,
    #[error("quota.redis.nodes: `{node}` is not \"redis://host:port\": {reason}")]
    Node { node: String, reason: String },
    /// The node is not named, because the text holds a secret.
    #[error(
        "quota.redis.nodes holds a user or password: write quota.redis.username and a reference in quota.redis.password"
    )]
    Credentials,
    #[error("quota.redis.prefix: `{0}` has braces, which would decide where keys lie: leave them out")]
    Prefix(String),
    #[error("quota.redis.password")]
    Password(#[source] SecretError),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RedisOptions {
    /// Each as `redis://host:port`. Of a cluster any of its nodes; the rest are found.
    pub nodes: Vec<String>,
    pub username: Option<String>,
    pub password: Option<SecretRef>,
    /// Whether the nodes are a Redis Cluster.
    pub cluster: bool,
    /// What every key begins with. No braces: they decide where a key lies in a cluster.
    pub prefix: String,
    /// For one try to connect.
    pub connect_timeout: HumanDuration,
    /// For one try of a command. A script takes well under a millisecond; this is for networks.
    pub response_timeout: HumanDuration,
    /// How long a command is tried again, after a lost reply or while a node is promoted. Then it is refused.
    pub patience: HumanDuration,
    /// How long the record of an ended reservation stays, so that a repeated command finds it.
    pub retry_horizon: HumanDuration,
    /// Replicas that each master must have: with one or more, `min-replicas-to-write` has to be set on every node.
    pub replicas: u32,
    /// Open reservations that are remembered here, to save a read before each command. About 2 KiB each.
    pub remembered: usize,
}

impl Default for RedisOptions {
    fn default() -> Self {
        Self {
            nodes: vec!["redis://127.0.0.1:6379".to_owned()],
            username: None,
            password: None,
            cluster: false,
            prefix: "weir".to_owned(),
            connect_timeout: HumanDuration::from_secs(1),
            response_timeout: HumanDuration::from_secs(1),
            patience: HumanDuration::from_secs(2),
            retry_horizon: HumanDuration::from_secs(24 * 60 * 60),
            replicas: 0,
            remembered: 16_384,
        }
    }
}
