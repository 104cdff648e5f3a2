//! A schema as the reader follows it: names resolved, documentation left out.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;

/// What stands on the wire, in order.
#[derive(Debug, Clone)]
pub(crate) enum Shape {
    Null,
    Boolean,
    Int,
    Long,
    /// Microseconds since 1970 UTC.
    Micros,
    Bytes,
    /// Money: an unscaled integer of 10⁻⁹ dollars.
    Nanos,
    Text,
    Fixed {
        name: Arc<str>,
        bytes: usize,
    },
    Enum(Arc<[String]>),
    Array(Arc<Shape>),
    Map(Arc<Shape>),
    Union(Arc<[Shape]>),
    Record(Arc<RecordShape>),
}

#[derive(Debug)]
pub(crate) struct RecordShape {
    pub(crate) name: String,
    pub(crate) fields: Vec<(String, Shape)>,
}

impl Shape {
    /// Parses a schema file. The error says what in it Weir's records may not have.
    pub(crate) fn parse(avsc: &str) -> Result<Self, String> {
        let schema = serde_json::from_str(avsc).map_err(|error| error.to_string())?;
        shape_of(&schema, &mut HashMap::new())
    }
}

type Named = HashMap<String, Shape>;

fn shape_of(schema: &Value, named: &mut Named) -> Result<Shape, String> {
    match schema {
        Value::String(name) => primitive(name).or_else(|| named.get(short(name)).cloned()).ok_or_else(|| unknown(name)),
        Value::Array(branches) => {
            let branches: Result<Vec<Shape>, String> = branches.iter().map(|branch| shape_of(branch, named)).collect();
            Ok(Shape::Union(branches?.into()))
        }
        Value::Object(_) => complex(schema, named),
        Value::Null | Value::Bool(_) | Value::Number(_) => Err(unknown(&schema.to_string())),
    }
}

fn complex(schema: &Value, named: &mut Named) -> Result<Shape, String> {
    let kind = text(schema, "type")?;
    match (kind, schema.get("logicalType").and_then(Value::as_str)) {
        ("long", Some("timestamp-micros")) => Ok(Shape::Micros),
        ("bytes", Some("decimal")) => match schema.get("scale").and_then(Value::as_u64) {
            Some(9) => Ok(Shape::Nanos),
            Some(_) | None => Err("a decimal must have nine places, as money has".to_owned()),
        },
        ("array", _) => Ok(Shape::Array(Arc::new(inner(schema, "items", named)?))),
        ("map", _) => Ok(Shape::Map(Arc::new(inner(schema, "values", named)?))),
        ("fixed", _) => {
            let bytes = schema.get("size").and_then(Value::as_u64).and_then(|size| usize::try_from(size).ok());
            let name = text(schema, "name")?;
            let shape = Shape::Fixed { name: name.into(), bytes: bytes.ok_or("a fixed needs a size")? };
            Ok(define(name, shape, named))
        }
        ("enum", _) => {
            let symbols = list(schema, "symbols")?.iter().filter_map(Value::as_str).map(str::to_owned).collect();
            Ok(define(text(schema, "name")?, Shape::Enum(symbols), named))
        }
        ("record", _) => {
            let mut fields = Vec::new();
            for field in list(schema, "fields")? {
                fields.push((text(field, "name")?.to_owned(), inner(field, "type", named)?));
            }
            let name = text(schema, "name")?;
            let record = RecordShape { name: name.to_owned(), fields };
            Ok(define(name, Shape::Record(Arc::new(record)), named))
        }
        (other, _) => primitive(other).ok_or_else(|| unknown(other)),
    }
}

/// A name is known from its definition on, so a record cannot hold itself and no datum is deeper than its schema.
fn define(name: &str, shape: Shape, named: &mut Named) -> Shape {
    named.insert(name.to_owned(), shape.clone());
    shape
}

/// There are no floats: no figure of Weir's is inexact.
fn primitive(name: &str) -> Option<Shape> {
    Some(match name {
        "null" => Shape::Null,
        "boolean" => Shape::Boolean,
        "int" => Shape::Int,
        "long" => Shape::Long,
        "bytes" => Shape::Bytes,
        "string" => Shape::Text,
        _ => return None,
    })
}

/// All names live in one namespace, so the last part tells them apart.
fn short(name: &str) -> &str {
    name.rsplit_once('.').map_or(name, |(_, last)| last)
}

fn inner(schema: &Value, key: &str, named: &mut Named) -> Result<Shape, String> {
    shape_of(schema.get(key).ok_or_else(|| missing(key))?, named)
}

fn text<'a>(schema: &'a Value, key: &str) -> Result<&'a str, String> {
    schema.get(key).and_then(Value::as_str).ok_or_else(|| missing(key))
}

fn list<'a>(schema: &'a Value, key: &str) -> Result<&'a Vec<Value>, String> {
    schema.get(key).and_then(Value::as_array).ok_or_else(|| missing(key))
}

fn missing(key: &str) -> String {
    format!("`{key}` is missing")
}

fn unknown(name: &str) -> String {
    format!("`{name}` is no type that Weir's records have")
}
