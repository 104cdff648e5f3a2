//! Any bytes as a request: refused by name, or read so that what is rewritten means what was reserved (I2).

use bytes::Bytes;
use weir_fuzz::{Fuzz, Mutator, Random, shape_of};
use weir_wire::openai::chat::{CapField, ChatFacts, ChatRequest, DeveloperRole, IncludeUsage, Limits, UpstreamEdits};

use crate::{WORDS, is_json, members, peak_mib};

#[test]
fn request() {
    let fuzz = Fuzz { name: "request", mutator: Mutator { words: WORDS, max_bytes: 16 * 1024 }, seeds: Vec::new() };
    fuzz.run(check);
    assert!(peak_mib() < 1_024, "{} MiB", peak_mib());
}

fn check(input: &[u8], random: &mut Random) -> u64 {
    let body = Bytes::copy_from_slice(input);
    let request = match ChatRequest::parse(body.clone(), &Limits::default()) {
        Ok(request) => request,
        Err(error) => {
            assert!(!error.message.is_empty());
            if let Some(position) = error.position {
                assert!(position.offset <= input.len(), "{position:?}");
            }
            return shape_of(&(error.code.name(), error.field));
        }
    };
    assert!(is_json(input), "read, though it is no JSON");
    assert_eq!(request.body(), &body);
    let facts = request.facts();
    assert!(facts.choices >= 1 && facts.cap_tokens.is_none_or(|cap| cap >= 1), "{facts:?}");
    for edits in edits(random) {
        check_rewrite(&request, &edits);
    }
    let caps = (facts.cap_tokens.is_some(), facts.choices > 1);
    shape_of(&(caps, facts.stream, facts.include_usage as u8, facts.tools.len().min(3), format!("{:?}", facts.needs)))
}

/// The edits of every kind of target, with numbers and names at random.
fn edits(random: &mut Random) -> Vec<UpstreamEdits<'static>> {
    let model = *random.pick(&["vendor/model", "m", "with \"quotes\" and \\", "ä\u{1}"]).unwrap();
    let field = if random.one_in(2) { CapField::MaxTokens } else { CapField::MaxCompletionTokens };
    let cap = Some((field, 1 + random.next() % u64::from(u32::MAX)));
    let plain = UpstreamEdits {
        model,
        cap: None,
        supports_stream_options: true,
        correlation: None,
        developer_role: DeveloperRole::Keep,
    };
    vec![
        plain,
        UpstreamEdits { cap, ..plain },
        UpstreamEdits { cap, supports_stream_options: false, developer_role: DeveloperRole::System, ..plain },
        UpstreamEdits { cap, correlation: Some(("gw_attempt", "r-1")), ..plain },
    ]
}

fn check_rewrite(request: &ChatRequest, edits: &UpstreamEdits<'_>) {
    let rewritten = request.rewrite(edits);
    assert_eq!(request.rewrite_parts(edits).concat(), rewritten, "in pieces and in one");
    let again = ChatRequest::parse(rewritten.clone(), &Limits::default())
        .unwrap_or_else(|error| panic!("{error:?}: {}", String::from_utf8_lossy(&rewritten)));
    assert_eq!(again.rewrite(edits), rewritten, "a rewrite is final");
    let (before, after) = (request.facts(), again.facts());
    let mut size = before.size;
    if edits.developer_role == DeveloperRole::System {
        // `system` is shorter than `developer`.
        assert!(after.size.text_bytes <= before.size.text_bytes);
        size.text_bytes = after.size.text_bytes;
    }
    let asks = before.stream && edits.supports_stream_options;
    let expected = ChatFacts {
        model: edits.model.to_owned(),
        cap_tokens: edits.cap.map_or(before.cap_tokens, |(_, tokens)| Some(tokens)),
        include_usage: if asks { IncludeUsage::True } else { IncludeUsage::Absent },
        size,
        ..before.clone()
    };
    assert_eq!(*after, expected);
    check_others(request.body(), &rewritten, edits);
}

/// Whatever Weir does not own is there as it was written, to the digit.
fn check_others(before: &[u8], after: &[u8], edits: &UpstreamEdits<'_>) {
    let (Some(mut before), Some(mut after)) = (members(before), members(after)) else { return };
    let caps = ["max_tokens", "max_completion_tokens"].map(|name| after.contains_key(name));
    if let Some((field, tokens)) = edits.cap {
        assert_eq!(
            caps,
            [field == CapField::MaxTokens, field == CapField::MaxCompletionTokens],
            "one cap, by its name"
        );
        assert_eq!(after[field.name()].get(), tokens.to_string());
    }
    let mut owned = vec!["model", "stream_options"];
    if edits.cap.is_some() {
        owned.extend(["max_tokens", "max_completion_tokens"]);
    }
    if edits.correlation.is_some() {
        owned.push("metadata");
    }
    if edits.developer_role == DeveloperRole::System {
        owned.push("messages");
    }
    for name in owned {
        before.remove(name);
        after.remove(name);
    }
    let text = |members: std::collections::BTreeMap<String, Box<serde_json::value::RawValue>>| {
        members.into_iter().map(|(name, value)| (name, value.get().to_owned())).collect::<Vec<_>>()
    };
    assert_eq!(text(after), text(before));
}
