//! A length that lies costs an error and no memory.
//!
//! Alone in its process: what is measured is the peak of the address space, to which every allocation adds whether it is
//! touched or not.

use std::error::Error;
use std::fs;
use std::path::Path;

use weir_schemas::discrepancy::Discrepancy;
use weir_schemas::ledger_entry::LedgerEntry;
use weir_schemas::operations::Operation;
use weir_schemas::released::RELEASED;
use weir_schemas::reservation_event::ReservationEvent;
use weir_schemas::revocation::KeyRevoked;
use weir_schemas::snapshot::SnapshotPublished;
use weir_schemas::usage_report::UsageReport;
use weir_schemas::usage_row::UsageRow;
use weir_schemas::{Record, json};

/// The most that all broken frames together may add.
const MOST_KIB: u64 = 1024;

/// The encodings of i64::MAX, of −2⁶³ (a block that gives its size), and of one gibibyte.
const LIES: [&[u8]; 3] = [
    &[0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01],
    &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01],
    &[0x80, 0x80, 0x80, 0x80, 0x08],
];

#[test]
fn lengths_that_lie_cost_no_memory() -> Result<(), Box<dyn Error>> {
    let frames = golden_frames()?;
    assert!(frames.iter().all(|frame| is_read(frame)), "the golden frames themselves are sound");
    let before_kib = peak_kib()?;
    let mut refused = 0u32;
    for frame in &frames {
        for at in 5..frame.len() {
            for lie in LIES {
                let broken = [&frame[..at], lie, &frame[at + 1..]].concat();
                refused += u32::from(!is_read(&broken));
            }
        }
    }
    let grown_kib = peak_kib()? - before_kib;
    assert!(grown_kib <= MOST_KIB, "{grown_kib} KiB for frames of a few hundred bytes");
    assert!(refused > 5000, "only {refused} of the broken frames were refused");
    Ok(())
}

/// Both by its own type and for people.
fn is_read(frame: &[u8]) -> bool {
    let as_its_type = ReservationEvent::decode(frame).is_ok()
        || Operation::decode(frame).is_ok()
        || LedgerEntry::decode(frame).is_ok()
        || UsageRow::decode(frame).is_ok()
        || UsageReport::decode(frame).is_ok()
        || Discrepancy::decode(frame).is_ok()
        || KeyRevoked::decode(frame).is_ok()
        || SnapshotPublished::decode(frame).is_ok();
    json::of_frame(frame).is_ok() && as_its_type
}

fn golden_frames() -> Result<Vec<Vec<u8>>, Box<dyn Error>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden");
    let mut frames = Vec::with_capacity(RELEASED.len());
    for one in RELEASED {
        let text = fs::read_to_string(folder.join(one.topic).join(one.record).join(format!("v{}.hex", one.version)))?;
        frames.push(hex::decode(text.split_whitespace().collect::<String>())?);
    }
    Ok(frames)
}

fn peak_kib() -> Result<u64, Box<dyn Error>> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmPeak:")).ok_or("no VmPeak")?;
    Ok(line.trim().trim_end_matches(" kB").trim().parse()?)
}
