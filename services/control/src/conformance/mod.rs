//! What every control store must pass: one function per promise of [`ControlStore`], on an empty store each.
//!
//! A backend's test file is a harness and one call of `control_store_conformance!`. Calls block, as those of the port do.

pub mod scene;

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use weir_domain::ids::TenantId;
use weir_domain::testing::{Dice, NOON_MS};

use crate::secrets::ControlSecrets;
use crate::state::{Change, KeyRecord, Origin, Publication, Revoked, State, TenantRecord};
use crate::store::{ControlStore, StoreError};
use scene::{bare_key, catalog, full_key, prices, publish, secrets, team, tenant};

/// Failed assertions panic; everything else that goes wrong is one of these.
pub type Outcome = Result<(), Box<dyn Error + Send + Sync>>;

/// One empty storage.
pub trait Harness {
    /// A handle to it, as another process with these secrets would open it. Called more than once.
    ///
    /// # Errors
    /// When it cannot be opened.
    fn open_with(&self, secrets: &ControlSecrets) -> Result<Arc<dyn ControlStore>, StoreError>;

    /// A handle with the secrets of this storage.
    ///
    /// # Errors
    /// When it cannot be opened.
    fn open(&self) -> Result<Arc<dyn ControlStore>, Box<dyn Error + Send + Sync>> {
        Ok(self.open_with(&secrets('p', 'm')?)?)
    }
}

/// One `#[test]` per case, for a backend with a `fn() -> impl Harness` named `$fresh`.
#[macro_export]
macro_rules! control_store_conformance {
    ($fresh:path) => {
        $crate::control_store_conformance!($fresh:
            begins_empty_and_reads_what_was_written, gives_back_every_field_of_every_change,
            agrees_with_the_state_that_the_changes_make, writes_nothing_on_another_revision,
            shows_no_reader_half_a_write, loses_nothing_of_many_writers_and_gives_no_revision_twice,
            knows_a_write_that_is_repeated_because_its_answer_was_lost, keeps_price_books_for_good,
            keeps_applied_catalogs_for_good, lists_publications_newest_first, refuses_other_secrets_by_name,
            takes_thousands_of_tenants_in_one_write, names_tenants_and_gives_one_as_the_state_has_them,
        );
    };
    ($fresh:path: $($case:ident),+ $(,)?) => {
        $(
            #[test]
            fn $case() -> $crate::conformance::Outcome {
                $crate::conformance::$case(&$fresh())
            }
        )+
    };
}

/// Everything but the revision, which counts writes and not what they did.
fn assert_same(found: &State, wanted: &State, when: &str) {
    assert_eq!(found.catalog, wanted.catalog, "catalog {when}");
    assert_eq!(found.tenants, wanted.tenants, "tenants {when}");
    assert_eq!(found.teams, wanted.teams, "teams {when}");
    assert_eq!(found.keys, wanted.keys, "keys {when}");
    assert_eq!(found.published, wanted.published, "published {when}");
}

fn after(changes: &[Change]) -> State {
    let mut state = State::default();
    changes.iter().for_each(|change| state.apply(change));
    state
}

/// # Errors
/// When the store fails.
pub fn begins_empty_and_reads_what_was_written(harness: &dyn Harness) -> Outcome {
    let (one, other) = (harness.open()?, harness.open()?);
    let empty = one.read()?;
    assert_eq!(empty.revision, 0);
    assert_same(&empty, &State::default(), "at first");
    let mut changes = Vec::new();
    for n in 1..=3 {
        let change = Change::AddTenant(tenant(n));
        assert_eq!(one.write(n - 1, std::slice::from_ref(&change))?, n);
        changes.push(change);
        for (store, which) in [(&one, "the writer"), (&other, "another"), (&harness.open()?, "a new one")] {
            let found = store.read()?;
            assert_eq!(found.revision, n, "of {which}");
            assert_same(&found, &after(&changes), which);
        }
    }
    Ok(())
}

/// # Errors
/// When the store fails.
pub fn gives_back_every_field_of_every_change(harness: &dyn Harness) -> Outcome {
    let store = harness.open()?;
    let (acme, globex) = (tenant(1), tenant(2));
    let team = team(1, &acme);
    let (bare, full) = (bare_key(1, &globex), full_key(2, &acme, &team));
    let calendar = acme.calendar.with_zone("America/St_Johns".parse()?, NOON_MS);
    let renamed = KeyRecord { name: "renamed".to_owned(), models: Some(Vec::new()), revoked: None, ..full.clone() };
    let revoked = Revoked { at_ms: NOON_MS + 7, by: Origin::File };
    let writes = [
        vec![Change::AddTenant(acme.clone()), Change::AddTenant(globex), Change::AddTeam(team)],
        vec![Change::PutKey(full), Change::PutKey(bare.clone()), catalog([1, 2])?],
        vec![Change::SetCalendar { tenant: acme.name, calendar }, publish(1, &prices(&["a", "b"]))?.0],
        vec![Change::PutKey(renamed), Change::RevokeKey { id: bare.id, revoked }, catalog([2])?],
    ];
    let mut written = Vec::new();
    for (revision, changes) in (0..).zip(writes) {
        store.write(revision, &changes)?;
        written.extend(changes);
        assert_same(&harness.open()?.read()?, &after(&written), &format!("after write {}", revision + 1));
    }
    Ok(())
}

/// # Errors
/// When the store fails.
pub fn agrees_with_the_state_that_the_changes_make(harness: &dyn Harness) -> Outcome {
    const WRITES: u64 = 60;
    let seed = std::env::var("WEIR_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(5);
    let (store, mut dice, mut wanted, mut next) = (harness.open()?, Dice::new(seed), State::default(), 0);
    for revision in 0..WRITES {
        let changes = scene::random_changes(&mut dice, &wanted, &mut next)?;
        assert_eq!(store.write(revision, &changes)?, revision + 1, "seed {seed}");
        changes.iter().for_each(|change| wanted.apply(change));
        // Through a handle that has seen none of it now and then: it reads otherwise than one that saw all.
        let reader = if dice.chance(10) { harness.open()? } else { Arc::clone(&store) };
        let found = reader.read()?;
        assert_eq!(found.revision, revision + 1, "seed {seed}");
        assert_same(&found, &wanted, &format!("after write {}, seed {seed}", revision + 1));
    }
    assert_same(&harness.open()?.read()?, &wanted, &format!("at the end, seed {seed}"));
    Ok(())
}

/// # Errors
/// When the store fails.
pub fn writes_nothing_on_another_revision(harness: &dyn Harness) -> Outcome {
    let (one, other) = (harness.open()?, harness.open()?);
    one.write(0, &[Change::AddTenant(tenant(1))])?;
    one.write(1, &[Change::AddTenant(tenant(2))])?;
    let unwanted = prices(&["unwanted"]);
    let (published, publication) = publish(1, &unwanted)?;
    for revision in [0, 1, 3, 1_000_000] {
        for store in [&one, &other, &harness.open()?] {
            let refused = store.write(revision, &[Change::AddTenant(tenant(9)), catalog([9])?, published.clone()]);
            assert!(matches!(refused, Err(StoreError::Conflict)), "at {revision}: {refused:?}");
        }
    }
    let found = harness.open()?.read()?;
    assert_eq!(found.revision, 2);
    assert_same(&found, &after(&[Change::AddTenant(tenant(1)), Change::AddTenant(tenant(2))]), "after refusals");
    assert_eq!(one.publications(10)?, []);
    assert_eq!(harness.open()?.publications(10)?, []);
    assert_eq!(other.write(2, &[published])?, 3);
    assert_eq!(one.prices(&publication.price_version)?, Some(unwanted));
    Ok(())
}

/// # Errors
/// When the store fails.
pub fn shows_no_reader_half_a_write(harness: &dyn Harness) -> Outcome {
    const WRITES: u64 = 8;
    const TENANTS: u64 = 300;
    let (writer, is_written) = (harness.open()?, AtomicBool::new(false));
    let readers = [harness.open()?, harness.open()?];
    thread::scope(|scope| {
        let reading: Vec<_> = readers
            .iter()
            .map(|store| {
                scope.spawn(|| {
                    let mut seen = 0;
                    while !is_written.load(Ordering::Acquire) {
                        let state = store.read()?;
                        assert!(state.revision >= seen, "{} after {seen}", state.revision);
                        seen = state.revision;
                        assert_eq!(state.tenants.len() as u64, seen * TENANTS, "at revision {seen}");
                        assert_eq!(state.teams.len() as u64, seen, "at revision {seen}");
                    }
                    Ok::<u64, StoreError>(seen)
                })
            })
            .collect();
        let writing = (0..WRITES).try_for_each(|revision| {
            let first = tenant(revision * TENANTS);
            let tenants = (revision * TENANTS..(revision + 1) * TENANTS).map(|n| Change::AddTenant(tenant(n)));
            let changes: Vec<Change> = tenants.chain([Change::AddTeam(team(revision, &first))]).collect();
            writer.write(revision, &changes).map(|_| ())
        });
        is_written.store(true, Ordering::Release);
        for reader in reading {
            let seen = reader.join().map_err(|_| "a reader saw half a write")??;
            assert!(seen <= WRITES);
        }
        writing?;
        Ok(())
    })
}

/// Writes until nobody else wrote meanwhile, as every act does; the revision.
fn write_alone(store: &dyn ControlStore, changes: &[Change]) -> Result<u64, StoreError> {
    loop {
        let revision = store.read()?.revision;
        match store.write(revision, changes) {
            Err(StoreError::Conflict) => {}
            written => return written,
        }
    }
}

/// # Errors
/// When the store fails.
pub fn loses_nothing_of_many_writers_and_gives_no_revision_twice(harness: &dyn Harness) -> Outcome {
    const WRITERS: u64 = 6;
    const WRITES: u64 = 12;
    let acme = tenant(0);
    harness.open()?.write(0, &[Change::AddTenant(acme.clone())])?;
    let stores = (0..WRITERS).map(|_| harness.open()).collect::<Result<Vec<_>, _>>()?;
    let revisions: BTreeMap<u64, u64> = thread::scope(|scope| {
        let writing: Vec<_> = (0..)
            .zip(&stores)
            .map(|(writer, store)| {
                let keys = (0..WRITES).map(move |n| writer * WRITES + n);
                let acme = &acme;
                scope.spawn(move || {
                    keys.map(|n| Ok((write_alone(&**store, &[Change::PutKey(bare_key(n, acme))])?, n)))
                        .collect::<Result<Vec<(u64, u64)>, StoreError>>()
                })
            })
            .collect();
        let mut revisions = Vec::new();
        for writer in writing {
            revisions.extend(writer.join().map_err(|_| "a writer panicked")??);
        }
        Ok::<_, Box<dyn Error + Send + Sync>>(revisions.into_iter().collect())
    })?;
    assert_eq!(revisions.keys().copied().collect::<Vec<_>>(), (2..=1 + WRITERS * WRITES).collect::<Vec<_>>());
    let found = harness.open()?.read()?;
    assert_eq!(found.revision, 1 + WRITERS * WRITES);
    let wanted: BTreeSet<u64> = (0..WRITERS * WRITES).collect();
    assert_eq!(revisions.into_values().collect::<BTreeSet<u64>>(), wanted);
    let keys: Vec<KeyRecord> = (0..WRITERS * WRITES).map(|n| bare_key(n, &acme)).collect();
    assert_eq!(found.keys.into_values().collect::<Vec<_>>(), keys);
    Ok(())
}

/// Whoever heard nothing of a write sends it again against the revision that it had read, and finds that somebody wrote:
/// the read after that conflict shows its own changes, once.
///
/// # Errors
/// When the store fails.
pub fn knows_a_write_that_is_repeated_because_its_answer_was_lost(harness: &dyn Harness) -> Outcome {
    let store = harness.open()?;
    let changes = [Change::AddTenant(tenant(1)), publish(1, &prices(&["a"]))?.0];
    store.write(0, &changes)?;
    for handle in [store, harness.open()?] {
        assert!(matches!(handle.write(0, &changes), Err(StoreError::Conflict)));
        let found = handle.read()?;
        assert_eq!(found.revision, 1);
        assert_same(&found, &after(&changes), "after the repetition");
        assert_eq!(handle.publications(10)?.len(), 1);
    }
    Ok(())
}

/// # Errors
/// When the store fails.
pub fn keeps_price_books_for_good(harness: &dyn Harness) -> Outcome {
    let store = harness.open()?;
    let many: Vec<String> = (0..2_000).map(|n| format!("model-{n}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let books = [prices(&["a"]), prices(&many), prices(&["a", "b"])];
    let mut names = Vec::new();
    for (version, book) in (1..).zip(&books) {
        let (change, publication) = publish(version, book)?;
        store.write(version - 1, &[change])?;
        names.push(publication.price_version);
    }
    // The first one again: it has been there all the time.
    store.write(3, &[publish(4, &books[0])?.0])?;
    for handle in [Arc::clone(&store), harness.open()?] {
        for (name, book) in names.iter().zip(&books) {
            assert_eq!(handle.prices(name)?.as_ref(), Some(book));
        }
        assert_eq!(handle.prices(&"0000000000000000".into())?, None);
    }
    Ok(())
}

/// # Errors
/// When the store fails.
pub fn keeps_applied_catalogs_for_good(harness: &dyn Harness) -> Outcome {
    let store = harness.open()?;
    let applies = [catalog([1])?, catalog(0..3_000)?, catalog([])?, catalog([1])?];
    for (revision, apply) in (0..).zip(&applies) {
        store.write(revision, std::slice::from_ref(apply))?;
        assert_same(&store.read()?, &after(std::slice::from_ref(apply)), &format!("after apply {}", revision + 1));
    }
    for handle in [Arc::clone(&store), harness.open()?] {
        for apply in &applies {
            let Change::SetCatalog { catalog, content_sha256, .. } = apply else { continue };
            assert_eq!(handle.catalog(content_sha256)?.as_ref(), Some(&**catalog));
        }
        assert_eq!(handle.catalog(&"0".repeat(64))?, None);
    }
    Ok(())
}

/// # Errors
/// When the store fails.
pub fn lists_publications_newest_first(harness: &dyn Harness) -> Outcome {
    const VERSIONS: u64 = 7;
    let store = harness.open()?;
    assert_eq!(store.publications(10)?, []);
    let mut newest_first: Vec<Publication> = Vec::new();
    for version in 1..=VERSIONS {
        let (change, publication) = publish(version, &prices(&["a"]))?;
        // Not every write publishes.
        store.write(2 * version - 2, &[Change::AddTenant(tenant(version))])?;
        store.write(2 * version - 1, &[change])?;
        newest_first.insert(0, publication);
    }
    for handle in [Arc::clone(&store), harness.open()?] {
        for most in [0, 1, 3, 7, 100] {
            let first: Vec<_> = newest_first.iter().take(most).cloned().collect();
            assert_eq!(handle.publications(most)?, first, "at most {most}");
        }
    }
    Ok(())
}

/// # Errors
/// When the store fails.
pub fn refuses_other_secrets_by_name(harness: &dyn Harness) -> Outcome {
    harness.open()?.write(0, &[Change::AddTenant(tenant(1))])?;
    for (pepper, master, wrong) in [('x', 'm', "pepper"), ('p', 'x', "master key")] {
        let refused = harness.open_with(&secrets(pepper, master)?).err();
        assert!(matches!(refused, Some(StoreError::WrongSecret { what }) if what == wrong), "{wrong}: {refused:?}");
    }
    assert_eq!(harness.open()?.read()?.revision, 1);
    Ok(())
}

/// # Errors
/// When the store fails.
pub fn takes_thousands_of_tenants_in_one_write(harness: &dyn Harness) -> Outcome {
    const TENANTS: u64 = 5_000;
    let store = harness.open()?;
    let tenants: Vec<TenantRecord> = (0..TENANTS).map(tenant).collect();
    let mut changes: Vec<Change> = tenants.iter().cloned().map(Change::AddTenant).collect();
    changes.extend((0..).zip(&tenants).map(|(n, tenant)| Change::PutKey(bare_key(n, tenant))));
    changes.extend([catalog(0..TENANTS)?, publish(1, &prices(&["a"]))?.0]);
    assert_eq!(store.write(0, &changes)?, 1);
    for handle in [store, harness.open()?] {
        let found = handle.read()?;
        assert_same(&found, &after(&changes), "after the one write");
        let ids: BTreeSet<&TenantId> = found.tenants.values().map(|tenant| &tenant.id).collect();
        assert_eq!(ids.len() as u64, TENANTS);
    }
    Ok(())
}

/// # Errors
/// When the store fails.
pub fn names_tenants_and_gives_one_as_the_state_has_them(harness: &dyn Harness) -> Outcome {
    let store = harness.open()?;
    assert_eq!((store.tenant_ids()?, store.tenant("tenant-1")?), (BTreeMap::new(), None));
    let (acme, globex) = (tenant(1), tenant(2));
    // Whose name is another one's id: the name goes before.
    let sly = TenantRecord { name: acme.id.to_string(), ..tenant(3) };
    let teams = [2, 1].map(|n| team(n, &acme));
    let keys = [full_key(2, &acme, &teams[0]), bare_key(1, &acme), bare_key(3, &globex)];
    let tenants = [&acme, &globex, &sly].map(|tenant| Change::AddTenant(tenant.clone()));
    let changes: Vec<Change> =
        tenants.into_iter().chain(teams.map(Change::AddTeam)).chain(keys.map(Change::PutKey)).collect();
    store.write(0, &changes)?;
    let wanted = after(&changes);
    for handle in [store, harness.open()?] {
        assert_eq!(handle.tenant_ids()?, wanted.tenant_ids());
        for asked in [&acme.name, &globex.name, &sly.name, globex.id.as_str(), sly.id.as_str(), "nobody"] {
            assert_eq!(handle.tenant(asked)?, wanted.tenant(asked), "{asked}");
        }
        assert_eq!(handle.tenant(acme.id.as_str())?.map(|found| found.tenant), Some(sly.clone()));
        assert_same(&handle.read()?, &wanted, "after single reads");
    }
    Ok(())
}
