//! Lost answers, timeouts, two builders at once, and a server that is killed: what was posted stays, once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_domain::ids::TenantId;
use weir_domain::ledger::LedgerLine;
use weir_domain::money::{Amounts, NanoUsd};
use weir_domain::reservation::EventKind;
use weir_domain::testing::Dice;
use weir_ledger::conformance::{Outcome, scene};
use weir_ledger::contract::{Change, Count, LinePage, OpenPage, OpenStatus};
use weir_ledger::cql::CqlLedger;
use weir_ledger::{CqlOptions, LedgerError, LedgerStore};
use weir_runtime::clock::SystemClock;
use weir_runtime::units::HumanDuration;

use crate::proxy::Proxy;
use crate::support::{Failure, Server, is_skipped, turn};

/// A ledger behind a proxy of its own.
async fn behind_proxy(server: &Server) -> Result<(Proxy, Arc<CqlLedger>), Failure> {
    let proxy = Proxy::to(server.address.clone()).await?;
    let options = CqlOptions { nodes: vec![proxy.address.to_string()], ..server.options() };
    let ledger = CqlLedger::open(&options, SystemClock::shared()).await?;
    Ok((proxy, Arc::new(ledger)))
}

/// Posts until it is known, as a consumer's loop does. Anything but an absent store is the test's end.
async fn post(ledger: &dyn LedgerStore, changes: &[Change]) -> Result<(), LedgerError> {
    let (changes, deadline): (Arc<[Change]>, _) = (changes.into(), Instant::now() + Duration::from_secs(120));
    loop {
        match ledger.post(Arc::clone(&changes)).await {
            Ok(_) => return Ok(()),
            Err(error) if error.is_temporary() && Instant::now() < deadline => {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            Err(error) => return Err(error),
        }
    }
}

/// The two changes of the `n`th request: it was created, then it was charged.
fn request(n: u64) -> [Change; 2] {
    let created = Arc::new(scene::created(n, "acme"));
    let offset = i64::try_from(n * 6).unwrap();
    let admitted = scene::change(scene::reserved(&created), EventKind::ReservationCreated, offset, vec![]);
    [admitted, scene::charged(&created, 5, offset + 3)]
}

/// Every request is there once, in every table.
async fn assert_exact(ledger: &dyn LedgerStore, requests: u64) -> Outcome {
    let charged = Amounts::new(
        requests.cast_signed(),
        100 * requests.cast_signed(),
        NanoUsd::from_nanos(5 * requests.cast_signed()),
    );
    assert_eq!(ledger.count().await?, Count { reservations: requests, lines: requests, charged });
    assert_eq!(ledger.totals(&TenantId::from("acme"), None, None).await?, charged);
    let page = LinePage { tenant: "acme".into(), from_ms: i64::MIN, until_ms: i64::MAX, after: None, most: 100_000 };
    let lines = ledger.lines(page).await?;
    assert_eq!(lines.len() as u64, requests);
    for n in 0..requests {
        let [admitted, charged] = request(n);
        let found = ledger.find(scene::id(n)).await?.ok_or("a reservation is missing")?;
        assert_eq!(found.lines, charged.lines);
        assert_eq!(found.attempts, charged.reservation.attempts);
        assert_eq!(found.events, [admitted.events, charged.events].concat());
    }
    for status in [OpenStatus::Reserved, OpenStatus::PendingReconciliation] {
        let open = ledger.open(OpenPage { status, tenant: None, after: None, most: 10 }).await?;
        assert_eq!(open, vec![], "nothing is left open");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o56_a_line_whose_answer_was_lost_is_found_equal_and_counts_once() -> Outcome {
    if is_skipped("lost answers") {
        return Ok(());
    }
    let turn = turn().await?;
    let (proxy, ledger) = behind_proxy(turn.server).await?;
    let [admitted, charged] = request(0);
    post(&*ledger, &[admitted]).await?;
    proxy.lose_answers(1);
    post(&*ledger, std::slice::from_ref(&charged)).await?;
    assert_eq!(proxy.lost(), 1);
    proxy.lose_answers(2);
    post(&*ledger, &[charged]).await?;
    assert_eq!(proxy.lost(), 3);
    assert_exact(&*turn.server.ledger().await?, 1).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o56_another_line_found_after_a_lost_answer_is_a_conflict_and_the_first_stays() -> Outcome {
    if is_skipped("conflicts after lost answers") {
        return Ok(());
    }
    let turn = turn().await?;
    let (proxy, ledger) = behind_proxy(turn.server).await?;
    let [admitted, charged] = request(0);
    post(&*ledger, &[admitted, charged.clone()]).await?;
    let mut other = charged;
    other.lines[0].amount.tokens += 2;
    let key = other.lines[0].key;
    proxy.lose_answers(1);
    let refused = post(&*ledger, &[other]).await;
    assert_eq!(refused, Err(LedgerError::Conflict { key, field: "amount" }));
    assert_eq!(proxy.lost(), 1);
    assert_exact(&*turn.server.ledger().await?, 1).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o56_a_server_that_stands_still_makes_an_unknown_outcome_known_later() -> Outcome {
    if is_skipped("timeouts") {
        return Ok(());
    }
    let turn = turn().await?;
    let options = CqlOptions { request_timeout: HumanDuration::from_ms(1500), ..turn.server.options() };
    let ledger = CqlLedger::open(&options, SystemClock::shared()).await?;
    let [admitted, charged] = request(0);
    post(&ledger, &[admitted]).await?;
    turn.server.signal("STOP");
    let goes_on = async {
        tokio::time::sleep(Duration::from_secs(3)).await;
        turn.server.signal("CONT");
    };
    let changes = [charged];
    let (posted, ()) = tokio::join!(post(&ledger, &changes), goes_on);
    posted?;
    assert_exact(&*turn.server.ledger().await?, 1).await
}

/// Two builders with the same log, other deliveries, another order, and answers that get lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o56_two_builders_and_lost_answers_leave_each_line_once() -> Outcome {
    const REQUESTS: u64 = 60;
    if is_skipped("two builders at once") {
        return Ok(());
    }
    let turn = turn().await?;
    let seed = std::env::var("WEIR_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(56);
    let builder = |seed: u64| {
        let server = turn.server;
        async move {
            let mut dice = Dice::new(seed);
            let (proxy, ledger) = behind_proxy(server).await?;
            let mut next = 0;
            while next < REQUESTS {
                let until = (next + 1 + dice.below(9)).min(REQUESTS);
                proxy.lose_answers(u32::try_from(dice.below(4))?);
                let (created, charged): (Vec<_>, Vec<_>) =
                    (next..until).map(request).map(|[created, charged]| (created, charged)).unzip();
                // A batch that was cut in the middle of requests, and came again whole.
                post(&*ledger, &created).await?;
                post(&*ledger, &charged).await?;
                if dice.below(3) == 0 {
                    post(&*ledger, &created).await?;
                }
                next = until;
            }
            Ok::<u32, Failure>(proxy.lost())
        }
    };
    let (one, other) = tokio::join!(builder(seed), builder(seed + 1));
    assert!(one? + other? > 0, "seed {seed}: some answers were lost");
    assert_exact(&*turn.server.ledger().await?, REQUESTS).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i08_of_two_builders_that_disagree_one_is_refused_by_name() -> Outcome {
    const REQUESTS: u64 = 40;
    if is_skipped("two builders that disagree") {
        return Ok(());
    }
    let turn = turn().await?;
    let (one, other) = (turn.server.ledger().await?, turn.server.ledger().await?);
    for n in 0..REQUESTS {
        let [_, charged] = request(n);
        let mut differing = charged.clone();
        differing.lines[0] =
            LedgerLine { amount: Amounts::new(1, 100, NanoUsd::from_nanos(7)), ..charged.lines[0].clone() };
        let posts = (one.post(Arc::from([charged.clone()])), other.post(Arc::from([differing.clone()])));
        let results = tokio::join!(posts.0, posts.1);
        let conflict = LedgerError::Conflict { key: charged.lines[0].key, field: "amount" };
        let stored = one.find(scene::id(n)).await?.ok_or("a reservation is missing")?;
        match results {
            (Ok(_), Err(refused)) => assert_eq!((refused, stored.lines), (conflict, charged.lines), "{n}"),
            (Err(refused), Ok(_)) => assert_eq!((refused, stored.lines), (conflict, differing.lines), "{n}"),
            both => return Err(format!("request {n}: exactly one line must win, not {both:?}").into()),
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i08_a_server_killed_during_posts_keeps_what_it_took_and_takes_the_rest_later() -> Outcome {
    const REQUESTS: u64 = 300;
    if is_skipped("a killed server") {
        return Ok(());
    }
    let turn = turn().await?;
    let ledger = turn.server.ledger().await?;
    let posting = async {
        for first in (0..REQUESTS).step_by(5) {
            let changes: Vec<Change> = (first..first + 5).flat_map(request_at_once).collect();
            post(&*ledger, &changes).await?;
        }
        Ok::<(), LedgerError>(())
    };
    let dies = async {
        tokio::time::sleep(Duration::from_millis(700)).await;
        let server = turn.server;
        let restarted = tokio::task::spawn_blocking(move || {
            server.run(&["kill"]);
            server.run(&["restart"]);
        });
        restarted.await
    };
    let (posted, restarted) = tokio::join!(posting, dies);
    restarted?;
    posted?;
    let found = turn.server.ledger().await?;
    let charged = found.totals(&TenantId::from("acme"), None, None).await?;
    assert_eq!(charged.usd, NanoUsd::from_nanos(5 * REQUESTS.cast_signed()));
    assert_eq!(found.count().await?.lines, REQUESTS);
    Ok(())
}

/// Both batches of a request met in one delivery.
fn request_at_once(n: u64) -> [Change; 1] {
    let [admitted, mut charged] = request(n);
    charged.events.splice(0..0, admitted.events);
    [charged]
}
