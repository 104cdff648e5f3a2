//! What all flat records share: one struct, one schema, one frame.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::frame::{self, DecodeError, EncodeError, FieldError, FieldProblem};
use crate::json;

/// A record that is its own wire form. Reservation events are not: theirs is the domain's.
pub trait Record: Serialize + DeserializeOwned {
    /// The record's name in its schema.
    const NAME: &'static str;
    /// The newest released schema: what is written.
    const SCHEMA_ID: u32;

    /// Refuses what the record may not say, before it is written and after it was read.
    fn check(&self) -> Result<(), FieldError>;

    /// Appends the frame to `out`, which is as before when it fails.
    fn encode(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        self.check()?;
        frame::encode(Self::NAME, Self::SCHEMA_ID, self, out)
    }

    /// Reads a frame of any released version.
    fn decode(frame: &[u8]) -> Result<Self, DecodeError> {
        let opened = frame::open(frame)?;
        if opened.released.record != Self::NAME {
            return Err(DecodeError::OtherRecord { expected: Self::NAME, found: opened.released.record });
        }
        let record: Self = opened.read()?;
        record.check()?;
        Ok(record)
    }

    /// For people: readable ids, money as decimal text, times as RFC 3339.
    fn to_json(&self) -> Value {
        let mut frame = Vec::new();
        json::of_encoded(self.encode(&mut frame).map(|()| frame))
    }
}

/// Refuses the first of `figures` that is negative.
pub(crate) fn check_figures(record: &'static str, figures: &[(&'static str, i64)]) -> Result<(), FieldError> {
    match figures.iter().find(|(_, figure)| *figure < 0) {
        Some((field, _)) => Err(FieldError { record, field, problem: FieldProblem::Negative }),
        None => Ok(()),
    }
}
