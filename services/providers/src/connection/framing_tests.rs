//! Bodies cut at every byte, damaged framing, and bounds.

use proptest::prelude::*;

use super::*;

/// Reads `wire` in pieces that end at `cuts`: the body, what was left over, and the damage.
fn read(mut framing: Framing, wire: &[u8], cuts: &[usize]) -> (Vec<u8>, Vec<u8>, Option<FramingError>) {
    let (mut received, mut body) = (BytesMut::new(), Vec::new());
    let mut at = 0;
    for cut in cuts.iter().copied().chain([wire.len()]) {
        let cut = cut.clamp(at, wire.len());
        received.extend_from_slice(&wire[at..cut]);
        at = cut;
        loop {
            match framing.take(&mut received) {
                Ok(Some(piece)) => body.extend_from_slice(&piece),
                Ok(None) => break,
                Err(error) => return (body, received.to_vec(), Some(error)),
            }
        }
    }
    assert!(framing.is_over() || received.len() < MOST_LINE_BYTES, "nothing of the body is held back");
    (body, received.to_vec(), None)
}

fn chunked(chunks: &[Vec<u8>], extension: &str, trailer: &str) -> Vec<u8> {
    let mut wire = Vec::new();
    for chunk in chunks.iter().filter(|chunk| !chunk.is_empty()) {
        wire.extend_from_slice(format!("{:x}{extension}\r\n", chunk.len()).as_bytes());
        wire.extend_from_slice(chunk);
        wire.extend_from_slice(b"\r\n");
    }
    wire.extend_from_slice(format!("0\r\n{trailer}\r\n").as_bytes());
    wire
}

proptest! {
    #[test]
    fn read_boundaries_carry_no_meaning(
        chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..6),
        extension in prop::sample::select(vec!["", ";a=b", " ", ";q=\"x\""]),
        trailer in prop::sample::select(vec!["", "x: y\r\n", "a: 1\r\nb: 2\r\n"]),
        mut cuts in prop::collection::vec(0usize..300, 0..12),
    ) {
        cuts.sort_unstable();
        let wire = [chunked(&chunks, extension, trailer), b"NEXT".to_vec()].concat();
        let (body, rest, damage) = read(Framing::chunked(), &wire, &cuts);
        prop_assert_eq!(body, chunks.concat());
        prop_assert_eq!((rest, damage), (b"NEXT".to_vec(), None));
    }

    #[test]
    fn no_bytes_break_the_reader(wire in prop::collection::vec(any::<u8>(), 0..200), cut in 0usize..200) {
        let whole = read(Framing::chunked(), &wire, &[]);
        let pieces = read(Framing::chunked(), &wire, &[cut]);
        prop_assert_eq!((whole.0, whole.2), (pieces.0, pieces.2));
    }
}

#[test]
fn chunks_that_came_together_are_one_piece() {
    let mut framing = Framing::chunked();
    let mut received = BytesMut::from(&b"3\r\nabc\r\n4\r\ndefg\r\n5\r\nhi"[..]);
    assert_eq!(framing.take(&mut received).unwrap().unwrap(), "abcdefghi");
    assert_eq!(framing.take(&mut received), Ok(None));
    received.extend_from_slice(b"jkl\r\n0\r\n\r\n");
    assert_eq!(framing.take(&mut received).unwrap().unwrap(), "jkl");
    assert!(framing.is_over() && received.is_empty());
}

#[test]
fn o10_what_came_before_damage_is_given_out_before_it() {
    let (body, _, damage) = read(Framing::chunked(), b"3\r\nabc\r\nxyz\r\n", &[]);
    assert_eq!((body, damage), (b"abc".to_vec(), Some(FramingError::Size)));
}

#[test]
fn damaged_framing_is_named() {
    let long = [b"1;".as_slice(), &[b'x'; MOST_LINE_BYTES]].concat();
    let trailers = [b"0\r\n".as_slice(), &b"a: b\r\n".repeat(MOST_TRAILER_BYTES / 6 + 1)].concat();
    let cases: [(&[u8], FramingError); 9] = [
        (b"\r\n", FramingError::Size),
        (b"g\r\n", FramingError::Size),
        (b"-1\r\nx\r\n", FramingError::Size),
        (b"+1\r\nx\r\n", FramingError::Size),
        (b"ffffffffffffffff\r\n", FramingError::Size),
        (b"1\nx\n", FramingError::LineEnd),
        (b"1\r\nxy\r\n", FramingError::DataEnd),
        (&long, FramingError::LongLine),
        (&trailers, FramingError::LongTrailers),
    ];
    for (wire, expected) in cases {
        assert_eq!(read(Framing::chunked(), wire, &[]).2, Some(expected), "{:?}", wire.escape_ascii().to_string());
    }
}

#[test]
fn a_length_takes_its_bytes_and_no_more() {
    assert_eq!(read(Framing::length(3), b"abcd", &[1]), (b"abc".to_vec(), b"d".to_vec(), None));
    assert!(Framing::length(0).is_over());
    let (body, rest, _) = read(Framing::until_close(), b"abcd", &[2]);
    assert_eq!((body, rest), (b"abcd".to_vec(), Vec::new()));
    assert!(Framing::until_close().ends_with_the_connection() && !Framing::until_close().is_over());
}
