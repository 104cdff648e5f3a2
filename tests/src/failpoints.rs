//! A `weir` that dies where a test says, and the way to tell it.
//!
//! The binary is built with the feature `failpoints`, beside the ordinary one. A process reads its script once, from its
//! environment; a [`House`](crate::House) starts all its processes with the same environment. So between the two stands
//! a launcher of a few lines, which takes the script from a file that the test changes before each start. Commands
//! beside the process never see it.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use tempfile::TempDir;

use crate::binary::{build_with_failpoints, target_folder};

/// Tells the launcher where the script is.
const PLAN: &str = "CRASH_PLAN";

/// What happens at named points of the next process.
#[derive(Debug)]
pub struct Plan(TempDir);

impl Default for Plan {
    fn default() -> Self {
        Self(tempfile::Builder::new().prefix("weir-plan-").tempdir().expect("a folder can be made"))
    }
}

impl Plan {
    /// The next start gets `script`, as `weir_runtime::failpoint` reads it; an empty one is no script. Its hits count
    /// from the start on.
    pub fn set(&self, script: &str) {
        std::fs::write(self.file(), script).expect("a plan can be written");
        self.arm();
    }

    /// As [`set`](Self::set), but no hit counts before [`arm`](Self::arm).
    pub fn hold(&self, script: &str) {
        std::fs::write(self.file(), script).expect("a plan can be written");
        std::fs::remove_file(self.from()).or_else(absent_is_fine).expect("the file can be removed");
    }

    /// From now on hits count, in every process of this plan.
    pub fn arm(&self) {
        std::fs::write(self.from(), "").expect("the file can be written");
    }

    /// From the next start on its wall clock is so far ahead of this machine's, or behind it where negative.
    pub fn set_clock_ahead_ms(&self, ms: i64) {
        std::fs::write(self.clock(), ms.to_string()).expect("a plan can be written");
    }

    /// What a house must start its processes with.
    #[must_use]
    pub fn environment(&self) -> Vec<(String, String)> {
        vec![(PLAN.to_owned(), self.file().display().to_string())]
    }

    fn file(&self) -> PathBuf {
        self.0.path().join("failpoints")
    }

    fn clock(&self) -> PathBuf {
        self.0.path().join("failpoints.clock")
    }

    fn from(&self) -> PathBuf {
        self.0.path().join("failpoints.from")
    }
}

fn absent_is_fine(error: std::io::Error) -> std::io::Result<()> {
    if error.kind() == std::io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

/// The launcher of a binary with fail points: a house's `binary`.
pub fn failpoints_binary() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let target = target_folder().join("failpoints");
        let binary = build_with_failpoints(&target);
        launcher(&target, &binary)
    })
}

/// A signal that is ignored stays ignored in what is executed: a file that may not grow is then an error of a write, as
/// a full disk is, and not the end of the process.
fn launcher(target: &Path, binary: &Path) -> PathBuf {
    let script = format!(
        "#!/bin/sh\ntrap '' XFSZ\n\
         if [ -s \"${{{PLAN}:-}}\" ]; then\n    \
             WEIR_FAILPOINTS=$(cat \"${PLAN}\") WEIR_FAILPOINTS_FROM=\"${PLAN}.from\"\n    \
             export WEIR_FAILPOINTS WEIR_FAILPOINTS_FROM\n\
         fi\n\
         if [ -s \"${{{PLAN}:-}}.clock\" ]; then\n    \
             WEIR_CLOCK_AHEAD_MS=$(cat \"${PLAN}.clock\")\n    \
             export WEIR_CLOCK_AHEAD_MS\n\
         fi\n\
         exec '{}' \"$@\"\n",
        binary.display()
    );
    // In place at once: another test program may be starting the one that is there.
    let mut fresh = tempfile::NamedTempFile::new_in(target).expect("a file can be made");
    fresh.write_all(script.as_bytes()).expect("the launcher can be written");
    let executable = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(fresh.path(), executable).expect("the launcher can be made executable");
    let path = target.join("launch-weir");
    fresh.persist(&path).expect("the launcher can be put in place");
    path
}
