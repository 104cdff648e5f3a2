//! The official SDKs, as applications use them: only a base URL and a key are changed.
//!
//! What an SDK must see is in `sdk/python/*checks.py` and `sdk/node/*checks.mjs`, one function per expectation, in front of
//! providers of either API; here the same calls are checked from the other side: what the provider billed is in the
//! ledger to the last token, call by call, and nothing stays reserved.

#![cfg(test)]

use serde_json::json;

use weir_tests::bill;
use weir_tests::catalog::{self, Catalog, Model, TENANT};
use weir_tests::client;
use weir_tests::sdk::Sdk;
use weir_tests::{House, PATIENCE, Setup};

/// A key whose limit lets nothing through.
const LIMITED_KEY: &str = "weir_live_LimitedLimitedLimitedLimited000000";

/// What the checks ask for. A model that fails is left alone for a while, so each kind of failure has its own.
const MODELS: [&str; 12] = [
    "fast",
    "throttled",
    "broken",
    "late",
    "busy",
    "early",
    "early-error",
    "broken-response",
    "agent",
    "thinking",
    "seeing",
    "embed",
];
/// Not the tenant's to use.
const CLOSED: &str = "closed";

const PROVIDERS: [&str; 2] = ["openai", "anthropic"];

/// A model by the name that the checks know it by.
fn model(name: &str, api: &'static str) -> Model {
    let named = if api == "openai" { name.to_owned() } else { format!("{name}-{api}") };
    let model = Model::named(&named).at(api);
    match name {
        "seeing" => model.capable("capabilities = [\"streaming\", \"tools\", \"vision\"]\ntokens_per_image = 1000"),
        "embed" if api == "openai" => model.capable("capabilities = [\"embeddings\"]"),
        _ => model,
    }
}

/// A tenant that may use all of them but one, with a second key whose limit is used up.
fn setup() -> Setup {
    let more = format!(
        r#"
[[key]]
name = "limited"
tenant = "{TENANT}"
hash = "{}"

[[limit]]
tenant = "{TENANT}"
key = "limited"
kind = "requests per day"
max = 1
"#,
        catalog::key_hash(LIMITED_KEY)
    );
    let of_both = |name: &'static str| PROVIDERS.map(|api| model(name, api));
    let allowed: Vec<Model> = MODELS.into_iter().flat_map(of_both).collect();
    let names: Vec<&str> = allowed.iter().map(|model| model.name.as_str()).collect();
    let tenant = format!("models = {names:?}");
    let mut catalog = Catalog::of(&[allowed, of_both(CLOSED).to_vec()].concat()).and(&more);
    catalog.tenant = tenant;
    Setup { catalog, ..Setup::default() }
}

/// Every check passes in front of a provider of `api`, and afterwards the books are exact.
async fn passes(sdk: &Sdk, api: &str) {
    let house = House::start(setup()).await;
    // The one request that the limit has room for.
    let first = client::chat("fast", false, &json!({}));
    drop(house.client.with_key(LIMITED_KEY).chat(&first).await.expect(200));
    let sdk = sdk.clone().env("WEIR_LIMITED_KEY", LIMITED_KEY).env("WEIR_PROVIDER_API", api);
    let checks = sdk.check(&house).await;

    let rest = house.at_rest(TENANT, PATIENCE).await;
    rest.assert_exact(&house).await;
    bill::assert_billed(std::slice::from_ref(&rest), &bill::calls(&house.stub.journal()));
    // A stream that was left may have been executed without a word about usage.
    for aborted in checks.iter().filter_map(|line| line.strip_prefix("ok aborted_stream ")) {
        assert!(rest.pending.iter().any(|open| open.id.to_string() == aborted), "{aborted} is not pending");
        assert_eq!(house.show(aborted)["status"], "pending_reconciliation");
    }
}

/// All programs of one SDK.
async fn all_pass(sdks: [Sdk; 2]) {
    for sdk in &sdks {
        for api in PROVIDERS {
            passes(sdk, api).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn python() {
    all_pass(["checks.py", "more_checks.py"].map(|program| Sdk::python_program("requirements.txt", program))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn python_older_major() {
    all_pass(["checks.py", "more_checks.py"].map(|program| Sdk::python_program("requirements-v1.txt", program))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node() {
    all_pass(["checks.mjs", "more_checks.mjs"].map(|program| Sdk::node_program("openai", program))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_older_major() {
    all_pass(["checks.mjs", "more_checks.mjs"].map(|program| Sdk::node_program("openai-v4", program))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn anthropic_python() {
    let pins = ["requirements-anthropic.txt", "requirements-anthropic-v1.txt"];
    all_pass(pins.map(|pins| Sdk::python_program(pins, "anthropic_checks.py"))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn anthropic_node() {
    let packages = ["@anthropic-ai/sdk", "anthropic-v0"];
    all_pass(packages.map(|package| Sdk::node_program(package, "anthropic_checks.mjs"))).await;
}

/// Silence of 900 ms, of which each keep-alive is a ninth.
const QUICK_TO_SPEAK: &str = "[gateway]\nstatus_after = \"200ms\"\nkeep_alive_every = \"100ms\"\n";

/// Keep-alives are on the wire, before content and after, and the decoder of the SDK sees none of them.
async fn skips_keep_alives(sdks: [Sdk; 2]) {
    let models: Vec<Model> = PROVIDERS.map(|api| model("fast", api)).to_vec();
    let house =
        House::start(Setup { catalog: Catalog::of(&models), config: QUICK_TO_SPEAK.to_owned(), ..Setup::default() })
            .await;
    for sdk in sdks {
        for api in PROVIDERS {
            sdk.clone().env("WEIR_PROVIDER_API", api).check(&house).await;
        }
    }
    let rest = house.at_rest(TENANT, PATIENCE).await;
    rest.assert_exact(&house).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o04_python_skips_keep_alives() {
    skips_keep_alives(["requirements.txt", "requirements-v1.txt"].map(silent_python)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o04_node_skips_keep_alives() {
    skips_keep_alives(["openai", "openai-v4"].map(silent_node)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o04_anthropic_python_skips_keep_alives() {
    skips_keep_alives(["requirements-anthropic.txt", "requirements-anthropic-v1.txt"].map(silent_python)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o04_anthropic_node_skips_keep_alives() {
    skips_keep_alives(["@anthropic-ai/sdk", "anthropic-v0"].map(silent_node)).await;
}

fn silent_python(requirements: &str) -> Sdk {
    Sdk::python_program(requirements, "silence_checks.py")
}

fn silent_node(package: &str) -> Sdk {
    Sdk::node_program(package, "silence_checks.mjs")
}
