//! Any bytes as an event: a record that says what may be said, or a typed error. Never more memory than the frame.

use std::fs;
use std::path::Path;

use weir_fuzz::{Fuzz, Mutator, Random, shape_of};
use weir_schemas::discrepancy::Discrepancy;
use weir_schemas::ledger_entry::LedgerEntry;
use weir_schemas::operations::Operation;
use weir_schemas::reservation_event::ReservationEvent;
use weir_schemas::revocation::KeyRevoked;
use weir_schemas::snapshot::SnapshotPublished;
use weir_schemas::usage_report::UsageReport;
use weir_schemas::usage_row::UsageRow;
use weir_schemas::{Record, json};

use crate::peak_mib;

/// Lengths at the edges, as Avro writes them, and pieces of the frame's head.
const WORDS: &[&[u8]] = &[
    &[0, 0, 0, 1],
    &[0],
    &[1],
    &[2],
    &[0x7f],
    &[0x80, 0x01],
    &[0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01],
    &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01],
    &[0x80, 0x80, 0x80, 0x80, 0x08],
    &[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80],
];

#[test]
fn events() {
    let seeds = golden_frames();
    assert!(seeds.len() > 10);
    let fuzz = Fuzz { name: "events", mutator: Mutator { words: WORDS, max_bytes: 4 * 1024 }, seeds };
    fuzz.run(check);
    assert!(peak_mib() < 1_024, "{} MiB", peak_mib());
}

/// The frames that every version must read, which belong to the schemas.
fn golden_frames() -> Vec<Vec<u8>> {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../schemas/golden");
    let mut files = Vec::new();
    let mut folders = vec![golden];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "hex") {
                files.push(path);
            }
        }
    }
    files.sort();
    let decode = |path| hex::decode(fs::read_to_string(path).unwrap().replace(['\n', ' '], "")).unwrap();
    files.iter().map(decode).collect()
}

fn check(input: &[u8], _: &mut Random) -> u64 {
    let record = record::<LedgerEntry>(input)
        .or_else(|| record::<Discrepancy>(input))
        .or_else(|| record::<KeyRevoked>(input))
        .or_else(|| record::<SnapshotPublished>(input))
        .or_else(|| record::<UsageReport>(input))
        .or_else(|| record::<UsageRow>(input));
    let operation = Operation::decode(input).is_ok();
    let event = ReservationEvent::decode(input);
    if let Ok(event) = &event {
        let mut bytes = Vec::new();
        event.encode(&mut bytes).expect("what was read can be written");
        let again = ReservationEvent::decode(&bytes).expect("what was written can be read");
        assert_eq!(again.event(), event.event());
        assert_eq!(again.event_id(), event.event_id(), "the id of a fact depends on nothing but the fact");
    }
    let rendered = json::of_frame(input);
    let is_read = record.is_some() || operation || event.is_ok();
    assert!(!is_read || rendered.is_ok(), "what can be read can be shown");
    let error: Option<String> =
        rendered.as_ref().err().map(|error| error.to_string().chars().filter(|c| !c.is_ascii_digit()).collect());
    shape_of(&(record, operation, event.as_ref().ok().map(|event| event.kind().as_str()), error.unwrap_or_default()))
}

/// A record that was read is written and read as the same bytes; its name.
fn record<T: Record>(input: &[u8]) -> Option<&'static str> {
    let record = T::decode(input).ok()?;
    let (mut bytes, mut again) = (Vec::new(), Vec::new());
    record.encode(&mut bytes).expect("what was read can be written");
    T::decode(&bytes).expect("what was written can be read").encode(&mut again).unwrap();
    assert_eq!(again, bytes);
    Some(T::NAME)
}
