//! Starting from a checkpoint equals folding the whole log, whatever the log and wherever the checkpoint.

use std::collections::HashMap;

use weir_domain::fold::FoldImage;
use weir_domain::ids::TenantId;
use weir_domain::quota::{Book, BookImage};
use weir_domain::testing::{Dice, runs};
use weir_streams::Topic;
use weir_streams::consumer::{Delivery, Effect as _};

use super::*;
use crate::conformance::scene;
use crate::testing::{OPTIONS, Place, piece, plain_life, random_log};

fn image(folded: &Folded) -> FoldImage {
    folded.projection.fold().image()
}

fn images(books: &HashMap<TenantId, Book>) -> BTreeMap<TenantId, BookImage> {
    books.iter().map(|(tenant, book)| (tenant.clone(), book.image())).collect()
}

/// The same start without any checkpoint.
async fn full(place: &Place) -> Started {
    let shell = rusqlite::Connection::open(place.folder.path().join("ledger.db")).unwrap();
    shell.execute_batch("DELETE FROM checkpoints; DELETE FROM checkpoint_parts").unwrap();
    let started = place.start().await;
    assert_eq!(started.checkpoint_taken_at_ms, None);
    started
}

fn assert_equal(from_checkpoint: &Started, full: &Started, seed: u64) {
    assert_eq!(image(&from_checkpoint.at_builder), image(&full.at_builder), "the builder's fold, seed {seed}");
    assert_eq!(images(&from_checkpoint.books_at_end), images(&full.books_at_end), "the books, seed {seed}");
    assert_eq!(from_checkpoint.at_builder.positions, full.at_builder.positions, "seed {seed}");
    assert_eq!(
        from_checkpoint.at_builder.projection.latest_ms(),
        full.at_builder.projection.latest_ms(),
        "how far the horizon has moved, seed {seed}"
    );
}

#[tokio::test]
async fn a_start_from_any_checkpoint_equals_the_full_fold() {
    let mut with_checkpoint = 0;
    for seed in 0..runs(12) {
        let place = Place::new();
        place.append(&random_log(seed, 120)).await;
        let mut dice = Dice::new(seed);
        let records = place.records(Topic::Reservations).await;
        let builder = place.builder(place.start().await.at_builder);
        let built_until = dice.between(1, i64::try_from(records.len()).unwrap()).unsigned_abs();
        let mut checkpoint_at = dice.below(built_until);
        let mut rest = &records[..usize::try_from(built_until).unwrap()];
        while let Some(first) = rest.first() {
            if first.offset >= checkpoint_at {
                builder.checkpoint().await.unwrap();
                checkpoint_at = first.offset + 1 + dice.below(built_until);
            }
            let (now, later) = rest.split_at(piece(rest.len(), &mut dice));
            place.deliver(&builder, now).await.unwrap();
            rest = later;
        }
        let from_checkpoint = place.start().await;
        with_checkpoint += u32::from(from_checkpoint.checkpoint_taken_at_ms.is_some());
        let live = builder.fold_image().await;
        assert_eq!(image(&from_checkpoint.at_builder), live, "the fold that the builder had, seed {seed}");
        // The same, partition by partition: for a builder that takes one over, and for a rebuild.
        let taken_over = partition(&*place.log, &place.store, 0, OPTIONS).await.unwrap();
        assert_eq!(image(&taken_over), live, "seed {seed}");
        let apart = books(&*place.log, &place.store, OPTIONS).await.unwrap();
        let one = |(tenant, books): (TenantId, Vec<Book>)| (tenant, books.into_iter().next().unwrap());
        let by_tenant: HashMap<TenantId, Book> = apart.by_tenant.into_iter().map(one).collect();
        assert_eq!(images(&by_tenant), images(&from_checkpoint.books_at_end), "seed {seed}");
        assert_eq!(apart.replayed_events, from_checkpoint.replayed_events, "seed {seed}");
        let full = full(&place).await;
        assert!(from_checkpoint.replayed_events <= full.replayed_events, "seed {seed}");
        assert_equal(&from_checkpoint, &full, seed);
    }
    assert!(with_checkpoint > 0, "no run had a checkpoint: the test says nothing");
}

#[tokio::test]
async fn a_clean_stop_leaves_nothing_to_fold() {
    let place = Place::new();
    place.append(&random_log(1, 50)).await;
    let builder = place.build_all().await;
    builder.checkpoint().await.unwrap();
    let started = place.start().await;
    assert_eq!(started.replayed_events, 0);
    assert_equal(&started, &full(&place).await, 1);
}

#[tokio::test]
async fn a_damaged_checkpoint_gives_way_to_the_one_before_and_at_last_to_the_log() {
    let place = Place::new();
    place.append(&random_log(2, 80)).await;
    let records = place.records(Topic::Reservations).await;
    let builder = place.builder(place.start().await.at_builder);
    for piece in records.chunks(records.len() / 2 + 1) {
        place.deliver(&builder, piece).await.unwrap();
        builder.checkpoint().await.unwrap();
    }
    let shell = rusqlite::Connection::open(place.folder.path().join("ledger.db")).unwrap();
    let damage = |nth: usize| {
        let of_nth = "(SELECT number FROM checkpoints ORDER BY number DESC LIMIT 1 OFFSET ?1)";
        let flip = format!(
            "UPDATE checkpoint_parts SET bytes = CAST(substr(bytes, 1, 99) || x'ffff' || substr(bytes, 102) AS BLOB)
             WHERE checkpoint = {of_nth}"
        );
        assert_eq!(shell.execute(&flip, [nth]).unwrap(), 1);
    };
    let newest = place.start().await;
    assert_eq!(newest.replayed_events, 0);
    damage(0);
    let before = place.start().await;
    assert!(before.replayed_events > 0 && before.checkpoint_taken_at_ms.is_some());
    damage(1);
    let whole = place.start().await;
    assert_eq!((whole.replayed_events, whole.checkpoint_taken_at_ms), (records.len() as u64, None));
    assert_equal(&newest, &whole, 2);
    assert_equal(&before, &whole, 2);
}

#[tokio::test]
async fn a_checkpoint_of_another_format_or_horizon_or_ahead_of_the_position_is_passed_over() {
    let place = Place::new();
    place.append(&random_log(3, 20)).await;
    place.build_all().await.checkpoint().await.unwrap();
    assert!(place.start().await.checkpoint_taken_at_ms.is_some());
    let other = BookOptions { retry_horizon_ms: OPTIONS.retry_horizon_ms + 1 };
    let started = start(&*place.log, &place.store, other).await.unwrap();
    assert_eq!(started.checkpoint_taken_at_ms, None, "another horizon");
    place.store.store(&subscription(0), 5).await.unwrap();
    let started = place.start().await;
    assert_eq!((started.checkpoint_taken_at_ms, started.at_builder.positions[&0]), (None, 5), "ahead of the position");
    let shell = rusqlite::Connection::open(place.folder.path().join("ledger.db")).unwrap();
    shell.execute("UPDATE checkpoints SET format = format + 1", []).unwrap();
    let end = place.records(Topic::Reservations).await.len() as u64;
    place.store.store(&subscription(0), end).await.unwrap();
    assert_eq!(place.start().await.checkpoint_taken_at_ms, None, "another format");
}

/// A key that is parked when a checkpoint is taken, and resolved before the next one.
#[tokio::test]
async fn what_was_parked_at_the_checkpoint_and_is_resolved_now_is_folded() {
    let place = Place::new();
    let (held_back, other) = (Arc::new(scene::created(1, "acme")), Arc::new(scene::created(2, "acme")));
    place.append(&plain_life(&held_back, 500)).await;
    place.append(&plain_life(&other, 70)).await;
    let of = subscription(0);
    let (parked, others): (Vec<_>, Vec<_>) =
        place.records(Topic::Reservations).await.into_iter().partition(|record| record.offset < 6);
    for record in &parked {
        place.store.park(&of, record, "for the test").await.unwrap();
    }
    let builder = place.builder(place.start().await.at_builder);
    place.deliver(&builder, &others).await.unwrap();
    builder.checkpoint().await.unwrap();
    let without = place.start().await;
    assert_eq!((without.replayed_events, without.at_builder.positions[&0]), (0, 12), "it stays parked");

    let first_half = &parked[..3];
    for record in first_half {
        let delivery = Delivery { subscription: &of, records: std::slice::from_ref(record), position: None };
        builder.apply(delivery).await.unwrap();
        place.store.resolve(&of, &record.key, record.offset).await.unwrap();
    }
    let half = place.start().await;
    assert_eq!(half.replayed_events, 3);
    assert_eq!(image(&half.at_builder), builder.fold_image().await);
    assert_equal(&half, &full(&place).await, 0);
}

/// The bytes of an image mean what the types say; a change of a type without a new `FORMAT` would read old bytes as
/// something else. When this fails, count `FORMAT` up and write the new digest here.
#[tokio::test]
async fn the_format_of_an_image_is_pinned() {
    let place = Place::new();
    let [closed, open] = [1, 2].map(|n| Arc::new(scene::created_in_full(n, "acme")));
    place.append(&plain_life(&closed, 82_200_000)).await;
    place.append(&plain_life(&open, 0)[..1]).await;
    place.build_all().await.checkpoint().await.unwrap();
    let stored = place.store.checkpoint(&[0], 0).await.unwrap().unwrap();
    assert_eq!((stored.format, hex::encode(&stored.sha256[..8])), (checkpoint::FORMAT, "428a262fa8507e78".to_owned()));
}
