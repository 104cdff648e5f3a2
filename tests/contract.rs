//! The stream contract, by the tool that anyone may run: Weir keeps all of it, and who relays without a thought does not.

#![cfg(test)]

use std::process::{Command, Output};

use serde_json::Value;

use weir_stub::{Stub, StubOptions};
use weir_tests::catalog::{Catalog, TENANT};
use weir_tests::{House, PATIENCE, Setup, weir_binary};

/// What Weir speaks.
const PAIRS: [&str; 5] = ["chat-openai", "messages-anthropic", "chat-anthropic", "messages-openai", "responses-openai"];

/// Runs `weir contract` off the runtime: the stub answers meanwhile.
async fn contract(arguments: &[&str]) -> Output {
    let mut command = Command::new(weir_binary());
    command.arg("contract").args(arguments).env("NO_PROXY", "127.0.0.1");
    tokio::task::spawn_blocking(move || command.output().expect("the binary can be run")).await.expect("it ends")
}

fn printed(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The clauses of a run that are not kept as the contract says, each with what was found.
fn exceptions(report: &Value) -> Vec<String> {
    let clauses = report["clauses"].as_array().expect("a report has clauses");
    let told =
        |clause: &Value| format!("{} {}: {} ({})", clause["pair"], clause["id"], clause["findings"], clause["got"]);
    clauses.iter().filter(|clause| clause["verdict"] != "pass").map(told).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn weir_keeps_every_clause_at_every_pair_and_the_books_are_exact() {
    let stub = Stub::start(StubOptions::default()).expect("a stub starts");
    let models = printed(&contract(&["--setup", "weir", "--stub", &stub.url()]).await);
    let house = House::start(Setup {
        catalog: Catalog::default().and(&models),
        config: "[gateway]\nstatus_after = \"3s\"\nkeep_alive_every = \"500ms\"\n".to_owned(),
        environment: vec![("WEIR_CONTRACT_PROVIDER_KEY".to_owned(), "sk-contract".to_owned())],
        ..Setup::default()
    })
    .await;
    let folder = house.folder().join("contract");
    let (junit, transcripts) = (folder.join("junit.xml"), folder.join("transcripts"));
    std::fs::create_dir_all(&folder).expect("a folder can be made");
    let (stub_url, junit_file, transcripts_folder) =
        (stub.url(), junit.display().to_string(), transcripts.display().to_string());
    let options = [
        house.gateway_url.as_str(),
        "--json",
        "--strict",
        "--stub",
        stub_url.as_str(),
        "--key",
        house.client.bearer(),
        "--junit",
        junit_file.as_str(),
        "--transcripts",
        transcripts_folder.as_str(),
    ];
    let pairs = PAIRS.iter().flat_map(|pair| ["--pair", pair]);
    let ran = contract(&options.into_iter().chain(pairs).collect::<Vec<_>>()).await;
    let report: Value = serde_json::from_slice(&ran.stdout).expect("the report is JSON");
    let (exceptions, said) = (exceptions(&report), String::from_utf8_lossy(&ran.stderr).into_owned());
    assert!(exceptions.is_empty(), "{exceptions:#?}\n{said}\n{}", house.process.told());
    assert_eq!(ran.status.code(), Some(0), "{said}");
    assert!(report["pass"].as_u64().is_some_and(|pass| pass > 190), "{}", report["pass"]);

    let suites = std::fs::read_to_string(&junit).expect("JUnit is written");
    assert_eq!(suites.matches("<testsuite name=").count(), PAIRS.len());
    assert!(!suites.contains("<failure") && !suites.contains("<skipped"));
    let broken = std::fs::read_to_string(transcripts.join("chat-openai/mid-reset.txt")).expect("a transcript");
    assert!(broken.contains("word16") && broken.contains("\\\"incomplete\\\":true"), "{broken}");

    let rest = house.at_rest(TENANT, PATIENCE).await;
    rest.assert_exact(&house).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_relays_everything_fails_by_name() {
    // The provider asked directly is what a proxy without a thought makes of it.
    let stub = Stub::start(StubOptions::default()).expect("a stub starts");
    let pairs = ["--pair", "chat-openai", "--pair", "messages-anthropic", "--patience", "3"];
    let ran =
        contract(&[&[stub.url().as_str(), "--json", "--key", "k", "--stub", &stub.url()], &pairs[..]].concat()).await;
    let report: Value = serde_json::from_slice(&ran.stdout).expect("the report is JSON");
    assert_eq!(ran.status.code(), Some(1));
    let verdict = |pair: &str, id: &str| {
        let clauses = report["clauses"].as_array().into_iter().flatten();
        let found = clauses.clone().find(|clause| clause["pair"] == pair && clause["id"] == id);
        found.unwrap_or_else(|| panic!("{pair} {id} was not run"))["verdict"].as_str().map(str::to_owned)
    };
    for pair in ["chat-openai", "messages-anthropic"] {
        for kept in ["whole", "whole-plain", "usage", "tools", "characters"] {
            assert_eq!(verdict(pair, kept).as_deref(), Some("pass"), "{pair} {kept}");
        }
        for broken in ["opening-close", "opening-stall", "mid-close", "mid-stall", "mid-garbage", "refused-model"] {
            assert_eq!(verdict(pair, broken).as_deref(), Some("fail"), "{pair} {broken}");
        }
        for honest in ["unavailable", "mid-reset", "mid-error", "idempotent"] {
            assert_eq!(verdict(pair, honest).as_deref(), Some("differs"), "{pair} {honest}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_there_and_wrong_usage_have_codes_of_their_own() {
    let nobody = contract(&["http://127.0.0.1:1", "--stub", "http://127.0.0.1:1"]).await;
    assert_eq!(nobody.status.code(), Some(3), "{}", String::from_utf8_lossy(&nobody.stderr));
    for wrong in [&["--clause", "none", "http://127.0.0.1:1"][..], &["--pair", "chat-gemini", "http://x"], &[]] {
        assert_eq!(contract(wrong).await.status.code(), Some(2), "{wrong:?}");
    }
    let listed = printed(&contract(&["--list"]).await);
    assert!(listed.contains("mid-reset") && listed.contains("17 of 40 chunks"), "{listed}");
    let models: Value = serde_json::from_str(&printed(&contract(&["--setup", "json"]).await)).expect("JSON");
    assert!(models["models"].as_array().is_some_and(|models| models.len() > 150));
}
