use super::*;

const FIRST: Migration = Migration { file: "x/0001_first.sql", sql: "CREATE TABLE a (n INTEGER) STRICT;" };
const SECOND: Migration = Migration { file: "x/0002_second.sql", sql: "ALTER TABLE a ADD COLUMN t TEXT;" };
const BROKEN: Migration = Migration { file: "x/0003_broken.sql", sql: "CREATE TABLE b (n); CREATE TABLE a (n);" };

fn memory() -> Connection {
    Connection::open_in_memory().unwrap()
}

fn table_exists(connection: &Connection, name: &str) -> bool {
    let count = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = ?1";
    connection.query_row(count, [name], |row| row.get::<_, i64>(0)).unwrap() == 1
}

#[test]
fn files_are_applied_once_in_their_order() {
    let mut database = memory();
    let first = run_list(&mut database, &[FIRST]).unwrap();
    assert_eq!(first, Migrated { applied: vec![FIRST.file], version: 1 });
    let second = run_list(&mut database, &[FIRST, SECOND]).unwrap();
    assert_eq!(second, Migrated { applied: vec![SECOND.file], version: 2 });
    let again = run_list(&mut database, &[FIRST, SECOND]).unwrap();
    assert_eq!(again, Migrated { applied: vec![], version: 2 });
    database.execute("INSERT INTO a (n, t) VALUES (1, 'x')", []).unwrap();
}

#[test]
fn an_empty_set_is_a_database_without_tables() {
    let mut database = memory();
    assert_eq!(run_list(&mut database, &[]).unwrap(), Migrated { applied: vec![], version: 0 });
    assert_eq!(run_list(&mut database, &[FIRST]).unwrap().version, 1);
}

#[test]
fn an_edited_or_renamed_file_is_drift_that_names_it() {
    let edited = Migration { sql: "CREATE TABLE a (n TEXT) STRICT;", ..FIRST };
    let renamed = Migration { file: "x/0001_other.sql", ..FIRST };
    for changed in [edited, renamed] {
        let mut database = memory();
        run_list(&mut database, &[FIRST]).unwrap();
        let error = run_list(&mut database, &[changed, SECOND]).unwrap_err();
        assert!(matches!(&error, MigrationError::Drift { file, .. } if file == changed.file), "{error}");
        assert!(error.to_string().starts_with(&format!("migration {} is not what", changed.file)), "{error}");
        assert_eq!(run_list(&mut database, &[FIRST]).unwrap().version, 1, "nothing was applied on top");
    }
}

#[test]
fn a_database_of_a_newer_binary_is_refused() {
    let mut database = memory();
    run_list(&mut database, &[FIRST, SECOND]).unwrap();
    let error = run_list(&mut database, &[FIRST]).unwrap_err();
    assert!(matches!(&error, MigrationError::Newer { found: 2, known: 1, .. }), "{error}");
    assert!(error.to_string().contains("x/0002_second.sql"), "{error}");
}

#[test]
fn a_file_that_fails_takes_its_whole_run_back() {
    let mut database = memory();
    run_list(&mut database, &[FIRST]).unwrap();
    let error = run_list(&mut database, &[FIRST, SECOND, BROKEN]).unwrap_err();
    assert!(matches!(&error, MigrationError::Failed { file, .. } if file == BROKEN.file), "{error}");
    assert!(!table_exists(&database, "b"));
    assert_eq!(run_list(&mut database, &[FIRST, SECOND]).unwrap().applied, vec![SECOND.file]);
}

#[test]
fn two_processes_that_start_together_apply_each_file_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.sqlite");
    let start = || {
        let mut database = Connection::open(&path).unwrap();
        database.busy_timeout(std::time::Duration::from_secs(30)).unwrap();
        run_list(&mut database, &[FIRST, SECOND]).unwrap().applied.len()
    };
    let applied: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(start)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(applied, 2);
}

#[test]
fn every_set_of_this_binary_applies_to_an_empty_database_and_only_once() {
    for set in Set::ALL {
        let mut database = memory();
        let migrated = run(&mut database, set).unwrap();
        assert_eq!(migrated.applied.len(), migrated.version, "{set:?}");
        assert_eq!(run(&mut database, set).unwrap().applied.len(), 0, "{set:?}");
    }
}
