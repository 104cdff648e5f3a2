use std::sync::Arc;

use weir_runtime::clock::ManualClock;
use weir_runtime::entropy::OsEntropy;

use super::*;
use crate::control::{ControlError, SnapshotSource as _};
use crate::state::Change;
use crate::{Control, KeyRequest};

const CATALOG: &str = "[[tenant]]\nname = \"acme\"\n";

fn house() -> (tempfile::TempDir, Arc<SqliteControlStore>, Control) {
    let folder = tempfile::tempdir().unwrap();
    let secrets = ControlSecrets::open_or_create(folder.path(), &OsEntropy).unwrap();
    let store = Arc::new(SqliteControlStore::open(&folder.path().join("control.sqlite"), &secrets).unwrap());
    let clock = Arc::new(ManualClock::at_ms(1_795_953_600_000));
    let control = Control::open(store.clone(), secrets, clock, OsEntropy::shared()).unwrap();
    (folder, store, control)
}

#[test]
fn a_full_disk_refuses_an_act_whole_and_the_same_act_succeeds_once_there_is_room() {
    let (_folder, store, control) = house();
    control.apply("catalog.toml", CATALOG).unwrap();
    let before = store.read().unwrap();
    let pages: i64 = store.connection.lock().query_row("PRAGMA page_count", [], |row| row.get(0)).unwrap();
    let limit = |pages: i64| {
        let connection = store.connection.lock();
        connection.query_row(&format!("PRAGMA max_page_count = {pages}"), [], |row| row.get::<_, i64>(0)).unwrap();
    };
    limit(pages);
    let many: String = (0..2_000).map(|n| format!("[[tenant]]\nname = \"t{n}\"\n")).collect();
    let error = control.apply("catalog.toml", &format!("{CATALOG}{many}")).unwrap_err();
    assert!(matches!(error, ControlError::Store(StoreError::Backend(_))), "{error}");
    let after = store.read().unwrap();
    assert_eq!((after.revision, after.tenants, after.published), (before.revision, before.tenants, before.published));
    assert_eq!(control.current().tenants.len(), 1);

    limit(1_000_000);
    control.apply("catalog.toml", &format!("{CATALOG}{many}")).unwrap();
    assert_eq!(control.current().tenants.len(), 2_001);
}

#[test]
fn a_write_that_read_an_older_revision_is_a_conflict_and_writes_nothing() {
    let (_folder, store, control) = house();
    control.apply("catalog.toml", CATALOG).unwrap();
    let state = store.read().unwrap();
    let tenant = TenantRecord { id: "tnt_x".into(), name: "x".into(), ..state.tenants["acme"].clone() };
    let error = store.write(state.revision - 1, &[Change::AddTenant(tenant.clone())]).unwrap_err();
    assert!(matches!(error, StoreError::Conflict));
    assert_eq!(store.read().unwrap().tenants.len(), 1);
    assert_eq!(store.write(state.revision, &[Change::AddTenant(tenant)]).unwrap(), state.revision + 1);
}

#[test]
fn a_row_that_cannot_be_read_is_named_and_nothing_is_published_from_it() {
    let (_folder, store, control) = house();
    control.apply("catalog.toml", CATALOG).unwrap();
    control.create_key(&KeyRequest { tenant: "acme".into(), name: "k".into(), ..KeyRequest::default() }).unwrap();
    store.connection.lock().execute("UPDATE keys SET labels = '{'", []).unwrap();
    let version = control.current().version;
    let error = control.apply("catalog.toml", "").unwrap_err().to_string();
    assert!(error.starts_with("the control store has a key's labels that cannot be read: "), "{error}");
    assert_eq!(control.current().version, version, "the last good snapshot stays");
}

#[test]
fn every_field_of_a_key_is_stored_and_read_back() {
    let (_folder, store, control) = house();
    control.apply("catalog.toml", &format!("{CATALOG}[[team]]\ntenant = \"acme\"\nname = \"a\"\n")).unwrap();
    let state = store.read().unwrap();
    let tenant = state.tenants["acme"].id.clone();
    let full = KeyRecord {
        id: "key_1".into(),
        hash: KeyHashText([7; 32]),
        prefix: "weir_live_abc".into(),
        origin: Origin::File,
        name: "k".into(),
        team: state.team_named(&tenant, "a").map(|team| team.id.clone()),
        tenant,
        models: Some(vec!["m".into(), "n".into()]),
        labels: vec![("env".into(), "\"prod\"".into())],
        created_at_ms: 1,
        expires_at_ms: Some(2),
        revoked: Some(Revoked { at_ms: 3, by: Origin::File }),
    };
    let bare = KeyRecord {
        id: "key_2".into(),
        hash: KeyHashText([8; 32]),
        origin: Origin::Admin,
        team: None,
        models: None,
        labels: Vec::new(),
        expires_at_ms: None,
        revoked: None,
        ..full.clone()
    };
    let revision = store.write(state.revision, &[Change::PutKey(full.clone()), Change::PutKey(bare.clone())]).unwrap();
    assert_eq!(store.read().unwrap().keys.into_values().collect::<Vec<_>>(), [full.clone(), bare]);
    let changed = KeyRecord { name: "l".into(), models: None, team: None, revoked: None, ..full };
    store.write(revision, &[Change::PutKey(changed.clone())]).unwrap();
    assert_eq!(store.read().unwrap().keys[&changed.id], changed);
}

#[test]
fn one_tenant_and_the_list_of_all_are_what_the_whole_state_says() {
    let (_folder, store, control) = house();
    let others = "[[tenant]]\nname = \"b\"\nzone = \"Asia/Tokyo\"\n[[team]]\ntenant = \"b\"\nname = \"t\"\n[[tenant]]\nname = \"c\"\n";
    control.apply("catalog.toml", &format!("{CATALOG}{others}")).unwrap();
    for (tenant, name) in [("acme", "k"), ("b", "k"), ("b", "l")] {
        control.create_key(&KeyRequest { tenant: tenant.into(), name: name.into(), ..KeyRequest::default() }).unwrap();
    }
    // A row of before calendars were kept: its zone is the catalog's.
    store.connection.lock().execute("UPDATE tenants SET calendar = NULL WHERE name = 'b'", []).unwrap();
    let state = store.read().unwrap();
    let of_tenant = |tenant: &TenantRecord| TenantState {
        tenant: tenant.clone(),
        teams: state.teams.values().filter(|team| team.tenant == tenant.id).cloned().collect(),
        keys: state.keys.values().filter(|key| key.tenant == tenant.id).cloned().collect(),
    };
    for tenant in state.tenants.values() {
        for asked in [tenant.name.as_str(), tenant.id.as_str()] {
            assert_eq!(store.tenant(asked).unwrap(), Some(of_tenant(tenant)), "{asked}");
        }
    }
    assert_eq!(store.tenant("nobody").unwrap(), None);
    let ids = state.tenants.values().map(|tenant| (tenant.name.clone(), tenant.id.clone())).collect();
    assert_eq!(store.tenant_ids().unwrap(), ids);
}

#[test]
fn a_name_that_looks_like_an_id_is_a_name_first() {
    let (_folder, store, control) = house();
    control.apply("catalog.toml", CATALOG).unwrap();
    let id = store.read().unwrap().tenants["acme"].id.clone();
    control.apply("catalog.toml", &format!("{CATALOG}[[tenant]]\nname = \"{id}\"\n")).unwrap();
    assert_eq!(store.tenant(id.as_str()).unwrap().unwrap().tenant.name, id.as_str());
}
