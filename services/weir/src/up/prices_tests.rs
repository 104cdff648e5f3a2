use weir_control::SnapshotSource as _;
use weir_control::secrets::ControlSecrets;
use weir_control::store::SqliteControlStore;
use weir_domain::usage::{Meter, Usage};
use weir_runtime::clock::ManualClock;
use weir_runtime::entropy::OsEntropy;

use super::*;

/// 2026-11-29 12:00 UTC.
const NOW_MS: i64 = 1_795_953_600_000;

const PROVIDER: &str = r#"
[[provider]]
id = "own"
dialect = "openai_chat"
base_url = "https://models.example/v1"
credential = "env:OWN_API_KEY"
"#;

const DEPLOYMENT: &str = r#"
[[deployment]]
id = "a"
provider = "own"
model = "large"
price = "own-hardware"
max_output_tokens = 4_096

[[price]]
name = "own-hardware"
[[price.terms]]
rates = { "in.uncached" = "3", "out.visible" = "7" }
"#;

#[test]
fn a_deployment_and_a_price_that_left_the_catalog_keep_the_price_of_admission() {
    let folder = tempfile::tempdir().unwrap();
    let secrets = ControlSecrets::open_or_create(folder.path(), &OsEntropy).unwrap();
    let store = SqliteControlStore::in_memory(&secrets).unwrap();
    let clock = Arc::new(ManualClock::at_ms(NOW_MS));
    let control = Arc::new(Control::open(Arc::new(store), secrets, clock, OsEntropy::shared()).unwrap());
    control.apply("catalog.toml", &format!("{PROVIDER}{DEPLOYMENT}")).unwrap();
    let admitted_under = control.current().prices.version().clone();
    control.apply("catalog.toml", PROVIDER).unwrap();
    let current = control.current();
    assert!(current.deployments.is_empty() && !current.prices.knows("own-hardware"));

    let prices = PublishedPrices::new(Arc::clone(&control) as Arc<dyn PriceBooks>);
    let used = Usage::new([(Meter::InUncached, 1_001), (Meter::OutVisible, 11)]).unwrap();
    let price = prices.price(&admitted_under, "own-hardware", NOW_MS).unwrap();
    assert_eq!(price.charge(&used, None).unwrap().to_string(), "0.00308");
    assert!(prices.price(current.prices.version(), "own-hardware", NOW_MS).is_none());
    assert!(prices.price(&"0000000000000000".into(), "own-hardware", NOW_MS).is_none());
}
