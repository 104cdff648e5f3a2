//! The `weir` binary under test: built from the sources as they are now, once per test program.
//!
//! A test program does not get another package's binary by itself, and one that lies in the target folder may be of
//! yesterday. Cargo knows whether it is: asking costs a fraction of a second when it is not. Its own lock keeps test
//! programs that run at the same time apart.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::repository;

/// The path of the binary, in the profile and target folder of the running test.
pub fn weir_binary() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(build)
}

fn build() -> PathBuf {
    let folder = profile_folder();
    let profile = match folder.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(profile) => profile,
    };
    let target = folder.parent().expect("a profile's folder lies in a target folder");
    let output = cargo()
        .args(["build", "--quiet", "--package", "weir", "--bin", "weir", "--profile", profile, "--target-dir"])
        .arg(target)
        .current_dir(repository())
        .output()
        .expect("cargo can be run");
    assert!(output.status.success(), "weir was not built:\n{}", String::from_utf8_lossy(&output.stderr));
    let binary = folder.join("weir");
    assert!(binary.is_file(), "cargo left no {}", binary.display());
    binary
}

/// Cargo, as a person would start it. `cargo test` tells its children about their own package in variables that build
/// scripts ask to be run again for (ring's does): with them, this build and a person's would each undo the other's, and
/// half the workspace with it.
pub(crate) fn cargo() -> Command {
    let is_of_package = |name: &str| {
        ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_"].iter().any(|prefix| name.starts_with(prefix))
    };
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| is_of_package(name) || name == "CARGO_PRIMARY_PACKAGE") {
            cargo.env_remove(name);
        }
    }
    cargo
}

/// `target/<profile>`, two above the running test program.
fn profile_folder() -> PathBuf {
    let program = std::env::current_exe().expect("this program has a path");
    program.ancestors().nth(2).expect("a test program lies in target/<profile>/deps").to_owned()
}

/// The target folder that tests may keep things in between runs.
pub(crate) fn target_folder() -> PathBuf {
    profile_folder().parent().expect("a profile's folder lies in a target folder").to_owned()
}
