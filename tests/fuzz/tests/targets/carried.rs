//! Any bytes as a request or plain answer of every dialect, for a target or client of every other: refused by name, or
//! carried as JSON that the other side reads.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde_json::value::RawValue;
use weir_fuzz::{Fuzz, Mutator, Random, shape_of};
use weir_wire::Dialect::{self, AnthropicMessages, OpenAiChat, OpenAiEmbeddings, OpenAiResponses};
use weir_wire::anthropic::AnthropicVersion;
use weir_wire::anthropic::messages::TokenCount;
use weir_wire::openai::chat::{CapField, DeveloperRole, Limits};
use weir_wire::{ClientRequest, ClientSide, Family, ProviderAnswer, Target};

use crate::{WORDS, is_json, members, peak_mib};

const DIALECTS: [Dialect; 4] = [OpenAiChat, AnthropicMessages, OpenAiResponses, OpenAiEmbeddings];

#[test]
fn carried_requests() {
    let fuzz = Fuzz { name: "carried", mutator: Mutator { words: WORDS, max_bytes: 16 * 1024 }, seeds: Vec::new() };
    fuzz.run(check_request);
    assert!(peak_mib() < 1_024, "{} MiB", peak_mib());
}

#[test]
fn carried_answers() {
    let fuzz =
        Fuzz { name: "carried_answer", mutator: Mutator { words: WORDS, max_bytes: 16 * 1024 }, seeds: Vec::new() };
    fuzz.run(check_answer);
    assert!(peak_mib() < 1_024, "{} MiB", peak_mib());
}

fn check_request(input: &[u8], random: &mut Random) -> u64 {
    let dialect = *random.pick(&DIALECTS).unwrap();
    let family = if random.one_in(2) { Family::OpenAi } else { Family::Anthropic };
    let version = if random.one_in(4) { AnthropicVersion::V2026_10_21 } else { AnthropicVersion::V2023_06_01 };
    let body = Bytes::copy_from_slice(input);
    let request = match ClientRequest::parse(dialect, body, &Limits::default(), version) {
        Ok(request) => request,
        Err(error) => {
            assert!(!error.message.is_empty());
            return shape_of(&(dialect, error.code.name(), error.field));
        }
    };
    assert!(is_json(input), "read, though it is no JSON");
    let facts = request.facts();
    assert!(facts.choices >= 1 && facts.size.text_bytes <= 2 * input.len() as u64, "{facts:?}");
    let Some(spoken) = dialect.towards(family) else { return shape_of(&(dialect, "no way")) };
    let target = Target {
        dialect: spoken,
        model: "vendor/model",
        cap: facts.cap_tokens.filter(|cap| *cap > 0).or(Some(77)),
        cap_field: CapField::MaxTokens,
        supports_stream_options: random.one_in(2),
        correlation: None,
        developer_role: DeveloperRole::Keep,
        version,
    };
    match request.for_target(&target) {
        Err(error) => {
            assert!(!error.message.is_empty());
            // Which part of a message it was says little; which member says enough.
            let member: String = error.field.chars().filter(|character| !character.is_ascii_digit()).take(64).collect();
            shape_of(&(dialect, spoken, member))
        }
        Ok(upstream) => {
            assert!(is_json(&upstream.body()), "{}", String::from_utf8_lossy(&upstream.body()));
            let again = ClientRequest::parse(spoken, upstream.body(), &Limits::default(), version);
            let again = again.unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&upstream.body())));
            let after = again.facts();
            assert_eq!((after.model.as_str(), after.stream), ("vendor/model", facts.stream));
            if spoken != OpenAiEmbeddings {
                assert_eq!(after.cap_tokens, target.cap, "one cap, the one in force");
            }
            if dialect == spoken {
                check_passed(spoken, input, &upstream.body());
            } else {
                assert_eq!(
                    (after.tools.len(), after.size.images),
                    (facts.tools.len(), facts.size.images),
                    "nothing is lost"
                );
            }
            shape_of(&(dialect, spoken, after.tools.len().min(3), after.size.images.min(2), upstream.left_out))
        }
    }
}

/// To a target of the client's own dialect everything goes as it was written, to the digit, but what the gateway owns.
fn check_passed(dialect: Dialect, before: &[u8], after: &[u8]) {
    let owned: &[&str] = match dialect {
        OpenAiChat => &["model", "max_tokens", "max_completion_tokens", "stream_options"],
        AnthropicMessages => &["model", "max_tokens"],
        OpenAiResponses => &["model", "max_output_tokens", "previous_response_id"],
        OpenAiEmbeddings => &["model"],
    };
    let (Some(mut before), Some(mut after)) = (members(before), members(after)) else { return };
    for name in owned {
        before.remove(*name);
        after.remove(*name);
    }
    let texts = |members: &BTreeMap<String, Box<RawValue>>| -> Vec<(String, String)> {
        members.iter().map(|(name, value)| (name.clone(), value.get().to_owned())).collect()
    };
    assert_eq!(texts(&after), texts(&before), "{dialect:?}");
}

fn check_answer(input: &[u8], random: &mut Random) -> u64 {
    let _count = TokenCount::parse(input);
    let dialect = *random.pick(&DIALECTS).unwrap();
    let client = *random.pick(&DIALECTS).unwrap();
    let answer = match ProviderAnswer::parse(dialect, Bytes::copy_from_slice(input)) {
        Ok(answer) => answer,
        Err(error) => return shape_of(&(dialect, format!("{:?}", error.fault))),
    };
    let usage = answer.usage();
    if let Some(usage) = usage.as_ref().and_then(|extracted| extracted.usage.as_ref()) {
        assert!(usage.input_tokens() >= 0 && usage.output_tokens() >= 0, "{usage:?}");
    }
    let facts = (answer.error(), answer.is_answer(), answer.finish(), answer.response_id(), answer.served_tier());
    let side =
        ClientSide { dialect: client, alias: "alias", fallback_id: "id-1", wants_usage: true, created_s: 7, ids: None };
    let given = answer.for_client(&side);
    if let Ok(given) = &given {
        let text = String::from_utf8_lossy(given);
        assert!(std::str::from_utf8(input).is_err() || is_json(given), "{text}");
        let again = ProviderAnswer::parse(client, given.clone()).unwrap_or_else(|error| panic!("{error}: {text}"));
        let tokens = |answer: &ProviderAnswer| {
            answer
                .usage()
                .and_then(|extracted| extracted.usage)
                .map(|usage| (usage.input_tokens(), usage.output_tokens()))
        };
        // An Anthropic client is told zeros of an unknown usage; everything known is told.
        if tokens(&answer).is_some() {
            assert_eq!(tokens(&again), tokens(&answer), "{text}");
        }
    }
    shape_of(&(dialect, client, facts.0.is_some(), facts.1, facts.2.map(|f| f.name()), usage.is_some(), given.is_ok()))
}
