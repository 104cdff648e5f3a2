//! The arrows between crates, and what the pure ones may name (design, section 8).
//!
//! Read from `cargo metadata`, normal dependencies only: tests may look anywhere, a service may not. The rules are a
//! function of names, so that each is also shown to refuse what it is there to refuse.

#![expect(clippy::unwrap_used, reason = "a helper of a test may fail as the test does")]

use std::collections::{BTreeMap, BTreeSet};

use cargo_metadata::{DependencyKind, MetadataCommand};

use weir_tests::repository;

/// From the top to the bottom; a crate may depend on crates of lower rows only.
const LAYERS: &[&[&str]] = &[
    &["weir"],
    &["weir-gateway", "weir-control", "weir-stub"],
    &["weir-reconciler"],
    &["weir-quota", "weir-ledger"],
    &["weir-providers", "weir-streams", "weir-migrations"],
    &["weir-wire", "weir-schemas", "weir-runtime"],
    &["weir-domain"],
];

/// Everything that the pure crates may name. No runtime, no clock, no randomness, no I/O: whoever adds a line here says
/// which of these the new crate is not.
const PURE: &[(&str, &[&str])] = &[
    // chrono comes without its `clock` feature (checked below): it computes with calendars, it does not ask the time.
    // postcard turns values into bytes and back, in memory: what is kept of an ended reservation is such a row.
    ("weir-domain", &["chrono", "chrono-tz", "postcard", "serde", "thiserror", "uuid"]),
    ("weir-wire", &["weir-domain", "bytes", "memchr", "thiserror"]),
];

/// Features that would bring a clock or randomness into a crate of the allow-list.
const IMPURE_FEATURES: &[(&str, &[&str])] =
    &[("chrono", &["clock", "now", "wasmbind"]), ("uuid", &["v1", "v4", "v6", "v7", "rng"])];

/// Names of dependencies with the features that are asked for, by the name of the crate that has them.
type Graph = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

/// Everything in `tests`, which may look anywhere and be named by nobody.
const TOOLS: &[&str] = &["weir-tests", "weir-bench", "weir-fuzz"];

fn workspace() -> Graph {
    let metadata = MetadataCommand::new().current_dir(repository()).no_deps().exec().unwrap();
    let packages = metadata.packages.iter().filter(|package| !TOOLS.contains(&package.name.as_str()));
    packages
        .map(|package| {
            let normal = package.dependencies.iter().filter(|dependency| dependency.kind == DependencyKind::Normal);
            // What `default` means is the crate's own affair; the workspace switches it off where it matters.
            let features = |dependency: &cargo_metadata::Dependency| {
                let default = dependency.uses_default_features.then(|| "default".to_owned());
                dependency.features.iter().cloned().chain(default).collect()
            };
            (package.name.to_string(), normal.map(|d| (d.name.clone(), features(d))).collect())
        })
        .collect()
}

fn layer(name: &str) -> Option<usize> {
    LAYERS.iter().position(|row| row.contains(&name))
}

/// Every arrow that does not point down, and every crate that the picture does not have.
fn wrong_arrows(graph: &Graph) -> Vec<String> {
    let mut wrong = Vec::new();
    for (from, dependencies) in graph {
        let Some(upper) = layer(from) else {
            wrong.push(format!("{from} is in no layer"));
            continue;
        };
        for to in dependencies.keys() {
            // An external crate, unless it has the name of one of ours.
            match layer(to) {
                Some(lower) if lower <= upper => wrong.push(format!("{from} → {to} does not point down")),
                None if graph.contains_key(to) || TOOLS.contains(&to.as_str()) => {
                    wrong.push(format!("{from} → {to} is in no layer"))
                }
                Some(_) | None => {}
            }
        }
    }
    let missing = LAYERS.iter().flat_map(|row| row.iter()).filter(|name| !graph.contains_key(**name));
    wrong.extend(missing.map(|name| format!("{name} is in the picture and not in the workspace")));
    wrong
}

/// Everything in the pure crates' manifests that is not on their list.
fn impure(graph: &Graph) -> Vec<String> {
    let mut wrong = Vec::new();
    for (pure, allowed) in PURE {
        let Some(dependencies) = graph.get(*pure) else { continue };
        for (name, features) in dependencies {
            if !allowed.contains(&name.as_str()) {
                wrong.push(format!("{pure} names {name}"));
            }
            let Some((_, banned)) = IMPURE_FEATURES.iter().find(|(of, _)| of == name) else { continue };
            let banned = banned.iter().chain(&["default"]).filter(|feature| features.contains(**feature));
            wrong.extend(banned.map(|feature| format!("{pure} asks for {name}/{feature}")));
        }
    }
    wrong
}

#[test]
fn arrows_point_down() {
    assert_eq!(wrong_arrows(&workspace()), [""; 0]);
}

#[test]
fn domain_and_wire_have_no_runtime_clock_randomness_or_io() {
    assert_eq!(impure(&workspace()), [""; 0]);
}

/// The workspace with one more dependency.
fn with(from: &str, to: &str, features: &[&str]) -> Graph {
    let mut graph = workspace();
    let features = features.iter().map(|feature| (*feature).to_owned()).collect();
    graph.entry(from.to_owned()).or_default().insert(to.to_owned(), features);
    graph
}

#[test]
fn an_arrow_that_points_up_or_sideways_is_found() {
    for (from, to) in [
        ("weir-domain", "weir-runtime"),
        ("weir-ledger", "weir-quota"),
        ("weir-gateway", "weir-control"),
        ("weir-reconciler", "weir-gateway"),
        ("weir-stub", "weir-tests"),
    ] {
        let wrong = wrong_arrows(&with(from, to, &[]));
        assert_eq!(wrong.len(), 1, "{wrong:?}");
        assert!(wrong[0].starts_with(&format!("{from} → {to}")), "{wrong:?}");
    }
    assert_eq!(wrong_arrows(&with("weir-helpers", "serde", &[])), ["weir-helpers is in no layer"]);
    let mut smaller = workspace();
    smaller.remove("weir-wire");
    assert!(wrong_arrows(&smaller).contains(&"weir-wire is in the picture and not in the workspace".to_owned()));
}

#[test]
fn an_impure_dependency_is_found() {
    assert_eq!(impure(&with("weir-domain", "tokio", &[])), ["weir-domain names tokio"]);
    assert_eq!(impure(&with("weir-wire", "http", &[])), ["weir-wire names http"]);
    assert_eq!(impure(&with("weir-domain", "chrono", &["clock"])), ["weir-domain asks for chrono/clock"]);
    assert_eq!(impure(&with("weir-domain", "uuid", &["v7"])), ["weir-domain asks for uuid/v7"]);
}
