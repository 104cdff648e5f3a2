//! A child process whose output is kept in files, and that never outlives its test.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// A running process. Dropping it kills it.
#[derive(Debug)]
pub struct Process {
    child: Child,
    pub stdout: PathBuf,
    pub stderr: PathBuf,
}

impl Process {
    /// Starts `command` with its output in `folder`, in files named after `name`.
    pub fn start(mut command: Command, folder: &Path, name: &str) -> Self {
        let (stdout, stderr) = (folder.join(format!("{name}.stdout")), folder.join(format!("{name}.stderr")));
        let file = |path: &PathBuf| File::create(path).expect("a file for the output can be made");
        command.stdin(Stdio::null()).stdout(file(&stdout)).stderr(file(&stderr));
        let child = command.spawn().unwrap_or_else(|error| panic!("{command:?} cannot be started: {error}"));
        Self { child, stdout, stderr }
    }

    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, if it did.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child can be waited for")
    }

    /// SIGKILL: nothing is flushed and nobody is told.
    pub fn kill(&mut self) {
        // It may have ended by itself.
        let _killed = self.child.kill();
        self.child.wait().expect("a child can be waited for");
    }

    /// SIGTERM.
    pub fn terminate(&self) {
        self.signal("-TERM");
    }

    /// SIGSTOP: it does nothing more, and does not know it.
    pub fn pause(&self) {
        self.signal("-STOP");
    }

    /// SIGCONT.
    pub fn resume(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([name, &self.pid().to_string()]).status();
        assert!(sent.is_ok_and(|status| status.success()), "SIG{name} was not sent");
    }

    /// Waits for its end.
    pub async fn wait(&mut self, within: Duration) -> ExitStatus {
        let deadline = Instant::now() + within;
        loop {
            if let Some(status) = self.ended() {
                return status;
            }
            assert!(Instant::now() < deadline, "process {} did not end within {within:?}", self.pid());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// What it printed, and the end of its log: for the message of a failure.
    #[must_use]
    pub fn told(&self) -> String {
        /// Enough for the error and what led to it.
        const LINES: usize = 12;
        let read = |path: &Path| {
            let text = std::fs::read_to_string(path).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            lines[lines.len().saturating_sub(LINES)..].join("\n")
        };
        format!("stdout:\n{}\nstderr:\n{}", read(&self.stdout), read(&self.stderr))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
