//! What stands on Weir's topics: the schemas, their numbers for ever, and the codec between them and the rules' types.
//!
//! **Owns** `avro/` (one file per version of every record), `ids.toml` (which number stands for which), `golden/` (bytes
//! that must stay readable), and the Rust form of every record. **Must not know** where records are kept, in what order,
//! or who reads them: bytes in, values out. No I/O, no clock. Checkpoints are not here either: they are images that
//! `weir-domain` gives, private to who wrote them, while everything here is a contract.
//!
//! **Start** with [`reservation_event`], the source of truth; then [`ledger_entry`], what finance reads. The bytes are
//! made in `datum`, framed in [`frame`], and shown to people by [`json`]. `README.md` tells how to add a version and how
//! to read a topic without Rust.
//!
//! **Promises kept here**: I10 (prices and counters locked at admission are in `ReservationCreated`), I13 (every released
//! version stays decodable; ids of facts depend on nothing but the fact), and I6 (no field holds a key, a prompt or a
//! completion).

pub mod event_id;
pub mod reservation_event;

pub mod discrepancy;
pub mod ledger_entry;
pub mod operations;
pub mod record;
pub mod revocation;
pub mod snapshot;
pub mod usage_report;
pub mod usage_row;

mod datum;
pub mod frame;
pub mod json;
pub mod names;
mod parts;
pub mod released;

pub use datum::DatumError;
pub use frame::{DecodeError, EncodeError, FieldError, FieldProblem, MAX_FRAME_BYTES};
pub use names::Names;
pub use record::Record;

#[cfg(test)]
mod tests;
