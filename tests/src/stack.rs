//! An installation of roles apart, on real servers that the project's own scripts start.
//!
//! The servers are started once per test program and are gone when it is; each [`Stack`] has topics, keyspace and keys
//! of its own on them. Everything is asked as an operator would: by HTTP and by the commands.

mod books;
pub mod load;
mod servers;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Method;
use serde::Deserialize;
use serde_json::Value;
use tempfile::TempDir;

use weir_domain::money::Amounts;
use weir_runtime::units::HumanDuration;
use weir_stub::journal::{Billed, JournalOptions};
use weir_stub::script::Scripts;
use weir_stub::{Stub, StubOptions};

use crate::catalog::{Catalog, KEY, PEPPER, PROVIDER_KEY, TENANT};
use crate::client::Client;
use crate::failpoints::{Plan, failpoints_binary};
use crate::rest::metric;
use crate::{Process, eventually, weir_binary};

pub use books::Books;
pub use servers::{Layout, Servers, is_skipped};

/// Starting a JVM, rebalancing a group, folding: on a shared machine.
pub const LONG: Duration = Duration::from_secs(120);

/// What a test wants to be different.
#[derive(Debug)]
pub struct StackSetup {
    pub catalog: Catalog,
    pub scripts: Scripts,
    /// More sections of `weir.toml`.
    pub config: String,
    pub gateways: usize,
    pub layout: Layout,
    /// For how long the brokers wait for a consumer that was killed.
    pub session_timeout: Duration,
    /// Of the calls that the provider writes down, the newest.
    pub journal: usize,
    /// What the catalog's prices make of a call, without the request itself.
    pub charge: fn(Billed) -> Amounts,
    /// What happens at named points of a process, by its name (`gateway-0`, `ledger`, …). Where there is any, all
    /// processes are of the build with fail points.
    pub plans: HashMap<&'static str, Plan>,
}

impl Default for StackSetup {
    fn default() -> Self {
        Self {
            catalog: Catalog::default(),
            scripts: Scripts::default(),
            config: String::new(),
            gateways: 2,
            layout: Layout::default(),
            session_timeout: Duration::from_secs(6),
            journal: JournalOptions::default().entries,
            charge: crate::bill::charge,
            plans: HashMap::new(),
        }
    }
}

/// One role in a process of its own.
#[derive(Debug)]
pub struct RoleProcess {
    pub name: String,
    pub role: &'static str,
    pub url: String,
    pub process: Process,
    starts: usize,
    program: Program,
}

/// What is started, and in which environment.
#[derive(Debug, Clone)]
struct Program {
    binary: PathBuf,
    environment: Vec<(String, String)>,
}

/// What a role prints when it listens.
#[derive(Debug, Deserialize)]
struct Greeting {
    url: String,
}

/// Roles apart that run.
#[derive(Debug)]
pub struct Stack {
    pub stub: Stub,
    pub gateways: Vec<RoleProcess>,
    pub ledger: RoleProcess,
    pub reconciler: RoleProcess,
    pub control: RoleProcess,
    /// Beside the first of their role.
    pub more: Vec<RoleProcess>,
    pub admin: Client,
    /// Of its topics.
    pub prefix: String,
    pub servers: &'static Servers,
    /// By the names of the processes.
    pub plans: HashMap<&'static str, Plan>,
    charge: fn(Billed) -> Amounts,
    folder: TempDir,
}

/// What only this test program and this machine share, so the admin's token may stand here.
const ADMIN_TOKEN: &str = "an admin token for tests, drawn by nobody";
const MASTER_KEY: &str = "a master key for tests, drawn by nobody at all";

impl Stack {
    /// Starts the servers if they do not run, makes topics and tables, starts all roles, and returns when every one is
    /// ready and the tenant has its counters.
    pub async fn start(setup: StackSetup) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let StackSetup { catalog, scripts, config, gateways, layout, session_timeout, journal, charge, plans } = setup;
        let servers = tokio::task::spawn_blocking(move || Servers::of(layout)).await.expect("the servers start");
        let journal = JournalOptions { entries: journal, ..JournalOptions::default() };
        let stub = Stub::start(StubOptions { scripts, journal, ..StubOptions::default() }).expect("the stub starts");
        let folder = tempfile::Builder::new().prefix("weir-stack-").tempdir().expect("a folder can be made");
        let write = |name: &str, text: &str| {
            std::fs::write(folder.path().join(name), text).expect("a file can be written");
            folder.path().join(name).display().to_string()
        };
        let credential = format!("file:{}", write("provider.key", PROVIDER_KEY));
        write("catalog.toml", &catalog.to_toml(&format!("{}/v1", stub.url()), &credential));
        let secrets = [("pepper", PEPPER), ("master_key", MASTER_KEY), ("admin_token", ADMIN_TOKEN)]
            .map(|(name, text)| format!("{name} = \"file:{}\"\n", write(name, text)))
            .concat();
        let number = NUMBER.fetch_add(1, Ordering::SeqCst);
        let name = format!("t{}n{number}", std::process::id());
        let stores = servers.sections(&name, session_timeout);
        write("weir.toml", &format!("{stores}\n{config}\n[secrets]\n{secrets}"));
        run_ok(folder.path(), &["topics", "apply"]);
        run_ok(folder.path(), &["migrate"]);
        let start = |role: &'static str, name: &str, more: &[&str]| {
            let binary = if plans.is_empty() { weir_binary() } else { failpoints_binary() };
            let environment = plans.get(name).map(Plan::environment).unwrap_or_default();
            let program = Program { binary: binary.to_owned(), environment };
            RoleProcess::start(folder.path(), role, name, more, program)
        };
        // All at once: each waits for what it needs.
        let control = start("control", "control", &["--catalog", "catalog.toml"]);
        let ledger = start("ledger", "ledger", &[]);
        let reconciler = start("reconciler", "reconciler", &[]);
        let gateways: Vec<RoleProcess> =
            (0..gateways).map(|number| start("gateway", &format!("gateway-{number}"), &[])).collect();
        let admin = Client::new(&control.url, ADMIN_TOKEN);
        let prefix = format!("{name}.");
        let more = Vec::new();
        let stack =
            Self { stub, gateways, ledger, reconciler, control, more, admin, prefix, servers, plans, charge, folder };
        stack.ready().await;
        stack
    }

    fn roles(&self) -> impl Iterator<Item = &RoleProcess> {
        self.gateways.iter().chain([&self.ledger, &self.reconciler, &self.control]).chain(&self.more)
    }

    /// Waits until every role is ready and the counters of [`TENANT`] are there.
    pub async fn ready(&self) {
        for role in self.roles() {
            let ready = role.ready().await;
            assert!(ready.is_ok(), "{ready:?}\n{}", self.told());
        }
        eventually("counters of the tenant", LONG, async || self.counters().await).await;
        self.knows(KEY).await;
    }

    /// Waits until every gateway takes `key`: it is ready with its first policy, and that may be the one before the keys.
    pub async fn knows(&self, key: &str) {
        for gateway in 0..self.gateways.len() {
            let client = self.client(gateway).with_key(key);
            let is_known = async || (client.get("/v1/models").await.status == 200).then_some(());
            eventually("a gateway that knows the key", LONG, is_known).await;
        }
    }

    /// One more process of a role, which shares the work with those that run.
    pub fn join(&mut self, role: &'static str, name: &str) {
        let program = Program { binary: weir_binary().to_owned(), environment: Vec::new() };
        self.more.push(RoleProcess::start(self.folder.path(), role, name, &[], program));
    }

    /// All processes of a role that consumes.
    #[must_use]
    pub fn members(&self, role: &str) -> Vec<&RoleProcess> {
        [&self.ledger, &self.reconciler].into_iter().chain(&self.more).filter(|member| member.role == role).collect()
    }

    /// Takes one of [`Stack::members`] out, for its end. Where it was the first of its role, another one is now.
    ///
    /// # Panics
    /// When it is the only one.
    pub fn leave(&mut self, name: &str) -> RoleProcess {
        if let Some(at) = self.more.iter().position(|member| member.name == name) {
            return self.more.remove(at);
        }
        let first = if self.ledger.name == name { &mut self.ledger } else { &mut self.reconciler };
        let other = self.more.iter().position(|member| member.role == first.role).expect("another one of its role");
        std::mem::replace(first, self.more.remove(other))
    }

    /// To the admin API of this control plane.
    #[must_use]
    pub fn admin_of(&self, control: &RoleProcess) -> Client {
        Client::new(&control.url, ADMIN_TOKEN)
    }

    /// To the admin API where it is now, after its process was started again.
    pub fn reconnect(&mut self) {
        self.admin = Client::new(&self.control.url, ADMIN_TOKEN);
    }

    /// Of [`TENANT`]; `None` while nobody has built them, and while nobody answers.
    pub async fn counters(&self) -> Option<Value> {
        let path = format!("/admin/v1/counters?tenant={TENANT}");
        let open = self.admin.open(Method::GET, &path, "application/json", Bytes::new()).await.ok()?;
        let answer = open.read().await;
        answer.status.is_success().then(|| answer.json())
    }

    /// Where its topics are.
    #[must_use]
    pub fn brokers(&self) -> String {
        self.servers.brokers.join(",")
    }

    /// At a gateway, with the key of the tests.
    #[must_use]
    pub fn client(&self, gateway: usize) -> Client {
        Client::new(&self.gateways[gateway].url, KEY)
    }

    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Runs `weir <arguments>` with this installation's configuration, on the control plane's folder.
    #[must_use]
    pub fn run(&self, arguments: &[&str]) -> Output {
        run(self.folder.path(), arguments)
    }

    /// The same for a command that must succeed: its standard output.
    pub fn command(&self, arguments: &[&str]) -> String {
        run_ok(self.folder.path(), arguments)
    }

    /// Waits until log, ledger and counters agree to the last unit and nothing is reserved; gives what `replay --verify`
    /// said.
    pub async fn at_rest(&self) -> Value {
        let told = std::sync::Mutex::new(String::new());
        let rest = async || {
            let counters = self.counters().await?;
            if counters["reserved"] != 0 || !self.has_derived_all().await {
                *told.lock().expect("nobody panicked") =
                    format!("reserved {}, or consumers behind", counters["reserved"]);
                return None;
            }
            let output = self.run(&["replay", "--verify", "--json"]);
            let verified: Option<Value> = serde_json::from_slice(&output.stdout).ok();
            *told.lock().expect("nobody panicked") =
                format!("{counters}\n{verified:?}\n{}", String::from_utf8_lossy(&output.stderr));
            let verified = verified?;
            (verified["not_built_yet"] == 0 && verified["agrees"] == true).then_some(verified)
        };
        let deadline = Instant::now() + LONG;
        loop {
            if let Some(rest) = rest().await {
                return rest;
            }
            let told = told.lock().expect("nobody panicked").clone();
            assert!(Instant::now() < deadline, "no rest: {told}\n{}", self.told());
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Whether the consumers say that nothing is before them. They look once a second, so it may be of before.
    async fn has_derived_all(&self) -> bool {
        for role in [&self.ledger, &self.reconciler].into_iter().chain(&self.more) {
            let lags = role.metric("weir_consumer_lag_records").await;
            let lags = lags.unwrap_or_else(|| panic!("{} does not answer\n{}", role.name, self.told()));
            if lags.is_empty() || lags.values().any(|lag| *lag != 0.0) {
                return false;
            }
        }
        true
    }

    /// What every process said last: for the message of a failure.
    #[must_use]
    pub fn told(&self) -> String {
        self.roles().map(|role| format!("== {}\n{}\n", role.name, role.process.told())).collect()
    }
}

impl RoleProcess {
    fn start(folder: &Path, role: &'static str, name: &str, more: &[&str], program: Program) -> Self {
        let (process, url) = launch(folder, role, name, more, 1, &program);
        Self { name: name.to_owned(), role, url, process, starts: 1, program }
    }

    /// Starts it again on its folder, at another port.
    pub fn restart(&mut self, stack_folder: &Path) {
        self.process.kill();
        self.starts += 1;
        (self.process, self.url) = launch(stack_folder, self.role, &self.name, &[], self.starts, &self.program);
    }

    /// The samples of a metric, by their labels as they are written; `None` while it does not answer.
    pub async fn metric(&self, name: &str) -> Option<BTreeMap<String, f64>> {
        metric(&Client::new(&self.url, ""), name).await
    }

    /// Waits for `/readyz`.
    ///
    /// # Errors
    /// What it says instead, when it was not ready in time.
    pub async fn ready(&self) -> Result<(), String> {
        let probe = Client::new(&self.url, "");
        let deadline = Instant::now() + LONG;
        loop {
            let answer = probe.probe("/readyz").await;
            if answer.as_ref().is_some_and(|answer| answer.status.is_success()) {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(format!("{}: {}", self.name, answer.map_or_else(String::new, |answer| answer.text())));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

fn launch(folder: &Path, role: &str, name: &str, more: &[&str], start: usize, program: &Program) -> (Process, String) {
    let mut command = Command::new(&program.binary);
    command.envs(program.environment.iter().map(|(name, value)| (name, value)));
    command.args([role, "--json", "--listen", "127.0.0.1:0", "--name", name, "--config", "weir.toml", "--data"]);
    command.arg(folder.join(name)).args(more).current_dir(folder);
    let mut process = Process::start(command, folder, &format!("{name}-{start}"));
    let deadline = Instant::now() + LONG;
    loop {
        let printed = std::fs::read_to_string(&process.stdout).unwrap_or_default();
        let greeting = printed.lines().find_map(|line| serde_json::from_str::<Greeting>(line).ok());
        if let Some(Greeting { url }) = greeting {
            return (process, url);
        }
        let ended = process.ended();
        assert!(ended.is_none(), "{name} ended at its start: {ended:?}\n{}", process.told());
        assert!(Instant::now() < deadline, "{name} does not listen\n{}", process.told());
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn run(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(weir_binary());
    command.args(arguments).args(["--config", "weir.toml"]);
    // What only concerns servers has no folder to name.
    if !matches!(arguments, ["topics", ..] | ["migrate", ..]) {
        command.arg("--data").arg(folder.join("control"));
    }
    command.current_dir(folder).output().expect("the binary can be run")
}

fn run_ok(folder: &Path, arguments: &[&str]) -> String {
    let output = run(folder, arguments);
    let (printed, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "weir {arguments:?}: {}\n{printed}\n{said}", output.status);
    printed.into_owned()
}

/// A duration as configurations write it.
#[must_use]
pub fn seconds(count: u64) -> String {
    HumanDuration::from_secs(count).to_string()
}

/// A script of the stack.
pub(crate) fn script(name: &str) -> PathBuf {
    crate::repository().join("deploy/dev/stack").join(name)
}
