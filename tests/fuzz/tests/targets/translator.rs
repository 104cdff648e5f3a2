//! Any bytes in any pieces through a translator of every pair: the same steps, the same output, whole events for the
//! client, one end at most (I4).

use bytes::{Bytes, BytesMut};
use weir_fuzz::{Fuzz, Mutator, Random, shape_of};
use weir_wire::Dialect::{self, AnthropicMessages, OpenAiChat, OpenAiResponses};
use weir_wire::envelope::ClientError;
use weir_wire::sse::{Decoder, EventKind};
use weir_wire::{ClientSide, ProviderSide, Step, StreamFacts, Translator};

use crate::{WORDS, is_json, peak_mib, pieces};

const PAIRS: [(Dialect, Dialect); 5] = [
    (OpenAiChat, OpenAiChat),
    (AnthropicMessages, AnthropicMessages),
    (OpenAiResponses, OpenAiResponses),
    (OpenAiChat, AnthropicMessages),
    (AnthropicMessages, OpenAiChat),
];

const ALIAS: &str = "the \"alias\"";
const FALLBACK_ID: &str = "id-1";

#[test]
fn translator() {
    let fuzz = Fuzz { name: "translator", mutator: Mutator { words: WORDS, max_bytes: 8 * 1024 }, seeds: Vec::new() };
    fuzz.run(check);
    assert!(peak_mib() < 1_024, "{} MiB", peak_mib());
}

/// Everything that came of a stream.
#[derive(Debug, PartialEq)]
struct Passed {
    steps: Vec<Step>,
    facts: StreamFacts,
    client: Vec<u8>,
    is_whole: bool,
}

fn check(input: &[u8], random: &mut Random) -> u64 {
    let (provider, client) = *random.pick(&PAIRS).unwrap();
    let max_event_bytes = if random.one_in(4) { 1 + random.below(input.len().max(1) * 2) } else { 1 << 20 };
    let wants_usage = random.one_in(2);
    let provider = ProviderSide { dialect: provider, choices: 1, max_event_bytes };
    let client =
        ClientSide { dialect: client, alias: ALIAS, fallback_id: FALLBACK_ID, wants_usage, created_s: 7, ids: None };
    let whole = pass(&provider, &client, &[Bytes::copy_from_slice(input)]);
    let bytewise: Vec<Bytes> = input.chunks(1).map(Bytes::copy_from_slice).collect();
    for pieces in [bytewise, pieces(input, random), pieces(input, random)] {
        assert_eq!(pass(&provider, &client, &pieces), whole, "read boundaries carry no meaning");
    }
    check_client(&whole, client.dialect, input.len());
    if provider.dialect == client.dialect && client.dialect != OpenAiChat {
        check_passed(input, &whole, max_event_bytes);
    }
    let kinds: Vec<u8> = whole.steps.iter().take(8).map(kind_of).collect();
    let usage = whole.facts.usage.as_ref().map(|extracted| extracted.usage.is_some());
    shape_of(&(provider.dialect, client.dialect, kinds, usage, whole.is_whole, whole.facts.chunks_delivered.min(3)))
}

fn kind_of(step: &Step) -> u8 {
    match step {
        Step::Quiet => 0,
        Step::Event { content } => 1 + u8::from(*content),
        Step::End => 3,
        Step::Error(_) => 4,
        Step::Garbage(_) => 5,
    }
}

fn pass(provider: &ProviderSide, client: &ClientSide<'_>, pieces: &[Bytes]) -> Passed {
    let mut stream = Translator::new(provider, client).unwrap();
    let (mut out, mut steps) = (BytesMut::new(), Vec::new());
    let is_final = |step: &Step| matches!(step, Step::Error(_) | Step::Garbage(_));
    'pieces: for piece in pieces {
        stream.push(piece.clone());
        while let Some(step) = stream.next_step(&mut out) {
            let ends = is_final(&step);
            steps.push(step);
            if ends {
                break 'pieces;
            }
        }
        assert!(stream.held_bytes() <= provider.max_event_bytes, "{} bytes are held", stream.held_bytes());
    }
    if !steps.last().is_some_and(is_final) {
        steps.extend(stream.close(&mut out));
    }
    let is_whole = stream.is_complete() && !steps.last().is_some_and(is_final);
    if is_whole {
        stream.finish(&mut out);
        stream.finish(&mut out);
    } else {
        stream.fail(&ClientError::new("stream_error", "broke", "It broke."), "transport_error", "r-1", &mut out);
    }
    Passed { steps, facts: stream.facts(), client: out.to_vec(), is_whole }
}

/// Within one dialect the client's events are the provider's, byte for byte and in their order; some may be left out, one
/// may be added at the end. Those that name the model name the alias instead.
fn check_passed(input: &[u8], passed: &Passed, max_event_bytes: usize) {
    let mut given = datas(input, max_event_bytes).into_iter();
    let clients = datas(&passed.client, usize::MAX);
    for (place, data) in clients.iter().enumerate() {
        let is_passed = given.by_ref().any(|provided| provided == *data || with_the_alias(&provided, data));
        let is_own_end = place + 1 == clients.len();
        assert!(is_passed || is_own_end, "no event of the provider's: {}", String::from_utf8_lossy(data));
    }
}

/// What the events carry, up to the first that cannot be read.
fn datas(bytes: &[u8], max_event_bytes: usize) -> Vec<Bytes> {
    let mut decoder = Decoder::new(max_event_bytes);
    decoder.push(Bytes::copy_from_slice(bytes));
    let mut datas = Vec::new();
    while let Ok(Some(event)) = decoder.next_event() {
        datas.push(event.data);
    }
    datas.extend(decoder.finish().map(|event| event.data));
    datas
}

/// Whether the client's event is the provider's with the alias in the place of one value, or as one member more.
fn with_the_alias(provided: &[u8], client: &[u8]) -> bool {
    const QUOTED: &[u8] = br#""the \"alias\"""#;
    const NAME: &[u8] = b"\"model\":";
    let frames = |before: &[u8], after: &[u8]| {
        before.len() + after.len() <= provided.len() && provided.starts_with(before) && provided.ends_with(after)
    };
    let places = (0..client.len()).filter(|at| client[*at..].starts_with(QUOTED));
    places.map(|at| (&client[..at], &client[at + QUOTED.len()..])).any(|(before, after)| {
        let is_added = || {
            let before = before.strip_suffix(NAME);
            before.is_some_and(|before| [before, after.strip_prefix(b",").unwrap_or(after)].concat() == provided)
        };
        frames(before, after) || is_added()
    })
}

/// What the client gets is whole events of JSON, named where its dialect names them, with one end or one error, last.
fn check_client(passed: &Passed, client: Dialect, given: usize) {
    let mut decoder = Decoder::new(usize::MAX);
    decoder.push(Bytes::from(passed.client.clone()));
    let (mut events, mut ends) = (0, 0);
    while let Some(event) = decoder.next_event().unwrap() {
        events += 1;
        assert_eq!(event.kind, EventKind::Data);
        let is_end = match client {
            OpenAiChat => event.data.as_ref() == b"[DONE]",
            AnthropicMessages => event.name.as_ref() == b"message_stop",
            OpenAiResponses => matches!(event.name.as_ref(), b"response.completed" | b"response.incomplete"),
            Dialect::OpenAiEmbeddings => unreachable!("it has no streams"),
        };
        ends += u64::from(is_end);
        assert!((is_end && client == OpenAiChat) || is_json(&event.data), "{}", String::from_utf8_lossy(&event.data));
        assert!(client != OpenAiChat || event.name.is_empty());
    }
    assert!(decoder.finish().is_none(), "the client's stream ends with whole events");
    assert_eq!(ends, u64::from(passed.is_whole), "one end of a whole answer, none of another");
    // Twice the bytes and a kilobyte an event, as documented; an event can cost the provider a dozen bytes.
    assert!(passed.client.len() <= 2 * given + 1_024 * (passed.steps.len() + 4), "{events} of {}", passed.client.len());
}
