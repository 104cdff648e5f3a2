//! The official SDKs, as applications use them: only a base URL and a key are changed.
//!
//! What an SDK must see is in `sdk/python/checks.py` and `sdk/node/checks.mjs`, one function per expectation; here the
//! same calls are checked from the other side: what the provider billed is in the ledger to the last token, and nothing
//! stays reserved.

use serde_json::json;

use weir_tests::catalog::{self, Catalog, Model, TENANT};
use weir_tests::client;
use weir_tests::sdk::Sdk;
use weir_tests::{House, PATIENCE, Setup};

/// A key whose limit lets nothing through.
const LIMITED_KEY: &str = "weir_live_LimitedLimitedLimitedLimited000000";

/// A tenant that may use one of two models, with a second key whose limit is used up.
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
    let models = ["fast", "throttled", "broken", "late", "busy", "closed"].map(Model::named);
    let mut catalog = Catalog::of(&models).and(&more);
    catalog.tenant = r#"models = ["fast", "throttled", "broken", "late", "busy"]"#.to_owned();
    Setup { catalog, ..Setup::default() }
}

/// Every check passes, and afterwards the books are exact.
async fn passes(sdk: Sdk) {
    let house = House::start(setup()).await;
    // The one request that the limit has room for.
    let first = client::chat("fast", false, &json!({}));
    drop(house.client.with_key(LIMITED_KEY).chat(&first).await.expect(200));
    let checks = sdk.env("WEIR_LIMITED_KEY", LIMITED_KEY).check(&house).await;
    assert!(checks.len() >= 18, "{checks:?}");

    let rest = house.at_rest(TENANT, PATIENCE).await;
    rest.assert_exact(&house).await;
    // Three may have been executed without a word about usage: a 504, a broken stream, and one that was left.
    let aborted = checks.iter().find_map(|line| line.strip_prefix("ok aborted_stream "));
    let aborted = aborted.unwrap_or_default();
    assert!(rest.pending.iter().any(|open| open.id.to_string() == aborted), "{aborted} is not pending");
    assert_eq!(rest.pending.len(), 3, "{:#?}", rest.pending);
    assert_eq!(house.show(aborted)["status"], "pending_reconciliation");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn python() {
    passes(Sdk::python("requirements.txt")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn python_older_major() {
    passes(Sdk::python("requirements-v1.txt")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node() {
    passes(Sdk::node("openai")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_older_major() {
    passes(Sdk::node("openai-v4")).await;
}
