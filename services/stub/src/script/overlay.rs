//! Changes to a script that come with one request: in its headers, its metadata, or its prompt.
//!
//! A gateway drops headers that it does not know, so a test behind one writes `[[stub {"chunks":5}]]` into a message,
//! or an object into `metadata.stub`. Changes replace fields of the script that the model selects (null takes a field
//! back to its default); later sources win: metadata, then the prompt, then headers.

use std::sync::Arc;

use http::HeaderMap;
use serde_json::{Map, Value};

use super::{Prepared, Script, ScriptError};

/// Fields of a [`Script`], as JSON.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Overlay {
    fields: Map<String, Value>,
}

const HEADER_PREFIX: &str = "x-stub-";
/// Holds a whole JSON object of fields.
const HEADER_JSON: &str = "x-stub-json";
/// Names a script instead of the model.
pub(crate) const HEADER_SCRIPT: &str = "x-stub-script";
/// Opens a script in a prompt; closed by `]]`.
pub(crate) const MARKER: &str = "[[stub ";

impl Overlay {
    #[must_use]
    pub(crate) fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    /// `x-stub-gap-ms: 50` is the field `gap_ms`; a value that is not JSON is a text.
    pub(crate) fn merge_headers(&mut self, headers: &HeaderMap) -> Result<(), ScriptError> {
        for (name, value) in headers {
            let Some(field) = name.as_str().strip_prefix(HEADER_PREFIX) else { continue };
            let text = value.to_str().map_err(|_| ScriptError::NotScript(format!("`{name}` is not ASCII text")))?;
            match name.as_str() {
                HEADER_SCRIPT => {}
                HEADER_JSON => self.merge_json(text)?,
                _ => {
                    let value = serde_json::from_str(text).unwrap_or_else(|_| Value::from(text));
                    merge(&mut self.fields, [(field.replace('-', "_"), value)].into_iter().collect());
                }
            }
        }
        Ok(())
    }

    pub(crate) fn merge_json(&mut self, text: &str) -> Result<(), ScriptError> {
        self.merge_value(serde_json::from_str(text).map_err(|error| ScriptError::NotScript(error.to_string()))?)
    }

    /// An object, or a text that holds one: OpenAI's `metadata` takes only texts.
    pub(crate) fn merge_value(&mut self, value: Value) -> Result<(), ScriptError> {
        match value {
            Value::Object(fields) => {
                merge(&mut self.fields, fields);
                Ok(())
            }
            Value::String(text) => self.merge_json(&text),
            _ => Err(ScriptError::NotScript("expected an object".to_owned())),
        }
    }

    /// The first `[[stub {…}]]` in `text`.
    pub(crate) fn merge_marker(&mut self, text: &str) -> Result<bool, ScriptError> {
        let Some((_, from_marker)) = text.split_once(MARKER) else { return Ok(false) };
        let mut values = serde_json::Deserializer::from_str(from_marker).into_iter();
        let value =
            values.next().unwrap_or(Ok(Value::Null)).map_err(|error| ScriptError::NotScript(error.to_string()))?;
        if !from_marker[values.byte_offset()..].trim_start().starts_with("]]") {
            return Err(ScriptError::NotScript(format!("`{MARKER}` is not closed by `]]`")));
        }
        self.merge_value(value)?;
        Ok(true)
    }

    /// `base` with these fields changed.
    pub(crate) fn apply(self, base: &Prepared) -> Result<Arc<Prepared>, ScriptError> {
        let not_script = |error: serde_json::Error| ScriptError::NotScript(error.to_string());
        let mut script = match serde_json::to_value(&base.script).map_err(not_script)? {
            Value::Object(fields) => fields,
            _ => Map::new(),
        };
        merge(&mut script, self.fields);
        drop_nulls(&mut script);
        let script: Script = serde_json::from_value(Value::Object(script)).map_err(not_script)?;
        Prepared::new(script)
    }
}

/// Fields replace fields; only `usage` is merged field by field, so that one number can be changed alone.
fn merge(into: &mut Map<String, Value>, changes: Map<String, Value>) {
    for (field, change) in changes {
        match (into.get_mut(&field), change) {
            (Some(Value::Object(old)), Value::Object(new)) if field == "usage" => old.extend(new),
            (_, change) => {
                into.insert(field, change);
            }
        }
    }
}

/// A missing field takes its default; a null would not.
fn drop_nulls(fields: &mut Map<String, Value>) {
    if let Some(Value::Object(usage)) = fields.get_mut("usage") {
        usage.retain(|_, value| !value.is_null());
    }
    fields.retain(|_, value| !value.is_null());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overlay(json: &str) -> Overlay {
        let mut overlay = Overlay::default();
        overlay.merge_json(json).unwrap();
        overlay
    }

    #[test]
    fn fields_are_replaced_usage_merges_and_null_takes_back_to_the_default() {
        let base =
            Prepared::new(toml::from_str("chunks = 9\ntext = 'abc'\nusage = { prompt = 5, cached = 2 }").unwrap())
                .unwrap();
        let changed = overlay(r#"{"chunks":null,"usage":{"prompt":7},"gap_ms":3}"#).apply(&base).unwrap();
        assert_eq!((changed.script.chunks, changed.script.gap_ms), (3, 3));
        assert_eq!((changed.script.usage.prompt, changed.script.usage.cached), (Some(7), 2));
        assert_eq!(changed.script.text.as_deref(), Some("abc"));
    }

    #[test]
    fn a_marker_is_found_in_a_prompt_and_must_be_closed() {
        let mut found = Overlay::default();
        assert!(found.merge_marker(r#"hello [[stub {"raw_base64":["aa==",["b"]]}]] and more"#).unwrap());
        assert_eq!(found, overlay(r#"{"raw_base64":["aa==",["b"]]}"#));
        assert!(!Overlay::default().merge_marker("nothing here").unwrap());
        assert!(Overlay::default().merge_marker(r#"[[stub {"chunks":1} "#).is_err());
        assert!(Overlay::default().merge_marker("[[stub ").is_err());
    }

    #[test]
    fn headers_are_fields_with_dashes() {
        let mut headers = HeaderMap::new();
        for (name, value) in
            [("x-stub-gap-ms", "50"), ("x-stub-text", "hello"), ("x-stub-script", "slow"), ("host", "x")]
        {
            headers.insert(name, value.parse().unwrap());
        }
        headers.insert("x-stub-json", r#"{"usage":{"prompt":3}}"#.parse().unwrap());
        let mut merged = Overlay::default();
        merged.merge_headers(&headers).unwrap();
        assert_eq!(merged, overlay(r#"{"gap_ms":50,"text":"hello","usage":{"prompt":3}}"#));
    }

    #[test]
    fn an_unknown_field_is_named() {
        let base = Prepared::new(Script::default()).unwrap();
        let error = overlay(r#"{"chunkz":1}"#).apply(&base).unwrap_err().to_string();
        assert!(error.contains("chunkz"), "{error}");
    }
}
