//! Kafka, a CQL server and Redis Cluster, for one test program.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::thread;

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

/// The servers of this test program.
#[derive(Debug)]
pub struct Servers {
    folder: PathBuf,
    pub(super) brokers: Vec<String>,
    nodes: String,
    redis_port: u16,
}

/// Masters of the cluster.
const MASTERS: u16 = 3;

impl Servers {
    /// Started at the first call, one broker, one CQL node, three Redis masters; ended by their scripts once this
    /// process is gone. Blocks.
    #[must_use]
    pub fn shared() -> &'static Self {
        static SERVERS: OnceLock<Servers> = OnceLock::new();
        SERVERS.get_or_init(|| {
            let folder =
                tempfile::Builder::new().prefix("weir-servers-").tempdir().expect("a folder can be made").keep();
            let mut servers = Self { folder, brokers: Vec::new(), nodes: String::new(), redis_port: 0 };
            let (kafka, cql) = (&servers, &servers);
            let (brokers, nodes) = thread::scope(|scope| {
                let brokers = scope.spawn(|| kafka.start_kafka());
                let nodes = scope.spawn(|| cql.start_cql());
                (brokers.join().expect("Kafka starts"), nodes.join().expect("the CQL server starts"))
            });
            servers.redis_port = servers.start_redis();
            (servers.brokers, servers.nodes) = (brokers, nodes);
            servers
        })
    }

    fn start_kafka(&self) -> Vec<String> {
        let port = free_ports(40, 19);
        let data = self.folder.join("kafka");
        let printed = run(Command::new(script("kafka.sh"))
            .arg(data)
            .args(["start", "1"])
            .env("KAFKA_PORT", port.to_string())
            .env("KAFKA_OWNER", std::process::id().to_string()));
        let list = printed.trim().strip_prefix("KAFKA_BROKERS=").expect("the script names its brokers");
        list.split(',').map(str::to_owned).collect()
    }

    fn start_cql(&self) -> String {
        let data = self.folder.join("cql");
        let own = |command: &mut Command| {
            command.env("CQL_PORT", "0").env("CQL_OWNER", std::process::id().to_string());
        };
        let mut start = Command::new(script("cassandra.sh"));
        own(start.arg(&data).arg("start"));
        run(&mut start);
        let mut address = Command::new(script("cassandra.sh"));
        own(address.arg(&data).arg("address"));
        run(&mut address).trim().to_owned()
    }

    fn start_redis(&self) -> u16 {
        // The cluster's bus is 10,000 above, and must stay below the ephemeral ports.
        let port = free_ports(MASTERS, 11);
        let data = self.folder.join("redis");
        let owner = std::process::id().to_string();
        for act in [vec!["start", "cluster"], vec!["wait"]] {
            let mut command = Command::new(script("redis.sh"));
            command.args(&act).arg(&data).env("OWNER", &owner);
            if act[0] == "start" {
                command.arg(port.to_string());
            }
            run(&mut command);
        }
        port
    }

    /// Does something to the broker, as `kafka.sh` names it: `kill`, `restart`, `pause`, `resume`. Blocks.
    pub fn broker(&self, act: &str) {
        run(Command::new(script("kafka.sh")).arg(self.folder.join("kafka")).args([act, "1"]));
    }

    /// Everything that Redis has is gone, of every installation on it.
    pub fn flush_redis(&self) {
        for port in self.redis_port..self.redis_port + MASTERS {
            run(Command::new("redis-cli").args(["-p", &port.to_string(), "FLUSHALL"]));
        }
    }

    /// The stores' sections of `weir.toml`, for an installation called `name`.
    #[must_use]
    pub fn sections(&self, name: &str) -> String {
        let Self { brokers, nodes, redis_port, .. } = self;
        let nodes: Vec<&str> = nodes.split(',').collect();
        format!(
            "[log.kafka]\nbrokers = {brokers:?}\nprefix = \"{name}.\"\nreplication = 1\nmax_partitions = 4\n\
             session_timeout = \"6s\"\n\
             [ledger.cql]\nnodes = {nodes:?}\nkeyspace = \"{name}\"\nreplicas = 1\n\
             [quota.redis]\nnodes = [\"redis://127.0.0.1:{redis_port}\"]\ncluster = true\nprefix = \"{name}\"\n"
        )
    }
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
