//! The contract's clauses have tests: every `file::test` that STREAM_CONTRACT.md names is there.

use std::fs;
use std::path::Path;

/// The names in backticks that say where a test is.
fn named(contract: &str) -> Vec<(&str, &str)> {
    contract.split('`').skip(1).step_by(2).filter_map(|name| name.split_once("::")).collect()
}

#[test]
fn every_test_that_the_contract_names_is_there() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let contract = fs::read_to_string(here.join("STREAM_CONTRACT.md")).unwrap();
    let named = named(&contract);
    assert!(named.len() > 30, "{} tests are named", named.len());
    for (file, test) in named {
        let places = ["tests", "src"].map(|folder| here.join(folder).join(format!("{file}.rs")));
        let found = places.iter().filter_map(|place| fs::read_to_string(place).ok());
        let is_there = found.into_iter().any(|text| text.contains(&format!("fn {test}(")));
        assert!(is_there, "there is no test `{file}::{test}`");
    }
}

#[test]
fn names_are_found_where_they_stand_in_backticks() {
    assert_eq!(named("a `b::c` d `e` f::g `h::i`"), [("b", "c"), ("h", "i")]);
}
