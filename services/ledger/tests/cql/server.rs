//! A CQL server of this binary's own, and what tests do to it. The tests of the control store have this file too.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use futures_util::future::try_join_all;
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;

use weir_migrations::cql::CqlOptions;
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

/// One node, started once.
pub struct Server {
    data: PathBuf,
    pub address: String,
}

impl Server {
    pub fn shared() -> &'static Self {
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

    /// A session past Weir.
    pub async fn session(&self) -> Result<Session, Failure> {
        let keyspace = self.options().keyspace;
        Ok(SessionBuilder::new().known_node(&self.address).use_keyspace(keyspace, false).build().await?)
    }

    /// Empties every table but those of the runner of migrations.
    pub async fn empty(&self) -> Result<(), Failure> {
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
