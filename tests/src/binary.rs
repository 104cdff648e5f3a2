//! The `weir` binary under test: built from the sources as they are now, once per test program.
//!
//! A test program does not get another package's binary by itself, and one that lies in the target folder may be of
//! yesterday. Cargo knows whether it is: asking costs a fraction of a second when it is not. Its own lock keeps test
//! programs that run at the same time apart.
//!
//! It is built as `cargo test --workspace` builds it, with what tests add to the features of its dependencies: in a run
//! of everything it is there already, and `--package weir` would compile half of the dependencies once more. In other
//! profiles somebody measures, and gets what ships.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::repository;

/// What `cargo test --workspace` makes of the binary. Only with a test or an example among the targets does cargo add
/// the features that tests ask for; this example depends on next to nothing.
const AS_TESTED: &[&str] = &["--workspace", "--bin", "weir", "--example", "codec_speed"];
const AS_SHIPPED: &[&str] = &["--package", "weir", "--bin", "weir"];

/// The path of the binary, in the profile and target folder of the running test.
pub fn weir_binary() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let folder = profile_folder();
        match folder.file_name().and_then(|name| name.to_str()) {
            Some("debug") | None => build(AS_TESTED, &[], &target_folder()),
            Some(profile) => build(AS_SHIPPED, &["--profile", profile], &target_folder()),
        }
        let binary = folder.join("weir");
        assert!(binary.is_file(), "cargo left no {}", binary.display());
        binary
    })
}

/// The path of the binary with fail points. Everything that is compiled lies with what the tests were compiled of, so
/// that only our own crates are compiled again; what is linked has a folder of its own, so that neither binary is ever
/// taken for the other.
pub(crate) fn build_with_failpoints(folder: &Path) -> PathBuf {
    build(AS_TESTED, &["--features", "weir/failpoints"], folder);
    let binary = folder.join("debug/weir");
    assert!(binary.is_file(), "cargo left no {}", binary.display());
    binary
}

fn build(what: &[&str], how: &[&str], folder: &Path) {
    let output = cargo()
        .args(["build", "--quiet"])
        .args(what)
        .args(how)
        .arg("--target-dir")
        .arg(folder)
        .env("CARGO_BUILD_BUILD_DIR", target_folder())
        .current_dir(repository())
        .output()
        .expect("cargo can be run");
    assert!(output.status.success(), "weir was not built:\n{}", String::from_utf8_lossy(&output.stderr));
}

/// Cargo, as a person would start it. `cargo test` tells its children about their own package in variables that build
/// scripts ask to be run again for (ring's does): with them, this build and a person's would each undo the other's, and
/// half the workspace with it.
fn cargo() -> Command {
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
