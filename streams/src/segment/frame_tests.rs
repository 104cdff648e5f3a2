//! Bytes in isolation: what goes in comes out, and nothing else ever does.

use proptest::prelude::*;

use super::*;
use crate::topics::Topic;

fn batch(key: &[u8], values: &[&[u8]], time_ms: i64) -> Batch {
    let values = values.iter().map(|value| Bytes::copy_from_slice(value)).collect();
    Batch::new(Topic::Reservations, Bytes::copy_from_slice(key), time_ms, values)
}

fn encoded(salt: u32, base_offset: u64, batch: &Batch) -> Bytes {
    let mut frames = FrameBuffer::default();
    frames.push(salt, base_offset, base_offset / 2, batch);
    Bytes::from(frames.bytes)
}

/// Version 1 as it was released: these bytes must stay readable for ever. See `segment/mod.rs` for the picture.
#[test]
fn the_released_format_stays_readable() {
    let header = Header { topic: "usage".to_owned(), partition: 7, base_offset: 4711, salt: 0x0102_0304 };
    let frame = encoded(header.salt, 4711, &batch(b"key", &[b"", b"value"], -2));
    let footer = Footer { index: vec![(4711, 64)], end_offset: 4713, last_time_ms: -2 };
    let golden: Vec<String> = include_str!("golden/format-1.hex").lines().map(str::to_owned).collect();
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert_eq!(golden, [hex(&header.encode()), hex(&frame), hex(&footer.encode(header.salt))]);
    assert_eq!(Header::decode(&header.encode()), Ok(header.clone()));
    assert_eq!(Footer::decode(&footer.encode(header.salt), header.salt), Some(footer));
    let read = decode_frame(&frame, header.salt).unwrap();
    assert_eq!((read.base_offset, read.durable_end, read.end_offset(), read.time_ms), (4711, 2355, 4713, -2));
}

#[test]
fn a_header_says_why_it_is_none() {
    let header = Header { topic: "usage".to_owned(), partition: 0, base_offset: 1, salt: 2 }.encode();
    let with = |at: usize, byte: u8| {
        let mut changed = header;
        changed[at] = byte;
        Header::decode(&changed)
    };
    assert_eq!(with(0, b'X'), Err(HeaderFlaw::NotASegment));
    assert_eq!(with(8, 2), Err(HeaderFlaw::UnknownVersion(2)));
    assert_eq!(with(20, b'X'), Err(HeaderFlaw::Damaged));
    assert_eq!(Header::decode(&header[..63]), Err(HeaderFlaw::NotASegment));
}

#[test]
fn a_header_cut_short_by_a_power_loss_is_told_from_a_damaged_one() {
    let header = Header { topic: "usage".to_owned(), partition: 0, base_offset: 1, salt: 0x0102_0304 }.encode();
    for written in 0..HEADER_BYTES {
        let mut torn = header;
        torn[written..].fill(0);
        assert!(Header::is_torn(&torn), "{written}");
    }
    assert!(!Header::is_torn(&header));
    let mut newer = [0; HEADER_BYTES];
    newer[..12].copy_from_slice(b"WEIRSEG\n\x02\0\0\0");
    assert!(!Header::is_torn(&newer));
    let mut foreign = [0; HEADER_BYTES];
    foreign[..6].copy_from_slice(b"hello\n");
    assert!(!Header::is_torn(&foreign));
}

#[test]
fn whole_frames_are_found_between_what_is_not_whole() {
    let frames: Vec<Bytes> = (0..4).map(|n| encoded(1, n, &batch(b"k", &[b"value"], 0))).collect();
    let mut bytes = b"\xF7WF".to_vec();
    bytes.extend_from_slice(&frames[0]);
    bytes.extend_from_slice(&frames[1][..frames[1].len() - 1]);
    bytes.extend_from_slice(&frames[2]);
    bytes.extend_from_slice(&[0; 100]);
    bytes.extend_from_slice(&frames[3]);
    bytes.extend_from_slice(b"\xF7WFR");
    let found: Vec<u64> = whole_frames(&Bytes::from(bytes), 1).map(|frame| frame.base_offset).collect();
    assert_eq!(found, [0, 2, 3]);
}

#[test]
fn every_topic_fits_into_the_header() {
    for topic in Topic::ALL {
        let header = Header { topic: topic.suffix().to_owned(), partition: 0, base_offset: 0, salt: 0 };
        assert_eq!(Header::decode(&header.encode()), Ok(header));
    }
}

#[test]
fn a_frame_inside_a_payload_is_no_frame() {
    let inner = encoded(1, 100, &batch(b"k", &[b"forged"], 0));
    let outer = encoded(2, 5, &batch(b"k", &[&inner], 0));
    assert_eq!(whole_frames(&outer.slice(1..), 2).next(), None, "another salt");
    let same_salt = encoded(1, 5, &batch(b"k", &[&inner], 0));
    assert!(whole_frames(&same_salt.slice(1..), 1).next().is_some(), "the salt is what makes the difference");
}

prop_compose! {
    fn any_batch()(
        key in prop::collection::vec(any::<u8>(), 0..40),
        values in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..60), 1..6),
        time_ms in any::<i64>(),
    ) -> Batch {
        Batch::new(Topic::Usage, key, time_ms, values.into_iter().map(Bytes::from).collect())
    }
}

proptest! {
    #[test]
    fn what_goes_in_comes_out(batch in any_batch(), salt in any::<u32>(), base in 0..u64::MAX / 2) {
        let frame = decode_frame(&encoded(salt, base, &batch), salt).unwrap();
        prop_assert_eq!((frame.base_offset, frame.durable_end), (base, base / 2));
        prop_assert_eq!((frame.time_ms, frame.key, frame.values), (batch.time_ms, batch.key, batch.values));
    }

    #[test]
    fn a_changed_byte_is_noticed(batch in any_batch(), salt in any::<u32>(), at in any::<prop::sample::Index>(), flip in 1u8..) {
        let mut bytes = encoded(salt, 9, &batch).to_vec();
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        prop_assert!(decode_frame(&Bytes::from(bytes), salt).is_err());
    }

    #[test]
    fn a_part_of_a_frame_is_never_a_frame(batch in any_batch(), cut in any::<prop::sample::Index>()) {
        let bytes = encoded(3, 9, &batch);
        let part = bytes.slice(..cut.index(bytes.len()));
        prop_assert!(decode_frame(&part, 3).is_err());
        prop_assert_eq!(whole_frames(&part, 3).next(), None);
    }

    #[test]
    fn random_bytes_are_neither_frame_nor_footer(bytes in prop::collection::vec(any::<u8>(), 0..300), salt in any::<u32>()) {
        prop_assert_eq!(Footer::decode(&bytes, salt), None);
        prop_assert!(Header::decode(&bytes).is_err());
        prop_assert!(decode_frame(&Bytes::from(bytes), salt).is_err());
    }
}
