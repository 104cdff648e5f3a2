use std::collections::BTreeSet;

use weir_domain::price::{PriceBook, TierScope, UsageBound};
use weir_domain::usage::{Meter, Usage};

use super::*;
use crate::document::price_version;

/// 2026-11-29.
const NOW_MS: i64 = 1_795_910_400_000;

fn book() -> PriceBook {
    PriceBook::new(&shipped_prices().unwrap(), price_version).unwrap()
}

#[test]
fn every_shipped_price_is_sourced_dated_and_can_charge_and_hold_text() {
    let (book, entries) = (book(), shipped_prices().unwrap());
    assert!(entries.len() >= 25);
    let sources: BTreeSet<&str> = entries
        .iter()
        .map(|entry| entry.source.as_deref().unwrap())
        .inspect(|source| assert!(source.starts_with("https://") && source.ends_with(", 2026-11-29"), "{source}"))
        .collect();
    assert!(sources.len() >= 4);
    for entry in &entries {
        let price = book.price(&entry.name, NOW_MS).unwrap();
        let usage =
            Usage::new([(Meter::InUncached, 1_000), (Meter::InCacheRead, 500), (Meter::OutVisible, 300)]).unwrap();
        let charge = price.charge(&usage, None).unwrap();
        let hold = price.worst_case(&UsageBound::text(1_500, 300), TierScope::Any).unwrap();
        assert!(charge.nanos() > 0 && charge <= hold, "{}: {charge} of {hold}", entry.name);
    }
}

/// Well-known figures, written down apart from the file: a slip of the decimal point there would be one of every bill.
#[test]
fn a_million_tokens_in_and_out_cost_what_the_provider_says() {
    let book = book();
    for (name, input, cached, output) in [
        ("gpt-4o-mini", "0.15", "0.075", "0.6"),
        ("gpt-4o", "2.5", "1.25", "10"),
        ("gpt-4.1", "2", "0.5", "8"),
        ("gpt-5-mini", "0.25", "0.025", "2"),
        ("claude-haiku-4-5", "1", "0.1", "5"),
        ("claude-opus-4-8", "5", "0.5", "25"),
        ("mistral-small-2603", "0.15", "0.015", "0.6"),
    ] {
        let cost = |meter| {
            let usage = Usage::new([(meter, 1_000_000)]).unwrap();
            book.price(name, NOW_MS).unwrap().charge(&usage, None).unwrap().to_string()
        };
        let read = (cost(Meter::InUncached), cost(Meter::InCacheRead), cost(Meter::OutVisible));
        assert_eq!(read, (input.to_owned(), cached.to_owned(), output.to_owned()), "{name}");
    }
}

#[test]
fn length_cliffs_and_tiers_are_in_the_file() {
    let book = book();
    let long = Usage::new([(Meter::InUncached, 272_001), (Meter::OutVisible, 1_000)]).unwrap();
    let short = Usage::new([(Meter::InUncached, 272_000), (Meter::OutVisible, 1_000)]).unwrap();
    let price = book.price("gpt-5.5", NOW_MS).unwrap();
    // $5 and $30 a million up to 272,000 input tokens, $10 and $45 above.
    assert_eq!(price.charge(&short, None).unwrap().to_string(), "1.39");
    assert_eq!(price.charge(&long, None).unwrap().to_string(), "2.76501");
    let mini = book.price("gpt-4o-mini", NOW_MS).unwrap();
    let usage = Usage::new([(Meter::OutVisible, 1_000_000)]).unwrap();
    assert_eq!(mini.charge(&usage, Some("priority")).unwrap().to_string(), "1");
}
