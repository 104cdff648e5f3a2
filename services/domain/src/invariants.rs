//! The promises of Weir, by id. A type, test, metric or alert that keeps one cites it from here.

/// A promise that holds at all times, or at rest where it says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Invariant {
    pub id: &'static str,
    pub promise: &'static str,
}

macro_rules! invariants {
    ($($id:ident: $promise:literal;)*) => {
        $(#[doc = $promise] pub const $id: Invariant = Invariant { id: stringify!($id), promise: $promise };)*
        /// All promises, in order.
        pub const ALL: &[Invariant] = &[$($id,)*];
    };
}

invariants! {
    I1: "Authenticate, authorize and admit, in this order, before any upstream byte; a refusal by the gateway never starts a fallback.";
    I2: "Never over-admit: for every limit, charged plus held stays within the limit at each admission; all limits of a request are taken together or none.";
    I3: "One reservation per client request; a repeated command is a no-op that returns what exists, and the same id with other content is a named conflict.";
    I4: "No splice: after the first content reached the client, no other generation is delivered as if it were the same one.";
    I5: "Residency, capability and vendor policy are hard filters, re-checked at every hop.";
    I6: "Virtual keys are stored as a keyed hash; provider secrets never appear in logs, events, snapshots, errors or debug output.";
    I7: "Usage is the provider's; a local count never becomes an unflagged billed number, and partial usage is a bound, not a bill.";
    I8: "Log first: a counter is settled only after the event that justifies it is durable; ledger lines are append-only and unique.";
    I9: "Unknown is not zero: what may have executed stays held at its worst case until somebody who knows says otherwise.";
    I10: "Price version and the list of counters are locked at admission and are on the log.";
    I11: "Every reservation ends: settled, released or escalated, in bounded time.";
    I12: "Counters follow the ledger: at rest every counter equals its ledger lines plus open holds, in the window of admission.";
    I13: "Replay: folding the log gives the same ledger and the same counters, to the last unit.";
    I14: "No provider is called before the attempt is where a killed process cannot lose it, and no client sees content before that record is durable.";
    I15: "An empty or rolled-back quota store admits nothing until it is rebuilt.";
}
