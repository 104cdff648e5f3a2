//! Reports as the API gives them, and as it should not.

use super::*;

fn meters(extracted: &Extracted) -> Vec<(Meter, i64)> {
    let usage = extracted.usage.as_ref().expect("a usage");
    usage.readings().iter().map(|reading| (reading.meter, reading.quantity)).collect()
}

#[test]
fn o16_cache_writes_are_not_also_input() {
    let report =
        br#"{"input_tokens":3,"cache_creation_input_tokens":12304,"cache_read_input_tokens":0,"output_tokens":550}"#;
    let read = read_usage(Some(report), None);
    let expected = [(Meter::InUncached, 3), (Meter::InCacheWriteUnknown, 12304), (Meter::OutVisible, 550)];
    assert_eq!((meters(&read), read.flags), (expected.to_vec(), vec![]));
}

#[test]
fn o15_the_last_counts_replace_the_first() {
    let start = br#"{"input_tokens":25,"output_tokens":1}"#;
    let read = read_usage(Some(start), Some(br#"{"output_tokens":15,"input_tokens":null}"#));
    assert_eq!(meters(&read), [(Meter::InUncached, 25), (Meter::OutVisible, 15)]);
}

#[test]
fn the_split_by_lifetime_is_the_starts_and_what_outgrew_it_is_unknown() {
    let start = br#"{"input_tokens":21,"cache_creation_input_tokens":2000,
        "cache_creation":{"ephemeral_5m_input_tokens":1500,"ephemeral_1h_input_tokens":500},
        "cache_read_input_tokens":5000,"output_tokens":1,"service_tier":"standard"}"#;
    let delta =
        br#"{"output_tokens":73,"cache_creation_input_tokens":2100,"output_tokens_details":{"thinking_tokens":70},
        "server_tool_use":{"web_search_requests":2,"web_fetch_requests":1}}"#;
    let expected = [
        (Meter::InUncached, 21),
        (Meter::InCacheRead, 5000),
        (Meter::InCacheWrite5m, 1500),
        (Meter::InCacheWrite1h, 500),
        (Meter::InCacheWriteUnknown, 100),
        (Meter::OutVisible, 3),
        (Meter::OutReasoning, 70),
        (Meter::ToolWebSearch, 2),
        (Meter::ToolWebFetch, 1),
    ];
    assert_eq!(meters(&read_usage(Some(start), Some(delta))), expected);
}

#[test]
fn iterations_are_summed_unless_another_model_served_one() {
    let report = |iterations: &str| {
        format!(r#"{{"input_tokens":10,"output_tokens":5,"iterations":[{iterations}]}}"#).into_bytes()
    };
    let summed = report(
        r#"{"type":"compaction","input_tokens":100,"output_tokens":20},{"type":"message","input_tokens":10,"output_tokens":5}"#,
    );
    assert_eq!(meters(&read_usage(Some(&summed), None)), [(Meter::InUncached, 110), (Meter::OutVisible, 25)]);
    let foreign = report(r#"{"type":"fallback_message","model":"other","input_tokens":1,"output_tokens":1}"#);
    assert_eq!(read_usage(Some(&foreign), None).flags, [UsageFlag::ServedByAnotherModel]);
}

#[test]
fn i9_what_cannot_be_read_is_unknown_never_zero() {
    for (report, flag) in [
        (r#"{"input_tokens":0,"output_tokens":0}"#, UsageFlag::AllZero),
        (r#"{"output_tokens":3}"#, UsageFlag::Unreadable),
        (r#"{"input_tokens":3}"#, UsageFlag::Unreadable),
        (r#"{"input_tokens":-3,"output_tokens":3}"#, UsageFlag::Unreadable),
        (r#"{"input_tokens":3,"output_tokens":3,"cache_read_input_tokens":"5"}"#, UsageFlag::Unreadable),
        (r#"{"input_tokens":3,"output_tokens":"#, UsageFlag::Unreadable),
    ] {
        assert_eq!(read_usage(Some(report.as_bytes()), None), Extracted::unknown(flag), "{report}");
    }
    let odd = read_usage(
        Some(br#"{"input_tokens":3,"output_tokens":3,"output_tokens_details":{"thinking_tokens":9}}"#),
        None,
    );
    assert_eq!(odd.flags, [UsageFlag::OutputPartsExceedTotal]);
    assert_eq!(meters(&odd), [(Meter::InUncached, 3), (Meter::OutReasoning, 3)]);
}

#[test]
fn o20_the_served_tier_is_the_one_that_is_billed() {
    for (report, tier) in [
        (r#"{"service_tier":"priority"}"#, Some("priority")),
        (r#"{"service_tier":"standard","speed":"standard"}"#, Some("standard")),
        (r#"{"service_tier":"standard","speed":"fast"}"#, Some("fast")),
        (r#"{"service_tier":null}"#, None),
    ] {
        assert_eq!(served_tier(report.as_bytes()).as_deref(), tier, "{report}");
    }
}
