//! Any bytes as a plain answer: garbage by name, or an answer that the client gets under its alias and otherwise as it
//! came.

use bytes::Bytes;
use weir_fuzz::{Fuzz, Mutator, Random, shape_of};
use weir_wire::Dialect;
use weir_wire::envelope::{Redaction, relayed_error};
use weir_wire::openai::chat::{InBandError, PlainAnswer};
use weir_wire::verdict::{Happening, ProviderRows, judge};

use crate::{WORDS, is_json, members, peak_mib};

#[test]
fn answer() {
    let fuzz = Fuzz { name: "answer", mutator: Mutator { words: WORDS, max_bytes: 16 * 1024 }, seeds: Vec::new() };
    fuzz.run(check);
    assert!(peak_mib() < 1_024, "{} MiB", peak_mib());
}

fn check(input: &[u8], random: &mut Random) -> u64 {
    let body = Bytes::copy_from_slice(input);
    check_as_error(input, random);
    let answer = match PlainAnswer::parse(body) {
        Ok(answer) => answer,
        Err(error) => return shape_of(&format!("{:?}", error.fault)),
    };
    assert!(is_json(input), "read, though it is no JSON");
    let usage = answer.usage();
    if let Some(usage) = usage.as_ref().and_then(|extracted| extracted.usage.as_ref()) {
        assert!(usage.tokens() >= 0 && usage.input_tokens() >= 0, "{usage:?}");
    }
    let client = answer.for_client("alias");
    let again = PlainAnswer::parse(client.clone()).expect("the client's form is an answer");
    assert_eq!(again.for_client("alias"), client, "an edit is final");
    if !answer.facts().is_empty {
        assert_eq!(again.served_model().as_deref(), Some("alias"));
    }
    assert_eq!(
        (again.usage(), again.finish(), again.response_id()),
        (answer.usage(), answer.finish(), answer.response_id())
    );
    if let (Some(mut before), Some(mut after)) = (members(input), members(&client)) {
        before.remove("model");
        after.remove("model");
        assert!(before.iter().map(|(k, v)| (k, v.get())).eq(after.iter().map(|(k, v)| (k, v.get()))));
    }
    let choices = answer.facts().choices.iter().count().min(3);
    shape_of(&(usage.is_some(), answer.error().is_some(), answer.finish().map(|f| f.name()), choices))
}

/// The same bytes as the body of an error answer.
fn check_as_error(input: &[u8], random: &mut Random) {
    let status = *random.pick(&[400u16, 401, 403, 404, 408, 413, 422, 429, 500, 502, 503, 504, 529]).unwrap();
    let rows = if random.one_in(2) { ProviderRows::Plain } else { ProviderRows::AzureOpenAi };
    let judged = judge(Dialect::OpenAiChat, rows, &Happening::Status { status, body: input, retry_after: None });
    assert!((400..600).contains(&judged.client_status), "{judged:?}");
    let redaction = Redaction { upstream_model: "vendor/model", alias: "alias", hidden: &[] };
    let _relayed = relayed_error(status, input, &redaction);
    let _read = (InBandError::of_body(input), InBandError::read(input));
}
