//! What is written is read back the same, by this crate and by another implementation of Avro.

use std::collections::HashSet;
use std::sync::Arc;

use apache_avro::{Schema, from_avro_datum, to_avro_datum};
use proptest::prelude::*;
use weir_domain::attempt::{Attempt, AttemptOutcome};
use weir_domain::ids::Region;
use weir_domain::ledger::SourcePosition;
use weir_domain::money::{Amounts, NanoUsd};
use weir_domain::reservation::{Event, EventKind};

use crate::event_id::event_id;
use crate::frame::{self, FieldError, FieldProblem};
use crate::ledger_entry::LedgerEntry;
use crate::record::Record;
use crate::released::RELEASED;
use crate::reservation_event::{NotLogged, ReservationEvent};
use crate::usage_report::{ReportGrain, UsageReport};
use crate::usage_row::{RowSource, UsageRow};

use super::strategies::{ledger_line, reservation_event};
use super::{frame_of, frame_of_event, reread, sample_frames, samples};

/// Reads with the other implementation and writes with it what it understood, under the same id.
fn through_apache(frame: &[u8]) -> Vec<u8> {
    let opened = frame::open(frame).unwrap();
    let schema = Schema::parse_str(opened.released.avsc).unwrap();
    let mut rest = opened.datum;
    let value = from_avro_datum(&schema, &mut rest, None).unwrap();
    assert!(rest.is_empty(), "the other implementation leaves {} bytes", rest.len());
    let mut again = frame[..5].to_vec();
    again.extend(to_avro_datum(&schema, value).unwrap());
    again
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn every_event_comes_back(event in reservation_event()) {
        let frame = frame_of_event(&event);
        prop_assert_eq!(ReservationEvent::decode(&frame).unwrap(), event);
    }

    #[test]
    fn every_ledger_entry_comes_back_with_its_correction(line in ledger_line()) {
        let entry = LedgerEntry::from_line(&line, &Region::new("eu-west"));
        let read = LedgerEntry::decode(&frame_of(&entry)).unwrap();
        prop_assert_eq!(&read, &entry);
        let correction = read.correction();
        prop_assert_eq!(correction.counting, line.created.counting.clone());
        prop_assert_eq!((correction.amount, correction.total), (line.amount, line.total));
        prop_assert_eq!((correction.source, correction.admitted_at_ms), (line.source, line.created.admitted_at_ms));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn another_implementation_understands_every_event(event in reservation_event()) {
        let read = ReservationEvent::decode(&through_apache(&frame_of_event(&event))).unwrap();
        // That implementation forgets the order of a map, and keeps one of equal keys.
        prop_assert_eq!(without_labels(read), without_labels(event));
    }
}

fn without_labels(event: ReservationEvent) -> ReservationEvent {
    let (header, event) = event.into_parts();
    let event = match event {
        Event::ReservationCreated(created) => {
            let mut created = (*created).clone();
            created.labels = Arc::from([]);
            Event::ReservationCreated(Arc::new(created))
        }
        other => other,
    };
    ReservationEvent::new(header, event).unwrap()
}

#[test]
fn another_implementation_understands_every_record() {
    for frame in sample_frames() {
        let read = reread(&through_apache(&frame)).unwrap();
        assert_eq!(read.json, reread(&frame).unwrap().json);
    }
}

/// The same records with everything optional left out.
#[test]
fn absent_values_stay_absent() {
    let mut entry = samples::ledger_entry();
    (entry.team, entry.deployment, entry.provider, entry.upstream_model) = (None, None, None, None);
    (entry.provider_region, entry.served_tier, entry.corrects, entry.end_user) = (None, None, None, None);
    assert_eq!(LedgerEntry::decode(&through_apache(&frame_of(&entry))).unwrap().deployment, None);
    assert_eq!(LedgerEntry::decode(&frame_of(&entry)).unwrap(), entry);

    let report = UsageReport {
        grain: ReportGrain::Bucket,
        correlation: None,
        occurred_at_ms: None,
        model_requested: None,
        model_reported: None,
        service_tier: None,
        request_count: None,
        cost_usd: None,
        ..samples::usage_report()
    };
    assert_eq!(UsageReport::decode(&frame_of(&report)).unwrap(), report);
    let nameless = UsageReport { grain: ReportGrain::Attempt, ..report };
    nameless.encode(&mut Vec::new()).expect_err("a report of an attempt says which");
}

/// I9: a row shows that a usage is unknown, and never its absence as a free call.
#[test]
fn a_usage_row_tells_unknown_from_zero() {
    let row = |outcome| {
        let mut attempt = Attempt::started(1, Amounts::ZERO, Arc::new(samples::target()));
        attempt.outcome = Some(outcome);
        let position = SourcePosition { partition: 0, offset: 0 };
        let source = RowSource { recorded_at_ms: 0, position };
        let row = UsageRow::of_attempt(&samples::created(), &Region::new("eu"), &attempt, None, source);
        UsageRow::decode(&frame_of(&row)).unwrap()
    };
    assert!(!row(AttemptOutcome::MayHaveExecuted).usage_known);
    assert!(!row(AttemptOutcome::ExecutedUsageUnknown).usage_known);
    assert!(row(AttemptOutcome::NotExecuted).usage_known, "what did not run cost nothing: that is known");
    assert_eq!(row(AttemptOutcome::MayHaveExecuted).source, None);
}

#[test]
fn an_int_keeps_to_what_other_readers_take_for_one() {
    let mut entry = samples::ledger_entry();
    entry.seq = u32::MAX >> 1;
    assert_eq!(LedgerEntry::decode(&frame_of(&entry)).unwrap().seq, entry.seq);
    entry.seq += 1;
    entry.encode(&mut Vec::new()).expect_err("an Avro int has 31 bits and a sign");
}

#[test]
fn what_was_read_is_written_the_same() {
    for frame in sample_frames() {
        assert_eq!(reread(&frame).unwrap().frame, frame);
    }
}

/// A later version brings a field: this reader skips it. An earlier one lacked an optional field: it is absent.
#[test]
fn the_reader_follows_the_writers_schema() {
    use crate::datum::{Shape, read, write};

    #[derive(serde::Serialize)]
    struct Later<'a> {
        key_id: &'a str,
        extra: Vec<(&'a str, i64)>,
        tenant: &'a str,
    }
    #[derive(Debug, PartialEq, serde::Deserialize)]
    struct Now<'a> {
        tenant: &'a str,
        key_id: &'a str,
        note: Option<&'a str>,
    }
    let later = Shape::parse(
        r#"{"type": "record", "name": "R", "fields": [{"name": "key_id", "type": "string"},
            {"name": "extra", "type": {"type": "array", "items": {"type": "record", "name": "P", "fields": [
                {"name": "a", "type": "string"}, {"name": "b", "type": "long"}]}}},
            {"name": "tenant", "type": "string"}]}"#,
    )
    .unwrap();
    let mut bytes = Vec::new();
    write(&Later { key_id: "k", extra: vec![("a", 1), ("b", -2)], tenant: "t" }, &mut bytes).unwrap();
    let mut rest = bytes.as_slice();
    assert_eq!(read::<Now<'_>>(&later, &mut rest).unwrap(), Now { tenant: "t", key_id: "k", note: None });
    assert!(rest.is_empty());
}

#[test]
fn what_concerns_the_store_alone_has_no_frame() {
    let total = Amounts::ZERO;
    let store_only = [Event::SlotFreed, Event::LeaseRenewed { due_ms: 1 }, Event::ChargeCorrected { number: 1, total }];
    for event in store_only {
        assert_eq!(ReservationEvent::new(samples::header(), event), Err(NotLogged::StoreOnly));
    }
}

#[test]
fn what_could_not_be_read_back_is_refused_when_made() {
    let refused = |event: Event| match ReservationEvent::new(samples::header(), event) {
        Err(NotLogged::Field(FieldError { field, problem, .. })) => (field, problem),
        other => panic!("{other:?}"),
    };
    let negative = Amounts::new(0, 0, NanoUsd::from_nanos(-1));
    let mut foreign = samples::created();
    foreign.tenant = "t_other".into();
    let mut short = samples::created();
    short.hold = negative;
    let created = |created| Event::ReservationCreated(Arc::new(created));
    assert_eq!(refused(created(foreign)), ("tenant", FieldProblem::DiffersFromHeader));
    assert_eq!(refused(created(short)), ("hold", FieldProblem::Negative));
    assert_eq!(refused(Event::ReservationSettled { charged: negative }), ("charged", FieldProblem::Negative));
    assert_eq!(
        refused(Event::UsageBounded { number: 0, hold: Amounts::ZERO }),
        ("header.attempt", FieldProblem::AttemptNumber)
    );

    let mut entry = samples::ledger_entry();
    entry.total_tokens = -1;
    assert!(entry.encode(&mut Vec::new()).is_err());
    let mut snapshot = samples::snapshot();
    snapshot.body.push(' ');
    assert!(snapshot.encode(&mut Vec::new()).is_err());
}

#[test]
fn a_failed_encode_leaves_the_buffer_as_it_was() {
    let mut out = b"before".to_vec();
    let mut revoked = samples::key_revoked();
    revoked.revoked_at_ms = i64::MAX;
    revoked.encode(&mut out).expect_err("no microseconds say that");
    let mut act = samples::operator_act();
    act.why = "x".repeat(crate::MAX_FRAME_BYTES);
    act.encode(&mut out).expect_err("too long for a broker");
    assert_eq!(out, b"before");
}

/// O55: retries, other processes and redeliveries give the id of the fact.
#[test]
fn an_event_id_is_of_the_fact_and_of_nothing_else() {
    let first = samples::events();
    let mut later_header = samples::header();
    later_header.recorded_at_us += 5_000_000;
    later_header.snapshot_version += 1;
    later_header.trace_id = None;
    for event in &first {
        let again = ReservationEvent::new(later_header.clone(), event.event().clone()).unwrap();
        assert_eq!(again.event_id(), event.event_id());
        assert_eq!(ReservationEvent::decode(&frame_of_event(event)).unwrap().event_id(), event.event_id());
    }
    let distinct: HashSet<[u8; 16]> = first.iter().map(ReservationEvent::event_id).collect();
    assert_eq!(distinct.len(), first.len());

    let id = samples::reservation();
    let of = |attempt, cause| event_id(id, attempt, EventKind::UsageRecorded, cause);
    assert_ne!(of(1, "rep_77/1"), of(1, "rep_77/2"), "a report's revision is a fact of its own");
    assert_ne!(of(1, ""), of(2, ""), "so is another attempt");
    // Pinned: a changed recipe would let old events be counted again.
    assert_eq!(crate::json::hex(&of(1, "rep_77/1")), "82f1d3896db7c8ce5e016c5fa5959cd8");
}

#[test]
fn subjects_name_topic_and_record() {
    assert_eq!(RELEASED[0].subject("weir."), "weir.reservations-weir.ReservationCreated");
}
