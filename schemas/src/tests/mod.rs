//! The suites of this crate, over all records at once.

mod compatibility;
mod golden;
mod malformed;
mod round_trip;
mod samples;
mod schemas;
mod strategies;

use serde_json::Value;

use crate::discrepancy::Discrepancy;
use crate::frame::{self, DecodeError};
use crate::ledger_entry::LedgerEntry;
use crate::operations::{AdmissionDenied, ConsumerSkip, Heartbeat, Operation, OperatorAct, QuotaRebuild};
use crate::record::Record;
use crate::released::RELEASED;
use crate::reservation_event::ReservationEvent;
use crate::revocation::KeyRevoked;
use crate::snapshot::SnapshotPublished;
use crate::usage_report::UsageReport;
use crate::usage_row::UsageRow;

/// What a record comes to when it is read as its own type: its newest frame, and what people see.
struct Reread {
    frame: Vec<u8>,
    json: Value,
}

/// Reads `frame` as whatever record it says it is.
fn reread(frame: &[u8]) -> Result<Reread, DecodeError> {
    fn flat<R: Record>(frame: &[u8]) -> Result<Reread, DecodeError> {
        let record = R::decode(frame)?;
        let mut out = Vec::new();
        record.encode(&mut out).expect("what was read can be written");
        Ok(Reread { frame: out, json: record.to_json() })
    }
    let opened = frame::open(frame)?;
    match opened.released.topic {
        "reservations" => {
            let event = ReservationEvent::decode(frame)?;
            let mut out = Vec::new();
            event.encode(&mut out).expect("what was read can be written");
            Ok(Reread { frame: out, json: event.to_json() })
        }
        "operations" => match Operation::decode(frame)? {
            Operation::Heartbeat(_) => flat::<Heartbeat>(frame),
            Operation::OperatorAct(_) => flat::<OperatorAct>(frame),
            Operation::ConsumerSkip(_) => flat::<ConsumerSkip>(frame),
            Operation::AdmissionDenied(_) => flat::<AdmissionDenied>(frame),
            Operation::QuotaRebuild(_) => flat::<QuotaRebuild>(frame),
        },
        "usage-reports" => flat::<UsageReport>(frame),
        "ledger" => flat::<LedgerEntry>(frame),
        "usage" => flat::<UsageRow>(frame),
        "discrepancies" => flat::<Discrepancy>(frame),
        "revocations" => flat::<KeyRevoked>(frame),
        "snapshots" => flat::<SnapshotPublished>(frame),
        other => panic!("no reader for the topic {other}"),
    }
}

/// The frame of a record of any kind, made of `samples`; in the order of [`RELEASED`], newest versions only.
fn sample_frames() -> Vec<Vec<u8>> {
    let mut frames: Vec<Vec<u8>> = samples::events().iter().map(frame_of_event).collect();
    frames.push(frame_of(&samples::usage_report()));
    frames.push(frame_of(&samples::ledger_entry()));
    frames.push(frame_of(&samples::usage_row()));
    frames.push(frame_of(&samples::discrepancy()));
    frames.push(frame_of(&samples::heartbeat()));
    frames.push(frame_of(&samples::operator_act()));
    frames.push(frame_of(&samples::consumer_skip()));
    frames.push(frame_of(&samples::admission_denied()));
    frames.push(frame_of(&samples::quota_rebuild()));
    frames.push(frame_of(&samples::key_revoked()));
    frames.push(frame_of(&samples::snapshot()));
    frames
}

fn frame_of_event(event: &ReservationEvent) -> Vec<u8> {
    let mut out = Vec::new();
    event.encode(&mut out).expect("a sample is within bounds");
    out
}

fn frame_of<R: Record>(record: &R) -> Vec<u8> {
    let mut out = Vec::new();
    record.encode(&mut out).expect("a sample is within bounds");
    out
}

#[test]
fn every_record_is_written_with_its_newest_schema() {
    let frames = sample_frames();
    let written: Vec<u32> = frames.iter().map(|frame| frame::open(frame).unwrap().released.id).collect();
    let newest: Vec<u32> = RELEASED
        .iter()
        .filter(|one| !RELEASED.iter().any(|other| other.record == one.record && other.version > one.version))
        .map(|released| released.id)
        .collect();
    assert_eq!(written, newest);
}
