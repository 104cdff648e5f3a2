//! `weir migrate` on a real server: once whoever runs it, and nothing on top of what it does not know.

use scylla::client::session::Session;

use weir_ledger::conformance::Outcome;
use weir_ledger::cql::{CqlLedger, migrate};
use weir_ledger::{CqlOptions, LedgerError};
use weir_migrations::MigrationError;
use weir_runtime::clock::SystemClock;

use crate::support::{Failure, is_skipped, turn};

/// Whether a role may open it, and why not.
async fn refusal(options: &CqlOptions) -> Option<String> {
    match CqlLedger::open(options, SystemClock::shared()).await {
        Ok(_) => None,
        Err(LedgerError::Unavailable { reason }) => Some(reason),
        Err(other) => panic!("{other}"),
    }
}

async fn run(session: &Session, statement: &str) -> Result<(), Failure> {
    session.query_unpaged(statement, ()).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_keyspace_is_migrated_once_and_refused_when_it_is_another_ones() -> Outcome {
    if is_skipped("migrations") {
        return Ok(());
    }
    let turn = turn().await?;
    let options = CqlOptions { keyspace: "weir_migrate".to_owned(), ..turn.server.options() };
    let lacks = refusal(&options).await.ok_or("a keyspace that is not there was opened")?;
    assert!(lacks.contains("lacks migration ledger/0001_ledger.cql: run `weir migrate`"), "{lacks}");

    let (one, other) = tokio::join!(migrate(&options, "one"), migrate(&options, "other"));
    let applied = one?.applied.len() + other?.applied.len();
    assert_eq!(applied, 1, "each file by one of them");
    assert_eq!(migrate(&options, "again").await?.applied.len(), 0);
    assert_eq!(refusal(&options).await, None);

    let session = turn.server.session().await?;
    let sha256 = "UPDATE weir_migrate.weir_migrations SET sha256 = 'abc' WHERE name = 'ledger' AND number = 1";
    let newer = "INSERT INTO weir_migrate.weir_migrations (name, number, file, sha256) \
                 VALUES ('ledger', 2, 'ledger/0002_later.cql', 'abc')";
    run(&session, newer).await?;
    let refused = migrate(&options, "older").await;
    assert!(matches!(&refused, Err(MigrationError::Newer { found: 2, known: 1, .. })), "{refused:?}");
    assert!(refusal(&options).await.is_some_and(|reason| reason.contains("ledger/0002_later.cql")));
    run(&session, "DELETE FROM weir_migrate.weir_migrations WHERE name = 'ledger' AND number = 2").await?;
    run(&session, sha256).await?;
    let refused = migrate(&options, "edited").await;
    assert!(
        matches!(&refused, Err(MigrationError::Drift { file, .. }) if file == "ledger/0001_ledger.cql"),
        "{refused:?}"
    );
    assert!(refusal(&options).await.is_some_and(|reason| reason.contains("is not what this database was made with")));
    run(&session, "DROP KEYSPACE weir_migrate").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_died_half_way_is_mended_by_the_next_one_after_its_lock_has_ended() -> Outcome {
    if is_skipped("migrations that died") {
        return Ok(());
    }
    let turn = turn().await?;
    let options = CqlOptions { keyspace: "weir_half".to_owned(), ..turn.server.options() };
    migrate(&options, "first").await?;
    let session = turn.server.session().await?;
    // Some tables are there, the record of the file is not, and the lock of the dead has two seconds to live.
    run(&session, "DROP TABLE weir_half.positions").await?;
    run(&session, "DELETE FROM weir_half.weir_migrations WHERE name = 'ledger'").await?;
    let lock = "INSERT INTO weir_half.weir_migration_lock (name, holder) VALUES ('ledger', 'dead') \
                IF NOT EXISTS USING TTL 2";
    run(&session, lock).await?;
    assert_eq!(migrate(&options, "second").await?.applied, ["ledger/0001_ledger.cql"]);
    assert_eq!(refusal(&options).await, None);
    run(&session, "DROP KEYSPACE weir_half").await
}
