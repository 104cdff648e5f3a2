//! O51 from the apply to the book: a tenant's zone is changed in mid-day, and back again.

use weir_domain::quota::{Book, BookOptions};
use weir_domain::reservation::{Command, Decision, Reserve};
use weir_domain::testing::{Request, amounts, daily_budget, id, request};

use super::{Arc, CATALOG, Control, House, NOW_MS, SnapshotSource as _};

const HOUR_MS: i64 = 60 * 60 * 1000;

/// When a whole day's budget was to be had, half-hourly from `NOW_MS` on for six days, by a tenant whose zone is set to
/// `to` after `change_after_ms` and back again six hours later.
fn resets(from: &str, to: &str, change_after_ms: i64) -> Vec<i64> {
    let (house, control) = House::with_catalog();
    let in_zone = |zone: &str| CATALOG.replace("Europe/Berlin", zone);
    control.apply("catalog.toml", &in_zone(from)).unwrap();
    let mut book = Book::new(BookOptions::default());
    let mut resets = Vec::new();
    for step in 0..6 * 48 {
        let now_ms = NOW_MS + step * HOUR_MS / 2;
        house.clock.set_ms(now_ms);
        if now_ms == NOW_MS + change_after_ms {
            control.apply("catalog.toml", &in_zone(to)).unwrap();
        } else if now_ms == NOW_MS + change_after_ms + 6 * HOUR_MS {
            control.apply("catalog.toml", &in_zone(from)).unwrap();
        }
        let snapshot = control.current();
        let tenant = snapshot.tenants.values().next().unwrap();
        let n = u64::try_from(step).unwrap();
        let limits = vec![daily_budget("100")];
        let request = Request { hold: amounts(1, 10, "100"), at_ms: now_ms, limits, ..request(n) };
        let mut created = request.created();
        created.counting.windows = *tenant.calendar.at(now_ms).windows();
        let limits = request.limits.clone().into();
        let command = Command::Reserve(Arc::new(Reserve { created, limits, lease_ms: 60_000 }));
        if matches!(book.execute(id(n), &command, now_ms).decision, Decision::Change(_)) {
            resets.push(now_ms);
        }
    }
    resets
}

#[test]
fn o51_a_zone_that_changes_in_mid_day_never_gives_two_resets_in_a_day() {
    let zones = ["UTC", "Asia/Tokyo", "America/Los_Angeles", "Pacific/Kiritimati"];
    for from in zones {
        for to in zones {
            for change_after_ms in [HOUR_MS / 2, 9 * HOUR_MS] {
                let resets = resets(from, to, change_after_ms);
                assert!(resets.len() >= 4, "{from} to {to}: the budget comes back: {resets:?}");
                // The first budget was taken in the middle of its day; from the first reset on a day is a day.
                for pair in resets[1..].windows(2) {
                    assert!(pair[1] - pair[0] >= 24 * HOUR_MS, "{from} to {to} after {change_after_ms}: {resets:?}");
                }
            }
        }
    }
}

#[test]
fn o51_what_a_zone_change_left_in_force_outlives_the_process_and_is_in_the_document() {
    let (house, control) = House::with_catalog();
    let calendar = |control: &Control| control.current().tenants.values().next().unwrap().calendar.clone();
    let before = calendar(&control);
    control.apply("catalog.toml", &CATALOG.replace("Europe/Berlin", "Asia/Tokyo")).unwrap();
    let after = calendar(&control);
    assert_eq!(after, before.with_zone("Asia/Tokyo".parse().unwrap(), NOW_MS));
    assert_eq!(after.at(NOW_MS).windows(), before.at(NOW_MS).windows(), "the running windows go on");
    let (_, document) = control.published_document().unwrap().unwrap();
    assert!(document.contains(r#""calendar":{"zone":"Asia/Tokyo","held":["#), "{document}");
    drop(control);
    let reopened = house.open();
    assert_eq!((calendar(&reopened), reopened.current().version), (after, 3));
}

#[test]
fn a_store_from_before_calendars_has_the_zones_of_its_catalog() {
    let (house, control) = House::with_catalog();
    let before = control.current();
    drop(control);
    let connection = rusqlite::Connection::open(house.folder.path().join("control.sqlite")).unwrap();
    connection.execute("UPDATE tenants SET calendar = NULL", []).unwrap();
    assert_eq!(house.open().current().tenants, before.tenants);
}
