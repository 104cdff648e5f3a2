//! Writing JSON as text, and finding texts in a request.

use std::io::Write;

use serde_json::Value;

/// Writing to a `Vec` cannot fail.
pub(super) fn put(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    let _written = out.write_fmt(text).is_ok();
}

/// A JSON text; names of models and tiers are the caller's, so they may need escapes.
pub(super) fn put_text(out: &mut Vec<u8>, text: &str) {
    let _written = serde_json::to_writer(out, text).is_ok();
}

/// An event with a name, whose data says the same.
pub(super) fn put_event(out: &mut Vec<u8>, data: &Value) {
    let name = data["type"].as_str().unwrap_or_default();
    put(out, format_args!("event: {name}\ndata: {data}\n\n"));
}

/// The texts of one message: its content, or the text parts of it.
pub(super) fn texts_of(content: &Value) -> Vec<String> {
    match content {
        Value::String(text) => vec![text.clone()],
        Value::Array(parts) => parts.iter().flat_map(texts_of_part).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => Vec::new(),
    }
}

/// A part has a text, or, like the result of a tool, content of its own.
fn texts_of_part(part: &Value) -> Vec<String> {
    match part.get("text").and_then(Value::as_str) {
        Some(text) => vec![text.to_owned()],
        None => part.get("content").map(texts_of).unwrap_or_default(),
    }
}

/// A prepared piece is the inside of a JSON text, cut between characters and never within an escape.
pub(super) fn unescaped(pieces: &[bytes::Bytes]) -> String {
    let mut quoted = vec![b'"'];
    pieces.iter().for_each(|piece| quoted.extend_from_slice(piece));
    quoted.push(b'"');
    serde_json::from_slice(&quoted).unwrap_or_default()
}

/// The same for texts.
pub(super) fn unescaped_text(pieces: &[String]) -> String {
    serde_json::from_str(&format!("\"{}\"", pieces.concat())).unwrap_or_default()
}
