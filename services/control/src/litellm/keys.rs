//! What the keys of a model in LiteLLM's price map mean.
//!
//! A price key is a base and modifiers in no fixed order: `cache_read_input_token_cost` `_above_272k_tokens` `_flex`. A
//! key that speaks of money and is not known here refuses its model: it may be a charge that nobody would make.

/// What a rate is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Column {
    Input,
    CacheRead,
    /// Of the lifetime that the provider gives unasked.
    CacheWrite,
    CacheWrite1h,
    CacheWrite12h,
    AudioInput,
    ImageInput,
    Output,
    Reasoning,
    AudioOutput,
    ImageOutput,
}

/// The processing that a rate is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Tier {
    Default,
    Flex,
    Priority,
}

/// Which rates of a model: its tier, and above how many input tokens; 0 without a threshold.
pub(super) type Place = (Tier, i64);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Key {
    Rate(Column, Place),
    Batch,
    /// One object or list of several rates.
    WebSearch,
    CodeSession,
    Bands,
    /// Not said by an entry; requests that need it are refused.
    LeftOut(&'static str),
    /// It changes what plain text costs.
    Refuses(&'static str),
    Unknown,
    NoPrice,
}

const BASES: &[(&str, Column)] = &[
    ("input_cost_per_token", Column::Input),
    ("cache_read_input_token_cost", Column::CacheRead),
    ("cache_creation_input_token_cost", Column::CacheWrite),
    ("input_cost_per_audio_token", Column::AudioInput),
    ("input_cost_per_image_token", Column::ImageInput),
    ("output_cost_per_token", Column::Output),
    ("output_cost_per_reasoning_token", Column::Reasoning),
    ("output_cost_per_audio_token", Column::AudioOutput),
    ("output_cost_per_image_token", Column::ImageOutput),
];

const OTHER_PLACE: &str = "a surcharge of some regions or endpoints";
const OTHER_TOOL: &str = "a tool that has no meter";
const MEDIA: &str = "pictures, sound and video by other units than tokens";
const CACHED_MEDIA: &str = "cached sound and pictures have no meter of their own";

/// By how a key begins; the first that fits counts.
const OTHERS: &[(&str, Key)] = &[
    ("input_cost_per_token_cache_hit", Key::Rate(Column::CacheRead, (Tier::Default, 0))),
    ("search_context_cost_per_query", Key::WebSearch),
    ("code_interpreter_cost_per_session", Key::CodeSession),
    ("tiered_pricing", Key::Bands),
    ("off_peak_pricing", Key::Refuses("its price depends on the time of day")),
    ("input_cost_per_request", Key::Refuses("every request costs something beside its tokens")),
    ("input_cost_per_query", Key::Refuses("every request costs something beside its tokens")),
    ("input_cost_per_text_message", Key::Refuses("every request costs something beside its tokens")),
    ("citation_cost_per_token", Key::Refuses("citations cost something beside the output")),
    ("input_cost_per_character", Key::Refuses("it is billed by characters")),
    ("output_cost_per_character", Key::Refuses("it is billed by characters")),
    ("input_cost_per_second", Key::Refuses("it is billed by time")),
    ("output_cost_per_second", Key::Refuses("it is billed by time")),
    ("cost_per_second", Key::Refuses("it is billed by time")),
    ("explicit_cache_read_input_token_cost", Key::LeftOut("reads of explicit caches have no meter of their own")),
    ("cache_read_input_audio_token_cost", Key::LeftOut(CACHED_MEDIA)),
    ("cache_read_input_image_token_cost", Key::LeftOut(CACHED_MEDIA)),
    ("cache_creation_input_audio_token_cost", Key::LeftOut(CACHED_MEDIA)),
    ("input_cost_per_image", Key::LeftOut(MEDIA)),
    ("output_cost_per_image", Key::LeftOut(MEDIA)),
    ("input_cost_per_audio_per_second", Key::LeftOut(MEDIA)),
    ("input_cost_per_video", Key::LeftOut(MEDIA)),
    ("output_cost_per_video", Key::LeftOut(MEDIA)),
    ("input_cost_per_pixel", Key::LeftOut(MEDIA)),
    ("output_cost_per_pixel", Key::LeftOut(MEDIA)),
    ("ocr_cost_per_", Key::LeftOut(OTHER_TOOL)),
    ("annotation_cost_per_", Key::LeftOut(OTHER_TOOL)),
    ("file_search_cost_per_", Key::LeftOut(OTHER_TOOL)),
    ("vector_store_cost_per_", Key::LeftOut(OTHER_TOOL)),
    ("computer_use_", Key::LeftOut(OTHER_TOOL)),
    ("google_maps_grounding_cost_per_query", Key::LeftOut(OTHER_TOOL)),
    ("guardrail_cost_per_unit", Key::LeftOut(OTHER_TOOL)),
    ("fedramp_uplift_multiplier", Key::LeftOut(OTHER_PLACE)),
    ("regional_processing_uplift_multiplier", Key::LeftOut(OTHER_PLACE)),
    ("regional_endpoint_uplift_multiplier", Key::LeftOut(OTHER_PLACE)),
    ("provider_specific_entry", Key::LeftOut("surcharges by the provider's own switches")),
    // The same price in Databricks' own unit.
    ("input_dbu_cost_per_token", Key::NoPrice),
    ("output_dbu_cost_per_token", Key::NoPrice),
];

impl Key {
    pub fn of(key: &str) -> Self {
        let rate = BASES.iter().find_map(|(base, column)| modified(*column, key.strip_prefix(base)?));
        if let Some(rate) = rate {
            return rate;
        }
        if let Some((_, known)) = OTHERS.iter().find(|(start, _)| key.starts_with(start)) {
            return known.clone();
        }
        let speaks_of_money = ["cost", "price", "pricing", "multiplier", "uplift", "surcharge", "fee"];
        let is_money = key.split('_').any(|word| speaks_of_money.contains(&word.trim_end_matches('s')));
        if is_money { Self::Unknown } else { Self::NoPrice }
    }
}

/// `None` where `rest` is not made of modifiers.
fn modified(column: Column, rest: &str) -> Option<Key> {
    let (mut column, mut tier, mut threshold) = (column, Tier::Default, 0);
    let (mut is_batch, mut is_other_tier) = (false, false);
    let mut rest = rest;
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix("_above_") {
            let (bound, after) = match after.find('_') {
                Some(end) => after.split_at(end),
                None => (after, ""),
            };
            rest = after;
            match (bound, column) {
                ("1hr", Column::CacheWrite) => column = Column::CacheWrite1h,
                ("12hr", Column::CacheWrite) => column = Column::CacheWrite12h,
                _ => {
                    threshold = bound.strip_suffix('k')?.parse::<i64>().ok()?.checked_mul(1_000)?;
                    rest = rest.strip_prefix("_tokens")?;
                }
            }
            continue;
        }
        let word = rest.strip_prefix('_')?;
        let (word, after) = word.find('_').map_or((word, ""), |end| word.split_at(end));
        match word {
            "priority" => tier = Tier::Priority,
            "flex" => tier = Tier::Flex,
            "batches" => is_batch = true,
            "balanced" | "ultrafast" | "decisions" => is_other_tier = true,
            _ => return None,
        }
        rest = after;
    }
    Some(match (is_batch, is_other_tier) {
        (true, _) => Key::Batch,
        (false, true) => Key::LeftOut("a tier that no account serves unasked"),
        (false, false) => Key::Rate(column, (tier, threshold)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_a_base_and_modifiers_in_any_order() {
        use Column as C;
        for (key, expected) in [
            ("input_cost_per_token", Key::Rate(C::Input, (Tier::Default, 0))),
            ("output_cost_per_token_above_272k_tokens_flex", Key::Rate(C::Output, (Tier::Flex, 272_000))),
            ("output_cost_per_token_flex_above_272k_tokens", Key::Rate(C::Output, (Tier::Flex, 272_000))),
            ("cache_creation_input_token_cost", Key::Rate(C::CacheWrite, (Tier::Default, 0))),
            ("cache_creation_input_token_cost_above_1hr", Key::Rate(C::CacheWrite1h, (Tier::Default, 0))),
            (
                "cache_creation_input_token_cost_above_12hr_above_272k_tokens_priority",
                Key::Rate(C::CacheWrite12h, (Tier::Priority, 272_000)),
            ),
            ("input_cost_per_token_cache_hit", Key::Rate(C::CacheRead, (Tier::Default, 0))),
            ("input_cost_per_token_above_200k_tokens_batches", Key::Batch),
            ("input_cost_per_image_token", Key::Rate(C::ImageInput, (Tier::Default, 0))),
            ("input_cost_per_image", Key::LeftOut(MEDIA)),
            ("max_input_tokens", Key::NoPrice),
            ("supports_prompt_caching", Key::NoPrice),
            ("input_cost_per_token_above_some_tokens", Key::Unknown),
            ("input_cost_per_token_lunar", Key::Unknown),
            ("weekend_surcharge", Key::Unknown),
            ("fees", Key::Unknown),
        ] {
            assert_eq!(Key::of(key), expected, "{key}");
        }
        assert!(matches!(Key::of("input_cost_per_token_ultrafast"), Key::LeftOut(_)));
        assert!(matches!(Key::of("off_peak_pricing"), Key::Refuses(_)));
    }
}
