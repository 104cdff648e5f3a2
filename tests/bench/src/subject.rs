//! The processes of a run: the provider, the bare proxy, Weir. Each is ended by its own id when its value goes.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::case::{Api, Case, IDLE_MODEL, SLOW_MODEL};
use crate::error::BenchError;

/// Where load goes.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub name: &'static str,
    pub address: SocketAddr,
    pub authorization: String,
}

/// A started process.
#[derive(Debug)]
pub(crate) struct Process {
    pub target: Target,
    child: Child,
    log: PathBuf,
}

/// How long a part may take to listen, or to end after it was asked to.
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(10);

impl Process {
    pub(crate) fn start(name: &'static str, mut command: Command, folder: &Path) -> Result<Self, BenchError> {
        let log = folder.join(format!("{name}.log"));
        let file = File::create(&log).map_err(BenchError::io(format!("{}", log.display())))?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
        let child = command.spawn().map_err(BenchError::io(format!("starting {name}")))?;
        let target =
            Target { name, address: SocketAddr::from(([127, 0, 0, 1], 0)), authorization: "Bearer none".into() };
        Ok(Self { target, child, log })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Until `ready` has something, the process ended, or patience did.
    pub(crate) fn wait_for<T>(&mut self, what: &str, mut ready: impl FnMut() -> Option<T>) -> Result<T, BenchError> {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(found) = ready() {
                return Ok(found);
            }
            let ended = self.child.try_wait().map_err(BenchError::io("waiting"))?;
            if let Some(status) = ended {
                let log = fs::read_to_string(&self.log).unwrap_or_default();
                return Err(BenchError::unexpected(format!("{} ended with {status}", self.target.name), log));
            }
            if Instant::now() > until {
                return Err(BenchError::Late {
                    what: format!("{}: {what}", self.target.name),
                    seconds: PATIENCE.as_secs(),
                    log: self.log.display().to_string(),
                });
            }
            std::thread::sleep(LOOK);
        }
    }

    pub(crate) fn listening(&mut self, address: SocketAddr) -> Result<(), BenchError> {
        self.target.address = address;
        self.wait_for("listening", || TcpStream::connect(address).ok().map(drop))
    }

    /// Where the admin API is, and its token: what the process told in its data folder.
    pub(crate) fn admin(&self, data: &Path) -> Result<(String, String), BenchError> {
        let told = |name: &str| {
            let text =
                fs::read_to_string(data.join(name)).map_err(BenchError::io(format!("{name} of {}", self.target.name)));
            text.map(|text| text.trim().to_owned())
        };
        Ok((told("admin.url")?, told("secrets/admin.token")?))
    }

    /// Asks it to end, and waits until it has.
    pub(crate) fn stop(mut self) -> Result<(), BenchError> {
        self.terminate();
        let until = Instant::now() + PATIENCE;
        while self.child.try_wait().map_err(BenchError::io("waiting"))?.is_none() && Instant::now() < until {
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    fn terminate(&self) {
        // It may have ended by itself; then there is nothing to ask.
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Whatever ended the run, nothing is left running. Both fail only for a process that is already gone.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// A port that was free a moment ago.
pub(crate) fn free_port() -> Result<SocketAddr, BenchError> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(BenchError::io("a free port"))?;
    listener.local_addr().map_err(BenchError::io("a free port"))
}

fn own(part: &str, arguments: &[(&str, SocketAddr)]) -> Result<Command, BenchError> {
    let mut command = Command::new(std::env::current_exe().map_err(BenchError::io("this program"))?);
    command.arg(part);
    for (name, address) in arguments {
        command.args([*name, &address.to_string()]);
    }
    Ok(command)
}

pub(crate) fn provider(folder: &Path) -> Result<Process, BenchError> {
    let address = free_port()?;
    let mut process = Process::start("provider", own("provider", &[("--listen", address)])?, folder)?;
    process.listening(address)?;
    Ok(process)
}

pub(crate) fn bare(upstream: SocketAddr, folder: &Path) -> Result<Process, BenchError> {
    let address = free_port()?;
    let command = own("bare", &[("--listen", address), ("--upstream", upstream)])?;
    let mut process = Process::start("bare", command, folder)?;
    process.listening(address)?;
    Ok(process)
}

/// `weir up` with one HTTP worker, everything else as it comes, and its data in `folder/data`. What is there already is
/// gone on with.
pub(crate) fn weir(binary: &Path, upstream: SocketAddr, folder: &Path) -> Result<Process, BenchError> {
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        fs::write(&path, text).map_err(BenchError::io(name.to_owned())).map(|()| path)
    };
    let config = write("weir.toml", "[process]\nworker_threads = 1\n")?;
    let credential = format!("file:{}", write("provider.key", "nobody's secret")?.display());
    let catalog = write("catalog.toml", &catalog(upstream, &credential))?;
    let data = folder.join("data");
    let mut command = Command::new(binary);
    command.arg("up").arg("--config").arg(config).arg("--catalog").arg(catalog).arg("--data").arg(&data);
    command.args(["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"]);
    // A file of an earlier process that was killed would name its port.
    drop(fs::remove_file(data.join("gateway.url")));
    let mut process = Process::start("weir", command, folder)?;
    let told = |name: &str| fs::read_to_string(data.join(name)).ok().filter(|text| !text.trim().is_empty());
    let gateway = process.wait_for("its address", || told("gateway.url"))?;
    let address = gateway.trim().trim_start_matches("http://").parse();
    process.listening(address.map_err(|error| BenchError::unexpected(gateway, error))?)?;
    let key = match fs::read_to_string(folder.join("key")) {
        Ok(key) => key,
        Err(_) => new_key(&mut process, &data, folder)?,
    };
    process.target.authorization = format!("Bearer {key}");
    let ready = format!("http://{}/readyz", process.target.address);
    process.wait_for("readiness", || ureq::get(&ready).call().ok().map(drop))?;
    Ok(process)
}

/// Made through the admin API, as an operator does.
fn new_key(process: &mut Process, data: &Path, folder: &Path) -> Result<String, BenchError> {
    let told = |name: &str| data.join(name).exists().then_some(());
    process.wait_for("the admin API", || told("admin.url").and(told("secrets/admin.token")))?;
    let (admin, token) = process.admin(data)?;
    let key = create_key(&admin, &token)?;
    fs::write(folder.join("key"), &key).map_err(BenchError::io("the key"))?;
    Ok(key)
}

pub(crate) fn create_key(admin_url: &str, token: &str) -> Result<String, BenchError> {
    let created: Value = ureq::post(format!("{admin_url}/admin/v1/keys"))
        .header("authorization", format!("Bearer {token}"))
        .send_json(json!({ "tenant": "bench", "name": "load" }))
        .and_then(|mut answer| answer.body_mut().read_json())
        .map_err(|error| BenchError::unexpected("making a key", error))?;
    let key = created["key"].as_str().ok_or_else(|| BenchError::unexpected("making a key", &created))?;
    Ok(key.to_owned())
}

/// Every model of the run at one provider, priced, for a tenant with a limit of each kind, far away.
pub(crate) fn catalog(upstream: SocketAddr, credential: &str) -> String {
    // Cases that differ in size or load share a model.
    let mut models: BTreeSet<(String, &str)> =
        Case::all().iter().map(|case| (case.model(), case.egress.provider())).collect();
    models.extend([IDLE_MODEL, SLOW_MODEL].map(|model| (model.to_owned(), Api::Chat.provider())));
    let mut text = "[[tenant]]\nname = \"bench\"\n\n".to_owned();
    for (api, dialect) in [(Api::Chat, "openai_chat"), (Api::Messages, "anthropic")] {
        text += &format!(
            "[[provider]]\nid = \"{}\"\ndialect = \"{dialect}\"\nbase_url = \"http://{upstream}/v1\"\n\
             credential = \"{credential}\"\n\n",
            api.provider()
        );
    }
    for (kind, max) in [
        ("usd per month", "\"9000000\""),
        ("tokens per day", "4000000000000"),
        ("tokens per minute", "4000000000000"),
        ("requests per minute", "1000000000"),
        ("concurrent", "100000"),
    ] {
        text += &format!("[[limit]]\ntenant = \"bench\"\nkind = \"{kind}\"\nmax = {max}\n\n");
    }
    for (model, provider) in models {
        text += &format!(
            "[[deployment]]\nid = \"{model}\"\nprovider = \"{provider}\"\nmodel = \"{model}\"\nprice = \"gpt-4o-mini\"\n\
             max_output_tokens = 4096\n\n[[model]]\nname = \"{model}\"\ndeployments = [\"{model}\"]\n\n"
        );
    }
    text
}
