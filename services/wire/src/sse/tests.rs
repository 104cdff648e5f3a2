//! The grammar, case by case, and the promise that read boundaries carry no meaning.

use bytes::Bytes;
use proptest::prelude::*;

use super::*;

const PLENTY: usize = 1 << 20;

fn decode(pieces: &[&[u8]], limit: usize) -> (Vec<Event>, Option<SseError>) {
    let mut decoder = Decoder::new(limit);
    let mut events = Vec::new();
    for piece in pieces {
        decoder.push(Bytes::copy_from_slice(piece));
        loop {
            match decoder.next_event() {
                Ok(Some(event)) => events.push(event),
                Ok(None) => break,
                Err(error) => return (events, Some(error)),
            }
        }
    }
    events.extend(decoder.finish());
    (events, None)
}

fn data_of(pieces: &[&[u8]]) -> Vec<String> {
    let (events, error) = decode(pieces, PLENTY);
    assert_eq!(error, None);
    events.iter().map(|event| String::from_utf8_lossy(&event.data).into_owned()).collect()
}

#[test]
fn the_grammar() {
    for (stream, expected) in [
        ("data: a\n\ndata: b\n\n", vec!["a", "b"]),
        ("data:a\n\ndata:  b\n\n", vec!["a", " b"]),
        ("data: a\r\n\r\ndata: b\r\n\r\n", vec!["a", "b"]),
        ("data: a\r\rdata: b\r\r", vec!["a", "b"]),
        ("data: a\ndata: b\ndata\ndata: c\n\n", vec!["a\nb\n\nc"]),
        ("\u{feff}data: a\n\n\u{feff}data: b\n\n", vec!["a", ""]),
        ("\n\n\r\n\rdata: a\n\n\n\n", vec!["a"]),
        (": note\ndata: a\n\n", vec!["a"]),
        ("id: 7\nevent: x\nretry: 1\ndata: a\n\n", vec!["a"]),
        ("event: x\n\n", vec![""]),
        ("data: [DONE]", vec!["[DONE]"]),
        ("data: a\n", vec!["a"]),
    ] {
        assert_eq!(data_of(&[stream.as_bytes()]), expected, "{stream:?}");
    }
}

#[test]
fn kinds_names_and_bytes() {
    let (events, _) = decode(&[b": ping\n\nevent: error\ndata: {}\n\nid: 1\n\ndata: x\n\n"], PLENTY);
    let kinds: Vec<_> = events.iter().map(|event| event.kind).collect();
    assert_eq!(kinds, [EventKind::Comment, EventKind::Data, EventKind::Empty, EventKind::Data]);
    assert_eq!(events[1].name, "error");
    assert_eq!(events[1].raw, "event: error\ndata: {}\n\n");
    assert_eq!((events[1].plain_at, events[3].plain_at), (None, Some(6)));
}

#[test]
fn o01_a_character_cut_between_reads_is_whole() {
    let stream = "data: {\"content\":\"中文\"}\n\n".as_bytes();
    let start = stream.iter().position(|byte| *byte == 0xE4).unwrap();
    for cut in start + 1..start + 6 {
        assert_eq!(data_of(&[&stream[..cut], &stream[cut..]]), ["{\"content\":\"中文\"}"]);
    }
    assert_eq!(data_of(&[&stream[..start + 1], &stream[start + 1..start + 3], &stream[start + 3..]]).len(), 1);
}

#[test]
fn o02_an_lf_after_a_cr_in_another_read_belongs_to_the_same_line_end() {
    assert_eq!(data_of(&[b"data: a\r", b"\n\r", b"\ndata: b\r\n\r\n", b"data: [DONE]\r\n\r\n"]), ["a", "b", "[DONE]"]);
    let (events, _) = decode(&[b"data: a\r\r", b"data: b\r\r"], PLENTY);
    assert_eq!(events.len(), 2, "a bare CR gives the event out at once");
}

#[test]
fn o02_a_cr_that_ends_an_event_does_not_wait_for_the_next_read() {
    let mut decoder = Decoder::new(PLENTY);
    decoder.push(Bytes::from_static(b"data: a\r\n\r"));
    assert_eq!(decoder.next_event().unwrap().map(|event| event.data), Some(Bytes::from_static(b"a")));
    decoder.push(Bytes::from_static(b"\n"));
    assert_eq!(decoder.next_event(), Ok(None));
    assert!(decoder.finish().is_none());
}

#[test]
fn an_event_within_one_chunk_is_not_copied() {
    let chunk = Bytes::from_static(b"data: a\n\ndata: b\n\n");
    let mut decoder = Decoder::new(PLENTY);
    decoder.push(chunk.clone());
    for at in [6, 15] {
        let event = decoder.next_event().unwrap().unwrap();
        assert_eq!(event.data.as_ptr(), chunk[at..].as_ptr());
    }
}

#[test]
fn o05_a_line_of_3_mb_in_16_kib_pieces_is_one_event() {
    let mut stream = b"data: ".to_vec();
    stream.resize(3_145_728, b'x');
    stream.extend_from_slice(b"\n\ndata: [DONE]\n\n");
    let pieces: Vec<&[u8]> = stream.chunks(16 * 1024).collect();
    let (events, error) = decode(&pieces, 4 << 20);
    assert_eq!((events.len(), error), (2, None));
    assert_eq!(events[0].data.len(), 3_145_728 - 6);
    let (events, error) = decode(&pieces, 1 << 20);
    assert_eq!((events.len(), error), (0, Some(SseError::EventTooLarge { limit_bytes: 1 << 20 })));
}

#[test]
fn an_error_is_final_and_blank_lines_hold_no_memory() {
    let mut decoder = Decoder::new(16);
    decoder.push(Bytes::from_static(b"\r\n\n\n\r\r\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n"));
    assert_eq!(decoder.next_event(), Ok(None));
    assert_eq!(decoder.held_bytes(), 0);
    decoder.push(Bytes::from_static(b"data: 0123456789abcdef\n\n"));
    assert!(decoder.next_event().is_err());
    decoder.push(Bytes::from_static(b"data: a\n\n"));
    assert!(decoder.next_event().is_err());
}

proptest! {
    #[test]
    fn any_split_of_the_same_bytes_gives_the_same_events(
        text in prop::collection::vec(prop_oneof![
            4 => Just("\n"), 3 => Just("\r"), 3 => Just("\r\n"), 4 => Just("data: "), 2 => Just("data:"), 1 => Just(":"),
            1 => Just("event: e"), 1 => Just("id: 1"), 3 => Just("{\"a\":\"中\"}"), 1 => Just("\u{feff}"), 1 => Just(" x"),
        ], 0..40),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        limit in prop_oneof![Just(PLENTY), 8usize..60],
    ) {
        let stream = text.concat().into_bytes();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
        cuts.extend([0, stream.len()]);
        cuts.sort_unstable();
        let pieces: Vec<&[u8]> = cuts.windows(2).map(|pair| &stream[pair[0]..pair[1]]).collect();
        prop_assert_eq!(decode(&pieces, limit), decode(&[&stream], limit));
    }

    #[test]
    fn one_byte_at_a_time_agrees_with_a_line_by_line_reading_of_the_grammar(
        text in prop::collection::vec(prop_oneof![
            4 => Just("\n"), 3 => Just("\r"), 3 => Just("\r\n"), 4 => Just("data: "), 1 => Just(": c"), 1 => Just("data"),
            3 => Just("é"),
        ], 0..40),
    ) {
        let stream = text.concat();
        let bytes: Vec<&[u8]> = stream.as_bytes().chunks(1).collect();
        let data: Vec<String> = {
            let (events, _) = decode(&bytes, PLENTY);
            events.iter().filter(|event| event.kind == EventKind::Data).map(|event| String::from_utf8_lossy(&event.data).into_owned()).collect()
        };
        prop_assert_eq!(data, by_the_book(&stream));
    }
}

/// The WHATWG algorithm on decoded text, with our two additions: a rest without a blank line counts, and an event whose
/// data is empty is none.
fn by_the_book(stream: &str) -> Vec<String> {
    let text = stream.replace("\r\n", "\n").replace('\r', "\n");
    let (mut events, mut data): (Vec<String>, Vec<&str>) = (Vec::new(), Vec::new());
    for line in text.split('\n').chain([""]) {
        if line.is_empty() {
            events.push(std::mem::take(&mut data).join("\n"));
        } else if let Some(rest) = line.strip_prefix("data") {
            match rest.strip_prefix(':') {
                Some(value) => data.push(value.strip_prefix(' ').unwrap_or(value)),
                None if rest.is_empty() => data.push(""),
                None => {}
            }
        }
    }
    events.retain(|data| !data.is_empty());
    events
}
