//! Any bytes in any pieces as an event stream: the same events, the same facts, the same answer to the client (I4).

use bytes::{Bytes, BytesMut};
use weir_fuzz::{Fuzz, Mutator, Random, shape_of};
use weir_wire::openai::chat::stream::StreamStep;
use weir_wire::openai::chat::{StreamEditor, StreamReader};
use weir_wire::sse::{Decoder, Event, EventKind, SseError};

use crate::{WORDS, peak_mib, pieces};

const ALIAS: &str = "the \"alias\"";

#[test]
fn stream() {
    let fuzz = Fuzz { name: "stream", mutator: Mutator { words: WORDS, max_bytes: 8 * 1024 }, seeds: Vec::new() };
    fuzz.run(check);
    assert!(peak_mib() < 1_024, "{} MiB", peak_mib());
}

/// Everything that came of a stream.
#[derive(Debug, PartialEq)]
struct Read {
    events: Vec<Event>,
    steps: Vec<StreamStep>,
    failed: Option<SseError>,
    last: Option<Event>,
    client: Vec<u8>,
    content_chunks: u64,
}

fn check(input: &[u8], random: &mut Random) -> u64 {
    // Sometimes a bound that the input meets.
    let max_event_bytes = if random.one_in(4) { 1 + random.below(input.len().max(1) * 2) } else { 1 << 20 };
    let wants_usage = random.one_in(2);
    let choices = 1 + u32::from(random.one_in(4));
    let whole = read(&[Bytes::copy_from_slice(input)], max_event_bytes, wants_usage, choices);
    let bytewise: Vec<Bytes> = input.chunks(1).map(Bytes::copy_from_slice).collect();
    for pieces in [bytewise, pieces(input, random), pieces(input, random)] {
        assert_eq!(read(&pieces, max_event_bytes, wants_usage, choices), whole, "read boundaries carry no meaning");
    }
    if whole.failed.is_none() {
        check_against_the_grammar(input, &whole);
    }
    check_client(&whole, wants_usage);
    let kinds: Vec<u8> = whole.steps.iter().take(6).map(kind_of).collect();
    let framing = whole.events.first().map(|event| (event.kind as u8, event.plain_at, event.name.is_empty()));
    shape_of(&(kinds, framing, whole.failed.is_some(), whole.last.is_some(), whole.content_chunks.min(3)))
}

fn kind_of(step: &StreamStep) -> u8 {
    match step {
        StreamStep::Quiet => 0,
        StreamStep::Chunk(facts) => 10 + u8::from(facts.content) + 2 * u8::from(facts.usage.is_some()),
        StreamStep::Error(_) => 1,
        StreamStep::Done => 2,
        StreamStep::Garbage(_) => 3,
    }
}

fn read(pieces: &[Bytes], max_event_bytes: usize, wants_usage: bool, choices: u32) -> Read {
    let mut decoder = Decoder::new(max_event_bytes);
    let mut reader = StreamReader::new(choices);
    let mut editor = StreamEditor::new(ALIAS, "fallback", wants_usage);
    let mut out = BytesMut::new();
    let mut read =
        Read { events: Vec::new(), steps: Vec::new(), failed: None, last: None, client: Vec::new(), content_chunks: 0 };
    'pieces: for piece in pieces {
        decoder.push(piece.clone());
        loop {
            match decoder.next_event() {
                Ok(Some(event)) => {
                    let step = reader.feed(&event);
                    if let StreamStep::Chunk(facts) = &step {
                        editor.edit(&event, facts, &mut out);
                    }
                    read.steps.push(step);
                    read.events.push(event);
                }
                Ok(None) => break,
                Err(error) => {
                    read.failed = Some(error);
                    break 'pieces;
                }
            }
        }
        assert!(decoder.held_bytes() <= max_event_bytes, "{} bytes are held", decoder.held_bytes());
    }
    // Whatever was seen can be asked for.
    let _facts = (reader.usage(), reader.response_id(), reader.served_tier(), reader.served_model(), reader.state());
    read.last = decoder.finish();
    read.content_chunks = editor.content_chunks();
    read.client = out.to_vec();
    read
}

/// The grammar of the standard, read line by line without any cleverness.
fn check_against_the_grammar(input: &[u8], read: &Read) {
    let text = input.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(input);
    let mut expected = Vec::new();
    let (mut data, mut name, mut lines) = (Vec::<Vec<u8>>::new(), Vec::new(), 0);
    let mut rest = text;
    while let Some(end) = rest.iter().position(|byte| *byte == b'\r' || *byte == b'\n') {
        let line = &rest[..end];
        let width = if rest[end..].starts_with(b"\r\n") { 2 } else { 1 };
        rest = &rest[end + width..];
        if line.is_empty() {
            if lines > 0 {
                expected.push((std::mem::take(&mut data).join(&b'\n'), std::mem::take(&mut name)));
            }
            lines = 0;
            continue;
        }
        lines += 1;
        let (field, value) = match line.iter().position(|byte| *byte == b':') {
            Some(colon) => (&line[..colon], &line[colon + 1..]),
            None => (line, &b""[..]),
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match field {
            b"data" => data.push(value.to_vec()),
            b"event" => name = value.to_vec(),
            _ => {}
        }
    }
    let found: Vec<_> = read.events.iter().map(|event| (event.data.to_vec(), event.name.to_vec())).collect();
    assert_eq!(found, expected);
}

/// What the client gets is plain events of JSON under its own names.
fn check_client(read: &Read, wants_usage: bool) {
    let mut decoder = Decoder::new(usize::MAX);
    decoder.push(Bytes::from(read.client.clone()));
    let mut ids = Vec::new();
    while let Some(event) = decoder.next_event().unwrap() {
        assert_eq!(event.kind, EventKind::Data);
        assert!(event.name.is_empty());
        let step = StreamReader::new(1).feed(&event);
        let StreamStep::Chunk(facts) = step else { panic!("{step:?}: {}", String::from_utf8_lossy(&event.data)) };
        if facts.is_empty {
            continue;
        }
        let text = |span: weir_wire::json::Span| span.of(&event.data).to_vec();
        assert_eq!(facts.model.map(text), Some(br#""the \"alias\"""#.to_vec()), "the alias in every chunk");
        ids.push(facts.id.map(text).expect("every chunk has an id"));
        assert!(wants_usage || facts.usage.is_none(), "usage is hidden from who did not ask");
    }
    assert!(decoder.finish().is_none(), "the client's stream ends with whole events");
    assert!(ids.windows(2).all(|pair| pair[0] == pair[1]), "one id in all chunks");
    let given: usize = read.events.iter().map(|event| event.raw.len()).sum();
    // An empty data line of 5 bytes becomes one of 7; ids and aliases are short here, or come with the stream itself.
    let longest_id = ids.iter().map(Vec::len).max().unwrap_or(0);
    assert!(read.client.len() <= 2 * given + read.events.len() * (100 + longest_id), "{}", read.client.len());
}
