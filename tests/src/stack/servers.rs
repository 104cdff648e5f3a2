//! Kafka, a CQL server and Redis Cluster, for one test program, and what may happen to them.
//!
//! Each kind is started once per layout and test program, and ended by its script once this process is gone. The scripts
//! do the killing too, so that what a test does to a server is what a person can do by hand.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock};
use std::thread;
use std::time::Duration;

use weir_runtime::units::HumanDuration;

use super::script;

/// Whether real servers are left out, which somebody has to ask for.
#[must_use]
pub fn is_skipped(what: &str) -> bool {
    let is_skipped = std::env::var("WEIR_SKIP_STACK").is_ok_and(|value| value == "1");
    if is_skipped {
        eprintln!("SKIPPED on Kafka, CQL and Redis, because of WEIR_SKIP_STACK=1: {what}");
    }
    is_skipped
}

/// How much of the servers may be lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Layout {
    /// 1, or 3 of which one may be lost.
    pub brokers: u16,
    /// Of each of the three Redis masters: 0 or 1.
    pub replicas: u16,
}

impl Default for Layout {
    fn default() -> Self {
        Self { brokers: 1, replicas: 0 }
    }
}

/// The servers of a layout.
#[derive(Debug)]
pub struct Servers {
    layout: Layout,
    folder: PathBuf,
    pub(super) brokers: Vec<String>,
    cql: &'static CqlServer,
    redis_port: u16,
}

/// One node, for all layouts: what it loses is the same in each.
#[derive(Debug)]
struct CqlServer {
    folder: PathBuf,
    nodes: String,
}

/// Masters of the cluster.
const MASTERS: u16 = 3;

impl Servers {
    /// Those of the default layout.
    #[must_use]
    pub fn shared() -> &'static Self {
        Self::of(Layout::default())
    }

    /// Started at the first call with this layout. Blocks.
    ///
    /// # Panics
    /// When a server does not start.
    #[must_use]
    pub fn of(layout: Layout) -> &'static Self {
        static SERVERS: OnceLock<Mutex<HashMap<Layout, &'static Servers>>> = OnceLock::new();
        let mut started = SERVERS.get_or_init(Mutex::default).lock().expect("no start panicked");
        started.entry(layout).or_insert_with(|| Box::leak(Box::new(Self::start(layout))))
    }

    fn start(layout: Layout) -> Self {
        let folder = folder();
        thread::scope(|scope| {
            let brokers = scope.spawn(|| start_kafka(&folder, layout.brokers));
            let cql = scope.spawn(CqlServer::shared);
            let redis_port = start_redis(&folder, layout.replicas);
            let brokers = brokers.join().expect("Kafka starts");
            Self {
                layout,
                brokers,
                cql: cql.join().expect("the CQL server starts"),
                redis_port,
                folder: folder.clone(),
            }
        })
    }

    /// SIGKILL, where it is not said otherwise. Brokers are counted from 1.
    pub fn kill_broker(&self, number: u16) {
        self.kafka("kill", Some(number));
    }

    /// Starts it again where it was; returns when it is ready.
    pub fn restart_broker(&self, number: u16) {
        self.kafka("restart", Some(number));
    }

    fn kafka(&self, act: &str, number: Option<u16>) {
        let mut command = Command::new(script("kafka.sh"));
        command.arg(self.folder.join("kafka")).arg(act).args(number.map(|number| number.to_string()));
        run(command.env("KAFKA_PORT", kafka_port(&self.brokers).to_string()));
    }

    pub fn kill_cql(&self) {
        self.cql.act("kill");
    }

    pub fn restart_cql(&self) {
        self.cql.act("restart");
    }

    /// How many tenants of an installation have counters that are in force.
    #[must_use]
    pub fn open_books(&self, prefix: &str) -> usize {
        let pattern = format!("{prefix}:{{*:book");
        let on = |number: u16| {
            let books = self.redis_cli(number, &["--scan", "--pattern", &pattern]);
            books
                .lines()
                .filter(|book| !self.redis_cli(number, &["hget", book, "generation"]).trim().is_empty())
                .count()
        };
        let masters =
            (1..=self.redis_nodes()).filter(|number| self.redis_cli(*number, &["role"]).starts_with("master"));
        masters.map(on).sum()
    }

    /// The number, from 1, of the Redis node that serves the keys of `prefix` that belong to a tenant.
    ///
    /// # Panics
    /// When no node has any, or several have.
    #[must_use]
    pub fn redis_master_of(&self, prefix: &str) -> u16 {
        let pattern = format!("{prefix}:{{*:book");
        let has_book = |number: &u16| {
            let is_master = self.redis_cli(*number, &["role"]).starts_with("master");
            is_master && !self.redis_cli(*number, &["--scan", "--pattern", &pattern]).trim().is_empty()
        };
        let found: Vec<u16> = (1..=self.redis_nodes()).filter(has_book).collect();
        assert_eq!(found.len(), 1, "nodes with a book of {prefix}");
        found[0]
    }

    pub fn kill_redis(&self, number: u16) {
        self.redis("kill", number);
    }

    /// Starts every node that is down.
    pub fn restart_redis(&self) {
        for number in 1..=self.redis_nodes() {
            self.redis("restart", number);
        }
    }

    fn redis(&self, act: &str, number: u16) {
        run(Command::new(script("redis.sh")).arg(act).arg(self.folder.join("redis")).arg(number.to_string()));
    }

    /// Everything that every master has, of every installation on it.
    pub fn flush_redis(&self) {
        for number in 1..=self.redis_nodes() {
            if self.redis_cli(number, &["role"]).starts_with("master") {
                assert_eq!(self.redis_cli(number, &["flushall"]).trim(), "OK");
            }
        }
    }

    const fn redis_nodes(&self) -> u16 {
        MASTERS * (1 + self.layout.replicas)
    }

    fn redis_cli(&self, number: u16, arguments: &[&str]) -> String {
        let port = self.redis_port + number - 1;
        run(Command::new("redis-cli").args(["-p", &port.to_string()]).args(arguments))
    }

    /// The stores' sections of `weir.toml`, for an installation called `name`.
    #[must_use]
    pub(super) fn sections(&self, name: &str, session_timeout: Duration) -> String {
        let Self { layout, brokers, cql, redis_port, .. } = self;
        let nodes: Vec<&str> = cql.nodes.split(',').collect();
        let replication = layout.brokers;
        let redis: Vec<String> =
            (0..self.redis_nodes()).map(|n| format!("redis://127.0.0.1:{}", redis_port + n)).collect();
        format!(
            "[ledger.cql]\nnodes = {nodes:?}\nkeyspace = \"{name}\"\nreplicas = 1\n\
             [quota.redis]\nnodes = {redis:?}\ncluster = true\nprefix = \"{name}\"\n\
             [log.kafka]\nbrokers = {brokers:?}\nprefix = \"{name}.\"\nreplication = {replication}\nmax_partitions = 4\n\
             session_timeout = \"{}\"\n",
            HumanDuration::from_secs(session_timeout.as_secs())
        )
    }
}

impl CqlServer {
    fn shared() -> &'static Self {
        static SERVER: OnceLock<CqlServer> = OnceLock::new();
        SERVER.get_or_init(|| {
            let mut server = Self { folder: folder().join("cql"), nodes: String::new() };
            server.act("start");
            server.nodes = server.act("address").trim().to_owned();
            server
        })
    }

    fn act(&self, act: &str) -> String {
        let mut command = Command::new(script("cassandra.sh"));
        command.arg(&self.folder).arg(act).env("CQL_PORT", "0").env("CQL_OWNER", std::process::id().to_string());
        run(&mut command)
    }
}

fn folder() -> PathBuf {
    tempfile::Builder::new().prefix("weir-servers-").tempdir().expect("a folder can be made").keep()
}

fn start_kafka(folder: &Path, brokers: u16) -> Vec<String> {
    let port = free_ports(40, 19);
    let printed = run(Command::new(script("kafka.sh"))
        .arg(folder.join("kafka"))
        .args(["start", &brokers.to_string()])
        .env("KAFKA_PORT", port.to_string())
        .env("KAFKA_OWNER", std::process::id().to_string()));
    let list = printed.trim().strip_prefix("KAFKA_BROKERS=").expect("the script names its brokers");
    list.split(',').map(str::to_owned).collect()
}

/// What the script was told at the start: it counts the nodes' ports from there.
fn kafka_port(brokers: &[String]) -> u16 {
    let port = brokers.first().and_then(|broker| broker.rsplit(':').next()).and_then(|port| port.parse::<u16>().ok());
    port.expect("a broker has a port") - 10
}

fn start_redis(folder: &Path, replicas: u16) -> u16 {
    // The cluster's bus is 10,000 above, and must stay below the ephemeral ports.
    let port = free_ports(MASTERS * (1 + replicas), 11);
    let data = folder.join("redis");
    let owner = std::process::id().to_string();
    for act in [vec!["start", "cluster"], vec!["wait"]] {
        let mut command = Command::new(script("redis.sh"));
        command.args(&act).arg(&data).env("OWNER", &owner).env("REPLICAS", replicas.to_string());
        if act[0] == "start" {
            command.arg(port.to_string());
        }
        run(&mut command);
    }
    port
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{told}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The first of `count` ports in a row that nobody listens on, from `thousands` on; another program may take one in the
/// same moment, and then the script says so.
fn free_ports(count: u16, thousands: u16) -> u16 {
    let first = thousands * 1000;
    let spread = u16::try_from(std::process::id() % 50).expect("it is below 50");
    (0..100u16)
        .map(|attempt| first + (spread * count + attempt * count) % 3000)
        .find(|port| (0..count).all(|more| std::net::TcpListener::bind(("127.0.0.1", port + more)).is_ok()))
        .expect("there are free ports")
}
