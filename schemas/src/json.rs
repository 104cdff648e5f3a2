//! Frames as JSON, for people: `weir show`, the `events` index, a log line.
//!
//! Follows the writer's schema and not the Rust types, so that one function renders every record of every version, also
//! one with a field that this process does not know.

use chrono::{DateTime, SecondsFormat};
use serde_json::{Map, Value};
use weir_domain::calendar::{Window, WindowKind};
use weir_domain::money::NanoUsd;

use crate::datum::{DatumError, Reader, Shape};
use crate::frame::{self, DecodeError, EncodeError};

/// Renders a frame of any record. `record` and `version` name the schema it was written with.
pub fn of_frame(frame: &[u8]) -> Result<Value, DecodeError> {
    let opened = frame::open(frame)?;
    let record = opened.released.record;
    let mut reader = Reader { rest: opened.datum };
    let rendered = render(opened.shape, &mut reader).map_err(|reason| DecodeError::Unreadable { record, reason })?;
    opened.end(reader.rest)?;
    let mut object = Map::from_iter([
        ("record".to_owned(), Value::from(record)),
        ("version".to_owned(), Value::from(opened.released.version)),
    ]);
    match rendered {
        Value::Object(fields) => object.extend(fields),
        other => {
            object.insert("value".to_owned(), other);
        }
    }
    Ok(Value::Object(object))
}

/// What was just encoded; a record that cannot be written renders as the reason.
pub(crate) fn of_encoded(encoded: Result<Vec<u8>, EncodeError>) -> Value {
    let unreadable = |reason: String| Value::Object(Map::from_iter([("unreadable".to_owned(), Value::from(reason))]));
    match encoded {
        Ok(frame) => of_frame(&frame).unwrap_or_else(|error| unreadable(error.to_string())),
        Err(error) => unreadable(error.to_string()),
    }
}

fn render(shape: &Shape, reader: &mut Reader<'_>) -> Result<Value, DatumError> {
    Ok(match shape {
        Shape::Null => Value::Null,
        Shape::Boolean => Value::from(reader.boolean()?),
        Shape::Int => Value::from(reader.int()?),
        Shape::Long => Value::from(reader.long()?),
        Shape::Micros => time(reader.long()?),
        Shape::Bytes => Value::from(hex(reader.bytes()?)),
        Shape::Nanos => Value::from(NanoUsd::from_nanos(reader.nanos()?).to_string()),
        Shape::Text => Value::from(reader.text()?),
        Shape::Fixed { name, bytes } => fixed(name, reader.take(*bytes)?),
        Shape::Enum(symbols) => Value::from(reader.symbol(symbols)?),
        Shape::Array(item) => {
            let mut items = Vec::new();
            for_each(reader, |reader| {
                items.push(render(item, reader)?);
                Ok(())
            })?;
            Value::Array(items)
        }
        Shape::Map(item) => {
            let mut entries = Map::new();
            for_each(reader, |reader| {
                let key = reader.text()?.to_owned();
                entries.insert(key, render(item, reader)?);
                Ok(())
            })?;
            Value::Object(entries)
        }
        Shape::Union(branches) => {
            let branch = reader.branch(branches)?;
            render(branch, reader)?
        }
        Shape::Record(record) => {
            let mut fields = Map::new();
            for (name, shape) in &record.fields {
                fields.insert(name.clone(), render(shape, reader)?);
            }
            match record.name.as_str() {
                "Window" => window(&fields).unwrap_or(Value::Object(fields)),
                _ => Value::Object(fields),
            }
        }
    })
}

fn for_each(
    reader: &mut Reader<'_>,
    mut item: impl FnMut(&mut Reader<'_>) -> Result<(), DatumError>,
) -> Result<(), DatumError> {
    loop {
        let count = reader.block()?;
        if count == 0 {
            return Ok(());
        }
        for _ in 0..count {
            item(reader)?;
        }
    }
}

/// RFC 3339 with as many digits as there are; a time that no calendar names stays a number of microseconds.
fn time(micros: i64) -> Value {
    match DateTime::from_timestamp_micros(micros) {
        Some(time) => Value::from(time.to_rfc3339_opts(SecondsFormat::AutoSi, true)),
        None => Value::from(micros),
    }
}

fn fixed(name: &str, bytes: &[u8]) -> Value {
    match (name, uuid::Uuid::from_slice(bytes)) {
        ("Uuid", Ok(uuid)) => Value::from(uuid.to_string()),
        _ => Value::from(hex(bytes)),
    }
}

/// `d2026-03-01` instead of a kind and a number.
fn window(fields: &Map<String, Value>) -> Option<Value> {
    let kind = fields.get("kind")?.as_str()?;
    let kind = WindowKind::ALL.into_iter().find(|known| known.to_string() == kind)?;
    let ordinal = i32::try_from(fields.get("ordinal")?.as_i64()?).ok()?;
    Some(Value::from(Window { kind, ordinal }.to_string()))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]).map(|digit| char::from(DIGITS[usize::from(digit)])).collect()
}
