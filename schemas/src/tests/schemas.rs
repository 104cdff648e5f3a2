//! The schema files themselves: pinned, compatible, documented.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use apache_avro::Schema;
use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::datum::Shape;
use crate::json;
use crate::released::{RELEASED, Released};

use super::compatibility::can_read;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Ids {
    schema: Vec<Pinned>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Pinned {
    id: u32,
    subject: String,
    version: u16,
    file: String,
    sha256: String,
}

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn ids() -> Vec<Pinned> {
    let text = fs::read_to_string(folder().join("ids.toml")).unwrap();
    toml::from_str::<Ids>(&text).unwrap().schema
}

fn schema(released: &Released) -> Value {
    serde_json::from_str(released.avsc).unwrap()
}

#[test]
fn a_released_schema_never_changes() {
    for pinned in ids() {
        let text = fs::read(folder().join(&pinned.file)).unwrap_or_else(|error| panic!("{}: {error}", pinned.file));
        let hash = json::hex(&Sha256::digest(&text));
        assert_eq!(
            hash, pinned.sha256,
            "{} differs from what was released: take the change back and add it as the next version (README.md)",
            pinned.file
        );
    }
}

#[test]
fn ids_files_and_crate_agree() {
    let pinned: BTreeMap<u32, (String, u16, String)> =
        ids().into_iter().map(|p| (p.id, (p.subject, p.version, p.file))).collect();
    let built: BTreeMap<u32, (String, u16, String)> = RELEASED
        .iter()
        .map(|r| (r.id, (r.subject("weir."), r.version, format!("avro/{}/{}/v{}.avsc", r.topic, r.record, r.version))))
        .collect();
    assert_eq!(pinned.len(), ids().len(), "an id stands for two schemas");
    assert_eq!(pinned, built, "ids.toml and src/released.rs differ");

    let mut files = BTreeSet::new();
    collect(&folder().join("avro"), &mut files);
    let listed: BTreeSet<PathBuf> = pinned.values().map(|(_, _, file)| folder().join(file)).collect();
    assert_eq!(files, listed, "a schema file is not in ids.toml");
}

fn collect(folder: &Path, files: &mut BTreeSet<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, files);
        } else {
            files.insert(path);
        }
    }
}

#[test]
fn versions_of_a_record_count_from_one() {
    let mut versions: BTreeMap<&str, Vec<u16>> = BTreeMap::new();
    for released in RELEASED {
        versions.entry(released.record).or_default().push(released.version);
    }
    for (record, versions) in versions {
        let counted: Vec<u16> = (1..).take(versions.len()).collect();
        assert_eq!(versions, counted, "{record}");
    }
}

/// FULL_TRANSITIVE: whoever has any version of a record reads every other.
#[test]
fn all_versions_of_a_record_read_each_other() {
    for one in RELEASED {
        for other in RELEASED.iter().filter(|other| other.record == one.record) {
            if let Err(reason) = can_read(&schema(one), &schema(other)) {
                panic!("{} v{} cannot read v{}: {reason}", one.record, one.version, other.version);
            }
        }
    }
}

#[test]
fn every_schema_is_within_what_the_reader_knows() {
    for released in RELEASED {
        if let Err(reason) = Shape::parse(released.avsc) {
            panic!("{} v{}: {reason}", released.record, released.version);
        }
    }
}

/// Calls `look` on every record, enum, fixed and field, with its path.
fn walk(schema: &Value, path: &str, look: &mut impl FnMut(&str, &Value)) {
    match schema {
        Value::Array(branches) => branches.iter().for_each(|branch| walk(branch, path, look)),
        Value::Object(object) => {
            let path = match object.get("name") {
                Some(name) => format!("{path}/{}", name.as_str().unwrap()),
                None => path.to_owned(),
            };
            if object.contains_key("name") {
                look(&path, schema);
            }
            for key in ["type", "items", "values", "fields"] {
                if let Some(inner) = object.get(key) {
                    walk(inner, &path, look);
                }
            }
        }
        Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Whether a field of this type is a bare number, whose unit only the documentation can tell.
fn is_bare_number(kind: &Value) -> bool {
    match kind {
        Value::String(name) => name == "int" || name == "long",
        Value::Array(branches) => branches.iter().any(is_bare_number),
        Value::Object(object) => match object.get("logicalType").and_then(Value::as_str) {
            Some("timestamp-micros") => false,
            Some("decimal") => true,
            Some(_) | None => object.get("values").is_some_and(is_bare_number),
        },
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

#[test]
fn everything_is_documented_and_every_number_has_its_unit() {
    for released in RELEASED {
        walk(&schema(released), released.topic, &mut |path, node| {
            let doc = node.get("doc").and_then(Value::as_str).unwrap_or_default();
            assert!(doc.ends_with(['.', '?', '…']), "{path} has no documentation");
            if node.get("type").is_some_and(is_bare_number) {
                assert!(doc.contains("Unit: "), "{path} does not tell its unit");
            }
        });
    }
}

/// The writer looks at no schema: these habits are what it rests on. The defaults are what later versions rest on.
#[test]
fn optional_fields_and_enums_follow_the_house() {
    for released in RELEASED {
        walk(&schema(released), released.topic, &mut |path, node| {
            if let Some(branches) = node.get("type").and_then(Value::as_array) {
                assert_eq!(branches.len(), 2, "{path}: an optional type, or none");
                assert_eq!(branches[0], "null", "{path}: null comes first");
                assert_eq!(node.get("default"), Some(&Value::Null), "{path}: the default is null");
            }
            if node.get("type").is_some_and(|kind| kind == "enum") {
                let symbols = node["symbols"].as_array().unwrap();
                assert_eq!(
                    symbols.last().unwrap(),
                    "unknown",
                    "{path}: a symbol for what an older reader does not know"
                );
                assert_eq!(node.get("default").unwrap(), "unknown", "{path}");
            }
        });
    }
}

/// Events share one header, and a shared name means the same thing in every file.
#[test]
fn a_name_means_the_same_in_every_newest_schema() {
    let mut known: BTreeMap<String, Value> = BTreeMap::new();
    let mut with_header = HashSet::new();
    let is_newest = |one: &&Released| RELEASED.iter().all(|o| o.record != one.record || o.version <= one.version);
    for released in RELEASED.iter().filter(is_newest) {
        walk(&schema(released), "", &mut |_, node| {
            if node.get("namespace").is_none() {
                return;
            }
            let name = node["name"].as_str().unwrap().to_owned();
            if name == "EventHeader" {
                with_header.insert(released.record);
            }
            if let Some(before) = known.insert(name.clone(), node.clone()) {
                let (before, now) = (Schema::parse_str(&before.to_string()), Schema::parse_str(&node.to_string()));
                assert_eq!(before.unwrap(), now.unwrap(), "{name} in {} is another", released.record);
            }
        });
    }
    let events = RELEASED.iter().filter(|released| released.topic == "reservations");
    assert_eq!(with_header, events.map(|released| released.record).collect());
}
