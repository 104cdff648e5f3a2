use weir_domain::ids::PriceVersion;
use weir_domain::money::NanoUsd;
use weir_domain::price::{Price, TierScope, UsageBound};
use weir_domain::usage::Usage;

use super::*;
use crate::catalog::{Catalog, Surroundings};

/// Invented models in the shape of the file: what each proves is said by its name.
const SAMPLE: &str = include_str!("litellm/sample.json");

fn sample() -> Conversion {
    convert(SAMPLE, &Wanted::default()).unwrap()
}

fn entry(name: &str) -> PriceEntry {
    sample().prices.into_iter().find(|one| one.price.name == name).map(|one| one.price).unwrap()
}

fn price(name: &str) -> Price {
    let book = PriceBook::new(&[entry(name)], |_| PriceVersion::new("")).unwrap();
    Price::clone(book.price(name, 0).unwrap())
}

fn charge(name: &str, used: &[(&str, i64)], tier: Option<&str>) -> String {
    let usage = Usage::new(used.iter().map(|(meter, quantity)| (meter.parse().unwrap(), *quantity))).unwrap();
    price(name).charge(&usage, tier).map_or_else(|error| error.to_string(), |usd: NanoUsd| usd.to_string())
}

fn reasons(of: &[Unsaid]) -> Vec<(&str, &str)> {
    of.iter().map(|one| (one.name.as_str(), one.reason.as_str())).collect()
}

#[test]
fn a_figure_is_charged_to_its_last_digit() {
    assert_eq!(charge("plain", &[("in.uncached", 1), ("out.visible", 1)], None), "0.000002");
    assert_eq!(charge("plain", &[("in.uncached", 1_000_000)], None), "0.4");
    assert_eq!(charge("plain", &[("in.cache_read", 1_000_000)], None), "0.4", "a missing cache price is the plain one");
}

#[test]
fn bands_are_cliffs_and_tiers_have_their_own() {
    let used = |input| [("in.uncached", input), ("out.visible", 1_000)];
    assert_eq!(charge("banded-tiered", &used(272_000), None), "0.554");
    assert_eq!(charge("banded-tiered", &used(272_001), None), "1.103004");
    assert_eq!(charge("banded-tiered", &used(272_001), Some("flex")), "0.551502");
    assert_eq!(charge("banded-tiered", &used(272_001), Some("priority")), "2.206008");
    let refused = charge("banded-tiered", &used(1), Some("ultrafast"));
    assert!(refused.starts_with("the price has no terms for the service tier `ultrafast`"), "{refused}");
    assert_eq!(charge("xai/at-the-threshold", &used(128_000), None), "0.522");
    assert_eq!(charge("ranges", &used(256_000), None), "0.0132");
    assert_eq!(charge("ranges", &used(256_001), None), "0.06600025");
}

#[test]
fn a_band_of_caches_leaves_the_price_of_tokens() {
    let used = |input| charge("band-of-caches", &[("in.uncached", input), ("in.cache_read", 100_000)], None);
    assert_eq!([used(100_000), used(100_001)], ["0.11", "0.120001"]);
}

#[test]
fn cache_writes_have_their_lifetimes() {
    let write = |name, lifetime: &str| charge(name, &[(&format!("in.cache_write.{lifetime}"), 1_000_000)], None);
    assert_eq!(["5m", "1h", "unk"].map(|lifetime| write("writes-of-1h", lifetime)), ["3.75", "6", "6"]);
    assert_eq!(["30m", "12h", "unk"].map(|lifetime| write("writes-of-12h", lifetime)), ["2.5", "5", "5"]);
    assert_eq!(["5m", "1h", "unk"].map(|lifetime| write("writes-of-any", lifetime)), ["0.25", "0.25", "0.25"]);
    assert_eq!(charge("writes-of-1h", &[("tool.web_search", 3), ("tool.code_session", 1)], None), "0.06");
}

#[test]
fn embeddings_have_no_output_to_price() {
    assert_eq!(charge("embedding", &[("in.uncached", 50)], None), "0.000001");
    assert_eq!(
        price("embedding").worst_case(&UsageBound::text(50, 0), TierScope::Any).unwrap().to_string(),
        "0.000001"
    );
}

#[test]
fn what_cannot_be_said_is_told_with_its_reason() {
    let sample = sample();
    let expected = [
        ("by-time-of-day", "its price depends on the time of day (`off_peak_pricing`)"),
        ("gap-between-ranges", "`tiered_pricing`: a band begins at 64000 and not where the one before ends"),
        ("half-a-band", "above 128000 input tokens it has no price of output tokens"),
        ("half-free", "its output tokens cost nothing, its others do: write its price yourself"),
        ("moving", "it is a moving name of `plain`: name the model that answers"),
        ("new-kind-of-price", "`lunar_cost_per_token` speaks of money and is not known here"),
        ("no-numbers", "`input_cost_per_token`: \"cheap\" is no number"),
        ("nothing", "it is no object"),
        ("painter", "its mode `image_generation` is not priced by tokens here"),
        ("per-request", "every request costs something beside its tokens (`input_cost_per_request`)"),
        (
            "too-fine",
            "`input_cost_per_token`: 2.9999900000000002e-06 cannot be said exactly: `2.9999900000000002` has more than 9 \
             decimal places",
        ),
        ("two-reads", "`input_cost_per_token_cache_hit` contradicts another key: 0.2 and 0.1 a million"),
        ("zero", "all its prices are zero: if it costs nothing, write a price with `free = true`"),
    ];
    assert_eq!(reasons(&sample.skipped), expected);
    let expected = [
        ("banded-tiered", "input_cost_per_token_ultrafast: a tier that no account serves unasked"),
        ("gemini/searches", "search_context_cost_per_query: searches are free up to an amount, or paid by the prompt"),
        ("gemini/searches", "the tier flex: it does not have the length bands of the default"),
        ("gemini/searches", "the tier priority: it does not price both input and output"),
        ("uneven", "cache_read_input_token_cost: a cache at no cost takes the plain input rate"),
        ("uneven", "in.audio: it is not priced in every tier and band"),
        ("uneven", "search_context_cost_per_query: a search costs what its context size says"),
    ];
    let mut left_out = reasons(&sample.left_out);
    left_out.sort_unstable();
    assert_eq!(left_out, expected);
    assert_eq!(sample.batch_prices, 2);
}

#[test]
fn the_text_is_a_catalog_that_says_the_same() {
    let sample = sample();
    let heading = Heading { file: "prices\n[[price]].json", sha256: "00", with_deployments: true };
    let text = to_toml(&sample.prices, heading);
    let surroundings =
        Surroundings { file: "prices.toml", shipped_prices: &[], admin_keys: &Default::default(), now_ms: 0 };
    let catalog = Catalog::from_toml(&text, surroundings).unwrap();
    let prices: Vec<PriceEntry> = sample.prices.iter().map(|one| one.price.clone()).collect();
    assert_eq!(catalog.prices.len(), prices.len());
    assert!(prices.iter().all(|price| catalog.prices.contains(price)));
    let hint = "# [[deployment]]\n# id = \"at-the-threshold@xai\"\n# provider = \"xai\"\n# model = \"at-the-threshold\"\n\
                # price = \"xai/at-the-threshold\"\n# max_output_tokens = 8192\n[[price]]\nname = \"xai/at-the-threshold\"\n";
    assert!(text.contains(hint), "{text}");
    let hostile =
        Imported { price: PriceEntry { name: "a\"\n\\b".to_owned(), ..entry("plain") }, ..sample.prices[0].clone() };
    let text = to_toml(std::slice::from_ref(&hostile), heading);
    assert_eq!(Catalog::from_toml(&text, surroundings).unwrap().prices, [hostile.price]);
}

#[test]
fn only_what_is_wanted_is_read() {
    let names = |providers: &[&str], models: &[&str]| {
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        let wanted = Wanted { providers: owned(providers), models: owned(models) };
        convert(SAMPLE, &wanted)
            .map(|found| found.prices.into_iter().map(|one| one.price.name).collect::<Vec<_>>())
            .map_err(|error| error.to_string())
    };
    assert_eq!(names(&["xai"], &[]).unwrap(), ["xai/at-the-threshold"]);
    assert_eq!(names(&[], &["writes-*"]).unwrap(), ["writes-of-12h", "writes-of-1h", "writes-of-any"]);
    assert_eq!(names(&["xai", "gemini"], &["*searches"]).unwrap(), ["gemini/searches"]);
    let nothing = names(&["nobody"], &[]).unwrap_err();
    assert!(nothing.contains("none that is asked for; it knows the providers openai, "), "{nothing}");
    for text in ["", "[]", "3", "{\"a\": "] {
        assert!(matches!(convert(text, &Wanted::default()), Err(LitellmError::NotAMap(_))), "{text}");
    }
}
