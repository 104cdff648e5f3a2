//! Texts as released: whatever the types become, these must be read for as long as a ledger is kept.

use weir_domain::ids::ReservationId;

use super::*;
use crate::conformance::scene;

const CREATED: &str = r#"{"id": "019ca945-0de8-7000-8000-000000000001", "tenant": "acme", "team": null, "key": "key-1", "model":
"small", "fingerprint": [7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
7, 7, 7, 7], "hold": {"requests": 1, "tokens": 1000, "usd": "0.105"}, "counting": {"scopes": [{"subject":
"tenant", "model": null}, {"subject": "tenant", "model": "small"}, {"subject": {"key": "key-1"}, "model":
null}, {"subject": {"key": "key-1"}, "model": "small"}], "windows": ["d2026-03-01", "w2026-W09", "m2026-03",
"total"]}, "price_version": "prices-1", "admitted_at_ms": 1772366401000, "due_ms": 1772366461000, "owner":
"eu/gw-1/3", "labels": [], "end_user": null, "idempotency": null, "adjust_on_mismatch": false}"#;

const LINE: &str = r#"{"total": [1, 100, 500], "charge": [0, 100, 500], "usage": {"in.uncached": 75, "out.visible": 25}, "source":
"response", "price_version": "prices-1", "cause": "", "target": {"deployment": "small-eu", "provider": "acme",
"upstream_model": "acme-small-2026-02", "provider_region": "eu-west", "price": "small-2026"}, "posted_at_ms":
1772366402000, "partition": 0, "offset": 10}"#;

const CHANGE: &str = r#"{"status": "settled", "status_since_ms": 1772366401010, "due_ms": 1772366461000, "held": [0, 0, 0],
"attempts": [{"number": 1, "target": {"deployment": "small-eu", "provider": "acme", "upstream_model":
"acme-small-2026-02", "provider_region": "eu-west", "price": "small-2026"}, "started_with": {"requests": 1,
"tokens": 1000, "usd": "0.105"}, "hold": {"requests": 1, "tokens": 1000, "usd": "0.105"}, "outcome":
"executed", "charge": {"requests": 1, "tokens": 100, "usd": "0.0000005"}, "provider_id": "chatcmpl-1"}],
"partition": 0, "events": [[10, "UsageRecorded", 1, 1772366401010]]}"#;

/// A row of a later release: it says more than this one knows.
fn with_more(text: &str) -> String {
    text.replacen('{', r#"{"later": [1, {}], "#, 1)
}

#[test]
fn released_texts_are_read_and_so_are_those_that_say_more() -> Result<(), LedgerError> {
    let created = Arc::new(scene::created(1, "acme"));
    let line = scene::line(&created, 0, 500, 10);
    let change = scene::charged(&created, 500, 10);
    for text in [CREATED.to_owned(), with_more(CREATED)] {
        assert_eq!(parsed::<Created>("reservation", &text)?, *created);
    }
    for text in [LINE.to_owned(), with_more(LINE)] {
        assert_eq!(parsed::<StoredLine>("line", &text)?.line(line.key, line.amount, &created)?, line);
    }
    for text in [CHANGE.to_owned(), with_more(CHANGE)] {
        let stored: StoredChange = parsed("change", &text)?;
        assert_eq!((stored.status, stored.status_since_ms), (change.reservation.status(), change.status_since_ms));
        assert_eq!((stored.due_ms, stored.held()), (change.reservation.due_ms, change.reservation.held()));
        assert_eq!(stored.attempts, change.reservation.attempts);
        assert_eq!(stored.events().collect::<Vec<_>>(), change.events);
        assert_eq!((stored.escalated, stored.flagged), (false, false));
    }
    Ok(())
}

#[test]
fn what_is_written_is_what_was_released() -> Result<(), LedgerError> {
    let created = Arc::new(scene::created(1, "acme"));
    let same = |written: String, released: &str| {
        let parse = |text: &str| serde_json::from_str::<serde_json::Value>(text);
        assert_eq!(parse(&written).ok(), parse(released).ok(), "{written}");
    };
    same(text("reservation", &*created)?, CREATED);
    same(text("line", &StoredLine::of(&scene::line(&created, 0, 500, 10)))?, LINE);
    let change = text("change", &StoredChange::of(&scene::charged(&created, 500, 10)))?;
    same(change, CHANGE);
    Ok(())
}

#[test]
fn damage_is_named_and_nothing_is_made_of_it() {
    let created = Arc::new(scene::created(1, "acme"));
    let key = LineKey { reservation: ReservationId::from_bytes([0; 16]), attempt: 1, seq: 0 };
    let negative = LINE.replace("75", "-75");
    let stored: StoredLine = parsed("line", &negative).unwrap();
    let refused = stored.line(key, Amounts::ZERO, &created);
    assert!(matches!(refused, Err(LedgerError::Damaged { what: "usage", .. })), "{refused:?}");
    let cut = parsed::<StoredChange>("change", &CHANGE[..80]);
    assert!(matches!(cut, Err(LedgerError::Damaged { what: "change", .. })), "{cut:?}");
}
