//! Windows against figures from the public case, against history's odd midnights, and against each other.

use chrono_tz::TZ_VARIANTS;
use proptest::prelude::*;

use super::*;

fn zone(name: &str) -> Zone {
    name.parse().unwrap()
}

fn ms(time: &str) -> i64 {
    chrono::DateTime::parse_from_rfc3339(time).unwrap().timestamp_millis()
}

fn ids(now: &str, name: &str) -> [String; 4] {
    windows_at(ms(now), &zone(name)).map(|window| window.to_string())
}

fn day_at(now_ms: i64, zone: &Zone) -> Window {
    windows_at(now_ms, zone)[0]
}

#[test]
fn o51_a_day_ends_at_local_midnight() {
    let tokyo = zone("Asia/Tokyo");
    let spent_in = day_at(ms("2026-03-01T14:30:00Z"), &tokyo);
    assert_eq!(spent_in.to_string(), "d2026-03-01");

    let last_second = ms("2026-03-01T14:59:59Z");
    assert_eq!(day_at(last_second, &tokyo), spent_in);
    assert_eq!(resets_in_ms(&spent_in, last_second, &tokyo), Some(1_000));
    assert_eq!(crate::retry::retry_after_header_s(1_000), 1);

    assert_eq!(day_at(ms("2026-03-01T15:00:00Z"), &tokyo).to_string(), "d2026-03-02");
}

#[test]
fn ids_are_local_dates_iso_weeks_and_months() {
    assert_eq!(ids("2026-03-01T14:59:59Z", "Asia/Tokyo"), ["d2026-03-01", "w2026-W09", "m2026-03", "total"]);
    assert_eq!(ids("2026-03-01T15:00:00Z", "Asia/Tokyo"), ["d2026-03-02", "w2026-W10", "m2026-03", "total"]);
    assert_eq!(ids("2027-01-03T12:00:00Z", "UTC"), ["d2027-01-03", "w2026-W53", "m2027-01", "total"]);
    assert_eq!(ids("1970-01-01T00:00:00Z", "UTC"), ["d1970-01-01", "w1970-W01", "m1970-01", "total"]);
    assert_eq!(ids("1970-01-01T00:00:00Z", "America/New_York")[0], "d1969-12-31");
}

#[test]
fn odd_days_last_as_long_as_the_clocks_say() {
    let hour_ms = 3_600_000;
    for (name, day, hours) in [
        ("Europe/Berlin", "d2026-03-29", 23),
        ("Europe/Berlin", "d2026-10-25", 25),
        ("America/New_York", "d2026-03-08", 23),
        ("Asia/Tokyo", "d2026-03-29", 24),
        // The local midnight is skipped: the day begins at 01:00.
        ("America/Sao_Paulo", "d2018-11-04", 23),
        ("America/Sao_Paulo", "d2018-11-03", 24),
        // The clock goes back from midnight to 23:00 and stays within the day.
        ("America/Sao_Paulo", "d2018-02-17", 25),
        // It goes back from 00:01 to 23:01: the day that had begun goes on.
        ("America/St_Johns", "d2009-10-31", 24),
        ("America/St_Johns", "d2009-11-01", 25),
        // A whole day was skipped.
        ("Pacific/Apia", "d2011-12-29", 24),
        ("Pacific/Apia", "d2011-12-30", 0),
        ("Pacific/Apia", "d2011-12-31", 24),
    ] {
        let zone = zone(name);
        let day: Window = day.parse().unwrap();
        let before = Window { ordinal: day.ordinal - 1, ..day };
        let (start_ms, end_ms) = (end_ms(&before, &zone).unwrap(), end_ms(&day, &zone).unwrap());
        assert_eq!(end_ms - start_ms, hours * hour_ms, "{name} {day}");
        if hours > 0 {
            assert_eq!((day_at(start_ms, &zone), day_at(end_ms - 1, &zone)), (day, day), "{name} {day}");
        }
    }
}

#[test]
fn a_day_that_has_begun_goes_on_when_the_clock_is_set_back_over_midnight() {
    // In St John's, 2009, 00:01 became 23:01 of the day before.
    for (now, local) in [("02:29:59", "d2009-10-31"), ("02:30:00", "d2009-11-01"), ("02:40:00", "d2009-11-01")] {
        assert_eq!(ids(&format!("2009-11-01T{now}Z"), "America/St_Johns")[0], local, "{now}");
    }
}

#[test]
fn a_window_resets_once_and_the_total_never() {
    let utc = Zone::UTC;
    let now_ms = ms("2026-03-04T06:00:00Z");
    let resets = windows_at(now_ms, &utc).map(|window| resets_in_ms(&window, now_ms, &utc));
    let hour_ms = 3_600_000;
    assert_eq!(resets, [Some(18 * hour_ms), Some(114 * hour_ms), Some(666 * hour_ms), None]);
    let past: Window = "d2026-03-01".parse().unwrap();
    assert_eq!(resets_in_ms(&past, now_ms, &utc), Some(0));
}

#[test]
fn what_is_not_an_id_is_refused() {
    for text in
        ["", "d", "x2026-03-01", "d2026-3-1", "d2026-02-30", "w2026-W54", "w2026-09", "m2026-13", "Total", "däy"]
    {
        assert!(text.parse::<Window>().is_err(), "{text}");
    }
    assert!("Mars/Olympus".parse::<Zone>().unwrap_err().to_string().contains("Europe/Berlin"));
}

#[test]
fn o51_a_zone_change_starts_with_the_next_window_and_resets_once() {
    let (tokyo, new_york) = (zone("Asia/Tokyo"), zone("America/New_York"));
    let changed_ms = ms("2026-03-01T12:00:00Z");
    // (from, to, the day in force at the change, when the next begins, its id)
    for (from, to, in_force, begins, next) in [
        // Westward the new day ends later: the old one goes on until then.
        (tokyo, new_york, "d2026-03-01", "2026-03-02T05:00:00Z", "d2026-03-02"),
        // Eastward the new day would end ten hours after the old one: one reset stands for both.
        (new_york, tokyo, "d2026-03-01", "2026-03-02T15:00:00Z", "d2026-03-03"),
    ] {
        let calendar = Calendar::new(from).with_zone(to, changed_ms);
        let begins_ms = ms(begins);
        let current = calendar.at(changed_ms);
        assert_eq!(current.windows()[0].to_string(), in_force);
        assert_eq!(current.resets_in_ms(WindowKind::Day, changed_ms), Some(begins_ms - changed_ms));
        assert_eq!(calendar.at(begins_ms - 1).windows()[0].to_string(), in_force);
        assert_eq!(calendar.at(begins_ms).windows()[0].to_string(), next);
        // A month is not prolonged by a month.
        let month_end_ms = changed_ms + calendar.at(changed_ms).resets_in_ms(WindowKind::Month, changed_ms).unwrap();
        assert!(month_end_ms <= ms("2026-04-01T05:00:00Z"), "{month_end_ms}");
    }
}

#[test]
fn a_calendar_survives_a_snapshot() {
    let plain = Calendar::new(zone("Asia/Tokyo"));
    assert_eq!(serde_json::to_string(&plain).unwrap(), r#"{"zone":"Asia/Tokyo"}"#);
    let changed = plain.with_zone(Zone::UTC, ms("2026-03-01T12:00:00Z"));
    let json = serde_json::to_string(&changed).unwrap();
    assert!(json.contains(r#"{"window":"d2026-03-01","until_ms":"#), "{json}");
    assert_eq!(serde_json::from_str::<Calendar>(&json).unwrap(), changed);
    assert_eq!(plain.with_zone(zone("Asia/Tokyo"), 0), plain);
}

#[test]
fn times_out_of_range_have_a_window_too() {
    for now_ms in [i64::MIN, -1, 253_402_300_800_000, i64::MAX] {
        for window in windows_at(now_ms, &zone("Pacific/Kiritimati")) {
            assert_eq!(window.to_string().parse(), Ok(window));
        }
    }
}

fn any_zone() -> impl Strategy<Value = Zone> {
    (0..TZ_VARIANTS.len()).prop_map(|at| zone(TZ_VARIANTS[at].name()))
}

/// From 1970 into 2037, where the rules of the database end.
fn any_time() -> impl Strategy<Value = i64> {
    0..2_145_916_800_000i64
}

proptest! {
    #[test]
    fn windows_follow_each_other_without_gap_or_overlap(zone in any_zone(), now_ms in any_time()) {
        for window in windows_at(now_ms, &zone) {
            prop_assert_eq!(window.to_string().parse(), Ok(window));
            let before = Window { ordinal: window.ordinal - 1, ..window };
            if let (Some(start_ms), Some(end_ms)) = (end_ms(&before, &zone), end_ms(&window, &zone)) {
                prop_assert!((start_ms..end_ms).contains(&now_ms), "{window} {start_ms} {now_ms} {end_ms}");
                let next = windows_at(end_ms, &zone)[window.kind as usize];
                prop_assert!(next.ordinal > window.ordinal && next.to_string() > window.to_string());
                prop_assert_eq!(resets_in_ms(&window, now_ms, &zone), Some(end_ms - now_ms));
            }
        }
    }

    #[test]
    fn cached_windows_hold_exactly_as_long_as_they_say(zone in any_zone(), now_ms in any_time()) {
        let current = Calendar::new(zone).at(now_ms);
        prop_assert_eq!(current.windows(), &windows_at(now_ms, &zone));
        let until_ms = current.valid_until_ms();
        prop_assert!(current.hold_at(now_ms) && current.hold_at(until_ms - 1) && !current.hold_at(until_ms));
        prop_assert_eq!(windows_at(until_ms - 1, &zone), *current.windows());
        prop_assert_ne!(windows_at(until_ms, &zone), *current.windows());
    }

    /// However often the zone changes, two resets of a day are about a day apart: 22 hours, because the shortest days
    /// of these years (Troll station, where clocks jump by two hours) have 22.
    #[test]
    fn no_sequence_of_zone_changes_resets_twice_in_a_day(
        first in any_zone(),
        changes in proptest::collection::vec((any_zone(), 0..4 * DAY_MS), 1..6),
        start_ms in 1_710_000_000_000..1_900_000_000_000i64,
    ) {
        let mut calendar = Calendar::new(first);
        let mut now_ms = start_ms;
        let mut resets: [Vec<i64>; 3] = Default::default();
        let mut last = *calendar.at(now_ms).windows();
        let steps = changes.into_iter().map(Some).chain([None]);
        for step in steps {
            let until_ms = now_ms + step.map_or(40 * DAY_MS, |(_, wait_ms)| wait_ms);
            loop {
                let current = calendar.at(now_ms);
                for (kind, resets) in resets.iter_mut().enumerate() {
                    let (was, is) = (last[kind], current.windows()[kind]);
                    prop_assert!(is >= was, "{is} after {was}");
                    if is != was {
                        resets.push(now_ms);
                    }
                }
                last = *current.windows();
                if current.valid_until_ms() > until_ms {
                    break;
                }
                prop_assert!(current.valid_until_ms() > now_ms);
                now_ms = current.valid_until_ms();
            }
            now_ms = until_ms;
            if let Some((zone, _)) = step {
                let before = *calendar.at(now_ms).windows();
                calendar = calendar.with_zone(zone, now_ms);
                prop_assert_eq!(*calendar.at(now_ms).windows(), before);
            }
        }
        for resets in resets {
            prop_assert!(resets.windows(2).all(|pair| pair[1] - pair[0] >= 22 * 3_600_000), "{resets:?}");
        }
    }
}
