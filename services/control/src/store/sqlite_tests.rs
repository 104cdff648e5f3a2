use std::sync::Arc;

use weir_runtime::clock::ManualClock;
use weir_runtime::entropy::OsEntropy;

use super::*;
use crate::conformance::Harness;
use crate::control::{ControlError, SnapshotSource as _};
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

/// A file that any number of handles share.
struct InFile(tempfile::TempDir);

impl Harness for InFile {
    fn open_with(&self, secrets: &ControlSecrets) -> Result<Arc<dyn ControlStore>, StoreError> {
        Ok(Arc::new(SqliteControlStore::open(&self.0.path().join("control.sqlite"), secrets)?))
    }
}

/// A store that is gone with its one handle, which is made at the first call.
#[derive(Default)]
struct InMemory(Mutex<Option<Arc<SqliteControlStore>>>);

impl Harness for InMemory {
    fn open_with(&self, secrets: &ControlSecrets) -> Result<Arc<dyn ControlStore>, StoreError> {
        let mut store = self.0.lock();
        let known = store.take().map_or_else(|| SqliteControlStore::in_memory(secrets).map(Arc::new), Ok)?;
        Ok(Arc::clone(store.insert(known)) as _)
    }
}

mod in_file {
    fn fresh() -> super::InFile {
        super::InFile(tempfile::tempdir().unwrap())
    }

    crate::control_store_conformance!(fresh);
}

/// Nobody else can open it, so nobody can open it with other secrets.
mod in_memory {
    fn fresh() -> super::InMemory {
        super::InMemory::default()
    }

    crate::control_store_conformance!(fresh:
        begins_empty_and_reads_what_was_written, gives_back_every_field_of_every_change,
        agrees_with_the_state_that_the_changes_make, writes_nothing_on_another_revision,
        shows_no_reader_half_a_write, loses_nothing_of_many_writers_and_gives_no_revision_twice,
        knows_a_write_that_is_repeated_because_its_answer_was_lost, keeps_price_books_for_good,
        keeps_applied_catalogs_for_good, lists_publications_newest_first, takes_thousands_of_tenants_in_one_write,
        names_tenants_and_gives_one_as_the_state_has_them,
    );
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
