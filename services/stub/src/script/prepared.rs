//! A script made ready: checked, cut and escaped once, so that a benchmark measures the caller and not the stub.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde_json::Value;

use super::{BOUNDARY, Script, ScriptError};

/// A stream of a hundred thousand chunks takes hours at real gaps; more is a mistake in a script.
const MAX_CHUNKS: usize = 100_000;
/// One chunk may be larger than any buffer on its way, and the whole answer must fit in memory several times.
const MAX_CHUNK_BYTES: usize = 16 << 20;
const MAX_TEXT_BYTES: usize = 64 << 20;
/// The most a provider offers is 128.
const MAX_CHOICES: usize = 128;

/// A script, with all that can be computed before a request comes.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) script: Script,
    /// The content's chunks as the inside of a JSON string; each a part of `content`.
    pub(crate) pieces: Vec<Bytes>,
    /// All chunks together.
    pub(crate) content: Bytes,
    pub(crate) tools: Vec<PreparedTool>,
    /// Likewise of the thinking; none where the model does not think aloud.
    pub(crate) thoughts: Vec<Bytes>,
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    /// The whole body, by `raw` or `body`, in the writes it is sent in.
    pub(crate) writes: Option<Vec<Bytes>>,
}

#[derive(Debug)]
pub(crate) struct PreparedTool {
    /// JSON texts, with their quotes.
    pub(crate) id: String,
    pub(crate) name: String,
    /// The insides of JSON texts.
    pub(crate) fragments: Vec<String>,
}

impl Prepared {
    /// Checks the bounds and the encodings of `script`.
    pub(crate) fn new(script: Script) -> Result<Arc<Self>, ScriptError> {
        within("chunks", script.chunks, MAX_CHUNKS)?;
        within("chunk_bytes", script.chunk_bytes.unwrap_or(0), MAX_CHUNK_BYTES)?;
        within("chunk_bytes × chunks", script.chunk_bytes.unwrap_or(0).saturating_mul(script.chunks), MAX_TEXT_BYTES)?;
        within("thinking_chunks", script.thinking_chunks, MAX_CHUNKS)?;
        within("n", script.n.unwrap_or(1), MAX_CHOICES)?;
        if script.write_bytes == Some(0) {
            return Err(ScriptError::Wrong { field: "write_bytes", why: "a write has at least one byte".to_owned() });
        }
        let (content, pieces) = cut(&texts_of(&script));
        let thinking = script.thinking.as_ref().map(|text| cut_evenly(text, script.thinking_chunks));
        let (_, thoughts) = cut(&thinking.unwrap_or_default());
        let tools =
            script.tool_calls.iter().enumerate().map(|(index, _)| tool_of(&script, index)).collect::<Result<_, _>>()?;
        Ok(Arc::new(Self {
            pieces,
            content,
            tools,
            thoughts,
            status: StatusCode::from_u16(script.status)
                .map_err(|error| ScriptError::Wrong { field: "status", why: error.to_string() })?,
            headers: headers_of(&script)?,
            writes: writes_of(&script)?,
            script,
        }))
    }
}

fn within(field: &'static str, value: usize, max: usize) -> Result<(), ScriptError> {
    if value > max { Err(ScriptError::TooLarge { field, value, max }) } else { Ok(()) }
}

fn texts_of(script: &Script) -> Vec<String> {
    match (&script.text, script.chunk_bytes) {
        (Some(text), _) => cut_evenly(text, script.chunks),
        (None, Some(bytes)) => (0..script.chunks).map(|chunk| filler(chunk, bytes)).collect(),
        (None, None) => (0..script.chunks).map(|chunk| format!("word{chunk} ")).collect(),
    }
}

/// `texts` as the inside of one JSON string, and each as a part of it.
fn cut(texts: &[String]) -> (Bytes, Vec<Bytes>) {
    let mut content = Vec::new();
    let mut ends = Vec::with_capacity(texts.len());
    for text in texts {
        content.extend_from_slice(escaped(text).as_bytes());
        ends.push(content.len());
    }
    let content = Bytes::from(content);
    let mut start = 0;
    let pieces = ends.into_iter().map(|end| content.slice(std::mem::replace(&mut start, end)..end)).collect();
    (content, pieces)
}

/// `text` in `count` parts of about equal length, none of which splits a character. Short texts leave parts empty.
fn cut_evenly(text: &str, count: usize) -> Vec<String> {
    let mut start = 0;
    (1..=count)
        .map(|part| {
            let mut end = text.len() * part / count;
            while !text.is_char_boundary(end) {
                end += 1;
            }
            text[std::mem::replace(&mut start, end)..end].to_owned()
        })
        .collect()
}

/// Exactly `bytes` bytes that tell chunks apart.
fn filler(chunk: usize, bytes: usize) -> String {
    let mut text = format!("{chunk} ");
    text.truncate(bytes);
    text.extend(std::iter::repeat_n('x', bytes - text.len()));
    text
}

/// `text` as the inside of a JSON string.
fn escaped(text: &str) -> String {
    let quoted = Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

fn tool_of(script: &Script, index: usize) -> Result<PreparedTool, ScriptError> {
    let call = &script.tool_calls[index];
    within("tool_calls.fragments", call.fragments, MAX_CHUNKS)?;
    let id = call.id.clone().unwrap_or_else(|| format!("call_stub_{index}"));
    Ok(PreparedTool {
        id: Value::from(id).to_string(),
        name: Value::from(call.name.as_str()).to_string(),
        fragments: cut_evenly(&call.arguments, call.fragments).iter().map(|text| escaped(text)).collect(),
    })
}

fn headers_of(script: &Script) -> Result<HeaderMap, ScriptError> {
    let wrong = |why: String| ScriptError::Wrong { field: "headers", why };
    script
        .headers
        .iter()
        .map(|(name, value)| {
            let name: HeaderName = name.parse().map_err(|_| wrong(format!("`{name}` is no header name")))?;
            let value = HeaderValue::from_str(value).map_err(|_| wrong(format!("the value of `{name}`")))?;
            Ok((name, value))
        })
        .collect()
}

fn writes_of(script: &Script) -> Result<Option<Vec<Bytes>>, ScriptError> {
    if let Some(raw) = &script.raw {
        return Ok(Some(raw.split(BOUNDARY).map(|piece| Bytes::from(piece.to_owned())).collect()));
    }
    if !script.raw_base64.is_empty() {
        let decode = |text: &String| {
            let wrong = |error: base64::DecodeError| ScriptError::Wrong { field: "raw_base64", why: error.to_string() };
            STANDARD.decode(text).map(Bytes::from).map_err(wrong)
        };
        return script.raw_base64.iter().map(decode).collect::<Result<_, _>>().map(Some);
    }
    Ok(script.body.as_ref().map(|body| match body {
        Value::String(text) => vec![Bytes::from(text.clone())],
        other => vec![Bytes::from(other.to_string())],
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(script: Script) -> Vec<String> {
        let prepared = Prepared::new(script).unwrap();
        prepared.pieces.iter().map(|piece| String::from_utf8(piece.to_vec()).unwrap()).collect()
    }

    #[test]
    fn content_is_cut_evenly_between_characters_and_escaped() {
        let text = |text: &str, chunks| pieces(Script { text: Some(text.to_owned()), chunks, ..Script::default() });
        assert_eq!(text("abcdef", 3), ["ab", "cd", "ef"]);
        assert_eq!(text("déjà \"vu\"\n", 3).concat(), "déjà \\\"vu\\\"\\n");
        assert_eq!(text("a", 3).concat(), "a");
        assert_eq!(pieces(Script { chunks: 2, ..Script::default() }), ["word0 ", "word1 "]);
        let sized = pieces(Script { chunks: 12, chunk_bytes: Some(7), ..Script::default() });
        assert!(sized.iter().all(|piece| piece.len() == 7) && sized[0] != sized[11]);
        assert_eq!(pieces(Script { chunks: 2, chunk_bytes: Some(1), ..Script::default() }), ["0", "1"]);
    }

    #[test]
    fn what_cannot_be_played_is_refused_by_field() {
        let wrong = [
            (Script { chunks: 100_001, ..Script::default() }, "`chunks` is 100001"),
            (Script { chunks: 100_000, chunk_bytes: Some(1 << 20), ..Script::default() }, "`chunk_bytes × chunks`"),
            (Script { status: 99, ..Script::default() }, "`status`"),
            (Script { raw_base64: vec!["%".to_owned()], ..Script::default() }, "`raw_base64`"),
            (Script { write_bytes: Some(0), ..Script::default() }, "`write_bytes`"),
            (Script { headers: [("a b".to_owned(), String::new())].into(), ..Script::default() }, "`headers`"),
        ];
        for (script, expected) in wrong {
            let error = Prepared::new(script).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
