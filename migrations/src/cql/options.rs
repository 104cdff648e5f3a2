//! Where the CQL servers are and how hard they are used: the part of `weir.toml` that belongs to them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use weir_runtime::secrets::SecretRef;
use weir_runtime::units::HumanDuration;

/// A keyspace in ScyllaDB, or in Apache Cassandra.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CqlOptions {
    /// Some of the nodes, `HOST:PORT`; the others are learnt from them. All nodes use one port.
    pub nodes: Vec<String>,
    /// The data centre of this process. Statements stay in it, and whatever is agreed on has its home in one.
    pub datacenter: String,
    /// Made by `weir migrate` where it is missing.
    pub keyspace: String,
    /// Copies in the data centre of a keyspace that `weir migrate` makes; three, so that one node may be away.
    pub replicas: u8,
    /// With `password`, for servers that ask who it is.
    pub user: Option<String>,
    pub password: Option<SecretRef>,
    /// How long a connection may take to open.
    pub connect_timeout: HumanDuration,
    /// How long one statement may take; then its outcome is unknown and it is repeated. Above the servers' own
    /// timeouts (2 s for a write, 5 s for a read), so that their answer comes first.
    pub request_timeout: HumanDuration,
    /// Statements under way at once, of this process: more only queue in the servers.
    pub in_flight: usize,
}

impl Default for CqlOptions {
    fn default() -> Self {
        Self {
            nodes: vec!["127.0.0.1:9042".to_owned()],
            datacenter: "dc1".to_owned(),
            keyspace: "weir".to_owned(),
            replicas: 3,
            user: None,
            password: None,
            connect_timeout: HumanDuration::from_secs(5),
            request_timeout: HumanDuration::from_secs(6),
            in_flight: 64,
        }
    }
}
