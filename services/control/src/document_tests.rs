use std::sync::Arc;

use weir_domain::calendar::WindowKind;
use weir_domain::quota::{Measure, Unit};
use weir_runtime::clock::ManualClock;
use weir_runtime::entropy::{OsEntropy, SeededEntropy};

use super::*;
use crate::Control;
use crate::secrets::ControlSecrets;
use crate::store::SqliteControlStore;

const CATALOG: &str = r#"
[[provider]]
id = "p"
dialect = "openai_chat"
base_url = "http://127.0.0.1:8080/v1"
credential = "env:P_KEY"
organization = "org"

[[deployment]]
id = "d"
provider = "p"
model = "gpt-4o-mini"
region = "eu"
max_output_tokens = 1000

[[model]]
name = "m"
deployments = ["d"]

[[tenant]]
name = "t"
zone = "Asia/Tokyo"
models = ["m"]
regions = ["eu"]
providers = ["p"]
denied_tools = ["shell"]
on_ceiling = "estimate"

[[limit]]
tenant = "t"
key = "k"
model = "m"
kind = "tokens per week"
max = 5

[[key]]
name = "k"
hash = "abababababababababababababababababababababababababababababababab"
tenant = "t"
models = ["m"]
expires_at = "2027-01-01T00:00:00+09:00"
"#;

fn control() -> (Control, ControlSecrets) {
    let folder = tempfile::tempdir().unwrap();
    let secrets = ControlSecrets::open_or_create(folder.path(), &SeededEntropy::new(3)).unwrap();
    let store = SqliteControlStore::in_memory(&secrets).unwrap();
    let clock = Arc::new(ManualClock::at_ms(1_795_953_600_000));
    let control = Control::open(Arc::new(store), secrets.clone(), clock, OsEntropy::shared()).unwrap();
    control.apply("catalog.toml", CATALOG).unwrap();
    (control, secrets)
}

#[test]
fn a_published_document_is_named_by_its_hash_and_opens_to_the_same_snapshot_elsewhere() {
    let (control, secrets) = control();
    let (publication, json) = control.published_document().unwrap().unwrap();
    assert_eq!(publication.content_sha256, hex::encode(Sha256::digest(&json)));
    let document: SnapshotDocument = serde_json::from_str(&json).unwrap();
    let opened = document.open(publication.version, &secrets.master).unwrap();
    let here = crate::SnapshotSource::current(&control);
    assert_eq!((opened.version, opened.prices.version()), (here.version, &publication.price_version));
    assert_eq!((&opened.tenants, &opened.keys), (&here.tenants, &here.keys));
    assert_eq!((&opened.models, &opened.deployments), (&here.models, &here.deployments));

    let key = here.keys.values().next().unwrap();
    assert_eq!(key.expires_at_ms, Some(1_798_729_200_000), "an instant: 15:00 UTC of the day before");
    let measure = Measure::Calendar { unit: Unit::Tokens, window: WindowKind::Week };
    let scope = Scope { subject: Subject::Key(key.id.clone()), model: Some("m".into()) };
    assert_eq!(key.limits, [Limit { scope, measure, max: 5 }]);
    let tenant = &key.tenant;
    assert_eq!(
        (tenant.calendar.zone().to_string().as_str(), tenant.on_ceiling),
        ("Asia/Tokyo", CeilingPolicy::Estimate)
    );
    assert!(tenant.regions.contains(&"eu".to_owned()) && !tenant.regions.contains(&"us".to_owned()));
    assert!(tenant.denied_tools.contains("shell") && !tenant.providers.contains(&"q".into()));
}

#[test]
fn a_document_that_does_not_hold_together_is_refused_by_what_is_missing() {
    let (control, secrets) = control();
    let (_, json) = control.published_document().unwrap().unwrap();
    let document: SnapshotDocument = serde_json::from_str(&json).unwrap();
    let refused = |change: fn(&mut SnapshotDocument)| {
        let mut changed = document.clone();
        change(&mut changed);
        changed.open(1, &secrets.master).unwrap_err().to_string()
    };
    assert_eq!(
        refused(|document| document.providers.clear()),
        "deployment `d` refers to `p`, which the snapshot does not have"
    );
    assert_eq!(
        refused(|document| document.deployments.clear()),
        "model `m` refers to `d`, which the snapshot does not have"
    );
    assert!(refused(|document| document.tenants.clear()).starts_with("key `key_"));
    assert!(refused(|document| document.tenants[0].wrapped_secret.clear()).contains("does not open"));
    assert!(refused(|document| document.prices.push(document.prices[0].clone())).contains("no price book"));
}
