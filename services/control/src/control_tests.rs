use std::collections::HashSet;

use weir_domain::quota::{Measure, Subject, Unit};
use weir_domain::registry::{Capability, Tokenizer};
use weir_runtime::clock::ManualClock;
use weir_runtime::entropy::OsEntropy;

use super::*;
use crate::store::SqliteControlStore;

#[path = "control_tests/zone_change.rs"]
mod zone_change;

/// 2026-11-29 12:00 UTC.
const NOW_MS: i64 = 1_795_953_600_000;

const CATALOG: &str = r#"
[[provider]]
id = "openai"
dialect = "openai_chat"
base_url = "https://api.openai.com/v1"
credential = "env:OPENAI_API_KEY"

[[deployment]]
id = "a"
provider = "openai"
model = "gpt-4o-mini"
max_output_tokens = 16_384

[[deployment]]
id = "b"
provider = "openai"
model = "own"
region = "eu"
price = "own-hardware"
max_output_tokens = 4_096
capabilities = ["streaming", "vision"]
tokens_per_image = 1_000
tokenizer = "o200k"

[[model]]
name = "fast"
tiers = [["a"], ["b"]]
default_output_tokens = 1_024
deadlines = { first_content = "30s" }

[[tenant]]
name = "acme"
zone = "Europe/Berlin"
on_report_mismatch = "adjust"

[[team]]
tenant = "acme"
name = "search"

[[limit]]
tenant = "acme"
kind = "usd per month"
max = "250.50"

[[limit]]
tenant = "acme"
team = "search"
model = "fast"
kind = "tokens per minute"
max = 10_000

[[limit]]
tenant = "acme"
key = "ci"
kind = "concurrent"
max = 4

[[key]]
name = "ci"
hash = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
tenant = "acme"
team = "search"
models = ["fast"]
labels = { env = "ci" }

[[price]]
name = "own-hardware"
free = true
"#;

struct House {
    folder: tempfile::TempDir,
    clock: Arc<ManualClock>,
}

impl House {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), clock: Arc::new(ManualClock::at_ms(NOW_MS)) }
    }

    fn secrets(&self) -> ControlSecrets {
        ControlSecrets::open_or_create(self.folder.path(), &OsEntropy).unwrap()
    }

    /// A control plane as after a start of the process.
    fn open(&self) -> Control {
        let secrets = self.secrets();
        let store = SqliteControlStore::open(&self.folder.path().join("control.sqlite"), &secrets).unwrap();
        Control::open(Arc::new(store), secrets, self.clock.clone(), OsEntropy::shared()).unwrap()
    }

    fn with_catalog() -> (Self, Control) {
        let house = Self::new();
        let control = house.open();
        control.apply("catalog.toml", CATALOG).unwrap();
        (house, control)
    }
}

fn request(name: &str) -> KeyRequest {
    KeyRequest { tenant: "acme".into(), name: name.into(), ..KeyRequest::default() }
}

fn key_of(control: &Control, plain: &str) -> Option<Arc<weir_domain::policy::Key>> {
    control.current().keys.get(&control.secrets().pepper.hash(plain)).cloned()
}

#[test]
fn an_empty_store_admits_nobody_and_a_catalog_becomes_the_snapshot() {
    let house = House::new();
    let control = house.open();
    assert!(control.current().keys.is_empty());

    let applied = control.apply("catalog.toml", CATALOG).unwrap();
    assert!(applied.changed);
    let snapshot = control.current();
    assert_eq!((snapshot.version, &applied.price_version), (applied.version, snapshot.prices.version()));
    let model = &snapshot.models["fast"];
    let tiers: Vec<Vec<&str>> = model.tiers.iter().map(|t| t.iter().map(|d| d.id.as_str()).collect()).collect();
    assert_eq!(tiers, [["a"], ["b"]]);
    assert_eq!((model.deadlines.first_content_ms, model.deadlines.idle_ms), (30_000, 60_000));
    assert_eq!(model.capabilities().iter().collect::<Vec<_>>(), [Capability::Streaming]);
    assert_eq!(snapshot.deployments["a"].price, "gpt-4o-mini");
    let tokenizer = |id: &str| snapshot.deployments[id].tokenizer;
    assert_eq!((tokenizer("a"), tokenizer("b")), (None, Some(Tokenizer::O200k)));
    assert_eq!(snapshot.providers["openai"].credential.as_deref(), Some("env:OPENAI_API_KEY"));

    let key = snapshot.keys.values().next().unwrap();
    assert_eq!((key.tenant.name.as_str(), key.tenant.adjust_on_mismatch), ("acme", true));
    let fast = ModelName::new("fast");
    let limits: Vec<_> = snapshot.limits_for(key, &fast).map(|l| (&l.scope.subject, l.measure, l.max)).collect();
    let (team, id) = (Subject::Team(key.team.clone().unwrap()), Subject::Key(key.id.clone()));
    let usd = Measure::Calendar { unit: Unit::Usd, window: weir_domain::calendar::WindowKind::Month };
    assert_eq!(
        limits,
        [
            (&Subject::Tenant, usd, 250_500_000_000),
            (&team, Measure::PerMinute { unit: Unit::Tokens }, 10_000),
            (&id, Measure::Concurrent, 4),
        ]
    );
}

#[test]
fn applying_again_changes_nothing_and_a_restart_gives_the_same_snapshot() {
    let (house, control) = House::with_catalog();
    let before = control.current();
    let mut tables: Vec<&str> = CATALOG.trim().split("\n\n").collect();
    tables.reverse();
    let reordered = format!("# the same, from the end\n{}", tables.join("\n\n"));
    for text in [CATALOG, &reordered] {
        let again = control.apply("other.toml", text).unwrap();
        assert!(!again.changed, "{text}");
        assert_eq!(again.version, before.version);
    }
    drop(control);

    let reopened = house.open().current();
    assert_eq!((reopened.version, reopened.prices.version()), (before.version, before.prices.version()));
    assert_eq!((&reopened.tenants, &reopened.keys), (&before.tenants, &before.keys));
    assert_eq!((&reopened.models, &reopened.deployments), (&before.models, &before.deployments));
    assert_eq!(reopened.providers, before.providers);
}

#[test]
fn identities_and_secrets_outlive_the_catalog_that_named_them() {
    let (_house, control) = House::with_catalog();
    let tenant = control.current().tenants.values().next().unwrap().clone();
    assert!(control.apply("empty.toml", "").unwrap().changed);
    assert!(control.current().tenants.is_empty() && control.current().keys.is_empty());
    control.apply("catalog.toml", CATALOG).unwrap();
    let back = control.current().tenants.values().next().unwrap().clone();
    assert_eq!(back, tenant);
    assert_eq!(control.current().keys.len(), 1, "a file may bring back what a file took away");
}

#[test]
fn a_key_is_shown_once_opens_at_once_and_ends_when_it_is_revoked() {
    let (house, control) = House::with_catalog();
    let mut versions = control.subscribe();
    let created = control.create_key(&request("laptop")).unwrap();
    assert!(versions.has_changed().unwrap() && versions.borrow_and_update().version == 3);
    let plain = created.key.expose().to_owned();
    assert_eq!(key_of(&control, &plain).unwrap().id, created.view.id);
    assert_eq!((created.view.status, &plain[..16]), (KeyStatus::Active, created.view.prefix.as_str()));

    let listed = serde_json::to_string(&control.keys().unwrap()).unwrap();
    assert!(listed.contains(&created.view.prefix) && !listed.contains(&plain));

    let revoked = control.revoke_key(created.view.id.as_str()).unwrap();
    assert_eq!(revoked.revoked, Some(Revoked { at_ms: NOW_MS, by: Origin::Admin }));
    assert!(key_of(&control, &plain).is_none());
    house.clock.advance_ms(5);
    assert_eq!(control.revoke_key(created.view.id.as_str()).unwrap(), revoked, "a repeat finds what exists");
    assert_eq!(control.current().version, 4);
    assert!(key_of(&house.open(), &plain).is_none(), "after a restart as well");
    assert!(matches!(control.revoke_key("key_x"), Err(ControlError::NoKey { .. })));
}

#[test]
fn o59_expiry_is_an_instant_that_the_snapshot_carries() {
    let (house, control) = House::with_catalog();
    let expires_at = Some(EffectiveMs(NOW_MS + 10_000));
    let created = control.create_key(&KeyRequest { expires_at, ..request("short") }).unwrap();
    assert_eq!(key_of(&control, created.key.expose()).unwrap().expires_at_ms, Some(NOW_MS + 10_000));
    house.clock.set_ms(NOW_MS + 9_999);
    assert_eq!(control.key_view(created.view.id.as_str()).unwrap().status, KeyStatus::Active);
    house.clock.set_ms(NOW_MS + 10_000);
    assert_eq!(control.key_view(created.view.id.as_str()).unwrap().status, KeyStatus::Expired);
    let late = control.create_key(&KeyRequest { expires_at, ..request("late") }).unwrap_err();
    assert_eq!(late.to_string(), "expires_at: it is in the past; name a later instant");
}

#[test]
fn a_rotation_has_two_active_keys_of_a_name_and_never_three() {
    let (_house, control) = House::with_catalog();
    let old = control.create_key(&request("app")).unwrap();
    let new = control.create_key(&request("app")).unwrap();
    let third = control.create_key(&request("app")).unwrap_err();
    assert_eq!(third.to_string(), "name: 2 active keys are called `app`; revoke one of them, or choose another name");
    control.revoke_key(old.view.id.as_str()).unwrap();
    control.create_key(&request("app")).unwrap();
    assert!(key_of(&control, new.key.expose()).is_some());
}

#[test]
fn what_a_key_request_gets_wrong_is_named() {
    let (_house, control) = House::with_catalog();
    let cases = [
        (KeyRequest { tenant: "nobody".into(), ..request("x") }, "tenant: there is no tenant `nobody`; apply"),
        (KeyRequest { team: Some("sales".into()), ..request("x") }, "team: tenant `acme` has no team `sales`; apply"),
        (request("no name"), "name: `no name` is no name; use"),
        (request(""), "name: `` is no name; use"),
        (request("ci"), "name: a catalog file has a key `ci`; choose another name"),
        (
            KeyRequest { models: Some(BTreeSet::from(["slow".into()])), ..request("x") },
            "models: there is no model `slow`; name models of the catalog",
        ),
        (
            KeyRequest { labels: (0..17).map(|n| (format!("l{n}"), String::new())).collect(), ..request("x") },
            "labels: 17 labels; write at most 16",
        ),
    ];
    let version = control.current().version;
    for (request, expected) in cases {
        let error = control.create_key(&request).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
    assert_eq!(control.current().version, version);
}

#[test]
fn an_apply_that_collides_is_refused_by_name_and_changes_nothing() {
    let (_house, control) = House::with_catalog();
    let made = control.create_key(&KeyRequest { team: Some("search".into()), ..request("laptop") }).unwrap();
    let made_hash = hex::encode(control.secrets().pepper.hash(made.key.expose()).0);
    let file_key = |name: &str, hash: &str| {
        format!("{CATALOG}\n[[key]]\nname = \"{name}\"\nhash = \"{hash}\"\ntenant = \"acme\"\n")
    };
    let without_team = CATALOG
        .replace("[[team]]\ntenant = \"acme\"\nname = \"search\"\n", "")
        .replace("team = \"search\"\n", "")
        .replace("model = \"fast\"\nkind", "kind");
    let moved = CATALOG
        .replace("[[team]]", "[[tenant]]\nname = \"other\"\n\n[[team]]")
        .replace("tenant = \"acme\"\nteam = \"search\"\nmodels", "tenant = \"other\"\nmodels");
    let moved = moved.replace("key = \"ci\"\nkind", "kind");
    let other = "11".repeat(32);
    let cases = [
        (
            file_key("laptop", &other),
            "key `laptop` of tenant `acme`: the admin API has an active key of this name; rename the one in the file",
        ),
        (
            file_key("mine", &made_hash),
            "key `mine`: the admin API made this very key as `laptop`; remove it from the file",
        ),
        (
            String::new(),
            "tenant `acme` is not in the file, but its key `laptop` from the admin API is active; revoke the key first",
        ),
        (
            without_team,
            "team `search` of tenant `acme` is not in the file, but its key `laptop` from the admin API is active; \
             revoke the key first",
        ),
        (moved, "key `ci` belonged to another tenant than `other`; a key cannot move: make a new one"),
    ];
    let (version, revision) = (control.current().version, control.state().unwrap().revision);
    for (text, expected) in cases {
        let error = control.apply("catalog.toml", &text).unwrap_err();
        assert!(matches!(error, ControlError::Collisions(_)), "{error}");
        assert_eq!(error.to_string(), expected);
        assert!(control.check("catalog.toml", &text).is_err(), "a check says the same");
    }
    assert_eq!((control.current().version, control.state().unwrap().revision), (version, revision));
}

#[test]
fn a_file_does_not_bring_back_what_the_admin_api_revoked() {
    let (_house, control) = House::with_catalog();
    let id = control.keys().unwrap()[0].id.clone();
    control.revoke_key(id.as_str()).unwrap();
    let error = control.apply("catalog.toml", CATALOG).unwrap_err();
    assert_eq!(
        error.to_string(),
        "key `ci` of tenant `acme` was revoked through the admin API; remove it from the file"
    );
    assert!(control.current().keys.is_empty());
}

#[test]
fn a_check_says_what_an_apply_would_do_and_does_nothing() {
    let house = House::new();
    let control = house.open();
    let checked = control.check("catalog.toml", CATALOG).unwrap();
    assert!(checked.changed);
    assert_eq!((checked.counts["deployments"], checked.counts["limits"]), (2, 3));
    assert!(control.current().tenants.is_empty() && control.state().unwrap().tenants.is_empty());
    let applied = control.apply("catalog.toml", CATALOG).unwrap();
    assert_eq!(applied.price_version, checked.price_version);
    assert!(!control.check("catalog.toml", CATALOG).unwrap().changed);
}

#[test]
fn every_published_price_book_is_kept() {
    let (house, control) = House::with_catalog();
    let old = control.current().prices.version().clone();
    let dearer = format!(
        "{CATALOG}\n[[price]]\nname = \"gpt-4o-mini\"\n[[price.terms]]\n\
         rates = {{ \"in.uncached\" = \"1\", \"out.visible\" = \"2\" }}\n"
    );
    control.apply("catalog.toml", &dearer).unwrap();
    let new = control.current().prices.version().clone();
    assert_ne!(old, new);
    let reopened = house.open();
    for version in [old, new] {
        let book = reopened.price_book(&version).unwrap().unwrap();
        assert_eq!(*book.version(), version);
    }
    assert!(reopened.price_book(&"0000000000000000".into()).unwrap().is_none());
}

#[test]
fn a_binary_with_other_prices_publishes_them() {
    let (house, control) = House::with_catalog();
    let before = control.current();
    drop(control);
    let secrets = house.secrets();
    let store = SqliteControlStore::open(&house.folder.path().join("control.sqlite"), &secrets).unwrap();
    let mut prices = shipped_prices().unwrap();
    prices.retain(|price| price.name == "gpt-4o-mini");
    let control =
        Control::open_with_prices(Arc::new(store), secrets, house.clock.clone(), OsEntropy::shared(), prices).unwrap();
    assert_eq!(control.current().version, before.version + 1);
    assert_ne!(control.current().prices.version(), before.prices.version());
}

#[test]
fn what_a_plane_of_another_release_published_is_in_force_as_it_was_published() {
    let (house, control) = House::with_catalog();
    let secrets = house.secrets();
    let store = SqliteControlStore::open(&house.folder.path().join("control.sqlite"), &secrets).unwrap();
    let mut prices = shipped_prices().unwrap();
    prices.retain(|price| price.name == "gpt-4o-mini");
    let other =
        Control::open_with_prices(Arc::new(store), secrets, house.clock.clone(), OsEntropy::shared(), prices).unwrap();
    let (publication, document) = control.published().unwrap().unwrap();
    assert_eq!(document.content_sha256().unwrap(), publication.content_sha256);
    let (here, there) = (control.current(), other.current());
    assert_eq!((here.version, here.prices.version()), (there.version, there.prices.version()));
    assert_eq!(control.published().unwrap().unwrap().0, publication, "looking publishes nothing");
}

#[test]
fn another_pepper_or_master_key_is_refused_by_name() {
    for (file, what) in [("pepper", "pepper"), ("master.key", "master key")] {
        let (house, control) = House::with_catalog();
        drop(control);
        std::fs::write(house.folder.path().join(file), "x".repeat(64)).unwrap();
        let error =
            SqliteControlStore::open(&house.folder.path().join("control.sqlite"), &house.secrets()).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("the control store was made with another {what}; restore the secret that it was made with")
        );
    }
}

#[test]
fn concurrent_acts_all_happen_and_versions_only_rise() {
    let (house, control) = House::with_catalog();
    let other = house.open();
    let ids: HashSet<KeyId> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|n| {
                let control = if n % 2 == 0 { &control } else { &other };
                scope.spawn(move || control.create_key(&request(&format!("k{n}"))).unwrap().view.id)
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(ids.len(), 8);
    let reopened = house.open().current();
    assert_eq!((reopened.version, reopened.keys.len()), (10, 9));
}

#[test]
fn i6_no_secret_is_printed_published_or_stored_in_plain_text() {
    let (house, control) = House::with_catalog();
    let created = control.create_key(&request("laptop")).unwrap();
    let secret_files = ["pepper", "master.key", "admin.token"];
    let mut secrets: Vec<Vec<u8>> =
        secret_files.iter().map(|name| std::fs::read(house.folder.path().join(name)).unwrap()).collect();
    secrets.iter_mut().for_each(|secret| secret.truncate(64));
    secrets.push(created.key.expose().as_bytes().to_vec());
    for tenant in control.current().tenants.values() {
        secrets.push(tenant.secret.0.to_vec());
        secrets.push(hex::encode(tenant.secret.0).into_bytes());
    }
    let state = control.state().unwrap();
    let document = crate::document::compile(&state, &[]);
    let mut outputs = vec![
        format!("{control:?} {state:?} {:?} {created:?}", control.current()).into_bytes(),
        serde_json::to_vec(&document).unwrap(),
        serde_json::to_vec(&control.keys().unwrap()).unwrap(),
    ];
    for name in ["control.sqlite", "control.sqlite-wal"] {
        outputs.push(std::fs::read(house.folder.path().join(name)).unwrap());
    }
    for secret in &secrets {
        for output in &outputs {
            assert!(
                !output.windows(secret.len()).any(|window| window == secret),
                "{}",
                String::from_utf8_lossy(output)
            );
        }
    }
}
