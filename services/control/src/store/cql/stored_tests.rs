use weir_domain::calendar::{Calendar, Zone};

use super::stored::{StoredChange, Wanting, parsed, text};
use crate::conformance::scene::{bare_key, catalog, full_key, prices, publish, team, tenant};
use crate::state::{Change, Origin, Revoked, State};

/// As the first release wrote them, one a line: these texts stay readable.
const RELEASED: &str = include_str!("stored_released.jsonl");

fn one_of_each() -> Vec<Change> {
    let acme = tenant(1);
    let team = team(1, &acme);
    vec![
        Change::AddTenant(acme.clone()),
        Change::SetCalendar {
            tenant: acme.name.clone(),
            calendar: Calendar::new(Zone::UTC).with_zone("Asia/Kolkata".parse().unwrap(), 1_772_366_400_000),
        },
        Change::AddTeam(team.clone()),
        Change::PutKey(full_key(1, &acme, &team)),
        Change::PutKey(bare_key(2, &acme)),
        Change::RevokeKey { id: "key_2".into(), revoked: Revoked { at_ms: 5, by: Origin::File } },
        catalog([1]).unwrap(),
        publish(3, &prices(&["a"])).unwrap().0,
    ]
}

#[test]
fn texts_of_released_versions_are_read_and_written_alike() {
    let stored: Vec<StoredChange> = one_of_each().iter().map(|change| StoredChange::of(change, 2)).collect();
    let texts: Vec<String> = stored.iter().map(|change| text("write", change).unwrap()).collect();
    assert_eq!(texts, RELEASED.lines().collect::<Vec<_>>());
    let read: Vec<StoredChange> = RELEASED.lines().map(|text| parsed("write", text.as_bytes()).unwrap()).collect();
    assert_eq!(read, stored);
}

#[test]
fn i6_no_change_carries_a_tenants_secret() {
    let tenant = tenant(1);
    let written = text("write", &StoredChange::of(&Change::AddTenant(tenant.clone()), 0)).unwrap();
    assert!(!written.contains("secret") && !written.contains(&hex::encode(&tenant.secret.0)), "{written}");
}

#[test]
fn stored_changes_make_the_state_that_changes_make_but_for_what_they_want() {
    let (mut stored, mut wanted, mut wanting) = (State::default(), State::default(), Wanting::default());
    for change in one_of_each() {
        StoredChange::of(&change, 2).apply(&mut stored, &mut wanting);
        wanted.apply(&change);
    }
    assert_eq!((&stored.teams, &stored.keys, &stored.published), (&wanted.teams, &wanted.keys, &wanted.published));
    let calendars = |state: &State| state.tenants["tenant-1"].calendar.clone();
    assert_eq!(calendars(&stored), calendars(&wanted));
    assert_eq!(wanting.secrets, [("tenant-1".to_owned(), tenant(1).id)]);
    assert_eq!(wanting.catalog.map(|(_, parts)| parts), Some(2));
}
