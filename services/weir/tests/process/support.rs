//! A real process of this package's binary, and clients of it.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Anything here takes milliseconds on a quiet machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A folder for one test.
pub struct Place {
    folder: TempDir,
}

impl Place {
    pub fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn data(&self) -> PathBuf {
        self.path("data")
    }

    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, text).unwrap();
        path
    }

    /// The binary on this place's data folder.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.current_dir(self.folder.path()).args(args).env("WEIR_PROCESS__DATA", self.data());
        for variable in ["WEIR_ADMIN_URL", "WEIR_ADMIN_TOKEN", "OPENAI_API_KEY"] {
            command.env_remove(variable);
        }
        command
    }

    /// Runs a command to its end.
    pub fn run(&self, args: &[&str]) -> Ended {
        Ended::of(self.command(args).output().unwrap())
    }

    /// `weir up` on free ports.
    pub fn up(&self, args: &[&str]) -> Process {
        let ports = ["up", "--json", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"];
        Process::start(self.command(&[&ports, args].concat()))
    }

    /// `weir stub` in a process of its own.
    pub fn stub(&self) -> Process {
        Process::start(self.command(&["stub", "--json", "--listen", "127.0.0.1:0"]))
    }

    /// `weir up`, with a stub that answers as `script` says.
    pub fn up_with_stub(&self, script: &str) -> Process {
        let script = self.write("script.toml", script);
        self.up(&["--with-stub", "--stub-script", script.to_str().unwrap()])
    }
}

/// How a command ended.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Ended {
    fn of(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Self { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }

    /// The result of a command that must succeed.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{self:#?}");
        self.out
    }

    #[track_caller]
    pub fn json(self) -> Value {
        serde_json::from_str(&self.ok()).unwrap()
    }

    /// The last line of stderr of a command that must fail: logs may stand before it.
    #[track_caller]
    pub fn refused(self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "{self:#?}");
        self.err.lines().last().unwrap_or_default().to_owned()
    }
}

/// A running `weir up`. Killed when a test fails.
pub struct Process {
    child: Child,
    pub greeting: Value,
    logs: Option<std::thread::JoinHandle<String>>,
}

impl Process {
    fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = child.stderr.take().unwrap();
        let logs = std::thread::spawn(move || {
            let mut text = String::new();
            stderr.read_to_string(&mut text).unwrap();
            text
        });
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        if line.is_empty() {
            child.wait().unwrap();
            panic!("weir up ended: {}", logs.join().unwrap());
        }
        Self { child, greeting: serde_json::from_str(&line).unwrap(), logs: Some(logs) }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn url(&self) -> &str {
        self.greeting["gateway_url"].as_str().unwrap()
    }

    pub fn key(&self) -> &str {
        self.greeting["first_key"].as_str().unwrap()
    }

    pub fn readiness(&self) -> Value {
        let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().new_agent();
        let mut answer = agent.get(format!("{}/readyz", self.url())).call().unwrap();
        answer.body_mut().read_json().unwrap()
    }

    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Waits for the end; its code, and everything it logged.
    pub fn wait(mut self) -> (Option<i32>, String) {
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < deadline, "the process does not end");
            std::thread::sleep(Duration::from_millis(5));
        };
        (status.code(), self.logs.take().unwrap().join().unwrap())
    }

    /// Stops it in order.
    #[track_caller]
    pub fn stop(self) -> String {
        self.signal(Signal::TERM);
        let (code, logs) = self.wait();
        assert_eq!(code, Some(0), "{logs}");
        logs
    }

    /// Sends a chat request; the answer's head is there when this returns.
    pub fn ask(&self, key: &str, body: &Value) -> Answer {
        ask(&format!("{}/v1/chat/completions", self.url()), key, body)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _gone_already = self.child.kill();
        let _gone_already = self.child.wait();
    }
}

/// The same, to any endpoint; Anthropic's asks for a version, the others do not look at it.
pub fn ask(url: &str, key: &str, body: &Value) -> Answer {
    let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().new_agent();
    let answer = agent
        .post(url)
        .header("authorization", format!("Bearer {key}"))
        .header("anthropic-version", "2023-06-01")
        .content_type("application/json")
        .send(body.to_string().as_bytes())
        .unwrap();
    let (head, body) = answer.into_parts();
    let header = |name: &str| head.headers.get(name).map(|value| value.to_str().unwrap().to_owned());
    Answer {
        status: head.status.as_u16(),
        reservation: header("x-weir-reservation"),
        body: BufReader::new(Box::new(body.into_reader())),
    }
}

/// An answer whose body still flows.
pub struct Answer {
    pub status: u16,
    pub reservation: Option<String>,
    body: BufReader<Box<dyn Read>>,
}

impl Answer {
    /// The next `data:` line of a stream.
    pub fn event(&mut self) -> Option<String> {
        let mut line = String::new();
        while self.body.read_line(&mut line).unwrap() > 0 {
            if let Some(data) = line.trim_end().strip_prefix("data: ") {
                return Some(data.to_owned());
            }
            line.clear();
        }
        None
    }

    pub fn text(mut self) -> String {
        let mut text = String::new();
        self.body.read_to_string(&mut text).unwrap();
        text
    }
}

pub const MODEL: &str = "gpt-4o-mini";

pub fn plain() -> Value {
    json!({ "model": MODEL, "messages": [{ "role": "user", "content": "hello" }] })
}

pub fn streamed() -> Value {
    json!({ "model": MODEL, "stream": true, "messages": [{ "role": "user", "content": "hello" }] })
}

/// Tries until `look` finds something.
#[track_caller]
pub fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what} did not come");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Every file below `folder`.
pub fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found
}
