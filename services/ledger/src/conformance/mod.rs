//! What every ledger store must pass: one function per promise of [`LedgerStore`], on an empty store each.
//!
//! A backend's test file is a harness and one call of `ledger_store_conformance!`. The consumers' own promises
//! (positions, parking) are checked by the suite of `weir-streams`, on the same store.

pub mod scene;
pub mod traffic;

use std::error::Error;
use std::sync::Arc;

use async_trait::async_trait;

use weir_domain::calendar::{self, Window, Zone};
use weir_domain::ids::{ModelName, TenantId};
use weir_domain::ledger::{LedgerLine, SourcePosition};
use weir_domain::money::{Amounts, NanoUsd};
use weir_domain::quota::{Scope, Subject};
use weir_domain::reservation::{Event, EventKind, PendCause, ReservationStatus, UsageRecord};
use weir_domain::usage::{Meter, Usage, UsageSource};

use crate::contract::{
    Change, Count, LedgerError, LedgerStore, LineCursor, LinePage, OpenPage, OpenStatus, Posted, StoredCheckpoint,
};
use scene::{NOON_MS, admitted_at_ms, change, charged, created, created_in_full, id, line, reserved, settled};

/// Failed assertions panic; everything else that goes wrong is one of these.
pub type Outcome = Result<(), Box<dyn Error + Send + Sync>>;

/// One empty storage.
#[async_trait]
pub trait Harness: Send + Sync {
    /// A handle to it, as another process would open it. Called more than once.
    ///
    /// # Errors
    /// When it cannot be opened.
    async fn open(&self) -> Result<Arc<dyn LedgerStore>, Box<dyn Error + Send + Sync>>;
}

/// One `#[tokio::test]` per case, for a backend with an `async fn() -> impl Harness` named `$fresh`.
#[macro_export]
macro_rules! ledger_store_conformance {
    ($fresh:path) => {
        $crate::ledger_store_conformance!($fresh:
            posts_a_line_once_however_often_it_comes, refuses_another_line_under_the_same_key,
            gives_lines_back_to_the_last_bit, finds_nothing_of_what_was_never_created,
            lets_no_older_change_win, keeps_each_event_once_however_batches_are_cut,
            knows_since_when_a_status_is, lists_what_is_open_by_due_time, forgets_from_the_list_what_ended,
            pages_lines_in_order_of_posting, sums_by_scope_and_window, posts_the_same_from_two_writers_at_once,
            keeps_the_newest_checkpoints,
        );
    };
    ($fresh:path: $($case:ident),+ $(,)?) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() -> $crate::conformance::Outcome {
                $crate::conformance::$case(&$fresh().await).await
            }
        )+
    };
}

fn batch(changes: impl IntoIterator<Item = Change>) -> Arc<[Change]> {
    changes.into_iter().collect()
}

fn everything(tenant: &str, most: usize) -> LinePage {
    LinePage { tenant: TenantId::from(tenant), from_ms: i64::MIN, until_ms: i64::MAX, after: None, most }
}

/// # Errors
/// When the store fails.
pub async fn posts_a_line_once_however_often_it_comes(harness: &dyn Harness) -> Outcome {
    let store = harness.open().await?;
    let (one, other) = (Arc::new(created(1, "acme")), Arc::new(created(2, "acme")));
    let both = batch([charged(&one, 500, 10), charged(&other, 70, 11)]);
    assert_eq!(store.post(Arc::clone(&both)).await?, Posted { lines: 2, repeated: 0 });
    assert_eq!(store.post(both).await?, Posted { lines: 0, repeated: 2 });
    let cut_otherwise = batch([charged(&other, 70, 11)]);
    assert_eq!(store.post(cut_otherwise).await?, Posted { lines: 0, repeated: 1 });
    let charged = Amounts::new(2, 200, NanoUsd::from_nanos(570));
    assert_eq!(store.count().await?, Count { reservations: 2, lines: 2, charged });
    let found = store.find(id(1)).await?.ok_or("reservation 1 is missing")?;
    assert_eq!(found.lines, vec![line(&one, 0, 500, 10)]);
    assert_eq!(found.attempts, settled(&one, 500).attempts);
    Ok(())
}

/// # Errors
/// When the store fails.
pub async fn refuses_another_line_under_the_same_key(harness: &dyn Harness) -> Outcome {
    let store = harness.open().await?;
    let created = Arc::new(created(1, "acme"));
    store.post(batch([charged(&created, 500, 10)])).await?;
    let with = |change_line: &dyn Fn(&mut LedgerLine)| {
        let mut other = charged(&created, 500, 10);
        change_line(&mut other.lines[0]);
        store.post(batch([other]))
    };
    let key = line(&created, 0, 500, 10).key;
    let conflict = |field| Err(LedgerError::Conflict { key, field });
    assert_eq!(with(&|line| line.amount.usd = NanoUsd::from_nanos(501)).await, conflict("amount"));
    assert_eq!(with(&|line| line.total.tokens += 1).await, conflict("total"));
    assert_eq!(with(&|line| line.target = None).await, conflict("target"));
    assert_eq!(with(&|line| line.source.offset = 12).await, conflict("source"));
    let otherwise_recorded = Arc::new(scene::record(100, 500, UsageSource::ProviderReport, "report-1"));
    assert_eq!(with(&|line| line.record = Arc::clone(&otherwise_recorded)).await, conflict("record"));
    let found = store.find(id(1)).await?.ok_or("reservation 1 is missing")?;
    assert_eq!(found.lines, vec![line(&created, 0, 500, 10)], "what is stored is never overwritten");
    Ok(())
}

/// # Errors
/// When the store fails.
pub async fn gives_lines_back_to_the_last_bit(harness: &dyn Harness) -> Outcome {
    let store = harness.open().await?;
    let (plain, mut full) = (Arc::new(created(1, "acme")), created_in_full(2, "acme"));
    full.counting.windows.reverse();
    let full = Arc::new(full);
    let record = UsageRecord {
        usage: Usage::new(Meter::ALL.iter().map(|meter| (*meter, i64::from(*meter as u8) * 1_000_000_007 + 1)))?,
        source: UsageSource::Split,
        charge: Amounts::new(0, i64::MAX, NanoUsd::MAX),
        price_version: "prices-2".into(),
        served_tier: Some("priority".to_owned()),
        cause: "report 'é' \u{0}/2".to_owned(),
    };
    let extreme = LedgerLine {
        amount: Amounts::new(-1, -i64::MAX, NanoUsd::from_nanos(i64::MIN)),
        total: Amounts::new(i64::MAX, i64::MIN, NanoUsd::MAX),
        record: Arc::new(record),
        target: None,
        corrects: Some(u32::MAX),
        flagged: true,
        posted_at_ms: -1,
        source: SourcePosition { partition: 0, offset: 13 },
        ..line(&full, u32::MAX, 0, 0)
    };
    let mut of_full = charged(&full, 70, 11);
    of_full.lines.push(extreme);
    let of_plain = charged(&plain, 500, 10);
    store.post(batch([of_plain.clone(), of_full.clone()])).await?;
    for change in [&of_plain, &of_full] {
        let found = store.find(change.reservation.created.id).await?.ok_or("a reservation is missing")?;
        assert_eq!(found.lines, change.lines);
        assert_eq!(found.created, change.reservation.created);
        assert_eq!(found.attempts, change.reservation.attempts);
        assert_eq!(found.events, change.events);
        assert_eq!(found.held, change.reservation.held());
    }
    let mut all: Vec<LedgerLine> = of_plain.lines.into_iter().chain(of_full.lines).collect();
    all.sort_by_key(LineCursor::of);
    assert_eq!(store.lines(everything("acme", 10)).await?, all);
    Ok(())
}

/// # Errors
/// When the store fails.
pub async fn finds_nothing_of_what_was_never_created(harness: &dyn Harness) -> Outcome {
    let store = harness.open().await?;
    assert_eq!(store.find(id(1)).await?, None);
    assert_eq!(store.lines(everything("acme", 10)).await?, vec![]);
    assert_eq!(store.totals(&TenantId::from("acme"), None, None).await?, Amounts::ZERO);
    assert_eq!(store.count().await?, Count::default());
    assert_eq!(store.checkpoint(&[0], 0).await?, None);
    Ok(())
}

/// # Errors
/// When the store fails.
pub async fn lets_no_older_change_win(harness: &dyn Harness) -> Outcome {
    let store = harness.open().await?;
    let created = Arc::new(created(1, "acme"));
    let early = change(reserved(&created), EventKind::ReservationCreated, 3, vec![]);
    store.post(batch([charged(&created, 500, 10)])).await?;
    store.post(batch([early])).await?;
    let found = store.find(id(1)).await?.ok_or("reservation 1 is missing")?;
    assert_eq!(found.status, ReservationStatus::Settled);
    assert_eq!(found.held, Amounts::ZERO);
    assert_eq!(found.attempts.len(), 1);
    Ok(())
}

/// # Errors
/// When the store fails.
pub async fn keeps_each_event_once_however_batches_are_cut(harness: &dyn Harness) -> Outcome {
    let store = harness.open().await?;
    let created = Arc::new(created(1, "acme"));
    let first = change(reserved(&created), EventKind::ReservationCreated, 3, vec![]);
    let second = charged(&created, 500, 10);
    let mut both = second.clone();
    both.events.insert(0, first.events[0]);
    store.post(batch([first.clone()])).await?;
    store.post(batch([both.clone()])).await?;
    store.post(batch([second])).await?;
    store.post(batch([first])).await?;
    let found = store.find(id(1)).await?.ok_or("reservation 1 is missing")?;
    assert_eq!(found.events, both.events);
    Ok(())
}

/// # Errors
/// When the store fails.
pub async fn knows_since_when_a_status_is(harness: &dyn Harness) -> Outcome {
    let store = harness.open().await?;
    let created = Arc::new(created(1, "acme"));
    let since = |found: crate::contract::StoredReservation| found.status_since_ms - admitted_at_ms(1);
    store.post(batch([change(reserved(&created), EventKind::ReservationCreated, 3, vec![])])).await?;
    store.post(batch([change(reserved(&created), EventKind::AttemptStarted, 5, vec![])])).await?;
    assert_eq!(store.find(id(1)).await?.map(since), Some(3), "an event that leaves the status leaves its time");
    store.post(batch([charged(&created, 500, 10)])).await?;
    assert_eq!(store.find(id(1)).await?.map(since), Some(10));
    Ok(())
}

/// # Errors
/// When the store fails.
pub async fn lists_what_is_open_by_due_time(harness: &dyn Harness) -> Outcome {
    let store = harness.open().await?;
    let tenant = |n: u64| if n.is_multiple_of(2) { "even" } else { "odd" };
    for n in (0..6).rev() {
        let created = Arc::new(created(n, tenant(n)));
        store.post(batch([change(reserved(&created), EventKind::ReservationCreated, 3, vec![])])).await?;
    }
    let pended = Event::ReservationPending { cause: PendCause::Expired, ordinal: 0 };
    let pending = scene::after(reserved(&Arc::new(created(4, "even"))), &pended);
    store.post(batch([change(pending, EventKind::ReservationPending, 9, vec![])])).await?;

    let page = |status, tenant: Option<&str>, after, most| OpenPage {
        status,
        tenant: tenant.map(TenantId::from),
        after,
        most,
    };
    let reserved = store.open(page(OpenStatus::Reserved, None, None, 3)).await?;
    assert_eq!(reserved.iter().map(|open| open.id).collect::<Vec<_>>(), vec![id(0), id(1), id(2)]);
    let after = reserved.last().map(|open| (open.due_ms, open.id));
    let rest = store.open(page(OpenStatus::Reserved, None, after, 10)).await?;
    assert_eq!(rest.iter().map(|open| open.id).collect::<Vec<_>>(), vec![id(3), id(5)]);
    let odd = store.open(page(OpenStatus::Reserved, Some("odd"), None, 10)).await?;
    assert_eq!(odd.iter().map(|open| open.id).collect::<Vec<_>>(), vec![id(1), id(3), id(5)]);
    let pending = store.open(page(OpenStatus::PendingReconciliation, None, None, 10)).await?;
    assert_eq!(pending.len(), 0, "nothing that may have executed: it is released, not pending");
    Ok(())
}

/// # Errors
/// When the store fails.
pub async fn forgets_from_the_list_what_ended(harness: &dyn Harness) -> Outcome {
    let store = harness.open().await?;
    let created = Arc::new(created(1, "acme"));
    let started = Event::AttemptStarted { number: 1, hold: created.hold, target: scene::target() };
    let pended = Event::ReservationPending { cause: PendCause::UsageUnknown, ordinal: 0 };
    let pending = scene::after(scene::after(reserved(&created), &started), &pended);
    let open = |status| store.open(OpenPage { status, tenant: None, after: None, most: 10 });
    store.post(batch([change(pending.clone(), EventKind::ReservationPending, 9, vec![])])).await?;
    let found = open(OpenStatus::PendingReconciliation).await?;
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].held, found[0].status_since_ms), (pending.held(), admitted_at_ms(1) + 9));
    store.post(batch([charged(&created, 500, 10)])).await?;
    assert_eq!(open(OpenStatus::PendingReconciliation).await?, vec![]);
    assert_eq!(open(OpenStatus::Reserved).await?, vec![]);
    Ok(())
}

/// # Errors
/// When the store fails.
pub async fn pages_lines_in_order_of_posting(harness: &dyn Harness) -> Outcome {
    const HOUR_S: u64 = 3600;
    let store = harness.open().await?;
    // Three lines in one instant, then hours and days apart, posted in another order.
    let admitted = [0, 0, 0, HOUR_S - 1, HOUR_S, 40 * HOUR_S, 24 * 400 * HOUR_S];
    let mut lines = Vec::new();
    for (offset, after_s) in (0i64..).zip(admitted) {
        let n = after_s * 10 + offset.unsigned_abs();
        let created = created(after_s, "acme");
        let created = Arc::new(weir_domain::reservation::Created { id: id(n), ..created });
        lines.push(line(&created, 0, 1 << offset, offset));
    }
    let changes = lines.iter().map(|line| {
        let source = line.source.offset;
        change(settled(&line.created, line.amount.usd.nanos()), EventKind::UsageRecorded, source, vec![line.clone()])
    });
    store.post(changes.rev().collect()).await?;
    store.post(batch([charged(&Arc::new(created(5, "other")), 1, 99)])).await?;

    for most in 1..=lines.len() + 1 {
        let (mut paged, mut page) = (Vec::new(), everything("acme", most));
        loop {
            let found = store.lines(page.clone()).await?;
            let is_last = found.len() < most;
            page.after = found.last().map(LineCursor::of).or(page.after);
            paged.extend(found);
            if is_last {
                break;
            }
        }
        assert_eq!(paged, lines, "in pages of {most}");
    }
    let (from, until) = (lines[3].posted_at_ms, lines[5].posted_at_ms);
    let within = LinePage { from_ms: from, until_ms: until, ..everything("acme", 10) };
    assert_eq!(store.lines(within).await?, lines[3..5], "from is in, until is not");
    Ok(())
}

/// # Errors
/// When the store fails.
pub async fn sums_by_scope_and_window(harness: &dyn Harness) -> Outcome {
    const DAY_S: u64 = 24 * 3600;
    let store = harness.open().await?;
    let (today, tomorrow) = (Arc::new(created(1, "acme")), Arc::new(created_in_full(DAY_S, "acme")));
    let mut corrected = charged(&tomorrow, 300, 11);
    corrected.lines.push(LedgerLine {
        amount: Amounts::new(0, 0, NanoUsd::from_nanos(-100)),
        source: SourcePosition { partition: 0, offset: 12 },
        posted_at_ms: tomorrow.admitted_at_ms + 5_000_000_000,
        ..line(&tomorrow, 1, 200, 12)
    });
    store.post(batch([charged(&today, 1000, 10), corrected, charged(&Arc::new(created(2, "other")), 7, 13)])).await?;

    let acme = TenantId::from("acme");
    let whole = Scope { subject: Subject::Tenant, model: None };
    let team = Scope { subject: Subject::Team("team \"ü\"".into()), model: None };
    let other_model = Scope { subject: Subject::Tenant, model: Some(ModelName::from("large")) };
    let windows = |n| calendar::windows_at(admitted_at_ms(n), &Zone::default());
    let [sunday, week, month, _] = windows(1);
    let [monday, next_week, _, _] = windows(DAY_S);
    let cases = [
        (None, None, 1200),
        (Some(&whole), Some(Window::TOTAL), 1200),
        (Some(&whole), Some(sunday), 1000),
        (Some(&whole), Some(week), 1000),
        (Some(&whole), Some(monday), 200),
        (Some(&whole), Some(next_week), 200),
        (Some(&whole), Some(month), 1200),
        (Some(&team), Some(month), 200),
        (Some(&team), Some(sunday), 0),
        (Some(&other_model), None, 0),
    ];
    for (scope, window, nanos) in cases {
        let total = store.totals(&acme, scope, window).await?;
        assert_eq!(total.usd, NanoUsd::from_nanos(nanos), "{scope:?} in {window:?}");
    }
    assert!(NOON_MS < tomorrow.admitted_at_ms);
    Ok(())
}

/// # Errors
/// When the store fails.
pub async fn posts_the_same_from_two_writers_at_once(harness: &dyn Harness) -> Outcome {
    const RESERVATIONS: u64 = 200;
    let changes: Vec<Change> =
        (0..RESERVATIONS).map(|n| charged(&Arc::new(created(n, "acme")), 5, 10 + n.cast_signed())).collect();
    let (one, other) = (harness.open().await?, harness.open().await?);
    let in_pieces = |store: Arc<dyn LedgerStore>, size: usize| {
        let pieces: Vec<Arc<[Change]>> = changes.chunks(size).map(Arc::from).collect();
        async move {
            let mut posted = 0;
            for piece in pieces {
                posted += store.post(piece).await?.lines;
            }
            Ok::<usize, LedgerError>(posted)
        }
    };
    let (first, second) = tokio::join!(in_pieces(Arc::clone(&one), 7), in_pieces(other, 11));
    assert_eq!(first? + second?, changes.len(), "each line is new to exactly one of them");
    let charged = one.totals(&TenantId::from("acme"), None, None).await?;
    assert_eq!(charged.usd, NanoUsd::from_nanos(5 * RESERVATIONS.cast_signed()));
    Ok(())
}

/// # Errors
/// When the store fails.
pub async fn keeps_the_newest_checkpoints(harness: &dyn Harness) -> Outcome {
    let store = harness.open().await?;
    let of = |positions: Vec<(u32, u64)>, n: u8| StoredCheckpoint {
        taken_at_ms: i64::from(n),
        positions,
        format: 1,
        sha256: [n; 32],
        image: vec![n; usize::from(n) * 5_000_000],
    };
    let checkpoint = |n: u8| of(vec![(0, u64::from(n)), (1, 7)], n);
    // Those of other partitions, in between, push nothing out and are not found in its place.
    let alone = |partition: u32| of(vec![(partition, 9)], 1);
    for n in 0..5 {
        store.save_checkpoint(checkpoint(n), 3).await?;
        store.save_checkpoint(alone(u32::from(n) * 120), 1).await?;
    }
    for (nth, n) in [(0, 4), (1, 3), (2, 2)] {
        assert!(store.checkpoint(&[0, 1], nth).await? == Some(checkpoint(n)), "the {nth}th newest");
    }
    assert_eq!(store.checkpoint(&[0, 1], 3).await?, None);
    for partition in [0, 120, 240, 360, 480] {
        assert!(store.checkpoint(&[partition], 0).await? == Some(alone(partition)), "of partition {partition}");
        assert_eq!(store.checkpoint(&[partition], 1).await?, None);
    }
    assert_eq!(store.checkpoint(&[1], 0).await?, None);
    Ok(())
}
