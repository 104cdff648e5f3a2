//! Whatever bytes come, the answer is a record or an error that says what is wrong; never a panic.
//!
//! That a length which lies costs no memory is shown in `tests/memory.rs`, in a process of its own.

use proptest::prelude::*;

use crate::datum::DatumError;
use crate::frame::{DecodeError, FieldProblem, open};
use crate::json;
use crate::ledger_entry::LedgerEntry;
use crate::operations::Operation;
use crate::record::Record;
use crate::reservation_event::ReservationEvent;

use super::{frame_of, frame_of_event, reread, sample_frames, samples};

#[test]
fn every_truncation_is_an_error() {
    for frame in sample_frames() {
        for length in 0..frame.len() {
            let cut = &frame[..length];
            assert!(reread(cut).is_err(), "{length} of {} bytes were read", frame.len());
            assert!(json::of_frame(cut).is_err());
        }
    }
}

#[test]
fn every_flipped_bit_is_a_record_or_an_error() {
    for frame in sample_frames() {
        for bit in 0..frame.len() * 8 {
            let mut flipped = frame.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let _either = (reread_if_known(&flipped), json::of_frame(&flipped).is_ok());
        }
    }
}

/// A flip in the schema id may name a schema of another topic; `reread` follows it.
fn reread_if_known(frame: &[u8]) -> bool {
    open(frame).is_ok() && reread(frame).is_ok()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    #[test]
    fn random_bytes_behind_a_known_id_never_panic(
        which in 0..22usize,
        body in proptest::collection::vec(any::<u8>(), 0..400),
    ) {
        let mut frame = sample_frames()[which][..5].to_vec();
        frame.extend(body);
        let _either = (reread_if_known(&frame), json::of_frame(&frame).is_ok());
    }

    #[test]
    fn spliced_frames_never_panic(which in 0..22usize, at in 5..400usize, put in proptest::collection::vec(any::<u8>(), 1..12)) {
        let mut frame = sample_frames()[which].clone();
        let at = at.min(frame.len());
        let end = (at + put.len()).min(frame.len());
        frame.splice(at..end, put);
        let _either = (reread_if_known(&frame), json::of_frame(&frame).is_ok());
    }
}

#[test]
fn each_fault_has_its_name() {
    let good = frame_of_event(&samples::events()[9]);
    let decode = |frame: &[u8]| ReservationEvent::decode(frame).expect_err("the frame is broken");
    let changed = |at: usize, to: u8| {
        let mut frame = good.clone();
        frame[at] = to;
        frame
    };
    assert_eq!(decode(&[]), DecodeError::NoHead(0));
    assert_eq!(decode(&[0, 0, 1, 17]), DecodeError::NoHead(4));
    assert_eq!(decode(&changed(0, 1)), DecodeError::WrongMagic(1));
    assert_eq!(decode(&changed(1, 9)), DecodeError::UnknownSchema(0x0901_11de));
    let record = "ReservationReleased";
    assert_eq!(decode(&good[..good.len() - 1]), DecodeError::Unreadable { record, reason: DatumError::Truncated });
    let mut longer = good.clone();
    longer.extend([1, 2, 3]);
    assert_eq!(decode(&longer), DecodeError::TrailingBytes { record, bytes: 3 });
    assert_eq!(decode(&vec![0; crate::MAX_FRAME_BYTES + 1]), DecodeError::TooLong(crate::MAX_FRAME_BYTES + 1));

    let entry = frame_of(&samples::ledger_entry());
    let expected = DecodeError::OtherRecord { expected: "reservation event", found: "LedgerEntry" };
    assert_eq!(decode(&entry), expected);
    assert!(matches!(LedgerEntry::decode(&good), Err(DecodeError::OtherRecord { .. })));
    assert!(matches!(Operation::decode(&entry), Err(DecodeError::OtherRecord { .. })));
}

/// Frames as a broken writer would make them: the right shape, figures that no record may hold.
#[test]
fn negative_and_absurd_figures_are_refused_by_name() {
    #[derive(serde::Serialize)]
    struct Unchecked<'a> {
        header: RawHeader<'a>,
        content: RawAmounts,
    }
    #[derive(serde::Serialize)]
    struct RawHeader<'a> {
        event_id: [u8; 16],
        reservation_id: [u8; 16],
        attempt: i64,
        recorded_at: i64,
        region: &'a str,
        tenant: &'a str,
        key_id: &'a str,
        snapshot_version: i64,
        trace_id: Option<[u8; 16]>,
    }
    #[derive(serde::Serialize)]
    struct RawAmounts {
        requests: i64,
        tokens: i64,
        usd: crate::parts::Dollars,
    }
    let decode = |attempt: i64, snapshot_version: i64, tokens: i64| {
        let header = RawHeader {
            event_id: [1; 16],
            reservation_id: [2; 16],
            attempt,
            recorded_at: 0,
            region: "",
            tenant: "",
            key_id: "",
            snapshot_version,
            trace_id: None,
        };
        let usd = crate::parts::Dollars(weir_domain::money::NanoUsd::ZERO);
        let mut frame = Vec::new();
        let body = Unchecked { header, content: RawAmounts { requests: 0, tokens, usd } };
        crate::frame::encode("UsageBounded", 70105, &body, &mut frame).unwrap();
        ReservationEvent::decode(&frame)
    };
    decode(1, 0, 5).expect("the figures are sound");
    let problem = |result: Result<_, DecodeError>| match result {
        Err(DecodeError::Field(error)) => Some((error.field, error.problem)),
        Ok(_) | Err(_) => None,
    };
    assert_eq!(problem(decode(1, 0, -5)), Some(("hold", FieldProblem::Negative)));
    assert_eq!(problem(decode(0, 0, 5)), Some(("header.attempt", FieldProblem::AttemptNumber)));
    for refused in [decode(-1, 0, 5), decode(65_536, 0, 5), decode(1, -1, 5)] {
        assert!(matches!(refused, Err(DecodeError::Unreadable { reason: DatumError::Value(_), .. })), "{refused:?}");
    }
}
