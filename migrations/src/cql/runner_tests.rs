use super::*;

#[test]
fn comments_go_and_statements_end_at_the_end_of_a_line() {
    let text = "-- a; b\nCREATE TABLE IF NOT EXISTS a (\n    n int, -- one; two\n    PRIMARY KEY (n)\n);\n\nALTER TABLE a ADD m int;";
    let found = statements(text);
    assert_eq!(
        found,
        ["CREATE TABLE IF NOT EXISTS a (\n    n int,\n    PRIMARY KEY (n)\n)", "ALTER TABLE a ADD m int"]
    );
    assert_eq!(qualified(&found[1], "weir"), "ALTER TABLE weir.a ADD m int");
}

#[test]
fn every_statement_of_this_binary_names_its_table_alone_and_can_be_repeated() {
    for set in CqlSet::ALL {
        for migration in set.migrations() {
            for statement in statements(migration.sql) {
                let placed = qualified(&statement, "weir");
                assert_ne!(placed, statement, "{}: of a kind that the runner cannot place", migration.file);
                let can_be_repeated = statement.contains(" IF NOT EXISTS ") || statement.contains(" IF EXISTS ");
                assert!(can_be_repeated, "{}: {statement}", migration.file);
            }
        }
    }
}

#[test]
fn a_keyspace_is_a_plain_name() {
    for name in ["weir", "weir_2"] {
        assert!(check_name(name).is_ok(), "{name}");
    }
    for name in ["", "2weir", "Weir", "weir;", "weir ks", &"w".repeat(49)] {
        assert!(matches!(check_name(name), Err(MigrationError::KeyspaceName { .. })), "{name}");
    }
}
