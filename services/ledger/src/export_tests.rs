//! What finance gets: exact, ordered, and summing to the counters.

use std::sync::Arc;

use weir_domain::money::Amounts;
use weir_domain::testing::{Dice, runs};

use super::*;
use crate::conformance::scene;
use crate::testing::{Place, plain_life, random_log};

async fn exported(place: &Place, tenant: &str, format: ExportFormat) -> (Exported, String) {
    let range = ExportRange { tenant: tenant.into(), from_ms: i64::MIN, until_ms: i64::MAX };
    let mut out = Vec::new();
    let exported = export(&*place.store, &range, format, &mut out).await.unwrap();
    (exported, String::from_utf8(out).unwrap())
}

async fn one_line() -> Place {
    let place = Place::new();
    let created = Arc::new(scene::created_in_full(1, "acme"));
    place.append(&plain_life(&created, 82_200_000)).await;
    place.build_all().await;
    place
}

#[tokio::test]
async fn a_line_in_csv() {
    let (exported, text) = exported(&one_line().await, "acme", ExportFormat::Csv).await;
    assert_eq!(exported.lines, 1);
    let (heading, line) = text.split_once('\n').unwrap();
    assert_eq!(heading.trim_end(), COLUMNS.join(","));
    let expected = concat!(
        "2026-03-01T12:00:01.900Z,2026-03-01T12:00:01.000Z,019ca945-0de8-7000-8000-000000000001,1,0,acme,",
        "\"team \"\"ü\"\"\",key-1,small,small-eu,acme,acme-small-2026-02,eu-west,1,100,0.0822,0.0822,response,false,,,",
        "prices-1,,d2026-03-01,m2026-03,ab12,\"{\"\"app\"\":\"\"\"\"}\",\"{\"\"in.uncached\"\":75,\"\"out.visible\"\":25}\""
    );
    assert_eq!(line.trim_end(), expected);
}

#[tokio::test]
async fn a_line_in_json() {
    let (_, text) = exported(&one_line().await, "acme", ExportFormat::JsonLines).await;
    let expected = concat!(
        r#"{"posted_at":"2026-03-01T12:00:01.900Z","admitted_at":"2026-03-01T12:00:01.000Z","#,
        r#""reservation":"019ca945-0de8-7000-8000-000000000001","attempt":1,"seq":0,"tenant":"acme","#,
        r#""team":"team \"ü\"","key":"key-1","model":"small","deployment":"small-eu","provider":"acme","#,
        r#""upstream_model":"acme-small-2026-02","provider_region":"eu-west","requests":1,"tokens":100,"#,
        r#""usd":"0.0822","attempt_total_usd":"0.0822","source":"response","flagged":false,"corrects":null,"#,
        r#""cause":"","price_version":"prices-1","served_tier":null,"window_day":"d2026-03-01","#,
        r#""window_month":"m2026-03","end_user":"ab12","labels":{"app":""},"#,
        r#""usage":{"in.uncached":75,"out.visible":25}}"#
    );
    assert_eq!(text, format!("{expected}\n"));
}

#[tokio::test]
async fn an_export_sums_to_the_counter_to_the_last_unit() {
    for seed in 0..runs(3) {
        let place = Place::new();
        place.append(&random_log(seed, 100)).await;
        let builder = place.build_all().await;
        for tenant in ["acme", "globex", "initech"] {
            let (exported, text) = exported(&place, tenant, ExportFormat::Csv).await;
            let book = builder.book(&tenant.into()).await.unwrap();
            let whole = weir_domain::testing::tenant_scope();
            let counter = book.counter(&whole, Window::TOTAL);
            assert_eq!(exported.charged, counter.charged, "{tenant}, seed {seed}");
            let usd = COLUMNS.iter().position(|name| *name == "usd").unwrap();
            let mut reader = csv::Reader::from_reader(text.as_bytes());
            let rows: Vec<csv::StringRecord> = reader.records().map(Result::unwrap).collect();
            let sum = rows.iter().map(|row| row[usd].parse::<weir_domain::money::NanoUsd>().unwrap()).sum();
            assert_eq!(counter.charged.usd, sum, "the printed dollars, {tenant}, seed {seed}");
            assert!(rows.is_sorted_by_key(|row| row[0].to_owned()), "{tenant}, seed {seed}");
        }
    }
}

#[tokio::test]
async fn pages_join_without_a_seam() {
    let place = Place::new();
    let mut dice = Dice::new(1);
    let mut sum = Amounts::ZERO;
    let lines = PAGE + 10;
    let mut changes = Vec::new();
    for n in 0..lines {
        // Many lines share one instant, so that pages end within it.
        let created =
            weir_domain::reservation::Created { id: scene::id(n as u64), ..scene::created(dice.below(3), "acme") };
        let change = scene::charged(&Arc::new(created), dice.between(0, 1_000_000), i64::try_from(n).unwrap());
        sum += change.lines[0].amount;
        changes.push(change);
    }
    place.store.post(changes.into()).await.unwrap();
    let (exported, text) = exported(&place, "acme", ExportFormat::JsonLines).await;
    assert_eq!((exported.lines, exported.charged), (lines as u64, sum));
    assert_eq!(text.lines().count(), lines);
}
