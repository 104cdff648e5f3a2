//! From bytes to rows of texts: what the two forms have in common is decided in `check`.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{ImportError, MAX_ROWS, Problem};

/// One row: texts by field, empty ones left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Row {
    pub line: u64,
    pub fields: BTreeMap<String, String>,
}

type Read = Result<(Vec<Row>, Vec<Problem>), ImportError>;

pub(super) fn problem(line: u64, field: &str, problem: impl Into<String>, fix: impl Into<String>) -> Problem {
    Problem { line, field: field.to_owned(), problem: problem.into(), fix: fix.into() }
}

pub(super) fn json_lines(bytes: &[u8]) -> Read {
    let (mut rows, mut problems) = (Vec::new(), Vec::new());
    for (text, line) in bytes.split(|byte| *byte == b'\n').zip(1u64..) {
        if text.trim_ascii().is_empty() {
            continue;
        }
        if rows.len() + problems.len() >= MAX_ROWS {
            return Err(ImportError::TooManyRows);
        }
        match serde_json::from_slice::<Value>(text) {
            Ok(Value::Object(object)) => match flattened(line, object) {
                Ok(fields) => rows.push(Row { line, fields }),
                Err(bad) => problems.push(bad),
            },
            Ok(_) => problems.push(problem(line, "line", "it is no JSON object", "write one object per line")),
            Err(error) => problems.push(problem(
                line,
                "line",
                format!("it is no JSON: {error}"),
                "write one whole object per line",
            )),
        }
    }
    Ok((rows, problems))
}

fn flattened(line: u64, object: serde_json::Map<String, Value>) -> Result<BTreeMap<String, String>, Problem> {
    let mut fields = BTreeMap::new();
    for (field, value) in object {
        match (field.as_str(), value) {
            ("meters", Value::Object(meters)) => {
                for (code, quantity) in meters {
                    if let Some(text) = text_of(line, &code, quantity)? {
                        fields.insert(code, text);
                    }
                }
            }
            (_, value) => {
                if let Some(text) = text_of(line, &field, value)? {
                    fields.insert(field, text);
                }
            }
        }
    }
    Ok(fields)
}

fn text_of(line: u64, field: &str, value: Value) -> Result<Option<String>, Problem> {
    match value {
        Value::Null => Ok(None),
        Value::String(text) => Ok(Some(text).filter(|text| !text.is_empty())),
        Value::Number(number) => Ok(Some(number.to_string())),
        Value::Bool(_) | Value::Array(_) | Value::Object(_) => {
            Err(problem(line, field, "it is neither a text nor a number", "write a text, or a whole number"))
        }
    }
}

pub(super) fn csv(bytes: &[u8]) -> Read {
    let (mut rows, mut problems) = (Vec::new(), Vec::new());
    let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(bytes);
    let header = match reader.headers() {
        Ok(header) => header.clone(),
        Err(error) => {
            let bad = problem(1, "header", error.to_string(), "write the names of the fields, in UTF-8");
            return Ok((rows, vec![bad]));
        }
    };
    for record in reader.records() {
        if rows.len() + problems.len() >= MAX_ROWS {
            return Err(ImportError::TooManyRows);
        }
        match record {
            Ok(record) => {
                let line = record.position().map_or(0, csv::Position::line);
                let named = header.iter().zip(record.iter()).filter(|(_, text)| !text.is_empty());
                let fields = named.map(|(field, text)| (field.to_owned(), text.to_owned())).collect();
                rows.push(Row { line, fields });
            }
            Err(error) => {
                let line = error.position().map_or(0, csv::Position::line);
                problems.push(problem(line, "line", error.to_string(), "give every row as many fields as the header"));
            }
        }
    }
    Ok((rows, problems))
}
