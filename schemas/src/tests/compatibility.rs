//! Whether a reader of one schema understands what was written with another.
//!
//! Avro's rules of resolution without its promotions (an `int` read as a `long` works in one direction only, and every
//! version must read every other). Not `apache_avro`'s own check: it finds a schema with a decimal incompatible with
//! itself.

use std::collections::HashMap;

use serde_json::Value;

/// Says where and why not.
pub(super) fn can_read(reader: &Value, writer: &Value) -> Result<(), String> {
    let names = (names_of(reader), names_of(writer));
    resolve(&names, reader, writer).map_err(|(path, reason)| format!("{path}: {reason}"))
}

type Names<'a> = HashMap<String, &'a Value>;
type Mismatch = (String, String);

fn names_of(schema: &Value) -> Names<'_> {
    fn collect<'a>(node: &'a Value, names: &mut Names<'a>) {
        match node {
            Value::Array(items) => items.iter().for_each(|item| collect(item, names)),
            Value::Object(object) => {
                if let (Some(namespace), Some(name)) = (object.get("namespace"), object.get("name")) {
                    names.insert(format!("{}.{}", namespace.as_str().unwrap(), name.as_str().unwrap()), node);
                }
                object.values().for_each(|value| collect(value, names));
            }
            Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
    let mut names = Names::new();
    collect(schema, &mut names);
    names
}

fn resolve(names: &(Names<'_>, Names<'_>), reader: &Value, writer: &Value) -> Result<(), Mismatch> {
    let follow = |names: &Names<'_>, node: &Value| -> Value {
        node.as_str().and_then(|name| names.get(name)).map_or_else(|| node.clone(), |named| (*named).clone())
    };
    let (reader, writer) = (&follow(&names.0, reader), &follow(&names.1, writer));
    let mismatch = |reason: &str| Err((String::new(), format!("{reason}: {reader} from {writer}")));
    match (reader, writer) {
        (_, Value::Array(branches)) => branches.iter().try_for_each(|branch| resolve(names, reader, branch)),
        (Value::Array(branches), _) => {
            let fits = branches.iter().any(|branch| resolve(names, branch, writer).is_ok());
            if fits { Ok(()) } else { mismatch("no branch") }
        }
        (Value::Object(r), Value::Object(w)) => {
            let differs = ["type", "name", "size", "logicalType", "precision", "scale"]
                .into_iter()
                .find(|key| !r["type"].is_object() && r.get(*key) != w.get(*key));
            if let Some(key) = differs {
                return mismatch(&format!("another {key}"));
            }
            match r["type"].as_str() {
                Some("record") => fields(names, &r["fields"], &w["fields"]),
                Some("enum") => {
                    let knows = |symbol: &Value| r["symbols"].as_array().unwrap().contains(symbol);
                    let has_all = w["symbols"].as_array().unwrap().iter().all(knows);
                    if has_all || r.contains_key("default") { Ok(()) } else { mismatch("an unknown symbol") }
                }
                Some("array") => resolve(names, &r["items"], &w["items"]),
                Some("map") => resolve(names, &r["values"], &w["values"]),
                Some(_) | None => Ok(()),
            }
        }
        (one, other) if one == other => Ok(()),
        _ => mismatch("another type"),
    }
}

/// What the reader has beyond the writer needs a default; what the writer has beyond the reader is skipped.
fn fields(names: &(Names<'_>, Names<'_>), reader: &Value, writer: &Value) -> Result<(), Mismatch> {
    for field in reader.as_array().unwrap() {
        let name = field["name"].as_str().unwrap();
        match writer.as_array().unwrap().iter().find(|written| written["name"] == field["name"]) {
            Some(written) => {
                resolve(names, &field["type"], &written["type"])
                    .map_err(|(path, reason)| (format!("{name}/{path}"), reason))?;
            }
            None if field.get("default").is_some() => {}
            None => return Err((name.to_owned(), "is not written and has no default".to_owned())),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::released::RELEASED;

    /// Every record with `change` applied to its fields, both ways.
    fn with(record: &str, change: impl Fn(&mut Vec<Value>)) -> Result<(), String> {
        let released = RELEASED.iter().find(|released| released.record == record).unwrap();
        let old: Value = serde_json::from_str(released.avsc).unwrap();
        let mut new = old.clone();
        change(new["fields"].as_array_mut().unwrap());
        can_read(&old, &new)?;
        can_read(&new, &old)
    }

    #[test]
    fn what_a_version_may_bring() {
        with("KeyRevoked", |_| {}).unwrap();
        with("KeyRevoked", |f| f.push(json!({"name": "note", "type": ["null", "string"], "default": null}))).unwrap();
        with("AttemptClosed", |f| f[1]["type"]["symbols"].as_array_mut().unwrap().insert(0, json!("new"))).unwrap();
        with("ReservationCreated", |f| f[0]["doc"] = json!("said better")).unwrap();
    }

    #[test]
    fn what_would_break_readers_is_found() {
        with("KeyRevoked", |f| f.push(json!({"name": "note", "type": "string"}))).unwrap_err();
        with("KeyRevoked", |f| drop(f.remove(0))).unwrap_err();
        with("KeyRevoked", |f| f[0]["type"] = json!("long")).unwrap_err();
        with("KeyRevoked", |f| f[0]["name"] = json!("key")).unwrap_err();
        with("KeyRevoked", |f| f[4]["type"] = json!("long")).unwrap_err();
        with("ReservationReleased", |f| drop(f[0]["type"]["fields"].as_array_mut().unwrap().remove(3))).unwrap_err();
        with("ReservationSettled", |f| f[1]["type"]["fields"][2]["type"]["scale"] = json!(6)).unwrap_err();
        with("AttemptClosed", |f| {
            let outcome = f[1]["type"].as_object_mut().unwrap();
            outcome.remove("default");
            outcome["symbols"].as_array_mut().unwrap().remove(0);
        })
        .unwrap_err();
    }
}
