//! Every schema version ever released, and the number that stands for it on the wire.
//!
//! The numbers are in `ids.toml` as well, for readers in other languages; a test keeps both and the files alike. They
//! are ours and not a registry's, so that a frame of the embedded log reads the same on Kafka: a registry is given the
//! ids (see `README.md`), it does not give them.

use std::collections::HashMap;
use std::sync::LazyLock;

use crate::datum::Shape;

/// One version of one record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Released {
    /// What the frame carries.
    pub id: u32,
    /// The topic, as `streams/topics.toml` names it.
    pub topic: &'static str,
    /// The record's name, without its namespace `weir`.
    pub record: &'static str,
    pub version: u16,
    /// The schema itself, in Avro's JSON.
    pub avsc: &'static str,
}

impl Released {
    /// The name in a schema registry: TopicRecordName, for topics with `prefix` (`weir.` unless configured).
    #[must_use]
    pub fn subject(&self, prefix: &str) -> String {
        format!("{prefix}{}-weir.{}", self.topic, self.record)
    }
}

macro_rules! released {
    ($id:literal, $topic:literal, $record:literal, $version:literal) => {
        Released {
            id: $id,
            topic: $topic,
            record: $record,
            version: $version,
            avsc: include_str!(concat!("../avro/", $topic, "/", $record, "/v", $version, ".avsc")),
        }
    };
}

/// All of them, oldest first within a record. An entry stays for ever.
pub const RELEASED: &[Released] = &[
    released!(70101, "reservations", "ReservationCreated", 1),
    released!(70102, "reservations", "ReservationExtended", 1),
    released!(70103, "reservations", "AttemptStarted", 1),
    released!(70104, "reservations", "AttemptCorrelated", 1),
    released!(70105, "reservations", "UsageBounded", 1),
    released!(70106, "reservations", "UsageRecorded", 1),
    released!(70107, "reservations", "AttemptClosed", 1),
    released!(70108, "reservations", "ReservationPending", 1),
    released!(70109, "reservations", "ReservationSettled", 1),
    released!(70110, "reservations", "ReservationReleased", 1),
    released!(70111, "reservations", "ReservationResumed", 1),
    released!(70112, "reservations", "ReservationEscalated", 1),
    released!(70201, "usage-reports", "ProviderUsageReport", 1),
    released!(70301, "ledger", "LedgerEntry", 1),
    released!(70401, "usage", "UsageRow", 1),
    released!(70501, "discrepancies", "Discrepancy", 1),
    released!(70601, "operations", "Heartbeat", 1),
    released!(70605, "operations", "Heartbeat", 2),
    released!(70602, "operations", "OperatorAct", 1),
    released!(70603, "operations", "ConsumerSkip", 1),
    released!(70604, "operations", "AdmissionDenied", 1),
    released!(70606, "operations", "QuotaRebuild", 1),
    released!(70701, "revocations", "KeyRevoked", 1),
    released!(70801, "snapshots", "SnapshotPublished", 1),
];

/// The schema that `id` stands for.
#[must_use]
pub fn released(id: u32) -> Option<&'static Released> {
    RELEASED.iter().find(|released| released.id == id)
}

pub(crate) struct Readable {
    pub(crate) released: &'static Released,
    /// What of the schema cannot be read; the tests show that there is no such one.
    pub(crate) shape: Result<Shape, String>,
}

/// Parsed once, at the first frame that is read.
static READABLE: LazyLock<HashMap<u32, Readable>> = LazyLock::new(|| {
    let parsed = |released: &'static Released| Readable { released, shape: Shape::parse(released.avsc) };
    RELEASED.iter().map(|released| (released.id, parsed(released))).collect()
});

pub(crate) fn readable(id: u32) -> Option<&'static Readable> {
    READABLE.get(&id)
}
