//! The commands of `weir`, run as a person runs them.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::House;

impl House {
    /// Runs `weir <arguments> --data …` and returns what it printed and how it ended.
    #[must_use]
    pub fn run(&self, arguments: &[&str]) -> Output {
        Command::new(self.binary())
            .args(arguments)
            .arg("--data")
            .arg(self.data())
            .current_dir(self.folder())
            .output()
            .expect("the binary can be run")
    }

    /// The same for a command that must succeed: its standard output.
    #[must_use]
    pub fn command(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let (printed, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "weir {arguments:?}: {}\n{printed}\n{said}", output.status);
        printed.into_owned()
    }

    /// `weir show --json`.
    #[must_use]
    pub fn show(&self, reservation: &str) -> Value {
        serde_json::from_str(&self.command(&["show", reservation, "--json"])).expect("a story is JSON")
    }

    /// `weir ledger export --format jsonl`: the tenant's lines.
    #[must_use]
    pub fn export(&self, tenant: &str) -> Vec<Value> {
        let lines = self.command(&["ledger", "export", "--tenant", tenant, "--format", "jsonl"]);
        lines.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
    }

    /// `weir replay --verify`: panics with what it says when it finds a difference.
    pub fn verify(&self) -> String {
        self.command(&["replay", "--verify"])
    }

    /// `weir reconcile import`.
    pub fn import(&self, file: &Path) -> String {
        self.command(&["reconcile", "import", &file.display().to_string()])
    }
}
