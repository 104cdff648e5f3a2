//! The official SDKs: installed once per pinned version under `target/sdk`, and run as programs.
//!
//! What is installed is named by its lock file, so that a changed pin makes a new folder and an unchanged one costs
//! nothing. A folder counts only once its installation has ended: a mark says so.

use std::collections::hash_map::DefaultHasher;
use std::fs::File;
use std::hash::{Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::binary::target_folder;
use crate::{House, Process, repository};

/// An SDK and how its checks are run.
#[derive(Debug, Clone)]
pub struct Sdk {
    /// Program and arguments.
    command: Vec<PathBuf>,
    environment: Vec<(String, String)>,
}

/// Starting an interpreter and all checks, on a busy machine.
const CHECKS: Duration = Duration::from_secs(120);

impl Sdk {
    /// The checks of OpenAI's Python SDK, with what `requirements` pins: a file in `tests/sdk/python`.
    #[must_use]
    pub fn python(requirements: &str) -> Self {
        Self::python_program(requirements, "checks.py")
    }

    /// A program beside them.
    #[must_use]
    pub fn python_program(requirements: &str, program: &str) -> Self {
        let source = repository().join("tests/sdk/python");
        let (folder, _lock) = installed("python", &[source.join(requirements)], |fresh| {
            run(Command::new("python3").args(["-m", "venv"]).arg(fresh), "install python3-venv");
            let mut pip = Command::new(fresh.join("bin/python"));
            pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--requirement"]);
            run(pip.arg(source.join(requirements)), "check the network to the package registry");
        });
        Self { command: vec![folder.join("bin/python"), source.join(program)], environment: Vec::new() }
    }

    /// OpenAI's Node SDK; `package` is the name of the dependency to check.
    #[must_use]
    pub fn node(package: &str) -> Self {
        Self::node_program(package, "checks.mjs")
    }

    /// A program beside its checks, with what `tests/sdk/node/package-lock.json` pins.
    #[must_use]
    pub fn node_program(package: &str, program: &str) -> Self {
        let source = repository().join("tests/sdk/node");
        let files = [source.join("package.json"), source.join("package-lock.json")];
        let (folder, _lock) = installed("node", &files, |fresh| {
            std::fs::create_dir_all(fresh).expect("a folder can be made");
            for file in &files {
                std::fs::copy(file, fresh.join(file.file_name().expect("a file has a name"))).expect("it is copied");
            }
            let mut npm = Command::new("npm");
            npm.args(["ci", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel", "error"]).current_dir(fresh);
            run(&mut npm, "install nodejs and npm, and check the network to the package registry");
        });
        // A program finds packages beside itself. What another test may be reading is replaced in one step.
        for name in ["support.mjs", program] {
            let (placed, fresh) = (folder.join(name), folder.join(format!("new-{}-{name}", std::process::id())));
            std::fs::copy(source.join(name), &fresh).expect("the checks can be copied");
            std::fs::rename(&fresh, &placed).expect("the checks can be put in place");
        }
        Self { command: vec!["node".into(), folder.join(program), package.into()], environment: Vec::new() }
    }

    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Runs all checks against `house`. Each prints one line; panics with all of them when one failed.
    pub async fn check(&self, house: &House) -> Vec<String> {
        let ran = self.check_at(&house.gateway_url, house.client.bearer(), &house.stub.url(), house.folder()).await;
        ran.unwrap_or_else(|failure| panic!("{failure}\n{}", house.process.told()))
    }

    /// The same against any gateway; an error has everything that was printed.
    ///
    /// # Errors
    /// When a check failed.
    pub async fn check_at(
        &self,
        gateway_url: &str,
        key: &str,
        stub_url: &str,
        folder: &Path,
    ) -> Result<Vec<String>, String> {
        let at = self.clone().env("OPENAI_BASE_URL", &format!("{gateway_url}/v1")).env("OPENAI_API_KEY", key);
        let at = at.env("ANTHROPIC_BASE_URL", gateway_url).env("ANTHROPIC_API_KEY", key);
        at.env("WEIR_STUB_URL", stub_url).run(folder).await
    }

    /// Runs the program; its lines that begin with `ok`.
    ///
    /// # Errors
    /// Everything that was printed, when it did not end well.
    pub async fn run(&self, folder: &Path) -> Result<Vec<String>, String> {
        let mut command = Command::new(&self.command[0]);
        command
            .args(&self.command[1..])
            // A proxy of the machine is not for 127.0.0.1.
            .env("NO_PROXY", "127.0.0.1,localhost")
            .env("no_proxy", "127.0.0.1,localhost")
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .current_dir(folder);
        let mut process = Process::start(command, folder, "sdk");
        let status = process.wait(CHECKS).await;
        let printed = std::fs::read_to_string(&process.stdout).unwrap_or_default();
        let said = std::fs::read_to_string(&process.stderr).unwrap_or_default();
        if !status.success() {
            return Err(format!("{status}\n{printed}\n{said}"));
        }
        println!("{printed}");
        Ok(printed.lines().filter(|line| line.starts_with("ok ")).map(str::to_owned).collect())
    }
}

/// `target/sdk/<name>-<hash of the pins>`, after `install` ended well there at some time; and a lock that keeps every
/// other test from changing it.
fn installed(name: &str, pins: &[PathBuf], install: impl FnOnce(&Path)) -> (PathBuf, File) {
    let mut hash = DefaultHasher::new();
    for pin in pins {
        std::fs::read(pin).unwrap_or_else(|error| panic!("{}: {error}", pin.display())).hash(&mut hash);
    }
    let sdks = target_folder().join("sdk");
    let folder = sdks.join(format!("{name}-{:016x}", hash.finish()));
    // A virtual environment knows its own path, so it is made in place and marked when it is whole.
    let whole = folder.join(".installed");
    std::fs::create_dir_all(&sdks).expect("target/sdk can be made");
    let lock = File::create(sdks.join(format!("{name}.lock"))).expect("a lock file can be made");
    lock.lock().expect("the lock can be taken");
    if !whole.is_file() {
        if folder.exists() {
            std::fs::remove_dir_all(&folder).expect("half an installation can be removed");
        }
        install(&folder);
        std::fs::write(&whole, "").expect("an installation can be marked");
    }
    (folder, lock)
}

fn run(command: &mut Command, advice: &str) {
    match command.output() {
        Ok(output) if output.status.success() => {}
        Ok(output) => panic!(
            "{command:?}: {}; {advice}\n{}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        ),
        Err(error) => panic!("{command:?}: {error}; {advice}"),
    }
}
