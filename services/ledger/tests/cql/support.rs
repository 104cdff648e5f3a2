//! A server of this binary's own, and what tests do to it.

use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, OnceLock};

use futures_util::future::try_join_all;
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use tokio::sync::{Mutex, MutexGuard, OnceCell};

use weir_ledger::conformance::Outcome;
use weir_ledger::cql::{CqlLedger, CqlOptions, migrate};
use weir_runtime::clock::SystemClock;
use weir_runtime::units::HumanDuration;

pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Whether real servers are left out, which somebody has to ask for.
pub fn is_skipped(what: &str) -> bool {
    let is_skipped = std::env::var("WEIR_SKIP_STACK").is_ok_and(|value| value == "1");
    if is_skipped {
        eprintln!("SKIPPED on a CQL server, because of WEIR_SKIP_STACK=1: {what}");
    }
    is_skipped
}

/// The server, for one test at a time.
pub struct Turn {
    _alone: MutexGuard<'static, ()>,
    pub server: &'static Server,
}

/// Waits for its turn and empties every table.
pub async fn turn() -> Result<Turn, Failure> {
    static TURN: Mutex<()> = Mutex::const_new(());
    static MIGRATED: OnceCell<()> = OnceCell::const_new();
    let alone = TURN.lock().await;
    let server = Server::shared();
    let migrated = async || migrate(&server.options(), "tests").await.map(|_| ());
    MIGRATED.get_or_try_init(migrated).await?;
    server.empty().await?;
    Ok(Turn { _alone: alone, server })
}

/// One node, started once.
pub struct Server {
    data: PathBuf,
    pub address: String,
}

impl Server {
    fn shared() -> &'static Self {
        static SERVER: OnceLock<Server> = OnceLock::new();
        SERVER.get_or_init(|| {
            let data = tempfile::Builder::new().prefix("weir-cql-").tempdir().unwrap().keep();
            let mut server = Self { data, address: String::new() };
            server.run(&["start"]);
            server.address = server.run(&["address"]).trim().to_owned();
            server
        })
    }

    /// One command of the script. Blocks for as long as a start takes.
    pub fn run(&self, arguments: &[&str]) -> String {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/dev/stack/cassandra.sh");
        let mut command = Command::new(script);
        command.arg(&self.data).args(arguments);
        command.env("CQL_PORT", "0").env("CQL_OWNER", std::process::id().to_string());
        let output = command.output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "cassandra.sh {arguments:?}: {told}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// `STOP` or `CONT`, to the server alone.
    pub fn signal(&self, name: &str) {
        let pid = std::fs::read_to_string(self.data.join("1/pid")).unwrap();
        let status = Command::new("kill").args(["-s", name, pid.trim()]).status().unwrap();
        assert!(status.success(), "kill -s {name} {pid}");
    }

    pub fn options(&self) -> CqlOptions {
        CqlOptions {
            nodes: vec![self.address.clone()],
            keyspace: "weir_test".to_owned(),
            replicas: 1,
            // Machines that run tests are busy.
            request_timeout: HumanDuration::from_secs(20),
            connect_timeout: HumanDuration::from_secs(20),
            ..CqlOptions::default()
        }
    }

    pub async fn ledger(&self) -> Result<Arc<CqlLedger>, Failure> {
        Ok(Arc::new(CqlLedger::open(&self.options(), SystemClock::shared()).await?))
    }

    /// A session past Weir.
    pub async fn session(&self) -> Result<Session, Failure> {
        let keyspace = self.options().keyspace;
        Ok(SessionBuilder::new().known_node(&self.address).use_keyspace(keyspace, false).build().await?)
    }

    async fn empty(&self) -> Outcome {
        let session = self.session().await?;
        let select = "SELECT table_name FROM system_schema.tables WHERE keyspace_name = ?";
        let tables = session.query_unpaged(select, (self.options().keyspace,)).await?.into_rows_result()?;
        let tables = tables.rows::<(String,)>()?.collect::<Result<Vec<_>, _>>()?;
        let data = tables.into_iter().filter(|(table,)| !table.starts_with("weir_migration"));
        let truncated = data.map(|(table,)| session.query_unpaged(format!("TRUNCATE {table}"), ()));
        try_join_all(truncated).await?;
        Ok(())
    }
}
