//! Reports as providers write them, and the meters they are.

use weir_domain::usage::Meter;

use super::*;
use Meter::{InAudio, InCacheRead, InCacheWrite30m, InUncached, OutAudio, OutReasoning, OutVisible};

fn read(object: &str) -> (Option<Vec<(Meter, i64)>>, Vec<UsageFlag>) {
    let extracted = read_usage(object.as_bytes());
    let readings = |usage: &Usage| usage.readings().iter().map(|reading| (reading.meter, reading.quantity)).collect();
    (extracted.usage.as_ref().map(readings), extracted.flags)
}

#[track_caller]
fn reads_as(object: &str, meters: &[(Meter, i64)], flags: &[UsageFlag]) {
    assert_eq!(read(object), (Some(meters.to_vec()), flags.to_vec()), "{object}");
}

#[test]
fn o17_cached_tokens_are_part_of_the_prompt() {
    reads_as(
        r#"{"prompt_tokens":20212,"completion_tokens":931,"total_tokens":21143,"prompt_tokens_details":{"cached_tokens":16298}}"#,
        &[(InUncached, 3914), (InCacheRead, 16298), (OutVisible, 931)],
        &[],
    );
}

#[test]
fn o17_more_cached_than_prompt_is_clamped_and_flagged() {
    reads_as(
        r#"{"prompt_tokens":10,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":12}}"#,
        &[(InCacheRead, 12), (OutVisible, 1)],
        &[UsageFlag::InputPartsExceedTotal],
    );
}

#[test]
fn o18_reasoning_is_inside_the_completion() {
    reads_as(
        r#"{"prompt_tokens":2008,"completion_tokens":266,"total_tokens":2274,"completion_tokens_details":{"reasoning_tokens":261}}"#,
        &[(InUncached, 2008), (OutVisible, 5), (OutReasoning, 261)],
        &[],
    );
}

#[test]
fn o19_reasoning_beside_the_completion_is_seen_from_the_total() {
    reads_as(
        r#"{"prompt_tokens":264,"completion_tokens":104,"total_tokens":1357,"completion_tokens_details":{"reasoning_tokens":989}}"#,
        &[(InUncached, 264), (OutVisible, 104), (OutReasoning, 989)],
        &[UsageFlag::ReasoningOutsideOutput],
    );
}

#[test]
fn every_meter_of_the_chat_api_is_disjoint() {
    reads_as(
        r#"{"prompt_tokens":1200,"completion_tokens":100,"total_tokens":1300,
            "prompt_tokens_details":{"cached_tokens":1000,"cache_write_tokens":50,"audio_tokens":30,"text_tokens":1170},
            "completion_tokens_details":{"reasoning_tokens":40,"audio_tokens":20,"accepted_prediction_tokens":0}}"#,
        &[
            (InUncached, 120),
            (InCacheRead, 1000),
            (InCacheWrite30m, 50),
            (InAudio, 30),
            (OutVisible, 40),
            (OutReasoning, 40),
            (OutAudio, 20),
        ],
        &[],
    );
}

#[test]
fn other_vendors_names_and_shapes() {
    reads_as(
        r#"{"prompt_tokens":30,"completion_tokens":2,"prompt_cache_hit_tokens":10,"prompt_cache_miss_tokens":20}"#,
        &[(InUncached, 20), (InCacheRead, 10), (OutVisible, 2)],
        &[],
    );
    reads_as(
        r#"{"prompt_tokens":7.0,"completion_tokens":1.00,"total_tokens":8,"prompt_tokens_details":null,"completion_tokens_details":null,"cost":0.1}"#,
        &[(InUncached, 7), (OutVisible, 1)],
        &[],
    );
    reads_as(
        r#"{"prompt_tokens":7,"completion_tokens":0,"total_tokens":9}"#,
        &[(InUncached, 7)],
        &[UsageFlag::TotalMismatch],
    );
    reads_as(
        r#"{"prompt_tokens":7,"completion_tokens":3,"completion_tokens_details":{"reasoning_tokens":5,"audio_tokens":1}}"#,
        &[(InUncached, 7), (OutReasoning, 2), (OutAudio, 1)],
        &[UsageFlag::OutputPartsExceedTotal],
    );
}

#[test]
fn i9_what_cannot_be_read_is_unknown_and_not_zero() {
    for (object, flag) in [
        (r#"{}"#, UsageFlag::Unreadable),
        (r#"{"prompt_tokens":5}"#, UsageFlag::Unreadable),
        (r#"{"prompt_tokens":null,"completion_tokens":3}"#, UsageFlag::Unreadable),
        (r#"{"prompt_tokens":-1,"completion_tokens":3}"#, UsageFlag::Unreadable),
        (r#"{"prompt_tokens":5,"completion_tokens":"3"}"#, UsageFlag::Unreadable),
        (r#"{"prompt_tokens":5,"completion_tokens":2.5}"#, UsageFlag::Unreadable),
        (r#"{"prompt_tokens":5,"completion_tokens":1e3}"#, UsageFlag::Unreadable),
        (r#"{"prompt_tokens":5,"completion_tokens":99999999999999999999}"#, UsageFlag::Unreadable),
        (r#"{"prompt_tokens":5,"completion_tokens":9999999999999}"#, UsageFlag::Unreadable),
        (
            r#"{"prompt_tokens":5,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":-4}}"#,
            UsageFlag::Unreadable,
        ),
        (r#"{"prompt_tokens":5,"completion_tok"#, UsageFlag::Unreadable),
        (r#"{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0}"#, UsageFlag::AllZero),
    ] {
        assert_eq!(read(object), (None, vec![flag]), "{object}");
    }
}

proptest::proptest! {
    #[test]
    fn the_meters_always_add_up_to_the_providers_totals_unless_flagged(
        prompt in 0i64..5_000, completion in 0i64..5_000, cached in 0i64..3_000, written in 0i64..3_000,
        audio_in in 0i64..3_000, reasoning in 0i64..3_000, audio_out in 0i64..3_000, total in proptest::option::of(0i64..9_000),
    ) {
        let total = total.map_or(String::from("null"), |total| total.to_string());
        let object = format!(
            r#"{{"prompt_tokens":{prompt},"completion_tokens":{completion},"total_tokens":{total},
            "prompt_tokens_details":{{"cached_tokens":{cached},"cache_write_tokens":{written},"audio_tokens":{audio_in}}},
            "completion_tokens_details":{{"reasoning_tokens":{reasoning},"audio_tokens":{audio_out}}}}}"#
        );
        let extracted = read_usage(object.as_bytes());
        if let Some(usage) = extracted.usage {
            if cached + written <= prompt {
                proptest::prop_assert_eq!(usage.input_tokens(), prompt);
            }
            let is_outside = extracted.flags.contains(&UsageFlag::ReasoningOutsideOutput);
            let output = completion + if is_outside { reasoning } else { 0 };
            proptest::prop_assert_eq!(usage.output_tokens(), output);
        }
    }
}
