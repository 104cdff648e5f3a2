//! `deploy/compose`: the containers that nobody could start here, by everything that can be said without a Docker engine.
//!
//! The file is held against the JSON schema of the Compose Specification by a public validator; what is in it for Weir
//! (arguments, configuration, catalog) is tried on the program itself.
#![cfg(test)]

use std::collections::BTreeMap;
use std::process::{Command, Output};

use weir_tests::repository;
use weir_tests::sdk::Sdk;
use weir_tests::weir_binary;

/// Services of Weir's image by name, with their arguments, after everything was found in order.
async fn services() -> BTreeMap<String, Vec<String>> {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let file = repository().join("deploy/compose/compose.yaml");
    let reader = Sdk::python_program("requirements-compose.txt", "compose.py");
    let checks = reader.env("COMPOSE_FILE", &file.display().to_string()).run(folder.path()).await;
    let checks = checks.unwrap_or_else(|failure| panic!("{failure}"));
    let services = checks.iter().filter_map(|line| line.strip_prefix("ok service ")?.split_once(' '));
    services.map(|(name, command)| (name.to_owned(), serde_json::from_str(command).expect("a list"))).collect()
}

fn weir(arguments: &[&str]) -> Output {
    Command::new(weir_binary()).args(arguments).output().expect("the binary can be run")
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[tokio::test]
async fn every_role_is_there_with_arguments_that_the_program_knows() {
    let services = services().await;
    let roles: Vec<&str> = services.keys().map(String::as_str).collect();
    assert_eq!(roles, ["control", "gateway-1", "gateway-2", "ledger", "reconciler", "tables", "topics"]);
    for (name, arguments) in &services {
        // With `--help` arguments are read, and nothing is done. One that is unknown is told before.
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).chain(["--help"]).collect();
        let read = weir(&arguments);
        assert!(read.status.success(), "{name}: {}", text(&read));
        assert!(arguments.contains(&"/weir.toml"), "{name}: {arguments:?}");
    }
    let unknown = weir(&["gateway", "--no-such-argument", "--help"]);
    assert!(!unknown.status.success(), "an unknown argument must be found: {}", text(&unknown));
}

#[test]
fn the_program_takes_its_configuration_and_its_catalog() {
    let (folder, data) = (repository().join("deploy/compose"), tempfile::tempdir().expect("a folder can be made"));
    let (config, data) = (folder.join("weir.toml").display().to_string(), data.path().display().to_string());
    let checked = weir(&["check-config", "--config", &config, "--data", &data]);
    assert!(checked.status.success(), "{}", text(&checked));
    // Secrets that are made elsewhere: the role gets as far as reading them, so the stores fit together.
    let started = weir(&["gateway", "--config", &config, "--data", &data, "--listen", "127.0.0.1:0"]);
    assert!(text(&started).contains("/run/secrets/"), "{}", text(&started));
    let catalog = folder.join("catalog.toml").display().to_string();
    let catalog = weir(&["catalog", "check", &catalog, "--data", &data]);
    assert!(catalog.status.success(), "{}", text(&catalog));
}
