//! The worked example and the public cases, each to the last unit, from their written prices.

use serde::Deserialize;

use super::*;
use crate::ids::PriceVersion;
use crate::usage::MAX_QUANTITY;

const JAN_2026_MS: i64 = 1_767_225_600_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PriceFile {
    price: Vec<PriceEntry>,
}

fn entries(text: &str) -> Vec<PriceEntry> {
    toml::from_str::<PriceFile>(text).unwrap().price
}

fn book(text: &str) -> Result<PriceBook, PriceBookError> {
    PriceBook::new(&entries(text), |canonical| PriceVersion::new(&canonical.len().to_string()))
}

/// The one price that `rates` and `each` describe.
fn price(rates: &str, each: &str) -> Price {
    let text = format!("[[price]]\nname = \"m\"\neach = {{ {each} }}\n[[price.terms]]\nrates = {{ {rates} }}\n");
    Price::clone(book(&text).unwrap().price("m", 0).unwrap())
}

fn usage(readings: &[(Meter, i64)]) -> Usage {
    Usage::new(readings.iter().copied()).unwrap()
}

fn usd(text: &str) -> NanoUsd {
    text.parse().unwrap()
}

#[test]
fn the_worked_example_holds_charges_and_returns_to_the_last_unit() {
    let price = price(r#""in.uncached" = "30", "out.visible" = "120""#, "");
    let held = price.worst_case(&UsageBound::text(1_500, 500), TierScope::Any).unwrap();
    let charged = price.charge(&usage(&[(Meter::InUncached, 1_500), (Meter::OutVisible, 310)]), None).unwrap();
    assert_eq!((held, charged, held - charged), (usd("0.105"), usd("0.0822"), usd("0.0228")));
}

#[test]
fn o16_cache_creation_is_not_also_input() {
    let rates = r#""in.uncached" = "3", "in.cache_write.5m" = "3.75", "in.cache_read" = "0.30", "out.visible" = "15""#;
    let used = usage(&[(Meter::InUncached, 3), (Meter::InCacheWrite5m, 12_304), (Meter::OutVisible, 550)]);
    assert_eq!(price(rates, "").charge(&used, None), Ok(usd("0.054399")));
    assert_eq!(used.input_tokens(), 12_307);
}

#[test]
fn o17_cached_tokens_are_charged_once_and_cheaper() {
    let rates = r#""in.uncached" = "0.50", "in.cache_read" = "0.05", "out.visible" = "3.00""#;
    let used = usage(&[(Meter::InUncached, 3_914), (Meter::InCacheRead, 16_298), (Meter::OutVisible, 931)]);
    assert_eq!(price(rates, "").charge(&used, None), Ok(usd("0.0055649")));
}

#[test]
fn o18_reasoning_is_a_part_of_output() {
    let used = usage(&[(Meter::InUncached, 2_008), (Meter::OutVisible, 5), (Meter::OutReasoning, 261)]);
    let price = price(r#""in.uncached" = "1.25", "out.visible" = "10""#, "");
    assert_eq!(price.charge(&used, None), Ok(usd("0.00517")));
}

#[test]
fn o19_thoughts_beside_candidates_are_output() {
    let price = price(r#""in.uncached" = "0.30", "out.visible" = "2.50""#, "");
    let both = usage(&[(Meter::InUncached, 264), (Meter::OutVisible, 104), (Meter::OutReasoning, 989)]);
    assert_eq!(price.charge(&both, None), Ok(usd("0.0028117")));
    let thoughts_only = usage(&[(Meter::InUncached, 264), (Meter::OutReasoning, 989)]);
    assert_eq!(price.charge(&thoughts_only, None), Ok(usd("0.0025517")));
}

const TIERED: &str = r#"
    [[price]]
    name = "m"
    [[price.terms]]
    rates = { "in.uncached" = "1", "out.visible" = "4" }
    [[price.terms]]
    tier = "priority"
    rates = { "in.uncached" = "2", "out.visible" = "8" }
    [[price.terms]]
    tier = "flex"
    rates = { "in.uncached" = "0.5", "out.visible" = "2" }
"#;

#[test]
fn o20_the_served_tier_is_charged_and_the_dearest_possible_is_held() {
    let book = book(TIERED).unwrap();
    let price = book.price("m", 0).unwrap();
    let used = usage(&[(Meter::InUncached, 1_000), (Meter::OutVisible, 100)]);
    for (served, charged) in [
        (None, Ok(usd("0.0014"))),
        (Some("default"), Ok(usd("0.0014"))),
        (Some("standard"), Ok(usd("0.0014"))),
        (Some("priority"), Ok(usd("0.0028"))),
        (Some("flex"), Ok(usd("0.0007"))),
        (Some("ultrafast"), Err(PriceError::UnknownTier { tier: "ultrafast".to_owned() })),
    ] {
        assert_eq!(price.charge(&used, served), charged, "{served:?}");
    }
    let bound = UsageBound::text(1_000, 100);
    for (requested, held) in [
        (TierScope::Requested("priority"), Ok(usd("0.0028"))),
        (TierScope::Requested("auto"), Ok(usd("0.0028"))),
        (TierScope::Any, Ok(usd("0.0028"))),
        (TierScope::Requested("default"), Ok(usd("0.0014"))),
        (TierScope::Requested("flex"), Ok(usd("0.0014"))),
        (TierScope::Requested("ultrafast"), Err(PriceError::UnknownTier { tier: "ultrafast".to_owned() })),
    ] {
        assert_eq!(price.worst_case(&bound, requested), held, "{requested:?}");
    }
}

#[test]
fn o21_what_has_no_price_is_refused_and_never_free() {
    let book = book("[[price]]\nname = \"m\"\n[[price.terms]]\nrates = { \"in.uncached\" = \"1\" }").unwrap();
    assert_eq!(
        book.price("new-model-x", 7),
        Err(PriceError::NoPrice { name: "new-model-x".to_owned(), at_ms: 7 }).as_ref().map_err(Clone::clone)
    );
    let input_only = book.price("m", 7).unwrap();
    let no_rate = PriceError::NoRate { meter: Meter::OutVisible };
    assert_eq!(input_only.worst_case(&UsageBound::text(10, 1), TierScope::Any), Err(no_rate.clone()));
    assert_eq!(input_only.charge(&usage(&[(Meter::InUncached, 5), (Meter::OutVisible, 5)]), None), Err(no_rate));
    // A model without output, such as one for embeddings, needs no output rate.
    assert_eq!(input_only.worst_case(&UsageBound::text(1_000_000, 0), TierScope::Any), Ok(usd("1")));
}

#[test]
fn o21_free_is_only_what_says_so() {
    let book = book("[[price]]\nname = \"own\"\nfree = true").unwrap();
    let free = book.price("own", 0).unwrap();
    let used = usage(&[(Meter::InUncached, 5), (Meter::ToolWebSearch, 2)]);
    assert_eq!(free.charge(&used, Some("anything")), Ok(NanoUsd::ZERO));
    assert_eq!(free.worst_case(&UsageBound::text(9, 9), TierScope::Requested("x")), Ok(NanoUsd::ZERO));
    assert_eq!(
        free.unit_prices(&used, None),
        Ok(vec![(Meter::InUncached, Rate::ZERO), (Meter::ToolWebSearch, Rate::ZERO)])
    );
}

#[test]
fn o22_fractions_of_a_unit_round_up_once_per_line() {
    let tiny = price(r#""in.uncached" = "0.15""#, "").charge(&usage(&[(Meter::InUncached, 7)]), None);
    assert_eq!(tiny, Ok(NanoUsd::from_nanos(1_050)));
    assert_eq!(tiny.unwrap().to_string(), "0.00000105");

    // 334.5 nano-USD each is recorded as 335, and a million lines add up to exactly a million times that.
    let each = price(r#""in.uncached" = "0.3345""#, "").charge(&usage(&[(Meter::InUncached, 1)]), None).unwrap();
    assert_eq!(each, NanoUsd::from_nanos(335));
    assert_eq!(std::iter::repeat_n(each, 1_000_000).sum::<NanoUsd>().to_string(), "0.335");

    // Two halves of a unit on one line are one unit, not two.
    let halves = price(r#""in.uncached" = "0.0005", "out.visible" = "0.0005""#, "");
    let used = usage(&[(Meter::InUncached, 1), (Meter::OutVisible, 1)]);
    assert_eq!(halves.charge(&used, None), Ok(NanoUsd::from_nanos(1)));
}

#[test]
fn o23_a_charge_above_the_hold_is_computed_in_full() {
    let price = price(r#""in.uncached" = "0", "out.visible" = "10""#, "");
    let held = price.worst_case(&UsageBound::text(0, 5_000), TierScope::Any).unwrap();
    let charged = price.charge(&usage(&[(Meter::OutVisible, 1_000), (Meter::OutReasoning, 7_000)]), None).unwrap();
    assert_eq!((held, charged), (usd("0.05"), usd("0.08")));
}

#[test]
fn past_a_threshold_all_tokens_of_the_request_take_the_band() {
    let book = book(
        r#"
        [[price]]
        name = "above"
        [[price.terms]]
        rates = { "in.uncached" = "1", "out.visible" = "2" }
        [[price.terms]]
        above_input_tokens = 200
        rates = { "in.uncached" = "10", "out.visible" = "20" }
        [[price]]
        name = "from"
        [[price.terms]]
        rates = { "in.uncached" = "1", "out.visible" = "2" }
        [[price.terms]]
        above_input_tokens = 200
        from_threshold = true
        rates = { "in.uncached" = "10", "out.visible" = "20" }
        "#,
    )
    .unwrap();
    // The input of a band is all input, so cached tokens count towards it.
    for (name, uncached, cached, nanos) in [
        ("above", 150, 50, 200_000 + 10 * 2_000),
        ("above", 150, 51, 2_010_000 + 10 * 20_000),
        ("from", 150, 49, 199_000 + 10 * 2_000),
        ("from", 150, 50, 2_000_000 + 10 * 20_000),
    ] {
        let used = usage(&[(Meter::InUncached, uncached), (Meter::InCacheRead, cached), (Meter::OutVisible, 10)]);
        let charged = book.price(name, 0).unwrap().charge(&used, None);
        assert_eq!(charged, Ok(NanoUsd::from_nanos(nanos)), "{name} {uncached}+{cached}");
    }
    let above = book.price("above", 0).unwrap();
    let near = |input| above.worst_case(&UsageBound::text(input, 10), TierScope::Any).unwrap().nanos();
    assert_eq!((near(200), near(201)), (220_000, 2_210_000));
}

#[test]
fn missing_rates_fall_back_and_are_never_zero() {
    use Meter::*;
    let plain = price(r#""in.uncached" = "3", "out.visible" = "15""#, "");
    let writes = price(
        r#""in.uncached" = "3", "in.cache_write.5m" = "3.75", "in.cache_write.1h" = "6", "out.visible" = "15", "out.reasoning" = "20""#,
        "",
    );
    let dollars = |price: &Price, meter| price.charge(&usage(&[(meter, 1_000_000)]), None).map(|usd| usd.to_string());
    let ok = |text: &str| Ok(text.to_owned());
    for (meter, of_plain, of_writes) in [
        (InCacheRead, "3", "3"),
        (InCacheWrite5m, "3", "3.75"),
        (InCacheWrite1h, "3", "6"),
        (InCacheWrite12h, "3", "6"),
        (InCacheWriteUnknown, "3", "6"),
        (OutReasoning, "15", "20"),
    ] {
        assert_eq!((dollars(&plain, meter), dollars(&writes, meter)), (ok(of_plain), ok(of_writes)), "{meter}");
    }
    for meter in [InAudio, InImage, OutAudio, OutImage, ToolWebSearch, MediaSecond] {
        assert_eq!(dollars(&plain, meter), Err(PriceError::NoRate { meter }));
    }
}

#[test]
fn the_worst_case_counts_dear_writes_audio_and_tools_only_where_they_may_occur() {
    let price = price(
        r#""in.uncached" = "3", "in.cache_write.1h" = "6", "in.audio" = "40", "out.visible" = "15", "out.audio" = "80""#,
        r#""tool.web_search" = "0.01""#,
    );
    let worst = |kinds, units| {
        let bound = UsageBound { kinds, units, ..UsageBound::text(1_000_000, 1_000_000) };
        price.worst_case(&bound, TierScope::Any).map(|usd| usd.to_string())
    };
    let none = TokenKinds { cache_writes: false, audio: false, images: false };
    let calls = |meter, quantity| vec![MeterReading { meter, quantity }];
    assert_eq!(worst(none, Vec::new()), Ok("18".to_owned()));
    assert_eq!(worst(TokenKinds { cache_writes: true, ..none }, Vec::new()), Ok("21".to_owned()));
    assert_eq!(worst(TokenKinds { audio: true, ..none }, Vec::new()), Ok("120".to_owned()));
    assert_eq!(worst(none, calls(Meter::ToolWebSearch, 3)), Ok("18.03".to_owned()));
    let unpriced = Meter::ToolCodeSession;
    assert_eq!(worst(none, calls(unpriced, 1)), Err(PriceError::NoRate { meter: unpriced }));
}

#[test]
fn the_price_of_admission_is_chosen_by_date() {
    let book = book(
        r#"
        [[price]]
        name = "m"
        effective_to = "2026-01-01"
        [[price.terms]]
        rates = { "in.uncached" = "1" }
        [[price]]
        name = "m"
        effective_from = "2026-01-01T00:00:00Z"
        effective_to = "2026-01-01T09:00:00+01:00"
        [[price.terms]]
        rates = { "in.uncached" = "2" }
        "#,
    )
    .unwrap();
    let rate_at = |ms| {
        let used = usage(&[(Meter::InUncached, 1_000_000)]);
        book.price("m", ms).map(|price| price.charge(&used, None).unwrap().to_string())
    };
    let eight_hours = 8 * 3_600_000;
    assert_eq!(rate_at(JAN_2026_MS - 1), Ok("1".to_owned()));
    assert_eq!(rate_at(JAN_2026_MS), Ok("2".to_owned()));
    assert_eq!(rate_at(JAN_2026_MS + eight_hours - 1), Ok("2".to_owned()));
    assert!(matches!(rate_at(JAN_2026_MS + eight_hours), Err(PriceError::NoPrice { .. })));
    assert!(book.knows("m") && !book.knows("n"));
}

#[test]
fn the_example_of_the_documentation_is_a_book() {
    let documentation: String = include_str!("mod.rs")
        .lines()
        .skip_while(|line| *line != "//! ```toml")
        .skip(1)
        .take_while(|line| *line != "//! ```")
        .map(|line| line.trim_start_matches("//!").to_owned() + "\n")
        .collect();
    let book = book(&documentation).unwrap();
    let used = usage(&[(Meter::InUncached, 200_001), (Meter::ToolWebSearch, 1)]);
    let oct_2026_ms = 1_790_812_800_000;
    let charged = book.price("long-context-model", oct_2026_ms).unwrap().charge(&used, None);
    assert_eq!(charged, Ok(usd("1.210006")));
    assert!(book.price("own-hardware", oct_2026_ms).is_ok());
}

#[test]
fn unknown_keys_and_numbers_are_refused() {
    let refused = |text: &str| toml::from_str::<PriceFile>(text).err().map(|error| error.to_string());
    for (text, reason) in [
        ("[[price]]\nname = \"m\"\ncolour = 1", "colour"),
        ("[[price]]\nname = \"m\"\n[[price.terms]]\nrates = { \"in.uncached\" = 0.15 }", "0.15"),
        ("[[price]]\nname = \"m\"\n[[price.terms]]\nrates = { \"in.uncached\" = \"-1\" }", "-1"),
        ("[[price]]\nname = \"m\"\n[[price.terms]]\nrates = { \"in.uncached\" = \"4e-07\" }", "4e-07"),
        ("[[price]]\nname = \"m\"\n[[price.terms]]\nrates = { \"in.plain\" = \"1\" }", "in.plain"),
        ("[[price]]\nname = \"m\"\neffective_from = \"soon\"", "soon"),
    ] {
        assert!(refused(text).is_some_and(|error| error.contains(reason)), "{text}: {:?}", refused(text));
    }
}

#[test]
fn contradictions_are_refused_by_name() {
    use PriceBookError as E;
    let name = || "m".to_owned();
    let tier = || DEFAULT_TIER.to_owned();
    let terms = |extra: &str| format!("[[price.terms]]\n{extra}\nrates = {{ \"in.uncached\" = \"1\" }}\n");
    let entry = |extra: &str, terms: &str| format!("[[price]]\nname = \"m\"\n{extra}\n{terms}");
    let plain = terms("");
    for (text, error) in [
        ("[[price]]\nname = \"\"".to_owned(), E::NoName),
        (entry("", ""), E::NoTerms { name: name() }),
        (entry("free = true", &plain), E::FreeWithRates { name: name() }),
        (entry("", &plain).repeat(2), E::Overlap { name: name() }),
        (
            entry("effective_from = \"2026-01-01\"\neffective_to = \"2026-01-01\"", &plain),
            E::EndsBeforeStart { name: name() },
        ),
        (entry("", &plain.repeat(2)), E::NoBaseTerms { name: name(), tier: tier() }),
        (entry("", &terms("tier = \"flex\"")), E::NoBaseTerms { name: name(), tier: tier() }),
        (
            entry("", &(plain.clone() + &terms("tier = \"flex\"\nabove_input_tokens = 5"))),
            E::NoBaseTerms { name: name(), tier: "flex".to_owned() },
        ),
        (
            entry(
                "",
                &(plain.clone()
                    + &terms("above_input_tokens = 5")
                    + &terms("above_input_tokens = 6\nfrom_threshold = true")),
            ),
            E::SameTerms { name: name(), tier: tier(), from_input_tokens: 6 },
        ),
        (entry("", &(plain.clone() + &terms("above_input_tokens = 0"))), E::BadThreshold { name: name() }),
        (entry("", &terms("from_threshold = true")), E::FlagWithoutThreshold { name: name() }),
        (entry("each = { \"in.audio\" = \"1\" }", ""), E::TokensInEach { name: name(), meter: Meter::InAudio }),
        (
            entry("each = { \"media.image\" = \"1000.1\" }", ""),
            E::BadUnitPrice { name: name(), meter: Meter::MediaImage },
        ),
        (
            entry("", "[[price.terms]]\nrates = { \"media.second\" = \"1\" }"),
            E::UnitsInRates { name: name(), meter: Meter::MediaSecond },
        ),
        (
            entry(
                "",
                &(plain.clone()
                    + "[[price.terms]]\ntier = \"flex\"\nrates = { \"in.uncached\" = \"1\", \"in.audio\" = \"2\" }"),
            ),
            E::Uneven { name: name(), tier: tier(), meter: Meter::InAudio },
        ),
    ] {
        assert_eq!(book(&text), Err(error), "{text}");
    }
}

#[test]
fn the_canonical_text_changes_with_the_charge_and_with_nothing_else() {
    let canonical = |text: &str| book(text).unwrap().canonical_text();
    let original = canonical(TIERED);
    assert_eq!(canonical(&TIERED.replace("name = \"m\"", "name = \"m\"\nsource = \"a page\"")), original);
    assert_eq!(canonical(&TIERED.replace("\"4\"", "\"4.00\"")), original);
    assert_ne!(canonical(&TIERED.replace("\"4\"", "\"4.000000001\"")), original);
    assert_ne!(canonical(&TIERED.replace("name = \"m\"", "name = \"n\"")), original);
    assert_ne!(canonical(&TIERED.replace("name = \"m\"", "name = \"m\"\neffective_to = \"2030-01-01\"")), original);
    let reversed: Vec<PriceEntry> = entries(TIERED)
        .into_iter()
        .map(|mut entry| {
            entry.terms.reverse();
            entry
        })
        .collect();
    assert_eq!(PriceBook::new(&reversed, |_| PriceVersion::new("")).unwrap().canonical_text(), original);
}

#[test]
fn a_name_of_ones_own_replaces_the_whole_shipped_history() {
    let shipped = entries(
        "[[price]]\nname = \"m\"\nfree = true\neffective_to = \"2026-01-01\"\n[[price]]\nname = \"n\"\nfree = true",
    );
    let own = entries("[[price]]\nname = \"m\"\nfree = true\neffective_from = \"2026-06-01\"");
    let both = overlay(shipped, own);
    let starts: Vec<_> = both.iter().map(|entry| (entry.name.as_str(), entry.effective_from.is_some())).collect();
    assert_eq!(starts, [("n", false), ("m", true)]);
}

#[test]
fn entries_survive_json_and_money_stays_text() {
    let before = entries(TIERED);
    let json = serde_json::to_string(&before).unwrap();
    assert!(json.contains(r#""flex","rates":{"in.uncached":"0.5""#), "{json}");
    assert_eq!(serde_json::from_str::<Vec<PriceEntry>>(&json).unwrap(), before);
}

#[test]
fn absurd_amounts_are_an_error_and_no_wrapped_number() {
    let dear = price(r#""in.uncached" = "1000000000""#, "");
    assert_eq!(dear.charge(&usage(&[(Meter::InUncached, MAX_QUANTITY)]), None), Err(PriceError::TooLarge));
}
