//! One installation under test: a provider, a data folder, and the process that is started, killed and started again
//! on it.
//!
//! The provider is a stub inside the test, so that a test sees its journal without asking; everything else goes over
//! sockets and files.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde::Deserialize;
use tempfile::TempDir;

use weir_stub::script::Scripts;
use weir_stub::{Stub, StubOptions};

use crate::catalog::{Catalog, KEY, PEPPER, PROVIDER_KEY};
use crate::client::Client;
use crate::{PATIENCE, Process, weir_binary};

/// What a test wants to be different.
#[derive(Debug)]
pub struct Setup {
    pub catalog: Catalog,
    /// Sections of `weir.toml`.
    pub config: String,
    pub scripts: Scripts,
    pub stub: StubOptions,
    /// The name under which the provider is reached, instead of its address.
    pub provider_host: Option<String>,
    /// Of the process.
    pub environment: Vec<(String, String)>,
    pub binary: PathBuf,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            catalog: Catalog::default(),
            config: String::new(),
            scripts: Scripts::default(),
            stub: StubOptions::default(),
            provider_host: None,
            environment: Vec::new(),
            binary: weir_binary().to_owned(),
        }
    }
}

/// An installation, and its process while it runs.
#[derive(Debug)]
pub struct House {
    pub stub: Stub,
    /// With the key of the tests, at the gateway.
    pub client: Client,
    /// At the admin API.
    pub admin: Client,
    pub process: Process,
    pub gateway_url: String,
    pub admin_url: String,
    folder: TempDir,
    binary: PathBuf,
    environment: Vec<(String, String)>,
    /// How often it was started.
    starts: usize,
}

/// What `weir up --json` prints when it listens.
#[derive(Debug, Deserialize)]
struct Greeting {
    gateway_url: String,
    admin_url: String,
}

impl House {
    /// Writes all files, starts provider and process, and returns when it is ready.
    pub async fn start(setup: Setup) -> Self {
        let house = Self::start_unready(setup).await;
        house.ready().await;
        house
    }

    /// The same without waiting for readiness.
    pub async fn start_unready(setup: Setup) -> Self {
        let Setup { catalog, config, scripts, stub, provider_host, environment, binary } = setup;
        let stub = Stub::start(StubOptions { scripts, ..stub }).expect("the stub starts");
        let folder = tempfile::Builder::new().prefix("weir-test-").tempdir().expect("a folder can be made");
        let base_url = match provider_host {
            Some(host) => format!("https://{host}:{}/v1", stub.addr().port()),
            None => format!("{}/v1", stub.url()),
        };
        let write = |name: &str, text: &str| {
            std::fs::write(folder.path().join(name), text).expect("a file can be written");
            folder.path().join(name).display().to_string()
        };
        let pepper = write("pepper", PEPPER);
        let credential = format!("file:{}", write("provider.key", PROVIDER_KEY));
        write("catalog.toml", &catalog.to_toml(&base_url, &credential));
        write("weir.toml", &format!("{config}\n[secrets]\npepper = \"file:{pepper}\"\n"));
        let (process, greeting) = launch(&binary, folder.path(), &environment, 1).await;
        let mut house = Self {
            stub,
            client: Client::new("", ""),
            admin: Client::new("", ""),
            process,
            gateway_url: String::new(),
            admin_url: String::new(),
            folder,
            binary,
            environment,
            starts: 1,
        };
        house.connect(greeting);
        house
    }

    fn connect(&mut self, greeting: Greeting) {
        let token = std::fs::read_to_string(self.data().join("secrets/admin.token")).unwrap_or_default();
        self.client = Client::new(&greeting.gateway_url, KEY);
        self.admin = Client::new(&greeting.admin_url, token.trim());
        self.gateway_url = greeting.gateway_url;
        self.admin_url = greeting.admin_url;
    }

    /// Waits for `/readyz`.
    pub async fn ready(&self) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let answer = self.client.get("/readyz").await;
            if answer.status.is_success() {
                return;
            }
            assert!(Instant::now() < deadline, "not ready: {}\n{}", answer.text(), self.process.told());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Starts the process again on the same data, after it was killed or stopped.
    pub async fn restart(&mut self) {
        self.restart_unready().await;
        self.ready().await;
    }

    pub async fn restart_unready(&mut self) {
        self.process.kill();
        self.starts += 1;
        let (process, greeting) = launch(&self.binary, self.folder.path(), &self.environment, self.starts).await;
        self.process = process;
        self.connect(greeting);
    }

    /// SIGTERM, and its end.
    pub async fn stop(&mut self) {
        self.process.terminate();
        let status = self.process.wait(PATIENCE).await;
        assert!(status.success(), "{status}\n{}", self.process.told());
    }

    /// Replaces the catalog and has it applied.
    pub async fn apply(&self, catalog: &Catalog) {
        let credential = format!("file:{}", self.folder.path().join("provider.key").display());
        let toml = catalog.to_toml(&format!("{}/v1", self.stub.url()), &credential);
        std::fs::write(self.folder.path().join("catalog.toml"), &toml).expect("a file can be written");
        let answer = self.admin.post("/admin/v1/catalog/apply", toml).await;
        assert!(answer.status.is_success(), "{}", answer.text());
    }

    /// Everything of this installation: configuration, outputs and, in `data`, what the process keeps.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    #[must_use]
    pub fn data(&self) -> PathBuf {
        data_of(self.folder.path())
    }

    #[must_use]
    pub fn binary(&self) -> &Path {
        &self.binary
    }
}

fn data_of(folder: &Path) -> PathBuf {
    folder.join("data")
}

async fn launch(binary: &Path, folder: &Path, environment: &[(String, String)], start: usize) -> (Process, Greeting) {
    let mut command = Command::new(binary);
    command
        .args(["up", "--json", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--config"])
        .arg(folder.join("weir.toml"))
        .arg("--catalog")
        .arg(folder.join("catalog.toml"))
        .arg("--data")
        .arg(data_of(folder))
        .current_dir(folder)
        .envs(environment.iter().map(|(name, value)| (name, value)));
    let mut process = Process::start(command, folder, &format!("up-{start}"));
    let deadline = Instant::now() + PATIENCE;
    loop {
        let printed = std::fs::read_to_string(&process.stdout).unwrap_or_default();
        if let Some(greeting) = printed.lines().find_map(|line| serde_json::from_str(line).ok()) {
            return (process, greeting);
        }
        let ended = process.ended();
        assert!(ended.is_none(), "weir ended at its start: {ended:?}\n{}", process.told());
        assert!(Instant::now() < deadline, "weir does not listen\n{}", process.told());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
