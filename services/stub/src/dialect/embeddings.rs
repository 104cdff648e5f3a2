//! OpenAI's embeddings: read, never streamed, nothing generated.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};

use super::openai::{self, Metadata};
use super::text::texts_of;
use super::{Answer, Asked, Dialect, Refusal, Special, Work};
use crate::script::ReportUsage;

#[derive(Debug)]
pub(super) struct Embeddings;

#[derive(Deserialize)]
struct Request {
    model: Option<String>,
    input: Option<Value>,
    #[serde(default)]
    dimensions: Option<usize>,
    #[serde(default)]
    encoding_format: Option<String>,
    #[serde(default)]
    metadata: Option<Metadata>,
}

/// Enough to look like a vector.
const DIMENSIONS: usize = 8;
/// The largest that a model has.
const MAX_DIMENSIONS: usize = 3072;
/// The most inputs that the provider takes at once.
const MAX_INPUTS: usize = 2048;

impl Dialect for Embeddings {
    fn read(&self, _: &HeaderMap, body: &[u8]) -> Result<Asked, Refusal> {
        let request: Request = openai::parse(body)?;
        let input = request.input.ok_or_else(|| Refusal::bad(Some("input"), "you must provide an input"))?;
        let inputs = inputs(&input).filter(|inputs| (1..=MAX_INPUTS).contains(inputs));
        let inputs = inputs.ok_or_else(|| Refusal::bad(Some("input"), "'$.input' is invalid."))?;
        let dimensions = request.dimensions.unwrap_or(DIMENSIONS);
        if !(1..=MAX_DIMENSIONS).contains(&dimensions) {
            return Err(Refusal::bad(Some("dimensions"), format!("dimensions are 1 to {MAX_DIMENSIONS}")));
        }
        Ok(Asked {
            model: request.model.ok_or_else(openai::no_model)?,
            metadata: request.metadata.and_then(|metadata| metadata.stub),
            special: Special::Embeddings {
                inputs,
                dimensions,
                base64: request.encoding_format.as_deref() == Some("base64"),
            },
            ..Asked::default()
        })
    }

    fn prompt_texts(&self, body: &[u8]) -> Vec<String> {
        let Ok(Value::Object(request)) = serde_json::from_slice(body) else { return Vec::new() };
        match request.get("input") {
            Some(Value::Array(inputs)) => inputs.iter().flat_map(texts_of).collect(),
            Some(input) => texts_of(input),
            None => Vec::new(),
        }
    }

    fn work(&self) -> Work {
        Work::Embeds
    }

    fn plain(&self, answer: &Answer) -> Bytes {
        let Special::Embeddings { inputs, dimensions, base64 } = answer.asked.special else { return Bytes::new() };
        let data: Vec<_> = (0..inputs)
            .map(|index| json!({"object": "embedding", "index": index, "embedding": vector(index, dimensions, base64)}))
            .collect();
        let mut body = json!({"object": "list", "data": data, "model": answer.asked.model});
        let (usage, figures) = (&answer.prepared.script.usage, answer.figures);
        if usage.report != ReportUsage::Never {
            let counted = || json!({"prompt_tokens": figures.prompt, "total_tokens": figures.prompt});
            body["usage"] = usage.verbatim.clone().unwrap_or_else(counted);
        }
        Bytes::from(body.to_string())
    }

    fn error_body(&self, status: StatusCode, message: &str, field: Option<&str>) -> Bytes {
        openai::error_body(status, message, field)
    }
}

/// A text, texts, one text's tokens, or several texts' tokens.
fn inputs(input: &Value) -> Option<usize> {
    match input {
        Value::String(text) => (!text.is_empty()).then_some(1),
        Value::Array(items) if items.iter().all(Value::is_number) => (!items.is_empty()).then_some(1),
        Value::Array(items) => {
            let each = |item: &Value| item.is_string() || item.as_array().is_some_and(|tokens| !tokens.is_empty());
            items.iter().all(each).then_some(items.len())
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => None,
    }
}

/// One direction for each input: a one among zeros, so that a test sees whose vector it got.
fn vector(index: usize, dimensions: usize, base64: bool) -> Value {
    let value = |at: usize| if at == index % dimensions { 1.0_f32 } else { 0.0 };
    if base64 {
        let bytes: Vec<u8> = (0..dimensions).flat_map(|at| value(at).to_le_bytes()).collect();
        return STANDARD.encode(bytes).into();
    }
    (0..dimensions).map(value).collect()
}
