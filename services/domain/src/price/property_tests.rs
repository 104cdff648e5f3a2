//! What a hold must cover: no usage within a bound, in no tier that could be served, costs more than the worst case.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::ids::PriceVersion;

const TIERS: [&str; 3] = [DEFAULT_TIER, "flex", "priority"];

fn rates() -> impl Strategy<Value = BTreeMap<Meter, Rate>> {
    let tokens: Vec<Meter> = Meter::ALL.iter().copied().filter(|meter| meter.is_tokens()).collect();
    let rate = (0..200_000_000_000i64).prop_map(|nanos| Rate::from_nanos_per_million(nanos).unwrap());
    proptest::collection::vec(proptest::option::weighted(0.7, rate), tokens.len())
        .prop_map(move |rates| tokens.iter().copied().zip(rates).filter_map(|(m, rate)| Some((m, rate?))).collect())
}

/// Built directly, so that uneven terms, which a book refuses, are tried too.
fn prices() -> impl Strategy<Value = Price> {
    let bands = proptest::collection::btree_map((0..TIERS.len(), 0..4i64), rates(), 1..8);
    (bands, rates(), 0..50_000_000i64).prop_map(|(bands, base, fee)| {
        let fee = Rate::from_each(NanoUsd::from_nanos(fee)).unwrap();
        let mut all = bands;
        all.insert((0, 0), base);
        let terms = all.into_iter().map(|((tier, band), mut given)| {
            given.insert(Meter::ToolWebSearch, fee);
            Terms { tier: TIERS[tier].to_owned(), from_input_tokens: band * 1_000, rates: Rates::resolve(&given) }
        });
        Price { free: false, terms: terms.collect() }
    })
}

/// A usage of any meters, and a bound that it is within.
fn usage_within() -> impl Strategy<Value = (Usage, UsageBound)> {
    let quantity = prop_oneof![Just(0i64), 1..400i64, 1..3_000i64];
    let slack = || prop_oneof![Just(0i64), 0..2_000i64];
    (proptest::collection::vec(quantity, Meter::ALL.len()), any::<[bool; 3]>(), slack(), slack(), 0..3i64).prop_map(
        |(quantities, [cache_writes, audio, images], more_input, more_output, more_calls)| {
            let kinds = TokenKinds { cache_writes, audio, images };
            let occurs = |meter: Meter| kinds.permits(meter) || meter == Meter::ToolWebSearch;
            let readings = Meter::ALL.iter().copied().zip(quantities).filter(|(meter, _)| occurs(*meter));
            let usage = Usage::new(readings).unwrap();
            let calls = usage.get(Meter::ToolWebSearch) + more_calls;
            let bound = UsageBound {
                input_tokens: usage.input_tokens() + more_input,
                output_tokens: usage.output_tokens() + more_output,
                kinds,
                units: vec![MeterReading { meter: Meter::ToolWebSearch, quantity: calls }],
            };
            (usage, bound)
        },
    )
}

proptest! {
    #[test]
    fn a_charge_within_the_bound_never_exceeds_the_worst_case(
        price in prices(),
        (usage, bound) in usage_within(),
        requested in proptest::option::of(0..TIERS.len()),
    ) {
        let scope = requested.map_or(TierScope::Any, |tier| TierScope::Requested(TIERS[tier]));
        let permitted = TIERS.iter().enumerate().filter(|(tier, _)| requested.is_none_or(|asked| asked == *tier || *tier == 0));
        if let Ok(held) = price.worst_case(&bound, scope) {
            for (_, tier) in permitted {
                if let Ok(charged) = price.charge(&usage, Some(tier)) {
                    prop_assert!(charged <= held, "{tier}: {charged} > {held}");
                }
            }
        }
    }

    #[test]
    fn a_charge_is_the_sum_of_its_unit_prices_rounded_up_once(price in prices(), (usage, _) in usage_within()) {
        if let (Ok(charged), Ok(unit_prices)) = (price.charge(&usage, None), price.unit_prices(&usage, None)) {
            let exact: i128 = unit_prices
                .iter()
                .map(|(meter, rate)| i128::from(usage.get(*meter)) * i128::from(rate.nanos_per_million()))
                .sum();
            let charged = i128::from(charged.nanos()) * UNITS_PER_RATE;
            prop_assert!(exact <= charged && charged < exact + UNITS_PER_RATE);
        }
    }

    #[test]
    fn more_of_anything_never_costs_less_in_a_bound(price in prices(), (_, bound) in usage_within(), extra in 0..5_000i64) {
        let larger = UsageBound {
            input_tokens: bound.input_tokens + extra,
            output_tokens: bound.output_tokens + extra,
            ..bound.clone()
        };
        if let (Ok(small), Ok(large)) =
            (price.worst_case(&bound, TierScope::Any), price.worst_case(&larger, TierScope::Any))
        {
            prop_assert!(small <= large);
        }
    }

    #[test]
    fn one_version_for_one_book(fee in 0..1_000_000_000i64) {
        let each = BTreeMap::from([(Meter::MediaImage, NanoUsd::from_nanos(fee))]);
        let entry = PriceEntry {
            name: "images".to_owned(),
            source: None,
            effective_from: None,
            effective_to: None,
            free: false,
            each,
            terms: Vec::new(),
        };
        let version_of = |text: &str| PriceVersion::new(text);
        let book = PriceBook::new(std::slice::from_ref(&entry), version_of).unwrap();
        prop_assert_eq!(book.version().as_str(), book.canonical_text());
        let image = Usage::new([(Meter::MediaImage, 2)]).unwrap();
        let charged = book.price("images", 0).unwrap().charge(&image, None).unwrap();
        prop_assert_eq!(charged.nanos(), fee * 2);
    }
}
