//! Lost answers, a server that stands still or is killed, another history, and what a refused write leaves.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use scylla::value::Row;
use sha2::{Digest as _, Sha256};

use weir_control::conformance::{Outcome, scene};
use weir_control::state::{Change, Publication};
use weir_control::store::cql::CqlOptions;
use weir_control::store::{ControlStore, StoreError};
use weir_domain::testing::Dice;
use weir_runtime::units::HumanDuration;

use crate::proxy::Proxy;
use crate::support::{Failure, Server, block_on, is_skipped, open, turn};

/// A store behind a proxy of its own, which runs as long as the value lives.
struct Proxied {
    proxy: Proxy,
    store: Arc<dyn ControlStore>,
    _runtime: tokio::runtime::Runtime,
}

impl Proxied {
    fn to(server: &Server) -> Result<Self, Failure> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let proxy = runtime.block_on(Proxy::to(server.address.clone()))?;
        let options = CqlOptions { nodes: vec![proxy.address.to_string()], ..server.options() };
        let store = open(&options, &scene::secrets('p', 'm')?)?;
        Ok(Self { proxy, store, _runtime: runtime })
    }
}

fn add(n: u64) -> Vec<Change> {
    vec![Change::AddTenant(scene::tenant(n))]
}

/// Writes until it is known, whoever writes meanwhile and however long the servers are away; the revision.
fn write_alone(store: &dyn ControlStore, changes: &[Change]) -> Result<u64, StoreError> {
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        let written = store.read().and_then(|state| store.write(state.revision, changes));
        match written {
            // What is unknown cannot simply be written again: it may be there.
            Err(error @ StoreError::Unknown { .. }) => return Err(error),
            Err(error) if error.is_temporary() && Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(20));
            }
            written => return written,
        }
    }
}

/// The tenants with these numbers are there, and nobody else.
fn assert_tenants(store: &dyn ControlStore, numbers: impl IntoIterator<Item = u64>) -> Outcome {
    let wanted: BTreeSet<String> = numbers.into_iter().map(|n| scene::tenant(n).name).collect();
    let state = store.read()?;
    assert_eq!(state.tenants.keys().cloned().collect::<BTreeSet<_>>(), wanted);
    for tenant in state.tenants.values() {
        let n: u64 = tenant.name.trim_start_matches("tenant-").parse()?;
        assert_eq!(*tenant, scene::tenant(n));
    }
    Ok(())
}

#[test]
fn o56_a_claim_whose_answers_were_lost_is_known_for_its_writers_own() -> Outcome {
    if is_skipped("lost answers") {
        return Ok(());
    }
    let turn = turn()?;
    let proxied = Proxied::to(turn.server)?;
    // More of them than the session repeats by itself, too.
    for (revision, losses) in [1, 2, 9].into_iter().enumerate() {
        let revision = revision as u64;
        let lost = proxied.proxy.lost();
        proxied.proxy.lose_answers(losses);
        assert_eq!(proxied.store.write(revision, &add(revision))?, revision + 1, "{losses} answers lost");
        assert_eq!(proxied.proxy.lost() - lost, losses);
    }
    assert_tenants(&*turn.server.store()?, 0..3)
}

#[test]
fn o56_a_claim_that_was_another_ones_stays_a_conflict_when_its_answer_is_lost() -> Outcome {
    if is_skipped("conflicts after lost answers") {
        return Ok(());
    }
    let turn = turn()?;
    let (proxied, other) = (Proxied::to(turn.server)?, turn.server.store()?);
    assert_eq!(other.write(0, &add(1))?, 1);
    // It has read nothing yet, so it claims the revision that is taken.
    proxied.proxy.lose_answers(2);
    let refused = proxied.store.write(0, &add(2));
    assert!(matches!(refused, Err(StoreError::Conflict)), "{refused:?}");
    assert_eq!(proxied.proxy.lost(), 2);
    assert_tenants(&*proxied.store, [1])
}

#[test]
fn o56_writers_whose_answers_get_lost_share_no_revision_and_lose_no_write() -> Outcome {
    const WRITERS: u64 = 3;
    const WRITES: u64 = 15;
    if is_skipped("writers whose answers get lost") {
        return Ok(());
    }
    let turn = turn()?;
    let seed: u64 = std::env::var("WEIR_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(56);
    let writers = (0..WRITERS).map(|_| Proxied::to(turn.server)).collect::<Result<Vec<_>, _>>()?;
    let revisions: Vec<u64> = thread::scope(|scope| {
        let writing: Vec<_> = (0..)
            .zip(&writers)
            .map(|(writer, proxied)| {
                scope.spawn(move || {
                    let mut dice = Dice::new(seed + writer);
                    let write = |n| {
                        if dice.chance(40) {
                            proxied.proxy.lose_answers(u32::try_from(dice.between(1, 3)).unwrap());
                        }
                        write_alone(&*proxied.store, &add(writer * WRITES + n))
                    };
                    (0..WRITES).map(write).collect::<Result<Vec<_>, _>>()
                })
            })
            .collect();
        let mut revisions = Vec::new();
        for writer in writing {
            revisions.extend(writer.join().map_err(|_| "a writer panicked")??);
        }
        revisions.sort_unstable();
        Ok::<_, Failure>(revisions)
    })?;
    assert_eq!(revisions, (1..=WRITERS * WRITES).collect::<Vec<_>>(), "seed {seed}");
    assert!(writers.iter().any(|proxied| proxied.proxy.lost() > 0), "seed {seed}: no answer was lost");
    assert_tenants(&*turn.server.store()?, 0..WRITERS * WRITES)
}

#[test]
fn o56_a_server_that_stands_still_makes_an_unknown_outcome_known_later() -> Outcome {
    if is_skipped("timeouts") {
        return Ok(());
    }
    let turn = turn()?;
    let options = CqlOptions { request_timeout: HumanDuration::from_ms(1500), ..turn.server.options() };
    let store = open(&options, &scene::secrets('p', 'm')?)?;
    store.write(0, &add(0))?;
    assert_eq!(store.read()?.revision, 1);
    turn.server.signal("STOP");
    let written = thread::scope(|scope| {
        let writing = scope.spawn(|| store.write(1, &[Change::AddTeam(scene::team(1, &scene::tenant(0)))]));
        thread::sleep(Duration::from_secs(4));
        turn.server.signal("CONT");
        writing.join().map_err(|_| "the writer panicked")
    })?;
    assert_eq!(written?, 2);
    assert_eq!(turn.server.store()?.read()?.teams.len(), 1);
    Ok(())
}

#[test]
fn a_server_killed_during_writes_keeps_what_it_took_and_takes_the_rest_later() -> Outcome {
    if is_skipped("a killed server") {
        return Ok(());
    }
    let turn = turn()?;
    let (store, is_back) = (turn.server.store()?, AtomicBool::new(false));
    let written = thread::scope(|scope| {
        let writing = scope.spawn(|| {
            let mut written = 0;
            let mut after_return = 0;
            while after_return < 10 {
                let was_back = is_back.load(Ordering::Acquire);
                write_alone(&*store, &add(written))?;
                written += 1;
                after_return += u64::from(was_back);
            }
            Ok::<u64, StoreError>(written)
        });
        thread::sleep(Duration::from_millis(700));
        turn.server.run(&["kill"]);
        turn.server.run(&["restart"]);
        is_back.store(true, Ordering::Release);
        writing.join().map_err(|_| "the writer panicked")
    })??;
    let found = turn.server.store()?;
    assert_eq!(found.read()?.revision, written);
    assert_tenants(&*found, 0..written)
}

/// Rows of a table, whatever is in them.
fn rows(server: &Server, table: &str) -> Result<Vec<Row>, Failure> {
    block_on(async {
        let session = server.session().await?;
        let found = session.query_unpaged(format!("SELECT * FROM {table}"), ()).await?.into_rows_result()?;
        Ok(found.rows::<Row>()?.collect::<Result<Vec<_>, _>>()?)
    })
}

#[test]
fn a_refused_write_takes_its_parts_along() -> Outcome {
    if is_skipped("parts of a refused write") {
        return Ok(());
    }
    let turn = turn()?;
    let (late, first) = (turn.server.store()?, turn.server.store()?);
    first.write(0, &add(0))?;
    let many: Vec<Change> = (1..2_000).flat_map(add).collect();
    // It has read nothing yet, so everything is stored before the claim is lost.
    assert!(matches!(late.write(0, &many), Err(StoreError::Conflict)));
    assert_eq!(rows(turn.server, "control_parts")?.len(), 0);
    assert_tenants(&*late, [0])?;
    assert_eq!(late.write(1, &many)?, 2);
    assert!(rows(turn.server, "control_parts")?.len() > 1);
    assert_tenants(&*first, 0..2_000)
}

#[test]
fn more_writes_than_a_partition_holds_are_one_log() -> Outcome {
    const WRITES: u64 = 600;
    if is_skipped("a log of several partitions") {
        return Ok(());
    }
    let turn = turn()?;
    let store = turn.server.store()?;
    let mut newest_first: Vec<Publication> = Vec::new();
    let prices = scene::prices(&["a"]);
    for n in 0..WRITES {
        let mut changes = add(n);
        if n % 100 == 0 {
            let (publish, publication) = scene::publish(1 + n / 100, &prices)?;
            changes.push(publish);
            newest_first.insert(0, publication);
        }
        assert_eq!(store.write(n, &changes)?, n + 1);
        // Only now and then: a reader that has seen some of it goes on from there.
        if n % 37 == 0 {
            assert_eq!(store.read()?.revision, n + 1);
        }
    }
    for handle in [store, turn.server.store()?] {
        assert_tenants(&*handle, 0..WRITES)?;
        for most in [1, 4, 100] {
            assert_eq!(handle.publications(most)?, newest_first.iter().take(most).cloned().collect::<Vec<_>>());
        }
    }
    Ok(())
}

#[test]
fn a_store_with_another_history_is_read_anew() -> Outcome {
    if is_skipped("another history") {
        return Ok(());
    }
    let turn = turn()?;
    let store = turn.server.store()?;
    for n in 0..3 {
        store.write(n, &add(n))?;
    }
    assert_tenants(&*store, 0..3)?;
    // As after a restore from a backup: as many writes, but others; then fewer; then more.
    for (first, count) in [(10, 3), (20, 2), (30, 4)] {
        block_on(turn.server.empty())?;
        let other = turn.server.store()?;
        for n in 0..count {
            other.write(n, &add(first + n))?;
        }
        assert_tenants(&*store, first..first + count)?;
    }
    block_on(turn.server.empty())?;
    assert_tenants(&*store, [])
}

#[test]
fn i6_a_tenants_secret_lies_in_one_row_and_is_gone_with_it() -> Outcome {
    if is_skipped("removal of a tenant's secret") {
        return Ok(());
    }
    let turn = turn()?;
    let store = turn.server.store()?;
    let many: Vec<Change> = (0..500).flat_map(add).chain([scene::catalog(0..500)?]).collect();
    store.write(0, &many)?;
    let secret: [u8; 32] = Sha256::digest(7_u64.to_be_bytes()).into();
    let holding = || -> Result<Vec<&str>, Failure> {
        let tables =
            ["control_writes", "control_parts", "control_catalogs", "control_price_books", "control_tenant_secrets"];
        let mut holding = Vec::new();
        for table in tables {
            let found = rows(turn.server, table)?.into_iter().flat_map(|row| row.columns).flatten().any(|value| {
                let bytes = value.as_blob().map(Vec::as_slice).or_else(|| value.as_text().map(String::as_bytes));
                bytes.is_some_and(|bytes| bytes.windows(secret.len()).any(|some| some == secret))
            });
            holding.extend(found.then_some(table));
        }
        Ok(holding)
    };
    assert_eq!(holding()?, ["control_tenant_secrets"]);
    block_on(async {
        let session = turn.server.session().await?;
        let shards = session.query_unpaged("SELECT shard, tenant FROM control_tenant_secrets", ()).await?;
        let shards = shards.into_rows_result()?;
        let of_tenant = shards.rows::<(i32, String)>()?.filter_map(Result::ok);
        let wanted = scene::tenant(7).id;
        for (shard, tenant) in of_tenant.filter(|(_, tenant)| tenant == wanted.as_str()) {
            let delete = "DELETE FROM control_tenant_secrets WHERE shard = ? AND tenant = ?";
            session.query_unpaged(delete, (shard, tenant)).await?;
        }
        Ok::<_, Failure>(())
    })?;
    assert_eq!(holding()?, [] as [&str; 0]);
    let state = turn.server.store()?.read()?;
    assert_eq!(state.tenants.len(), 500);
    let changed = (0..500).filter(|n| state.tenants[&scene::tenant(*n).name] != scene::tenant(*n));
    assert_eq!(changed.collect::<Vec<_>>(), [7]);
    Ok(())
}
