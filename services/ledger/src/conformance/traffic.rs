//! Plain requests as a gateway puts them on the log: six events in two batches each.

use std::error::Error;
use std::sync::Arc;

use bytes::Bytes;

use weir_domain::attempt::AttemptOutcome;
use weir_domain::ids::ReservationId;
use weir_domain::money::Amounts;
use weir_domain::reservation::{Created, Event};
use weir_domain::usage::UsageSource;
use weir_schemas::reservation_event::{Header, ReservationEvent};
use weir_streams::{Batch, Topic};

use super::scene;

/// First batches of `at_a_time` requests, then their second ones, until `requests` have come; the `first`th is the
/// first.
///
/// # Errors
/// When an event cannot be written.
pub fn requests(first: u64, requests: u64, at_a_time: usize) -> Result<Vec<Batch>, Box<dyn Error + Send + Sync>> {
    let (mut batches, end) = (Vec::new(), first + requests);
    for from in (first..end).step_by(at_a_time) {
        let lives: Vec<Arc<Created>> = (from..end).take(at_a_time).map(|n| Arc::new(admitted(n))).collect();
        for created in &lives {
            batches.push(batch(created, created.admitted_at_ms, beginning(created))?);
        }
        for created in &lives {
            batches.push(batch(created, created.admitted_at_ms + 900, ending())?);
        }
    }
    Ok(batches)
}

/// A thousand a second, as a busy gateway has them.
#[must_use]
pub fn admitted(n: u64) -> Created {
    let created = scene::created(n, "acme");
    let admitted_at_ms = scene::NOON_MS.saturating_add_unsigned(n);
    let mut id = *created.id.as_bytes();
    id[..6].copy_from_slice(&admitted_at_ms.to_be_bytes()[2..]);
    Created { id: ReservationId::from_bytes(id), admitted_at_ms, due_ms: admitted_at_ms + 60_000, ..created }
}

fn beginning(created: &Arc<Created>) -> Vec<Event> {
    let hold = Amounts { requests: 0, ..created.hold };
    vec![
        Event::ReservationCreated(Arc::clone(created)),
        Event::AttemptStarted { number: 1, hold, target: scene::target() },
    ]
}

fn ending() -> Vec<Event> {
    let record = Arc::new(scene::record(100, 82_200_000, UsageSource::Response, ""));
    let charged = Amounts { requests: 1, ..record.charge };
    vec![
        Event::AttemptCorrelated { number: 1, provider_id: "chatcmpl-ABCDEFGHIJKLMNOPQRST".to_owned() },
        Event::UsageRecorded { number: 1, record },
        Event::AttemptClosed { number: 1, outcome: AttemptOutcome::Executed },
        Event::ReservationSettled { charged },
    ]
}

fn batch(created: &Created, at_ms: i64, events: Vec<Event>) -> Result<Batch, Box<dyn Error + Send + Sync>> {
    let values = events.into_iter().map(|event| {
        let header = Header {
            reservation: created.id,
            recorded_at_us: at_ms * 1000,
            region: "eu".into(),
            tenant: created.tenant.clone(),
            key: created.key.clone(),
            snapshot_version: 3,
            trace_id: None,
        };
        let mut frame = Vec::new();
        ReservationEvent::new(header, event)?.encode(&mut frame)?;
        Ok(Bytes::from(frame))
    });
    let values = values.collect::<Result<Vec<_>, Box<dyn Error + Send + Sync>>>()?;
    Ok(Batch::new(Topic::Reservations, Bytes::copy_from_slice(created.id.as_bytes()), at_ms, values))
}
